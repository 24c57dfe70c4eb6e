"""The clock for deadlines: it never jumps, and it goes on while the machine is suspended where the system can tell."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

Clock = Callable[[], float]


def system_clock() -> Clock:
    """CLOCK_BOOTTIME where there is one: a suspended laptop or a paused VM must find its leases expired."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    if boot is None:
        return time.monotonic
    return partial(time.clock_gettime, boot)
