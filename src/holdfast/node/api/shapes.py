"""Shapes that several parts of the API share."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

S = TypeVar("S", bound=msgspec.Struct)

Text = Annotated[str, Meta(min_length=1, max_length=512)]
Seconds = Annotated[float, Meta(ge=0, le=31_622_400)]
Limit = Annotated[int, Meta(ge=1, le=1000)]
Offset = Annotated[int, Meta(ge=0, le=1000)]
Reason = Annotated[str, Meta(min_length=1, max_length=1000)]
TokenText = Annotated[str, Meta(min_length=1, max_length=100)]
Whole = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


class Named(msgspec.Struct):
    """A collection that the fleet uses."""

    name: str
    seen: float
    """When some process last said so: seconds since 1970, by the server."""


class Page(msgspec.Struct):
    """How much to answer."""

    limit: Limit = 100


class Why(msgspec.Struct, forbid_unknown_fields=True):
    """What goes into the audit log."""

    reason: Reason


class Removed(msgspec.Struct):
    messages: int


def shape(cls: type[S], found: Any, **instead: Any) -> S:
    """The fields of a record of the library, as they are answered."""
    names = cls.__struct_fields__
    return cls(**{name: instead[name] if name in instead else plain(getattr(found, name)) for name in names})


def plain(value: Any) -> Any:
    """Data as JSON has it: bytes become {"$bytes": base64}, tuples lists, and keys text."""
    if isinstance(value, (str, int, float, type(None))):
        return value
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else repr(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value
