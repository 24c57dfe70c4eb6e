"""The one place in the package that reads this machine's clock: `holdfast doctor` holds it against the server's."""

from __future__ import annotations

import time


def wall() -> float:
    """Seconds since 1970, as this machine believes. Nothing is decided by it."""
    return time.time()
