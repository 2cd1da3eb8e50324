"""Trials of the kernel: a forked child tries each step that a box needs, in namespaces that end with it.

A sysctl says what is intended. Only a trial shows what happens, because AppArmor, seccomp of an outer container and
masked mounts refuse without any setting to read. Nothing outside the child changes.
"""

import errno
import json
import os
from collections.abc import Callable

from hutch.linux import kernel

STEPS = ("user namespace", "mount", "overlay", "overlay opaque", "proc", "network namespace", "other namespaces")
"""The steps in order. A step that fails ends the trial unless the next ones do not need it."""

_SCRATCH = "/tmp"


def run() -> dict[str, str]:
    """Return for each step "" if it worked, else the kernel's answer. A step that was not reached is missing."""
    read, write = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read)
            os.write(write, json.dumps(_try_all()).encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read, "rb") as answers:
        answer = answers.read()
    os.waitpid(pid, 0)
    return dict(json.loads(answer)) if answer else {STEPS[0]: "the trial died"}


def _try_all() -> dict[str, str]:
    answers: dict[str, str] = {}
    steps: tuple[tuple[Callable[[], None], bool], ...] = (
        (_user_namespace, True), (_mount, True), (_overlay, True), (_opaque, False), (_proc, False), (_network, False),
        (_others, False),
    )  # fmt: skip
    for name, (step, needed) in zip(STEPS, steps, strict=True):
        try:
            step()
            answers[name] = ""
        except OSError as error:
            code = errno.errorcode.get(error.errno or 0, str(error.errno))
            answers[name] = f"{error.filename or name}: {code} ({error.strerror})"
            if needed:
                return answers
    return answers


def _user_namespace() -> None:
    uid, gid = os.geteuid(), os.getegid()
    kernel.unshare(kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS)
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"0 {uid} 1")
    _write("/proc/self/gid_map", f"0 {gid} 1")


def _mount() -> None:
    kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("hutch", _SCRATCH, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=1m")


def _overlay() -> None:
    for name in ("lower", "lower/d", "upper", "work", "merged", "proc"):
        os.mkdir(f"{_SCRATCH}/{name}")
    layers = f"lowerdir={_SCRATCH}/lower,upperdir={_SCRATCH}/upper,workdir={_SCRATCH}/work,userxattr"
    kernel.mount("hutch", f"{_SCRATCH}/merged", "overlay", 0, layers)


def _opaque() -> None:
    """Replace a lower directory, which needs a user xattr on the upper layer, a tmpfs here."""
    os.rmdir(f"{_SCRATCH}/merged/d")
    os.mkdir(f"{_SCRATCH}/merged/d")


def _proc() -> None:
    """Mount a /proc in the next child, the first of the pid namespace. It exits with the kernel's answer."""
    kernel.unshare(kernel.CLONE_NEWPID)
    pid = os.fork()
    if pid == 0:
        code = 0
        try:
            kernel.mount("proc", f"{_SCRATCH}/proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
        except OSError as error:
            code = error.errno or errno.EIO
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code:
        raise OSError(code, os.strerror(code), "mount proc")


def _network() -> None:
    kernel.unshare(kernel.CLONE_NEWNET)


def _others() -> None:
    kernel.unshare(kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS | kernel.CLONE_NEWCGROUP)


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
