"""Which collections there are: what the processes of the fleet have named."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast import Holdfast


async def names_of(hf: Holdfast, *kinds: str) -> Sequence[str]:
    """Of these kinds, in order."""
    return sorted({one.name for one in await hf.fleet.names() if one.kind in kinds})
