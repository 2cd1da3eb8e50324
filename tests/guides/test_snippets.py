"""Every command and snippet of README and of every guide is run, on real boxes.

A new guide joins by itself: its Python blocks are run as one program, its commands are typed into a shell one after
the other, its TOML is loaded as configuration. What a command needs goes into `PREPARED`. What can only be shown goes
into `ONLY_SHOWN`, with the reason and the file that does the same for real. A guide that another test of this folder
names (`docs/guides/NAME.md`) has its Python run there.
"""

import ast
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hutch.cli.commands import GROUPS
from hutch.cli.parsers import parser_of
from hutch.config import Config
from tests.conftest import remove
from tests.guides.snippets import GUIDES, ROOT, SHELL, Block, blocks, commands, documents, words

pytestmark = pytest.mark.slow

TIMEOUT_SECONDS = 120.0
IMAGES, ENGINES = "tests/images/test_pull.py", "tests/providers/test_moving.py"
ONLY_SHOWN = {
    "make demo": ("it is Hutch's own tour, which CI has no use for", "examples/demo.py"),
    "make test": ("it is what runs this test", "Makefile"),
    "hutch box exec -t dev bash": ("it waits for somebody who types", "tests/cli/test_terminals.py"),
    "hutch run --image oci:": ("a registry on the internet", IMAGES),
    "hutch image pull": ("a registry on the internet", IMAGES),
    "hutch image import app.tar": ("an archive of one's own", "tests/images/test_archives.py"),
    "hutch image base": ("a mirror on the internet", "tests/e2e/test_e2b_templates.py"),
    "hutch image build": ("a registry on the internet", "tests/cli/test_image.py"),
    "hutch mcp-server call time": ("a package from the internet", "tests/mcp/hosting/test_real_servers.py"),
    "hutch box import dev.hutch --provider docker": ("another engine", ENGINES),
    "claude mcp add": ("another program's command", "tests/guides/test_mcp.py"),
    "pip install": ("an index on the internet", "tests/deploy/test_wheel.py"),
    "key=$(cat": ("the walkthrough has a server of its own", "tests/guides/test_server.py"),
    "curl -s": ("the walkthrough has a server of its own", "tests/guides/test_server.py"),
    "hutch receipts list q45u…": ("the box of an example", "tests/cli/test_receipts.py"),
    "python3 -m venv /opt/hutch": ("it changes the machine", "tests/deploy/test_service.py"),
    "install -D -m 600": ("it changes the machine", "tests/deploy/test_service.py"),
    "systemctl enable": ("it changes the machine", "tests/deploy/test_service.py"),
    "docker build": ("a daemon and a base image", "tests/deploy/test_container.py"),
    "docker run": ("a daemon and a base image", "tests/deploy/test_container.py"),
    "docker exec": ("a daemon and a base image", "tests/deploy/test_container.py"),
    "hutch kernel prepare": ("packages from the internet", "tests/cli/test_code.py"),
    "hutch dashboard": ("it opens a browser, and needs a server", "tests/dashboard/test_sign_in.py"),
    "hutch serve &": ("programs of another SDK have a server of their own", "tests/e2e/test_e2b_programs.py"),
    "export E2B_": ("programs of another SDK have a server of their own", "tests/e2e/test_e2b_programs.py"),
    "python program.py": ("programs of another SDK have a server of their own", "tests/e2e/test_e2b_programs.py"),
    "hutch serve --port 7443": ("a name that resolves to this machine", "tests/e2e/test_e2b_tls.py"),
    "helm install": ("a cluster", "tests/deploy/test_kubernetes.py"),
    "hutch app new react": ("packages from the internet", "tests/server/test_apps.py"),
    "hutch box url": ("it needs a server beside it", "tests/guides/test_previews.py"),
    "hutch box forward": ("it goes on until it is interrupted", "tests/cli/test_ports.py"),
    "hutch conformance bubblewrap": ("a program that not every machine has", "tests/conformance/test_sample.py"),
}
"""Beginnings of commands that this test does not run: why, and the file that runs the same."""
EXCERPTS = {
    ("writing-a-provider", "python"): ("excerpts with … of a provider that runs", "tests/conformance/test_sample.py"),
    ("mcp", "python"): ("a package from the internet", "tests/mcp/hosting/test_real_servers.py"),
    ("writing-a-provider", "toml"): ("a pyproject.toml", "tests/conformance/test_sample.py"),
}
"""Whole blocks that this test does not run, by guide and language."""
SERVES = {"hutch serve": "listening on"}
"""Commands that run until they are ended, and what they say when they are ready."""
PREPARED = {
    "hutch run --mount ./data": "mkdir -p data && echo line > data/log.csv",
    "hutch box exec --detach --name build dev": "hutch box exec dev -- sh -c 'echo \"all: ; echo built\" > Makefile'",
    "hutch box cp dev:results": "hutch box exec dev -- mkdir results",
    "hutch skill preview ./pdf-tools": "cp -r {fixtures}/pdf-tools {fixtures}/summarize .",
    "hutch skill bind pipeline-7": "hutch skill install ./summarize",
    "hutch mcp --box NAME": "hutch box create --name NAME",
    "hutch mcp-server add files": "mkdir -p ~/notes",
    "hutch mcp-server add --env API_TOKEN": "mkdir -p ~/code/mine/.venv/bin && touch ~/code/mine/server.py",
    "hutch mcp-server add --secret-file": "echo secret > ~/.hub-key",
    "hutch mcp-server import": 'echo \'{"mcpServers": {"their": {"command": "uvx", "args": ["a"]}}}\' > ~/.claude.json',
    "hutch box export dev": "hutch box create --name dev",
    "hutch backup": "hutch volume create any",
    "hutch receipts export > /backup": "hutch box create && mkdir -p backup",
}
"""What must be there before a command; run in the same place."""
REPLACED = {"/backup/": "backup/"}
"""Places of an example that a test must not write to."""
SKILL = "---\nname: {name}\ndescription: an example\n---\n\n# Do it\n"


