"""User data as bytes and back: any JSON value, and bytes. No pickle: what is read can be data only.

The first byte is the version of what follows, so that a worker meets data of a newer one knowingly: it raises
`NewerPayload`, leaves the data where it is, and a newer worker takes it. Version 1 is MessagePack; whole numbers too
large for it are extension 1, in decimal.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from holdfast.errors import InvalidPayload, NewerPayload, TooLarge, UnreadablePayload

VERSION = b"\x01"
_BIG = 1
_LOW, _HIGH = -(2**63), 2**64 - 1
_encoder = msgspec.msgpack.Encoder()


def encode(value: Any, limit: int) -> bytes:
    """Raises InvalidPayload for what is no JSON value nor bytes, TooLarge above `limit` bytes. Sends nothing."""
    try:
        raw = _encoder.encode(value)
    except OverflowError:
        raw = _encoder.encode(_wrapped(value))
    except RecursionError:
        raise InvalidPayload("nest the data less deeply: it has more levels than can be written") from None
    except (TypeError, ValueError) as error:  # UnicodeEncodeError is a ValueError
        raise InvalidPayload(f"pass a JSON value or bytes: {error}") from None
    # So NaN and the infinities begin. Text may hold these bytes too: they only say where to look closer.
    if (b"\xcb\x7f" in raw or b"\xcb\xff" in raw) and not _finite(value):
        raise InvalidPayload("pass numbers that JSON has: NaN and infinity are none")
    if len(raw) >= limit:
        raise TooLarge(
            f"store large data elsewhere and pass where it is: this is {len(raw) + 1} bytes, the limit is {limit}"
        )
    return VERSION + raw


def decode(data: bytes) -> Any:
    """The inverse of `encode`. Raises NewerPayload or UnreadablePayload."""
    if data[:1] != VERSION:
        if data[:1] > VERSION:
            raise NewerPayload(f"run a newer version here: this was written in format {data[0]}")
        raise UnreadablePayload("inspect what wrote this: the data has no known format")
    try:
        return msgspec.msgpack.decode(memoryview(data)[1:], ext_hook=_unwrap)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise UnreadablePayload(f"inspect what wrote this: the data cannot be read ({error})") from None


def _unwrap(code: int, data: memoryview) -> Any:
    if code != _BIG:
        raise ValueError(f"extension {code} is not known")
    return int(bytes(data))


def _wrapped(value: Any) -> Any:
    """The same value with whole numbers that MessagePack lacks as extensions."""
    if isinstance(value, int) and not _LOW <= value <= _HIGH:
        return msgspec.msgpack.Ext(_BIG, b"%d" % value)
    if isinstance(value, dict):
        return {_wrapped(key): _wrapped(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_wrapped(item) for item in value]
    return value


def _finite(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(_finite(key) and _finite(item) for key, item in value.items())
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(map(_finite, value))
    return True
