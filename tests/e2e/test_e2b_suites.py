"""E2B's own public test suites, unmodified, against `hutch serve` (S13).

They are no part of this project. HUTCH_TEST_E2B_SUITES names a directory with checkouts of the repositories e2b-dev/E2B
and e2b-dev/code-interpreter, as `E2B` and `code-interpreter`, each at the release to test. HUTCH_TEST_E2B_STATE may
name a state directory whose images are used, so that a second run makes no Debian.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hutch.images import base
from tests import proofs
from tests.cli.cli_process import hutch
from tests.e2e.e2b_sdk import E2B
from tests.e2e.environments import python_of
from tests.server.serving import Server, serving

VARIABLE = "HUTCH_TEST_E2B_SUITES"
MADE = "HUTCH_TEST_E2B_STATE"
DOMAIN = "hutch.localhost"
SECONDS = 1800.0
PYTEST = ("pytest<10", "pytest-asyncio", "pytest-dotenv", "pytest-timeout", "pytest-xdist", "matplotlib")
PNPM = ["npm", "exec", "--yes", "--package=pnpm@10", "--", "pnpm", "--config.manage-package-manager-versions=false"]
REASONS = {
    "builds a template": r"POST /v3/templates is not a part",
    "rules of the network for single addresses": r"network\.(allow|deny)_out |(?i:update_?network.applies)",
    "a template of E2B's cloud": r"template 'httpbin' not found",
    "the internet": r"internet.access.(default|enabled)",
    "kernels of R and Java": r"^[^|]*(\b|_)(java|r)(\b|_)[^|]*\|.*(400|no kernel speaks)",
    "services inside E2B's machines": r"restart.after.(code.interpreter|jupyter).kill",
}
"""Why a test may fail: what this server says that it refuses, and what a test machine does not have."""
RESOLVE = {
    "sitecustomize.py": """
import socket
resolve = socket.getaddrinfo
def to_this_machine(host, *rest, **more):
    name = host.decode() if isinstance(host, bytes) else host
    return resolve("127.0.0.1" if name and name.endswith(".localhost") else host, *rest, **more)
socket.getaddrinfo = to_this_machine
""",
    "resolve.cjs": """
const dns = require('dns'), { lookup } = dns
dns.lookup = (host, ...rest) => lookup(host.endsWith('.localhost') ? '127.0.0.1' : host, ...rest)
""",
}
"""In place of a wildcard entry of one's DNS, for Python and for Node."""


@dataclass(frozen=True)
class Outcome:
    """How one test ended."""

    file: str
    failure: str = ""


Outcomes = dict[str, Outcome]


@dataclass(frozen=True)
class Suite:
    """One suite: its repository, the folder in it, and the package that it tests."""

    name: str
    repository: str
    folder: str
    package: str
    options: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    """Packages whose release the one under test depends on, though it does not say so."""

    @property
    def checkout(self) -> Path:
        return Path(os.environ.get(VARIABLE, "")) / self.repository

    @property
    def place(self) -> Path:
        return self.checkout / self.folder

    @property
    def version(self) -> str:
        """The release that the checkout is at."""
        if (manifest := self.place / "package.json").exists():
            return str(json.loads(manifest.read_text())["version"])
        found = re.search(r'^version = "(.+)"$', (self.place / "pyproject.toml").read_text(), re.MULTILINE)
        assert found is not None
        return found[1]

    def run(self, environment: dict[str, str], report: Path, files: list[str], *, online: bool = True) -> Outcomes:
        """Run the tests of these files, or of all; without a network but loopback if not `online`."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("E2B_", "HUTCH_", "PYTHON"))}
        # Without a network the tests only wait, so more of them run at once.
        command = [*self._command(report, workers=2 if online else 8), *files]
        if not online:
            command = ["unshare", "--net", "sh", "-c", 'ip link set lo up; exec "$@"', "sh", *command]
        report.unlink(missing_ok=True)
        done = subprocess.run(
            command, cwd=self.place, env={**kept, **environment}, capture_output=True, text=True, timeout=SECONDS
        )
        assert report.exists(), done.stdout[-3000:] + done.stderr[-3000:]
        return self._outcomes(report)

    def _command(self, report: Path, workers: int) -> list[str]:
        if "js" in self.name:
            vitest = ["node_modules/.bin/vitest", "run", f"--maxWorkers={workers}", *self.options]
            return [*vitest, "--reporter=json", f"--outputFile={report}"]
        pytest = python_of(f"{self.package}=={self.version}", *self.beside, *PYTEST).parent / "pytest"
        return [str(pytest), "-n", str(workers), "--timeout=120", "-o", "junit_family=xunit1", f"--junitxml={report}"]

    def _outcomes(self, report: Path) -> Outcomes:
        if "js" not in self.name:
            return dict(_of_junit(report))
        return dict(_of_vitest(report, self.place))

    def install(self) -> None:
        """Install what the tests need that are written in JavaScript."""
        if "js" not in self.name or (self.place / "node_modules").exists():
            return
        options = ["--frozen-lockfile", "--ignore-scripts", "--config.engine-strict=false"]
        wanted = json.loads((self.place / "package.json").read_text())["name"]
        done = subprocess.run(
            [*PNPM, "install", "--filter", wanted, *options], cwd=self.checkout, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def _of_junit(report: Path) -> Iterator[tuple[str, Outcome]]:
    for case in ElementTree.parse(report).iter("testcase"):
        failures = [case.find("failure"), case.find("error")]
        said = [
            each.get("message", "") + (each.text or "")[-2000:] or "failed" for each in failures if each is not None
        ]
        skipped = case.find("skipped") is not None
        if not skipped:
            yield f"{case.get('classname')}::{case.get('name')}", Outcome(case.get("file", ""), "".join(said))


def _of_vitest(report: Path, place: Path) -> Iterator[tuple[str, Outcome]]:
    for file in json.loads(report.read_text())["testResults"]:
        name = str(Path(file["name"]).relative_to(place))
        if file["status"] == "failed" and not file["assertionResults"]:
            yield name, Outcome(name, file["message"] or "the file does not load")
        for each in file["assertionResults"]:
            failure = "\n".join(each["failureMessages"]) or "failed" if each["status"] == "failed" else ""
            if each["status"] in ("passed", "failed"):
                yield f"{name} {each['fullName']}", Outcome(name, failure)


SUITES = (
    Suite("python", "E2B", "packages/python-sdk", "e2b"),
    Suite(
        "js", "E2B", "packages/js-sdk", "e2b", ("--project=unit", "--project=connectionConfig", "--project=template")
    ),
    Suite("interpreter-python", "code-interpreter", "python", "e2b-code-interpreter", beside=("e2b==2.45.1",)),
    Suite("interpreter-js", "code-interpreter", "js", "@e2b/code-interpreter"),
)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server with the images of both templates."""
    if not os.environ.get(VARIABLE):
        pytest.skip(f"needs checkouts of E2B's suites: set {VARIABLE}")
    if os.geteuid() != 0 or shutil.which("debootstrap", path="/usr/sbin:/usr/bin") is None:
        pytest.skip("debootstrap, run as root, makes the Debian")
    with serving() as server:
        if made := os.environ.get(MADE):
            shutil.rmtree(server.state / "images", ignore_errors=True)
            (server.state / "images").symlink_to(Path(made) / "images")
        environment = {"HUTCH_STATE_DIR": str(server.state), "HUTCH_RUN_DIR": str(server.run)}
        debian = f"{base.INTERPRETER}-debian:{base.this_distribution().release}"
        for options in (("--interpreter",), ("--from", debian)):
            done = hutch("image", "base", *options, env=environment, timeout=SECONDS)
            assert done.returncode == 0, done.stderr
        yield server


