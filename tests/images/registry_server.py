"""A real registry on loopback for the tests, and a small client that pushes images made here."""

import base64
import gzip
import hashlib
import http.client
import io
import json
import os
import shutil
import socket
import ssl
import subprocess
import tarfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

PROGRAM = shutil.which("docker-registry")
TIMEOUT = 30.0
Member = tuple[str, dict[str, Any]]


def tar_of(*members: Member) -> bytes:
    """Return an archive; `data`, `type`, `linkname`, `mode`, `uid` and so on are those of `tarfile.TarInfo`."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, facts in members:
            given = dict(facts)
            data = given.pop("data", b"")
            info = tarfile.TarInfo(name)
            info.size = len(data)
            info.mode = 0o755
            info.mtime = 1_600_000_000
            for key, value in given.items():
                setattr(info, key, value)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def directory(name: str, **facts: Any) -> Member:
    return name, {"type": tarfile.DIRTYPE, **facts}


def symlink(name: str, target: str) -> Member:
    return name, {"type": tarfile.SYMTYPE, "linkname": target}


def hard_link(name: str, target: str) -> Member:
    return name, {"type": tarfile.LNKTYPE, "linkname": target}


def busybox(*names: str) -> list[Member]:
    """A static program under many names."""
    path = shutil.which("busybox") or "/bin/busybox"
    if not os.path.exists(path):
        pytest.skip("needs busybox-static")
    program = Path(path).read_bytes()
    return [
        directory("bin"),
        ("bin/busybox", {"data": program}),
        *(symlink(f"bin/{name}", "busybox") for name in names),
    ]


TOOLS = (
    "sh",
    "cat",
    "ls",
    "id",
    "stat",
    "env",
    "pwd",
    "echo",
    "touch",
    "rm",
    "mkdir",
    "ln",
    "chmod",
    "test",
    "wc",
    "true",
)


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@dataclass
class Made:
    """An image as bytes, for a registry or a layout."""

    layers: list[bytes]
    """Compressed layers."""
    diff_ids: list[str]
    run: dict[str, Any] = field(default_factory=dict)
    media_type: str = "application/vnd.oci.image.layer.v1.tar+gzip"

    @property
    def config(self) -> bytes:
        plain = {
            "architecture": "amd64" if os.uname().machine == "x86_64" else "arm64",
            "os": "linux",
            "config": self.run,
            "rootfs": {"type": "layers", "diff_ids": self.diff_ids},
        }
        return json.dumps(plain).encode()

    @property
    def manifest(self) -> bytes:
        plain = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": descriptor(self.config, "application/vnd.oci.image.config.v1+json"),
            "layers": [descriptor(layer, self.media_type) for layer in self.layers],
        }
        return json.dumps(plain).encode()

    @property
    def digest(self) -> str:
        return digest_of(self.manifest)


def descriptor(data: bytes, media_type: str) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": digest_of(data), "size": len(data)}


def image(*tars: bytes, **run: Any) -> Made:
    """Return an image of gzipped layers, lowest first; `run` is the configuration (Env=, User=, ...)."""
    return Made([gzip.compress(tar, 1, mtime=0) for tar in tars], [digest_of(tar) for tar in tars], run)


def small(**run: Any) -> Made:
    """Return busybox, a few files, and a second layer that deletes some of them."""
    base = tar_of(
        *busybox(*TOOLS),
        directory("etc"),
        ("etc/passwd", {"data": b"root:x:0:0::/root:/bin/sh\napp:x:4321:4321::/srv:/bin/sh\n", "mode": 0o644}),
        ("etc/gone", {"data": b"deleted by the second layer", "mode": 0o644}),
        directory("old"),
        ("old/hidden", {"data": b"x"}),
        directory("srv", uid=4321, gid=4321),
        ("srv/note", {"data": b"of the image", "mode": 0o640, "uid": 4321, "gid": 4321}),
        hard_link("srv/same", "srv/note"),
        ("srv/text", {"data": b"of the image", "mode": 0o644}),
        directory("root", mode=0o700),
    )
    above = tar_of(
        directory("etc"), ("etc/.wh.gone", {}), directory("old"), ("old/.wh..wh..opq", {}), ("old/new", {"data": b"n"})
    )
    return image(base, above, **run)


class Authority(NamedTuple):
    """A certificate authority for the tests; a client that trusts it trusts the registries that it certifies."""

    key: Path
    certificate: Path

    def certify(self, home: Path) -> tuple[Path, Path]:
        """Create key and certificate for a server on this machine's loopback."""
        key, request, certificate = home / "tls.key", home / "tls.csr", home / "tls.crt"
        _openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=registry", "-keyout", key, "-out", request)
        names = home / "names"
        names.write_text("subjectAltName = IP:127.0.0.1, DNS:localhost\n")
        _openssl("x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self.key, "-days", "2",
                 "-set_serial", "1", "-extfile", names, "-out", certificate)  # fmt: skip
        return key, certificate


def authority(home: Path) -> Authority:
    home.mkdir(parents=True)
    made = Authority(home / "ca.key", home / "ca.crt")
    _openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=authority of the tests",
             "-keyout", made.key, "-out", made.certificate)  # fmt: skip
    return made


def _openssl(*words: str | Path) -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)


