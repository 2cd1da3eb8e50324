"""Pulls on behalf of callers: in threads of their own, watched from the event loop, given up when the caller leaves."""

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

AT_ONCE = 4
"""Pulls of one server; further ones wait their turn."""
NEWS_SECONDS = 0.2
"""How often it is looked how far they are."""


class Pulls:
    """Those of one server."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="hutch-image")

    async def pull(
        self, store: Store, name: str, platform: Platform | None, draining: asyncio.Event
    ) -> AsyncGenerator[LayerProgress | ImageDetails, None]:
        """How far each layer is, when that has changed, and at last the image. Closing it gives the pull up."""
        stop = threading.Event()
        latest: dict[str, LayerProgress] = {}  # written by the pull's threads, one whole entry at a time

        def listen(news: LayerProgress) -> None:
            latest[news.layer] = news

        def work() -> ImageDetails:
            image = pull(store, name, PullOptions(platform=platform, listener=listen), stop)
            return views.details(store, image.stored)

        working = asyncio.wrap_future(self._threads.submit(work))
        working.add_done_callback(_seen)
        told: dict[str, LayerProgress] = {}
        try:
            while True:
                ended = (await asyncio.wait({working}, timeout=NEWS_SECONDS))[0]
                for news in list(latest.values()):
                    if told.get(news.layer) != news:
                        told[news.layer] = news
                        yield news
                if ended:
                    yield working.result()
                    return
                if draining.is_set():
                    raise Unavailable("the server is about to end", retry_after=1.0, remedy="ask again when it is back")
        finally:
            # The threads stop at their next piece; what has arrived whole waits for the next try.
            stop.set()
            working.cancel()


def _seen(working: "asyncio.Future[ImageDetails]") -> None:
    """Whoever left does not ask how it ended."""
    if not working.cancelled():
        working.exception()
