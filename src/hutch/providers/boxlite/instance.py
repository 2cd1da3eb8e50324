"""`BoxLiteInstance`: a micro virtual machine with our guest inside."""

import asyncio
from typing import Any

from hutch.errors import BoxBroken, HutchError, NotFound
from hutch.model.spec import EffectiveSpec
from hutch.providers.base import InstanceRecord
from hutch.providers.boxlite.sdk import translate_errors
from hutch.providers.guest_bundle.pack import GuestBundle
from hutch.providers.stdio_relay import install
from hutch.providers.stdio_relay.instance import RelayedInstance
from hutch.providers.stdio_relay.stream import RelayStream


class BoxLiteInstance(RelayedInstance):
    """A box in a virtual machine. Its relay is an execution whose streams the package carries."""

    def __init__(
        self,
        record: InstanceRecord,
        spec: EffectiveSpec,
        box: Any,
        bundle: GuestBundle,
        *,
        options: bytes | None = None,
    ) -> None:
        super().__init__(record, spec, options=options)
        self._box = box
        self._bundle = bundle

    async def relay(self, *, fresh: bool) -> RelayStream:
        try:
            async with translate_errors("connect"):
                running = await self._box.exec(
                    "/bin/sh", ["-c", install.relay_command(self._bundle, fresh=fresh)], user="0:0"
                )
                source, out, err = running.stdin(), running.stdout(), running.stderr()
        except NotFound as error:
            raise BoxBroken(f"box {self.record.box_id} is gone: {error.message}") from error

        async def send(data: bytes) -> None:
            async with translate_errors("connect"):
                await source.send_input(data)

        async def end() -> None:
            async with translate_errors("connect"):
                await running.kill()

        stream = RelayStream(send, end)
        stream.watching = asyncio.create_task(_carry(out, err, stream))
        return stream

    async def is_alive(self) -> bool:
        try:
            async with translate_errors("connect"):
                return bool((await self._box.info()).state.running)
        except NotFound:
            return False
        except HutchError:
            return True  # nobody can say, so it counts as alive


async def _carry(out: Any, err: Any, stream: RelayStream) -> None:
    async def complain() -> None:
        async for text in err:
            stream.feed_stderr(text)

    complaining = asyncio.create_task(complain())
    try:
        async for text in out:
            stream.feed_output(text if text.endswith("\n") else f"{text}\n")  # the package gives one line at a time
        await complaining
    except Exception as error:  # however the relay ended, its link is over, and the link's users get the error
        stream.ended(error)
    else:
        stream.ended()
    finally:
        complaining.cancel()
