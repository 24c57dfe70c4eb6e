"""Appends numbered messages at a steady rate and writes down what it was told of each."""

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path

from chaos.history.log import REFUSED, STORED, UNKNOWN, Log, Record
from holdfast import Holdfast, Indeterminate, Unavailable

BUFFER = "chaos"
CAPACITY = 100
FLOOD_EVERY, FLOOD = 2000, 120
"""Now and then more than fits at once, so that something is dropped and must be counted."""


async def main(url: str, log: Log, first: int, count: int, users: int, rate: float, callers: int) -> None:
    async with Holdfast(url, call_timeout=0.5, retry_for=25.0, connect_timeout=1.0) as hf:
        inbox = hf.buffer(BUFFER, capacity=CAPACITY)
        numbers = iter(range(first, first + count))
        started = time.monotonic()
        sent = 0

        async def call(number: int, size: int) -> None:
            user = f"user-{number % users}"
            items = [{"text": str(n)} for n in range(number, number + size)]
            try:
                done = await (inbox.append(user, items[0]) if size == 1 else inbox.extend(user, items))
                log.write(Record(number, size, STORED, sum(done.dropped.values())))
            except Indeterminate as error:
                log.write(Record(number, size, UNKNOWN, 0, str(error)[:200]))
            except Unavailable as error:
                log.write(Record(number, size, REFUSED, 0, str(error)[:200]))

        async def caller() -> None:
            nonlocal sent
            for number in numbers:
                size = 1
                if number % FLOOD_EVERY == 0 and number + FLOOD <= first + count:
                    for _ in range(FLOOD - 1):
                        next(numbers)
                    size = FLOOD
                sent += size
                await asyncio.sleep(max(0.0, started + sent / rate - time.monotonic()))
                await call(number, size)

        await asyncio.gather(*(caller() for _ in range(callers)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("url", "folder"):
        parser.add_argument(name)
    for name in ("first", "count", "users", "callers", "number"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--rate", type=float, required=True)
    options = parser.parse_args()
    history = Log(Path(options.folder) / f"producer-{options.number}.jsonl")
    asyncio.run(main(options.url, history, options.first, options.count, options.users, options.rate, options.callers))
    history.close()
    print("done", flush=True)
