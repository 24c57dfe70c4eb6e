"""What Starlette and FastAPI applications share: a client that lives as long as the application, and answers to errors.

app = Starlette(lifespan=lifespan(hf, work=True), routes=[...])
install(app)
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

from holdfast import ConfigurationError, Holdfast, HoldfastError
from holdfast.adapters.problems import MEDIA_TYPE, problem

try:
    from starlette.applications import Starlette
    from starlette.requests import HTTPConnection
    from starlette.responses import Response
    from starlette.websockets import WebSocket
except ImportError:
    raise ConfigurationError("pip install '.[starlette]' in Holdfast's clone to use this adapter") from None

State = Mapping[str, Any]
Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]

NAME = "holdfast"
"""Under which the client stands in the state of the application."""
PAUSE_FIRST, PAUSE_MOST = 1.0, 30.0
TRY_AGAIN_LATER = 1013
"""With which a WebSocket is closed."""

_log = logging.getLogger("holdfast")


def lifespan(
    hf: Holdfast, own: Lifespan | None = None, *, work: bool = False
) -> Callable[[Any], AbstractAsyncContextManager[State]]:
    """The lifespan of an application: the client is opened at its start and closed at its end.

    `own` is a lifespan of yours: it begins when the client is open and ends before that is closed; what it yields
    stays. With `work` the absorbers, runners and monitors of the client run inside the application: they begin after
    `own`, and at the end they drain as `stop_work` does, for at most `drain` seconds, before `own` ends. Should they
    fail, that is logged, and they begin again after a pause. If the server cannot be reached, or `work` is wanted and
    nothing was registered, the application does not start. Requests find the client as `request.state.holdfast`."""
    if not isinstance(hf, Holdfast):
        raise ConfigurationError("pass a client for asyncio, holdfast.Holdfast: a blocking one stops the event loop")

    @asynccontextmanager
    async def living(app: Any) -> AsyncIterator[State]:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(hf)
            state = None if own is None else await stack.enter_async_context(own(app))
            if work:
                await stack.enter_async_context(_working(hf))
            yield {**(state or {}), NAME: hf}

    return living


@asynccontextmanager
async def _working(hf: Holdfast) -> AsyncIterator[None]:
    crew = _Crew(hf)
    task = asyncio.create_task(crew.run(), name="holdfast-work")
    await asyncio.sleep(0)  # what can never work is said in the first step
    if task.done():
        await task
    try:
        yield
    except asyncio.CancelledError:
        task.cancel()  # no time to drain: what is under way is handed back at once
        raise
    finally:
        crew.stop()
        await task


class _Crew:
    """Works until it is stopped, whatever happens in between."""

    def __init__(self, hf: Holdfast) -> None:
        self._hf = hf
        self._stopping = asyncio.Event()
        self._at_work = False

    async def run(self) -> None:
        pause = PAUSE_FIRST
        while not self._stopping.is_set():
            self._at_work = True
            try:
                await self._hf.work()
                return
            except ConfigurationError:
                raise
            except Exception:
                _log.exception("the workers in this application have failed; they begin again in %g s", pause)
            finally:
                self._at_work = False
            await self._rest(pause)
            pause = min(PAUSE_MOST, pause * 2)

    async def _rest(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return

    def stop(self) -> None:
        self._stopping.set()
        if self._at_work:  # else the next `work` of this client would return at once
            self._hf.stop_work()


def find_client(connection: HTTPConnection) -> Holdfast:
    """The client of the application that got this request."""
    for state in (connection.state, connection.app.state):
        found = getattr(state, NAME, None)
        if isinstance(found, Holdfast):
            return found
    raise ConfigurationError("pass lifespan=lifespan(hf) to the application, or call install(app, hf)")


def install(app: Starlette, hf: Holdfast | None = None) -> None:
    """Answer the errors of Holdfast that a request ends with, as problem+json (RFC 9457).

    Somebody else has it: 409; no such run: 404; data that is too large: 413; an id or a key that cannot be used: 422;
    not available: 503; an unknown outcome: 504; `holdfast.adapters.problems` has the table. Where trying again is safe
    and may help there is a `Retry-After`. The client is told nothing but what it sent itself: names of locks, owners
    and addresses are only in the log, which has every answer from 500 up. A WebSocket is closed with 1013.

    `hf` is for applications whose lifespan is not `lifespan(hf)`: dependencies and `find_client` find it there."""
    if hf is not None:
        setattr(app.state, NAME, hf)
    app.add_exception_handler(HoldfastError, _answer)


async def _answer(connection: HTTPConnection, error: Exception) -> Response:
    assert isinstance(error, HoldfastError)
    found = problem(error)
    if found.status >= 500:
        unexpected = found.status == 500
        level = logging.ERROR if unexpected else logging.WARNING
        _log.log(level, "answered with %d: %s", found.status, error, exc_info=error if unexpected else None)
    response = Response(found.encode(), found.status, found.headers, MEDIA_TYPE)
    if isinstance(connection, WebSocket):
        with contextlib.suppress(RuntimeError):  # it is closed
            await connection.close(TRY_AGAIN_LATER, found.title)
    return response
