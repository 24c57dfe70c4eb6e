"""What a buffer is asked for, checked and with its keys worked out, before anything is sent."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.engine.core import Core
from holdfast.engine.limits import check_count, check_seconds
from holdfast.errors import ConfigurationError
from holdfast.keys import SHARDS, Id, encode, id_bytes, shard_of
from holdfast.settings import MAX_SECONDS

MAX_CAPACITY = 100_000
MAX_BATCH = 1000
MAX_EXTEND = 1000
MAX_BYTES = 1 << 30
MAX_LEASE = 86_400.0
MIN_TTL = 0.05
DEADLINE = 10.0
"""How long an attachment may be pending, unless said otherwise."""
NAME_MAX = 64
ALERT_FULL = 0.8
ALERT_LIFE = 3600.0
KNOWN_PLACES = 4096


class Shard(NamedTuple):
    """One part of a buffer: everything about its users is in one cluster slot."""

    number: int
    tag: str
    base: str
    due: str
    idle: str
    stat: str
    dead: str
    old: str
    big: str
    signals: str


class Place(NamedTuple):
    """Where one user's messages are."""

    user: str
    """As it stands in keys."""
    tag: str
    base: str
    key: str
    shard: Shard


class BufferSpec:
    """Name, bounds and life of a buffer."""

    def __init__(
        self, core: Core, name: str, *, capacity: int, ttl: float, max_bytes: int, max_message: int,
        conversations: int, conversation_ttl: float,
    ) -> None:  # fmt: skip
        raw = id_bytes(name)
        part = encode(raw)
        if not isinstance(name, str) or len(part) > NAME_MAX:
            raise ConfigurationError(f"name a buffer with text of at most {NAME_MAX} bytes, not {name!r}")
        self.name = name
        self.capacity = check_count("capacity", capacity, 1, MAX_CAPACITY)
        self.ttl = check_seconds("ttl", ttl, MIN_TTL, MAX_SECONDS)
        self.max_bytes = check_count("max_bytes", max_bytes, 1, MAX_BYTES)
        self.max_message = min(check_count("max_message", max_message, 1, MAX_BYTES), self.max_bytes - 32)
        if self.max_message < 1:
            raise ConfigurationError(
                f"pass max_bytes above 32: each message needs so many besides its data, not {max_bytes}"
            )
        self.alert_at = self.capacity * ALERT_FULL
        self.alert_age = (self.ttl - min(ALERT_LIFE, self.ttl / 2)) * 1000
        """Messages, and ms of the oldest, from which on an append says so."""
        self.used = False
        """Was the fleet told that this process uses it?"""
        self.conversations = check_count("conversations", conversations, 1, MAX_BATCH)
        self.conversation_ttl = check_seconds("conversation_ttl", conversation_ttl, MIN_TTL, MAX_SECONDS)
        room = f"buffer.{part}"
        self.shards: list[Shard] = []
        for number in range(SHARDS):
            tag = core.keys.tag(room, number)
            base = core.keys.base(tag)
            self.shards.append(
                Shard(
                    number,
                    tag,
                    base,
                    f"{base}due",
                    f"{base}idle",
                    f"{base}stat",
                    f"{base}dead",
                    f"{base}old",
                    f"{base}big",
                    f"{base}sig:",
                )
            )
        self._bounds = b"".join(
            number.to_bytes(size, "big")
            for number, size in ((self.capacity, 4), (self.max_bytes, 4), (int(self.ttl * 1000), 5))
        )
        self.limits_of_one = self.limits(1)
        self._places: dict[Id, Place] = {}

    def limits(self, count: int) -> bytes:
        """The bounds, and how many messages come: packed, because each argument of a script costs time."""
        return self._bounds + count.to_bytes(2, "big")

    def place(self, user: Id) -> Place:
        # Remembered for a while: a user seldom sends one message only.
        try:
            return self._places[user]
        except (KeyError, TypeError):
            raw = id_bytes(user)
        shard = self.shards[shard_of(raw)]
        part = encode(raw)
        if len(self._places) >= KNOWN_PLACES:
            self._places.clear()
        place = self._places[user] = Place(part, shard.tag, shard.base, f"{shard.base}u:{part}", shard)
        return place
