"""How a demonstration is shown while it goes on: a live table, plain lines, or nothing at all."""

from __future__ import annotations

import time
from collections import deque
from types import TracebackType
from typing import Any, Protocol, Self

from holdfast.cli.demo_account import Account
from holdfast.cli.demo_fleet import PAUSED, STARTING, WORKING, Seat
from holdfast.cli.demo_plan import Plan
from holdfast.cli.demo_tally import Tally

NEWS = 8
"""Lines of what happened last, under the table."""
PLAIN_EVERY = 2.0
COLUMNS = (
    ("messages", ("absorbed", "appended")), ("batches", ("taken",)), ("runs", ("run ended", "started")),
    ("counts", ("counted",)), ("leases lost", ("lost",)),
)  # fmt: skip


class Show(Protocol):
    """Told of everything; `async with` is not needed, nothing of it waits."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def say(self, text: str) -> None:
        """Something happened."""

    def step(self, what: str, seats: list[Seat], tally: Tally) -> None:
        """Some time has passed."""


class Silent:
    """For --json: only the account is wanted."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def say(self, text: str) -> None: ...

    def step(self, what: str, seats: list[Seat], tally: Tally) -> None: ...


class Plain(Silent):
    """Lines, for a log or a pipe."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._began = self._last = time.monotonic()

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self._began:5.1f} s  {text}", flush=True)

    def step(self, what: str, seats: list[Seat], tally: Tally) -> None:
        now = time.monotonic()
        if now - self._last >= PLAIN_EVERY:
            self._last = now
            of = f"{len(tally.accepted)} of {self._plan.messages} messages in"
            self.say(f"{what}: {of}, {len(tally.latency)} absorbed, {tally.dropped} dropped")


class Lively(Plain):
    """A table of the processes, what happened last, and how far it is. Needs a terminal."""

    def __init__(self, plan: Plan, console: Any) -> None:
        from rich.live import Live
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        super().__init__(plan)
        self._news: deque[str] = deque(maxlen=NEWS)
        self._progress = Progress(
            TextColumn("{task.description:>8}"), BarColumn(None), MofNCompleteColumn(), TimeElapsedColumn(), expand=True
        )
        self._in = self._progress.add_task("in", total=plan.messages)
        self._out = self._progress.add_task("out", total=plan.messages)
        self._live = Live(console=console, refresh_per_second=8, transient=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        self._news.append(f"{time.monotonic() - self._began:5.1f} s  {text}")

    def step(self, what: str, seats: list[Seat], tally: Tally) -> None:
        from rich.console import Group
        from rich.text import Text

        self._progress.update(self._in, completed=len(tally.accepted))
        self._progress.update(self._out, completed=len(tally.latency) + tally.dropped)
        self._live.update(
            Group(_table(what, seats), Text("\n".join(self._news) + "\n" * (NEWS - len(self._news))), self._progress)
        )


def _table(what: str, seats: list[Seat]) -> Any:
    from rich.table import Table
    from rich.text import Text

    styles = {WORKING: "green", PAUSED: "yellow", STARTING: "cyan"}
    table = Table(title=what, title_justify="left", expand=True)
    table.add_column("process")
    table.add_column("pid", justify="right")
    table.add_column("state")
    for name in ("starts", *(name for name, _ in COLUMNS)):
        table.add_column(name, justify="right")
    for seat in seats:
        did = [str(sum(seat.did[kind] for kind in kinds)) for _, kinds in COLUMNS]
        state = Text(seat.state, style=styles.get(seat.state, "red"))
        table.add_row(seat.name, str(seat.pid), state, str(seat.starts), *did)
    return table


def show_for(plan: Plan, as_json: bool) -> Show:
    """What fits where standard output goes."""
    if as_json:
        return Silent()
    from rich.console import Console

    console = Console()
    return Lively(plan, console) if console.is_terminal and not console.is_dumb_terminal else Plain(plan)


def counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


# -- the end ----------------------------------------------------------------------------------------------------------


def account_lines(account: Account) -> list[tuple[str, str]]:
    """The account as a person reads it: what, and how much."""
    lines = [
        ("messages in", f"{account.accepted}"),
        ("absorbed", f"{account.absorbed}"),
        ("dropped", _by(account.dropped)),
        ("waiting, dead", f"{account.waiting}, {account.dead}"),
        ("lost", f"{account.lost}"),
        ("duplicate effects", f"{account.duplicates}"),
        ("runs started", f"{account.runs_started}"),
        ("runs ended", _by(account.runs_ended)),
        ("runs taken over", f"{account.runs_taken_over}"),
        ("events of runs", f"{account.events}, wrong in {counted(account.events_wrong, 'run')}"),
        (
            "counts under locks",
            f"{account.counts}, {account.counts_wrong} wrong, {account.counts_refused} refused as late",
        ),
        ("kills, pauses", f"{account.kills}, {account.pauses}"),
        ("leases lost", _by(account.leases_lost)),
        ("takeovers", _by(account.takeovers)),
        ("append to absorbed", f"median {account.p50:.2f} s, 99 % within {account.p99:.2f} s"),
        ("duration", f"{account.duration:.1f} s"),
    ]
    if account.unknown or account.refused:
        lines.insert(1, ("no answer, refused", f"{account.unknown}, {account.refused}"))
    return lines


def _by(parts: dict[str, int]) -> str:
    """The sum, and of what."""
    names = ", ".join(f"{name} {number}" for name, number in parts.items() if number)
    return f"{sum(parts.values())}{f' ({names})' if names else ''}"
