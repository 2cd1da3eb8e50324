"""Skills from git repositories: one commit is fetched shallow and read object by object; nothing of it is ever run.

There is no checkout, because its filters, links, submodules and hooks are how repositories attack those who clone them.
Objects are read by their ids, so a link or a submodule is recognised as such and refused.
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
from hutch.skills.content import EXCLUDED_NAMES, MAX_PACKAGE_BYTES, Budget, write_file

FETCH_SECONDS = 120.0
READ_SECONDS = 60.0
_MAX_FILE_BLOCKS = 1 << 19
"""Largest file that git may write, in blocks of 512 bytes or more: `ulimit -f` uses the shell's own block size."""
_MAX_OUTPUT = MAX_PACKAGE_BYTES + (16 << 20)
"""Largest output of git: a package with its headers, or the list of a large repository. A few small trees that
contain each other many times would give an endless list."""
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
_INHERITED_VARIABLES = (
    "PATH",
    "HOME",
    "SSH_AUTH_SOCK",
    "SSL_CERT_FILE",
    "https_proxy",
    "HTTPS_PROXY",
    "no_proxy",
    "NO_PROXY",
)


class _Blob(NamedTuple):
    name: str
    id: str
    size: int
    executable: bool


def is_url(text: str) -> bool:
    return text.startswith(("https://", "git+https://", "ssh://", "git+ssh://")) or bool(_SCP.fullmatch(text))


def fetch_commit(url: str, ref: str, repository: Path, tree: Path, *, local: bool) -> str:
    """Write the files of one commit into `tree` and return the commit. `local`: the url is a local directory."""
    check_source(url, ref, local=local)
    protocols = ("file",) if local else ("https", "ssh")
    address = f"file://{url}" if local else url
    _git(["init", "--bare", "--quiet", "--template=", str(repository)], repository.parent, protocols, READ_SECONDS)
    fetch = ["fetch", "--quiet", "--depth=1", "--no-tags", "--no-recurse-submodules", "--no-write-commit-graph"]
    _git([*fetch, "--", address, ref or "HEAD"], repository, protocols, FETCH_SECONDS)
    commit = _git(["rev-parse", "--verify", "FETCH_HEAD^{commit}"], repository, (), READ_SECONDS).decode().strip()
    if not _COMMIT.fullmatch(commit):
        raise Invalid(f"git found no commit for {ref or 'HEAD'} of {url}")
    blobs = list(_list_files(repository, commit))
    for blob, data in zip(blobs, _read_blobs(repository, blobs), strict=True):
        write_file(os.path.join(tree, blob.name), data, executable=blob.executable)
    return commit


def check_source(url: str, ref: str, *, local: bool) -> None:
    if ref and not _REF.fullmatch(ref):
        raise Invalid(f"{ref[:200]!r} is not the name of a branch, tag or commit", details={"field": "ref"})
    if local:
        if not os.path.isdir(url):
            raise NotFound(f"there is no directory {url}", remedy="name the top of a repository")
        return
    if not is_url(url) or not url.isprintable() or " " in url:
        raise Invalid(f"{url[:200]!r} is not a git URL", remedy="https://HOST/PATH, or git@HOST:PATH")
    if re.match(r"https://[^/]*:[^/]*@", url):
        raise Refused("the URL contains a password, which would be stored", remedy="use a credential helper or ssh")


def _list_files(repository: Path, commit: str) -> Iterator[_Blob]:
    """List every file of the commit and check the limits before any content is read."""
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
        if EXCLUDED_NAMES.intersection(name.split("/")):
            continue
        if kind == "commit":
            continue  # a submodule: another repository, which was not requested
        if mode == "120000":
            raise Refused(f"{name} is a symbolic link, and a skill holds only files", remedy="put a copy in its place")
        budget.add_file(name, int(size))
        yield _Blob(name, blob, int(size), mode == "100755")


def _read_blobs(repository: Path, blobs: list[_Blob]) -> Iterator[bytes]:
    requested = "".join(f"{blob.id}\n" for blob in blobs).encode()
    answer = _git(["cat-file", "--batch"], repository, (), READ_SECONDS, requested)
    at = 0
    for blob in blobs:
        end = answer.index(b"\n", at)
        found_id, kind, size = answer[at:end].decode("ascii").split()
        if (found_id, kind, int(size)) != (blob.id, "blob", blob.size):
            raise Invalid(f"git has another object than it listed for {blob.name}")
        yield answer[end + 1 : end + 1 + blob.size]
        at = end + 1 + blob.size + 1


def command(words: list[str]) -> list[str]:
    """Return a git command that reads only our configuration and cannot fill the disk. It works in a box too."""
    settings = [word for name, value in _SETTINGS.items() for word in ("-c", f"{name}={value}")]
    return ["sh", "-c", f'ulimit -f {_MAX_FILE_BLOCKS} && exec "$@"', "sh", "git", *settings, *words]


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


def _git(words: list[str], where: Path, protocols: tuple[str, ...], seconds: float, stdin: bytes = b"") -> bytes:
    inherited = {name: os.environ[name] for name in _INHERITED_VARIABLES if name in os.environ}
    with tempfile.TemporaryFile() as stdin_file, tempfile.TemporaryFile() as errors:
        stdin_file.write(stdin)
        stdin_file.seek(0)
        try:
            process = subprocess.Popen(
                command(words), cwd=where, env=inherited | environment(protocols), stdin=stdin_file,
                stdout=subprocess.PIPE, stderr=errors, start_new_session=True,
            )  # fmt: skip
        except FileNotFoundError as error:
            raise Unavailable("there is no shell on this machine", retryable=False, remedy="install git") from error
        output = _read_output(process, seconds)
        if process.returncode:
            errors.seek(0)
            raise git_error(process.returncode, errors.read(1 << 16).decode(errors="replace"))
        return output


def _read_output(process: "subprocess.Popen[bytes]", seconds: float) -> bytes:
    """Read the output to its end, then kill everything that git has started."""
    timed_out = threading.Event()

    def end() -> None:
        timed_out.set()
        _kill(process)

    timer = threading.Timer(seconds, end)
    timer.start()
    try:
        assert process.stdout is not None
        with process.stdout as stdout:
            output = stdout.read(_MAX_OUTPUT + 1)
        if len(output) > _MAX_OUTPUT:
            raise FileTooLarge(
                f"the repository has more than {MAX_PACKAGE_BYTES >> 20} MB, or a list of files without end"
            )
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    finally:
        timer.cancel()
        timer.join()
        _kill(process)  # before it is reaped: until then no other process can have its number
        process.wait()
    if timed_out.is_set():
        raise Timeout(f"git took more than {seconds:g} s", op="git")
    return output


def _kill(process: "subprocess.Popen[bytes]") -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def git_error(code: int, stderr: str) -> HutchError:
    """Turn git's own message into an error, on one line."""
    output = " ".join(stderr.split())[-500:] or f"exit code {code}"
    if "not found" in output and code == 127:
        return Unavailable("there is no git on this machine", retryable=False, remedy="install git")
    return Invalid(f"git failed: {output}", remedy="check the URL and the ref")
