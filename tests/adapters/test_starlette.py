"""Events of runs over HTTP: a real uvicorn on the loopback interface, and a client that comes and goes."""

from __future__ import annotations

import asyncio
import base64
import importlib
import socket
import sys
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import uvicorn
from sse import Sent, all_of, reading
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.routing import Route

from holdfast import ConfigurationError, Holdfast, RunActive, Runs, Unavailable
from holdfast.adapters.starlette import event_stream
from holdfast.testing import LocalServer
from support.conditions import until

QUIET = 0.05


@pytest.fixture
async def hf(valkey: Any) -> AsyncIterator[Holdfast]:
    async with Holdfast(valkey.url) as client:
        yield client
    valkey.flush()


@pytest.fixture
async def agent(hf: Holdfast) -> Runs:
    return hf.runs("agent", retention=60, emit_delay=0.001)


@pytest.fixture
async def web(agent: Runs) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(agent) as client:
        yield client


class serving:
    """An application that streams the events of these runs, and a client of it."""

    def __init__(self, agent: Runs, **options: Any) -> None:
        async def events(request: Any) -> Any:
            return await event_stream(agent, request.path_params["run"], request, **{"keep_alive": QUIET, **options})

        self._app = Starlette(routes=[Route("/{run}/events", events)])

    async def __aenter__(self) -> httpx.AsyncClient:
        door = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(self._app, log_level="warning", lifespan="off", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._task = asyncio.create_task(self._server.serve(sockets=[door]))
        await until(lambda: self._server.started, what="uvicorn")
        self._client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{door.getsockname()[1]}", timeout=10)
        return self._client

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()
        self._server.should_exit = True
        await self._task


async def finished(agent: Runs, run_id: str, *data: Any) -> None:
    async with await agent.claim(run_id) as run:
        for one in data:
            await run.emit(one)
        run.result = "fine"


async def test_each_event_has_id_kind_and_json_and_the_end_is_last(agent: Runs, web: httpx.AsyncClient) -> None:
    values = [{"token": "hi\nthere\r\n\u2028é"}, [1, None, 1.5], "text", 2**80, b"\x00\xff"]
    await finished(agent, "r", *values)
    found = await all_of(web, "/r/events")
    assert [event.data for event in found[:-2]] == values[:-1]
    assert base64.b64decode(found[-2].data) == values[-1]
    assert [event.kind for event in found] == ["data"] * 5 + ["end"]
    assert found[-1].data == {"state": "completed", "reason": "", "result": "fine"}
    assert [event.id for event in found] == [event.id async for event in agent.events("r")]


async def test_headers_and_the_hint_when_to_come_back(agent: Runs) -> None:
    await finished(agent, "r")
    async with serving(agent, retry=0.25) as web:
        reply = await web.get("/r/events")
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert "no-cache" in reply.headers["cache-control"]
    assert reply.headers["x-accel-buffering"] == "no"
    assert reply.text.startswith("retry: 250\n\n")


async def test_who_comes_back_gets_each_later_event_once_and_the_end(agent: Runs, web: httpx.AsyncClient) -> None:
    # Given a reader that has seen some events of a run that goes on
    async with await agent.claim("r") as run:
        for number in range(10):
            await run.emit(number)
        seen: list[Sent] = []
        async with reading(web, "/r/events") as events:
            async for event in events:
                seen += [event] if event.kind == "data" else []
                if len(seen) == 4:
                    break
        for number in range(10, 15):
            await run.emit(number)
        # when it comes back as a browser does, with a query that is older than the header
        header = {"Last-Event-ID": seen[-1].id}
        async with reading(web, f"/r/events?after={seen[0].id}", headers=header) as events:
            async for event in events:
                seen += [event] if event.kind == "data" else []
                if len(seen) == 12:
                    break
        await run.emit(15)
    # expect each event once, and the end, whichever way it says where to go on
    rest = await all_of(web, "/r/events", headers={"Last-Event-ID": seen[-1].id})
    assert [event.data for event in [*seen, *rest[:-1]]] == list(range(16))
    assert rest[-1].kind == "end"
    assert await all_of(web, f"/r/events?after={seen[-1].id}") == rest
    assert (await all_of(web, "/r/events?after="))[:2] == seen[:2]


async def test_who_has_seen_the_end_is_told_not_to_come_back(agent: Runs, web: httpx.AsyncClient) -> None:
    await finished(agent, "r", 1)
    end = (await all_of(web, "/r/events"))[-1]
    reply = await web.get("/r/events", headers={"Last-Event-ID": end.id})
    assert (reply.status_code, reply.content) == (204, b"")


async def test_events_come_as_they_are_emitted(agent: Runs, web: httpx.AsyncClient) -> None:
    async with await agent.claim("r") as run, reading(web, "/r/events") as events:
        for number in range(3):
            await run.emit(number)
            while (event := await anext(events)).kind != "data":
                continue
            assert event.data == number


async def test_a_reader_that_goes_away_ends_its_reading_and_not_the_run(
    hf: Holdfast, agent: Runs, web: httpx.AsyncClient
) -> None:
    async with await agent.claim("r") as run:
        await run.emit("one")
        # Given that this process reads the run for the client
        async with reading(web, "/r/events") as events:
            while (await anext(events)).kind != "data":
                continue
            assert len(hf._core.feeds) == 1
        # when the client is gone, expect the reading to end, and the run to go on
        await until(lambda: not hf._core.feeds, what="the end of the reading")
        assert not run.stopping
        assert not run.lost
        await run.emit("two")
    assert (await agent.get("r")).state == "completed"
    assert [event.data for event in (await all_of(web, "/r/events"))[:-1]] == ["one", "two"]


async def test_when_sending_fails_the_reading_has_ended(hf: Holdfast, agent: Runs) -> None:
    """With servers that tell of a lost client by an error of `send`."""
    scope = {"type": "http", "asgi": {"spec_version": "2.4"}, "headers": [], "query_string": b""}

    async def receive() -> Any:
        raise AssertionError("nobody asks")

    async def send(message: Any) -> None:
        if b"data:" in message.get("body", b""):
            raise OSError("gone")

    async with await agent.claim("r") as run:
        await run.emit("one")
        response = await event_stream(agent, "r", Request(scope))
        with pytest.raises(ClientDisconnect):
            await response(scope, receive, send)
        assert not hf._core.feeds


async def test_quiet_streams_are_kept_alive(agent: Runs, web: httpx.AsyncClient) -> None:
    async with await agent.claim("r"), reading(web, "/r/events") as events:
        assert (await anext(events)).kind == "retry"
        assert [(await anext(events)).kind for _ in range(3)] == [":", ":", ":"]


async def test_a_run_that_went_on_elsewhere_and_one_that_dropped_events(hf: Holdfast, web: httpx.AsyncClient) -> None:
    # Given an owner that was lost after a checkpoint
    agent = hf.runs("agent", max_events=8)
    first = await agent.claim("r", lease=0.2)
    await first.emit("kept")
    await first.checkpoint(1)
    await first.emit("repeated")
    await first.flush()
    seen = await all_of_so_far(web, "/r/events", 2)
    first._given.hold.lose("the test says so")
    # when another one goes on, expect the reader to be told what to drop
    async with await claimed(agent, "r") as second:
        await second.emit("repeated")
    later = await all_of(web, "/r/events", headers={"Last-Event-ID": seen[-1].id})
    assert [event.kind for event in later] == ["resumed", "data", "end"]
    assert later[0].data == {"attempt": 2, "after": seen[0].id}
    # And of a run with too many events, how many are gone
    async with await agent.claim("many") as run:
        for number in range(20):
            await run.emit(number)
            await run.flush()
    gone, *kept, end = await all_of(web, "/many/events")
    assert (gone.kind, end.kind) == ("dropped", "end")
    assert [event.data for event in kept] == list(range(20))[gone.data["count"] :]


async def claimed(agent: Runs, run_id: str) -> Any:
    async def attempt() -> Any:
        try:
            return await agent.claim(run_id)
        except RunActive:
            return None

    return await until(attempt, what="the end of the lease")


async def all_of_so_far(web: httpx.AsyncClient, path: str, count: int) -> list[Sent]:
    async with reading(web, path) as events:
        found: list[Sent] = []
        while len(found) < count:
            event = await anext(events)
            found += [event] if event.id else []
        return found


@pytest.mark.parametrize(
    ("path", "headers", "status", "words"),
    [
        ("/nobody/events", {}, 404, "nobody"),
        ("/nobody/events", {"Last-Event-ID": "1763210000000-0"}, 410, "nobody"),
        ("/nobody/events?after=1763210000000-3", {}, 410, "nobody"),
        ("/r/events", {"Last-Event-ID": "yesterday"}, 400, "Last-Event-ID"),
        ("/r/events", {"Last-Event-ID": "1-2-3"}, 400, "like 1763210000000-0"),
        ("/r/events?after=$", {}, 400, "after"),
        ("/r/events?after=" + "9" * 400, {}, 400, "after"),
        (f"/{'x' * 600}/events", {}, 400, "512"),
    ],
)
async def test_what_cannot_be_streamed_is_said_with_a_status(
    agent: Runs, web: httpx.AsyncClient, path: str, headers: dict[str, str], status: int, words: str
) -> None:
    await finished(agent, "r")
    reply = await web.get(path, headers=headers)
    assert reply.status_code == status
    assert words in reply.text
    assert len(reply.text) < 400


async def test_when_the_server_is_lost_the_stream_ends_and_the_client_can_come_back() -> None:
    async def reached() -> bool:
        try:
            return await hf.ping() >= 0
        except Unavailable:
            return False

    with LocalServer(persistence="always") as server:
        async with Holdfast(server.url, retry_for=1, call_timeout=1) as hf:
            agent = hf.runs("agent")
            await agent.start("r")
            async with serving(agent) as web:
                async with reading(web, "/r/events") as events:
                    assert (await anext(events)).kind == "retry"
                    server.kill()
                    assert {event.kind async for event in events} <= {":"}  # it ends, and not in the middle of a line
                server.restart()
                await until(reached, what="the server")
                await agent.stop("r")
                assert [event.kind for event in await all_of(web, "/r/events")] == ["end"]


def test_without_starlette_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "starlette.exceptions", None)
    monkeypatch.delitem(sys.modules, "holdfast.adapters.starlette")
    with pytest.raises(ConfigurationError, match=r"pip install '\.\[starlette\]'"):
        importlib.import_module("holdfast.adapters.starlette")
