"""User data as bytes and back: any JSON value, and bytes. No pickle: what is read can be data only.

The first byte is the version of what follows, so that a worker meets data of a newer one knowingly: it raises
`NewerPayload`, leaves the data where it is, and a newer worker takes it. Version 1 is MessagePack; whole numbers too
large for it are extension 1, in decimal. What is written is read back before it is sent, so that it is known to come
back as it was. Version 2 is version 1 with the trace before it in which it was written: 2, a length, a W3C traceparent
in ASCII, and then all of version 1. It is only written where tracing is on, and the trace is no part of the data.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec

from holdfast.errors import InvalidPayload, NewerPayload, TooLarge, UnreadablePayload

VERSION = b"\x01"
TRACED = b"\x02"
MAX_DEPTH = 200
"""Levels of nesting. A reader recurses too, and may itself be deep in calls."""
MAX_DIGITS = 4000
_BIG = 1
_LOW, _HIGH = -(2**63), 2**64 - 1
_TRACE = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_NO_CONTAINER = bytes(byte for byte in range(256) if not (0x80 <= byte <= 0x9F or 0xDC <= byte <= 0xDF))

_encoder = msgspec.msgpack.Encoder()


def encode(value: Any, limit: int) -> bytes:
    """Raises InvalidPayload for what is no JSON value nor bytes, TooLarge above `limit` bytes. Sends nothing.

    A tuple comes back as a list, and a bytearray as bytes; anything else comes back as it was or is refused."""
    try:
        try:
            raw = _encoder.encode(value)
        except OverflowError:
            raw = _encoder.encode(_wrapped(value))
        if len(raw) >= limit:
            raise TooLarge(
                f"store large data elsewhere and pass where it is: this is {len(raw) + 1} bytes, the limit is {limit}"
            )
        # Each container is at least one such byte, but text may hold them too: they only say where to look closer.
        if len(raw) > MAX_DEPTH < len(raw.translate(None, _NO_CONTAINER)) and _depth(value) > MAX_DEPTH:
            raise InvalidPayload(f"nest the data less deeply: at most {MAX_DEPTH} levels")
        back = _decode(raw)
        if back != value and not _alike(value, back):
            raise InvalidPayload("pass JSON values or bytes: some of this would come back as something else")
        # So points in time begin, which MessagePack has and JSON has not.
        if (b"\xd6\xff" in raw or b"\xd7\xff" in raw or b"\xc7\x0c\xff" in raw) and _holds(value, datetime):
            raise InvalidPayload("pass points in time as text or numbers: JSON has none")
        # So the infinities begin; JSON has none either.
        if (b"\xcb\x7f\xf0" in raw or b"\xcb\xff\xf0" in raw) and _holds(value, float, math.isinf):
            raise InvalidPayload("pass numbers that JSON has: infinity is none")
    except RecursionError:
        raise InvalidPayload(f"nest the data less deeply: at most {MAX_DEPTH} levels") from None
    except InvalidPayload:
        raise
    except (TypeError, ValueError, OverflowError) as error:  # UnicodeEncodeError is a ValueError
        raise InvalidPayload(f"pass a JSON value or bytes: {error}") from None
    return VERSION + raw


def decode(data: bytes) -> Any:
    """The inverse of `encode`. Raises NewerPayload or UnreadablePayload."""
    if data[:1] != VERSION:
        data = _without_trace(data)
        if TRACED < data[:1] < b"\x20":  # further versions; anything above is no format of ours
            raise NewerPayload(f"run a newer version here: this was written in format {data[0]}")
        if data[:1] != VERSION:
            raise UnreadablePayload("inspect what wrote this: the data has no known format")
    try:
        return _decode(memoryview(data)[1:])
    except (msgspec.DecodeError, RecursionError, ValueError, TypeError) as error:
        raise UnreadablePayload(f"inspect what wrote this: the data cannot be read ({error})") from None


def canonical(data: bytes) -> bytes:
    """The same for payloads that are equal: the order of a dict's keys does not count, nor does a trace."""
    data = _without_trace(data)
    try:
        return _in_order(_decode(memoryview(data)[1:]))
    except (TypeError, ValueError, OverflowError):  # a number that needs an extension: as it is
        return data


def traced(trace: str) -> bytes:
    """What goes before a payload that is written in this trace, a W3C traceparent."""
    raw = trace.encode()
    return TRACED + len(raw).to_bytes(1, "big") + raw if _TRACE.fullmatch(raw) else b""


def trace_of(data: bytes) -> str | None:
    """The trace in which a payload was written. A damaged one is none: it must not keep anybody from the data."""
    if data[:1] != TRACED:
        return None
    raw = bytes(data[2 : 2 + data[1]]) if len(data) > 1 else b""
    return raw.decode() if _TRACE.fullmatch(raw) else None


def _without_trace(data: bytes) -> bytes:
    return data[2 + data[1] :] if data[:1] == TRACED and len(data) > 1 else data


def _unwrap(code: int, data: memoryview) -> Any:
    if code != _BIG:
        raise ValueError(f"extension {code} is not known")
    if len(data) > MAX_DIGITS:
        raise ValueError(f"a number has more than {MAX_DIGITS} digits")
    return int(bytes(data))


_decode = msgspec.msgpack.Decoder(ext_hook=_unwrap).decode
_in_order = msgspec.msgpack.Encoder(order="deterministic").encode


def _wrapped(value: Any) -> Any:
    """The same value with whole numbers that MessagePack lacks as extensions."""
    if isinstance(value, int) and not _LOW <= value <= _HIGH:
        if value.bit_length() > MAX_DIGITS * 3.32:
            raise ValueError(f"a number has more than {MAX_DIGITS} digits")
        return msgspec.msgpack.Ext(_BIG, b"%d" % value)
    if isinstance(value, dict):
        return {_wrapped(key): _wrapped(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_wrapped(item) for item in value]
    return value


def _depth(value: Any) -> int:
    deepest, level = 0, [value]
    while level:
        deepest += 1
        level = [
            item
            for one in level
            if isinstance(one, (dict, list, tuple))
            for item in (one.values() if isinstance(one, dict) else one)
        ]
    return deepest


def _alike(value: Any, back: Any) -> bool:
    """Equal, where a tuple counts as the list it comes back as."""
    if isinstance(value, (list, tuple)) and isinstance(back, list):
        return len(value) == len(back) and all(map(_alike, value, back))
    if isinstance(value, dict) and isinstance(back, dict):
        return value.keys() == back.keys() and all(_alike(item, back[key]) for key, item in value.items())
    return bool(value == back)


def _holds(value: Any, kind: type, when: Callable[[Any], bool] = lambda _: True) -> bool:
    """Is one of these anywhere in it?"""
    if isinstance(value, kind):
        return when(value)
    if isinstance(value, dict):
        return any(_holds(key, kind, when) or _holds(item, kind, when) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return any(_holds(item, kind, when) for item in value)
    return False
