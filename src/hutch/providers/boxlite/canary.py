"""The canary of BoxLite: an image made of nothing but our guest, and its stored result for this boot of the machine."""

import contextlib
import gzip
import hashlib
import io
import json
import os
import platform
import tarfile
from pathlib import Path
from typing import Any

from hutch.linux.processes import boot_id
from hutch.providers.boxlite.sdk import version
from hutch.providers.guest_bundle.pack import HOME, GuestBundle

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


class Proof:
    """The canary's stored result, one for each boot and release, because a failing boot takes half a minute.

    It belongs to the user, not to one state directory, because it describes the machine.
    """

    def __init__(self, url: str) -> None:
        words = (boot_id(), version(), url, str(os.geteuid()))
        name = hashlib.sha256("\0".join(words).encode()).hexdigest()[:24]
        home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        self._path = Path(home, "hutch", f"boxlite-canary-{name}") if os.path.isabs(home) else None

    def read(self) -> str | None:
        """Return why no virtual machine boots, "" if one does, or None if nobody has tried."""
        if self._path is None:
            return None
        try:
            return self._path.read_text()
        except FileNotFoundError:
            return None

    def write(self, reason: str) -> None:
        if self._path is not None:
            with contextlib.suppress(OSError):  # without the file the next probe only has to boot a machine
                self._path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
                self._path.write_text(reason)


def write_layout(place: Path, bundle: GuestBundle) -> None:
    """Write an OCI layout whose only layer is the guest bundle."""
    layer = _layer(bundle)
    config: dict[str, Any] = {
        "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {"Entrypoint": bundle.python("import time; time.sleep(1 << 30)")},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    kind = "application/vnd.oci.image"
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{kind}.manifest.v1+json",
        "config": {"mediaType": f"{kind}.config.v1+json", **_blob(place, json.dumps(config).encode())},
        "layers": [{"mediaType": f"{kind}.layer.v1.tar+gzip", **_blob(place, gzip.compress(layer, 1))}],
    }
    top = {"mediaType": manifest["mediaType"], **_blob(place, json.dumps(manifest).encode())}
    (place / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [top]}))
    (place / "oci-layout").write_text(json.dumps({"imageLayoutVersion": "1.0.0"}))


def _layer(bundle: GuestBundle) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name in ("dev", "etc", "home", "home/user", "proc", "sys", "tmp", "workspace", HOME.strip("/")):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        with tarfile.open(fileobj=io.BytesIO(bundle.archive())) as source:
            for entry in source:
                content = source.extractfile(entry) if entry.isreg() else None
                entry.name = f"{HOME.strip('/')}/{entry.name}"
                tar.addfile(entry, content)
    return packed.getvalue()


def _blob(place: Path, content: bytes) -> dict[str, Any]:
    digest = hashlib.sha256(content).hexdigest()
    path = place / "blobs/sha256" / digest
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return {"digest": f"sha256:{digest}", "size": len(content)}
