"""Pictures of the dashboard for the documentation: a node, a fleet that works, and the system's Chromium.

    make screenshots

Everything is real: the numbers are those of the minute in which the pictures are taken. They go to docs/images.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import random
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import uvicorn
from playwright.async_api import Browser, async_playwright

from holdfast import ActiveRun, Batch, Delivery, Holdfast, Lock, Semaphore
from holdfast.memory import MonitorStore
from holdfast.node.app import create, running
from holdfast.node.dashboard.monitors import thing_token
from holdfast.testing import LocalServer

IMAGES = Path(__file__).parents[1] / "docs" / "images"
WARM_UP = 290.0
"""Seconds of work before the first picture, so that charts have something to show."""
MOST_BYTES = 250_000
WIDTH, HEIGHT = 1280, 900
WORDS = "a holdfast keeps kelp on its rock while the sea pulls at it all night and in the morning it is still there"

PICTURES = {
    "overview-light": ("/?span=300", "light", 1180),
    "overview-dark": ("/?span=300", "dark", 1180),
    "locks": ("/locks", "light", 520),
    "buffers": ("/buffers/messages?order=oldest", "light", 820),
    "run": ("/runs/agent?state=running", "light", 900),
    "monitor": (f"/monitors/venues/things/{thing_token('club', ('court', 3))}", "dark", 760),
    "try": ("/try?buffer=messages&user=you&runs=agent&run=answer-1", "light", 700),
}
"""Of each: its page, light or dark, and how much of it is shown."""


# -- a fleet that works -----------------------------------------------------------------------------------------------


def work_on(hf: Holdfast, store: MonitorStore) -> None:
    """What each worker does. Some of it fails, as it does."""
    draw = random.Random(hf.settings.name)

    @hf.absorber(hf.buffer("messages"), threshold=8, max_age=6, concurrency=8, max_attempts=2, backoff=0.3)
    async def remember(batch: Batch) -> None:
        await asyncio.sleep(draw.uniform(0.01, 0.12))
        if batch.key == "user-13" and draw.random() < 0.4:
            raise ConnectionError("the model answered 503")

    @hf.runner(hf.runs("agent"), resumable=True)
    async def answer(run: ActiveRun) -> dict[str, int]:
        words = WORDS.split()
        for number in range(run.saved or 0, len(words)):
            await run.emit({"token": words[number]})
            await run.checkpoint(number + 1)
            await asyncio.sleep(draw.uniform(0.1, 0.8))
            if draw.random() < 0.002:
                raise TimeoutError("no token for 30 s")
        return {"words": len(words)}

    venues = hf.monitor("venues", store=store)

    @venues.subscriber("board", first=True)
    async def told(delivery: Delivery) -> None:
        await asyncio.sleep(draw.uniform(0.001, 0.02))


async def live(hf: Holdfast) -> None:
    """People and programs that use the fleet."""
    draw = random.Random("people")
    jobs = [
        asyncio.create_task(job)
        for job in (talk(hf, draw), start(hf, draw), look(hf, draw), *(hold(hf, draw, n) for n in range(12)))
    ]
    try:
        await asyncio.gather(*jobs)
    finally:
        for job in jobs:
            job.cancel()


async def talk(hf: Holdfast, draw: random.Random) -> None:
    beat = 0.0
    while True:
        beat += 0.2
        for _ in range(draw.randint(0, int(6 + 5 * (1 + (beat % 30) / 15)))):
            await hf.buffer("messages").append(f"user-{int(draw.paretovariate(0.9)) % 400}", {"text": "hello"})
        await asyncio.sleep(0.2)


async def start(hf: Holdfast, draw: random.Random) -> None:
    number = 0
    while True:
        number += 1
        await hf.runs("agent").start(
            f"answer-{number}", {"prompt": "why?"}, key=f"project-{number % 5}", conflict="queue"
        )
        await asyncio.sleep(draw.uniform(1.0, 4.0))


async def look(hf: Holdfast, draw: random.Random) -> None:
    prices = dict.fromkeys(range(1, 7), 20.0)
    while True:
        court = draw.randint(1, 6)
        prices[court] = round(max(8.0, prices[court] + draw.gauss(0, 1.5)), 1)
        state = {"status": draw.choice(["free", "free", "taken"]), "price": prices[court]}
        await hf.monitor("venues").observe("club", ("court", court), state)
        await asyncio.sleep(draw.uniform(0.1, 0.5))


async def hold(hf: Holdfast, draw: random.Random, number: int) -> None:
    kinds: list[Lock | Semaphore] = [
        hf.lock(f"report:{number // 3}", ttl=20),
        hf.semaphore("gpu", 3, ttl=20),
        hf.rwlock("price list", ttl=20).read(),
    ]
    while True:
        async with kinds[number % 3]:
            await asyncio.sleep(draw.uniform(0.5, 6.0))
        await asyncio.sleep(draw.uniform(0.1, 1.5))


# -- the node and the browser -----------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def serving(hf: Holdfast, store: MonitorStore) -> AsyncIterator[str]:
    app = create(hf, store=store, sample=2.0)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", lifespan="off"))
    async with running(app):
        task = asyncio.create_task(server.serve())
        while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        app.node.close()
        server.should_exit = True
        await task


async def take(browser: Browser, base: str, name: str) -> None:
    path, scheme, height = PICTURES[name]
    options: Any = {"color_scheme": scheme, "viewport": {"width": WIDTH, "height": height}, "reduced_motion": "reduce"}
    page = await browser.new_page(**options)
    await page.goto(base + path)
    if name == "run":
        await page.click("tbody tr:first-child a")  # the latest
    await page.wait_for_selector('[data-status="live"]')
    await page.wait_for_timeout(2500)
    file = IMAGES / f"{name}.png"
    await page.screenshot(path=file)
    await page.close()
    _squeeze(file)
    print(f"{file.relative_to(IMAGES.parents[1])}: {file.stat().st_size // 1000} kB")


def _squeeze(file: Path) -> None:
    """Packed as well as it can be, where Pillow is installed; no colour changes."""
    with contextlib.suppress(ImportError):
        from PIL import Image

        with Image.open(file) as picture:
            picture.convert("RGB").save(file, optimize=True)
    if file.stat().st_size > MOST_BYTES:
        sys.exit(f"make {file.name} smaller: it has {file.stat().st_size} bytes")


async def main(names: list[str], warm_up: float) -> None:
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        sys.exit("install chromium: pictures are taken with it")
    IMAGES.mkdir(parents=True, exist_ok=True)
    logging.getLogger("holdfast").setLevel(logging.CRITICAL)  # what fails here is meant to
    with (
        LocalServer() as server,
        tempfile.TemporaryDirectory() as folder,
        MonitorStore(f"sqlite:///{folder}/monitor.db") as store,
    ):
        async with contextlib.AsyncExitStack() as stack:
            node, *workers, web = [
                await stack.enter_async_context(Holdfast(server.url, name=name, report=2))
                for name in ("node", "worker-a", "worker-b", "web")
            ]
            for worker in workers:
                work_on(worker, store)
            tasks = [asyncio.create_task(work) for work in (*(one.work() for one in workers), live(web))]
            try:
                async with serving(node, store) as base, async_playwright() as playwright:
                    await asyncio.sleep(warm_up)
                    options = ["--no-sandbox", "--disable-gpu"]
                    browser = await playwright.chromium.launch(executable_path=chromium, args=options)
                    for name in names:
                        await take(browser, base, name)
                    await browser.close()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(PICTURES), help=", ".join(PICTURES))
    parser.add_argument("--warm-up", type=float, default=WARM_UP, help="seconds of work before the first picture")
    given = parser.parse_args()
    asyncio.run(main(given.names, given.warm_up))
