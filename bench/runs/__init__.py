"""Benchmarks of runs: one file per scenario, each with a `SCENARIO`."""

from ..harness import Scenario


def scenarios() -> list[Scenario]:
    from . import deliver, emit, noop, stop, takeover

    return [module.SCENARIO for module in (noop, emit, deliver, stop, takeover)]
