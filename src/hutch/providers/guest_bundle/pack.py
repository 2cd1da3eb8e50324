"""Packs a small Python runtime from this machine's own interpreter: exactly what a real import of the guest loads.

The interpreter, its dynamic linker, every shared library and module that the guest needs, below one directory, `HOME`.
It is started through its own linker, so that the image may have another C library, or none. The digest is made of
what goes in, not of the compiled form, which differs from run to run.
"""

import functools
import hashlib
import importlib.util
import io
import json
import marshal
import os
import struct
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any, NamedTuple

from hutch.errors import EngineError
from hutch.guest.protocol import VERSION

HOME = "/.hutch"
_SOURCE = Path(__file__).parents[3]
_UNCHECKED = 0b01
"""A module's file that is never compared with a source (PEP 552): there is none beside it."""

# Run by the bare interpreter, as the guest will be; what it has then is what the guest needs.
_LOOK = """
import ctypes, importlib, json, os, sys
sys.path.append(sys.argv[1])
for name in sys.argv[2:]:
    importlib.import_module(name)
modules = {}
for name, module in sys.modules.items():
    spec = getattr(module, "__spec__", None)
    file = getattr(module, "__file__", None)
    if spec and spec.origin not in ("built-in", "frozen") and file:
        modules[name] = [file, hasattr(module, "__path__")]
modules["os"] = [os.__file__, False]  # by it the interpreter knows its home, though its code is built in
libraries = []
class Info(ctypes.Structure):
    _fields_ = [("address", ctypes.c_void_p), ("name", ctypes.c_char_p)]
@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Info), ctypes.c_size_t, ctypes.c_void_p)
def seen(info, size, data):
    libraries.append(os.fsdecode(info.contents.name or b""))
    return 0
ctypes.CDLL(None).dl_iterate_phdr(seen, None)
print(json.dumps({"modules": modules, "libraries": libraries, "executable": os.path.realpath("/proc/self/exe")}))
"""


class GuestBundle(NamedTuple):
    """The packed runtime and the guest's programs."""

    digest: str
    """The digest of everything in it, short enough for a volume's name."""
    files: tuple[tuple[str, bytes], ...]
    linker: str
    """Path below HOME of the dynamic linker; "" if the interpreter is linked statically."""
    architecture: str

    def argv(self, module: str, *arguments: str) -> list[str]:
        """Return the command line that runs `main` of one of our modules inside a box."""
        return self.python(f"from {module} import main; main()", *arguments)

    def python(self, code: str, *arguments: str) -> list[str]:
        """Return the command line that runs this code inside a box."""
        start = [f"{HOME}/{self.linker}", "--library-path", f"{HOME}/lib"] if self.linker else []
        return [*start, f"{HOME}/bin/python3", "-I", "-S", "-X", "utf8", "-c", code, *arguments]

    def archive(self) -> bytes:
        """Return a tar with names relative to HOME. Everybody may read the files, only root may write them."""
        packed = io.BytesIO()
        made: set[str] = set()
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for name, content in self.files:
                parents = name.split("/")[:-1]
                for depth in range(1, len(parents) + 1):
                    directory = "/".join(parents[:depth])
                    if directory not in made:
                        made.add(directory)
                        tar.addfile(_entry(directory, tarfile.DIRTYPE, 0o755))
                entry = _entry(name, tarfile.REGTYPE, 0o755 if name.startswith(("bin/", "lib/ld")) else 0o644)
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
        return packed.getvalue()


@functools.cache
def guest_bundle() -> GuestBundle:
    """Return this machine's bundle. The first call blocks for about 0.2 s, so call it in a thread."""
    names = [_module_name(path) for path in sorted((_SOURCE / "hutch/guest").rglob("*.py"))]
    names += [f"hutch.providers.guest_bundle.{name}" for name in ("boot", "files_stream", "relay")]
    # Codecs are looked for when they are first used, and then it would be too late.
    names += ["encodings.ascii", "encodings.latin_1", "encodings.utf_8"]
    seen = _look(names)
    executable = Path(seen["executable"])
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    files: dict[str, bytes] = {"bin/python3": executable.read_bytes()}
    digest = hashlib.sha256(f"{VERSION} {sys.version} {os.uname().machine}".encode())
    for name, (file, is_package) in sorted(seen["modules"].items()):
        content = Path(file).read_bytes()
        digest.update(f"{name} {len(content)} ".encode() + content)
        if file.endswith(".py"):
            path = name.replace(".", "/") + ("/__init__" if is_package else "")
            files[f"lib/{version}/{path}.pyc"] = _compiled(content, f"{HOME}/{path}.py")
        elif file.endswith(".pyc"):
            files[f"lib/{version}/{name.replace('.', '/')}.pyc"] = content
        else:
            files[f"lib/{version}/lib-dynload/{Path(file).name}"] = content
    # Without this directory the interpreter complains at every start.
    files.setdefault(f"lib/{version}/lib-dynload/.keep", b"")
    extensions = {file for file, _ in seen["modules"].values()}
    linker = ""
    for library in seen["libraries"]:
        if not library.startswith("/") or library in extensions:
            continue  # the program itself, the kernel's vdso, a module that is packed already
        place = f"lib/{Path(library).name}"
        files[place] = Path(library).read_bytes()
        if Path(library).name.startswith("ld"):
            linker = place
    for place in sorted(files):
        if not place.endswith(".pyc"):
            digest.update(f"{place} {len(files[place])} ".encode() + files[place])
    return GuestBundle(digest.hexdigest()[:16], tuple(sorted(files.items())), linker, os.uname().machine)


def _module_name(path: Path) -> str:
    """The dotted name of one of our source files."""
    return ".".join(path.relative_to(_SOURCE).with_suffix("").parts).removesuffix(".__init__")


def _look(names: list[str]) -> dict[str, Any]:
    # The interpreter behind a virtual environment: what the environment adds is not needed inside.
    interpreter = getattr(sys, "_base_executable", None) or sys.executable
    command = [interpreter, "-I", "-S", "-X", "utf8", "-c", _LOOK, str(_SOURCE), *names]
    looked = subprocess.run(command, capture_output=True, text=True, env={}, stdin=subprocess.DEVNULL)
    if looked.returncode:
        raise EngineError(
            f"the guest for containers could not be packed: {looked.stderr.strip()[-300:]}",
            op="probe",
            remedy=f"check that {interpreter} works and has the module ctypes",
        )
    found: dict[str, Any] = json.loads(looked.stdout)
    return found


def _compiled(source: bytes, shown: str) -> bytes:
    code = compile(source, shown, "exec", dont_inherit=True, optimize=0)
    header = importlib.util.MAGIC_NUMBER + struct.pack("<I", _UNCHECKED) + importlib.util.source_hash(source)
    return header + marshal.dumps(code)


def _entry(name: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode = kind, mode
    return entry
