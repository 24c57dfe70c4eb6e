"""A server that does not answer and is not dead keeps nobody longer than was said."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import holdfast.sync
from holdfast import Holdfast, Indeterminate, Unavailable


async def test_a_frozen_embedded_server_keeps_the_time_limits(tmp_path: Path) -> None:
    # Given calls that may take 3 s, and an embedded server whose process is stopped
    limits = {"retry_for": 3.0, "call_timeout": 0.4, "connect_timeout": 0.4, "report": 0}
    async with Holdfast(f"embedded://{tmp_path}", **limits) as hf:
        inbox = hf.buffer("b")
        await inbox.append("u", 1)
        info = (await hf.command("INFO", "server")).decode()
        pid = next(int(line.partition(":")[2]) for line in info.splitlines() if line.startswith("process_id"))
        loop, took = asyncio.get_running_loop(), []

        async def one(number: int) -> None:
            began = loop.time()
            with pytest.raises((Unavailable, Indeterminate)):
                await inbox.append(f"u{number}", 1)
            took.append(loop.time() - began)

        os.kill(pid, signal.SIGSTOP)
        try:
            # when several call at once, each looks whether the server must be started again
            await asyncio.gather(*map(one, range(12)))
        finally:
            os.kill(pid, signal.SIGCONT)
        # expect them to give up soon after their time, and to go on when it does
        assert max(took) < 6.0, took
        await inbox.append("u", 2)


def test_a_frozen_embedded_server_keeps_the_time_limits_of_threads(tmp_path: Path) -> None:
    limits = {"retry_for": 3.0, "call_timeout": 0.4, "connect_timeout": 0.4, "report": 0}
    with holdfast.sync.Holdfast(f"embedded://{tmp_path}", **limits) as hf:
        inbox = hf.buffer("b")
        inbox.append("u", 1)
        info = hf.command("INFO", "server").decode()
        pid = next(int(line.partition(":")[2]) for line in info.splitlines() if line.startswith("process_id"))

        def one(number: int) -> float:
            began = time.monotonic()
            with pytest.raises((Unavailable, Indeterminate)):
                inbox.append(f"u{number}", 1)
            return time.monotonic() - began

        os.kill(pid, signal.SIGSTOP)
        try:
            with ThreadPoolExecutor(12) as threads:
                took = list(threads.map(one, range(12)))
        finally:
            os.kill(pid, signal.SIGCONT)
        assert max(took) < 6.0, took
        inbox.append("u", 2)
