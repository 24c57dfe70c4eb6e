"""FastAPI: the client in the lifespan and as a dependency, a lock for a request, requests that are executed once.

app = FastAPI(lifespan=lifespan(hf, work=True))
install(app)

@app.post("/users/{user_id}/report")
async def report(user_id: int, hf: Client, lease: Annotated[Lease, locked("user:{user_id}")]) -> dict[str, int]:
    ...
"""

from __future__ import annotations

import inspect
import string
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Annotated, Any, get_type_hints

from holdfast import ConfigurationError, Holdfast, InvalidPayload, Lease
from holdfast.adapters.asgi import find_client, install, lifespan
from holdfast.adapters.starlette import event_stream

try:
    from fastapi import Depends, Header
    from fastapi.concurrency import run_in_threadpool
    from fastapi.encoders import jsonable_encoder
    from fastapi.exceptions import RequestValidationError
    from pydantic import TypeAdapter, ValidationError
    from starlette.requests import HTTPConnection, Request
except ImportError:
    raise ConfigurationError("pip install '.[fastapi]' in Holdfast's clone to use this adapter") from None
if "scope" not in inspect.signature(Depends).parameters:
    raise ConfigurationError("install FastAPI 0.121 or newer: with older ones a lock is kept until the answer was sent")

__all__ = ["Client", "Once", "event_stream", "idempotent", "install", "lifespan", "locked"]


def client(connection: HTTPConnection) -> Holdfast:
    """The client that `lifespan` opened; a dependency, which tests may override."""
    return find_client(connection)


Client = Annotated[Holdfast, Depends(client)]
"""The type of a parameter that gets the client: `async def report(hf: Client)`."""


def locked(
    name: str | Callable[..., Any], *, ttl: float | str | None = None, wait: float | None = 0.0,
    max_hold: float | None = None,
) -> Any:  # fmt: skip
    """A dependency that holds a lock while the endpoint runs. Its value is the Lease.

        @app.post("/users/{user_id}/report")
        async def report(user_id: int, lease: Annotated[Lease, locked("user:{user_id}")]): ...

        @app.post("/import", dependencies=[locked("import", wait=5)])

    `name` is filled from the parameters in the path, each read as the endpoint declares it, so that `/users/07` and
    `/users/7` are the same `int`; or it is a dependency of its own that answers the name, for what is elsewhere in the
    request. `wait`: seconds to wait in line (None: no limit); then NotAcquired, which `install` answers with 409.
    `ttl` and `max_hold` as in `Holdfast.lock`.

    It is released before the response is sent: who has the answer can send the next request at once. So it does not
    protect what a streaming response does while it is sent. If the lease is lost, a coroutine function is cancelled
    and LeaseLost is answered; a plain function runs on in its thread, and should look at `lease.lost`."""
    given = Depends(name if callable(name) else _Template(name))

    async def hold(hf: Client, full: str = given) -> AsyncIterator[Lease]:
        async with hf.lock(full, ttl=ttl, wait=wait, max_hold=max_hold) as lease:
            yield lease

    return Depends(hold, scope="function")


