"""Image pulls for callers: they run in threads, report progress to the event loop, and end with their caller."""

import asyncio
import threading
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor

from hutch.errors import Unavailable
from hutch.images import views
from hutch.images.manifests import Platform
from hutch.images.pull import LayerProgress, PullOptions, pull
from hutch.images.store import Store
from hutch.model.images import ImageDetails

MAX_CONCURRENT = 4
"""Pulls that one server runs at once; further ones wait."""
PROGRESS_SECONDS = 0.2
"""Seconds between progress reports."""


class Pulls:
    """The image pulls of one server."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(MAX_CONCURRENT, thread_name_prefix="hutch-image")

    async def pull(
        self, store: Store, name: str, platform: Platform | None, draining: asyncio.Event
    ) -> AsyncGenerator[LayerProgress | ImageDetails, None]:
        """Yield each layer's progress when it changes, and finally the image. Closing the generator ends the pull."""
        stop = threading.Event()
        latest: dict[str, LayerProgress] = {}  # The pull's threads write it, one whole entry at a time.

        def listen(news: LayerProgress) -> None:
            latest[news.layer] = news

        def work() -> ImageDetails:
            image = pull(store, name, PullOptions(platform=platform, listener=listen), stop)
            return views.details(store, image.stored)

        working = asyncio.wrap_future(self._threads.submit(work))
        working.add_done_callback(_retrieve_error)
        reported: dict[str, LayerProgress] = {}
        try:
            while True:
                ended = (await asyncio.wait({working}, timeout=PROGRESS_SECONDS))[0]
                for news in list(latest.values()):
                    if reported.get(news.layer) != news:
                        reported[news.layer] = news
                        yield news
                if ended:
                    yield working.result()
                    return
                if draining.is_set():
                    raise Unavailable("the server is stopping", retry_after=1.0, remedy="retry when it is back")
        finally:
            # The threads stop at their next piece; complete layers are kept for the next attempt.
            stop.set()
            working.cancel()


def _retrieve_error(working: "asyncio.Future[ImageDetails]") -> None:
    """Mark the error as retrieved: a caller that has left does not ask for it."""
    if not working.cancelled():
        working.exception()
