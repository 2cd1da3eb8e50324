"""`hutch box checkpoint`, `rollback`, `undo`, `diff`, `fork` and `merge`, each command a process of its own."""

import pytest

from tests.cli.conftest import Home

pytestmark = pytest.mark.slow


def write(home: Home, box: str, command: str) -> None:
    home.good("box", "exec", box, "--", "sh", "-c", command)


def files(home: Home, box: str) -> str:
    return home.good("box", "exec", box, "--", "sh", "-c", "tail -n +1 *")


def test_a_box_goes_back_and_forks_from_the_command_line(home: Home) -> None:
    """Issue 20, point 5: what one process froze, the next one shows, compares and brings back."""
    home.good("box", "create", "--name", "dev")
    write(home, "dev", "echo one > a; echo gone > b")
    first = home.good("box", "checkpoint", "dev", "--name", "first").strip()
    write(home, "dev", "echo two > a; rm b; mkdir d")
    assert home.good("box", "diff", "dev", "--text") == (
        "~ /workspace/a  4\n--- a/workspace/a\n+++ b/workspace/a\n@@ -1 +1 @@\n-one\n+two\n"
        "- /workspace/b  5\n--- a/workspace/b\n+++ b/workspace/b\n@@ -1 +0,0 @@\n-gone\n"
        "+ /workspace/d/\n"
    )
    changes = home.json("box", "diff", "dev", first)["changes"]
    assert [(each["path"], each["kind"]) for each in changes][-1] == ("/workspace/d", "added")
    home.good("box", "rollback", "dev", "first")
    assert files(home, "dev") == "==> a <==\none\n\n==> b <==\ngone\n"
    assert home.good("box", "checkpoints", "dev") == f"{first}  first  switch\n"

    (fork,) = home.good("box", "fork", "dev").split()
    write(home, fork, "echo fork > a")
    assert home.good("box", "merge", "dev", fork) == "/workspace/a\n"
    assert files(home, "dev").startswith("==> a <==\nfork\n")
    write(home, "dev", "echo ours > b")
    write(home, fork, "echo theirs > b")
    code, told = home.answer("box", "merge", "dev", fork)
    assert code != 0 and told["error"]["details"]["conflicts"] == ["/workspace/b"]
    code, told = home.answer("box", "rollback", "dev", "none")
    assert code != 0 and told["error"]["code"] == "not_found"


def test_a_command_is_undone_from_the_command_line(home: Home) -> None:
    home.good("box", "create", "--name", "steps", "--auto-checkpoint", "exec")
    for number in range(3):
        write(home, "steps", f"echo {number} >> log")
    home.good("box", "undo", "steps", "--steps", "2")
    assert home.good("box", "checkpoints", "steps").split()[-1] == "step"
    assert home.good("box", "exec", "steps", "--", "cat", "log") == "0\n"
