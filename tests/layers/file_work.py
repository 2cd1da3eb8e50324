"""Random work on a tree of files, the same in a box and on a plain directory, and a list of what came of it.

This file is also the program that runs in the box: whatever a layer gets wrong shows in the list, which has everything
that a file system keeps but times and inode numbers. It runs two dozen times for a history, so it imports nothing that
is slow to load: a bare interpreter starts three times faster than one with `random`, `hashlib` and `shutil`.
"""

import os
import stat
import sys
from _blake2 import blake2b
from _random import Random
from contextlib import suppress

NAMES = ("a", "b", "c", "d e", "ü", "-f", ".g")
MODES = (0o600, 0o640, 0o755, 0o711)
TARGETS = ("a", "../b", "/nowhere")
KINDS = 14


def work(seed: int, count: int) -> None:
    """Do `count` random things below the working directory. What the file system refuses is left out."""
    chance = Random(seed)

    def below(limit: int) -> int:
        return int(chance.random() * limit)

    def path() -> str:
        return "/".join(NAMES[below(len(NAMES))] for _ in range(1 + below(3)))

    for _ in range(count):
        name, other, kind = path(), path(), below(KINDS)
        size, mode, target = below(5000), MODES[below(len(MODES))], TARGETS[below(len(TARGETS))]
        data = bytes(below(256) for _ in range(8))
        with suppress(OSError):
            do(kind, name, other, size, mode, target, data)


def do(kind: int, name: str, other: str, size: int, mode: int, target: str, data: bytes) -> None:
    is_link, is_file, exists = os.path.islink(name), os.path.isfile(name), os.path.lexists(name)
    if kind <= 2:
        # Nobody reads from a fifo, so that writing to one would never end.
        if has_parent(name) and not is_link and (is_file or not exists):
            with open(name, "wb") as file:
                file.write(data * (size // 8))
    elif kind == 3:
        if has_parent(name) and is_file and not is_link:
            with open(name, "ab") as file:
                file.write(data)
    elif kind == 4:
        if has_parent(name):
            os.mkdir(name)
    elif kind == 5:
        remove(name)
    elif kind == 6:
        remove(name)
        os.mkdir(name)
    elif kind == 7:
        if exists and has_parent(other) and not os.path.lexists(other):
            move(name, other)
    elif kind == 8:
        # Two names of one file; overlay makes two files of them when one is written, so nothing writes them.
        if has_parent(name) and not os.path.lexists(f"{name}.1") and not os.path.lexists(f"{name}.2"):
            with open(f"{name}.1", "wb") as file:
                file.write(data)
            os.link(f"{name}.1", f"{name}.2")
    elif kind == 9:
        if has_parent(name):
            os.symlink(target, name)
    elif kind == 10:
        if not is_link:
            os.chmod(name, mode | (0o700 if os.path.isdir(name) else 0))
    elif kind == 11:
        if is_file and not is_link:
            os.truncate(name, size * 20)
    elif kind == 12:
        if not is_link:
            os.setxattr(name, "user.k", data)
    elif kind == 13 and has_parent(name):
        os.mkfifo(name)


def has_parent(name: str) -> bool:
    """Whether the name lies in a directory and below no link; missing directories are made."""
    above = os.path.dirname(name)
    if above and not os.path.lexists(above):
        has_parent(above)
        os.mkdir(above)
    depth = above.count("/") + 1
    return not above or (
        os.path.isdir(above) and not any(os.path.islink("/".join(above.split("/")[: n + 1])) for n in range(depth))
    )


def remove(name: str) -> None:
    if os.path.islink(name) or not os.path.isdir(name):
        os.unlink(name)
        return
    for below in os.listdir(name):
        remove(f"{name}/{below}")
    os.rmdir(name)


def move(name: str, other: str) -> None:
    """Rename with `mv`: rename(2) of a directory of a lower layer is EXDEV, with which that program copes."""
    quiet = [(os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0)]
    pid = os.posix_spawnp("mv", ["mv", "-T", "--", name, other], os.environ, file_actions=quiet)
    os.waitpid(pid, 0)


def rows(above: str = "") -> list[str]:
    """One line for everything below the working directory."""
    found = []
    for name in sorted(os.listdir(above or ".")):
        path = f"{above}/{name}" if above else name
        if path == ".skills":
            continue
        facts = os.lstat(path)
        kind = stat.S_IFMT(facts.st_mode)
        row = [path, oct(facts.st_mode)]
        if kind == stat.S_IFREG:
            with open(path, "rb") as file:
                row.append(blake2b(file.read()).hexdigest())
        if kind == stat.S_IFLNK:
            row.append(os.readlink(path))
        else:
            names = sorted(each for each in os.listxattr(path, follow_symlinks=False) if each.startswith("user.k"))
            row += [f"{each}={os.getxattr(path, each, follow_symlinks=False)!r}" for each in names]
        found.append(repr(row))
        if kind == stat.S_IFDIR:
            found += rows(path)
    return found


def main(kind: str, top: str, seed: str = "0", count: str = "0") -> list[str]:
    os.chdir(top)
    if kind == "work":
        work(int(seed), int(count))
    return rows()


if __name__ == "__main__":
    print("\n".join(main(*sys.argv[1:])))
