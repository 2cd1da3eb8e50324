"""Kernels that are forked from a prepared interpreter: ready with pandas, and otherwise processes of their box."""

import asyncio
import base64
import json
import os
import signal
import sys
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from hutch import Hutch
from hutch.errors import EngineError, Invalid
from hutch.guest.processes import knows_exit_statuses
from hutch.kernels import environment
from hutch.kernels.environment import Environment
from hutch.model.code import CHART_MIME, TABLE_MIME
from hutch.model.results import Cause
from tests.server.serving import serving

pytestmark = pytest.mark.usefixtures("prepared")

DISPLAYS = {
    "text/plain": "21 * 2",
    "text/html": "from IPython.display import HTML; HTML('<b>bold</b>')",
    "text/markdown": "from IPython.display import Markdown; Markdown('# head')",
    "text/latex": "from IPython.display import Latex; Latex('$x$')",
    "image/svg+xml": "from IPython.display import SVG; SVG('<svg xmlns=\"http://www.w3.org/2000/svg\"/>')",
    "application/json": "from IPython.display import JSON; JSON({'a': [1, 2]})",
    "application/javascript": "from IPython.display import Javascript; Javascript('1')",
    "application/pdf": "class Paper:\n  def _repr_pdf_(self): return b'%PDF-1.4'\nPaper()",
    "image/png": "import matplotlib.pyplot as plt\n_ = plt.plot([1, 2, 3])",
    "image/jpeg": "from IPython.display import Image; Image(data=b'\\xff\\xd8\\xff\\xe0', format='jpeg')",
    TABLE_MIME: "import pandas as pd; pd.DataFrame({'a': [1, 2], 'b': ['x', None]})",
    CHART_MIME: "import matplotlib.pyplot as plt\n_ = plt.bar(['p', 'q'], [3, 4]); _ = plt.title('bars')",
}
FOUND = {
    "text/plain": "42",
    "text/html": "<b>bold</b>",
    "text/markdown": "# head",
    "text/latex": "$x$",
    "application/json": '{"a": [1, 2]}',
    "application/pdf": base64.b64encode(b"%PDF-1.4").decode(),
    TABLE_MIME: '{"columns": {"a": [1, 2], "b": ["x", null]}, "rows": 2}',
}


async def test_every_kind_of_display_arrives() -> None:
    """Text, HTML, Markdown, LaTeX, SVG, PNG, JPEG, PDF, JSON, tables and charts (S5)."""
    async with Hutch() as hutch, hutch.box(memory_mb=512) as box:
        for mime, code in DISPLAYS.items():
            result = await box.python(code)
            assert result.ok, (mime, result.error)
            forms = [display.data[mime] for display in result.displays if mime in display.data]
            assert len(forms) == 1, (mime, result.displays)
            assert mime not in FOUND or forms[0] == FOUND[mime], mime
        png = next(d for d in (await box.python(DISPLAYS["image/png"])).displays if "image/png" in d.data)
        assert png.binary("image/png").startswith(b"\x89PNG")
        chart = next(d for d in (await box.python(DISPLAYS[CHART_MIME])).displays if CHART_MIME in d.data)
        assert all(part in chart.data[CHART_MIME] for part in ('"bars"', '"label": "p", "group": "", "value": 3.0'))
        assert (await box.kernels.all())[0].warm


async def test_pictures_of_pillow_are_displayed() -> None:
    """A picture that code shows is a display; in a sandbox of E2B's clients one that it saves is, too (S5, S13)."""
    code = (
        "from PIL import Image; p = Image.new('RGB', (4, 4)); p.show(); p.save('/tmp/p.png'); Image.open('/tmp/p.png')"
    )
    async with Hutch() as hutch:
        for env, count in (({}, 2), ({"E2B_SANDBOX": "true"}, 3)):
            async with hutch.box(memory_mb=512, env=env) as box:
                shown = (await box.python(code)).displays
                assert [each.binary("image/png")[:4] for each in shown] == [b"\x89PNG"] * count


