"""A process that reads pages for another one, so that no page can keep that one busy.

Parsers, JSONPath and regular expressions run with the interpreter locked: a page that was made for it stops every
thread of a process for minutes, and with them the renewal of its leases. (A page of 200 000 `<div>` takes lexbor more
than a minute, one of 15 kB does with the selector `i div div p`, and `(a+)+$` needs 40 characters.) A thread with a
deadline cannot be ended; a process can.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from holdfast.monitor.extract import Extract, NothingFound
from holdfast.monitor.page import PageUnreadable
from holdfast.monitor.page_process import FRAME

T = TypeVar("T")
CPU_SECONDS = 3.0
"""What reading one page may cost. A usual one costs milliseconds."""
WALL_SECONDS = 30.0
"""However busy the machine is."""
GRACE = 2.0
"""For one that is to end by itself. It is not killed at once: that would take its exit code away from the loop."""
MEMORY = 1 << 30
"""Bytes that the process may have, where the system can tell it so."""
_MOST_REPLY = 16 * 1_048_576
_KEPT_ENVIRONMENT = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONHOME", "SYSTEMROOT")
_START = """
import json, sys, types
package = types.ModuleType("holdfast")
package.__path__ = [sys.argv[2]]
sys.modules["holdfast"] = package
sys.path[:] = json.loads(sys.argv[1])
from holdfast.monitor.page_process import serve
serve(float(sys.argv[3]), int(sys.argv[4]))
"""
"""The package is put in place without running its own `__init__`: that imports the client, and takes ten times as long
as all that is needed here."""


class Reader:
    """Runs extractions in a process of its own, one after the other.

    It is started at the first page, sees no setting and no environment of this one, and ends with it. A page that takes
    more than `seconds` of computing, or more than `memory` bytes, fails, and no other does. Belongs to one event loop.
    Call `close`."""

    def __init__(self, seconds: float = CPU_SECONDS, memory: int = MEMORY) -> None:
        self._seconds = seconds
        self._memory = memory
        self._process: asyncio.subprocess.Process | None = None
        self._one_at_a_time = asyncio.Lock()

    async def read(self, extract: Extract, body: bytes, content_type: str) -> Any:
        """What the extraction answers. Raises NothingFound or PageUnreadable. Cancelled, it ends the process."""
        request = json.dumps({"extract": extract.options, "type": content_type}).encode()
        async with self._one_at_a_time:
            try:
                process = await _to_its_end(self._running())
                async with asyncio.timeout(WALL_SECONDS):
                    kind, reply = await _ask(process, request, body)
            except TimeoutError:
                raise self._gave_up(await _to_its_end(self._end(kill=True))) from None
            except (EOFError, OSError):
                raise self._gave_up(await _to_its_end(self._end())) from None
            except BaseException:
                await _to_its_end(self._end(kill=True))
                raise
        if kind == b"v":
            return json.loads(reply)
        raise NothingFound(reply.decode()) if kind == b"n" else PageUnreadable(reply.decode())

    async def close(self) -> None:
        """End the process. The next `read` would start another. Cancelling does not stop it."""
        await _to_its_end(self._end())

    def _gave_up(self, code: int | None) -> PageUnreadable:
        if code == -signal.SIGPROF:
            return PageUnreadable(f"choose another selector or page: this one takes over {self._seconds:g} s to read")
        return PageUnreadable(f"check the page: the process that read it ended with {code}")

    async def _running(self) -> asyncio.subprocess.Process:
        if self._process is not None and self._process.returncode is None:
            return self._process
        await self._end()
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _START,
            json.dumps(sys.path), str(Path(__file__).parents[1]), str(self._seconds), str(self._memory),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
            env={name: os.environ[name] for name in _KEPT_ENVIRONMENT if name in os.environ},
            start_new_session=True,  # Ctrl-C in the terminal is for who asked, not for it
        )  # fmt: skip
        return self._process

    async def _end(self, *, kill: bool = False) -> int | None:
        """Answers its exit code. It ends by itself when its standard input does, unless it is busy."""
        process, self._process = self._process, None
        if process is None:
            return None
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0 if kill else GRACE):
                return await process.wait()
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.stdout.read()
        return await process.wait()


async def _to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Cancelling waits for it: half a process, started or ended, cannot be cleaned up."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


async def _ask(process: asyncio.subprocess.Process, *frames: bytes) -> tuple[bytes, bytes]:
    assert process.stdin is not None
    assert process.stdout is not None
    for frame in frames:
        process.stdin.write(FRAME.pack(b"q", len(frame)))
        process.stdin.write(frame)
    await process.stdin.drain()
    kind, size = FRAME.unpack(await process.stdout.readexactly(FRAME.size))
    if size > _MOST_REPLY:
        raise OSError("what was found is too large")
    return kind, await process.stdout.readexactly(size)
