"""Live forks: `box.fork(kernel=True)` gives boxes whose kernels continue with the parent's variables."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from hutch import Hutch
from hutch.api import Box
from hutch.errors import Conflict, Invalid
from hutch.kernels import environment
from hutch.model.results import Cause
from hutch.sync import Hutch as SyncHutch
from tests.server.serving import serving


@asynccontextmanager
async def forked(box: Box, count: int = 1) -> AsyncIterator[tuple[Box, ...]]:
    made = await box.fork(count, kernel=True)
    try:
        yield made
    finally:
        for each in made:
            await each.destroy()


async def reach(box: Box, state: str) -> None:
    """Wait until the box's first kernel is in this state."""
    async with asyncio.timeout(60):
        while (await box.kernels.all())[0].state != state:
            await asyncio.sleep(0.05)


STATE = """
import os, random, shutil, ctypes, mmap, signal, tempfile, numpy as np, pandas as pd
from matplotlib import pyplot as plt
frame = pd.DataFrame({'a': range(50_000), 'b': ['text'] * 50_000})
large = np.arange(3_000_000)
nested = {'self': None}; nested['self'] = nested
def twice(n): return 2 * n
class Counter:
    made = 0
    def __init__(self): Counter.made += 1
counters = [Counter() for _ in range(5)]
def numbers():
    yield from range(10)
half = numbers(); next(half); next(half)
text = open('notes.txt', 'w+'); text.write('first line\\nsecond line\\n'); text.flush(); text.seek(11)
log = open('log.txt', 'a'); log.write('parent\\n'); log.flush()
shutil.copy('/usr/lib/x86_64-linux-gnu/libz.so.1', 'own.so')
library = ctypes.CDLL('./own.so')
shared = mmap.mmap(-1, 8192); shared[:5] = b'bytes'
os.makedirs('deep', exist_ok=True); os.chdir('deep')
signal.signal(signal.SIGUSR1, lambda *_: counters.append('signalled'))
os.environ['CHANGED'] = 'by code'
import asyncio
await asyncio.sleep(0)
"""
CHECK = """
library.zlibVersion.restype = ctypes.c_char_p
os.kill(os.getpid(), signal.SIGUSR1)
found = {
    'frame': int(frame.a.sum()), 'words': int((frame.b == 'text').sum()), 'large': int(large.sum()),
    'nested': nested['self'] is nested, 'twice': twice(21), 'made': Counter.made, 'half': next(half),
    'line': text.read(), 'mapped': shared[:5].decode(), 'directory': os.getcwd(), 'changed': os.environ['CHANGED'],
    'library': library.zlibVersion().decode()[0], 'signalled': counters[-1], 'loop': await asyncio.sleep(0, 'slept'),
    'threads': len(os.listdir('/proc/self/task')), 'group': int(frame.groupby('b').a.sum().iloc[0]),
}
log.write('fork\\n'); log.flush()
import json
print(json.dumps(found))
"""
EXPECTED = {
    "frame": 1249975000, "words": 50000, "large": 4499998500000, "nested": True, "twice": 42, "made": 5, "half": 2,
    "line": "second line\n", "mapped": "bytes", "directory": "/workspace/deep", "changed": "by code", "library": "1",
    "signalled": "signalled", "loop": "slept", "threads": 2, "group": 1249975000,
}  # fmt: skip


@pytest.mark.usefixtures("prepared")
async def test_forks_hold_the_variables_and_files_of_their_parent() -> None:
    """Objects, libraries, open files, handlers and generators are there; afterwards each box goes its own way (S5)."""
    async with Hutch() as hutch, hutch.box(memory_mb=512) as box:
        kept = await box.python(STATE)
        assert kept.ok, kept.error
        async with forked(box, 2) as forks:
            for fork in forks:
                answer = await fork.python(CHECK)
                assert answer.ok and json.loads(answer.stdout) == EXPECTED, (answer.stdout, answer.error)
                assert (await fork.exec("cat log.txt")).stdout == "parent\nfork\n"
                assert [(each.id, each.warm) for each in await fork.kernels.all()] == [("python", True)]
            assert (await box.exec("cat log.txt")).stdout == "parent\n"
            assert (await forks[0].python("frame.loc[0, 'a'] = 7; mine = 1")).ok
            for other in (box, forks[1]):
                assert (await other.python("int(frame.a[0]), 'mine' in globals()")).text == "(0, False)"
            plotted = await forks[0].python("_ = plt.plot(frame.a[:9])")
            assert any("image/png" in display.data for display in plotted.displays)
            endless = await forks[1].python("while True: pass", timeout=1)
            assert endless.verdict.cause is Cause.TIMEOUT
            async with forked(forks[1]) as (grandchild,):  # A fork can be forked, and its parent may go.
                assert (await grandchild.python("next(half), len(frame), twice(4)")).text == "(3, 50000, 8)"
        answer = await box.python(CHECK)
        assert json.loads(answer.stdout) == EXPECTED, (answer.stdout, answer.error)


