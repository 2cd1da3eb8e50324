"""How each language's program is started in a box: its command line, and what is sent to it first."""

from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from hutch.model.code import Language

_HERE = Path(__file__).parent
_PYTHON_MODULES = ("channel", "charts", "display", "plain", "ipython", "snapshot", "kernel")
"""In the order of their imports. The module that needs IPython is loaded only if it can be."""

# Reads the modules from its input, then runs the kernel. The box's working directory is not searched meanwhile, so that
# a file there cannot take the place of a module of the standard library.
_PYTHON_BOOT = """
import sys
sys.path[:] = [p for p in sys.path if p]
import importlib.machinery, json, os, types
def take(size):
    parts = b""
    while len(parts) < size:
        parts += os.read(0, size - len(parts)) or sys.exit("no program arrived")
    return parts
modules = json.loads(take(int(take(9))))
package = sys.modules["_hutch_kernel"] = types.ModuleType("_hutch_kernel")
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("_hutch_kernel.") and name[14:] in modules:
            return importlib.machinery.ModuleSpec(name, self)
    def create_module(self, spec): pass
    def exec_module(self, module):
        exec(compile(modules[module.__name__[14:]], "<%s>" % module.__name__, "exec"), module.__dict__)
sys.meta_path.insert(0, Finder())
package.__path__ = []
from _hutch_kernel.kernel import main
main()
"""

# The program's own streams are moved away, so that children of the code cannot write into the protocol.
_NODE_BOOT = """(() => {
const fs = require('fs');
const take = (size) => { const parts = Buffer.alloc(size); let at = 0;
  while (at < size) { const n = fs.readSync(3, parts, at, size - at); if (!n) process.exit(1); at += n; }
  return parts; };
const sources = JSON.parse(take(parseInt(take(9).toString(), 10)).toString());
require('vm').runInThisContext('(function (require, sources, load) {' + sources.kernel + '\\n})',
  { filename: 'hutch-kernel.js' })(require, sources, (name) => import(name));
})()"""


class Program(NamedTuple):
    """A program to start: its arguments, and the bytes that it reads first."""

    argv: tuple[str, ...]
    first: bytes = b""


@cache
def program(language: Language) -> Program:
    """Return the program of a language."""
    if language is Language.PYTHON:
        sources = {name: (_HERE / "python" / f"{name}.py").read_text() for name in _PYTHON_MODULES}
        return Program(("python3", "-c", _PYTHON_BOOT), _framed(sources))
    if language is Language.BASH:
        return Program(("bash", "--noprofile", "--norc"))
    sources = {name: (_HERE / "node" / f"{name}.js").read_text() for name in ("kernel", "interrupter")}
    start = 'exec 3<&0 4>&1 </dev/null >&2; exec node --no-warnings --experimental-vm-modules -e "$1"'
    return Program(("sh", "-c", start, "sh", _NODE_BOOT), _framed(sources))


def _framed(sources: dict[str, str]) -> bytes:
    content = msgspec.json.encode(sources)
    return f"{len(content):08d}\n".encode() + content
