"""One process of the fleet: it crawls, and does its share of telling.

python crawler.py --subscribe http://127.0.0.1:8002/hook      # the first, and once: it is remembered
python crawler.py                                             # as many more as you like
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal

import httpx
from fleet import EVERY, SHOP, courts, hf, subscribe

PAGES = 2


async def crawl() -> None:
    async with httpx.AsyncClient(base_url=SHOP, timeout=5) as web:
        while True:
            for page in range(PAGES):
                await look(web, page)
            await asyncio.sleep(EVERY / 4)


async def look(web: httpx.AsyncClient, page: int) -> None:
    """One process of the fleet looks at a page in each interval, and what it says is read once."""
    if not await hf.once("looks", page, within=EVERY):
        return
    try:
        reply = await web.get(f"/courts/{page}")
        reply.raise_for_status()
    except httpx.HTTPError as error:
        print(f"page {page}: {error!r}", flush=True)
        return
    raw = reply.json()
    await courts.process("shop", (page, raw["version"]), raw)


async def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--subscribe", metavar="URL", help="tell this address of every change from now on")
    chosen = options.parse_args()
    async with hf:
        if chosen.subscribe:
            await subscribe(chosen.subscribe)
        crawling = asyncio.create_task(crawl())
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, crawling.cancel)
        working = asyncio.create_task(hf.work())
        print(f"crawling (pid {os.getpid()})", flush=True)
        await asyncio.wait([crawling, working], return_when=asyncio.FIRST_COMPLETED)
        crawling.cancel()
        hf.stop_work()
        await working


if __name__ == "__main__":
    asyncio.run(main())
