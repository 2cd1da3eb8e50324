"""`hutch box python` and `hutch kernel`: code from the command line, each call a process of its own."""

import json
import os
import sys

import pytest

from tests.cli.cli_process import TIMEOUT, read_until
from tests.cli.conftest import Home
from tests.cli.test_terminals import on_terminal

pytestmark = pytest.mark.slow


def test_code_keeps_its_variables_between_commands(home: Home) -> None:
    """An option, standard input and JSON; an error is an exit code, and a picture is a file (S5)."""
    home.good("box", "create", "--name", "code", "--memory", "512")
    assert home.good("box", "python", "-c", "x = 20\nprint('set')", "code") == "set\n"
    assert home.good("box", "python", "code", stdin=b"x + 1\n") == "21\n"
    failed = home.hutch("box", "python", "-c", "1 / 0", "code")
    assert failed.returncode == 1 and b"ZeroDivisionError" in failed.stderr
    code, shown = home.answer("box", "python", "--json", "-c", "x", "code")
    assert code == 0 and shown["displays"][0]["data"]["text/plain"] == "20" and shown["verdict"]["cause"] == "ok"
    assert home.good("box", "python", "--language", "bash", "-c", "echo $((6 * 7))", "code") == "42\n"
    picture = "class P:\n  def _repr_png_(self): return b'\\x89PNG'\nP()"
    assert "[image/png: " in home.good("box", "python", "-c", picture, "code")
    home.good("box", "destroy", "code")


def test_a_prompt_on_a_terminal(home: Home) -> None:
    """Blocks continue until they are complete, values are shown, and Ctrl-D leaves the variables in the box."""
    home.good("box", "create", "--name", "prompt", "--memory", "512")
    with on_terminal("box", "python", "prompt", env=home.env) as (process, screen):
        read_until(screen, b">>> ")
        os.write(screen, b"def twice(n):\n    return 2 * n\n\n")
        read_until(screen, b">>> ")
        os.write(screen, b"twice(21)\n")
        read_until(screen, b"42")
        os.write(screen, b"\x04")
        assert process.wait(TIMEOUT) == 0
    assert home.good("box", "python", "-c", "twice(4)", "prompt") == "8\n"
    home.good("box", "destroy", "prompt")


def test_an_environment_is_prepared_and_used(home: Home) -> None:
    """After `hutch kernel prepare` a new box's kernel has pandas, without an import that takes time."""
    assert "nothing is prepared" in home.good("kernel", "show")
    assert "start cold: `hutch kernel prepare`" in home.hutch("doctor").stdout.decode()
    prepared = json.loads(home.good("kernel", "prepare", "--json", "--python", sys.executable))
    assert prepared["python"].endswith("/bin/python") and "pandas" in prepared["libraries"]
    assert prepared["prefix"] in home.good("kernel", "show")
    assert f"prepared in {prepared['prefix']}: Python kernels start warm" in home.hutch("doctor").stdout.decode()
    home.good("box", "create", "--name", "warm", "--memory", "512")
    answer = home.good("box", "python", "-c", "import sys\nprint('pandas' in sys.modules, sys.prefix)", "warm")
    assert answer == f"True {prepared['prefix']}\n"
    assert home.good("box", "python", "-c", "kept = pd = __import__('pandas').Series([1, 2, 3])", "warm") == ""
    fork = home.good("box", "fork", "--kernel", "warm").strip()
    assert home.good("box", "python", "-c", "int(kept.sum())", fork) == "6\n"
    home.good("box", "destroy", fork)
    assert home.hutch("kernel", "prepare", "--python", "/bin/false").returncode != 0
    assert prepared["prefix"] in home.good("kernel", "show")
    home.good("box", "destroy", "warm")
