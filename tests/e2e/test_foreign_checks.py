"""What other frameworks ask of a sandbox: their own test suites, run against Hutch through adapters of a few lines."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.e2e.environments import python_of

HERE = Path(__file__).parent / "foreign"
SOURCE = Path(__file__).parents[2] / "src"
MSGSPEC = "msgspec==0.22.0"
INSPECT = ("inspect_ai==0.3.285", MSGSPEC, "pytest==9.2.0")
LANGCHAIN = ("deepagents==0.7.32", "langchain-tests==1.1.9", MSGSPEC, "pytest==9.2.0", "pytest-asyncio==1.5.0")
MOST_ADAPTER_LINES = 60
DISAGREEMENTS = {
    # langchain-tests wants names relative to the directory, and directories too; deepagents' own `BaseSandbox.glob`
    # answers absolute paths of files.
    "test_glob", "test_glob_basic_pattern", "test_glob_hidden_files_explicitly", "test_glob_with_character_class",
    "test_glob_with_directories", "test_glob_with_question_mark",
    # langchain-tests wants an error; deepagents' own `BaseSandbox.write` replaces the file.
    "test_write_existing_file_fails",
}  # fmt: skip
"""The tests in which LangChain's two packages contradict each other, whatever the sandbox does."""
NEED_OTHER_USERS = {"test_exec_as_user"}
"""The checks of inspect_ai that need a second user, which the boxes of an ordinary user do not have."""


def run_suite(script: str, requirements: tuple[str, ...], *options: str) -> tuple[set[str], set[str]]:
    """Run a suite in an environment of its own, and return the names of the tests that passed and of those that failed.

    The options keep our own configuration of pytest out of it.
    """
    command = [
        str(python_of(*requirements)), "-m", "pytest", "-rA", "--tb=short", "--noconftest", "-c", os.devnull, "-p",
        "no:cacheprovider", f"--rootdir={HERE}", *options, str(HERE / script),
    ]  # fmt: skip
    environ = os.environ | {"PYTHONPATH": str(SOURCE), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, env=environ)
    outcomes = {"PASSED": set[str](), "FAILED": set[str](), "ERROR": set[str]()}
    for outcome, name in re.findall(r"^(PASSED|FAILED|ERROR) \S+::(\w+)", done.stdout, re.MULTILINE):
        outcomes[outcome].add(name)
    assert not outcomes["ERROR"] and outcomes["PASSED"], done.stdout[-4000:] + done.stderr[-2000:]
    return outcomes["PASSED"], outcomes["FAILED"]


@pytest.mark.timeout(1800)  # the first run on a machine installs the package
def test_inspect_ai_s_self_check_passes(rootless: bool) -> None:
    """All 44 checks; an ordinary user's boxes have one user, which inspect_ai lets a sandbox say."""
    passed, failed = run_suite("inspect_sandbox.py", INSPECT)
    assert failed == (NEED_OTHER_USERS if rootless else set())
    assert len(passed | failed) == 44


@pytest.mark.timeout(1800)
def test_langchain_s_integration_tests_pass() -> None:
    """All but those in which its two packages disagree."""
    passed, failed = run_suite("langchain_sandbox.py", LANGCHAIN, "-o", "asyncio_mode=auto")
    assert failed == DISAGREEMENTS
    assert len(passed) == 79


@pytest.mark.parametrize("script", ["inspect_sandbox.py", "langchain_sandbox.py"])
def test_an_adapter_is_short(script: str) -> None:
    assert len((HERE / script).read_text().splitlines()) < MOST_ADAPTER_LINES
