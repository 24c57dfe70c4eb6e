"""Signatures on webhooks, after the Standard Webhooks scheme: a receiver knows who sent it, and that it is not old."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Mapping

from holdfast.errors import ConfigurationError, HoldfastError

_PREFIX = "whsec_"


class InvalidSignature(HoldfastError):
    """A request does not come from who knows the secret, or not from now. Do not act on it."""


def key_of(secret: str) -> bytes:
    """`whsec_` and base64, as the scheme has it; any other text is its own UTF-8."""
    if not secret.startswith(_PREFIX):
        return secret.encode("utf-8", "surrogatepass")
    text = secret.removeprefix(_PREFIX)
    try:
        key = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not key:
        raise ConfigurationError("pass a secret of whsec_ and base64, or any text that does not begin with whsec_")
    return key


def sign(key: bytes, message_id: str, timestamp: int, body: bytes) -> str:
    """The value of the header `webhook-signature`."""
    digest = hmac.digest(
        key, b"%s.%d.%s" % (message_id.encode("utf-8", "surrogatepass"), timestamp, body), hashlib.sha256
    )
    return f"v1,{base64.b64encode(digest).decode()}"


def verify(secret: str, headers: Mapping[str, str], body: bytes | str, *, now: float, tolerance: float = 300) -> None:
    """For receivers: raises InvalidSignature unless it was signed with the secret, at most `tolerance` seconds ago.

    `body` is what arrived, byte by byte, not what a framework made of it. The case of header names does not count.
    The same delivery can come again within the tolerance: remember `webhook-id` to act once."""
    if not secret:
        raise ConfigurationError("pass the secret of the subscriber: without one, anybody could have sent this")
    given = {name.lower(): value for name, value in headers.items()}
    message_id, stamp = given.get("webhook-id", ""), given.get("webhook-timestamp", "")
    if not message_id or not re.fullmatch(r"[0-9]{1,12}", stamp):
        raise InvalidSignature("drop this request: it has no webhook-id or webhook-timestamp")
    if abs(now - int(stamp)) > tolerance:
        raise InvalidSignature(f"drop this request: it was signed more than {tolerance:g} s ago, or in the future")
    raw = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else bytes(body)
    expected = sign(key_of(secret), message_id, int(stamp), raw).encode()
    # Several signatures are possible while a secret is changed. All are compared, so that time tells nothing.
    signatures = given.get("webhook-signature", "").encode("utf-8", "surrogatepass").split(b" ")
    found = [hmac.compare_digest(one, expected) for one in signatures]
    if not any(found):
        raise InvalidSignature("drop this request: its signature does not match")
