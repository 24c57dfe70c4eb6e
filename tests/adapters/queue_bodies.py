"""What the workers of the queue tests do: they write down what happens, and wait at a gate until the test opens it."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import redis

import holdfast.sync

URL = os.environ.get("QUEUE_TEST_URL", "redis://127.0.0.1:1")
LEASE = 1.5

hf = holdfast.sync.Holdfast(URL)
agent = hf.runs("agent", lease=LEASE)
notes = redis.Redis.from_url(f"{URL}/3")


def note(name: str, what: str, **more: Any) -> None:
    notes.rpush(f"notes:{name}", json.dumps({"what": what, "pid": os.getpid(), **more}))


def noted(name: str, what: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in notes.lrange(f"notes:{name}", 0, -1)]
    return [one for one in found if one["what"] == what]


def think(name: str, run: Any, *, fail: bool = False) -> dict[str, Any]:
    note(name, "began", attempt=run.attempt, saved=run.saved)
    try:
        run.emit({"attempt": run.attempt})
        run.checkpoint({"from": run.attempt})
        note(name, "saved")
        while not notes.exists(f"gate:{name}"):
            run.check()
            time.sleep(0.01)
    finally:
        note(name, "left", stopping=run.stopping)
    if fail:
        raise ValueError("no luck today")
    return {"name": name, "attempt": run.attempt}
