"""What `holdfast doctor` looks at, in order."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from rich.progress import Progress

from holdfast import Holdfast
from holdfast.cli import checks_fleet, checks_keys, checks_server
from holdfast.cli.findings import Finding

Check = Callable[[Holdfast, int, Progress], Awaitable[list[Finding]]]


def _only(look: Callable[[Holdfast], Awaitable[list[Finding]]]) -> Check:
    """One that needs neither the bound of the scan nor the bar."""
    return lambda hf, scan, bar: look(hf)


CHECKS: dict[str, Check] = {
    "connection": _only(checks_server.connection),
    "server": _only(checks_server.server),
    "clock": _only(checks_server.clock),
    "scripts": _only(checks_keys.scripts),
    "rights": _only(checks_keys.rights),
    "keys": checks_keys.keys,
    "processes": _only(checks_fleet.processes),
    "handlers": _only(checks_fleet.handlers),
    "locks": _only(checks_fleet.locks),
    "buffers": _only(checks_fleet.buffers),
    "runs": _only(checks_fleet.runs),
    "monitors": _only(checks_fleet.monitors),
}
