"""Asking about the fleet, and telling it, without I/O."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.engine.core import Core
from holdfast.engine.flow import Flow, call
from holdfast.engine.limits import check_count, check_seconds
from holdfast.errors import ConfigurationError
from holdfast.fleet.record import (
    STEPS,
    Action,
    Named,
    Process,
    Series,
    parse_actions,
    parse_names,
    parse_processes,
    parse_series,
    parse_totals,
)

TAG = "fleet"
MAX_PROCESSES = 1000
MAX_TEXT = 1000
SHORT, LONG = 3600.0, 2 * 86_400.0
_ENTRY = re.compile(r"\d{1,15}-\d{1,10}")


def _ask(core: Core, script: str, names: Sequence[str], args: Sequence[Any]) -> Flow[list[Any]]:
    base = core.keys.base(TAG)
    return (
        yield from call(
            core.scripts.get(script), TAG, [base + name for name in names], args, clock=core.clock,
            until=core.clock() + core.settings.retry_for,
        )
    )  # fmt: skip


def report(
    core: Core, number: int, record: bytes, names: Sequence[str], counts: Mapping[str, int], bye: bool
) -> Flow[bool]:
    """What this process is and did since its last report. Counted once, however often it is sent.

    True: the server did not know the process."""
    base = core.keys.base(TAG)
    args: list[Any] = [base, core.client_id, number, record, int(bye), len(names)]
    args += [name.encode("utf-8", "surrogatepass") for name in names]
    for counter, rise in counts.items():
        args += (counter, rise)
    keys = (f"{base}p:{core.client_id}", f"{base}alive", f"{base}names", f"{base}totals")
    until = core.clock() + min(core.settings.report, core.settings.call_timeout)
    reply = yield from call(core.scripts.get("fleet/report"), TAG, keys, args, clock=core.clock, until=until)
    return bool(reply[2])


def gauge(core: Core, gauges: Mapping[str, float]) -> Flow[None]:
    args: list[Any] = [core.keys.base(TAG)]
    for name, value in gauges.items():
        args += (name, f"{value:.6g}")
    yield from _ask(core, "fleet/gauges", ("none",), args)


def turn(core: Core, seconds: float) -> Flow[bool]:
    check_seconds("seconds", seconds, 0.001, 86_400.0)
    reply = yield from _ask(core, "fleet/turn", ("turn",), (core.new_token(), int(seconds * 1000)))
    return bool(reply[0] == b"taken")


def processes(core: Core, count: int) -> Flow[list[Process]]:
    check_count("count", count, 1, MAX_PROCESSES)
    return parse_processes((yield from _ask(core, "fleet/processes", ("alive",), (core.keys.base(TAG), count))))


def names(core: Core) -> Flow[list[Named]]:
    return parse_names((yield from _ask(core, "fleet/known", ("names", "totals"), ())))


def totals(core: Core) -> Flow[dict[str, int]]:
    return parse_totals((yield from _ask(core, "fleet/known", ("names", "totals"), ())))


def series(core: Core, seconds: float) -> Flow[Series]:
    check_seconds("seconds", seconds, 1.0, LONG)
    kind, step = ("s", STEPS[0]) if seconds <= SHORT else ("m", STEPS[1])
    count = math.ceil(seconds / step) + 1
    return parse_series((yield from _ask(core, "fleet/series", ("none",), (core.keys.base(TAG), kind, count))), step)


def record(core: Core, action: str, target: str, reason: str, by: str) -> Flow[str]:
    for what, text, least in (("action", action, 1), ("target", target, 0), ("reason", reason, 1), ("by", by, 0)):
        if not isinstance(text, str) or not least <= len(text) <= MAX_TEXT:
            raise ConfigurationError(f"give the {what} in {least} to {MAX_TEXT} characters: it goes into the audit log")
    # Free text from outside may hold what is no text.
    parts = [text.encode("utf-8", "replace") for text in (action, target, reason, by or core.owner)]
    reply = yield from _ask(core, "fleet/record", ("audit", "outcomes"), (core.new_op(), *parts))
    return str(reply[1].decode())


def outcome(core: Core, entry: str, text: str) -> Flow[None]:
    yield from _ask(core, "fleet/outcome", ("outcomes",), (_entry(entry), text[:MAX_TEXT].encode("utf-8", "replace")))


def actions(core: Core, count: int, before: str | None) -> Flow[list[Action]]:
    check_count("count", count, 1, 1000)
    start = "+" if before is None else _entry(before)
    if not start.strip("0-"):
        return []  # the server knows no id before the first
    return parse_actions((yield from _ask(core, "fleet/actions", ("audit", "outcomes"), (count, start))))


def _entry(entry: str) -> str:
    if not isinstance(entry, str) or not _ENTRY.fullmatch(entry):
        raise ConfigurationError(f"pass the id of an action as it was answered, not {entry!r}")
    return entry
