"""A memory service over HTTP.

python examples/memory_service/app.py                     # everything in one process, on a server that comes with it
HOLDFAST_URL=redis://… python app.py --no-workers         # and `holdfast work service:hf` beside it
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import uvicorn
from fastapi import FastAPI, HTTPException, Query, Request
from pydantic import BaseModel, Field
from service import hf, inbox, memory

from holdfast.adapters.fastapi import Once, idempotent, install, lifespan

UPLOADS = Path(os.environ.get("MEMORY_UPLOADS", "uploads"))
LARGEST = 10_000_000
DEADLINE = 600.0
"""Seconds that a message waits for an upload."""


class Message(BaseModel):
    text: str = Field(min_length=1, max_length=10_000)
    pending: list[str] = Field(default=[], max_length=5)


def user_of(user: str) -> str:
    """Who asks. A real service takes it from a token, and compares it with the path."""
    return user


@asynccontextmanager
async def database(app: FastAPI) -> AsyncIterator[None]:
    async with memory:
        yield


def make_app(workers: bool = True) -> FastAPI:
    app = FastAPI(title="Memory", lifespan=lifespan(hf, database, work=workers))
    install(app)
    app.post("/users/{user}/messages", status_code=202)(say)
    app.put("/users/{user}/messages/{message}/attachments/{name}")(upload)
    app.delete("/users/{user}/messages/{message}/attachments/{name}")(give_up)
    app.post("/users/{user}/flush")(flush)
    app.get("/users/{user}/memory")(recall)
    app.get("/users/{user}")(look)
    app.delete("/users/{user}")(forget)
    return app


async def say(user: str, new: Message, once: Annotated[Once, idempotent("say", by=user_of, required=False)]) -> Any:
    """Sent again with the same Idempotency-Key, it is stored once and answered the same."""
    return await once(keep, user, new)


async def keep(user: str, new: Message) -> dict[str, Any]:
    kept = await inbox.append(user, {"text": new.text}, pending=dict.fromkeys(new.pending, DEADLINE))
    return {"id": kept.id, "waiting": kept.length}


async def upload(user: str, message: str, name: str, request: Request) -> dict[str, Any]:
    """The bytes go into a file; the message gets to know where they are."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > LARGEST:
            raise HTTPException(413, f"send at most {LARGEST} bytes")
    file = await asyncio.to_thread(write, bytes(body))
    about = {"file": file, "bytes": len(body), "type": request.headers.get("content-type", "")}
    if not await inbox.resolve(user, message, name, about):
        raise HTTPException(404, "no message waits for this: it was handed on, or never said that it would come")
    return about


def write(body: bytes) -> str:
    """Named by what is in it, so that the same upload twice is one file."""
    UPLOADS.mkdir(parents=True, exist_ok=True)
    name = hashlib.sha256(body).hexdigest()
    part = UPLOADS / f".{os.urandom(8).hex()}"
    part.write_bytes(body)
    part.rename(UPLOADS / name)  # never half of it under its name
    return name


async def give_up(user: str, message: str, name: str) -> dict[str, bool]:
    """It will not come: its message waits no longer."""
    return {"known": await inbox.fail(user, message, name)}


async def flush(user: str) -> dict[str, bool]:
    """Absorb now, whatever the triggers say."""
    return {"waiting": await inbox.flush(user)}


async def recall(
    user: str, q: str = "", kind: str | None = None, limit: Annotated[int, Query(ge=1, le=100)] = 10
) -> list[dict[str, Any]]:
    """The best matches for the words in `q`; without it the newest."""
    found = await memory.recall(user, q, limit, kind)
    return [{"kind": one.kind, "text": one.content, "data": one.data, "at": one.at} for one in found]


async def look(user: str) -> dict[str, Any]:
    """How many messages wait, and how many are being absorbed."""
    stats = await inbox.stats(user)
    return {"waiting": stats.waiting, "in_flight": stats.in_flight}


async def forget(user: str) -> dict[str, int]:
    """All of it, wherever it is; a worker that still carries some of it is refused."""
    return {"memories": (await memory.forget(user)).entries}


def main() -> None:
    options = argparse.ArgumentParser(description="A memory service, for this machine only.")
    options.add_argument("--port", type=int, default=8000, help="0: any that is free")
    options.add_argument("--no-workers", action="store_true", help="the web part only; see `holdfast work`")
    chosen = options.parse_args()
    door = socket.create_server(("127.0.0.1", chosen.port))
    print(f"memory on http://127.0.0.1:{door.getsockname()[1]}", flush=True)
    uvicorn.Server(uvicorn.Config(make_app(not chosen.no_workers), log_level="warning")).run(sockets=[door])


if __name__ == "__main__":
    main()