def restart(server: Server, *options: str) -> None:
    server.end()
    (server.state / "server.json").unlink(missing_ok=True)
    server.start(*options)


def serve_plain(server: Server) -> dict[str, str]:
    """Start the server once more, as it is by default. Return what clients have to know."""
    restart(server)
    connection = E2B(server)
    return {**connection.environment, "E2B_VOLUME_API_URL": connection.url}


def serve_tls(server: Server) -> dict[str, str]:
    """Start the server once more, under a wildcard name over TLS. Return what clients have to know."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    restart(server, "--port", port, "--tls-wildcard", DOMAIN)
    key = E2B(server).key
    authority = str(server.state / "tls" / "authority.pem")
    for name, text in RESOLVE.items():
        (server.top / name).write_text(text)
    return {
        "E2B_API_KEY": key, "E2B_DOMAIN": f"{DOMAIN}:{port}",
        "SSL_CERT_FILE": authority, "NODE_EXTRA_CA_CERTS": authority, "PYTHONPATH": str(server.top),
        "NODE_OPTIONS": f"--require={server.top / 'resolve.cjs'}",
    }  # fmt: skip


def failure_of(name: str, outcomes: Outcomes) -> str:
    return outcomes[name].failure if name in outcomes else "it did not run"


def reason_of(name: str, failure: str) -> str:
    """Return why a test failed, if that is one of the known reasons; else nothing."""
    text = f"{name} | {failure}"
    return next((reason for reason, pattern in REASONS.items() if re.search(pattern, text, re.DOTALL)), "")


@pytest.mark.proof
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.name)
def test_suites_of_e2b(server: Server, suite: Suite, tmp_path: Path) -> None:
    """(S13) What E2B's own tests ask of a server works, but for what is refused, and what a test machine lacks.

    A test is live if it fails without a server. A sandbox's host name needs TLS and DNS, so the live tests that fail on
    it run once more under a name that this machine resolves.
    """
    suite.install()
    report = tmp_path / "report"
    offline = suite.run({"E2B_API_KEY": "e2b_" + "0" * 40}, report, [], online=False)
    live = {name for name, outcome in offline.items() if outcome.failure}
    outcomes = suite.run(serve_plain(server), report, sorted({offline[name].file for name in live}))
    failed = {name: failure for name in sorted(live) if (failure := failure_of(name, outcomes))}
    reasons = {name: reason_of(name, failure) for name, failure in failed.items()}
    again = sorted({offline[name].file for name, reason in reasons.items() if not reason})
    over_tls: Outcomes = suite.run(serve_tls(server), report, again) if again else {}
    by_name = {name for name, reason in reasons.items() if not reason and not failure_of(name, over_tls)}
    unexplained = {name: failed[name][-1000:] for name in failed.keys() - by_name if not reasons[name]}
    assert not unexplained, json.dumps(unexplained, indent=2)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=suite.checkout, capture_output=True, text=True)
    proofs.write(
        f"e2b-suite-{suite.name}", suite=f"{suite.package} {suite.version}", suite_commit=commit.stdout.strip(),
        tests=len(offline), need_no_server=len(offline) - len(live), live=len(live),
        passed=len(live) - len(failed) + len(by_name), passed_by_host_name=len(by_name),
        failed=Counter(reason for reason in reasons.values() if reason),
    )  # fmt: skip
