"""How much a random test tries. `HOLDFAST_DEEP=1` makes it many times as much, and another run each time."""

from __future__ import annotations

import os
from typing import Any

DEEP = os.environ.get("HOLDFAST_DEEP", "") not in ("", "0")


def examples(number: int, deep: int) -> int:
    return deep if DEEP else number


def tries(number: int, deep: int) -> dict[str, Any]:
    """For Hypothesis: so many examples, always the same ones unless the run is a deep one."""
    return {"max_examples": examples(number, deep), "derandomize": not DEEP, "deadline": None}
