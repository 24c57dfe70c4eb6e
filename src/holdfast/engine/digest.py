"""Digests: of ids, which may have parts, and of states. The same in every process and release.

`tests/vectors/digests.json` pins them. Parts of an id are never joined: `("19:00", "a")` and `("19", "00:a")` differ.
"""

from __future__ import annotations

import json
import math
from binascii import b2a_base64
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any

from holdfast.errors import InvalidId, InvalidPayload
from holdfast.keys import SHARDS

Part = str | bytes | int | None
AnyId = Part | tuple["AnyId", ...]
"""Text, bytes, whole numbers, None, and tuples of them, nested as you like."""

SIZE = 16
SHORT = 10_000
MAX_ID = 65_536
MAX_PARTS = 64
MAX_DEPTH = 100
_URL_SAFE = bytes.maketrans(b"+/", b"-_")
_TEXT, _SIMPLE = {str}, {str, int, bool, type(None)}
_as_text = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode


def id_structure(value: Any, depth: int = 0) -> bytes:
    """Each part with its kind and length, so that no two ids look alike. Text and the bytes of its UTF-8 are one id."""
    if isinstance(value, str):
        raw = value.encode("utf-8", "surrogatepass")
        return b"s%d:%b" % (len(raw), raw)
    if isinstance(value, bytes):
        return b"s%d:%b" % (len(value), value)
    if isinstance(value, int) and not isinstance(value, bool):
        return b"i%d;" % value
    if value is None:
        return b"n"
    if isinstance(value, tuple) and depth < 8 and len(value) <= MAX_PARTS:
        return b"t%d(%b)" % (len(value), b"".join(id_structure(part, depth + 1) for part in value))
    raise InvalidId(
        f"pass the id as text, bytes, a whole number, or a tuple of at most {MAX_PARTS} of them, "
        f"not {type(value).__name__}"
    )


def id_digest(value: Any) -> bytes:
    """Sixteen bytes that stand for an id."""
    if type(value) is str and 0 < len(value) < SHORT:  # what nearly all are, as quick as can be
        text = value.encode("utf-8", "surrogatepass")
        return blake2b(b"s%d:%b" % (len(text), text), digest_size=SIZE).digest()
    try:
        raw = id_structure(value)
    except ValueError as error:  # a number with more digits than Python writes
        if isinstance(error, InvalidId):
            raise
        raise InvalidId(f"pass an id of at most {MAX_ID} bytes, or a digest of it") from None
    if len(raw) > MAX_ID:
        raise InvalidId(f"pass an id of at most {MAX_ID} bytes, or a digest of it")
    if value in ("", b"", (), None):
        raise InvalidId("pass an id that is not empty, and not None: it would be the same for everybody who has none")
    return blake2b(raw, digest_size=SIZE).digest()


def in_key(digest: bytes) -> str:
    """A digest as it stands in keys: 22 characters."""
    return b2a_base64(digest, newline=False)[:22].translate(_URL_SAFE).decode()


def shard_of_digest(digest: bytes) -> int:
    return digest[0] % SHARDS


# -- states -----------------------------------------------------------------------------------------------------------


def canonical_json(value: Any) -> str:
    """The same text for equal values: keys in order, no white space, `1`, `1.0` and `1e0` alike, ASCII only."""
    try:
        return _as_text(_plain(value, 0))
    except (TypeError, ValueError) as error:
        raise InvalidPayload(f"pass a JSON value or bytes: {error}") from None


def state_digest(value: Any) -> bytes:
    """Sixteen bytes that stand for a state. A digest of your own is passed as text, and is then the state."""
    return blake2b(canonical_json(value).encode(), digest_size=SIZE).digest()


def _plain(value: Any, depth: int) -> Any:
    if isinstance(value, str) or value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidPayload("pass numbers that JSON has: infinity and NaN are none")
        return int(value) if value.is_integer() else value
    if depth >= MAX_DEPTH:
        raise InvalidPayload(f"nest the data less deeply: at most {MAX_DEPTH} levels")
    if isinstance(value, Mapping):
        if {*map(type, value)} <= _TEXT and {*map(type, value.values())} <= _SIMPLE and "$" not in "".join(value):
            return value  # most states are such, and need no second look
        if not all(isinstance(name, str) for name in value):
            raise InvalidPayload("pass dicts whose keys are text: JSON has no others")
        # A name that begins with $ gets one more: `$bytes` is ours.
        return {f"${name}" if name[:1] == "$" else name: _plain(item, depth + 1) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, depth + 1) for item in value]
    if isinstance(value, (bytes, bytearray)):
        return {"$bytes": bytes(value).hex()}
    raise InvalidPayload(f"pass JSON values or bytes, not {type(value).__name__}")


def watched(state: Any, fields: Iterable[str] | None, ignore: Iterable[str] = ()) -> Any:
    """The part of a state that counts: these fields if any are named, less those ignored. Others as they are."""
    left_out = frozenset(ignore)
    if not isinstance(state, Mapping):
        if fields is not None or left_out:
            raise InvalidPayload("pass the state as a dict where fields are named")
        return state
    if fields is not None:
        return {name: state[name] for name in fields if name in state and name not in left_out}
    return {name: item for name, item in state.items() if name not in left_out} if left_out else state
