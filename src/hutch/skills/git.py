"""Skills out of git repositories: one commit, fetched shallow, read object by object. Nothing of it is ever run.

There is no checkout: its filters, links, submodules and hooks are how repositories attack those who clone them. Objects
are read by their ids, so a link or a submodule is seen as what it is and refused.
"""

import os
import re
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from hutch.errors import FileTooLarge, HutchError, Invalid, NotFound, Refused, Timeout, Unavailable
from hutch.skills.content import LEFT_OUT, MOST_BYTES, Budget, write_file

FETCH_SECONDS = 120.0
READ_SECONDS = 60.0
_MOST_BLOCKS = 1 << 19
"""Of 512 bytes or more, for any file that git writes: `ulimit -f` has the shell's own idea of a block."""
_MOST_TOLD = MOST_BYTES + (16 << 20)
"""Bytes that git may say: a package with its headers, or the list of a large repository. A few small trees that hold
each other many times are a list without end."""
_REF = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/+-]{0,199}")
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_SCP = re.compile(r"[A-Za-z0-9._-]+@[A-Za-z0-9.-]+:[^:]+")

_SETTINGS = {
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "protocol.allow": "never",
    "submodule.recurse": "false",
    "transfer.fsckObjects": "true",
    "fetch.unpackLimit": "1",
    "gc.auto": "0",
    "http.followRedirects": "initial",
}
_PASSED_ON = ("PATH", "HOME", "SSH_AUTH_SOCK", "SSL_CERT_FILE", "https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY")


class _Blob(NamedTuple):
    name: str
    id: str
    size: int
    executable: bool


def is_url(text: str) -> bool:
    return text.startswith(("https://", "git+https://", "ssh://", "git+ssh://")) or bool(_SCP.fullmatch(text))


def take(url: str, ref: str, repository: Path, tree: Path, *, local: bool) -> str:
    """The files of one commit into `tree`; returns the commit. `local`: the url is a directory of this machine."""
    check(url, ref, local=local)
    protocols = ("file",) if local else ("https", "ssh")
    address = f"file://{url}" if local else url
    _git(["init", "--bare", "--quiet", "--template=", str(repository)], repository.parent, protocols, READ_SECONDS)
    fetch = ["fetch", "--quiet", "--depth=1", "--no-tags", "--no-recurse-submodules", "--no-write-commit-graph"]
    _git([*fetch, "--", address, ref or "HEAD"], repository, protocols, FETCH_SECONDS)
    commit = _git(["rev-parse", "--verify", "FETCH_HEAD^{commit}"], repository, (), READ_SECONDS).decode().strip()
    if not _COMMIT.fullmatch(commit):
        raise Invalid(f"git named no commit for {ref or 'HEAD'} of {url}")
    blobs = list(_listed(repository, commit))
    for blob, data in zip(blobs, _read(repository, blobs), strict=True):
        write_file(os.path.join(tree, blob.name), data, executable=blob.executable)
    return commit


def check(url: str, ref: str, *, local: bool) -> None:
    if ref and not _REF.fullmatch(ref):
        raise Invalid(f"{ref[:200]!r} is no name of a branch, tag or commit", details={"field": "ref"})
    if local:
        if not os.path.isdir(url):
            raise NotFound(f"there is no directory {url}", remedy="name the top of a repository")
        return
    if not is_url(url) or not url.isprintable() or " " in url:
        raise Invalid(f"{url[:200]!r} is no git URL", remedy="https://HOST/PATH, or git@HOST:PATH")
    if re.match(r"https://[^/]*:[^/]*@", url):
        raise Refused("the URL holds a password, and it would be kept", remedy="use a credential helper or ssh")


