"""Errors as HTTP answers: which status, and what to tell the client (problem+json, RFC 9457). Nothing here does I/O.

The adapters for web frameworks and the node's HTTP API answer by this one table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from holdfast import (
    ConfigurationError,
    EarlierFailure,
    Fenced,
    HoldfastError,
    Indeterminate,
    InProgress,
    InvalidId,
    InvalidPayload,
    KeyMismatch,
    LeaseLost,
    NewerPayload,
    NotAcquired,
    NotPermitted,
    NotReplicated,
    QueueFull,
    RunActive,
    RunEnded,
    RunGone,
    RunMismatch,
    RunStopped,
    ServerError,
    ServerFull,
    TooLarge,
    Unavailable,
    UnreadablePayload,
    UnsafeServer,
    WouldDeadlock,
)

MEDIA_TYPE = "application/problem+json"
TYPES = "urn:holdfast:problem:"
"""What every `type` begins with; the rest is the name of the error, as in `urn:holdfast:problem:run-gone`."""


class Kind(NamedTuple):
    """What one error means to somebody who only speaks HTTP."""

    status: int
    title: str
    detail: str
    retry: int | None = None
    """Seconds for `Retry-After`; None: trying again does not help, or is not safe."""
    told: bool = False
    """The error's own text is the client's business: it is about what the client sent."""


TABLE: Mapping[type[HoldfastError], Kind] = {
    InvalidId: Kind(422, "This id cannot be used", "Pass another id.", told=True),
    InvalidPayload: Kind(422, "This data cannot be stored", "Pass a JSON value.", told=True),
    TooLarge: Kind(413, "This data is too large", "Send less.", told=True),
    RunMismatch: Kind(422, "This run id was used before", "Use another id: it was used with something else."),
    KeyMismatch: Kind(422, "This key was used before", "Use another key: it was used with another request."),
    NotAcquired: Kind(409, "Somebody else has it", "Try again later: another request is at it.", 1),
    InProgress: Kind(409, "It is in progress", "Ask again later: the first request has no answer yet.", 1),
    RunActive: Kind(409, "It is running", "Wait until it has ended, or stop it first."),
    RunEnded: Kind(409, "It is over", "Start another one: this one has ended and does not run again."),
    NotReplicated: Kind(503, "Too few replicas", "Try again later: nothing was done.", 2),
    RunGone: Kind(404, "There is no such run", "It was never started, or ended longer ago than it is kept."),
    RunStopped: Kind(409, "It was stopped", "Start another one: somebody has stopped this one."),
    EarlierFailure: Kind(409, "It has failed before", "Use another key: with this one the same failure comes again."),
    LeaseLost: Kind(409, "It was lost meanwhile", "Look at what was done before trying again: it may be incomplete."),
    Fenced: Kind(409, "A newer one has written", "Read it again: what was sent is older than what is there."),
    QueueFull: Kind(503, "Too many wait already", "Try again later: nothing was added.", 5),
    Unavailable: Kind(503, "Not available now", "Try again later: nothing was done.", 2),
    ServerFull: Kind(503, "Out of memory", "Try again later: nothing was added.", 30),
    Indeterminate: Kind(504, "The outcome is not known", "Look whether it was done before trying again."),
    NotPermitted: Kind(503, "The server does not let us in", "Try again later, and tell whoever operates it.", 30),
    UnsafeServer: Kind(500, "The server is not set up right", "Tell whoever operates it."),
    WouldDeadlock: Kind(500, "It would wait for itself", "Tell whoever operates it."),
    UnreadablePayload: Kind(500, "Stored data cannot be read", "Tell whoever operates it."),
    NewerPayload: Kind(500, "Stored data is of a newer version", "Tell whoever operates it: this process is too old."),
    ServerError: Kind(500, "An answer that should not exist", "Tell whoever operates it."),
    ConfigurationError: Kind(500, "Not set up right", "Tell whoever operates it."),
    HoldfastError: Kind(500, "It failed", "Tell whoever operates it."),
}
"""Every error of the tree has a row."""

WRONG_ARGUMENT = Kind(400, "This cannot work", "Pass something else.", told=True)
"""A ConfigurationError where the client chose the arguments."""


@dataclass(frozen=True, slots=True)
class Problem:
    """An answer to a request that failed."""

    status: int
    type: str
    title: str
    detail: str
    headers: Mapping[str, str] = field(default_factory=dict)
    """`Retry-After`, where trying again later is safe and may help."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """Further members of the body."""

    def body(self) -> dict[str, Any]:
        """The members of the JSON object."""
        told = {"type": self.type, "title": self.title, "status": self.status, "detail": self.detail}
        return {**self.more, **told}

    def encode(self) -> bytes:
        """The body as it goes over the wire, to be sent as MEDIA_TYPE."""
        return json.dumps(self.body(), separators=(",", ":"), default=repr).encode()


def problem(error: HoldfastError, *, direct: bool = False) -> Problem:
    """What to answer to a request that ended with this error.

    `direct`: the client calls Holdfast itself, through an HTTP API such as the node's. Then it is told the error's own
    text, `operation`, `key` and the run that is in the way, and an argument that can never work is its mistake (400).
    Else it is the client of an application that uses Holdfast: what it did not send itself, such as names of locks and
    the address of a server, is none of its business, and a wrong argument is a mistake of the application (500)."""
    cause = next(kind for kind in type(error).__mro__ if kind in TABLE)
    kind = WRONG_ARGUMENT if direct and cause is ConfigurationError else TABLE[cause]
    return Problem(
        kind.status,
        TYPES + slug(cause),
        kind.title,
        str(error) if kind.told or direct else kind.detail,
        {} if kind.retry is None else {"Retry-After": str(kind.retry)},
        _more(error) if direct else {},
    )


def slug(kind: type[HoldfastError]) -> str:
    """The name of an error as it stands in a URN: RunGone is `run-gone`."""
    return "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in kind.__name__).lstrip("-")


def _more(error: HoldfastError) -> dict[str, Any]:
    run = getattr(error, "run", None)
    found: dict[str, Any] = {"operation": error.operation, "key": error.key}
    if run is not None:
        found["run"] = {"id": run.id, "state": run.state}
    return {name: value for name, value in found.items() if value}