@pytest.mark.usefixtures("prepared")
async def test_forks_share_no_randomness_and_no_names() -> None:
    """Random numbers, keys, identifiers, temporary names and host names differ; user, limits and filter are a box's."""
    code = (
        "import random, secrets, uuid, tempfile, numpy, ssl, os\n"
        "print(random.random(), numpy.random.rand(), secrets.token_hex(8), uuid.uuid4(), tempfile.mktemp(),"
        " ssl.RAND_bytes(8).hex(), os.environ['HOSTNAME'])"
    )
    async with Hutch() as hutch, hutch.box(memory_mb=512) as box:
        first = (await box.python(code)).stdout.split()
        async with forked(box, 3) as forks:
            said = [first, *[(await each.python(code)).stdout.split() for each in (box, *forks)]]
            assert all(len(words) == 7 for words in said)
            for number in range(6):
                assert len({words[number] for words in said}) == 5, (number, said)
            assert len({words[6] for words in said}) == 4
            read = "print(open('/proc/self/status').read())"
            for fork in forks[:1]:
                status = (await fork.python(read)).stdout
                fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
                assert int(fields["CapEff"], 16) == int(fields["CapBnd"], 16) == 0
                assert fields["NoNewPrivs"] == "1" and fields["Seccomp"] == "2"
                hoard = await fork.python("hoard = []\nwhile True: hoard.append(b'x' * (1 << 20))", timeout=60)
                assert hoard.verdict.cause is Cause.OOM or (hoard.error and hoard.error.name == "MemoryError")
        assert (await box.python("1 + 1")).text == "2"


@pytest.mark.usefixtures("prepared")
async def test_what_cannot_be_forked_is_said() -> None:
    """Threads, connections and other languages stay behind with a note; no kernel, a busy or a dead one is refused."""
    async with Hutch() as hutch, hutch.box(memory_mb=512) as box:
        with pytest.raises(Conflict, match="no Python kernel"):
            await box.fork(kernel=True)
        await box.python("import threading, socket, time\npair = socket.socketpair()\nkept = 'here'")
        await box.python("threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()")
        await box.code("bash", "kept=here")
        async with forked(box) as (fork,):
            answer = await fork.python("try: pair[0].send(b'x')\nexcept OSError as error: print(error.errno)\nkept")
            assert answer.text == "'here'" and answer.stdout == "9\n", answer
            assert any("1 threads" in note for note in answer.notes), answer.notes
            assert any("2 open files, pipes or connections" in note for note in answer.notes), answer.notes
            shell = await fork.code("bash", "echo $kept")
            assert shell.stdout == "\n" and any("only Python kernels" in note for note in shell.notes), shell
        running = asyncio.create_task(box.python("time.sleep(1000)"))
        await reach(box, "busy")
        with pytest.raises(Conflict, match="runs code") as busy:
            await box.fork(kernel=True)
        assert busy.value.retryable
        await box.kernels.interrupt("python")
        await running
        checkpoint = await box.checkpoint()
        with pytest.raises(Invalid, match="checkpoint"):
            await box.fork(kernel=True, checkpoint=checkpoint.id)
        await box.python("import os\nthreading.Timer(0.2, os._exit, (3,)).start()")
        await reach(box, "dead")
        with pytest.raises(Conflict, match="has died"):
            await box.fork(kernel=True)
        assert (await box.python("2 + 2")).text == "4"


async def test_a_kernel_that_started_cold_is_forked_too() -> None:
    """Without a prepared environment the box's own interpreter is copied, also by the synchronous door."""

    def work() -> None:
        with SyncHutch() as hutch, hutch.box() as box:
            assert box.python("import json\nkept = [1, 2, 3]").ok
            forks = box.fork(2, kernel=True)
            assert [fork.python("kept.append(4); sum(kept)").text for fork in forks] == ["10", "10"]
            assert box.python("kept").text == "[1, 2, 3]"
            for fork in forks:
                fork.destroy()

    await asyncio.to_thread(work)


def test_a_server_forks_kernels_that_an_earlier_one_started() -> None:
    """The route takes `kernel`; after `kill -9` the next server forks the same kernel, from another template."""
    with serving() as server:
        environment.prepare(server.state, python=sys.executable)
        client = server.unix()
        box = f"/v1/boxes/{client.good('POST', '/v1/boxes', {'memory_mb': 512})['id']}"
        code = {"code": "import pandas as pd\nseries = pd.Series(range(1000))"}
        assert client.good("POST", f"{box}/code", code)["error"] is None
        server.end(signal.SIGKILL)
        (server.state / "server.json").unlink(missing_ok=True)
        server.start()
        client = server.unix()
        (fork,) = client.good("POST", f"{box}/fork", {"kernel": True})["boxes"]
        ask = {"code": "print(series.sum())"}
        assert client.good("POST", f"/v1/boxes/{fork['id']}/code", ask)["stdout"] == "499500\n"
        assert client.good("POST", f"{box}/code", ask)["stdout"] == "499500\n"
        (kernel,) = client.good("GET", f"/v1/boxes/{fork['id']}/kernels")["kernels"]
        assert kernel["warm"]
