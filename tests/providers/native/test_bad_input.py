"""Bad input gets a typed error with a remedy, and nothing half-made remains."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.leaks import cgroups_of, leaving_no_trace, traces

from hutch.errors import ConfigError, FileMissing, HutchError, Invalid, NotFound, NotRunnable, Refused, Unsupported
from hutch.keeper.embedded import Hutch
from hutch.model.ids import is_box_id

pytestmark = pytest.mark.slow

SPECS: list[tuple[dict[str, Any], type[HutchError]]] = [
    ({"profile": "nope"}, NotFound),
    ({"image": "nope"}, Invalid),
    ({"image": "dir:relative"}, Invalid),
    ({"image": "oci:debian"}, NotFound),
    ({"user": "nobody-knows"}, Invalid),
    ({"workdir": "relative"}, Invalid),
    ({"memory_mb": -1}, Invalid),
    ({"memory_mb": 0}, Invalid),
    ({"pids": 10**12}, Invalid),
    ({"pids": 10**310}, Invalid),
    ({"cpus": float("nan")}, Invalid),
    ({"timeout_sec": -5}, Invalid),
    ({"memory_mb": "lots"}, Invalid),
    ({"memroy_mb": 64}, Invalid),
    ({"env": {"A=B": "x"}}, Invalid),
    ({"env": {"A": "x\0y"}}, Invalid),
    ({"mounts": ["/nowhere/at/all:/data"]}, FileMissing),
    ({"mounts": ["/etc:/data"]}, Refused),
    ({"mounts": ["/:/data"]}, Refused),
    ({"network": "allowlist"}, Unsupported),
    ({"provider": "nope"}, NotFound),
]


@asynccontextmanager
async def leaving_nothing(**settings: Any) -> AsyncIterator[Hutch]:
    """A Hutch that must hold no box when the test is done with it, and leaves nothing on the machine when it closes."""
    homes = [Path(os.environ[name]) for name in ("HUTCH_RUN_DIR", "HUTCH_STATE_DIR")]
    keepers: list[str] = []
    with leaving_no_trace(*homes, groups=lambda: [name for keeper in keepers for name in cgroups_of(keeper)]):
        async with Hutch(**settings) as hutch:
            keepers.append(hutch._keeper.id)
            yield hutch
            assert not await hutch.boxes()
            assert not [path.name for home in homes for path in home.glob("*") if is_box_id(path.name)]


async def test_a_box_that_stays_would_be_seen() -> None:
    """The control of `leaving_nothing`: directory, process and, where there are any, groups of one that lives."""
    async with Hutch() as hutch, hutch.box() as box:
        await box.exec("true")
        run = Path(os.environ["HUTCH_RUN_DIR"])
        seen = traces((run,), lambda: cgroups_of(hutch._keeper.id))
        running = box._live.running
        assert running is not None
        facts = running.record.data
        assert {f"process {facts['pid']}", f"directory {run / box.id}"} <= seen
        groups = facts["groups"]
        assert isinstance(groups, list)
        made = {f"group {path}" for path in groups if os.path.exists(path)}  # a freezer comes with the first pause
        assert made <= seen
        assert bool(made) == bool(groups)


@pytest.mark.parametrize(("spec", "kind"), SPECS, ids=[str(spec)[:60] for spec, _ in SPECS])
async def test_a_bad_spec_is_refused_before_anything_is_made(spec: dict[str, Any], kind: type[HutchError]) -> None:
    async with leaving_nothing() as hutch:
        with pytest.raises(kind) as caught:
            await hutch.create(**spec)
        assert caught.value.message and caught.value.remedy


async def test_an_image_that_cannot_be_a_root_leaves_nothing(tmp_path: Path) -> None:
    broken = tmp_path / "image.tar"
    broken.write_bytes(b"not a tar" * 1000)
    (tmp_path / "file").touch()
    async with leaving_nothing(mount_roots=[str(tmp_path)]) as hutch:
        for image in (f"tar:{broken}", f"tar:{tmp_path}/missing", f"dir:{tmp_path}/missing", f"dir:{tmp_path}/file"):
            with pytest.raises(HutchError) as caught:
                await hutch.create(image=image)
            assert caught.value.message and caught.value.remedy, image


COMMANDS: list[tuple[Any, dict[str, Any], type[Exception]]] = [
    (["/no/such/program"], {}, NotRunnable),
    (["no-such-program-on-path"], {}, NotRunnable),
    (["/etc/passwd"], {}, NotRunnable),
    (["/workspace"], {}, NotRunnable),
    (["true"], {"cwd": "/no/such/place"}, NotRunnable),
    (["true"], {"cwd": "/etc/passwd"}, NotRunnable),
    (["echo", "a\0b"], {}, HutchError),
    ("echo a\0b", {}, HutchError),
    (["true"], {"env": {"A": "x\0y"}}, HutchError),
    (["true"], {"env": {"A=B": "x"}}, HutchError),
    (["true"], {"timeout": -1}, Invalid),
    (5, {}, Invalid),
    (["echo", 5], {}, Invalid),
    (b"echo", {}, Invalid),
    (["true"], {"user": "nobody-knows"}, HutchError),
    (["echo", "x" * (10 << 20)], {}, NotRunnable),
    ("echo " + "x" * (10 << 20), {}, NotRunnable),
]


@pytest.mark.parametrize(("command", "options", "kind"), COMMANDS, ids=[str(n) for n in range(len(COMMANDS))])
async def test_a_command_that_cannot_be_run_says_why(
    command: Any, options: dict[str, Any], kind: type[Exception]
) -> None:
    """Among them a 10 MB command line: the kernel's E2BIG, as a typed error."""
    async with leaving_nothing() as hutch, hutch.box() as box:
        with pytest.raises(kind) as caught:
            await box.exec(command, **options)
        assert isinstance(caught.value, HutchError)
        assert caught.value.message and caught.value.remedy
        assert (await box.exec("echo alive")).stdout == "alive\n"
        assert not await box.jobs()


async def test_bytes_that_are_not_utf8_pass_through() -> None:
    """Invalid UTF-8 is data, in arguments, environment and output."""
    async with Hutch() as hutch, hutch.box() as box:
        odd = os.fsdecode(b"\xff\xfe")
        result = await box.exec(["printf", "%s", odd])
        assert result.stdout_bytes == b"\xff\xfe"
        assert result.stdout == "��"
        assert (await box.exec('printf %s "$ODD"', env={"ODD": odd})).stdout_bytes == b"\xff\xfe"


async def test_an_unknown_setting_is_an_error_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "hutch.toml"
    file.write_text("provider = 'native'\nmax_boxs = 3\n")
    with pytest.raises(ConfigError, match=r"hutch\.toml:2") as caught:
        Hutch(config=str(file))
    assert "max_boxes" in str(caught.value)
