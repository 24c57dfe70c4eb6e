"""Who wants to know: a webhook that has each change once, although messages may come twice. It has no Holdfast server.

RECEIVER_FORGETS=3 python receiver.py     # stores the first three messages, and answers as if it had not
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import sqlite3
import time
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException, Request

from holdfast.monitor.sinks import verify

SECRET = os.environ.get("FLEET_SECRET", "a secret that both sides know")
FILE = os.environ.get("RECEIVER_DB", "receiver.db")

app = FastAPI(title="A receiver")
app.state.messages = 0
app.state.forgets = int(os.environ.get("RECEIVER_FORGETS", "0"))


@app.post("/hook", status_code=204)
async def hook(request: Request) -> None:
    body = await request.body()
    try:
        verify(SECRET, dict(request.headers), body, now=time.time())
    except Exception as error:
        raise HTTPException(401, str(error)) from None
    app.state.messages += 1
    await asyncio.to_thread(keep, json.loads(body))
    if app.state.messages <= app.state.forgets:
        raise HTTPException(503, "stored, but the sender does not get to know")


@app.get("/changes")
async def changes() -> dict[str, Any]:
    return {"messages": app.state.messages, "changes": await asyncio.to_thread(kept)}


def keep(message: dict[str, Any]) -> None:
    """The id of a change is its key: a message that comes again changes nothing."""
    rows = [(change["id"], message["monitor"], json.dumps(change)) for change in message["changes"]]
    with database() as db:
        db.executemany("INSERT OR IGNORE INTO changes VALUES (?, ?, ?)", rows)
    db.close()


def kept() -> list[dict[str, Any]]:
    db = database()
    found = [json.loads(text) for (text,) in db.execute("SELECT data FROM changes ORDER BY id")]
    db.close()
    return found


def database() -> sqlite3.Connection:
    db = sqlite3.connect(FILE)
    db.execute("CREATE TABLE IF NOT EXISTS changes (id TEXT, monitor TEXT, data TEXT, PRIMARY KEY (monitor, id))")
    return db


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--port", type=int, default=8002, help="0: any that is free")
    door = socket.create_server(("127.0.0.1", options.parse_args().port))
    print(f"receiver on http://127.0.0.1:{door.getsockname()[1]}", flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[door])
