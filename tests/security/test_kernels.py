"""What kernels must not reach: their template, the guest they are forked from, and other boxes."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from tests.kernels.conftest import prepared

from hutch import Hutch
from hutch.errors import Conflict
from hutch.linux import landlock
from hutch.sync import Hutch as SyncHutch

pytestmark = pytest.mark.usefixtures("prepared")
__all__ = ["prepared"]

_LOOK = """
import os
seen = {}
for pid in (each for each in os.listdir('/proc') if each.isdigit()):
    name = open(f'/proc/{pid}/comm').read().strip()
    for part in ('mem', 'environ', 'maps', 'root', 'fd'):
        try:
            path = f'/proc/{pid}/{part}'
            os.listdir(path) if part in ('root', 'fd') else open(path, 'rb').read(1)
            seen.setdefault(name, []).append(part)
        except OSError:
            pass
print(sorted(seen.get('hutch-kernels', [])), sorted(seen.get('hutch-guest', [])), sorted(seen))
"""


async def test_a_kernel_sees_nothing_of_the_guests_and_of_its_template() -> None:
    """Memory, environment, maps, root and descriptors of the guests stay closed; the template is outside."""
    async with Hutch() as hutch, hutch.box(memory_mb=512, secrets={"TOKEN": "of-this-box"}) as box:
        answer = (await box.python(_LOOK)).stdout
        assert answer.startswith("[] [] ") and "hutch-template" not in answer and "'python3'" in answer, answer
        looked = (await box.exec(["python3", "-c", _LOOK])).stdout
        assert looked.startswith("[] [] "), looked
        own = await box.python("import os\nopen('/proc/self/environ').read().strip(chr(0)), os.environ['TOKEN']")
        assert own.text == "('', 'of-this-box')", own
        listing = "import subprocess; print(subprocess.getoutput(f'ls -l /proc/{os.getpid()}/fd'))"
        held = (await box.python(listing)).stdout
        assert "pipe:" in held and not re.search("socket:|memfd|/run/|anon_inode", held), held


async def test_the_next_box_finds_no_secret_of_the_last_in_its_memory() -> None:
    """The template reads no secret of a box, so no later kernel inherits one."""
    secret = f"secret-{os.urandom(8).hex()}"
    search = (
        "import re\nfound = []\n"
        "for line in open('/proc/self/maps'):\n"
        "    span, mode = line.split()[:2]\n"
        "    start, end = (int(part, 16) for part in span.split('-'))\n"
        "    if 'r' in mode and end - start < 1 << 28 and '[v' not in line:\n"
        "        with open('/proc/self/mem', 'rb') as memory:\n"
        "            try:\n"
        "                memory.seek(start)\n"
        "                found += re.findall(b'secret-' + b'[0-9a-f]{16}', memory.read(end - start))\n"
        "            except (OSError, ValueError, OverflowError): pass\n"
        "print(sorted({each.decode() for each in found}))"
    )
    async with Hutch() as hutch:
        async with hutch.box(memory_mb=512, secrets={"TOKEN": secret}) as box:
            assert secret in (await box.python(search)).stdout  # The search finds it where it is.
        async with hutch.box(memory_mb=512) as box:
            assert (await box.python(search)).stdout == "[]\n"


async def test_kernels_of_two_boxes_cannot_reach_each_other() -> None:
    """Forks of one template in two boxes have no process, signal, socket or file in common."""
    async with Hutch() as hutch, hutch.box(memory_mb=512) as one, hutch.box(memory_mb=512) as two:
        await one.python("import os, socket\nlistener = socket.socket(socket.AF_UNIX)\nlistener.bind('\\0kernel')")
        await one.python("listener.listen(); open('/tmp/mine', 'w').close()")
        pid = int((await one.python("os.getpid()")).text)
        code = (
            "import os, socket\n"
            "try:\n    socket.socket(socket.AF_UNIX).connect('\\0kernel'); print('connected')\n"
            "except OSError as error: print(type(error).__name__)\n"
            "print(os.path.exists('/tmp/mine'))"
        )
        assert (await two.python(code)).stdout == "ConnectionRefusedError\nFalse\n"
        killed = await two.python("import os, signal\nfor pid in range(2, 400):\n"
                                  "  if pid != os.getpid():\n"
                                  "    try: os.kill(pid, 9); print(pid)\n"
                                  "    except OSError: pass")  # fmt: skip
        assert killed.ok or (killed.error is not None and killed.error.name == "KernelDied")
        assert (await two.python("1 + 1")).text == "2"
        assert (await one.python("os.getpid()")).text == str(pid)


_REACH = """
import os, socket
told = []
try:
    socket.socket(socket.AF_UNIX).connect('\\0fork'); told.append('connected')