async def test_magics_commands_and_tracebacks_are_those_of_ipython() -> None:
    """Line and cell magics, shell commands, top-level await and tracebacks without our own frames (S5)."""
    async with Hutch() as hutch, hutch.box(memory_mb=512) as box:
        assert "per loop" in (await box.python("%timeit -n1 -r1 1 + 1")).stdout
        assert (await box.python("%%bash\necho from bash")).stdout == "from bash\n"
        assert (await box.python("%cd /tmp")).ok and (await box.python("%pwd")).text == "'/tmp'"
        assert (await box.python("names = !echo one; echo two\nlist(names)")).text == "['one', 'two']"
        assert (await box.python("!echo out; echo err >&2")).stderr == "err\n"
        assert (await box.python("import asyncio\nawait asyncio.sleep(0, 'slept')")).text == "'slept'"
        assert (await box.python("%matplotlib inline")).ok
        failed = await box.python("def inner():\n    return 1 / 0\ninner()")
        assert failed.error is not None and "Cell In[" in failed.error.traceback
        assert "----> 2     return 1 / 0" in failed.error.traceback and "hutch" not in failed.error.traceback
        wrong = await box.python("def broken(:")
        assert wrong.error is not None and wrong.error.name == "SyntaxError" and "^" in wrong.error.traceback
        ended = await box.python("import sys; sys.exit(4)")
        assert ended.error is not None and (ended.error.name, ended.error.value) == ("SystemExit", "4")
        stopped = await box.python("while True: pass", timeout=1)
        assert stopped.error is not None and "Interrupts" not in stopped.error.traceback
        assert stopped.verdict.cause is Cause.TIMEOUT
        broken = await box.python("import matplotlib.figure as f, matplotlib.pyplot as p\n"
                                  "f.Figure.savefig = None\n_ = p.plot([1])")  # fmt: skip
        assert broken.error is not None and broken.verdict.cause is Cause.EXIT
        assert (await box.python("1 + 1")).text == "2"


async def test_forks_share_no_randomness() -> None:
    """Random numbers, keys, identifiers and temporary names differ between kernels of one template."""
    code = (
        "import random, secrets, uuid, tempfile, numpy\n"
        "print(random.random(), numpy.random.rand(), numpy.random.default_rng().random(), secrets.token_hex(8),"
        " uuid.uuid4(), tempfile.mktemp())"
    )
    async with Hutch() as hutch:
        said = []
        for _ in range(3):
            async with hutch.box(memory_mb=512) as box:
                second = await box.kernels.start("python")
                said += [
                    (await box.python(code)).stdout.split(),
                    (await box.python(code, kernel=second.id)).stdout.split(),
                ]
        assert all(len(words) == 6 for words in said)
        for number in range(6):
            assert len({words[number] for words in said}) == 6, number


async def test_a_warm_kernel_has_the_limits_and_environment_of_its_box(prepared: Environment) -> None:
    """It is a process of the box like any other: its user, limits, filter and variables."""
    async with Hutch() as hutch, hutch.box(memory_mb=256, env={"MINE": "this box's"}) as box:
        answer = await box.python("import os, sys\nprint(os.getuid(), os.environ['MINE'], os.getcwd(), sys.executable)")
        assert answer.stdout == f"1000 this box's /workspace {prepared.python}\n", answer
        status = (await box.python("print(open('/proc/self/status').read())")).stdout
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        assert int(fields["CapEff"], 16) == int(fields["CapBnd"], 16) == 0
        assert fields["NoNewPrivs"] == "1" and fields["Seccomp"] == "2"
        lazy = await box.python("import sqlite3, numpy.fft, multiprocessing\nsqlite3.connect(':memory:') is not None")
        assert lazy.text == "True", lazy.error
        asked = await box.python("import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'print(6 * 7)'])")
        assert asked.stdout == "42\n"
        hoard = await box.python("hoard = []\nwhile True: hoard.append(b'x' * (1 << 20))", timeout=60)
        assert hoard.verdict.cause is Cause.OOM or (hoard.error is not None and hoard.error.name == "MemoryError")
        assert (await box.python("2 + 2")).text == "4"
        assert (await box.exec("echo alive")).stdout == "alive\n"


