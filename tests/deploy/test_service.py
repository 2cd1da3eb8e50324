"""deploy/hutch.service and deploy/hutch.toml: what they say is true, and with no more than that boxes are made."""

import configparser
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hutch.config import Config
from tests.conftest import remove
from tests.server.serving import TIMEOUT_SECONDS, Client, until

DEPLOY = Path(__file__).parents[2] / "deploy"
UNIT = DEPLOY / "hutch.service"


def unit() -> configparser.SectionProxy:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(UNIT)
    return parser["Service"]


def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    """`systemd-analyze verify` has nothing to say, once the program is where the unit looks for it."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    text = UNIT.read_text().replace("/opt/hutch/bin/hutch", "/bin/true")
    (tmp_path / "hutch.service").write_text(text)
    said = subprocess.run([analyze, "verify", str(tmp_path / "hutch.service")], capture_output=True, text=True)
    assert (said.returncode, said.stdout, said.stderr) == (0, "", "")


def test_the_example_is_a_configuration() -> None:
    config = Config.load(DEPLOY / "hutch.toml", environ={}, cwd=DEPLOY)
    assert (config.server.port, config.mount_roots, config.pool) == (7300, (), {"default": 4})


class Manager:
    """What systemd is to the service: its environment, its capabilities, and a listener for its notifications."""

    def __init__(self, top: Path) -> None:
        self.state, self.run = top / "s", top / "r"
        self._told = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._told.bind(str(top / "notify"))
        self._told.setblocking(False)
        self._environ = {
            "PATH": os.environ["PATH"], "NOTIFY_SOCKET": str(top / "notify"), "HUTCH_STATE_DIR": str(self.state),
            "HUTCH_RUN_DIR": str(self.run), "HUTCH_SERVER_PORT": "0", "HUTCH_ORPHAN_GRACE_SEC": "60",
        }  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """ExecStart, with no more capabilities than the unit grants; returns at READY=1."""
        service = unit()
        granted = [f"+{name.removeprefix('CAP_').lower()}" for name in service["CapabilityBoundingSet"].split()]
        assert service["NoNewPrivileges"] == "yes"
        program, *arguments = service["ExecStart"].replace("/etc/hutch", str(DEPLOY)).split()
        assert program.endswith("/hutch")
        confined = ["setpriv", "--bounding-set", ",".join(("-all", *granted)), "--no-new-privs"]
        command = [*confined, sys.executable, "-m", "hutch.cli.main", *arguments]
        process = self._process = subprocess.Popen(command, env=self._environ, stdin=subprocess.DEVNULL)
        until(lambda: process.poll() is not None or self._heard(b"READY=1"))
        assert process.poll() is None, "it ended before it was ready"

    def _heard(self, word: bytes) -> bool:
        try:
            return word in self._told.recv(4096)
        except BlockingIOError:
            return False

    def stop(self) -> None:
        """As KillMode=process has it: a signal to the server alone."""
        assert self._process is not None
        assert unit()["KillMode"] == "process"
        self._process.send_signal(signal.SIGTERM)
        until(lambda: self._heard(b"STOPPING=1"))
        assert self._process.wait(TIMEOUT_SECONDS) == 0

    def client(self) -> Client:
        return Client(str(self.run / "server.sock"))

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            for box in self.client().good("GET", "/v1/boxes")["boxes"]:
                self.client().call("DELETE", f"/v1/boxes/{box['id']}?force=true")
            self.stop()
        self._told.close()


@contextmanager
def manager(top: Path) -> Iterator[Manager]:
    made = Manager(top)
    try:
        yield made
    finally:
        made.close()
        remove(top)


def test_the_units_rights_are_enough(rootless: bool) -> None:
    """Boxes with limits, with a network and with a kept disk are made under the unit's capabilities; systemd is
    notified when the server is ready and when it ends; boxes outlive a restart."""
    if rootless:
        pytest.skip("the unit is for root")
    top = Path("/tmp") / f"h-unit-{os.getpid()}"
    top.mkdir(mode=0o755)
    with manager(top) as service:
        service.start()
        client = service.client()
        made = client.good("POST", "/v1/boxes", {})
        box = f"/v1/boxes/{made['id']}"
        assert client.good("POST", f"{box}/exec", {"command": "echo $((6*7))"})["stdout"] == "42\n"
        kinds: list[dict[str, str]] = [{"profile": "code"}, {"retention": "persistent"}]
        (native,) = client.good("GET", "/v1/providers?name=native")["providers"]
        if "on" in native["networks"]:  # not every machine lets them out
            kinds.append({"profile": "network_basic"})
        for spec in kinds:
            with client.box(**spec) as other:
                assert client.good("POST", f"{other}/exec", {"command": "id -u"})["exit_code"] == 0
        assert client.good("POST", f"{box}/exec", {"command": "id -u", "user": "root"})["stdout"] == "0\n"
        job = client.good("POST", f"{box}/jobs", {"command": "read line; echo $line"})["id"]
        service.stop()
        service.start()
        client = service.client()
        client.good("POST", f"{box}/jobs/{job}/stdin?close=true", b"kept\n")
        assert client.good("POST", f"{box}/jobs/{job}/wait", {})["stdout"] == "kept\n"
