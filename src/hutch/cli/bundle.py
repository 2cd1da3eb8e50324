"""The compiled modules of one command in a single file, which loads in half the time of one file for each.

Python looks for each compiled module anew, with a search in Python code and a dozen system calls. A bundle lies in our
`__pycache__`, is written by whoever may write there, and deserves the same trust. A module of it counts only while its
source has the size and time that it had, and while the interpreter and its path are the same; every other module is
imported as usual. It imports little, because it comes first.
"""

import marshal
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType

Entry = tuple[str, int, int, bool, CodeType]
"""The path, size and time (ns) of a module's source, whether it is a package, and its code."""


class _Loader(SourceFileLoader):
    """Loads a module whose code is there already."""

    def __init__(self, name: str, path: str, code: CodeType) -> None:
        super().__init__(name, path)
        self._code = code

    def get_code(self, fullname: str) -> CodeType:
        return self._code


class Bundle:
    """A finder of modules, and the file that it has them from."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._earlier = frozenset(sys.modules)
        """Modules that were imported before, and need no place in the file."""
        self._entries = self._read()
        self._complete = bool(self._entries)

    def install(self) -> None:
        """Let modules be found here from now on."""
        sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        entry = self._entries.pop(name, None)
        if entry is None:
            return None
        source, size, time, is_package, code = entry
        if _stamp(source) != (size, time):
            self._complete = False
            return None
        spec = ModuleSpec(name, _Loader(name, source, code), origin=source, is_package=is_package)
        spec.has_location = True
        if is_package:
            spec.submodule_search_locations = [os.path.dirname(source)]
        return spec

    def save(self) -> None:
        """Write the file with the modules that are loaded now, if it was missing or outdated and may be written."""
        if self._complete or sys.dont_write_bytecode or not os.access(os.path.dirname(self._file), os.W_OK):
            return
        entries = {name: entry for name, module in tuple(sys.modules.items()) if (entry := self._entry(name, module))}
        draft = f"{self._file}.{os.getpid()}"
        with suppress(OSError):  # the modules are imported one by one then, as they were now
            with open(draft, "wb") as file:
                file.write(marshal.dumps((_surroundings(), entries)))
            os.replace(draft, self._file)

    def _read(self) -> dict[str, Entry]:
        try:
            with open(self._file, "rb") as file:
                surroundings, entries = marshal.loads(file.read())
        except (OSError, EOFError, ValueError, TypeError):  # there is none, or only a part of one
            return {}
        return entries if surroundings == _surroundings() else {}

    def _entry(self, name: str, module: ModuleType) -> Entry | None:
        spec = getattr(module, "__spec__", None)
        if name in self._earlier or spec is None or not isinstance(spec.loader, SourceFileLoader):
            return None
        stamp = _stamp(spec.origin or "")
        code = spec.loader.get_code(name)
        if stamp is None or code is None:
            return None
        return (spec.origin, *stamp, spec.submodule_search_locations is not None, code)


def _stamp(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


def _surroundings() -> list[str]:
    """What decides which module a name means, besides the files themselves."""
    return [sys.version, str(sys.flags.optimize), *sys.path]
