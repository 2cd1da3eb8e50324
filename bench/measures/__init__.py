"""The benches by the names that the command line takes."""

from collections.abc import Awaitable, Callable

from bench.context import Context
from bench.measures.cold import cold
from bench.measures.create import create, durable
from bench.measures.docker_lane import docker_lane
from bench.measures.e2b import e2b
from bench.measures.execs import execs
from bench.measures.http import http
from bench.measures.keeper import found, handle
from bench.measures.layers import layers
from bench.measures.mcp import mcp
from bench.measures.output import output
from bench.measures.previews import previews
from bench.measures.scale import burst, crowd, idle, rate
from bench.measures.tools import tools
from bench.measures.under_abuse import under_abuse
from bench.numbers import Number

MEASURES: dict[str, Callable[[Context], Awaitable[list[Number]]]] = {
    "create": create,
    "exec": execs,
    "docker_lane": docker_lane,
    "cold": cold,
    "durable": durable,
    "handle": handle,
    "found": found,
    "burst": burst,
    "rate": rate,
    "idle": idle,
    "crowd": crowd,
    "layers": layers,
    "output": output,
    "http": http,
    "previews": previews,
    "under_abuse": under_abuse,
    "tools": tools,
    "mcp": mcp,
    "e2b": e2b,
}
