"""A chat back end: an answer can be stopped from anywhere, and its stream goes on after a reload or a crash.

python examples/chat/app.py                          # everything in one process, on a server that comes with it
HOLDFAST_URL=redis://… python examples/chat/app.py --no-runner      # and `holdfast work answers:hf` beside it
"""

from __future__ import annotations

import argparse
import socket
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn
from answers import answers, hf, memory, talks
from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import FileResponse, Response
from pydantic import BaseModel, Field
from starlette.middleware.trustedhost import TrustedHostMiddleware

from holdfast import Run
from holdfast.adapters.fastapi import event_stream, install, lifespan

PAGE = Path(__file__).with_name("page.html")


def make_app(workers: bool = True) -> FastAPI:
    app = FastAPI(title="Chat with stop and resume", lifespan=lifespan(hf, database, work=workers))
    install(app)  # no such run: 404; the server is away: 503
    app.include_router(router)
    # A page of another site cannot reach this under a name of its own.
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"])
    return app


@asynccontextmanager
async def database(app: FastAPI) -> AsyncIterator[None]:
    async with memory:
        yield


router = APIRouter()


class Question(BaseModel):
    prompt: str = Field(min_length=1, max_length=2000)


class Stop(BaseModel):
    reason: str = Field(default="by the user", max_length=200)


@router.get("/")
async def page() -> FileResponse:
    return FileResponse(PAGE)


@router.post("/chats/{chat}/runs", status_code=202)
async def start(chat: str, question: Question) -> dict[str, Any]:
    """Start an answer. A chat has one at a time: asked twice, the one that is there is answered."""
    run = await answers.start(uuid.uuid4().hex, {"prompt": question.prompt}, key=chat)
    return shown(run)


@router.get("/runs/{run_id}")
async def look(run_id: str) -> dict[str, Any]:
    return shown(await answers.get(run_id))


@router.post("/runs/{run_id}/stop")
async def stop(run_id: str, why: Stop) -> dict[str, Any]:
    """From any process: whoever runs it is told, wherever that is. A run that has ended stays as it ended."""
    return shown(await answers.stop(run_id, why.reason))


@router.get("/runs/{run_id}/events")
async def events(run_id: str, request: Request) -> Response:
    return await event_stream(answers, run_id, request, keep_alive=10)


@router.get("/chats/{chat}/turns")
async def said(chat: str) -> list[dict[str, Any]]:
    """What the model is shown: the newest turns."""
    return [{"role": entry.role, "text": entry.content} for entry in await talks.context(chat)]


@router.get("/chats/{chat}/memory")
async def recall(chat: str, q: str = "") -> list[str]:
    """What is kept for good: the best matches for these words, or the newest."""
    return [entry.content for entry in await memory.recall(chat, q)]


@router.delete("/chats/{chat}")
async def forget(chat: str) -> dict[str, int]:
    await talks.clear(chat)
    return {"memories": (await memory.forget(chat)).entries}


def shown(run: Run) -> dict[str, Any]:
    prompt = run.input["prompt"] if run.input else ""
    return {
        "id": run.id, "prompt": prompt, "state": run.state, "owner": run.owner, "attempt": run.attempt,
        "reason": run.reason,
    }  # fmt: skip


def main() -> None:
    options = argparse.ArgumentParser(description="A chat with stop and resume, for this machine only.")
    options.add_argument("--port", type=int, default=8000, help="0: any that is free")
    options.add_argument("--no-runner", action="store_true", help="the web part only; see `holdfast work`")
    chosen = options.parse_args()
    door = socket.create_server(("127.0.0.1", chosen.port))
    print(f"chat on http://127.0.0.1:{door.getsockname()[1]}", flush=True)
    # Streams stay open as long as runs last: a web process that ends does not wait for them, their readers come back.
    config = uvicorn.Config(make_app(not chosen.no_runner), log_level="warning", timeout_graceful_shutdown=1)
    uvicorn.Server(config).run(sockets=[door])


if __name__ == "__main__":
    main()
