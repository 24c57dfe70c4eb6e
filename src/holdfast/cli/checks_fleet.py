"""Checks of the fleet: does somebody work on what waits, and is something left over?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from holdfast import Holdfast
from holdfast.cli.findings import Finding, note, ok, problem, warning
from holdfast.cli.names import names_of
from holdfast.cli.output import plain, quoted, span
from holdfast.cli.running import server_time

LOCKS = 1000
STUCK = 100
WORK = "holdfast work MODULE:CLIENT, with the application"
NEARLY = 0.8
LATE = 600.0
"""Seconds that a message may wait, beyond the time of any usual trigger, before it is said."""
LATELY = 600.0
UNSEEN = 60.0
"""Seconds after which somebody should have taken a message, whoever that is."""
OFTEN = 3
"""Failures that may be chance."""


async def processes(hf: Holdfast) -> list[Finding]:
    """Who is there, and who went without a word?"""
    found: list[Finding] = []
    known, now = await hf.fleet.processes(), await server_time(hf)
    gone = [one for one in known if not one.alive]
    alive = [one for one in known if one.alive]
    for one in gone[:5]:
        text = f"process {one.pid} on {plain(one.host)} said no goodbye, last heard of {span(now - one.seen)} ago"
        fix = "look at its log: killed, out of memory, frozen? what it held is taken over by others when its leases end"
        found.append(warning("processes", text, fix))
    if len(gone) > 5:
        found.append(warning("processes", f"and {len(gone) - 5} more went without a word", "holdfast top --once"))
    versions = sorted({one.version for one in alive})
    if len(versions) > 1:
        text = f"versions {', '.join(map(plain, versions))} run side by side"
        found.append(note("processes", text, "finish the roll-out"))
    return found or [ok("processes", f"{len(alive)} alive, none went without a word")]


async def handlers(hf: Holdfast) -> list[Finding]:
    """Does what is handled come to an end? Attempts that fail are tried again, so nothing may be due meanwhile."""
    counted: Counter[str] = Counter()
    for slot in (await hf.fleet.series(LATELY)).slots:
        counted.update(slot.counts)
    found, fix = [], "look into the workers' logs; `holdfast dead list` shows what was given up"
    for failed, what, done, how in (
        ("handler_failed", "handlers", "acked", "batches were absorbed"),
        ("runs_failed", "runs", "runs_completed", "were completed"),
    ):
        if counted[failed] >= OFTEN and counted[failed] > counted[done]:
            text = f"{counted[failed]} {what} failed in the last {span(LATELY)}, and {counted[done]} {how}"
            found.append(warning("handlers", text, fix))
    return found or [ok("handlers", f"not more failed than succeeded in the last {span(LATELY)}")]


async def _working(hf: Holdfast) -> set[str]:
    return {work for one in await hf.fleet.processes() if one.alive for work in one.works}


async def locks(hf: Holdfast) -> list[Finding]:
    """Holders whose time has run out, and entries of the index without a lock."""
    found, answers = await hf.list_locks(LOCKS), []
    expired = [info for info in found if any(holder.remaining == 0 for holder in info.holders)]
    empty = [info for info in found if not info.holders and not info.waiting]
    if expired:
        one = expired[0]
        look = f"holdfast locks inspect {quoted(one.name)} --kind {one.kind}"
        if any(info.waiting and not info.held for info in expired):
            text = f"{len(expired)} locks have expired and are waited for, such as {plain(one.name)}"
            answers.append(warning("locks", text, f"{look}; then `locks release` with a --reason"))
        else:
            text = (
                f"holders of {len(expired)} locks have died, such as of {plain(one.name)}: whoever asks next gets them"
            )
            answers.append(note("locks", text, look))
    if empty:
        text = f"{len(empty)} entries of the index have no lock any more, such as {plain(empty[0].name)}"
        answers.append(note("locks", text, "nothing: whoever uses that name next tidies up"))
    return answers or [ok("locks", f"{len(found)} in use, none left over")]


async def buffers(hf: Holdfast) -> list[Finding]:
    """What waits without a worker, what died, what vanished."""
    found: list[Finding] = []
    names, working = await names_of(hf, "buffer"), await _working(hf)
    for name in names:
        found += await _buffer(hf, name, f"buffer:{name}" in working)
    return found or [ok("buffers", f"{len(names)} buffers, all is absorbed in time")]


async def _buffer(hf: Holdfast, name: str, worked_on: bool) -> list[Finding]:
    buffer, shown, found = hf.buffer(name), plain(name), []
    totals = await buffer.totals()
    age = totals.oldest
    if totals.users and not worked_on:
        old = "" if age is None else f", the oldest for {span(age)}"
        text = f"messages of {totals.users} user(s) in {shown} wait{old}, and no process absorbs them"
        fix = f"{WORK} that has its absorber; who takes them over HTTP is not seen here"
        # Nobody is due, and nothing is old: somebody takes them, or they are new.
        level = problem if totals.due or (age or 0.0) > UNSEEN else note
        found.append(level("buffers", text, fix))
    elif totals.due and age is not None and age > LATE:
        text = f"{totals.due} users of {shown} are due, the oldest message waits for {span(age)}"
        found.append(
            warning("buffers", text, f"start more workers, or see who is slow: holdfast buffers show {quoted(name)}")
        )
    if totals.dead_letters:
        text = f"{totals.dead_letters} dead letters in {shown}"
        found.append(
            warning("dead letters", text, f"holdfast dead list {quoted(f'buffer:{name}')}; then replay or purge")
        )
    if totals.counts.get("vanished"):
        text = f"{totals.counts['vanished']} users' messages in {shown} ended with nobody there to count them"
        found.append(warning("buffers", text, "keep workers running, or give messages a longer life (ttl)"))
    return found


async def runs(hf: Holdfast) -> list[Finding]:
    """Stuck ones, and queued ones without a worker."""
    found: list[Finding] = []
    names, working = await names_of(hf, "runs"), await _working(hf)
    for name in names:
        shown, collection = plain(name), hf.runs(name)
        queued = (await collection.totals())["queued"]
        stuck = await collection.list(stuck=True, count=STUCK)
        if queued and f"runs:{name}" not in working:
            text = f"{queued} runs of {shown} are queued, and no process runs them"
            found.append(problem("runs", text, f"{WORK} that has its runner"))
        if stuck:
            more = "+" if len(stuck) == STUCK else ""
            text = f"{len(stuck)}{more} runs of {shown} made no progress for long, such as {plain(stuck[0].id)}"
            fix = f"holdfast runs show {quoted(name)} {quoted(stuck[0].id)}; then `runs stop` with a --reason"
            found.append(warning("runs", text, fix))
    return found or [ok("runs", f"{len(names)} collections, none is stuck")]


async def monitors(hf: Holdfast) -> list[Finding]:
    """Logs that fill, subscribers that fail, dead letters."""
    found: list[Finding] = []
    names, working, backlog = await names_of(hf, "monitor"), await _working(hf), hf.settings.monitor_backlog
    for name in names:
        found += _monitor(name, await hf.monitor(name).status(), f"monitor:{name}" in working, backlog)
    return found or [ok("monitors", f"{len(names)} monitors, everybody is told")]


def _monitor(name: str, status: Any, worked_on: bool, backlog: int) -> Sequence[Finding]:
    found, shown = [], plain(name)
    if not worked_on and any(status.waiting.values()):
        text = f"{sum(status.waiting.values())} changes of {shown} wait to be told, and no process tells them"
        found.append(problem("monitors", text, f"{WORK} that has this monitor"))
    elif not worked_on and status.changes > NEARLY * backlog:
        text = f"no process works on {shown}, and its log is nearly full: then observations are refused"
        found.append(problem("monitors", text, f"{WORK} that has this monitor"))
    elif not worked_on and status.changes:
        text = f"no process works on {shown}, so whoever subscribes in its store is not told"
        found.append(note("monitors", text, f"holdfast monitor status {quoted(name)} --store URL"))
    if status.failing:
        text = f"{len(status.failing)} subscribers of {shown} fail, such as {plain(next(iter(status.failing)))}"
        found.append(warning("monitors", text, f"holdfast monitor deliveries {quoted(name)} --store URL"))
    if status.dead_letters:
        text = f"{status.dead_letters} dead letters of {shown}"
        found.append(
            warning("dead letters", text, f"holdfast dead list {quoted(f'monitor:{name}')}; then replay or purge")
        )
    return found
