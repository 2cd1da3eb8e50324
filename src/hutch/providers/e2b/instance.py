"""`E2BInstance`: a sandbox with our guest inside, kept alive by postponing its end while we hold it."""

import asyncio
import time
from typing import Any

from hutch.errors import BoxBroken, HutchError, NotFound
from hutch.logs import log
from hutch.model.spec import EffectiveSpec
from hutch.providers.base import InstanceRecord
from hutch.providers.e2b.sdk import translate_errors
from hutch.providers.guest_bundle.pack import GuestBundle
from hutch.providers.stdio_relay import install
from hutch.providers.stdio_relay.instance import RelayedInstance
from hutch.providers.stdio_relay.stream import RelayStream

_AFTER = 5
"""The seconds from the end of a guest to the end of its sandbox."""


class E2BInstance(RelayedInstance):
    """A box in a sandbox, whose own end is kept `window` seconds ahead, so that it ends soon after a crash of ours."""

    def __init__(
        self,
        record: InstanceRecord,
        spec: EffectiveSpec,
        sandbox: Any,
        bundle: GuestBundle,
        *,
        window: int,
        ends_at: float,
        options: bytes | None = None,
    ) -> None:
        super().__init__(record, spec, options=options)
        self.sandbox = sandbox
        self._bundle = bundle
        self._window = window
        self._ends_at = ends_at
        """The Unix time at which the ttl ends, or 0 without a ttl."""
        self._keeping = asyncio.create_task(self._keep())

    async def relay(self, *, fresh: bool) -> RelayStream:
        handle: Any = None

        async def send(data: bytes) -> None:
            async with translate_errors("connect"):
                await handle.send_stdin(data)

        async def end() -> None:
            async with translate_errors("connect"):
                await handle.kill()

        stream = RelayStream(send, end)
        try:
            async with translate_errors("connect"):
                handle = await self.sandbox.commands.run(
                    install.relay_command(self._bundle, fresh=fresh), background=True, user="root", stdin=True,
                    timeout=0, retain_output=False, on_stdout=stream.feed_output, on_stderr=stream.feed_stderr,
                )  # fmt: skip
        except HutchError as error:
            stream.ended(error)
            if isinstance(error, NotFound):
                raise BoxBroken(f"box {self.record.box_id} is gone: {error.message}") from error
            raise
        stream.watching = asyncio.create_task(_await_end(handle, stream))
        return stream

    async def is_alive(self) -> bool:
        try:
            async with translate_errors("connect"):
                return bool(await self.sandbox.is_running())
        except HutchError:
            return True  # nobody can say, so it counts as alive

    async def _keep(self) -> None:
        """Postpone the sandbox's end again and again, but never beyond its ttl."""
        while True:
            await asyncio.sleep(self._window / 3)
            try:
                async with translate_errors("clock"):
                    await self.sandbox.set_timeout(self.left())
            except NotFound:
                return
            except HutchError as error:
                log("e2b").warning("the end of a sandbox was not moved", box=self.record.box_id, error=error.message)

    def left(self) -> int:
        """Return the seconds until the sandbox's new end. Its guest ends at the ttl, and the sandbox soon after."""
        if not self._ends_at:
            return self._window
        return max(1, min(self._window, int(self._ends_at - time.time()) + _AFTER))

    async def set_clocks(self, *, orphan_grace_sec: float | None = None, ttl_sec: float | None = None) -> None:
        await super().set_clocks(orphan_grace_sec=orphan_grace_sec, ttl_sec=ttl_sec)
        if ttl_sec is not None:
            self._ends_at = time.time() + ttl_sec if ttl_sec else 0.0
            async with translate_errors("clock"):
                await self.sandbox.set_timeout(self.left())

    async def pause(self) -> None:
        """Pause the whole sandbox, including its memory."""
        async with translate_errors("pause"):
            await self.sandbox.pause()
        for link in tuple(self._links.values()):
            link.close()

    async def resume(self) -> None:
        async with translate_errors("resume"):
            await self.sandbox.connect(timeout=self._window)

    async def close(self) -> None:
        self._keeping.cancel()
        await super().close()


async def _await_end(handle: Any, stream: RelayStream) -> None:
    try:
        await handle.wait()
    except Exception as error:  # however the relay ended, its link is over, and the link's users get the error
        stream.ended(error)
    else:
        stream.ended()
