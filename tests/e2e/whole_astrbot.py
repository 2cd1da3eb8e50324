"""A whole AstrBot from PyPI, headless, with a model of our own that calls tools as a message says."""

import http.client
import json
import os
import signal
import subprocess
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.e2e.whole_langbot import free_port

START_SECONDS = 600.0
CHAT_SECONDS = 300.0


class Model:
    """A chat model on loopback. It reads the last message of the user as `[[tool, arguments], …]`, and calls one tool
    in each turn."""

    def __init__(self) -> None:
        self.offered: list[str] = []
        self.results: list[str] = []
        """What the tools of the last message returned."""
        model = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._send("application/json", json.dumps({"object": "list", "data": []}).encode())

            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
                reply = model.answer(asked)
                if not asked.get("stream"):
                    choice = {"index": 0, "message": reply, "finish_reason": _finish(reply)}
                    body = {**_frame("chat.completion"), "choices": [choice], "usage": _USAGE}
                    self._send("application/json", json.dumps(body).encode())
                    return
                delta = {**reply, "tool_calls": [{"index": 0, **call} for call in reply.get("tool_calls", ())]}
                chunk = {**_frame("chat.completion.chunk"), "choices": [{"index": 0, "delta": delta}]}
                last = {"index": 0, "delta": {}, "finish_reason": _finish(reply)}
                end = {**_frame("chat.completion.chunk"), "choices": [last], "usage": _USAGE}
                text = "".join(f"data: {json.dumps(each)}\n\n" for each in (chunk, end)) + "data: [DONE]\n\n"
                self._send("text/event-stream", text.encode())

            def _send(self, kind: str, body: bytes) -> None:
                self.send_response(200)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        messages = asked["messages"]
        self.offered = sorted(tool["function"]["name"] for tool in asked.get("tools") or ()) or self.offered
        report = next(
            i for i in range(len(messages) - 1, -1, -1) if messages[i]["role"] == "user" and _calls(messages[i])
        )
        calls = _calls(messages[report])
        self.results = [_text(each["content"]) for each in messages[report:] if each["role"] == "tool"]
        if len(self.results) < len(calls):
            name, arguments = calls[len(self.results)]
            function = {"name": name, "arguments": json.dumps(arguments)}
            call = {"id": f"call_{uuid.uuid4().hex[:8]}", "type": "function", "function": function}
            return {"role": "assistant", "content": None, "tool_calls": [call]}
        return {"role": "assistant", "content": "done"}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


_USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}


def _frame(kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "object": kind, "created": int(time.time()), "model": "fake"}


def _finish(reply: dict[str, Any]) -> str:
    return "tool_calls" if reply.get("tool_calls") else "stop"


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def _calls(message: dict[str, Any]) -> list[Any]:
    """The calls that a message names; AstrBot adds text of its own around what the user wrote."""
    text = _text(message["content"])
    start = text.find("[[")
    if start < 0:
        return []
    try:
        calls, _ = json.JSONDecoder().raw_decode(text[start:])
    except ValueError:
        return []
    return list(calls)


