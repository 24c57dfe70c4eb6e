"""The node inside somebody else's application, under a prefix: pages, API, streams; and no less careful there."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from urllib.parse import quote

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from node_running import OPERATOR
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from holdfast import ActiveRun, Holdfast
from holdfast.node.app import create, mount
from support.backends import Backend
from support.conditions import until


@contextlib.asynccontextmanager
async def served(app: object) -> AsyncIterator[str]:
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", lifespan="off", ws="none"))
    task = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


def outer(kind: str, hf: Holdfast, **options: object) -> object:
    if kind == "starlette":
        return Starlette(
            routes=[Route("/own", lambda _: PlainTextResponse("own")), mount("/ops/holdfast", hf, **options)]
        )
    app = FastAPI()

    @app.get("/own")
    def own() -> str:
        return "own"

    app.mount("/ops/holdfast", create(hf, **options))
    return app


@pytest.mark.parametrize("kind", ["starlette", "fastapi"])
async def test_pages_api_and_streams_work_under_a_prefix(kind: str, valkey: Backend):
    async with Holdfast(valkey.url, report=0.2) as hf:
        runs = hf.runs("agent")

        @hf.runner(runs)
        async def handler(run: ActiveRun) -> int:
            for number in range(5):
                await run.emit({"n": number})
            return 5

        working = asyncio.create_task(hf.work())
        async with served(outer(kind, hf)) as address, httpx.AsyncClient(base_url=address, verify=False) as http:
            assert "own" in (await http.get("/own")).text
            at = "/ops/holdfast"
            hostile = quote("a/b ?#%2F", safe="")
            answer = await http.post(f"{at}/v1/buffers/b/messages", json={"user": "a/b ?#%2F", "data": 1})
            assert answer.status_code == 201
            assert (await http.get(f"{at}/v1/buffers/b/users/{hostile}")).json()["waiting"] == 1
            assert (await http.post(f"{at}/v1/runs/agent", json={"id": "r"})).status_code == 201
            events = (await http.get(f"{at}/v1/runs/agent/r/events")).text
            assert [json.loads(line[6:])["n"] for line in events.split("\n") if line.startswith('data: {"n"')] == [
                0, 1, 2, 3, 4]  # fmt: skip
            document = (await http.get(f"{at}/openapi.json")).json()
            assert document["servers"] == [{"url": at}]
            docs = (await http.get(f"{at}/docs")).text
            assert f"{at}/docs.css" in docs
            assert (await http.get(f"{at}/docs.css")).status_code == 200
            page = await http.get(f"{at}/")
            assert page.status_code == 200
            assert f'href="{at}/' in page.text
            assert 'href="/static' not in page.text
            assert page.headers["x-frame-options"] == "DENY"
            assert "x-frame-options" not in (await http.get("/own")).headers, "other people's pages are their own"
            for path in ("healthz", "readyz", "metrics", "locks", "buffers", "runs"):
                assert (await http.get(f"{at}/{path}")).status_code == 200, path
            assert (await http.get(f"{at}/v1/nothing")).status_code == 404
            assert (await http.get(f"{at}/v1/locks?limit=x")).headers["content-type"] == "application/problem+json"
        hf.stop_work()
        await working


async def test_with_a_token_signing_in_stays_under_the_prefix(valkey: Backend):
    async with Holdfast(valkey.url) as hf:
        app = outer("starlette", hf, token=OPERATOR)
        async with served(app) as address, httpx.AsyncClient(base_url=address, verify=False) as http:
            at = "/ops/holdfast"
            assert (await http.get(f"{at}/v1/fleet")).status_code == 401
            page = await http.get(f"{at}/locks", headers={"accept": "text/html"})
            assert page.headers["location"] == f"{at}/login?next={quote(f'{at}/locks', safe='')}"
            signed = await http.post(f"{at}/login", data={"token": OPERATOR, "next": f"{at}/locks"})
            assert signed.headers["location"] == f"{at}/locks"
            assert f"Path={at}/" in signed.headers["set-cookie"]
            for away in ("/own", "//evil.example", f"{at}//evil.example", "https://evil.example"):
                http.cookies.clear()
                answer = await http.post(f"{at}/login", data={"token": OPERATOR, "next": away})
                assert answer.headers["location"].startswith(f"{at}/"), away
            assert (await http.get(f"{at}/v1/fleet")).status_code == 200


async def test_without_a_token_only_this_machine_is_answered(valkey: Backend):
    async with Holdfast(valkey.url) as hf:
        app = outer("fastapi", hf)
        for peer, host, status in (
            ("127.0.0.1", "localhost", 200), ("203.0.113.9", "localhost", 403), ("10.0.0.7", "10.0.0.1", 403),
            ("127.0.0.1", "app.example.org", 403), ("::1", "[::1]:80", 200),
        ):  # fmt: skip
            transport = httpx.ASGITransport(app, client=(peer, 1234))
            async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}") as http:
                assert (await http.get("/ops/holdfast/v1/fleet")).status_code == status, (peer, host)
                assert (await http.get("/own")).status_code == 200


async def test_a_client_that_is_not_open_yet_is_said(valkey: Backend):
    hf = Holdfast(valkey.url)
    transport = httpx.ASGITransport(outer("starlette", hf))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        answer = await http.get("/ops/holdfast/v1/fleet")
        assert answer.status_code >= 400
        assert "open" in answer.json()["detail"]
        async with hf:
            assert (await http.get("/ops/holdfast/v1/fleet")).status_code == 200
