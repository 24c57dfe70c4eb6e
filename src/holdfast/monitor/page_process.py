"""What runs in the process that reads pages: `Reader` starts it. It imports as little as it can."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import struct
import sys
from typing import IO, Any

from holdfast.monitor.extract import Extract, NothingFound, make_extract
from holdfast.monitor.page import PageUnreadable

FRAME = struct.Struct("!cI")
"""What comes before each part of a request or reply: its kind and its length."""


def serve(seconds: float, memory: int) -> None:
    """Read pages until standard input ends; each may take so many seconds of computing, and so many bytes."""
    _restrict(memory)
    source, target = sys.stdin.buffer, os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    extracts: dict[str, Extract] = {}
    while (request := _take(source)) is not None and (body := _take(source)) is not None:
        # The system ends the process with this. It does not ask the interpreter, which may be locked.
        signal.setitimer(signal.ITIMER_PROF, seconds)
        kind, reply = _answer(extracts, json.loads(request), body)
        signal.setitimer(signal.ITIMER_PROF, 0)
        target.write(FRAME.pack(kind, len(reply)) + reply)
        target.flush()


def _restrict(memory: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    with contextlib.suppress(ImportError, ValueError, OSError):  # not every system can
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _answer(extracts: dict[str, Extract], request: dict[str, Any], body: bytes) -> tuple[bytes, bytes]:
    name = json.dumps(request["extract"])
    try:
        if name not in extracts:
            extracts[name] = make_extract(**request["extract"])
        return b"v", extracts[name].encoded(body, request["type"])
    except NothingFound as error:
        return b"n", str(error).encode()
    except PageUnreadable as error:
        return b"u", str(error).encode()
    except Exception as error:  # whatever a parser does not expect: its text may quote the page
        return b"u", f"check the page: reading it failed with {type(error).__name__}".encode()


def _take(source: IO[bytes]) -> bytes | None:
    head = source.read(FRAME.size)
    if len(head) < FRAME.size:
        return None
    _, size = FRAME.unpack(head)
    frame = source.read(size)
    return frame if len(frame) == size else None
