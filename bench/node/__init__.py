"""Benchmarks of the node, and of what a process tells the fleet: one file per scenario, each with a `SCENARIO`."""

from ..harness import Scenario


def scenarios() -> list[Scenario]:
    from . import api, dashboard, idle, report

    return [module.SCENARIO for module in (report, api, dashboard, idle)]
