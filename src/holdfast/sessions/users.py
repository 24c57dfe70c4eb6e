"""Which sessions a user has: an index for each user, in a slot of its own, written before the session is.

A session is never without its entry in the index, whoever dies in between; an entry may be without its session.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

from holdfast.engine.core import Core
from holdfast.engine.flow import Detach, Flow, Together, call
from holdfast.engine.status import Status
from holdfast.errors import HoldfastError
from holdfast.keys import Id, decode
from holdfast.sessions.spec import INDEX_EXTRA, KNOWN_PAIRS, REINDEX, Place, Spec

PRUNED = 10
"""How many sessions are looked after at a time that may have ended."""
GRACE = 60_000
"""ms for which an entry of the index is kept although its session is gone: its save may still be under way."""
ROUNDS = 100
Seen = dict[str, int]
"""Sessions, as they stand in keys, and the server ms at which they were last indexed."""


def known_life(core: Core, spec: Spec, at: Place, user: Place, seconds: float) -> str:
    """The life of the session that this process has indexed not long ago, for so long; empty: none."""
    when, life, indexed = spec.known.get((user.part, at.part), (0.0, "", 0.0))
    return life if core.clock() - when < min(REINDEX, spec.ttl / 2) and seconds <= indexed else ""


def remember(core: Core, spec: Spec, at: Place, user: Place, life: str, seconds: float) -> None:
    known = spec.known.get((user.part, at.part))
    if known is not None and known[1] == life:
        return  # the time stays that of the index
    if len(spec.known) >= KNOWN_PAIRS:
        spec.known.clear()
    spec.known[user.part, at.part] = (core.clock(), life, seconds)


def index(core: Core, spec: Spec, at: Place, user: Place, seconds: float, until: float) -> Flow[None]:
    """Write down that this user has this session, and look after some that may have ended."""
    spec.known.pop((user.part, at.part), None)
    old = yield from _index(core, spec, user, at.part, seconds, PRUNED, until)
    if old:
        yield Detach(_prune(core, spec, user, old))


def _index(
    core: Core, spec: Spec, user: Place, session: str, seconds: float, count: int, until: float
) -> Flow[Seen]:  # fmt: skip
    longest = max(seconds, spec.ttl)
    args = (session, int((longest + INDEX_EXTRA) * 1000), int((longest + REINDEX) * 1000) + GRACE, count)
    return _seen((yield from _call(core, "sessions/index", user, args, until))[1])


def _prune(core: Core, spec: Spec, user: Place, old: Seen) -> Flow[None]:
    """Without this the index of a user who comes every day for years would only grow."""
    until = core.clock() + core.settings.retry_for
    try:
        gone = []
        for session, left in (yield from _lives(core, spec, list(old))).items():
            if left is None:
                gone += [session, old[session]]
            else:
                yield from _index(core, spec, user, session, left, 0, until)
        if gone:
            yield from _call(core, "sessions/unindex", user, (GRACE, *gone), until)
    except HoldfastError:
        return  # the next one who indexes does it


def _lives(core: Core, spec: Spec, sessions: list[str]) -> Flow[dict[str, float | None]]:
    """Seconds that each session has left; None: it is gone."""

    def look(session: str) -> Flow[float | None]:
        reply = yield from _call(
            core, "sessions/look", spec.session(decode(session)), (), core.clock() + core.settings.retry_for
        )
        if reply[0] == Status.MISSING.encode():
            return None
        return int(reply[4]) / 1000 if reply[0] == Status.FOUND.encode() else spec.ttl

    answers = yield from _together([look(session) for session in sessions])
    return dict(zip(sessions, answers, strict=True))


def sessions_of(core: Core, spec: Spec, user: Place) -> Flow[list[Id]]:
    """Those that are still there."""
    until = core.clock() + core.settings.retry_for
    seen = _seen((yield from _call(core, "sessions/list", user, (), until))[1])
    lives = yield from _lives(core, spec, list(seen))
    return [decode(session) for session, left in lives.items() if left is not None]


def forget(core: Core, spec: Spec, user: Place) -> Flow[int]:
    """Delete every session of this user. Safe to repeat; whatever ends it early, the rest is still indexed.

    Sessions first, then their entries in the index; then a second look, for one may have been saved meanwhile."""
    until = core.clock() + core.settings.retry_for
    deleted = 0
    done: Seen = {}
    seen = _seen((yield from _call(core, "sessions/list", user, (), until))[1])
    for _ in range(ROUNDS):
        new = {session: when for session, when in seen.items() if done.get(session) != when}
        if not new:
            break
        until = core.clock() + core.settings.retry_for
        for session in new:
            spec.known.pop((user.part, session), None)
        deleted += sum((yield from _together([_clear(core, spec, session, until) for session in new])))
        done.update(new)
        pairs = chain.from_iterable(new.items())
        seen = _seen((yield from _call(core, "sessions/unindex", user, (GRACE, *pairs), until))[1])
    return deleted


def _clear(core: Core, spec: Spec, session: str, until: float) -> Flow[int]:
    reply = yield from _call(core, "sessions/clear", spec.session(decode(session)), (), until)
    return int(reply[1])


def _together(flows: list[Flow[Any]]) -> Flow[list[Any]]:
    answers = (yield Together(flows)) if flows else []
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return list(answers)


def _call(core: Core, script: str, at: Place, args: tuple[Any, ...], until: float) -> Flow[list[Any]]:
    return (
        yield from call(core.scripts.get(script), at.tag, (at.key,), args, clock=core.clock, until=until, key=at.shown)
    )


def _seen(flat: list[bytes]) -> Seen:
    return {name.decode(): int(float(when)) for name, when in zip(flat[::2], flat[1::2], strict=True)}