class AstrBot:
    """One AstrBot in a directory of its own."""

    def __init__(self, python: Path, directory: Path, sandbox: dict[str, Any], mcp_servers: dict[str, Any]) -> None:
        self._bin = python.parent
        self._directory = directory
        self._port = free_port()
        self._sandbox = sandbox
        self._mcp_servers = mcp_servers
        self.model = Model()
        self._token = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("HUTCH_", "PYTHON"))},
            "ASTRBOT_ROOT": str(directory),
            "NO_PROXY": "127.0.0.1",
        }

    def start(self, version: str) -> None:
        self._configure(version)
        command = [str(self._bin / "astrbot"), "run", "-p", str(self._port)]
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=self._directory, env=self._environ, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        end = time.monotonic() + START_SECONDS
        while not self._logged_in():
            assert self._process.poll() is None, self.log()
            assert time.monotonic() < end, self.log()
            time.sleep(0.5)

    def end(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self.model.close()

    def log(self) -> str:
        return (self._directory / "log").read_text(errors="replace")[-8000:]

    def run_tools(self, session: str, *calls: tuple[str, dict[str, Any]]) -> list[str]:
        """Send a message to the bot, whose model calls these tools; return what each of them returned."""
        self.model.results = []
        body = {"session_id": session, "message": json.dumps(calls), "enable_streaming": False}
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=CHAT_SECONDS)
        headers = {"content-type": "application/json", "authorization": f"Bearer {self._token}"}
        connection.request("POST", "/api/chat/send", json.dumps(body), headers)
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        report = b""
        while b'"type": "end"' not in report and b'"type":"end"' not in report:
            piece = answer.readline()
            if not piece:
                break
            report += piece
        connection.close()
        assert len(self.model.results) == len(calls), (report[-3000:], self.log())
        return self.model.results

    def reconnect_mcp_server(self, name: str) -> None:
        """Switch an MCP server on again, as an operator does in the dashboard."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=CHAT_SECONDS)
        headers = {"content-type": "application/json", "authorization": f"Bearer {self._token}"}
        connection.request("POST", "/api/tools/mcp/update", json.dumps({"name": name, "active": True}), headers)
        answer = json.loads(connection.getresponse().read())
        connection.close()
        assert answer["status"] == "ok", (answer, self.log())

    def _configure(self, version: str) -> None:
        """Make the files of `astrbot init`, which would also download the dashboard's pages, which nobody needs."""
        (self._directory / ".astrbot").touch()
        for name in ("config", "plugins", "temp", "skills/greet", "dist/assets"):
            (self._directory / "data" / name).mkdir(parents=True, exist_ok=True)
        (self._directory / "data/skills/greet/SKILL.md").write_text(
            "---\nname: greet\ndescription: Greets\n---\nSay hello.\n"
        )
        (self._directory / "data/dist/assets/version").write_text(f"v{version}")
        (self._directory / "data/dist/index.html").write_text("")
        code = "import json; from astrbot.core.config.default import DEFAULT_CONFIG; print(json.dumps(DEFAULT_CONFIG))"
        shown = subprocess.run(
            [str(self._bin / "python"), "-c", code], capture_output=True, text=True, check=True, cwd=self._directory,
            env=self._environ,
        )  # fmt: skip
        config = json.loads(shown.stdout.splitlines()[-1])
        config["dashboard"] |= {"host": "127.0.0.1", "port": self._port}
        config["provider_sources"] = [{
            "id": "fake_src", "provider": "openai", "type": "openai_chat_completion",
            "provider_type": "chat_completion", "enable": True, "key": ["sk-x"], "api_base": self.model.url,
            "timeout": 60, "proxy": "", "custom_headers": {},
        }]  # fmt: skip
        config["provider"] = [{
            "id": "fake/fake", "provider_source_id": "fake_src", "model": "fake", "modalities": ["text", "tool_use"],
            "custom_extra_body": {}, "enable": True,
        }]  # fmt: skip
        config["provider_settings"] |= {"computer_use_runtime": "sandbox"}
        config["provider_settings"]["sandbox"] |= self._sandbox
        (self._directory / "data/mcp_server.json").write_text(json.dumps({"mcpServers": self._mcp_servers}))
        (self._directory / "data/cmd_config.json").write_text(json.dumps(config), encoding="utf-8-sig")

    def _logged_in(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        password = "77b90590a8945a7d36c963981a307dc9"  # The digest of the default password, as the page sends it.
        try:
            body = json.dumps({"username": "astrbot", "password": password})
            connection.request("POST", "/api/auth/login", body, {"content-type": "application/json"})
            self._token = json.loads(connection.getresponse().read())["data"]["token"]
        except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException):
            return False
        finally:
            connection.close()
        return True