@dataclass
class Server:
    """A running registry, whose data a test can corrupt."""

    address: str
    data: Path
    user: str = ""
    password: str = ""
    trusted: Authority | None = None

    def push(self, repository: str, made: Made, tag: str = "latest") -> str:
        """Push an image and return the reference to pull it by."""
        for blob in (made.config, *made.layers):
            self.put_blob(repository, blob)
        self.put_manifest(repository, tag, made.manifest, "application/vnd.oci.image.manifest.v1+json")
        return f"{self.address}/{repository}:{tag}"

    def put_manifest(self, repository: str, name: str, data: bytes, media_type: str) -> None:
        status, _ = self.ask("PUT", f"/v2/{repository}/manifests/{name}", data, {"Content-Type": media_type})
        assert status == 201, status

    def put_blob(self, repository: str, data: bytes) -> None:
        if self.ask("HEAD", f"/v2/{repository}/blobs/{digest_of(data)}")[0] == 200:
            return
        status, headers = self.ask("POST", f"/v2/{repository}/blobs/uploads/")
        assert status == 202, status
        place = urlsplit(headers["Location"])
        target = f"{place.path}?{place.query}&digest={digest_of(data)}"
        status, _ = self.ask("PUT", target, data, {"Content-Type": "application/octet-stream"})
        assert status == 201, status

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Mapping[str, str]]:
        connection: http.client.HTTPConnection
        if self.trusted is None:
            connection = http.client.HTTPConnection(self.address, timeout=TIMEOUT)
        else:
            context = ssl.create_default_context(cafile=str(self.trusted.certificate))
            connection = http.client.HTTPSConnection(self.address, timeout=TIMEOUT, context=context)
        known = {}
        if self.user:
            known = {"Authorization": "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()}
        try:
            connection.request(method, path, body=body, headers={**(headers or {}), **known})
            answer = connection.getresponse()
            answer.read()
            return answer.status, answer.headers
        finally:
            connection.close()

    @contextmanager
    def also_inside(self, enter: list[str]) -> Iterator[None]:
        """Serve the same images at the same address in the network namespace that `enter` leads to."""
        assert PROGRAM is not None
        home = self.data.parent
        with open(home / "log-inside", "wb") as log:
            process = subprocess.Popen(
                [*enter, PROGRAM, "serve", str(home / "config.yml")], stdout=log, stderr=log, cwd=home
            )
        try:
            ask = [*enter, "curl", "--silent", "--fail", f"http://{self.address}/v2/"]
            end = time.monotonic() + TIMEOUT
            while subprocess.run(ask, capture_output=True).returncode != 0:
                assert process.poll() is None and time.monotonic() < end, (home / "log-inside").read_text()
                time.sleep(0.05)
            yield
        finally:
            process.kill()
            process.wait()

    def blob_file(self, digest: str) -> Path:
        """Return where the registry stores a blob."""
        name = digest.partition(":")[2]
        return self.data / "docker/registry/v2/blobs/sha256" / name[:2] / name / "data"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def running_registry(
    home: Path,
    *,
    user: str = "",
    password: str = "",
    auth: dict[str, Any] | None = None,
    certified_by: Authority | None = None,
) -> Iterator[Server]:
    """Run Debian's docker-registry on a free port; `auth` is that part of its configuration."""
    if PROGRAM is None:
        pytest.skip("needs docker-registry")
    home.mkdir(parents=True, exist_ok=True)
    for _ in range(5):  # another process may take the port before the registry does
        port = free_port()
        with _started(home, port, user, password, auth or {}, certified_by) as process:
            if _listens(port, process):
                yield Server(f"127.0.0.1:{port}", home / "data", user, password, certified_by)
                return
    raise AssertionError((home / "log").read_text())


@contextmanager
def _started(
    home: Path, port: int, user: str, password: str, auth: dict[str, Any], certified_by: Authority | None
) -> Iterator["subprocess.Popen[bytes]"]:
    plain: dict[str, Any] = {
        "version": 0.1,
        "log": {"level": "error"},
        "storage": {"filesystem": {"rootdirectory": str(home / "data")}, "delete": {"enabled": True}},
        "http": {"addr": f"127.0.0.1:{port}", "secret": "of-this-test"},
    }
    if certified_by is not None:
        key, certificate = certified_by.certify(home)
        plain["http"]["tls"] = {"key": str(key), "certificate": str(certificate)}
    if auth:
        plain["auth"] = auth
    elif user:
        lines = subprocess.run(["htpasswd", "-Bbn", user, password], capture_output=True, check=True).stdout
        (home / "htpasswd").write_bytes(lines)
        plain["auth"] = {"htpasswd": {"realm": "tests", "path": str(home / "htpasswd")}}
    (home / "config.yml").write_text(json.dumps(plain))  # JSON is valid YAML
    assert PROGRAM is not None
    with open(home / "log", "wb") as log:
        process = subprocess.Popen([PROGRAM, "serve", str(home / "config.yml")], stdout=log, stderr=log, cwd=home)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _listens(port: int, process: "subprocess.Popen[bytes]") -> bool:
    end = time.monotonic() + TIMEOUT
    while time.monotonic() < end and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return True
        except OSError:
            time.sleep(0.02)
    return False
