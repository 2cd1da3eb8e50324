"""Many boxes and many events: the page draws only the rows in sight, and its memory stays flat."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.dashboard.visitor import WAIT_MS, visiting
from tests.proofs import write
from tests.server.serving import Client, serving

MOST_ROWS = 60
"""Rows that a window of 900 pixels can show, with those drawn ahead."""
FLAT = 1.5
"""The heap after the load may be this much larger than at its beginning."""

expect.set_options(timeout=WAIT_MS)


@contextmanager
def changing(client: Client, boxes: list[str], per_second: float) -> Iterator[list[int]]:
    """Make events at this rate while the block runs; the list counts them. What a busy machine delays is caught up."""
    made, ended, begun = [0], threading.Event(), time.monotonic()

    def work() -> None:
        while not ended.wait(1 / per_second):
            while made[0] < (time.monotonic() - begun) * per_second and not ended.is_set():
                box = boxes[made[0] % len(boxes)]
                client.good("PATCH", f"/v1/boxes/{box}", {"name": f"n{made[0]}"})
                made[0] += 1

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield made
    finally:
        ended.set()
        thread.join()


def _heap(page: Page) -> float:
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    return float(session.send("Runtime.getHeapUsage")["usedSize"])


def _watch(browser: Browser, count: int, seconds: float, per_second: float) -> dict[str, float]:
    with serving() as server:
        key = server.key("user", "many")
        client = server.tcp(key)
        made = [client.good("POST", "/v1/boxes", {"memory_mb": 32, "disk_mb": 16})["id"] for _ in range(count)]
        with visiting(browser, server) as visitor, changing(client, made, per_second) as events:
            page = visitor.sign_in(key, "/boxes")
            expect(page.locator("main h1")).to_contain_text(str(count))
            page.wait_for_timeout(3000)
            first, most, begun, before = _heap(page), 0, time.monotonic(), events[0]
            while time.monotonic() - begun < seconds:
                page.locator(".rows-scroll").evaluate("(rows) => { rows.scrollTop = (rows.scrollTop + 997) % 9999; }")
                page.wait_for_timeout(500)
                most = max(most, page.locator(".rows .row:not(.head)").count())
            heap, lasted, seen = _heap(page), time.monotonic() - begun, events[0] - before
            visitor.check()
        assert seen > 0
        rate = round(seen / lasted, 1)
        return {"boxes": count, "rows": most, "seconds": round(lasted), "events": seen, "events_per_second": rate,
                "heap_mb": round(heap / 1e6, 1), "heap_ratio": round(heap / first, 2)}  # fmt: skip


def test_rows_are_bounded(browser: Browser, sample: object) -> None:
    """Of 80 boxes that change all the time only those in sight are drawn."""
    found = _watch(browser, 80, 4, 20)
    assert 0 < found["rows"] <= MOST_ROWS
    assert found["heap_ratio"] < FLAT * 2


@pytest.mark.proof
@pytest.mark.alone
@pytest.mark.timeout(1800)
def test_five_minutes_of_five_hundred_boxes(browser: Browser, sample: object) -> None:
    """500 boxes and 50 events a second for five minutes: rendered rows are bounded and memory is flat."""
    found = _watch(browser, 500, 300, 50)
    write("dashboard", **found)
    assert found["events_per_second"] > 45
    assert 0 < found["rows"] <= MOST_ROWS
    assert found["heap_ratio"] < FLAT
