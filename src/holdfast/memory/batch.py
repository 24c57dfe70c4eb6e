"""The shape of what is absorbed. Holdfast's absorber hands out such batches, and so may anything else."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from holdfast.errors import ConfigurationError
from holdfast.keys import Id, encode, id_bytes

MAX_FENCE = 2**63 - 1
_LONGEST_NAME = 255


class BatchMessage(Protocol):
    """One message of a batch. `at` is Unix seconds of server time."""

    @property
    def id(self) -> str: ...
    @property
    def data(self) -> Any: ...
    @property
    def at(self) -> float: ...
    @property
    def attachments(self) -> Mapping[str, Any]: ...


class BatchPair(Protocol):
    """One turn of the conversation that explains the messages."""

    @property
    def user(self) -> Any: ...
    @property
    def assistant(self) -> Any: ...
    @property
    def at(self) -> float: ...


class AbsorbableBatch(Protocol):
    """Delivered until it is acknowledged: each time the same id and messages, a higher attempt and a higher fence."""

    @property
    def buffer(self) -> str: ...
    @property
    def key(self) -> Id: ...
    @property
    def id(self) -> str: ...
    @property
    def fence(self) -> int: ...
    @property
    def attempt(self) -> int: ...
    @property
    def messages(self) -> Sequence[BatchMessage]: ...
    @property
    def pairs(self) -> Sequence[BatchPair]: ...

    def check(self) -> None:
        """Raise LeaseLost when the batch is no longer this worker's."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where entries come from, as the columns hold it."""

    buffer: str
    user: str
    batch: str
    fence: int
    at: float | None

    @classmethod
    def of(cls, batch: AbsorbableBatch) -> Origin:
        """Raises ConfigurationError for what no absorber hands out."""
        fence = batch.fence
        if not isinstance(fence, int) or isinstance(fence, bool) or not 0 <= fence <= MAX_FENCE:
            raise ConfigurationError(f"pass a fence from 0 to {MAX_FENCE}, not {fence!r:.60}")
        return cls(
            buffer=name_column(batch.buffer, "buffer"),
            user=user_column(batch.key),
            batch=name_column(batch.id, "batch id"),
            fence=fence,
            at=max((float(message.at) for message in batch.messages), default=None),
        )

    @property
    def resource(self) -> str:
        return resource_of(self.buffer, self.user)


def user_column(user: Id) -> str:
    """A user as its column holds it, one-to-one."""
    return encode(id_bytes(user))


def name_column(name: str, what: str) -> str:
    """The name of a buffer or a batch as its column holds it, one-to-one."""
    column = encode(id_bytes(name))
    if len(column) > _LONGEST_NAME:  # together with the longest user it must fit into one row of an index
        raise ConfigurationError(f"shorten the {what}: {len(column)} characters, the limit is {_LONGEST_NAME}")
    return column


def resource_of(buffer: str, user: str) -> str:
    """What the fence protects. A digest, because it stays after the user is forgotten."""
    raw = buffer.encode("ascii")
    return hashlib.sha256(b"%d:%b:%b" % (len(raw), raw, user.encode("ascii"))).hexdigest()
