"""Declared permissions of skills, enforced in real native boxes."""

import json
from pathlib import Path
from typing import Any

import pytest

from hutch.errors import Refused
from hutch.keeper.access.handles import BoxHandle
from hutch.keeper.embedded import Hutch
from hutch.skills import tool_call
from tests.skills.make_skill import skill
from tests.skills.test_boxes import opened
from tests.skills.wheels import wheel

pytestmark = pytest.mark.slow

PROBE = """#!/usr/bin/python3
import ctypes, json, os, socket, subprocess, sys
report = {"given": json.load(sys.stdin)}
def attempt(name, work):
    try:
        work()
        report[name] = "yes"
    except OSError as error:
        report[name] = error.strerror
attempt("inet", lambda: socket.socket(socket.AF_INET))
attempt("inet6", lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM))
attempt("netlink", lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW))
attempt("unix", lambda: socket.socket(socket.AF_UNIX))
attempt("connect", lambda: socket.create_connection(("127.0.0.1", 9)))
attempt("write out", lambda: open("/workspace/out/made", "w").close())
attempt("write data", lambda: open("/workspace/data/made", "w").close())
attempt("read data", lambda: open("/workspace/data/there").close())
attempt("read secret", lambda: open("/workspace/secret").close())
attempt("link out", lambda: os.link("/workspace/out/made", "/workspace/made"))
attempt("read out", lambda: open("/workspace/out/made").close())
attempt("through link", lambda: open("/workspace/out/link").close())
attempt("through root", lambda: open("/proc/self/root/workspace/secret").close())
others = [name for name in os.listdir("/proc") if name.isdigit() and name not in ("1", str(os.getpid()))]
def through(rest):
    errors = []
    for name in others:
        try:
            return open(f"/proc/{name}/{rest}").close()
        except OSError as error:
            errors.append(error)
    raise errors[-1] if errors else OSError(2, "nobody there")
attempt("through descriptor", lambda: through("fd/0"))
attempt("through cwd", lambda: through("cwd/secret"))
def system_call(number, *words):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, *words) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
def in_child(number, *words):  # the box's own filter kills for it
    child = os.fork()
    if child == 0:
        os._exit(ctypes.CDLL(None).syscall(number, *words) < 0)
    if os.waitpid(child, 0)[1]:
        raise OSError(38, "not done")
attempt("x32", lambda: in_child(0x40000000 | 41, 2, 1, 0))
attempt("io_uring", lambda: system_call(425, 8, ctypes.create_string_buffer(256)))
attempt("write state", lambda: open(os.environ["SKILL_STATE"] + "/x", "w").close())
attempt("write tmp", lambda: open("/tmp/x", "w").close())
report["cat"] = subprocess.run(["cat", "/workspace/secret"], capture_output=True).returncode
print(json.dumps(report))
"""


async def _probes(hutch: Hutch, top: Path, **permissions: str) -> None:
    """Create a skill for each name, with a tool that tries everything."""
    for name, rule in permissions.items():
        more = f"hutch: {{tools: [{{name: probe, command: [scripts/probe]}}], permissions: {rule}}}\n"
        await hutch.skills.install(skill(top, name, more, scripts__probe=PROBE))


async def test_declared_paths_hold(tmp_path: Path) -> None:
    """With declared paths, nothing else of the workspace is accessible; what was not declared is as the box is."""
    async with opened(tmp_path) as hutch:
        await _probes(hutch, tmp_path, closed="{paths: [out, 'data:ro']}", none="{paths: []}", open="{}")
        async with hutch.box() as box:
            await box.exec("mkdir out data && touch secret data/there; ln -s ../secret out/link; sleep 1000 < secret &")
            report = await _call(hutch, box, "closed")
            assert report["given"] == {"n": 1}
            assert {report[name] for name in ("write data", "read secret")} == {"Permission denied"}, report
            assert {report[name] for name in ("unix", "write out", "read data", "write state", "write tmp")} == {"yes"}
            assert report["cat"] != 0 and report["link out"] != "yes"
            around = ("through link", "through root", "through descriptor", "through cwd")
            assert "yes" not in {report[name] for name in around}, report
            report = await _call(hutch, box, "none")
            assert {report[name] for name in ("write out", "read data", "read secret")} == {"Permission denied"}
            report = await _call(hutch, box, "open")
            assert {report[name] for name in ("read secret", "write data", *around[:2])} == {"yes"}


