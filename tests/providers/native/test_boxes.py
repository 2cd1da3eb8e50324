"""Native boxes from inside: who their processes are, what they see, what they can write."""

import os
import socket
from pathlib import Path

import pytest
from tests.providers.native.boxes import LIMITS, box, engine, make, out, pid_of, run

from hutch.errors import NotRunnable, Unsupported
from hutch.model.results import Cause
from hutch.model.spec import Mount, MountMode, Workspace

pytestmark = pytest.mark.slow


async def test_a_command_runs_as_an_ordinary_user_without_any_privilege() -> None:
    """No capability in any set, no way to gain one, a filter on every process (B1, lesson 29)."""
    async with engine() as native, box(native) as made:
        assert await out(made, "id -u; id -g; id -un") == "1000\n1000\nuser"
        status = await out(made, "grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status")
        facts = dict(line.split(":\t") for line in status.splitlines())
        assert {facts[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
        assert facts["NoNewPrivs"] == "1"
        assert facts["Seccomp"] == "2"


async def test_the_guest_cannot_be_looked_into() -> None:
    """Same user, but not dumpable: memory, environment, descriptors and root of PID 1 stay closed."""
    async with engine() as native, box(native) as made:
        for name in ("environ", "maps", "mem", "fd/0", "root/etc", "exe", "ns/mnt", "cwd/etc"):
            result = await run(made, f"cat /proc/1/{name}")
            assert result.exit_code != 0, name
            assert "Permission denied" in result.stderr, (name, result.stderr)


async def test_nothing_of_the_host_shows_in_the_guest_s_command_line() -> None:
    async with engine() as native, box(native) as made:
        words = await out(made, "tr -d '\\0' < /proc/1/cmdline; echo; cat /proc/1/comm")
        assert words == "hutch-guest\nhutch-guest"


async def test_no_descriptor_is_inherited() -> None:
    async with engine() as native, box(native) as made:
        assert (await out(made, "ls /proc/self/fd")).split() == ["0", "1", "2", "3"]  # 3 is ls's own


async def test_the_environment_is_ours_alone() -> None:
    """Secrets arrive as environment; nothing of the keeper's own environment does (lesson 37)."""
    os.environ["HUTCH_TEST_OF_THE_KEEPER"] = "1"
    async with engine() as native, box(native, env={"A": "1"}, secrets={"TOKEN": "t"}) as made:
        names = {line.partition("=")[0] for line in (await out(made, "env")).splitlines()}
        assert {"A", "TOKEN", "PATH", "HOME", "USER"} <= names
        assert not {name for name in names if name.startswith(("HUTCH", "VIRTUAL", "PYTEST"))}
        assert "HUTCH_TEST_OF_THE_KEEPER" not in names


async def test_a_read_only_root_has_its_writable_places() -> None:
    """The root is closed, and the directories that programs need are open (B17)."""
    async with engine() as native, box(native) as made:
        for place in ("/workspace", "/tmp", "/dev/shm", "/run", "/var/tmp", "$HOME"):
            assert await out(made, f"echo x > {place}/f && cat {place}/f") == "x", place
        for place in ("/", "/etc", "/usr", "/usr/bin", "/dev", "/home", "/var", "/sys", "/proc"):
            assert (await run(made, f"touch {place}/f")).exit_code != 0, place


async def test_dev_holds_the_usual_names_only() -> None:
    expected = "fd full null ptmx pts random shm stderr stdin stdout tty urandom zero"
    async with engine() as native, box(native) as made:
        assert (await out(made, "ls /dev")).split() == expected.split()
        assert (
            await out(made, "head -c 4 /dev/zero | wc -c; echo x > /dev/null; head -c 3 /dev/urandom | wc -c") == "4\n3"
        )


async def test_proc_is_masked_and_sys_is_empty() -> None:
    async with engine() as native, box(native) as made:
        for name in ("keys", "timer_list", "interrupts", "kallsyms", "sysrq-trigger"):
            assert await out(made, f"test -e /proc/{name} && cat /proc/{name}; true") == "", name
        assert await out(made, "ls -A /sys /proc/irq /proc/bus") == "/proc/bus:\n\n/proc/irq:\n\n/sys:"
        assert (await run(made, "echo x > /proc/sys/kernel/hostname")).exit_code != 0


async def test_without_masks_the_same_files_are_there() -> None:
    """The control of the test above: it can fail."""
    async with engine(without=frozenset({"masks"})) as native, box(native) as made:
        assert await out(made, "ls -A /proc/irq") != ""


async def test_the_mount_table_names_no_path_of_the_host() -> None:
    async with engine() as native, box(native) as made:
        assert native._run not in await out(made, "cat /proc/self/mountinfo")
        assert native._state not in await out(made, "cat /proc/self/mounts")


async def test_it_has_a_name_of_its_own() -> None:
    async with engine() as native, box(native) as made:
        name = made.record.box_id[:12]
        assert await out(made, "hostname") == name
        assert await out(made, f"getent hosts {name} | cut -d' ' -f1") == "127.0.0.1"


async def test_a_box_sees_its_own_processes_only() -> None:
    async with engine() as native, box(native) as made:
        pids = (await out(made, "ls /proc | grep -E '^[0-9]+$'")).split()
        assert "1" in pids
        assert len(pids) < 8


async def test_network_off_is_a_loopback_that_works_and_nothing_else() -> None:
    """The host's loopback is another one (lesson 28)."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        connect = "import socket,sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 2)"
        own = (
            "import socket as s; l=s.create_server(('127.0.0.1',0)); s.create_connection(l.getsockname()); print('ok')"
        )
        async with engine() as native, box(native) as made:
            assert await out(made, "ls /proc/sys/net/ipv4/conf") == "all\ndefault\nlo"
            assert await out(made, f'python3 -c "{own}"') == "ok"
            refused = await run(made, f'python3 -c "{connect}" 127.0.0.1 {port}')
            assert "refused" in refused.stderr
            away = await run(made, f'python3 -c "{connect}" 198.51.100.1 80')
            assert "unreachable" in away.stderr


async def test_a_full_disk_ends_the_writer_and_not_the_box() -> None:
    """A size for everything the box writes, reported as a verdict (lesson 24)."""
    async with engine() as native, box(native) as made:
        full = await run(made, "head -c 100M /dev/zero > /workspace/big")
        assert full.exit_code != 0
        assert full.verdict.cause is Cause.DISK
        assert await out(made, "rm /workspace/big && echo x > /tmp/y && cat /tmp/y") == "x"


async def test_shared_memory_counts_in_the_same_size() -> None:
    async with engine() as native, box(native) as made:
        assert (await run(made, "head -c 100M /dev/zero > /dev/shm/big")).exit_code != 0


async def test_files_have_a_number_too() -> None:
    async with engine() as native, box(native, limits=LIMITS.but(disk_mb=8)) as made:
        many = await run(made, "cd /workspace && seq 100000 | xargs touch")
        assert many.exit_code != 0
        assert "No space left" in many.stderr


async def test_too_many_processes_are_refused_and_the_box_lives() -> None:
    async with engine() as native, box(native, limits=LIMITS.but(pids=20)) as made:
        bomb = await run(made, "for i in $(seq 100); do sleep 5 & done; wait", timeout_sec=4)
        assert "Resource temporarily unavailable" in bomb.stderr or bomb.verdict.cause in (Cause.PIDS, Cause.TIMEOUT)
        await made.kill_all()
        assert await out(made, "echo alive") == "alive"


async def test_open_files_are_limited() -> None:
    async with engine() as native, box(native, limits=LIMITS.but(open_files=77)) as made:
        assert await out(made, "ulimit -n; ulimit -Hn; ulimit -c") == "77\n77\n0"


async def test_boxes_of_one_template_get_what_their_own_order_says() -> None:
    """A prestarted child knows neither name nor sizes nor environment: they come with the order."""
    async with engine() as native:
        for number in range(6):
            limits = LIMITS.but(disk_mb=16 + number, open_files=100 + number)
            async with box(native, limits=limits, env={"N": str(number)}) as made:
                size = int(await out(made, "df -B1 --output=size /workspace | tail -1"))
                assert size == (16 + number) << 20
                assert await out(made, "ulimit -n; echo $N") == f"{100 + number}\n{number}"
                assert await out(made, "ls -A /workspace /tmp") == "/tmp:\n\n/workspace:"


async def test_two_boxes_share_no_id_on_the_host(rootless: bool) -> None:
    if rootless:
        pytest.skip("an ordinary user has one id to give")
    async with engine() as native, box(native) as one, box(native) as other:
        lines = [Path(f"/proc/{pid_of(made)}/uid_map").read_text().split() for made in (one, other)]
        assert lines[0][1] != lines[1][1]
        assert all(line[0] == "0" and line[2] == "65536" and int(line[1]) >= 0x10000000 for line in lines)


async def test_root_of_the_box_has_seven_capabilities(rootless: bool) -> None:
    """`user=root` through a root guest: it may change owners and kill, but not mount, and the root stays read-only."""
    async with engine() as native, box(native) as made:
        if rootless:
            with pytest.raises(Unsupported, match="root"):
                await run(made, "id", user="root")
            return
        await run(made, "echo x > /workspace/mine; sleep 100 > /dev/null 2>&1 &")
        assert await out(made, "id -u", user="root") == "0"
        assert await out(made, "grep CapEff /proc/self/status", user="root") == "CapEff:\t00000000000000fb"
        owners = "chown 7:7 /workspace/mine && stat -c %u:%g /workspace/mine && cat /workspace/mine"
        assert await out(made, owners, user="root") == "7:7\nx"
        assert (await run(made, "mount -t tmpfs none /mnt", user="root")).exit_code != 0
        assert (await run(made, "touch /etc/x", user="root")).exit_code != 0
        assert (await run(made, "pkill sleep", user="root")).exit_code == 0
        assert await out(made, "id -u; cat /workspace/mine", user="7") == "7\nx"


async def test_a_user_that_is_no_user_is_refused() -> None:
    async with engine() as native, box(native) as made:
        with pytest.raises((Unsupported, NotRunnable)):
            await run(made, "id", user="70000")
        with pytest.raises((Unsupported, NotRunnable)):
            await run(made, "id", user="mallory")


async def test_host_directories_appear_where_they_were_asked_for(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Read-only unless asked for, files keep their owner in both directions, a missing target is made (B11)."""
    source = tmp_path_factory.mktemp("mounted")
    source.chmod(0o755)
    (source / "sub").mkdir()
    (source / "file").write_text("content")
    mounts = (
        Mount(source=str(source), target="/data/deep/in"),
        Mount(source=str(source / "sub"), target="/workspace/rw", mode=MountMode.RW),
        Mount(source=str(source / "file"), target="/etc/one-file"),
        Mount(source=str(source), target="/never", mode=MountMode.NONE),
    )
    async with engine() as native, box(native, mounts=mounts) as made:
        assert await out(made, "cat /data/deep/in/file /etc/one-file; ls -d /never 2>/dev/null") == "contentcontent"
        assert "Read-only" in await out(made, "touch /data/deep/in/new")
        assert "Read-only" in await out(made, "touch /data/deep/in/sub/new")
        assert (
            await out(made, "touch /workspace/rw/new && stat -c %U /workspace/rw/new /data/deep/in/file")
            == "user\nuser"
        )
        assert (source / "sub/new").stat().st_uid == os.geteuid()
        assert "nosuid" in await out(made, "grep /workspace/rw /proc/self/mounts")


async def test_a_workspace_of_the_host_outlives_its_boxes(tmp_path: Path) -> None:
    """A volume is one, too: the keeper says where it lies."""
    async with engine() as native:
        async with box(native, workspace=Workspace(source=str(tmp_path))) as made:
            await run(made, "echo kept > note")
            assert await out(made, "grep -c ' /workspace ' /proc/self/mounts") == "1"
        async with box(native, workspace=Workspace(source=str(tmp_path), mode=MountMode.RO)) as made:
            assert await out(made, "cat note") == "kept"
            assert "Read-only" in await out(made, "echo more >> note")


async def test_a_writable_root_takes_changes_and_forgets_them(rootless: bool) -> None:
    async with engine() as native:
        if rootless:
            with pytest.raises(Unsupported, match="id ranges"):
                await make(native, read_only_root=False)
            return
        async with box(native, read_only_root=False, limits=LIMITS.but(disk_mb=64)) as made:
            change = "mkdir /opt/new && touch /usr/local/bin/tool /etc/conf && rm /usr/bin/env && ls /usr/bin/env"
            assert "No such file" in await out(made, change, user="root")
            assert (await run(made, "touch /usr/local/bin/other")).exit_code != 0  # the ordinary user still may not
        async with box(native, read_only_root=False) as made:
            assert (
                await out(made, "ls /opt /usr/local/bin/tool /usr/bin/env 2>/dev/null")
                == "/usr/bin/env\n\n/opt:\nhutch"
            )
    assert os.path.exists("/usr/bin/env")
