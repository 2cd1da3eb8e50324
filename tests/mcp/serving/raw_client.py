"""`hutch mcp` spoken to line by line, so that a test can also say what no SDK would."""

import json
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.mcp.serving.clients import HUTCH, environ, facts_of
from tests.server.serving import TIMEOUT_SECONDS


class Raw:
    """`with Raw(top) as raw: raw.handshake()`; killed at the end if it is still there."""

    def __init__(self, top: Path, *words: str, cwd: Path | None = None, **env: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *HUTCH, *words], env=environ(top, **env), cwd=cwd or top, bufsize=0,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self._number = 0

    def __enter__(self) -> "Raw":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(TIMEOUT_SECONDS)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()

    def say(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + b"\n")

    def hear(self) -> dict[str, Any]:
        """The next line; each must be one JSON object, or something has written between the messages."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.endswith(b"\n"), (line, self.process.stderr and self.process.stderr.read())
        said: dict[str, Any] = json.loads(line)
        return said

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """The answer to a request; notifications in between are passed over."""
        self._number += 1
        self.say(json.dumps({"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}).encode())
        while (said := self.hear()).get("id") != self._number:
            assert "id" not in said or said["id"] is None, said
        return said

    def handshake(self, name: str = "raw") -> dict[str, Any]:
        info = {"name": name, "version": "1"}
        reply = self.ask("initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo=info)
        self.say(b'{"jsonrpc": "2.0", "method": "notifications/initialized"}')
        result: dict[str, Any] = reply["result"]
        return result

    def run(self, command: str) -> dict[str, Any]:
        answer = self.ask("tools/call", name="exec", arguments={"command": command})
        return facts_of(answer["result"])

    def close(self) -> int:
        """End its standard input; the exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(TIMEOUT_SECONDS)
