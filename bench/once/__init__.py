"""Benchmarks of doing each thing once: one file per scenario, each with a `SCENARIO`."""

from ..harness import Scenario


def scenarios() -> list[Scenario]:
    from . import filter, gate, idempotent, once

    return [module.SCENARIO for module in (filter, once, idempotent, gate)]
