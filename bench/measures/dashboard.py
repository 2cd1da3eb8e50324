"""The dashboard's list of boxes: the longest time for which its page does not react, with many boxes and with five."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from bench.context import Context
from bench.measures.http import Served, served
from bench.numbers import Number, Summary, at_most_times

if TYPE_CHECKING:
    from playwright.async_api import Page

FEW = 5
MANY = 500
EVENTS_PER_SECOND = 50
WINDOWS = 20
"""Seconds that are watched; each gives one sample, its longest task."""
LONGEST_TASK = """async () => {
  const channel = new MessageChannel();
  let last = performance.now(), longest = 0;
  const end = last + 1000;
  await new Promise((resolve) => {
    channel.port1.onmessage = () => {
      const now = performance.now();
      longest = Math.max(longest, now - last);
      last = now;
      if (now < end) channel.port2.postMessage(0);
      else resolve();
    };
    channel.port2.postMessage(0);
  });
  return longest;
}"""


async def dashboard(context: Context) -> list[Number]:
    few = await _longest_tasks(context, "few", FEW)
    many = await _longest_tasks(context, "many", context.count(MANY))
    peer = f"{FEW} boxes"
    return [
        Number(
            "dashboard_task", f"longest task of the dashboard, {MANY} boxes and {EVENTS_PER_SECOND} events a second",
            "ms", Summary.of(many), {peer: Summary.of(few)}, (at_most_times(5, peer),),
        )
    ]  # fmt: skip


async def _longest_tasks(context: Context, name: str, count: int) -> list[float]:
    async with served(context, f"dashboard-{name}") as server:
        boxes = [await server.hutch.create(memory_mb=32, disk_mb=16) for _ in range(count)]
        stop = asyncio.Event()
        changing = asyncio.create_task(_change([box.id for box in boxes], server, stop))
        try:
            async with _page(server) as page:
                return [float(await page.evaluate(LONGEST_TASK)) for _ in range(context.count(WINDOWS))]
        finally:
            stop.set()
            await changing


async def _change(boxes: list[str], server: Served, stop: asyncio.Event) -> None:
    """Make events, so that the list has something to draw."""
    number = 0
    while not stop.is_set():
        box = await server.hutch.attach(boxes[number % len(boxes)])
        await box.rename(f"n{number}")
        number += 1
        await asyncio.sleep(1 / EVENTS_PER_SECOND)


@asynccontextmanager
async def _page(server: Served) -> "AsyncIterator[Page]":
    """The list of boxes in a browser, signed in and live."""
    from playwright.async_api import async_playwright

    flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=shutil.which("chromium"), args=flags)
        try:
            page = await browser.new_page(viewport={"width": 1280, "height": 860})
            await page.goto(f"{server.url}/boxes")
            await page.get_by_label("Key").fill(server.key)
            await page.get_by_role("button", name="Sign in").click()
            await page.locator(".rows .row:not(.head)").first.wait_for()
            await page.wait_for_timeout(2000)  # Drawing the page for the first time is another matter.
            yield page
        finally:
            await browser.close()
