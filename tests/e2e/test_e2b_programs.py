"""Other people's programs on E2B's SDK, installed from PyPI and npm, run unchanged against Hutch (S13)."""

import json
import shutil
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
JAVASCRIPT = {"@computesdk/e2b": "1.7.52"}
JAVASCRIPT_CODE = """
import assert from 'node:assert/strict'
import { e2b } from '@computesdk/e2b'

const { sandbox: sandboxes } = e2b({ apiKey: process.env.E2B_API_KEY })
const sandbox = await sandboxes.create()
try {
  const done = await sandbox.runCommand('echo from computesdk; echo wrong >&2; exit 3')
  assert.deepEqual([done.stdout.trim(), done.stderr.trim(), done.exitCode], ['from computesdk', 'wrong', 3])
  await sandbox.filesystem.mkdir('/home/user/made')
  await sandbox.filesystem.writeFile('/home/user/made/note', 'text')
  assert.equal(await sandbox.filesystem.readFile('/home/user/made/note'), 'text')
  assert.deepEqual((await sandbox.filesystem.readdir('/home/user/made')).map((entry) => entry.name), ['note'])
  await sandbox.filesystem.remove('/home/user/made/note')
  assert.equal(await sandbox.filesystem.exists('/home/user/made/note'), false)
  assert.ok((await sandboxes.list()).some((each) => each.sandboxId === sandbox.sandboxId))
  assert.equal((await sandboxes.getById(sandbox.sandboxId)).sandboxId, sandbox.sandboxId)
} finally {
  await sandbox.destroy()
}
console.log('done')
process.exit(0)
"""


@pytest.mark.proof
@pytest.mark.timeout(1200)
def test_programs_from_npm(hutch_e2b: E2B, tmp_path: Path) -> None:
    """(S13) ComputeSDK's sandboxes work with only the SDK's variables set."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed: tools/setup.sh installs it")
    (tmp_path / "program.mjs").write_text(JAVASCRIPT_CODE)
    (tmp_path / "package.json").write_text(json.dumps({"private": True, "dependencies": JAVASCRIPT}))
    npm = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts"]
    run(npm, tmp_path, 280, npm_config_cache=str(tmp_path / "cache"))
    assert run(["node", "program.mjs"], tmp_path, 200, **hutch_e2b.environment).endswith("done\n")
    packages = ("@computesdk/e2b", "e2b")
    manifests = {name: json.loads((tmp_path / "node_modules" / name / "package.json").read_text()) for name in packages}
    proofs.write("e2b-programs-npm", programs=[f"{name}@{manifests[name]['version']}" for name in packages])


@pytest.mark.proof
@pytest.mark.timeout(1200)
def test_programs_from_pypi(hutch_e2b: E2B, tmp_path: Path) -> None:
    """(S13) LangChain's, Haystack's and smolagents' sandboxes work with only the SDK's variables set."""
    (tmp_path / "program.py").write_text(CODE)
    python = str(python_of(*PROGRAMS))
    assert run([python, "program.py"], tmp_path, 200, **hutch_e2b.environment).endswith("done\n")
    listing = 'import importlib.metadata as m; [print(f"{d.name}=={d.version}") for d in m.distributions()]'
    installed = run([python, "-c", listing], tmp_path, 60).splitlines()
    names = {name.partition("[")[0] for name in PROGRAMS}
    proofs.write("e2b-programs", programs=sorted(each for each in installed if each.partition("==")[0] in names))