@pytest.mark.parametrize("language", ["python", "bash"])
def test_a_kernel_survives_its_keeper(language: str) -> None:
    """A server that takes the box over after `kill -9` finds its kernels with their state (lesson 2)."""
    keep, ask = {"python": ("kept = 'state'", "print(kept)"), "bash": ("kept=state", "echo $kept")}[language]
    with serving() as server:
        environment.prepare(server.state, python=sys.executable)
        client = server.unix()
        box = f"/v1/boxes/{client.good('POST', '/v1/boxes', {'memory_mb': 512})['id']}"
        assert client.good("POST", f"{box}/code", {"code": keep, "language": language})["error"] is None
        before = client.good("GET", f"{box}/kernels")["kernels"]
        assert [(each["id"], each["warm"]) for each in before] == [(language, language == "python")]
        server.end(signal.SIGKILL)
        (server.state / "server.json").unlink(missing_ok=True)
        server.start()
        client = server.unix()
        assert client.good("POST", f"{box}/code", {"code": ask, "language": language})["stdout"] == "state\n"
        assert [each["job"] for each in client.good("GET", f"{box}/kernels")["kernels"]] == [before[0]["job"]]


async def test_a_kernel_lives_through_a_checkpoint_and_ends_with_a_rollback() -> None:
    """A checkpoint copies the files of a working box; going back ends its kernels, and the next run starts again."""
    async with Hutch() as hutch, hutch.box(memory_mb=512) as box:
        assert (await box.python("kept = 1\nopen('file', 'w').write('first')")).ok
        checkpoint = await box.checkpoint("before")
        assert (await box.python("_ = open('file', 'w').write('second')\nkept")).text == "1"
        await box.rollback(checkpoint.id, kill=True)
        result = await box.python("'kept' in globals(), open('file').read()")
        assert result.text == "(False, 'first')", result
        assert any("state is gone" in note for note in result.notes)


async def test_box_plots_have_their_numbers() -> None:
    """A box plot is chart data with quartiles and outliers, upright and lying, as the E2B interpreter has it."""
    code = (
        "import json, matplotlib.pyplot as plt\n"
        "_ = plt.boxplot([[1, 2, 3, 4, 5, 30], [2, 4, 6]], **{options})\n_ = plt.xticks([1, 2], ['p', 'q'])"
    )
    async with Hutch() as hutch, hutch.box(memory_mb=512) as box:
        for options in ("{}", "{'patch_artist': True}"):
            shown = await box.python(code.format(options=options))
            (chart,) = [json.loads(d.data[CHART_MIME]) for d in shown.displays if CHART_MIME in d.data]
            first, second = chart["elements"]
            assert chart["type"] == "box_and_whisker" and (first["label"], second["label"]) == ("p", "q"), chart
            assert first == {
                "label": "p", "min": 1, "first_quartile": 2.25, "median": 3.5, "third_quartile": 4.75, "max": 5,
                "outliers": [30],
            }  # fmt: skip
            assert (second["min"], second["median"], second["max"], second["outliers"]) == (2, 4, 6, [])
        line = await box.python("import matplotlib.pyplot as plt\n_ = plt.plot([1, 2]); _ = plt.plot([2, 1])")
        assert any('"type": "line"' in d.data.get(CHART_MIME, "") for d in line.displays)


async def test_charts_say_what_was_plotted() -> None:
    """Times are ISO text, categories have their names, bars their group; what nobody named is null (S5)."""
    begin = "import datetime, matplotlib.pyplot as plt\n_, axes = plt.subplots()\n"
    days = "days = [datetime.datetime(2023, 9, 1 + i) for i in range(3)]\n"
    async with Hutch() as hutch, hutch.box(memory_mb=512) as box:

        async def chart(code: str) -> dict[str, Any]:
            shown = await box.python(begin + code)
            (found,) = [json.loads(each.data[CHART_MIME]) for each in shown.displays if CHART_MIME in each.data]
            return dict(found)

        line = await chart(f"{days}_ = axes.plot(days, [1, 2, 4], label='a'); _ = axes.set_xlabel('Time (s)')")
        assert (line["type"], line["title"], line["x_label"], line["x_unit"]) == ("line", None, "Time (s)", "s")
        assert (line["x_scale"], line["y_scale"], line["y_label"], line["y_unit"]) == ("datetime", "linear", None, None)
        (series,) = line["elements"]
        assert series["label"] == "a" and [y for _, y in series["points"]] == [1.0, 2.0, 4.0]
        assert [x[:10] for x, _ in series["points"]] == ["2023-09-01", "2023-09-02", "2023-09-03"]
        words = await chart("_ = axes.plot([1, 2], ['A', 'B'])")
        assert words["y_scale"] == "categorical" and words["elements"][0]["points"] == [[1.0, "A"], [2.0, "B"]]
        for draw in ("bar", "barh"):
            bars = await chart(f"_ = axes.{draw}(['p', 'q'], [3, 5], label='sold')")
            assert bars["elements"] == [
                {"label": "p", "group": "sold", "value": 3.0}, {"label": "q", "group": "sold", "value": 5.0},
            ]  # fmt: skip
        pie = await chart("_ = axes.pie([90, 10], labels=['No', 'Yes'], startangle=90)")
        assert pie["elements"] == [
            {"label": "No", "angle": 324.0, "radius": 1.0}, {"label": "Yes", "angle": 36.0, "radius": 1.0},
        ]  # fmt: skip
        log = await chart("_ = axes.plot([1, 2], [10, 100]); axes.set_yscale('log')")
        assert log["y_scale"] == "log" and log["elements"][0]["label"] == ""