def _listed(repository: Path, commit: str) -> Iterator[_Blob]:
    """Every file of the commit, within the limits, before a byte of it is read."""
    budget = Budget()
    listing = _git(["ls-tree", "-r", "-z", "-l", "--full-tree", commit], repository, (), READ_SECONDS)
    for row in listing.split(b"\0"):
        if not row:
            continue
        facts, _, raw = row.partition(b"\t")
        mode, kind, blob, size = facts.decode("ascii").split()
        try:
            name = raw.decode()
        except UnicodeDecodeError as error:
            raise Refused(f"{raw[:200]!r} is not UTF-8") from error
        if LEFT_OUT.intersection(name.split("/")):
            continue
        if kind == "commit":
            continue  # a submodule: another repository, which was not asked for
        if mode == "120000":
            raise Refused(f"{name} is a symbolic link, and a skill holds only files", remedy="put a copy in its place")
        budget.add_file(name, int(size))
        yield _Blob(name, blob, int(size), mode == "100755")


def _read(repository: Path, blobs: list[_Blob]) -> Iterator[bytes]:
    asked = "".join(f"{blob.id}\n" for blob in blobs).encode()
    answer = _git(["cat-file", "--batch"], repository, (), READ_SECONDS, asked)
    at = 0
    for blob in blobs:
        end = answer.index(b"\n", at)
        told, kind, size = answer[at:end].decode("ascii").split()
        if (told, kind, int(size)) != (blob.id, "blob", blob.size):
            raise Invalid(f"git has another object than it listed for {blob.name}")
        yield answer[end + 1 : end + 1 + blob.size]
        at = end + 1 + blob.size + 1


def command(words: list[str]) -> list[str]:
    """A git that reads no configuration but ours and cannot fill the disk. The same words work in a box."""
    settings = [word for name, value in _SETTINGS.items() for word in ("-c", f"{name}={value}")]
    return ["sh", "-c", f'ulimit -f {_MOST_BLOCKS} && exec "$@"', "sh", "git", *settings, *words]


def environment(protocols: tuple[str, ...]) -> dict[str, str]:
    return {
        "GIT_ALLOW_PROTOCOL": ":".join(protocols) or "none",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "/bin/false",
        "GIT_LFS_SKIP_SMUDGE": "1",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_SSH_COMMAND": "ssh -o BatchMode=yes -o ConnectTimeout=20",
        "LC_ALL": "C",
    }


def _git(words: list[str], where: Path, protocols: tuple[str, ...], seconds: float, given: bytes = b"") -> bytes:
    passed = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    with tempfile.TemporaryFile() as asked, tempfile.TemporaryFile() as complaint:
        asked.write(given)
        asked.seek(0)
        try:
            running = subprocess.Popen(
                command(words), cwd=where, env=passed | environment(protocols), stdin=asked, stdout=subprocess.PIPE,
                stderr=complaint, start_new_session=True,
            )  # fmt: skip
        except FileNotFoundError as error:
            raise Unavailable("there is no shell on this machine", retryable=False, remedy="install git") from error
        told = _heard(running, seconds)
        if running.returncode:
            complaint.seek(0)
            raise failed(running.returncode, complaint.read(1 << 16).decode(errors="replace"))
        return told


def _heard(running: "subprocess.Popen[bytes]", seconds: float) -> bytes:
    """What it says to its end; with it ends whatever it has started."""
    late = threading.Event()

    def end() -> None:
        late.set()
        _kill(running)

    clock = threading.Timer(seconds, end)
    clock.start()
    try:
        assert running.stdout is not None
        with running.stdout as saying:
            told = saying.read(_MOST_TOLD + 1)
        if len(told) > _MOST_TOLD:
            raise FileTooLarge(f"the repository has more than {MOST_BYTES >> 20} MB, or a list of files without end")
        os.waitid(os.P_PID, running.pid, os.WEXITED | os.WNOWAIT)
    finally:
        clock.cancel()
        clock.join()
        _kill(running)  # before it is reaped: until then its number is nobody else's
        running.wait()
    if late.is_set():
        raise Timeout(f"git took more than {seconds:g} s", op="git")
    return told


def _kill(running: "subprocess.Popen[bytes]") -> None:
    with suppress(ProcessLookupError):
        os.killpg(running.pid, signal.SIGKILL)


def failed(code: int, said: str) -> HutchError:
    """git's own words, on one line."""
    told = " ".join(said.split())[-500:] or f"exit code {code}"
    if "not found" in told and code == 127:
        return Unavailable("there is no git on this machine", retryable=False, remedy="install git")
    return Invalid(f"git could not get it: {told}", remedy="check the URL and the ref")