class Home:
    """The place of somebody who follows a guide: a home, a state directory, and a directory to type in."""

    def __init__(self) -> None:
        self.top = Path(f"/tmp/hg-{os.getpid()}-{os.urandom(2).hex()}")
        self.work = self.top / "work"
        self.work.mkdir(parents=True)
        for name in ("pdf-tools", "summarize"):
            (self.top / "fixtures" / name).mkdir(parents=True)
            (self.top / "fixtures" / name / "SKILL.md").write_text(SKILL.format(name=name))
        self.environ = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(self.top), "API_TOKEN": "t",
            "HUTCH_STATE_DIR": str(self.top / "s"), "HUTCH_RUN_DIR": str(self.top / "r"), "LANG": "C.UTF-8",
        }  # fmt: skip

    def type(self, command: str) -> str:
        done = subprocess.run(
            ["bash", "-ec", command], cwd=self.work, env=self.environ, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=TIMEOUT_SECONDS,
        )  # fmt: skip
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    def serve(self, command: str, ready: str) -> None:
        """Start a command that keeps running, wait until it is ready, and end it."""
        log = self.top / "log"
        with log.open("wb") as said:
            process = subprocess.Popen(
                [*words(command), "--port", "0"], cwd=self.work, env=self.environ, stdin=subprocess.DEVNULL,
                stdout=said, stderr=said,
            )  # fmt: skip
        try:
            end = time.monotonic() + TIMEOUT_SECONDS
            while ready not in log.read_text():
                assert process.poll() is None and time.monotonic() < end, log.read_text()
                time.sleep(0.05)
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_SECONDS) == 0, log.read_text()


@contextmanager
def home() -> Iterator[Home]:
    made = Home()
    try:
        yield made
    finally:
        try:
            if (made.top / "s").exists():
                made.type("hutch box destroy --all --force")
        finally:
            remove(made.top)


def _begins(command: str, table: dict[str, object] | dict[str, str]) -> str:
    return next((each for each in table if command.startswith(each)), "")


