"""Benchmarks of short-term memory: one file per scenario, each with a `SCENARIO`."""

from ..harness import Scenario


def scenarios() -> list[Scenario]:
    from . import save

    return [save.SCENARIO]