async def test_a_template_is_renewed_after_a_number_of_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The seed of string hashes is fixed in a template, so a new one takes its place; earlier kernels keep running."""
    monkeypatch.setattr("hutch.kernels.warm.templates.MAX_FORKS", 2)
    ask = "hash('the same text')"
    async with Hutch() as hutch, AsyncExitStack() as stack:
        boxes = [await stack.enter_async_context(hutch.box(memory_mb=512)) for _ in range(3)]
        hashes = [(await box.python(ask)).text for box in boxes]
        assert hashes[0] == hashes[1] != hashes[2], hashes
        assert [(await box.python(ask)).text for box in boxes] == hashes
        assert all([(await box.kernels.all())[0].warm for box in boxes])


async def test_the_first_run_can_be_interrupted() -> None:
    """Its time counts from when the kernel takes code, and its kernel keeps running."""
    async with Hutch() as hutch, hutch.box(memory_mb=512) as box:
        endless = await box.python("kept = 1\nwhile True: pass", timeout=1)
        assert endless.verdict.cause is Cause.TIMEOUT and endless.duration_sec >= 1, endless
        assert (await box.python("kept")).text == "1"


async def test_the_next_entry_has_copied_its_pages_ahead() -> None:
    """A fork of the template waits for the next box, and holds what it will write to for itself already."""
    async with Hutch() as hutch, hutch.box(memory_mb=512) as box:
        assert (await box.python("1")).ok
        async with asyncio.timeout(60):
            while not any(_own_kb(pid) > 2000 for pid in _reserve()):
                await asyncio.sleep(0.05)


async def test_the_first_kernel_waits_for_its_box_beside_the_guest() -> None:
    """It has copied its pages before the box was known; how it ends is known though it is no child of its guest."""
    if not knows_exit_statuses():
        pytest.skip("needs Linux 6.15, which tells others than the parent how a process has ended")
    async with Hutch() as hutch:
        async with hutch.box(memory_mb=512) as box:
            assert (await box.python("1")).ok
        for ending, told in (("os._exit(3)", "exit code 3"), ("os.kill(os.getpid(), 9)", "signal 9")):
            async with asyncio.timeout(60):
                while not any(_own_kb(pid) > 2000 for guest in _reserve() for pid in _forks(guest)):
                    await asyncio.sleep(0.05)
            async with hutch.box(memory_mb=512) as box:
                assert (await box.python("import os; os.getppid()")).text == "1"
                second = await box.kernels.start("python")
                guest = (await box.python("import os; os.getppid()", kernel=second.id)).text
                assert int(guest) > 1, "other kernels are forks of their guest"
                for kernel in ("", second.id):
                    died = await box.python(f"import os; {ending}", kernel=kernel)
                    assert died.error is not None and told in died.error.value, died
                assert (await box.python("1 + 1")).text == "2"


def _reserve() -> list[int]:
    """The forks of this process's templates that wait for a box."""
    return [pid for template in _forks(os.getpid()) for pid in _forks(template)]


def _forks(parent: int) -> list[int]:
    """The children of this process that are templates, or forks of one in reserve."""
    with suppress(OSError):
        pids = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        return [int(pid) for pid in pids if Path(f"/proc/{pid}/comm").read_text() == "hutch-template\n"]
    return []  # It has just ended.


def _own_kb(pid: int) -> int:
    """The memory that this process shares with nobody."""
    with suppress(OSError):
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) for line in rollup if line.startswith("Private_Dirty:"))
    return 0


