"""Skills for tests: small directories, and zip files byte by byte."""

import io
import os
import zipfile
from pathlib import Path
from typing import Any

FRONT = "---\nname: {name}\ndescription: Made for a test.\n{more}---\n# {name}\n"


def run_dir(top: Path) -> Path:
    """A run directory for a test's own Hutch: short, because it holds sockets, and removed with this process."""
    return Path(os.environ["HUTCH_RUN_DIR"]).parent / top.name[-20:]


def manifest(name: str = "demo", more: str = "") -> str:
    return FRONT.format(name=name, more=more)


def skill(top: Path, name: str = "demo", more: str = "", **files: str) -> Path:
    """Create a directory with a SKILL.md. `__` in a file's name means `/`; content that begins with #! is run."""
    place = top / name
    place.mkdir(parents=True, exist_ok=True)
    (place / "SKILL.md").write_text(manifest(name, more))
    for key, text in files.items():
        path = place / key.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if text.startswith("#!"):
            path.chmod(0o755)
    return place


def zipped(*entries: tuple[str | zipfile.ZipInfo, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in entries:
            archive.writestr(name, data)
    return out.getvalue()


def entry(name: str, **changes: Any) -> zipfile.ZipInfo:
    about = zipfile.ZipInfo(name)
    about.external_attr = 0o100644 << 16
    about.compress_type = zipfile.ZIP_DEFLATED
    for field, value in changes.items():
        setattr(about, field, value)
    return about


def good() -> tuple[str, bytes]:
    return "demo/SKILL.md", manifest().encode()
