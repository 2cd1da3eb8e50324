"""A whole LangBot from PyPI, headless: its plugin runtime, its application, and an agent that follows the message.

LangBot has no built-in agent, so a plugin brings one. It reads the text of a message as `[[tool, parameters], …]`,
binds a box and calls each tool, so that no model is needed.
"""

import io
import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
import uuid
import zipfile
from pathlib import Path
from typing import Any

API_KEY = "lbk-hutch-test"
START_SECONDS = 600.0
RUNNER = "plugin:hutch/boxprobe/default"

MANIFEST = """
apiVersion: v1
kind: Plugin
metadata:
  author: hutch
  name: boxprobe
  repository: ''
  version: 0.1.0
  description: {en_US: Calls the tools that a message names}
  label: {en_US: Box probe}
  icon: assets/icon.svg
spec:
  config: []
  components:
    Runner:
      fromDirs: [{path: components/runner/}]
execution:
  python: {path: main.py, attr: BoxProbe}
"""
MAIN = """
from langbot_plugin.api.definition.plugin import BasePlugin


class BoxProbe(BasePlugin):
    async def initialize(self):
        pass
"""
RUNNER_MANIFEST = """
apiVersion: langbot/v1
kind: Runner
metadata:
  name: default
  label: {en_US: Box probe}
  description: {en_US: Calls the tools that a message names}
spec:
  usages: [agent]
  capabilities: {streaming: false, tool_calling: true, skill_authoring: true}
  permissions: {models: [], tools: [detail, call], knowledge_bases: [], history: [], events: [], storage: []}
  config: []
execution:
  python: {path: ./default.py, attr: Default}
"""
RUNNER_CODE = """
import json

from langbot_plugin.api.definition.components.runner.runner import Runner
from langbot_plugin.api.entities.builtin.provider.message import Message
from langbot_plugin.api.entities.builtin.runner import RunnerResult


class Default(Runner):
    async def run(self, ctx):
        api, told = self.get_run_api(ctx), []
        box = await api.acquire_box("hutch-proof")
        await api.bind_box(box.id)
        offered = sorted(tool["name"] for tool in await api.list_tools())
        for tool, parameters in json.loads(ctx.input.to_text()):
            try:
                if tool == "export":
                    files = await api.export_box_files(parameters["paths"])
                    told.append([tool, True, [file.model_dump() for file in files]])
                else:
                    told.append([tool, True, await api.call_tool(tool, parameters)])
            except Exception as error:
                told.append([tool, False, f"{type(error).__name__}: {error}"])
        text = json.dumps({"tools": offered, "calls": told}, default=str)
        yield RunnerResult.run_completed(
            run_id=ctx.run_id, message=Message(role="assistant", content=text), finish_reason="stop"
        )
"""