async def test_a_missing_library_is_named_and_the_kernel_starts_without_it(prepared: Environment) -> None:
    """The operator listed a package that the environment has not: the first result says so, and pandas is there."""
    state = Path(os.environ["HUTCH_STATE_DIR"])
    environment.prepare(state, ["no-such-package-here"], python=prepared.python)
    async with Hutch() as hutch, hutch.box(memory_mb=512) as box:
        result = await box.python("import sys\n'pandas' in sys.modules")
        assert result.text == "True"
        assert any("no_such_package_here is not available: ModuleNotFoundError" in note for note in result.notes)


async def test_packages_are_installed_once_and_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip installs what the operator lists, with progress; the same list again costs nothing; a failure leaves it."""
    monkeypatch.setattr(environment, "PACKAGES", ())  # They take minutes.
    answer: list[str] = []
    made = await asyncio.to_thread(environment.prepare, tmp_path, ["tabulate"], progress=answer.append)
    assert [line.split()[0] for line in answer] == ["making", "installing", "compiling", "ready:"], answer
    assert made.libraries[-1] == "tabulate" and "tabulate" in made.packages
    answer.clear()
    assert environment.prepare(tmp_path, ["tabulate"], progress=answer.append).prefix == made.prefix
    assert "already" in answer[0] and len(answer) == 2
    with pytest.raises(EngineError, match="no-such-package-of-hutch"):
        await asyncio.to_thread(environment.prepare, tmp_path, ["no-such-package-of-hutch"])
    assert environment.load(tmp_path) == made
    assert [path.name for path in (tmp_path / "kernels").glob("python-*")] == [Path(made.prefix).name]
    async with Hutch(state_dir=tmp_path) as hutch, hutch.box(memory_mb=512) as box:
        result = await box.python("import sys\n'tabulate' in sys.modules, 'pandas' in sys.modules")
        assert result.text == "(True, False)", result
        for missing in ("pandas is not available", "IPython is not installed"):
            assert any(missing in note for note in result.notes), result.notes


def test_metrics_and_events_know_kernels() -> None:
    """Starts by kind, runs by verdict, and an event with the reason when a kernel dies."""
    with serving() as server:
        environment.prepare(server.state, python=sys.executable)
        client = server.unix()
        box_id = client.good("POST", "/v1/boxes", {"memory_mb": 512})["id"]
        box = f"/v1/boxes/{box_id}"
        for code in ("kept = 1", "1 / 0", "import os; os._exit(3)", "2"):
            client.good("POST", f"{box}/code", {"code": code})
        client.good("POST", f"{box}/code", {"code": "true", "language": "bash"})
        client.good("POST", f"{box}/fork", {"kernel": True})
        answer = client.call("GET", "/metrics").body.decode()
        assert 'hutch_kernels_started_total{start="warm"} 2.0' in answer, answer
        assert 'hutch_kernels_started_total{start="forked"} 1.0' in answer
        assert 'hutch_code_runs_total{cause="ok",language="python"} 2.0' in answer
        assert 'hutch_code_runs_total{cause="exit",language="python"} 2.0' in answer
        assert 'hutch_code_runs_total{cause="ok",language="bash"} 1.0' in answer
        events = client.good("GET", f"/v1/events?box={box_id}")["events"]
        (died,) = [event for event in events if event["kind"] == "kernel"]
        assert died["old"] == "python" and "died" in died["reason"]


async def test_many_kernels_at_once() -> None:
    """Kernels of several boxes and owners start and run side by side."""
    async with Hutch() as hutch:

        async def one(number: int) -> str:
            async with hutch.box(memory_mb=512) as box:
                await box.python(f"import pandas as pd\nvalue = pd.Series([{number}] * 3).sum()")
                return (await box.python("int(value)")).text

        assert await asyncio.gather(*(one(number) for number in range(6))) == [str(3 * n) for n in range(6)]


def test_the_environment_must_be_one_that_boxes_see() -> None:
    """An interpreter that is none is refused before anything changes."""
    before = environment.load(Path(os.environ["HUTCH_STATE_DIR"]))
    with pytest.raises(Invalid, match="no interpreter that works"):
        environment.prepare(Path(os.environ["HUTCH_STATE_DIR"]), python="/bin/false")
    assert environment.load(Path(os.environ["HUTCH_STATE_DIR"])) == before
