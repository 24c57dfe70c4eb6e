"""Lock benchmarks: one file per scenario, each with a `SCENARIO`."""

from ..harness import Scenario


def scenarios() -> list[Scenario]:
    from . import contended, latency, many, nohold, throughput, waiters

    return [module.SCENARIO for module in (throughput, latency, contended, nohold, waiters, many)]
