"""The two ways to a box's guest: straight to its Pod's relay by TLS, or through the cluster's exec API."""

import asyncio
import ssl
from typing import Any

from hutch.errors import BoxBroken, HutchError, Refused, Unavailable
from hutch.providers.guest_bundle.listener import GUEST_DIR, framed_options
from hutch.providers.guest_client.link import Link
from hutch.providers.guest_client.queued_transport import QueuedTransport
from hutch.providers.kubernetes.cluster import Cluster
from hutch.providers.kubernetes.manifests import PORT

TIMEOUT = 30.0
_CONNECT_SECONDS = 5.0
_STDIN, _STDOUT, _STDERR, _STATUS = range(4)
"""The first byte of each message of the exec protocol says whose bytes follow."""
_PIECE = 1 << 17


async def connect_directly(address: str, certificate: str, token: str, options: bytes | None) -> Link:
    """Connect to the relay at the Pod's address, which has exactly this certificate.

    Raises Unavailable if there is no way to the Pod, or its guest does not answer.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # The certificate is the box's own; its name says nothing more.
    context.load_verify_locations(cadata=certificate)
    transport, link = await _connected(address, context, TIMEOUT if options is not None else _CONNECT_SECONDS)
    assert isinstance(transport, asyncio.WriteTransport)
    transport.write(token.encode() + b"\n" + (framed_options(options) if options is not None else b""))
    await link.wait_for_hello(TIMEOUT)
    return link


async def _connected(address: str, context: ssl.SSLContext, patience: float) -> tuple[asyncio.BaseTransport, Link]:
    """Connect to a relay. One that refuses may still be starting; no answer at all means that there is no way."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience
    while True:
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                return await loop.create_connection(Link, address, PORT, ssl=context)
        except ConnectionRefusedError as error:
            if loop.time() >= deadline:
                raise Unavailable(f"the relay at {address} does not listen: {error}", op="connect") from error
        except (OSError, TimeoutError) as error:
            raise Unavailable(f"Pod at {address} cannot be reached: {error or 'no answer'}", op="connect") from error
        await asyncio.sleep(0.05)


async def connect_by_exec(cluster: Cluster, pod: str, options: bytes | None) -> Link:
    """Run a relay in the Pod's relay container through the exec API, and connect through its streams."""
    words = ["wait"] if options is not None else []
    argv = ["python3", "-c", "from hutch.providers.guest_bundle.relay import main; main()", GUEST_DIR, *words]
    stream = ExecStream(cluster, pod, argv)
    if options is not None:
        stream.write(framed_options(options))
    try:
        await stream.link.wait_for_hello(TIMEOUT)
    except (BoxBroken, Unavailable) as error:
        if isinstance(stream.error, Refused):
            raise stream.error from error
        said = stream.stderr.strip() or (stream.error.message if stream.error else error.message)
        raise Unavailable(f"the guest of {pod} cannot be reached: {said}", op="connect") from error
    return stream.link


async def end_box(link: Link) -> None:
    """Let the guest end its box now, and return when it has gone."""
    try:
        await link.request("clock", ttl=0.001)
        while True:
            await link.request("clock")
    except (BoxBroken, Unavailable):
        return  # It answers until it is gone.
    finally:
        link.close()


class ExecStream(QueuedTransport):
    """A link's transport over one exec: bytes in messages of the exec protocol, both ways, in order."""

    def __init__(self, cluster: Cluster, pod: str, argv: list[str]) -> None:
        super().__init__()
        self.error: HutchError | None = None
        self._running = asyncio.create_task(self._run(cluster, pod, argv))

    def _end_process(self) -> None:
        self._running.cancel()

    async def _run(self, cluster: Cluster, pod: str, argv: list[str]) -> None:
        try:
            async with cluster.exec(pod, "relay", argv) as socket:

                async def send(data: bytes) -> None:
                    await socket.send_bytes(bytes((_STDIN,)) + data)

                self._start_sending(send, _PIECE)
                await self._receive(socket)
        except HutchError as error:
            self.error = error
        except Exception as error:  # The task's boundary: however the stream broke, the link's users get the error.
            self.error = Unavailable(f"the exec stream broke: {error or type(error).__name__}", op="connect")
        self.ended(self.error)

    async def _receive(self, socket: Any) -> None:
        while True:
            message = await socket.receive_bytes()
            if not message:
                continue
            channel, data = message[0], memoryview(message)[1:]
            if channel == _STDOUT:
                self._feed(data)
            elif channel == _STDERR:
                self.feed_stderr(bytes(data).decode("utf-8", "replace"))
            elif channel == _STATUS:
                return  # the relay has ended
