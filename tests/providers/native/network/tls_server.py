"""A TLS server for tests, on an address of a test topology: the line that it is sent comes back many times over."""

import socket
import ssl
import subprocess
import threading
from contextlib import suppress
from pathlib import Path

from hutch.providers.native.network.namespaces import in_namespace

PORT = 4433
TIMES = 1000
_TIMEOUT = 30.0


class TlsServer:
    """Serves in a thread until it is closed; one connection after the other."""

    def __init__(self, namespace: int, address: str, directory: Path) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(*_certificate(address, directory))
        with in_namespace(namespace):
            self._listener = socket.create_server((address, PORT), backlog=64)
            # It acknowledges late, as a server does that is far away; over a cable of this topology it would at once.
            self._listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> "TlsServer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _serve(self) -> None:
        while True:
            try:
                plain, _ = self._listener.accept()
            except OSError:
                return  # closed
            plain.settimeout(_TIMEOUT)
            with plain, suppress(OSError), self._context.wrap_socket(plain, server_side=True) as connection:
                line = connection.makefile("rb").readline()
                connection.sendall(line * TIMES)


def _certificate(address: str, directory: Path) -> tuple[Path, Path]:
    cert, key = directory / "cert.pem", directory / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1",
         "-subj", f"/CN={address}", "-addext", f"subjectAltName=IP:{address}", "-keyout", str(key), "-out", str(cert)],
        capture_output=True, check=True, timeout=60,
    )  # fmt: skip
    return cert, key