@pytest.mark.parametrize("document", documents(), ids=lambda path: path.stem)
def test_every_command_runs(document: Path) -> None:
    """The commands of one document, in their order, in one place; each ends well and answers what is shown."""
    found = [each for block in blocks(document) if block.language in SHELL for each in commands(block)]
    with home() as place:
        for command in found:
            if _begins(command.typed, {**ONLY_SHOWN}):
                continue
            if needed := _begins(command.typed, PREPARED):
                place.type(PREPARED[needed].replace("{fixtures}", str(place.top / "fixtures")))
            if ready := SERVES.get(" ".join(words(command.typed))):
                place.serve(command.typed, ready)
                continue
            typed = command.typed
            for old, new in REPLACED.items():
                typed = typed.replace(old, new)
            said = place.type(typed)
            if re.fullmatch(r"\w{1,10}\n", command.answer):
                assert said == command.answer, (command.typed, said)


def _has_own_test(document: Path) -> bool:
    """Whether another test of this folder names the guide, and so runs its programs with what they need."""
    others = [path for path in Path(__file__).parent.glob("test_*.py") if path.name != Path(__file__).name]
    return any(f"guides/{document.name}" in path.read_text() for path in others)


@pytest.mark.parametrize("document", documents(), ids=lambda path: path.stem)
async def test_every_python_block_runs(document: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python blocks of one document are one program, run as they stand."""
    found = [block.text for block in blocks(document) if block.language == "python"]
    if not found or _has_own_test(document) or (document.stem, "python") in EXCERPTS:
        return
    with home() as place:
        monkeypatch.chdir(place.work)
        for name in ("HUTCH_STATE_DIR", "HUTCH_RUN_DIR"):
            monkeypatch.setenv(name, place.environ[name])
        compiled = compile("\n".join(found), document.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        waiting = eval(compiled, {})
        if waiting is not None:
            await waiting


@pytest.mark.parametrize("document", documents(), ids=lambda path: path.stem)
def test_every_configuration_loads(document: Path, tmp_path: Path) -> None:
    for number, block in enumerate(block for block in blocks(document) if block.language == "toml"):
        if (document.stem, "toml") in EXCERPTS:
            continue
        file = tmp_path / f"{number}.toml"
        file.write_text(block.text)
        Config.load(file)


def _all_commands() -> list[tuple[Block, str]]:
    every = [block for document in documents() for block in blocks(document) if block.language in SHELL]
    return [(block, each.typed) for block in every for each in commands(block)]


def _own_part(given: list[str]) -> list[str]:
    """The words of Hutch's own command in a line with pipes and redirections."""
    part: list[str] = []
    for word in [*given, "|"]:
        if word not in ("|", ">", "&&", "&"):
            part.append(word)
        elif part[:1] == ["hutch"]:
            return part
        else:
            part = []
    return []


def test_every_command_of_hutch_parses() -> None:
    """Also those that are only shown: their options are options."""
    for block, typed in _all_commands():
        given = _own_part(words(typed))
        if given[:1] != ["hutch"]:
            continue
        name, rest = given[1], given[2:]
        _, parser = parser_of(name, rest[0]) if name in GROUPS else parser_of(name)
        try:
            parser.parse_args(rest[1:] if name in GROUPS else rest)
        except SystemExit:
            pytest.fail(f"{block.document}: {typed}")


def test_nothing_is_excused_that_is_not_there() -> None:
    """Each excuse names a command of some guide, and a file that does the same for real."""
    typed = [command for _, command in _all_commands()]
    for beginning, (_, instead) in ONLY_SHOWN.items():
        assert any(command.startswith(beginning) for command in typed), beginning
        assert (ROOT / instead).exists(), instead
    for beginning in PREPARED:
        assert any(command.startswith(beginning) for command in typed), beginning
    for (guide, _), (_, instead) in EXCERPTS.items():
        assert (GUIDES / f"{guide}.md").exists() and (ROOT / instead).exists()
