"""A TCP proxy that cuts connections in the middle of a response."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Proxy:
    """Passes bytes on, but only `after` bytes of the first `cuts` responses that are long enough."""

    def __init__(self, target: str, after: int, cuts: int) -> None:
        host, _, port = target.partition(":")
        self._target = (host, int(port))
        self._after = after
        self._cuts = cuts
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.cut_count = 0
        self.passed = 0
        """Number of bytes that came back from the server."""
        self._threads: list[threading.Thread] = []

    def run(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            worker = threading.Thread(target=self._serve, args=(client,), daemon=True)
            self._threads.append(worker)
            worker.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for worker in self._threads:
            worker.join(10)

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(self._target) as server:
            upward = threading.Thread(target=_pass_on, args=(client, server), daemon=True)
            upward.start()
            received = 0
            while True:
                try:
                    data = server.recv(16384)
                except OSError:
                    break
                if not data:
                    break
                received += len(data)
                with self._lock:
                    self.passed += len(data)
                    cut = received > self._after and self.cut_count < self._cuts
                    self.cut_count += cut
                try:
                    client.sendall(data)
                    if cut:
                        break
                except OSError:
                    break
            _hang_up(client)
            _hang_up(server)
            upward.join(10)


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(16384):
            sink.sendall(data)
    except OSError:
        pass  # the other direction has closed
    _hang_up(sink)  # a server that keeps connections open would wait for the next request


def _hang_up(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        return


@contextmanager
def cutting_proxy(target: str, *, after: int, cuts: int) -> Iterator[Proxy]:
    proxy = Proxy(target, after, cuts)
    thread = threading.Thread(target=proxy.run, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.close()
        thread.join(10)
