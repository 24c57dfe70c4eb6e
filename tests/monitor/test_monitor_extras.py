"""What a plain installation can do: functions are told without any of the packages that the extras bring."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import asyncio, sys


class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("httpx", "h11", "idna", "selectolax", "jsonpath", "sqlalchemy", "apprise"):
            raise ImportError(name)


sys.meta_path.insert(0, Missing())
from holdfast import ConfigurationError, Holdfast


async def main():
    async with Holdfast("embedded:") as hf:
        things, told = hf.monitor("things"), asyncio.Event()

        @things.on_change
        async def tell(delivery):
            told.set()

        working = asyncio.create_task(hf.work())
        await things.observe("here", 1, "a")
        await things.observe("here", 1, "b")
        await told.wait()
        try:
            things.fetch("https://example.com")
        except ConfigurationError as error:
            print("told,", error)
        hf.stop_work()
        await working


asyncio.run(main())
"""


def test_functions_are_told_without_the_extras() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("told, pip install '.[monitor]'")
