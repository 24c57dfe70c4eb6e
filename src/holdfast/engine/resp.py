"""The wire format, where hiredis has it in C but types it too narrowly."""

from __future__ import annotations

from typing import Any

import hiredis

Arg = str | bytes | int | float


def pack(*words: Arg) -> bytes:
    """One command as bytes."""
    packed: Any = hiredis.pack_command(words)  # type: ignore[arg-type]
    return packed  # type: ignore[no-any-return]
