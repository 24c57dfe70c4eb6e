"""Calls whose result is stored: which call it is, and what is stored of it. No I/O."""

from __future__ import annotations

import inspect
import json
import re
import string
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.engine.core import Core
from holdfast.engine.digest import canonical_json, state_digest
from holdfast.engine.payload import decode, encode
from holdfast.errors import (
    ConfigurationError,
    EarlierFailure,
    HoldfastError,
    InProgress,
    InvalidId,
    InvalidPayload,
    Unavailable,
    UnreadablePayload,
)
from holdfast.once.spec import Place, Space

RESULT, ERROR, LOST = b"r", b"e", b"x"
"""What was stored: what the call answered, what it raised, or that its answer could not be stored."""
SHOWN = 2000

KeyOf = str | Callable[..., Any]


class CallSpec:
    """How calls of one function are told apart, and for how long their results are kept."""

    def __init__(
        self, core: Core, function: Callable[..., Any], key: KeyOf, *, space: str | None,
        payload: Callable[..., Any] | None, ttl: float, lease: float, wait: float | None,
        store_errors: bool | tuple[type[Exception], ...], policy: str,
    ) -> None:  # fmt: skip
        if not isinstance(key, str) and not callable(key):
            raise ConfigurationError('pass key as a template such as "{order_id}", or a function of the arguments')
        name = space or f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', 'call')}"
        self.space = Space(core, name, "call")
        self.limit = core.settings.max_message_bytes
        self.ttl = ttl
        self.lease = lease
        self.wait = wait
        self.policy = policy
        self._key = key
        self._payload = payload
        self._store_errors = store_errors
        try:
            self._signature = inspect.signature(function)
        except (TypeError, ValueError):
            raise ConfigurationError(f"pass a function whose arguments are known, not {function!r}") from None
        self._names = self._check_template(key) if isinstance(key, str) else frozenset()

    def _check_template(self, template: str) -> frozenset[str]:
        """The arguments that it names: told when the function is decorated, not when it is called."""
        try:
            parts = [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]
        except ValueError as error:
            raise ConfigurationError(f"mend key={template!r}: {error}") from None
        names = frozenset(re.split(r"[.\[]", part)[0] for part in parts)
        known = self._signature.parameters
        loose = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in known.values())
        if not names or (not loose and not names <= known.keys()):
            raise ConfigurationError(
                f"name arguments of the function in key={template!r}: it has {', '.join(known) or 'none'}"
            )
        return names

    def identify(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Place, bytes]:
        """Where the call's record is, and the digest of what it is called with."""
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        key = self._key(*args, **kwargs) if callable(self._key) else self._filled(bound.arguments)
        if self._payload is not None:
            data = self._payload(*args, **kwargs)
        else:
            data = {name: value for name, value in bound.arguments.items() if name not in ("self", "cls")}
        try:
            digest = state_digest(data)
        except InvalidPayload as error:
            raise InvalidPayload(
                f"pass payload= a function that answers what counts of the arguments: they are no JSON values ({error})"
            ) from None
        return self.space.place(key), digest

    def _filled(self, arguments: Mapping[str, Any]) -> Any:
        """A template of one name is that argument as it is; with more around it, text."""
        template = str(self._key)
        for name in self._names:
            if arguments.get(name) in (None, "", b""):
                raise InvalidId(f"pass {name}: without it this call has the key of every other one that lacks it")
        try:
            if template.startswith("{") and template.endswith("}") and template[1:-1].isidentifier():
                return arguments[template[1:-1]]
            return template.format(**arguments)
        except (KeyError, IndexError, AttributeError, ValueError, TypeError) as error:
            raise ConfigurationError(f"name arguments of the function in key={template!r}: {error!r}") from None

    def stores(self, error: BaseException) -> bool:
        """Is this failure an answer, too?"""
        if not isinstance(error, Exception) or isinstance(error, HoldfastError):
            return False
        if isinstance(self._store_errors, tuple):
            return isinstance(error, self._store_errors)
        return bool(self._store_errors)


def result_bytes(result: Any, limit: int) -> tuple[bytes, InvalidPayload | None]:
    """What to store. What cannot be stored must not be called again all the same: that it was called is stored."""
    try:
        return RESULT + encode(result, limit), None
    except InvalidPayload as error:
        text = "return a JSON value or bytes: the call was made, and is not made again, but its result is no such value"
        return LOST, type(error)(f"{text} ({error})")


def error_bytes(error: BaseException) -> bytes:
    return ERROR + canonical_json([type(error).__name__, str(error)[:SHOWN]]).encode()


def answer(stored: bytes, place: Place) -> Any:
    """What an earlier call left: its result, or its failure, which is raised."""
    if stored[:1] == RESULT:
        return decode(stored[1:])
    if stored[:1] == ERROR:
        name, text = json.loads(stored[1:])
        raise EarlierFailure(
            f"mend the cause and use another key: this call has failed before with {name}: {text}",
            error=name, operation="once/begin", key=place.shown,
        )  # fmt: skip
    raise UnreadablePayload(
        "return a JSON value or bytes from the function: this call was made, but its result could not be stored",
        operation="once/begin", key=place.shown,
    )  # fmt: skip


def in_progress(state: str, place: Place) -> HoldfastError:
    if state == "denied":
        return Unavailable(
            "try again when the server is back: nothing was called", operation="once/begin", key=place.shown
        )
    return InProgress(
        "ask again later: another caller has made this call and has no result yet",
        operation="once/begin", key=place.shown,
    )  # fmt: skip