class _Template:
    """A name with places for parameters of the path."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._types: dict[tuple[Any, str], TypeAdapter[Any] | None] = {}
        try:
            self._names = [name for _, name, _, _ in string.Formatter().parse(text) if name is not None]
        except ValueError as error:
            raise ConfigurationError(f"mend the name {text!r}: {error}") from None
        if not all(name.isidentifier() for name in self._names):
            raise ConfigurationError(f"name parameters of the path in {text!r}, such as {{user_id}}, and nothing else")

    def __call__(self, connection: HTTPConnection) -> str:
        missing = [name for name in self._names if name not in connection.path_params]
        if missing:
            raise ConfigurationError(f"name parameters of the path in {self._text!r}: it has no {missing[0]}")
        return self._text.format(**{name: self._read(connection, name) for name in self._names})

    def _read(self, connection: HTTPConnection, name: str) -> Any:
        """As the endpoint reads it: two spellings of one number must not be two locks."""
        value, endpoint = connection.path_params[name], connection.scope["endpoint"]
        if (endpoint, name) not in self._types:
            self._types[endpoint, name] = _declared(endpoint, name)
        declared = self._types[endpoint, name]
        if declared is None:
            return value
        try:
            return declared.validate_python(value)
        except ValidationError as error:
            wrong = [{**one, "loc": ("path", name)} for one in error.errors(include_url=False)]
            raise RequestValidationError(wrong) from None


def _declared(endpoint: Callable[..., Any], name: str) -> TypeAdapter[Any] | None:
    """The type of a parameter; None: any, or one that FastAPI does not know either."""
    parameter = inspect.signature(endpoint).parameters.get(name)
    if parameter is None or parameter.annotation is inspect.Parameter.empty:
        return None
    alone = SimpleNamespace(__annotations__={name: parameter.annotation})
    known = getattr(inspect.unwrap(endpoint), "__globals__", {})
    try:
        return TypeAdapter(get_type_hints(alone, known, include_extras=True)[name])
    except NameError:
        return None


class Once:
    """Calls a function once for the key that the client sent. Made by `idempotent`."""

    def __init__(self, hf: Holdfast, request: Request, space: str, who: Any, key: str | None, options: Any) -> None:
        self._hf = hf
        self._where = f"{request.method} {request.url.path}?{request.url.query}"
        self._space = space
        self._id = (who, key)
        self._options = options
        self.key = key
        """What the client sent as `Idempotency-Key`; None if it sent none, where that is allowed."""

    async def __call__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What the function answers to these arguments, now or when it was first called with this key.

        A coroutine function, or a plain one, which runs in a thread. Its answer is stored as FastAPI would send it.
        What it raises is not stored: the next request tries again. Raises KeyMismatch (422) if the key came with
        another request or other arguments before, and InProgress (409) if the first call is not over in time. Without
        a key it is just called. Cancelling gives the key back."""
        called = False

        async def call() -> Any:
            nonlocal called
            called = True
            is_async = inspect.iscoroutinefunction(function)
            found = function(*args, **kwargs) if is_async else run_in_threadpool(function, *args, **kwargs)
            return jsonable_encoder(await found)

        if self.key is None:
            return await call()
        sent = {"to": self._where, "args": jsonable_encoder(args), "kwargs": jsonable_encoder(kwargs)}
        once = self._hf.idempotent(lambda: self._id, space=self._space, payload=lambda: sent, **self._options)
        try:
            return await once(call)()
        except InvalidPayload as error:
            if not called:
                raise
            raise ConfigurationError(
                f"return less, or something simpler: the answer cannot be stored: {error}"
            ) from error


def idempotent(
    space: str, *, by: Callable[..., Any] | None, ttl: float = 86_400.0, wait: float | None = 10.0,
    lease: float | None = None, required: bool = True,
) -> Any:  # fmt: skip
    """A dependency for requests with the header `Idempotency-Key`. Its value is a Once, which does the work.

        @app.post("/orders", status_code=201)
        async def order(new: Order, once: Annotated[Once, idempotent("orders", by=current_user)]):
            return await once(place, new)

    A client that got no answer sends the same request with the same key again, and gets the answer of the first.
    `by` is a dependency that answers the id of the client: keys of different clients never meet. None: they are all
    one, and whoever guesses a key and its request is told the answer. `space` names the operation. Answers are kept
    for `ttl` seconds; a request that comes while the first is at work waits for `wait` seconds (None: no limit). When
    the process dies, the next request may do it `lease` seconds later. Without the header the answer is 422, unless it
    is not `required`."""
    options = {"ttl": ttl, "wait": wait, "lease": lease}
    key = Depends(_needed_key if required else _welcome_key)
    caller = Depends(by or _everybody)

    async def once(hf: Client, request: Request, key: str | None = key, who: Any = caller) -> Once:
        if by is not None and (not isinstance(who, (str, bytes, int)) or who in ("", b"")):
            # Whoever has no id would share the keys of all others without one.
            raise ConfigurationError(f"return an id from by=, as text or a number: this is {type(who).__name__}")
        return Once(hf, request, space, who, key, options)

    return Depends(once)


KEY = Header(alias="Idempotency-Key", min_length=1, max_length=255)


def _needed_key(key: Annotated[str, KEY]) -> str:
    return key


def _welcome_key(key: Annotated[str | None, KEY] = None) -> str | None:
    return key


def _everybody() -> None:
    return None
