"""The FastAPI adapter: a real uvicorn on the loopback interface, and a real server behind it."""

import asyncio
import importlib
import logging
import socket
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI, Path, Request, WebSocket
from fastapi.responses import StreamingResponse
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from holdfast import ConfigurationError, Holdfast, Lease, RunGone, Unavailable
from holdfast.adapters import asgi
from holdfast.adapters.fastapi import Client, install, lifespan, locked
from holdfast.testing import LocalServer
from support.conditions import until


@asynccontextmanager
async def serving(app: Any) -> AsyncIterator[httpx.AsyncClient]:
    """The application on a port of its own, and a client of it. Leaving shuts it down as SIGTERM would."""
    door = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="on", timeout_graceful_shutdown=5))
    task = asyncio.create_task(server.serve(sockets=[door]))
    try:
        await until(lambda: server.started or task.done(), what="uvicorn")
        assert not task.done(), "it did not start"
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{door.getsockname()[1]}", timeout=10) as client:
            yield client
    finally:
        server.should_exit = True
        await asyncio.gather(task, return_exceptions=True)
        door.close()


@pytest.fixture
async def operator(valkey: Any) -> AsyncIterator[Holdfast]:
    """Somebody else in the fleet."""
    async with Holdfast(valkey.url) as client:
        yield client
    valkey.flush()


@pytest.fixture
def hf(valkey: Any) -> Holdfast:
    return Holdfast(valkey.url, ttl=5, drain=5)


@pytest.fixture
def app(hf: Holdfast) -> FastAPI:
    made = FastAPI(lifespan=lifespan(hf))
    install(made)
    return made


def is_problem(reply: httpx.Response, status: int, kind: str) -> bool:
    body = reply.json()
    assert reply.headers["content-type"] == "application/problem+json", reply.text
    assert (reply.status_code, body["status"]) == (status, status), reply.text
    assert body["type"] == f"urn:holdfast:problem:{kind}"
    assert set(body) == {"type", "title", "status", "detail"}
    return True


# -- the lifespan -----------------------------------------------------------------------------------------------------


async def test_the_client_is_open_as_long_as_the_application(hf: Holdfast, operator: Holdfast) -> None:
    # Given a lifespan of the application's own that uses the client at both ends
    told: list[Any] = []

    @asynccontextmanager
    async def own(app: FastAPI) -> AsyncIterator[dict[str, int]]:
        told.append(await hf.ping() > 0)
        yield {"answer": 42}
        told.append(await hf.ping() > 0)

    app = FastAPI(lifespan=lifespan(hf, own))

    @app.get("/")
    async def look(hf: Client, request: Request) -> dict[str, Any]:
        return {"ping": await hf.ping() > 0, "answer": request.state.answer, "same": request.state.holdfast is hf}

    # when it runs, expect the client in requests, and what the other lifespan yields
    async with serving(app) as web:
        assert (await web.get("/")).json() == {"ping": True, "answer": 42, "same": True}
    # and that it is closed at the end, after the other lifespan
    assert told == [True, True]
    with pytest.raises(ConfigurationError, match="open it first"):
        await hf.ping()
    # and that the same application can start again
    async with serving(app) as web:
        assert (await web.get("/")).json()["ping"]


async def test_workers_in_the_application_finish_before_it_ends(hf: Holdfast, operator: Holdfast) -> None:
    # Given workers in the application, and a handler that needs what another lifespan holds
    inbox = hf.buffer("messages")
    at_work, may_end, done = asyncio.Event(), asyncio.Event(), []
    database: list[str] = []

    @hf.absorber(inbox, threshold=1)
    async def remember(batch: Any) -> None:
        at_work.set()
        await may_end.wait()
        done.append((batch.key, list(database)))

    @asynccontextmanager
    async def own(app: Any) -> AsyncIterator[None]:
        database.append("open")
        yield
        database.clear()

    app = FastAPI(lifespan=lifespan(hf, own, work=True))

    @app.post("/{user}")
    async def say(user: str, hf: Client) -> int:
        return (await hf.buffer("messages").append(user, "hello")).length

    # when the application is told to end while the handler is at it
    async with serving(app) as web:
        assert (await web.post("/ann")).json() == 1
        async with asyncio.timeout(10):
            await at_work.wait()
        asyncio.get_running_loop().call_later(0.2, may_end.set)
    # expect it to have finished, with the database still open, and to be acknowledged
    assert done == [("ann", ["open"])]
    totals = await operator.buffer("messages").totals()
    assert totals.counts["absorbed"] == 1


