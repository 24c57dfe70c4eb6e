"""At every step of every operation: reply dropped, connection cut, silence, caller interrupted.

Then: what one was told yes for is nobody else's, what nobody was told of is new, a claim is done or free, a call was
made once, no notice is lost and none is doubled.
"""

from __future__ import annotations

import pytest
from once_desk import Desks
from once_fault_operations import OPERATIONS, Story

from support.faults import FAULTS, every_pair, every_step

QUICK = {"call_timeout": 0.3, "retry_for": 2.0}


async def story_on(desks: Desks) -> Story:
    return Story(desks, await desks.desk(**QUICK), await desks.desk())


async def run(story: Story, operation: str, faults: dict[int, str]) -> int:
    story.begin(faults)
    await OPERATIONS[operation](story)
    return len(story.plan.hits)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("fault", FAULTS)
async def test_every_single_fault(quick: Desks, operation: str, fault: str):
    story = await story_on(quick)
    steps = 0
    for faults in every_step(fault):
        if not await run(story, operation, faults):
            break
        steps += 1
    assert steps >= 1


PAIRS = [("reply dropped", "reply dropped"), ("reply dropped", "cancel after"), ("silent", "reply dropped")]


@pytest.mark.parametrize("pair", PAIRS, ids=str)
@pytest.mark.parametrize("operation", ["filter_new", "claim", "call", "check", "check_many"])
async def test_every_pair_of_faults(quick: Desks, operation: str, pair: tuple[str, str]):
    story = await story_on(quick)
    assert await every_pair(lambda faults: run(story, operation, faults), *pair, longest=6) >= 1