async def test_declared_tools_hold(tmp_path: Path) -> None:
    """A skill's programs may do to files what its declared tools could do, and no more; declared paths hold as well."""
    async with opened(tmp_path) as hutch:
        await _probes(
            hutch, tmp_path, reads="{tools: [read, grep]}", writes="{tools: [edit]}", nothing="{tools: []}",
            both="{tools: [read], paths: [out]}", boxes="{tools: [box_query], paths: [out]}",
        )  # fmt: skip
        async with hutch.box() as box:
            await box.exec("mkdir out data && touch secret data/there out/made")
            report = {name: await _call(hutch, box, name) for name in ("reads", "writes", "nothing", "both", "boxes")}
            may = {
                name: {what for what in ("read secret", "write data", "write out", "read out") if each[what] == "yes"}
                for name, each in report.items()
            }
            assert may == {
                "reads": {"read secret", "read out"},
                "writes": {"read secret", "write data", "write out", "read out"},
                "nothing": set(),
                "both": {"read out"},
                "boxes": set(),
            }
            assert {each["write state"] for each in report.values()} == {"yes"}
            assert {each["write tmp"] for each in report.values()} == {"yes"}
        preview = await hutch.skills.preview(
            skill(tmp_path, "odd", "hutch: {permissions: {tools: [read, Bash]}}\n"))  # fmt: skip
        assert any("Bash: there is no such tool" in warning for warning in preview.warnings)


async def test_a_skill_cannot_bring_what_confines_it(tmp_path: Path) -> None:
    """A `python3` among its dependencies is on the path of its tools, but is not the one that confines them."""
    more = (
        "hutch: {dependencies: {python: [./tiny_dep-1.0-py3-none-any.whl]}, permissions: {paths: []}, "
        "tools: [{name: probe, command: [scripts/probe]}]}\n"
    )
    place = skill(tmp_path, "sly", more, scripts__probe=PROBE)
    wheel(place, python3='#!/bin/sh\nshift 5\nexec "$@"\n')
    async with opened(tmp_path) as hutch:
        await hutch.skills.install(place)
        async with hutch.box(skills="all") as box:
            await box.exec("touch secret")
            ready = await hutch.skills.prepare("sly", box)
            assert (await box.exec("test -x $SKILL_BIN/python3", env=ready.env)).ok, "its own is there"
            assert (await _call(hutch, box, "sly"))["read secret"] == "Permission denied"


async def test_a_declared_network_holds(tmp_path: Path) -> None:
    """Without a declared network only Unix sockets work, even if the box has a network; what the box cannot provide
    is refused before anything runs."""
    async with opened(tmp_path) as hutch:
        await _probes(hutch, tmp_path, closed="{network: false}", wants="{network: true}", open="{}")
        async with hutch.box() as box:
            assert (await _call(hutch, box, "closed"))["connect"] != "yes"
            with pytest.raises(Refused, match="needs the network"):
                await _call(hutch, box, "wants")
        if "on" not in (await hutch._keeper.engines.capabilities("native")).networks:
            pytest.skip("this machine has no network for boxes of this user")
        async with hutch.box(network="on") as box:
            report = await _call(hutch, box, "closed")
            assert {report[name] for name in ("inet", "inet6", "netlink", "connect")} == {"Permission denied"}, report
            assert "yes" not in (report["x32"], report["io_uring"])
            assert report["unix"] == "yes"
            for name in ("open", "wants"):
                assert (await _call(hutch, box, name))["inet"] == "yes"


async def _call(hutch: Hutch, box: BoxHandle, name: str) -> dict[str, Any]:
    info = await hutch.skills.get(name)
    place = await hutch.skills.prepare(name, box)
    words = tool_call.command_line(info, tool_call.find_tool(info, "probe"), place, box.spec)
    result = await box.exec(words, env=place.env, stdin=tool_call.encode_arguments({"n": 1}))
    assert result.exit_code == 0, result
    report: dict[str, Any] = json.loads(result.stdout)
    return report
