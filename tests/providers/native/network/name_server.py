"""A name server for tests: gives the answers of the test, and keeps the questions."""

import socket
import struct
import threading
from dataclasses import dataclass, field

from hutch.providers.native.network.namespaces import in_namespace


def query(name: str, identity: int = 0x1234) -> bytes:
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
    return struct.pack("!6H", identity, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!2H", 1, 1)


def name_in(packet: bytes) -> str:
    parts, at = [], 12
    while packet[at]:
        parts.append(packet[at + 1 : at + 1 + packet[at]].decode())
        at += 1 + packet[at]
    return ".".join(parts)


def answer(packet: bytes, address: str = "192.0.2.55") -> bytes:
    header = packet[:2] + struct.pack("!5H", 0x8180, 1, 1, 0, 0)
    record = struct.pack("!3HIH", 0xC00C, 1, 1, 60, 4) + socket.inet_aton(address)
    return header + packet[12:] + record


def framed(packet: bytes) -> bytes:
    return struct.pack("!H", len(packet)) + packet


@dataclass
class Asked:
    name: str
    identity: int
    peer: tuple[str, int]


@dataclass
class NameServer:
    """Names that begin with `silent` get no answer; with `forged`, three wrong ones before the right one."""

    namespace: int
    address: str
    asked: list[Asked] = field(default_factory=list)

    def __enter__(self) -> "NameServer":
        with in_namespace(self.namespace):
            self._datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self._datagrams.bind((self.address, 53))
            self._listener = socket.create_server((self.address, 53))
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._udp, self._tcp)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for each in (self._datagrams, self._listener):
            each.shutdown(socket.SHUT_RDWR) if each is self._listener else self._wake()
        for thread in self._threads:
            thread.join()
        self._datagrams.close()
        self._listener.close()

    def names(self) -> list[str]:
        return [each.name for each in self.asked]

    def _wake(self) -> None:
        with in_namespace(self.namespace), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ending:
            ending.sendto(b"", (self.address, 53))

    def _udp(self) -> None:
        while True:
            packet, peer = self._datagrams.recvfrom(4096)
            if not packet:
                return
            name = name_in(packet)
            self.asked.append(Asked(name, int.from_bytes(packet[:2], "big"), peer))
            if name.startswith("silent"):
                continue
            if name.startswith("forged"):
                other_identity = struct.pack("!H", int.from_bytes(packet[:2], "big") ^ 1)
                self._datagrams.sendto(answer(other_identity + packet[2:], "192.0.2.66"), peer)
                self._datagrams.sendto(answer(query("evil.test", int.from_bytes(packet[:2], "big"))), peer)
                self._datagrams.sendto(packet, peer)
            self._datagrams.sendto(answer(packet), peer)

    def _tcp(self) -> None:
        while True:
            try:
                connection, peer = self._listener.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as file:
                while size := file.read(2):
                    packet = file.read(int.from_bytes(size, "big"))
                    self.asked.append(Asked(name_in(packet), int.from_bytes(packet[:2], "big"), peer))
                    connection.sendall(framed(answer(packet)))
