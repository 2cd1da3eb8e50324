"""The newest E2B code interpreter runs code in the kernels of boxes (S13)."""

import threading
from collections.abc import Iterator

import pytest
from e2b import NotFoundException, SandboxException, TimeoutException
from e2b_code_interpreter import Sandbox

from tests.e2e.e2b_sdk import E2B


@pytest.fixture(scope="module")
def interpreter(hutch_e2b: E2B) -> Iterator[Sandbox]:
    sandbox = Sandbox.create(timeout=3600, **hutch_e2b.options)
    try:
        yield sandbox
    finally:
        sandbox.kill()


def test_python_keeps_its_state_and_shows_its_value(interpreter: Sandbox) -> None:
    """(S13) Variables stay; the last expression is the result; output arrives by stream."""
    interpreter.run_code("x = 20")
    printed: list[str] = []
    run = interpreter.run_code("print('hello'); x + 22", on_stdout=lambda message: printed.append(message.line))
    assert run.text == "42"
    assert (printed, run.logs.stdout) == (["hello\n"], ["hello\n"])
    assert interpreter.run_code("'plain'").text == "plain"


def test_errors_are_data(interpreter: Sandbox) -> None:
    """(S13) An exception has a name, a value and a traceback, and the context stays."""
    run = interpreter.run_code("1 / 0")
    assert run.error is not None
    assert (run.error.name, run.error.value) == ("ZeroDivisionError", "division by zero")
    assert "1 / 0" in run.error.traceback
    assert interpreter.run_code("'still here'").text == "still here"


def test_variables_of_one_run(interpreter: Sandbox) -> None:
    """(S13) `envs` hold for one run."""
    assert interpreter.run_code("import os; os.environ['ONLY']", envs={"ONLY": "once"}).text == "once"
    assert interpreter.run_code("'ONLY' in os.environ").text == "False"


def test_javascript(interpreter: Sandbox) -> None:
    """(S13) JavaScript has values too, and keeps its state."""
    interpreter.run_code("let n = 6", language="js")
    assert interpreter.run_code("n * 7", language="javascript").text == "42"


def test_bash(interpreter: Sandbox) -> None:
    """(S13) Bash prints."""
    assert interpreter.run_code("echo from bash", language="bash").logs.stdout == ["from bash\n"]


def test_contexts(interpreter: Sandbox) -> None:
    """(S13) Contexts have their own state and directory; the defaults are always there."""
    assert {"python", "javascript"} <= {context.language for context in interpreter.list_code_contexts()}
    interpreter.files.make_dir("/home/user/elsewhere")
    context = interpreter.create_code_context(language="python", cwd="/home/user/elsewhere")
    assert interpreter.run_code("import os; os.getcwd()", context=context).text == "/home/user/elsewhere"
    interpreter.run_code("y = 1", context=context)
    interpreter.restart_code_context(context)
    failed = interpreter.run_code("y", context=context)
    assert failed.error is not None
    assert failed.error.name == "NameError"
    interpreter.remove_code_context(context)
    with pytest.raises(NotFoundException):
        interpreter.run_code("1", context=context)


def test_indented_code(interpreter: Sandbox) -> None:
    """(S13) Code that is indented as a whole runs, as programs pass it in the lines of a long string."""
    assert (
        interpreter.run_code("""
        if True:
            x = 41
        x + 1
    """).text
        == "42"
    )


def test_saved_pictures_are_results(interpreter: Sandbox) -> None:
    """(S13) A picture that code saves with Pillow is a result, also if Pillow is imported only then."""
    interpreter.files.write("own/PIL/__init__.py", "")
    picture = "class Image:\n def save(self, target): pass\n def _repr_png_(self): return b'\\x89PNG'\n"
    interpreter.files.write("own/PIL/Image.py", picture)
    code = "import sys; sys.path.insert(0, '/home/user/own'); from PIL import Image; Image.Image().save('x.png')"
    context = interpreter.create_code_context()
    assert [result.png for result in interpreter.run_code(code, context=context).results] == ["iVBORw=="]


def test_code_ends_with_its_sandbox(hutch_e2b: E2B) -> None:
    """(S13) A caller who waits for code in a sandbox that is killed gets an error at once."""
    sandbox = Sandbox.create(**hutch_e2b.options)
    killing = threading.Timer(1.0, sandbox.kill)
    killing.start()
    with pytest.raises(TimeoutException, match="was killed while the request was in progress"):
        sandbox.run_code("import time; time.sleep(300)", timeout=300)
    killing.join()


def test_a_kernel_that_fails_to_start_is_an_error(hutch_e2b: E2B) -> None:
    """(S13) Whoever waits for a kernel that fails, at once or after a while, is told why; the sandbox goes on."""
    options = {**hutch_e2b.options, "envs": {"PATH": "/home/user/bin:/usr/bin:/bin"}}
    with Sandbox.create(**options) as sandbox:
        sandbox.files.write("bin/python3", "#!/bin/sh\necho no python today >&2; exit 3\n")
        sandbox.commands.run("chmod +x bin/python3")
        with pytest.raises(SandboxException, match="no python today"):
            sandbox.run_code("1")
        sandbox.files.write("bin/python3", "#!/bin/sh\nsleep 6; echo no python today >&2; exit 3\n")
        error = sandbox.run_code("1").error
        assert error is not None
        assert "no python today" in error.value
        assert sandbox.run_code("echo here", language="bash").logs.stdout == ["here\n"]


def test_code_needs_the_token_of_its_sandbox(hutch_e2b: E2B, interpreter: Sandbox) -> None:
    """(S13, Lesson 31) A caller who only knows the id of a sandbox runs nothing in it."""
    stranger = hutch_e2b.server.tcp().saying(e2b_sandbox_id=interpreter.sandbox_id, e2b_sandbox_port="49999")
    assert stranger.call("POST", "/execute", {"code": "1"}).status == 401
