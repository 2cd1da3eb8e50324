"""`Hutch.launch`: a private server as a child, which ends with its parent and is started again if it dies (B22)."""

import asyncio
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hutch import Hutch
from hutch.client.launch import LaunchedHutch
from hutch.errors import HutchError
from hutch.model.status import Condition
from tests.cli.cli_process import boxes
from tests.client.conftest import QUICK
from tests.server.serving import until


def child_of(hutch: Hutch) -> int:
    inner = hutch._inner
    assert isinstance(inner, LaunchedHutch) and inner._child is not None
    return inner._child.pid


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


async def test_a_private_server() -> None:
    """Started, used, and gone at the end with its boxes and its directories (B22)."""
    async with Hutch.launch(rhythm=QUICK) as hutch:
        assert (await hutch.status()).state is Condition.READY
        box = await hutch.create(memory_mb=128)
        assert (await box.exec("echo hi")).stdout == "hi\n"
        pid, home = child_of(hutch), hutch._inner._runtime_dir
        assert len(boxes(home / "r")) == 1
    assert not alive(pid)
    assert not home.exists()


async def test_it_is_started_again() -> None:
    """A killed child is started again with its boxes, and the client continues."""
    async with Hutch.launch(rhythm=QUICK) as hutch, hutch.box() as box:
        await box.files.write("f", "kept")
        first = child_of(hutch)
        os.kill(first, signal.SIGKILL)
        assert await box.files.read("f") == b"kept"
        assert child_of(hutch) != first


async def test_the_application_starts_even_if_it_fails(tmp_path: Path) -> None:
    """Nothing is raised, the status says why, and it works once the reason is gone (B21)."""
    place = tmp_path / "state"
    place.write_text("a file where a directory should be")
    async with Hutch.launch(place, rhythm=replace(QUICK, outage_timeout_sec=0.1)) as hutch:
        status = await hutch.status()
        assert (status.state, status.available) == (Condition.UNREACHABLE, False)
        assert "not a directory" in status.reason
        assert await hutch.boxes() == ()
        with pytest.raises(HutchError):
            await hutch.attach("a" * 20)
        place.unlink()
        async with asyncio.timeout(60):
            while not (await hutch.status()).available:
                await asyncio.sleep(0.05)
        async with hutch.box() as box:
            assert (await box.exec("true")).ok
    assert (place / "hutch.db").exists(), "a state directory that was given stays"


def test_it_ends_with_its_parent() -> None:
    """A parent that is killed cannot say goodbye: the child notices, and takes its boxes along."""
    script = (
        "import asyncio\nfrom hutch import Hutch\n"
        "async def main():\n"
        "    async with Hutch.launch() as hutch:\n"
        "        await hutch.create()\n"
        "        print(hutch._inner._child.pid, hutch._inner._runtime_dir, flush=True)\n"
        "        await asyncio.sleep(1000)\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid, home = parent.stdout.readline().split()
        assert alive(int(pid))
        parent.kill()
    until(lambda: not alive(int(pid)))
    assert boxes(Path(home) / "r") == set()
    subprocess.run(["rm", "-rf", home], check=True)
