"""Operations without I/O.

An operation is a generator: it yields effects (send this, wait for that signal, sleep) and receives their results.
Thin drivers run it: `aio.AsyncDriver` on asyncio, `threads.ThreadDriver` on threads. So the blocking twin has no second
copy of the logic, and a test can lose the reply, cut or cancel at every step of every operation.

`call` is the one way an operation talks to the server: it knows which answers mean "not executed, ask again",
follows the topology, and repeats after a lost reply only what its script's header allows.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Generator, Sequence
from typing import Any, TypeVar

from hiredis import ReplyError

from holdfast.engine.clock import Clock
from holdfast.engine.resp import Arg, pack
from holdfast.engine.scripts import Script
from holdfast.errors import (
    HoldfastError,
    Indeterminate,
    NotPermitted,
    ServerError,
    ServerFull,
    Unavailable,
)

T = TypeVar("T")
Flow = Generator["Effect", Any, T]
Address = tuple[str, int]


INTERRUPTED = (Exception, asyncio.CancelledError, KeyboardInterrupt, SystemExit)
"""Whatever can end an operation early and still lets it clean up: everything but the closing of its generator."""


class NotSent(Exception):
    """The request did not leave this process, so it was not executed."""


class ReplyLost(Exception):
    """The request may have left and no reply came, so it may have been executed."""


class Effect:
    """Something only a driver can do."""

    __slots__ = ()


class Send(Effect):
    """Send bytes to the server that owns `tag` (or to `node`); answers the last of `replies` replies.

    Raises NotSent or ReplyLost in the flow. An error reply is an answer: a `hiredis.ReplyError`.
    """

    __slots__ = ("alone", "node", "payload", "replies", "tag")

    def __init__(
        self, tag: str, payload: bytes, replies: int = 1, node: Address | None = None, alone: bool = False
    ) -> None:
        self.tag = tag
        self.payload = payload
        self.replies = replies
        self.node = node
        self.alone = alone
        """On a connection of its own: the request blocks the connection at the server."""


class Together(Effect):
    """Run several flows at once, so that what they send first leaves in one write. Answers results or exceptions."""

    __slots__ = ("flows",)

    def __init__(self, flows: Sequence[Flow[Any]]) -> None:
        self.flows = flows


class Sleep(Effect):
    __slots__ = ("seconds",)

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds


class Refresh(Effect):
    """Find out anew which server is the primary, or which owns which slot."""

    __slots__ = ("hint",)

    def __init__(self, hint: str) -> None:
        self.hint = hint


class Listen(Effect):
    """Make sure that signals for this tag reach this process. Answers True if they did not before.

    After so many seconds the caller goes on without them (False); whoever asks next may find that they come."""

    __slots__ = ("channel", "seconds", "tag")

    def __init__(self, tag: str, channel: str, seconds: float | None = None) -> None:
        self.tag = tag
        self.channel = channel
        self.seconds = seconds


class Await(Effect):
    """Wait for the signal of a token, at most so long. Answers the message, or None."""

    __slots__ = ("seconds", "token")

    def __init__(self, token: str, seconds: float) -> None:
        self.token = token
        self.seconds = seconds


class Detach(Effect):
    """Finish this flow even if the caller goes away. On asyncio it goes on in the background.

    `patient`: it may take long, so no thread waits for it either; it ends with the client."""

    __slots__ = ("flow", "patient")

    def __init__(self, flow: Flow[Any], patient: bool = False) -> None:
        self.flow = flow
        self.patient = patient


# What the first word of an error reply means. All of these were said before anything was executed.
_REFRESH = {"READONLY", "CLUSTERDOWN", "MASTERDOWN"}
_LATER = {"TRYAGAIN", "LOADING", "BUSY", "NOREPLICAS", "MISCONF"}
_SETUP = {"NOAUTH", "WRONGPASS", "NOPERM"}
_ASKING = pack(b"ASKING")
_ASK = re.compile(r"ASK \d+ (.*):(\d+)")

BACKOFF_FIRST = 0.02
BACKOFF_MOST = 1.0


def backoff(attempt: int) -> float:
    """Seconds to wait before attempt number `attempt` + 1, with jitter so that a fleet does not return as one."""
    return min(BACKOFF_MOST, BACKOFF_FIRST * 2.0 ** min(attempt, 16)) * (0.5 + random.random() / 2)  # noqa: S311


def call(
    script: Script, tag: str, keys: Sequence[Arg], args: Sequence[Arg], *, clock: Clock, until: float, key: str = "",
    lost: list[ReplyLost] | None = None,
) -> Flow[list[Any]]:  # fmt: skip
    """Run a script on the server, through redirections, restarts and lost replies, until it answers or time is up.

    Raises Unavailable if it was surely not executed and Indeterminate if that cannot be known. `lost` collects the
    replies that never came before the one that did: an earlier attempt may be what the answer speaks of.
    """
    started = clock()
    payload = script.pack(keys, args)
    effect = Send(tag, payload)
    unknown = False
    attempt = 0
    while True:
        wait = True
        try:
            reply = yield effect
        except NotSent as error:
            problem: Exception = error
            effect = Send(tag, payload)
            yield Refresh("unreachable")
        except ReplyLost as error:
            problem, unknown = error, True
            if lost is not None:
                lost.append(error)
            if script.retry == "never":
                raise Indeterminate(
                    "find out whether it happened before you repeat it: no reply came",
                    operation=script.name, key=key, elapsed=clock() - started,
                ) from error  # fmt: skip
            effect = Send(tag, payload)
        else:
            if not isinstance(reply, ReplyError):
                return reply  # type: ignore[no-any-return]
            problem = reply
            try:
                effect, wait = yield from _after_error(script, effect, payload, str(reply), key)
            except HoldfastError as error:
                if unknown:  # refused now, but an attempt before may have gone through
                    raise _gave_up(True, error, script.name, key, clock() - started) from error
                raise
        patient = wait or attempt > 8
        if clock() >= until and (patient or attempt > 4):  # what is only to be sent elsewhere, or with its text, is
            raise _gave_up(unknown, problem, script.name, key, clock() - started) from problem
        if patient:
            yield Sleep(max(0.0, min(backoff(attempt), until - clock())))
        attempt += 1


def _after_error(script: Script, sent: Send, payload: bytes, text: str, key: str) -> Flow[tuple[Send, bool]]:
    """What to send after an error reply to `sent`, and whether to wait before that."""
    word, tag = text.partition(" ")[0], sent.tag
    if word == "NOSCRIPT":
        # Where SCRIPT LOAD is not allowed, was flushed again or would miss its node, the whole script goes along.
        if sent.node is not None:
            return Send(tag, _ASKING + script.as_eval(payload), replies=2, node=sent.node), False
        loaded = sent.replies > 1
        return (Send(tag, script.as_eval(payload)) if loaded else Send(tag, script.pack_load() + payload, 2)), loaded
    if word == "MOVED":
        yield Refresh(text)
        return Send(tag, payload), False
    if word == "ASK":
        place = _ASK.fullmatch(text)
        if place:
            return Send(tag, _ASKING + payload, replies=2, node=(place[1], int(place[2]))), False
    if word in _REFRESH or "-READONLY" in text:
        yield Refresh(word)
        return Send(tag, payload), True
    if word in _LATER:
        return Send(tag, payload), True
    if word == "OOM":
        raise ServerFull(
            "give the server memory or remove something: it is at maxmemory and refuses to add",
            operation=script.name, key=key,
        )  # fmt: skip
    if word in _SETUP or "ACL failure" in text or "The user executing the script can't" in text:
        raise NotPermitted(f"give the user the rights it needs: the server says {text}", operation=script.name)
    raise ServerError(f"report this: the server answered {text}", operation=script.name, key=key)


def _gave_up(unknown: bool, problem: Exception, operation: str, key: str, elapsed: float) -> HoldfastError:
    kind: type[HoldfastError] = Indeterminate if unknown else Unavailable
    advice = (
        "find out whether it happened: requests were sent and no reply came"
        if unknown
        else "check that the server is up and reachable; nothing was done"
    )
    return kind(f"{advice}: {problem}", operation=operation, key=key, elapsed=elapsed)
