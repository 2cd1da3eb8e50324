"""Telling people of a server: one line in a table, or everything that is known of it."""

import time

from hutch.cli.output import emit_json, printable, table
from hutch.model.durations import shown
from hutch.model.mcp import McpServerInfo


def tell(info: McpServerInfo, *, as_json: bool) -> None:
    if as_json:
        emit_json(info.to_plain())
        return
    error = info.error
    facts = {
        "name": info.name,
        "description": printable(info.description),
        "state": f"{info.state}" + (f" for {shown(time.time() - info.since)}" if info.state != "stopped" else ""),
        "phase": f"{info.phase}" if info.phase else "",
        "runs": printable(" ".join(info.command) or info.url),
        "box": info.box or ("" if info.boxed else "none: it runs somewhere else"),
        "shares": "" if info.share == "own" else f"{info.share}",
        "start": f"{info.start}",
        "tries": f"{info.retries}" if info.retries else "",
        "env": " ".join(info.env),
        "secret files": " ".join(info.secret_files),
        "files": ", ".join(f"{source} at {target}" for source, target in info.files.items()),
        "tools": "" if info.tools is None else f"{info.tools}",
        "defined in": info.origin,
        "failed": f"in phase {error.phase}: {printable(error.message)}" if error else "",
        "fix": printable(error.remedy) if error else "",
    }
    for name, value in facts.items():
        if value:
            print(f"{name + ':':<14}{value}")


def tell_all(infos: tuple[McpServerInfo, ...]) -> None:
    if not infos:
        print("there is no MCP server; `hutch mcp-server add NAME -- COMMAND` registers one")
        return
    rows = [
        (info.name, f"{info.state}", f"{info.phase or '-'}", info.box[:12] or "-", printable(_runs(info)))
        for info in infos
    ]
    table(("SERVER", "STATE", "PHASE", "BOX", "RUNS"), rows)


def _runs(info: McpServerInfo) -> str:
    text = " ".join(info.command) or info.url
    return text if len(text) <= 60 else text[:59] + "…"
