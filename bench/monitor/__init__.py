"""Benchmarks of the monitor: one file per scenario, each with a `SCENARIO`."""

from ..harness import Scenario


def scenarios() -> list[Scenario]:
    from . import observe, push

    return [module.SCENARIO for module in (observe, push)]
