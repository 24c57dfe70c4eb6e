"""Who runs what: with `--dist loadgroup` tests are dealt out one by one, in this order."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace

import chaos.faults.stage
import chaos.run
import chaos.runs
import pytest

from support.nursery import Forked

# Four processes take the first four, and each of them one of the next four after it: so that none has two long ones.
LONG = (
    "test_kills_pauses_restarts_and_cuts_lose_and_repeat_nothing",
    "test_owners_killed_frozen_and_drained_leave_every_run_in_order",
    "test_failovers_leave_what_the_server_has_in_order[cluster]",
    "test_with_a_sink_that_checks_nothing_the_same_shows_duplicates",
    "test_where_lost_owners_may_write_the_same_shows_it",
    "test_failovers_repeat_nothing_and_lose_little[sentinel]",
    "test_failovers_leave_what_the_server_has_in_order[sentinel]",
    "test_failovers_repeat_nothing_and_lose_little[cluster]",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONG.index(item.name) if item.name in LONG else len(LONG))


@pytest.fixture(autouse=True)
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Started as `python -m chaos` does, each of a hundred processes would first import for a third of a second."""
    forking = SimpleNamespace(**{**vars(subprocess), "Popen": Forked})
    for module in (chaos.run, chaos.runs, chaos.faults.stage):
        monkeypatch.setattr(module, "subprocess", forking)