async def test_without_anything_to_work_on_the_application_does_not_start(hf: Holdfast) -> None:
    with pytest.raises(ConfigurationError, match="register something first"):
        async with lifespan(hf, work=True)(None):
            pass
    with pytest.raises(ConfigurationError, match="open it first"):
        await hf.ping()


async def test_without_a_server_the_application_does_not_start() -> None:
    away = Holdfast("redis://127.0.0.1:1", retry_for=0)
    with pytest.raises(Unavailable):
        async with lifespan(away)(None):
            pass


async def test_workers_that_fail_begin_again(
    valkey: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Given workers that fail when they begin for the first time
    monkeypatch.setattr(asgi, "PAUSE_FIRST", 0.01)
    begun: list[int] = []

    class Failing(Holdfast):
        async def work(self) -> None:
            begun.append(len(begun))
            if begun == [0]:
                await asyncio.sleep(0.01)
                raise OSError("no luck")
            await super().work()

    hf = Failing(valkey.url)
    handled = asyncio.Event()
    inbox = hf.buffer("messages")

    @hf.absorber(inbox, threshold=1)
    async def remember(batch: Any) -> None:
        handled.set()

    # expect that to be logged, and the work to be done all the same
    async with lifespan(hf, work=True)(None):
        await inbox.append("ann", "hello")
        async with asyncio.timeout(10):
            await handled.wait()
    assert begun == [0, 1]
    assert "the workers in this application have failed" in caplog.text


async def test_an_application_that_ends_while_workers_pause_leaves_the_client_usable(
    valkey: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asgi, "PAUSE_FIRST", 60)
    failed = asyncio.Event()

    class Failing(Holdfast):
        async def work(self) -> None:
            if not failed.is_set():
                await asyncio.sleep(0)
                failed.set()
                raise OSError("no luck")
            await super().work()

    hf = Failing(valkey.url)
    handled = asyncio.Event()
    inbox = hf.buffer("messages")

    @hf.absorber(inbox, threshold=1)
    async def remember(batch: Any) -> None:
        handled.set()

    # Given that it ended in the pause: a stop that nobody heard must not end the next work at once
    async with asyncio.timeout(10):
        async with lifespan(hf, work=True)(None):
            await failed.wait()
            await asyncio.sleep(0)
        async with lifespan(hf, work=True)(None):
            await inbox.append("ann", "hello")
            await handled.wait()
    assert handled.is_set()


async def test_a_cancelled_application_hands_back_at_once(valkey: Any, operator: Holdfast) -> None:
    hf = Holdfast(valkey.url, drain=60)
    inbox = hf.buffer("messages")
    at_work = asyncio.Event()

    @hf.absorber(inbox, threshold=1)
    async def remember(batch: Any) -> None:
        at_work.set()
        await asyncio.sleep(3600)

    async def living() -> None:
        async with lifespan(hf, work=True)(None):
            await inbox.append("ann", "hello")
            await asyncio.sleep(3600)

    task = asyncio.create_task(living())
    async with asyncio.timeout(10):
        await at_work.wait()
    # when it is cancelled, expect it to end, and somebody else to have the batch, long before a drain would be over
    task.cancel()
    await asyncio.wait([task], timeout=10)
    assert task.cancelled()
    batch = await operator.buffer("messages").take("ann")
    assert batch is not None
    assert [message.data for message in batch.messages] == ["hello"]
    await batch.ack()


async def test_it_is_for_starlette_too(hf: Holdfast, operator: Holdfast) -> None:
    async def look(request: Any) -> PlainTextResponse:
        return PlainTextResponse((await asgi.find_client(request).runs("agent").get("nobody")).id)

    app = Starlette(routes=[Route("/", look)], lifespan=asgi.lifespan(hf))
    asgi.install(app)
    async with serving(app) as web:
        assert is_problem(await web.get("/"), 404, "run-gone")


async def test_an_application_without_a_client_says_what_is_missing(hf: Holdfast) -> None:
    app = FastAPI()

    @app.get("/")
    async def look(hf: Client) -> bool:
        return await hf.ping() > 0

    async with serving(app) as web:
        assert (await web.get("/")).status_code == 500
    with pytest.raises(ConfigurationError, match=r"pass lifespan=lifespan\(hf\)"), TestClient(app) as client:
        client.get("/")
    # and a lifespan of one's own with `install(app, hf)` will do
    install(app, hf)
    async with hf, serving(app) as web:
        assert (await web.get("/")).json() is True


# -- a lock for a request ---------------------------------------------------------------------------------------------


class Desk:
    """An endpoint under a lock, which the test lets go on."""

    def __init__(self, app: FastAPI, **options: Any) -> None:
        self.inside = asyncio.Semaphore(0)
        self.go = asyncio.Event()
        self.leases: list[Lease] = []

        @app.post("/users/{user_id}/report")
        async def report(user_id: int, lease: Annotated[Lease, locked("user:{user_id}", **options)]) -> int:
            self.leases.append(lease)
            self.inside.release()
            await self.go.wait()
            return user_id


async def test_one_request_at_a_time_for_each_user(app: FastAPI, operator: Holdfast) -> None:
    desk = Desk(app)
    async with serving(app) as web, asyncio.timeout(10):
        # Given a request that is being worked on
        first = asyncio.create_task(web.post("/users/7/report"))
        await desk.inside.acquire()
        assert (await operator.inspect("user:7")).held
        # when others come, expect those for the same user to be refused, however it is written
        for path in ("/users/7/report", "/users/07/report", "/users/%37/report"):
            refused = await web.post(path)
            assert is_problem(refused, 409, "not-acquired")
            assert refused.headers["retry-after"] == "1"
            assert "user:7" not in refused.text
        # and those for another to be let in
        other = asyncio.create_task(web.post("/users/8/report"))
        await desk.inside.acquire()
        desk.go.set()
        assert [(await one).json() for one in (first, other)] == [7, 8]
        # and after the answer the next one at once
        assert (await web.post("/users/07/report")).json() == 7
        fences = [lease.fence for lease in desk.leases if lease.name == "user:7"]
        assert len(fences) == 2
        assert fences[0] < fences[1]
        # and what is no user to be refused as ever
        assert (await web.post("/users/nobody/report")).json()["detail"][0]["loc"] == ["path", "user_id"]
        assert not (await operator.inspect("user:nobody")).held


async def test_a_request_may_wait_in_line(app: FastAPI, operator: Holdfast) -> None:
    desk = Desk(app, wait=10)
    desk.go.set()
    async with serving(app) as web, asyncio.timeout(10):
        async with operator.lock("user:7"):
            waiting = asyncio.create_task(web.post("/users/7/report"))
            await until(lambda: _waits(operator, "user:7"), what="the request in line")
            assert not desk.leases
        assert (await waiting).json() == 7


async def _waits(operator: Holdfast, name: str) -> bool:
    return (await operator.inspect(name)).waiting == 1


async def test_the_lock_is_free_before_the_answer_is_sent(app: FastAPI, operator: Holdfast) -> None:
    held: list[bool] = []

    @app.get("/", dependencies=[locked("report")])
    async def report() -> StreamingResponse:
        held.append((await operator.inspect("report")).held)

        async def lines() -> AsyncIterator[bytes]:
            held.append((await operator.inspect("report")).held)
            yield b"fine"

        return StreamingResponse(lines())

    async with serving(app) as web:
        assert (await web.get("/")).text == "fine"
    assert held == [True, False]


@pytest.mark.parametrize("wrapped", [False, True], ids=["plain", "behind a middleware"])
async def test_who_loses_the_lock_is_ended_and_the_client_is_told(
    app: FastAPI, operator: Holdfast, wrapped: bool
) -> None:
    if wrapped:  # it runs the application in a task of its own

        async def passing(request: Request, call_next: Any) -> Any:
            return await call_next(request)

        app.add_middleware(BaseHTTPMiddleware, dispatch=passing)
    desk = Desk(app, ttl=0.5)
    async with serving(app) as web, asyncio.timeout(10):
        lost = asyncio.create_task(web.post("/users/7/report"))
        await desk.inside.acquire()
        assert await operator.force_release("user:7", reason="test") == 1
        assert is_problem(await lost, 409, "lease-lost")
        # and the application goes on
        desk.go.set()
        assert (await web.post("/users/7/report")).json() == 7


async def test_the_name_may_come_from_a_dependency(app: FastAPI, operator: Holdfast) -> None:
    async def tenant(who: str) -> str:
        return f"tenant:{who}"

    @app.get("/names")
    def plain(lease: Annotated[Lease, locked(tenant)]) -> str:
        return str(lease.name)

    async with serving(app) as web:
        assert (await web.get("/names?who=ann")).json() == "tenant:ann"
        assert (await web.get("/names")).status_code == 422


async def test_a_name_is_filled_with_what_the_endpoint_declares(app: FastAPI, operator: Holdfast) -> None:
    def lock_name(lease: Lease) -> str:
        return str(lease.name)

    @app.get("/text/{item}")
    async def as_text(item: "Annotated[uuid.UUID, Path()]", lease: Annotated[Lease, locked("i:{item}")]) -> str:
        return lock_name(lease)

    @app.get("/bound/{item}")
    async def bound(item: Annotated[int, Path(ge=5)], lease: Annotated[Lease, locked("i:{item}")]) -> str:
        return lock_name(lease)

    @app.get("/elsewhere/{item}/{number}")
    async def elsewhere(number: int, lease: Annotated[Lease, locked("i:{item}:{number}")]) -> str:
        return lock_name(lease)

    one = uuid.uuid4()
    async with serving(app) as web:
        for path, name in {
            f"/text/{str(one).upper()}": f"i:{one}", f"/text/{one.hex}": f"i:{one}", "/bound/0007": "i:7",
            "/elsewhere/A%20b/07": "i:A b:7",
        }.items():  # fmt: skip
            assert (await web.get(path)).json() == name
        refused = await web.get("/bound/004")
        assert (refused.status_code, refused.json()["detail"][0]["type"]) == (422, "greater_than_equal")


async def test_a_name_that_cannot_be_filled(app: FastAPI) -> None:
    with pytest.raises(ConfigurationError, match="mend the name"):
        locked("user:{")
    with pytest.raises(ConfigurationError, match="and nothing else"):
        locked("user:{user.id}")

    @app.get("/", dependencies=[locked("user:{user_id}")])
    async def wrong() -> None: ...

    async with serving(app) as web:
        assert is_problem(await web.get("/"), 500, "configuration-error")


async def test_without_the_server_the_answer_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    with LocalServer() as server:
        hf = Holdfast(server.url, retry_for=0.1, call_timeout=0.5)
        app = FastAPI(lifespan=lifespan(hf))
        install(app)

        @app.get("/", dependencies=[locked("report")])
        async def report() -> str:
            return "fine"

        async with serving(app) as web:
            assert (await web.get("/")).json() == "fine"
            server.kill()
            reply = await web.get("/")
            assert is_problem(reply, 503, "unavailable")
            assert reply.headers["retry-after"] == "2"
            # The address is the operator's business, and only theirs.
            assert str(server.port) not in reply.text
            assert "answered with 503" in caplog.text
            server.restart()
            assert (await web.get("/")).json() == "fine"


def test_a_socket_that_cannot_be_served_is_closed(app: FastAPI, valkey: Any) -> None:
    @app.websocket("/early/{run}")
    async def early(socket: WebSocket, lease: Annotated[Lease, locked("busy")]) -> None:
        await socket.accept()
        await socket.close()

    @app.websocket("/late")
    async def late(socket: WebSocket) -> None:
        await socket.accept()
        raise RunGone("ask for another run: this one is gone")

    from holdfast.sync import Holdfast as Blocking

    with Blocking(valkey.url) as other, TestClient(app) as client:
        with (
            other.lock("busy"),
            pytest.raises(WebSocketDisconnect),
            client.websocket_connect("/early/1"),
        ):
            pass
        with client.websocket_connect("/early/1") as socket:
            assert socket.receive()["type"] == "websocket.close"
        with client.websocket_connect("/late") as socket:
            assert socket.receive()["code"] == 1013
    valkey.flush()


async def test_tests_may_put_another_client_in_its_place(app: FastAPI, valkey: Any) -> None:
    from holdfast.adapters.fastapi import client

    @app.get("/")
    async def look(hf: Client, lease: Annotated[Lease, locked("a")]) -> str:
        return hf.settings.prefix

    async with Holdfast(valkey.url, prefix="other") as other:
        app.dependency_overrides[client] = lambda: other
        async with serving(app) as web:
            assert (await web.get("/")).json() == "other"
    valkey.flush()


def test_a_blocking_client_is_refused() -> None:
    from holdfast.sync import Holdfast as Blocking

    with pytest.raises(ConfigurationError, match="pass a client for asyncio"):
        lifespan(Blocking("embedded:"))


def test_an_older_fastapi_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def old_depends(dependency: Any = None, *, use_cache: bool = True) -> None: ...

    monkeypatch.setattr("fastapi.Depends", old_depends)
    monkeypatch.delitem(sys.modules, "holdfast.adapters.fastapi")
    with pytest.raises(ConfigurationError, match=r"install FastAPI 0\.121"):
        importlib.import_module("holdfast.adapters.fastapi")


@pytest.mark.parametrize(
    ("module", "absent", "extra"),
    [("asgi", "starlette.applications", "starlette"), ("fastapi", "fastapi", "fastapi")],
)
def test_without_the_package_the_error_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, module: str, absent: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, absent, None)
    monkeypatch.delitem(sys.modules, f"holdfast.adapters.{module}")
    with pytest.raises(ConfigurationError, match=rf"pip install '\.\[{extra}\]'"):
        importlib.import_module(f"holdfast.adapters.{module}")
