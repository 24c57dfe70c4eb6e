"""The only place that builds a key.

    hf:{locks.19}:lock:report:42
    │   │     │   │    └ id, encoded one-to-one
    │   │     │   └ what the key holds
    │   │     └ shard: crc32(id) % 64
    │   └ room
    └ prefix

The shard is the only hash tag, so everything about one id lives in one cluster slot and one script can move it.
The number of shards is part of the key format and not a setting: two processes that disagreed about it would
lock different keys and coordinate nothing.
"""

from __future__ import annotations

import re
import zlib

from holdfast.errors import ConfigurationError, InvalidId

SHARDS = 64
MAX_ID_BYTES = 512

Id = str | bytes

# What may stand in a key as it is. `%` escapes; braces would move the hash tag; glob characters and white space
# would make keys that operators cannot type. The id is always the last part, so `:` needs no escape.
_PLAIN = re.compile(rb"[A-Za-z0-9_.:/@+=,~-]+")
_ESCAPE = re.compile(rb"[^A-Za-z0-9_.:/@+=,~-]")
_UNESCAPE = re.compile(rb"%([0-9a-f]{2})")
_PREFIX = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


def id_bytes(value: Id) -> bytes:
    """The bytes that name this id. Text is its UTF-8; lone surrogates keep an encoding of their own.

    Nothing is normalised: NFC and NFD spellings are two ids. Text and the bytes of its UTF-8 are one id.
    """
    if isinstance(value, str):
        raw = value.encode("utf-8", "surrogatepass")
    elif isinstance(value, bytes):
        raw = value
    else:
        raise InvalidId(f"pass the id as str or bytes, not {type(value).__name__}")
    if not raw:
        raise InvalidId("pass an id that is not empty")
    if len(raw) > MAX_ID_BYTES:
        raise InvalidId(f"pass an id of at most {MAX_ID_BYTES} bytes (this one has {len(raw)}), or a digest of it")
    return raw


def encode(raw: bytes) -> str:
    """An id's bytes as the last part of a key; `decode` is its inverse."""
    if _PLAIN.fullmatch(raw):
        return raw.decode("ascii")
    return _ESCAPE.sub(lambda m: b"%%%02x" % m.group()[0], raw).decode("ascii")


def decode(part: str | bytes) -> Id:
    """The id of an encoded part: text where it is text, bytes otherwise."""
    raw = part.encode("ascii") if isinstance(part, str) else part
    raw = _UNESCAPE.sub(lambda m: bytes([int(m.group(1), 16)]), raw)
    try:
        return raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return raw


def shard_of(raw: bytes) -> int:
    """A stable hash, the same in every process and release. tests/vectors/keys.json pins it."""
    return zlib.crc32(raw) % SHARDS


class Keys:
    """Builds keys under one prefix."""

    __slots__ = ("prefix",)

    def __init__(self, prefix: str) -> None:
        if not _PREFIX.fullmatch(prefix):
            raise ConfigurationError(
                "pass a prefix of 1 to 64 letters, digits or the characters _ . : - "
                f"(braces would move the hash tag), not {prefix!r}"
            )
        self.prefix = prefix

    def tag(self, room: str, shard: int) -> str:
        return f"{room}.{shard}"

    def base(self, tag: str) -> str:
        """What every key of one shard starts with."""
        return f"{self.prefix}:{{{tag}}}:"
