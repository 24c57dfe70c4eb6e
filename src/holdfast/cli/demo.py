"""`holdfast demo`: a fleet of processes, some of which are killed and frozen, and then the account of everything."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Annotated

import typer

from holdfast import ConfigurationError, Holdfast, Runs
from holdfast.cli.demo_account import Account, draw_up
from holdfast.cli.demo_counter import Counter
from holdfast.cli.demo_fleet import Fleet
from holdfast.cli.demo_plan import PRODUCERS, Plan, draw
from holdfast.cli.demo_process import Task
from holdfast.cli.demo_show import Show, account_lines, counted, show_for
from holdfast.cli.demo_tally import Tally
from holdfast.cli.exits import Exit
from holdfast.cli.options import Json
from holdfast.cli.output import print_json, say
from holdfast.cli.running import run

BREAKS = ("sink", "claim", "fence", "resume")
"""Mistakes that the tests put in: a sink that does not check the batch's id, a producer that claims what it did not
append, a holder that neither looks at its lease nor sends its fence, runs that nobody goes on with."""
DRAIN = 25.0
"""Seconds, after the last message and the last strike, in which everything must be absorbed and ended."""
LONGEST = 600.0
LATE = 10.0
"""A strike that is so late is left out: on a machine that busy the end would be too."""
REMOVE = 10.0


def demo(
    processes: Annotated[int, typer.Option(min=1, max=64, help="Worker processes.")] = 4,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Draws the plan: users, messages, kills, pauses. Default: a new one.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=1, max=LONGEST, help="How long messages come in.")] = 20.0,
    kill: Annotated[bool, typer.Option("--kill/--no-kill", help="Kill and freeze workers while they work.")] = True,
    url: Annotated[
        str | None, typer.Option("--url", help="Server to use. Default: an embedded one, gone at the end.")
    ] = None,
    as_json: Json = False,
    breaks: Annotated[list[str] | None, typer.Option("--break", hidden=True)] = None,
) -> None:
    """Run a fleet, kill and freeze some of it, and account for every message, run and count.

    Ends with 0 only if nothing was lost or doubled and everything was counted; with 1, and the reason in one line,
    otherwise. Interrupted, it leaves nothing running."""
    plan = draw(secrets.randbelow(1_000_000) if seed is None else seed, processes, seconds, kill)
    run(_until_interrupted(Demo(plan, url, as_json, breaks or [])))


def _check(breaks: list[str]) -> None:
    for name in breaks:
        if name not in BREAKS:
            raise ConfigurationError(f"choose --break from {', '.join(BREAKS)}, not {name!r}")
    try:
        import holdfast.memory  # noqa: F401
    except ImportError:
        raise ConfigurationError(
            "pip install '.[node,memory]' in Holdfast's clone for the demonstration: "
            "it absorbs into SQL, and SQLAlchemy is missing"
        ) from None


async def _until_interrupted(demo: Demo) -> int:
    """Answers the exit code: that of the demonstration, or of the signal that ended it."""
    _check(demo.breaks)
    running = asyncio.current_task()
    assert running is not None
    caught: list[int] = []

    def stop(number: int) -> None:
        if not caught:
            caught.append(number)
            running.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop, number)
    try:
        return await demo.run()
    except asyncio.CancelledError:
        if not caught:
            raise
        say("interrupted: all processes of the demonstration are gone")
        return 128 + caught[0]


class Demo:
    """One demonstration."""

    def __init__(self, plan: Plan, url: str | None, as_json: bool, breaks: list[str]) -> None:
        self._plan = plan
        self._url = url
        self._as_json = as_json
        self.breaks = breaks
        self._tally = Tally()
        self._what = "starting"

    async def run(self) -> int:
        """Answers the exit code. Cancelled, it ends every process and removes its directory first."""
        plan, began = self._plan, time.monotonic()
        if not self._as_json:
            self._introduce()
        with _folder() as folder:
            task = self._task(folder)
            _prepare(task)
            async with _opened(Holdfast(task.url, name="demo")) as hf:
                await self._perform(hf, task)
                account = await draw_up(hf, plan, task, self._tally, time.monotonic() - began)
                if self._url is not None:
                    await _tidy(hf, plan, task)
        account.duration = time.monotonic() - began
        return self._report(account)

    def _task(self, folder: Path) -> Task:
        plan = self._plan
        # Of its own, so that nobody else's messages are counted, and nobody's are touched.
        name = f"demo-{secrets.token_hex(4)}"
        url = self._url or f"embedded://{folder / 'server'}"
        return Task(
            "", 0, url, str(folder), name, plan.seed, plan.processes, plan.seconds, plan.kill, tuple(self.breaks)
        )

    async def _perform(self, hf: Holdfast, task: Task) -> None:
        plan = self._plan
        with show_for(plan, self._as_json) as show:
            async with Fleet(task, Path(task.folder), self._tally, show.say) as fleet:
                watching = asyncio.create_task(self._watch(show, fleet))
                try:
                    await fleet.begin()
                    show.say("all processes are ready: messages and runs come in")
                    self._what = "working"
                    await self._strike(fleet)
                    await fleet.all_said(plan.seconds + DRAIN)
                    self._what = "finishing"
                    show.say("nothing more comes in: what is there is finished")
                    await fleet.calm()
                    await self._drain(hf, task)
                    await fleet.end()
                finally:
                    watching.cancel()
                    await asyncio.gather(watching, return_exceptions=True)

    async def _watch(self, show: Show, fleet: Fleet) -> None:
        while True:
            show.step(self._what, fleet.seats, self._tally)
            await asyncio.sleep(0.1)

    async def _strike(self, fleet: Fleet) -> None:
        began = time.monotonic()
        for strike in self._plan.strikes:
            late = time.monotonic() - began - strike.at
            if late < LATE:
                await asyncio.sleep(max(0.0, -late))
                await fleet.strike(strike)

    async def _drain(self, hf: Holdfast, task: Task) -> None:
        """Until nothing waits and no run goes on, or the time is over: the account then says what is left."""
        inbox, runs = task.buffer(hf), task.runs(hf)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN):
                while (await inbox.totals()).users or await _active(runs):  # noqa: ASYNC110 - others do it
                    await asyncio.sleep(0.05)

    # -- what is printed ----------------------------------------------------------------------------------------

    def _introduce(self) -> None:
        plan = self._plan
        kills = sum(one.kind == "kill" for one in plan.strikes)
        strikes = f"{counted(kills, 'kill')}, {counted(len(plan.strikes) - kills, 'pause')}"
        print(f"plan {plan.digest}, to have it again: {plan.command}")
        print(
            f"{counted(plan.processes, 'worker')} and {PRODUCERS} producers; {plan.messages} messages of "
            f"{len(plan.users)} users and {len(plan.runs)} runs in {plan.seconds:g} s; {strikes}",
            flush=True,
        )

    def _report(self, account: Account) -> int:
        plan = self._plan
        if self._as_json:
            about = {"plan": plan.digest, "command": plan.command, "seed": plan.seed}
            print_json({**about, **account.as_dict()})
        else:
            for what, how_much in account_lines(account):
                print(f"{what:>20}  {how_much}")
        if account.clean:
            if not self._as_json:
                print("nothing was lost, nothing was doubled, and everything was counted")
            return Exit.DONE
        reason = "; ".join([*account.faults, *account.crashed[:1]])
        say(f"keep this line and report it: {reason}. Again: {plan.command}")
        return Exit.FOUND


@asynccontextmanager
async def _opened(hf: Holdfast) -> AsyncIterator[Holdfast]:
    """Opened to the end, also when interrupted meanwhile: a server that is half started would be left behind."""
    opening = asyncio.create_task(hf.open())
    try:
        await asyncio.shield(opening)
        yield hf
    finally:
        await asyncio.gather(opening, return_exceptions=True)
        await hf.close()


async def _active(runs: Runs) -> int:
    totals = await runs.totals()
    return int(totals["queued"] + totals["running"] + totals["stopping"])


async def _tidy(hf: Holdfast, plan: Plan, task: Task) -> None:
    """Leave nothing of the messages on a server that is not ours; the rest goes by itself within minutes."""
    inbox = task.buffer(hf)
    for user in plan.users:
        await inbox.forget(user)


def _prepare(task: Task) -> None:
    from holdfast.memory import Store

    Counter(task.counters).create()
    with Store(task.memory):
        pass  # the tables are made once, and not by all workers at the same time


@contextmanager
def _folder() -> Iterator[Path]:
    """A directory that is gone at the end. The embedded server in it ends a moment after its last user."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
    try:
        yield folder
    finally:
        until = time.monotonic() + REMOVE
        while folder.exists() and time.monotonic() < until:
            shutil.rmtree(folder, ignore_errors=True)
            time.sleep(0.02)


if __name__ == "__main__":
    typer.run(demo)
