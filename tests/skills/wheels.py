"""The smallest possible packages: a Python wheel and an npm archive, made by hand."""

import io
import json
import tarfile
import zipfile
from pathlib import Path


def wheel(top: Path, name: str = "tiny_dep", **programs: str) -> Path:
    """A module with one function and a program `tiny-dep`; others by their names."""
    path = top / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr(f"{name}.py", "def answer():\n    print('42 from the wheel')\n")
        packed.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        packed.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        packed.writestr(f"{info}/entry_points.txt", f"[console_scripts]\ntiny-dep = {name}:answer\n")
        for program, text in programs.items():
            script = zipfile.ZipInfo(f"{name}-1.0.data/scripts/{program}")
            script.external_attr = 0o100755 << 16
            packed.writestr(script, text)
        packed.writestr(f"{info}/RECORD", "")
    return path


def npm_archive(top: Path, name: str = "tiny-node") -> Path:
    path = top / f"{name}-1.0.0.tgz"
    about = {"name": name, "version": "1.0.0", "main": "index.js", "bin": {name: "cli.js"}}
    files = {
        "package/package.json": json.dumps(about),
        "package/index.js": "module.exports = 'from node';\n",
        "package/cli.js": "#!/usr/bin/env node\nconsole.log(require('./index.js'));\n",
    }
    with tarfile.open(path, "w:gz") as packed:
        for entry, text in files.items():
            facts = tarfile.TarInfo(entry)
            facts.size, facts.mode = len(text), 0o755
            packed.addfile(facts, io.BytesIO(text.encode()))
    return path