except OSError as error:
    told.append(type(error).__name__)
told.append(os.path.exists('/tmp/later'))
for descriptor in sorted(os.listdir('/proc/self/fd')):
    try: told.append(os.readlink(f'/proc/self/fd/{descriptor}').partition(':')[0])
    except OSError: pass
print(told)
"""
_LISTEN = """
import socket
listener = socket.socket(socket.AF_UNIX)
listener.bind('\\0fork'); listener.listen()
open('/tmp/later', 'w').close()
"""
_KILL = """
import os
own = set(os.listdir('/proc/self/task'))  # A signal to one of its threads would reach the code itself.
for pid in range(2, 400):
    if str(pid) not in own:
        try: os.kill(pid, 9)
        except OSError: pass
"""
_NAMESPACES = "print(*(os.readlink('/proc/self/ns/' + name) for name in ('pid', 'mnt', 'net', 'user')))"


async def test_kernels_cannot_signal_their_guest_nor_each_other() -> None:
    """Neither the first kernel, which has entered beside the guest, nor one that is a fork of it."""
    if not landlock.abi() >= 6:
        pytest.skip("needs Landlock ABI 6 (Linux 6.12), which confines signals")
    async with Hutch() as hutch, hutch.box(memory_mb=512) as box:
        kernels = ["", (await box.kernels.start("python")).id, (await box.kernels.start("python")).id]
        pids = [(await box.python("import os; kept = 1; os.getpid()", kernel=each)).text for each in kernels]
        for each in kernels:
            assert (await box.python(_KILL, kernel=each)).ok
        assert [(await box.python("kept * os.getpid()", kernel=each)).text for each in kernels] == pids


async def test_live_forks_cannot_reach_each_other() -> None:
    """A copied kernel has memory in common with its parent and siblings, but no process, socket, file or right."""
    async with Hutch() as hutch, hutch.box(memory_mb=512) as parent:
        assert (await parent.python("import os\nmark = 'parent'")).ok
        forks = await parent.fork(2, kernel=True)
        try:
            assert (await forks[0].python(_LISTEN)).ok and (await parent.python(_LISTEN)).ok
            looked = await forks[1].python(_REACH)
            assert looked.ok and looked.stdout.startswith("['ConnectionRefusedError', False, "), looked
            assert "'pipe'" in looked.stdout and "anon_inode" not in looked.stdout, looked.stdout
            assert "socket" not in looked.stdout, looked.stdout
            seen = {(await box.python(_NAMESPACES)).stdout for box in (parent, *forks)}
            assert len(seen) == 3 and all(len(set(each.split())) == 4 for each in seen), seen
            await forks[0].python("mark = 'changed'")
            await forks[0].python(_KILL)
            for box in (parent, forks[1]):
                assert (await box.python("mark")).text == "'parent'"
        finally:
            for fork in forks:
                await fork.destroy()


async def test_a_kernel_cannot_have_another_process_copied() -> None:
    """A kernel that names a process which is not its own child, such as the guest, is refused, and keeps running."""
    lie = (
        "import sys\n"
        "kernel = next(module for name, module in sys.modules.items() if name.endswith('python.kernel'))\n"
        "def fork(run, channel, *_):\n"
        "    channel.send(type='forked', run=run, pid={pid})\n"
        "    channel.send(type='done', run=run)\n"
        "    return False\n"
        "kernel.fork = fork"
    )
    async with Hutch() as hutch, hutch.box(memory_mb=512) as box:
        for pid in ("1", "2", "0", "-1", "4194303", "kernel.os.getpid()"):
            assert (await box.python(lie.format(pid=pid))).ok
            with pytest.raises(Conflict, match="could not fork itself"):
                await box.fork(kernel=True)
            assert (await box.python("1 + 1")).text == "2"
            assert (await box.exec("echo alive")).stdout == "alive\n"


def test_the_template_has_nothing_of_its_keepers_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kernel inherits the template's memory, so the template starts with an environment of its own."""
    monkeypatch.setenv("HUTCH_TEST_MARK", "keeper-secret")
    with SyncHutch() as hutch, hutch.box(memory_mb=512) as box:
        assert box.python("1").ok
        listed = subprocess.run(["ps", "-o", "pid,comm", "--ppid", str(os.getpid())], capture_output=True, text=True)
        templates = re.findall(r"(\d+) hutch-template", listed.stdout)
        assert templates, listed.stdout
        for pid in templates:
            assert b"keeper-secret" not in Path(f"/proc/{pid}/environ").read_bytes()
