"""The benches by the names that the command line takes."""

from collections.abc import Awaitable, Callable

from bench.measures.beside import beside
from bench.measures.cold import cold
from bench.measures.create import create
from bench.measures.docker_lane import docker_lane
from bench.measures.durable import durable
from bench.measures.execs import execs
from bench.measures.http import http
from bench.measures.keeping import found, handle
from bench.measures.many import burst, idle, rate
from bench.measures.mcp import mcp
from bench.measures.output import output
from bench.measures.tools import tools
from bench.numbers import Number
from bench.setting import Setting

MEASURES: dict[str, Callable[[Setting], Awaitable[list[Number]]]] = {
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
    "output": output,
    "http": http,
    "beside": beside,
    "tools": tools,
    "mcp": mcp,
}
