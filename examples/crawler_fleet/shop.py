"""What is watched: a shop with six courts on two pages, and a notice on its front page. PUT changes them."""

from __future__ import annotations

import argparse
import html
import socket
import time
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException
from fastapi.responses import HTMLResponse
from pydantic import BaseModel

app = FastAPI(title="A shop")
app.state.notice = "open as usual"
app.state.version = 0
app.state.courts = {f"court-{number}": {"price": 10, "free": 3} for number in range(6)}


class Court(BaseModel):
    price: int
    free: int


@app.get("/")
async def front() -> HTMLResponse:
    return HTMLResponse(f"<!doctype html><title>Shop</title><p id=notice>{html.escape(app.state.notice)}</p>")


@app.get("/courts/{page}")
async def courts(page: int) -> dict[str, Any]:
    rows = [{"name": name, **court} for name, court in app.state.courts.items()][page * 3 : page * 3 + 3]
    return {"version": app.state.version, "at": time.time(), "courts": rows}


@app.put("/courts/{name}")
async def change(name: str, court: Court) -> Court:
    if name not in app.state.courts:
        raise HTTPException(404, "there is no such court")
    app.state.courts[name] = court.model_dump()
    app.state.version += 1
    return court


@app.put("/notice/{text}")
async def announce(text: str) -> str:
    app.state.notice = text
    return text


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--port", type=int, default=8001, help="0: any that is free")
    door = socket.create_server(("127.0.0.1", options.parse_args().port))
    print(f"shop on http://127.0.0.1:{door.getsockname()[1]}", flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[door])
