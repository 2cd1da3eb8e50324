"""No path reaches the host through any tool, and no call ends in an untyped error, whatever a model writes."""

import asyncio
import json
import os
import secrets
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from hutch.errors import HutchError
from hutch.keeper.embedded import Hutch
from hutch.tools import ToolResult, Tools
from tests import proofs
from tests.tools.fuzz_strategies import CALLS, FLIPPING, HOST, JOB, LONG, SETTING, TOKEN, a_call
from tests.tools.real_tools import check_answer

pytestmark = pytest.mark.slow

CALLS_EACH = 20
PROVEN = 20_000
CODES = {*HutchError.by_code, "not_read"} - {"internal", "box_broken", "engine", "unavailable"}
"""What a call may end in: nothing that a model writes breaks its box."""


class Range:
    """A box full of traps, tools on it, and a host that must stay as it is."""

    def __init__(self, host: Path, loop: asyncio.Runner, open_to_it: bool) -> None:
        self.host = host
        self.secret = secrets.token_hex(16)
        (host / "secret").write_text(self.secret)
        (host / "secret").chmod(0o666)
        self.before = _picture(host)
        self.calls: Counter[str] = Counter()
        self.codes: Counter[str] = Counter()
        self._loop = loop
        self._hutch = Hutch(mount_roots=[str(host)])
        spec: dict[str, Any] = {"memory_mb": 128, "disk_mb": 32}
        if open_to_it:
            spec["mounts"] = [f"{host}:{host}:rw"]
        self.tools = Tools(self._hutch, spec=spec, output_bytes=2000)
        self._job = ""

    def run(self, calls: list[tuple[str, Any]]) -> None:
        self._loop.run(self._all(calls))

    async def _all(self, calls: list[tuple[str, Any]]) -> None:
        async with asyncio.timeout(100):
            await self._set_up()
            for name, arguments in calls:
                given = self._filled(arguments)
                result = await self.tools.call(name, given)
                self.calls[name if name in CALLS else "?"] += 1
                self._check(name, given, result)

    async def _set_up(self) -> None:
        """A box with its traps, and a process that flips symlinks all the time."""
        if self._job:
            found = await self.tools.call("job", {"action": "read", "job": self._job})
            if not found.is_error and found.structured["state"] == "running":
                await self.tools.call("box_lifecycle", {"action": "switch", "box": found.structured["box"]})
                return
        for info in await self._hutch.boxes():
            await self._hutch.destroy(info.id, force=True)
        for name in ("first", "second"):
            made = await self.tools.call("box_lifecycle", {"action": "create", "name": name})
            assert not made.is_error, made.text
            done = await self.tools.call("exec", {"command": self._filled(SETTING)})
            assert done.structured["exit_code"] == 0, done.text
        started = await self.tools.call("job", {"action": "start", "command": self._filled(FLIPPING)})
        self._job = started.structured["job"]

    def _filled(self, value: Any) -> Any:
        if isinstance(value, str):
            for mark, meant in {HOST: str(self.host), JOB: self._job, **LONG}.items():
                value = value.replace(mark, meant)
            return value
        if isinstance(value, dict):
            filled = {self._filled(key): self._filled(each) for key, each in value.items()}
            for name in ("wait", "timeout"):  # what is valid must not take long
                if isinstance(filled.get(name), int | float) and filled[name] > 0.3:
                    filled[name] = 0.3
            if filled.get("action") == "wait" and filled.get("wait") is None:  # null is "not given": half a minute
                filled["wait"] = 0.05
            return filled
        return [self._filled(each) for each in value] if isinstance(value, list) else value

    def _check(self, name: str, given: Any, result: ToolResult) -> None:
        whole = result.text + json.dumps(result.structured) + "".join(image.data.hex() for image in result.images)
        whole.encode()
        about = f"{name}({str(given)[:500]}) answered {result.text[:500]}"
        assert self.secret not in whole, f"a file of the host was read: {about}"
        assert self.secret.encode().hex() not in whole, about
        check_answer(name, result)
        if result.is_error:
            assert result.code in CODES, f"untyped: {about}"
            assert result.structured["error"]["message"], about
            self.codes[result.code] += 1
        assert _picture(self.host) == self.before, f"the host was written to: {about}"

    async def close(self) -> None:
        await self.tools.close()
        for info in await self._hutch.boxes():
            await self._hutch.destroy(info.id, force=True)
        await self._hutch.close()


def _picture(directory: Path) -> list[tuple[str, int, int, bytes]]:
    found = []
    for path in sorted(directory.rglob("*")):
        facts = path.lstat()
        found.append((str(path), facts.st_mode, facts.st_mtime_ns, path.read_bytes() if path.is_file() else b""))
    return found


def _strangers(places: list[str]) -> list[str]:
    """Return what calls have created on the host in these directories."""
    found = []
    for place in places:
        for top, directories, files in os.walk(place):
            directories[:] = [name for name in directories if not os.path.ismount(os.path.join(top, name))]
            found += [os.path.join(top, name) for name in (*directories, *files) if TOKEN in name]
    return found


@contextmanager
def _range(directory: Path, *, open_to_it: bool = False) -> Iterator[Range]:
    # Every user of the machine may come here and do everything: only the walls of the box are in the way.
    host = Path(tempfile.mkdtemp(prefix="host-", dir=directory))
    host.chmod(0o777)
    with asyncio.Runner() as loop:
        ground = loop.run(_made(host, loop, open_to_it))
        try:
            yield ground
        finally:
            loop.run(ground.close())


async def _made(host: Path, loop: asyncio.Runner, open_to_it: bool) -> Range:
    return Range(host, loop, open_to_it)


def _fuzz(ground: Range, examples: int) -> None:
    @settings(
        max_examples=examples, phases=[Phase.generate], deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
    )  # fmt: skip
    @given(st.lists(a_call, min_size=CALLS_EACH, max_size=CALLS_EACH))
    def calls(given: list[tuple[str, Any]]) -> None:
        ground.run(given)

    calls()


def test_no_call_reaches_the_host_or_ends_untyped(hutch_directories: Path) -> None:
    with _range(hutch_directories) as ground:
        _fuzz(ground, 25)
        assert ground.calls.total() >= 25 * CALLS_EACH
    assert _strangers([str(hutch_directories), "/etc", "/root", "/home"]) == []


def test_a_box_that_shows_the_host_is_noticed(hutch_directories: Path) -> None:
    """The fuzzer can fail: with the host's directory mounted, its calls find their way there at once."""
    with _range(hutch_directories, open_to_it=True) as ground:
        with pytest.raises(AssertionError, match=r"the host was (written|read)|a file of the host was read"):
            _fuzz(ground, 25)


@pytest.mark.proof
def test_twenty_thousand_calls_reach_nothing(hutch_directories: Path) -> None:
    """Symlinks, races, odd encodings and absurd lengths, for at least 20,000 calls."""
    with _range(hutch_directories) as ground:
        _fuzz(ground, PROVEN // CALLS_EACH)
        assert ground.calls.total() >= PROVEN
        calls, codes = dict(ground.calls), dict(ground.codes)
        refused = codes.get("invalid", 0)
        assert refused < PROVEN / 2  # most calls get past the check of their arguments
    assert _strangers(["/"]) == []
    proofs.write("tools-fuzz", calls=sum(calls.values()), by_tool=calls, errors_by_code=codes, host_files_reached=0)
