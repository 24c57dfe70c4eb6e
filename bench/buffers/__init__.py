"""Benchmarks of buffers and absorption: one file per scenario, each with a `SCENARIO`."""

from ..harness import Scenario


def scenarios() -> list[Scenario]:
    from . import absorb, append, growth, idle, wake

    return [module.SCENARIO for module in (append, absorb, wake, idle, growth)]