def plugin() -> bytes:
    """The plugin as a zip file."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        for name, text in {
            "manifest.yaml": MANIFEST,
            "main.py": MAIN,
            "requirements.txt": "",
            "README.md": "A probe.",
            "assets/icon.svg": '<svg xmlns="http://www.w3.org/2000/svg"/>',
            "components/runner/default.yaml": RUNNER_MANIFEST,
            "components/runner/default.py": RUNNER_CODE,
            "components/__init__.py": "",
            "components/runner/__init__.py": "",
        }.items():
            archive.writestr(name, text.lstrip())
    return held.getvalue()


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


class LangBot:
    """One LangBot in a directory of its own."""

    def __init__(self, python: Path, directory: Path, box_endpoint: str, token: str) -> None:
        self._bin = python.parent
        self._directory = directory
        self._port, control, debug = free_port(), free_port(), free_port()
        self._control, self._debug = control, debug
        self._environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("HUTCH_", "PYTHON"))},
            "PATH": f"{self._bin}:{os.environ['PATH']}",
            "LANGBOT_BOX_CONTROL_TOKEN": token,
            "BOX__RUNTIME__ENDPOINT": box_endpoint,
            "API__HOST": "127.0.0.1",
            "API__PORT": str(self._port),
            "API__GLOBAL_API_KEY": API_KEY,
            "SPACE__URL": "http://127.0.0.1:9",
            "SPACE__DISABLE_TELEMETRY": "true",
            "SPACE__DISABLE_MODELS_SERVICE": "true",
            "PLUGIN__RUNTIME_WS_URL": f"ws://127.0.0.1:{control}/control/ws",
        }
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        ports = ["--ws-control-port", str(self._control), "--ws-debug-port", str(self._debug)]
        self._spawn("runtime", [str(self._bin / "lbp"), "rt", *ports])
        self._spawn("langbot", [str(self._bin / "langbot"), "--standalone-runtime"])
        self.until("LangBot answers", lambda: self._reachable(), START_SECONDS)

    def end(self) -> None:
        """End LangBot as an operator does, and then its runtime."""
        for process in reversed(self._processes):
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    def log(self) -> str:
        return "\n".join(file.read_text(errors="replace")[-6000:] for file in self._directory.glob("*.log"))

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self._port}/api/v1{path}", data, method=method)
        request.add_header("X-API-Key", API_KEY)
        request.add_header("Content-Type", headers.get("content_type", "application/json"))
        try:
            with urllib.request.urlopen(request, timeout=300) as answer:
                return json.loads(answer.read())["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{method} {path}: {error.code} {error.read()[:2000]!r}") from error

    def install_plugin(self) -> None:
        boundary = uuid.uuid4().hex
        form = b"".join([
            f'--{boundary}\r\nContent-Disposition: form-data; name="administrator_force"\r\n\r\ntrue\r\n'.encode(),
            f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="boxprobe.lbpkg"\r\n'
            f"Content-Type: application/zip\r\n\r\n".encode(), plugin(), f"\r\n--{boundary}--\r\n".encode(),
        ])  # fmt: skip
        kind = f"multipart/form-data; boundary={boundary}"
        task = self.call("POST", "/plugins/install/local", form, content_type=kind)["task_id"]

        def installed() -> bool:
            state = self.call("GET", f"/system/tasks/{task}")
            runtime = state.get("runtime", state)
            assert not runtime.get("exception"), state
            return state.get("status") == "succeeded" or bool(runtime.get("done"))

        self.until("the plugin is installed", installed, 300)

    def create_agent(self) -> str:
        config = {"runner": {"id": RUNNER}, "runner_config": {RUNNER: {}}}
        made = self.call("POST", "/agents", {"name": "probe", "kind": "agent", "config": config})
        agent: str = made.get("uuid") or made["agent"]["uuid"]
        return agent

    def run_tools(self, agent: str, *calls: tuple[str, dict[str, Any]]) -> dict[str, Any]:
        """Let the agent call tools; the answer has the tools that were offered, and what each call returned."""
        answer = self.call("POST", f"/agents/{agent}/debug", {"text": json.dumps(calls)})
        return find_told(answer)

    def until(self, what: str, found: Any, seconds: float = 120.0) -> Any:
        end = time.monotonic() + seconds
        while True:
            for process in self._processes:
                assert process.poll() is None, f"it ended while waiting until {what}\n{self.log()}"
            value = found()
            if value:
                return value
            assert time.monotonic() < end, f"it did not happen that {what}\n{self.log()}"
            time.sleep(0.5)

    def _reachable(self) -> bool:
        try:
            self.call("GET", "/system/info")
        except (OSError, AssertionError, ValueError, KeyError):
            return False
        return True

    def _spawn(self, name: str, command: list[str]) -> None:
        with (self._directory / f"{name}.log").open("ab") as log:
            self._processes.append(subprocess.Popen(
                command, cwd=self._directory, env=self._environ, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            ))  # fmt: skip


def find_told(answer: Any) -> dict[str, Any]:
    """Find the agent's JSON text anywhere in the answer of a debug run."""
    if isinstance(answer, str) and answer.startswith('{"tools"'):
        reply: dict[str, Any] = json.loads(answer)
        return reply
    children = answer.values() if isinstance(answer, dict) else answer if isinstance(answer, list) else ()
    for child in children:
        if found := find_told(child):
            return found
    return {}
