# Written by tools/make_sync.py from src/holdfast/sessions/sessions.py. Change that file, then run `make sync`.
"""Short-term memory: what was said in each session, newest kept, with an end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from holdfast.engine.core import Core
from holdfast.engine.threads import ThreadDriver
from holdfast.keys import Id
from holdfast.sessions import flows, users
from holdfast.sessions.entry import Context, CountTokens, Draft, Entry, Saved
from holdfast.sessions.spec import MAX_ENTRIES, Spec


class Sessions:
    """The newest entries of any number of sessions. Made by `Holdfast.sessions`; making one sends nothing.

    Each session is bounded by entries, bytes and, if asked for, tokens, and it ends when it was not used for its life.
    Trimming takes the oldest entries first and never parts a tool call from its results: they stay or go together. The
    newest entry always stays, unless it is a tool result that with its call alone is more than `max_entries` or
    `max_bytes`, or whose call is not in the session; then `Saved.id` is None. Order is that in which the server stored
    the entries; no client's clock decides anything. Whatever is removed is counted, in `Saved.trimmed` and as events.
    """

    def __init__(
        self, core: Core, driver: Callable[[], ThreadDriver], name: Id, *, max_entries: int | None = None,
        ttl: float | None = None, max_tokens: int | None = None, max_bytes: int | None = None,
        count_tokens: CountTokens | None = None,
    ) -> None:  # fmt: skip
        self._core = core
        self._driver = driver
        self._spec = Spec(
            core, name, max_entries=max_entries, ttl=ttl, max_tokens=max_tokens, max_bytes=max_bytes,
            count_tokens=count_tokens,
        )  # fmt: skip
        self.name = name

    def __repr__(self) -> str:
        spec = self._spec
        return f"<Sessions {spec.part} max_entries={spec.entries} ttl={spec.ttl:g}>"

    # -- writing ------------------------------------------------------------------------------------------------

    def save(
        self, session: Id, content: Any, *, role: str = "user", user: Id | None = None, ttl: float | None = None,
        tool_calls: Sequence[str | Mapping[str, Any]] = (), tool_call_id: str | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> Saved:  # fmt: skip
        """Store an entry, trim the session and prolong its life, in one step and one round trip.

        `content`, `role`, `tool_calls`, `tool_call_id` and `extra` are those of `Draft`. `ttl` seconds is how long the
        session lives at least from now on; a shorter one than before shortens nothing. `user` is who `forget` will ask
        for; the first save of a user in a session costs one round trip more.

        A lost reply is resolved: the entry is stored once, also when the first request arrives late (up to a minute,
        in the same session). Where that cannot be told, because as new entries were trimmed meanwhile, Indeterminate is
        raised; Unavailable means that nothing was stored. Cancelled, it may or may not be stored. Raises TooLarge or
        InvalidPayload before anything is sent."""
        draft = Draft(content, role, tool_calls, tool_call_id, extra)
        return self.save_many(session, (draft,), user=user, ttl=ttl)

    def save_many(
        self, session: Id, entries: Iterable[Draft], *, user: Id | None = None, ttl: float | None = None
    ) -> Saved:
        """Store several entries together, in this order with nobody's in between; otherwise as `save`."""
        spec = self._spec
        who = None if user is None else spec.user(user)
        return self._driver().run(flows.save(self._core, spec, spec.session(session), tuple(entries), who, ttl))

    def pop_last(self, session: Id) -> Entry | None:
        """Remove the newest entry and answer it; None if there is none.

        Not repeated when its reply is lost: then Indeterminate is raised, and the entry may be gone unseen. What cannot
        be read is removed and counted, and the one before it answered; what a newer version wrote stays, with
        NewerPayload. Popping a result leaves its call without one."""
        return self._driver().run(flows.pop_last(self._core, self._spec, self._spec.session(session)))

    def touch(self, session: Id, *, ttl: float | None = None, user: Id | None = None) -> bool:
        """Let it live at least `ttl` seconds from now on, never less than before. False: there is no such session.

        Pass `user` as with `save` where a session lives on touches alone for longer than a week: the user's index
        lives that much longer than the session would have without them."""
        spec = self._spec
        who = None if user is None else spec.user(user)
        return self._driver().run(flows.touch(self._core, spec, spec.session(session), who, ttl))

    def clear(self, session: Id) -> None:
        """Remove all of it. Safe to repeat."""
        self._driver().run(flows.clear(self._core, self._spec.session(session)))

    # -- reading ------------------------------------------------------------------------------------------------

    def context(self, session: Id, limit: int = 50) -> Context:
        """The newest `limit` entries, oldest first; empty if there is no session.

        There may be fewer: a tool result whose call is not among them is left out, for providers refuse it, and so is
        what cannot be read, which `Context.unreadable` and `Context.newer` count. Nothing is removed by reading."""
        return self._driver().run(flows.context(self._core, self._spec, self._spec.session(session), limit))

    def entries(self, session: Id) -> Context:
        """All of it, as `context`."""
        return self.context(session, MAX_ENTRIES)

    def get(self, session: Id, entry_id: str) -> Entry | None:
        """One entry by the id that its save answered; None if it is not there. Raises UnreadablePayload if damaged."""
        return self._driver().run(flows.get(self._core, self._spec.session(session), entry_id))

    def count(self, session: Id) -> int:
        """How many entries it has."""
        return self._driver().run(flows.count(self._core, self._spec.session(session)))

    # -- users --------------------------------------------------------------------------------------------------

    def sessions_of(self, user: Id) -> list[Id]:
        """The sessions in which something was saved with this `user`, those that are still there."""
        return self._driver().run(users.sessions_of(self._core, self._spec, self._spec.user(user)))

    def forget(self, user: Id) -> int:
        """Delete every session in which something was saved with this `user`; answers how many there were.

        The whole session goes, also what others said in it. Safe to repeat: do so if it was cancelled or raised. A save
        that is under way meanwhile may come after it; its session is in the user's index, where the next `forget`
        finds it. For that reason ids of sessions that were saved to in the last minute stay in the index until then, or
        until it ends a week after the last session would have."""
        return self._driver().run(users.forget(self._core, self._spec, self._spec.user(user)))
