"""Random work on a tree of files, the same in a box and on a plain directory, and a list of what came of it.

The work is a program of its own that runs in both places with the same seed: whatever a layer gets wrong shows in the
list. Everything that a file system keeps counts but times and inode numbers.
"""

WORK = r"""
import os, stat, sys

def work(top, seed, count):
    import random

    random_ = random.Random(seed)
    os.chdir(top)
    names = ["a", "b", "c", "d e", "ü", "-f", ".g"]
    def path():
        return "/".join(random_.choice(names) for _ in range(random_.randint(1, 3)))
    def parent(name):
        above = os.path.dirname(name)
        if above and not os.path.lexists(above):
            parent(above)
            os.mkdir(above)
        return not above or (os.path.isdir(above) and not any(
            os.path.islink("/".join(above.split("/")[:n + 1])) for n in range(above.count("/") + 1)))
    def remove(name):
        if os.path.islink(name) or not os.path.isdir(name):
            os.unlink(name)
        else:
            import shutil

            shutil.rmtree(name)
    for _ in range(count):
        name, other, kind = path(), path(), random_.randrange(14)
        size, mode = random_.randrange(5000), random_.choice([0o600, 0o640, 0o755, 0o711])
        data = bytes(random_.randrange(256) for _ in range(8))
        try:
            if kind <= 2:
                # Nobody reads from a fifo, so that writing to one would never end.
                if parent(name) and not os.path.islink(name) and (os.path.isfile(name) or not os.path.lexists(name)):
                    with open(name, "wb") as file:
                        file.write(data * (size // 8))
            elif kind == 3:
                if parent(name) and os.path.isfile(name) and not os.path.islink(name):
                    with open(name, "ab") as file:
                        file.write(data)
            elif kind == 4:
                if parent(name):
                    os.mkdir(name)
            elif kind == 5:
                remove(name)
            elif kind == 6:
                remove(name)
                os.mkdir(name)
            elif kind == 7:
                # rename(2) of a directory of a lower layer is EXDEV, and `mv` copes with it.
                if os.path.lexists(name) and parent(other) and not os.path.lexists(other):
                    import subprocess

                    subprocess.run(["mv", "-T", "--", name, other], stderr=subprocess.DEVNULL)
            elif kind == 8:
                # Two names of one file; overlay makes two files of them when one is written, so nothing writes them.
                if parent(name) and not os.path.lexists(name + ".1") and not os.path.lexists(name + ".2"):
                    with open(name + ".1", "wb") as file:
                        file.write(data)
                    os.link(name + ".1", name + ".2")
            elif kind == 9:
                if parent(name):
                    os.symlink(random_.choice(["a", "../b", "/nowhere"]), name)
            elif kind == 10:
                if not os.path.islink(name):
                    os.chmod(name, mode | (0o700 if os.path.isdir(name) else 0))
            elif kind == 11:
                if os.path.isfile(name) and not os.path.islink(name):
                    os.truncate(name, size * 20)
            elif kind == 12:
                if not os.path.islink(name):
                    os.setxattr(name, "user.k", data)
            elif kind == 13:
                if parent(name):
                    os.mkfifo(name)
        except OSError:
            pass

def rows(top):
    import hashlib
    found = []
    for above, directories, files in os.walk(top):
        directories.sort()
        for name in sorted(directories + files):
            path = os.path.join(above, name)
            if name == ".skills":
                continue
            facts = os.lstat(path)
            kind = stat.S_IFMT(facts.st_mode)
            row = [os.path.relpath(path, top), oct(facts.st_mode)]
            if kind == stat.S_IFREG:
                with open(path, "rb") as file:
                    row.append(hashlib.sha256(file.read()).hexdigest())
            if kind == stat.S_IFLNK:
                row.append(os.readlink(path))
            else:
                for key in sorted(os.listxattr(path, follow_symlinks=False)):
                    if key.startswith("user.k"):
                        row.append(f"{key}={os.getxattr(path, key, follow_symlinks=False)!r}")
            found.append(repr(row))
    return "\n".join(found)

def main(kind, top, seed="0", count="0"):
    if kind == "work":
        work(top, int(seed), int(count))
    return rows(top)

if __name__ == "__main__":
    print(main(*sys.argv[1:]))
"""
