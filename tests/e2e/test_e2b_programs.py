"""Other people's programs on E2B's SDK, installed from PyPI, run unchanged against Hutch (S13)."""

from pathlib import Path

import pytest

from tests import proofs
from tests.e2e.e2b_sdk import E2B
from tests.e2e.environments import python_of
from tests.e2e.test_e2b_releases import run

PROGRAMS = ("langchain-e2b", "e2b-haystack", "smolagents[e2b]")
CODE = """
from e2b import Sandbox
from haystack_integrations.tools.e2b import E2BToolset
from langchain_e2b import E2BSandbox
from smolagents.monitoring import AgentLogger, LogLevel
from smolagents.remote_executors import E2BExecutor

tools = E2BToolset()
tools.warm_up()
named = {tool.name: tool for tool in tools}
assert "from haystack" in named["run_bash_command"].invoke(command="echo from haystack")
named["write_file"].invoke(path="/home/user/note", content="text")
assert named["read_file"].invoke(path="/home/user/note") == "text"
assert "note" in named["list_directory"].invoke(path="/home/user")
tools.close()

executor = E2BExecutor([], AgentLogger(level=LogLevel.OFF))
executor.run_code_raise_errors("x = 6")
assert executor.run_code_raise_errors("print(x * 7)").logs == "42\\n"
executor.cleanup()

sandbox = Sandbox.create()
backend = E2BSandbox(sandbox=sandbox)
assert backend.execute("echo from langchain").output == "from langchain\\n"
assert backend.upload_files([("/home/user/up", b"bytes")])[0].error is None
assert backend.download_files(["/home/user/up"])[0].content == b"bytes"
sandbox.kill()
print("done")
"""


@pytest.mark.proof
@pytest.mark.timeout(1200)
def test_programs_from_pypi(hutch_e2b: E2B, tmp_path: Path) -> None:
    """(S13) LangChain's, Haystack's and smolagents' sandboxes work with only the SDK's variables set."""
    (tmp_path / "program.py").write_text(CODE)
    python = str(python_of(*PROGRAMS))
    assert run([python, "program.py"], tmp_path, 200, **hutch_e2b.environment).endswith("done\n")
    installed = run([python, "-m", "pip", "list", "--format=freeze"], tmp_path, 60).splitlines()
    names = {name.partition("[")[0] for name in PROGRAMS}
    proofs.write("e2b-programs", programs=sorted(each for each in installed if each.partition("==")[0] in names))
