"""What short-term memory is asked for, checked and with its keys worked out, before anything is sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.engine.core import Core
from holdfast.engine.limits import check_count, check_seconds
from holdfast.errors import ConfigurationError, InvalidId
from holdfast.keys import Id, decode, encode, id_bytes, shard_of
from holdfast.sessions.entry import FORMAT, CountTokens, Draft
from holdfast.sessions.entry import encode as encode_entry
from holdfast.settings import MAX_SECONDS

MIN_TTL = 0.05
MAX_ENTRIES = 10_000
MAX_BATCH = 1000
MAX_BYTES = 1 << 28
MAX_BUDGET = 1 << 40
MAX_NAME = 64
REINDEX = 300.0
"""Seconds for which a process takes a session for indexed after it has done so."""
INDEX_EXTRA = 7 * 86_400.0
"""A user's index lives so much longer than its sessions."""
KNOWN_PAIRS = 4096


class Place(NamedTuple):
    """Where a session, or the index of a user, is."""

    shown: str
    """For people."""
    part: str
    """The id as it stands in keys."""
    tag: str
    key: str


class Batch(NamedTuple):
    """Entries of one save, ready to be sent."""

    id: str
    ids: tuple[str, ...]
    parts: tuple[bytes, ...]


class Spec:
    """Name and bounds of one short-term memory, and what this process knows of its users' indexes."""

    def __init__(
        self, core: Core, name: Id, *, max_entries: int | None, ttl: float | None, max_tokens: int | None,
        max_bytes: int | None, count_tokens: CountTokens | None,
    ) -> None:  # fmt: skip
        s = core.settings
        self.part = encode(id_bytes(name))
        if len(self.part) > MAX_NAME:
            raise ConfigurationError(f"name it with at most {MAX_NAME} bytes: the name is in every key, not {name!r}")
        self.name = name
        self.keys = core.keys
        self.entries = check_count("max_entries", s.session_entries if max_entries is None else max_entries, 1,
                                   MAX_ENTRIES)  # fmt: skip
        self.bytes = check_count("max_bytes", s.session_bytes if max_bytes is None else max_bytes, 64, MAX_BYTES)
        self.tokens = 0 if max_tokens is None else check_count("max_tokens", max_tokens, 1, MAX_BUDGET)
        self.ttl = self.seconds(s.session_ttl if ttl is None else ttl)
        if count_tokens is not None and not callable(count_tokens):
            raise ConfigurationError("pass count_tokens as a function of a message that answers a number")
        self.count_tokens = count_tokens
        self.known: dict[tuple[str, str], tuple[float, str, float]] = {}
        """User and session: when it was indexed, and which life of the session that was."""

    def seconds(self, ttl: float | None) -> float:
        return self.ttl if ttl is None else check_seconds("ttl", ttl, MIN_TTL, MAX_SECONDS)

    def session(self, session: Id) -> Place:
        return self._place("s", session)

    def user(self, user: Id) -> Place:
        return self._place("user", user)

    def _place(self, kind: str, value: Id) -> Place:
        raw = id_bytes(value)
        part = encode(raw)
        tag = self.keys.tag(f"session.{self.part}", shard_of(raw))
        shown = decode(part)
        return Place(shown if isinstance(shown, str) else part, part, tag, f"{self.keys.base(tag)}{kind}:{part}")

    def batch(self, core: Core, drafts: Sequence[Draft]) -> Batch:
        """Raises ConfigurationError for what can never be stored."""
        if not 1 <= len(drafts) <= MAX_BATCH:
            raise ConfigurationError(f"pass 1 to {MAX_BATCH} entries at once, not {len(drafts)}")
        number = core.new_token()[-16:]
        ids: list[str] = []
        parts: list[bytes] = []
        for at, draft in enumerate(drafts):
            if not isinstance(draft, Draft):
                raise ConfigurationError(f"pass entries as Draft(content, role=...), not {type(draft).__name__}")
            if len(draft.tool_calls) >= self.entries:
                raise ConfigurationError(
                    f"raise max_entries above {len(draft.tool_calls)}: this entry makes so many tool calls, "
                    f"and they are kept together with their results"
                )
            one = f"{number}{at:04x}"
            ids.append(one)
            parts += (bytes((FORMAT,)) + bytes.fromhex(one), encode_entry(draft, self.bytes, self.count_tokens))
        return Batch(number, tuple(ids), tuple(parts))


def entry_id(value: str) -> bytes:
    """The bytes of an entry's id, or InvalidId."""
    try:
        raw = bytes.fromhex(value)
    except (TypeError, ValueError):
        raw = b""
    if len(raw) != 10:
        raise InvalidId(f"pass the id that a save answered, not {value!r}")
    return raw
