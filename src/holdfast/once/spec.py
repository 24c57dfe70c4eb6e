"""Where ids and things are, worked out before anything is sent.

    hf:{once.19}:id:orders:Qm9…      an id that was seen or is claimed, by its digest
    hf:{once.19}:call:charge:Qm9…    a call and its result
    hf:{once.19}:gate:venues:Qm9…    a thing and what was told of it
    hf:{once.19}:due:venues          which things of the shard must be looked at when

The digest decides the shard, so ids of one space spread over a Cluster. A space's name may hold a colon; the digest has
always 22 characters and no colon, so no two keys are alike.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from holdfast.engine.core import Core
from holdfast.engine.digest import id_digest, in_key, shard_of_digest
from holdfast.errors import ConfigurationError
from holdfast.keys import SHARDS, encode, id_bytes

POLICIES = ("raise", "allow", "deny")
MARK_MAX = 366 * 86_400.0
LEAST = 0.001
NO_DIGEST = bytes(16)


class Place(NamedTuple):
    """Where one id is."""

    tag: str
    key: str
    channel: str
    space: str
    shown: str


class Space:
    """All ids of one name. Making one sends nothing."""

    def __init__(self, core: Core, name: str, kind: str = "id") -> None:
        if not isinstance(name, str):
            raise ConfigurationError(f"name the space with text, not {type(name).__name__}")
        part = encode(id_bytes(name))
        self.name = name
        self.part = part
        self.tags = [core.keys.tag("once", shard) for shard in range(SHARDS)]
        self.prefixes = [f"{core.keys.base(tag)}{kind}:{part}:" for tag in self.tags]
        self.dues = [f"{core.keys.base(tag)}due:{part}" for tag in self.tags]
        self.none = [f"{core.keys.base(tag)}none" for tag in self.tags]

    def key(self, value: Any) -> tuple[int, str]:
        """Shard and key of an id."""
        digest = id_digest(value)
        shard = shard_of_digest(digest)
        return shard, self.prefixes[shard] + in_key(digest)

    def place(self, value: Any) -> Place:
        shard, key = self.key(value)
        return Place(self.tags[shard], key, f"{key}:ch", self.name, f"{self.name}:{value!r:.100}")


def check_policy(value: str) -> str:
    if value not in POLICIES:
        raise ConfigurationError(f"pass on_outage as raise, allow or deny, not {value!r}")
    return value
