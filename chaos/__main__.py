from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from chaos.monitor import MonitorPlan
from chaos.monitor import run as run_monitor
from chaos.run import Plan, run
from chaos.runs import RunPlan
from chaos.runs import run as run_runs

SHOWN = 4
"""Examples of each kind of violation."""


def parse(prog: str, plan: Any, off: str, arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=prog)
    parser.add_argument("--server", choices=("single", "sentinel", "cluster"), default="single")
    parser.add_argument("--guard", choices=("on", "off"), default="on", help=f"off: {off}")
    for name, default in plan._asdict().items():
        if name not in ("server", "guard"):
            parser.add_argument(f"--{name}", type=type(default), default=default)
    return parser.parse_args(arguments)


def say(text: str) -> None:
    print(text, flush=True)


def buffers(arguments: list[str]) -> int:
    options = parse("python -m chaos", Plan(), "a sink that checks nothing", arguments)
    with tempfile.TemporaryDirectory() as folder:
        outcome = run(Plan(**vars(options)), Path(folder), say)
    print(json.dumps({"plan": vars(options), "faults": outcome.faults, "counts": outcome.counts}))
    for name, value in outcome.account.as_dict().items():
        print(f"{name:>14}  {value}")
    print(f"{'seconds':>14}  {outcome.seconds:.0f}")
    if options.guard == "off":
        return 0 if outcome.account.duplicates else 1
    return 0 if outcome.account.clean else 1


def runs(arguments: list[str]) -> int:
    options = parse("python -m chaos runs", RunPlan(), "owners that lost their lease may write", arguments)
    with tempfile.TemporaryDirectory() as folder:
        outcome = run_runs(RunPlan(**vars(options)), Path(folder), say)
    return report(options, outcome)


def monitor(arguments: list[str]) -> int:
    options = parse("python -m chaos monitor", MonitorPlan(), "scripts without the safeguards named", arguments)
    with tempfile.TemporaryDirectory() as folder:
        outcome = run_monitor(MonitorPlan(**vars(options)), Path(folder), say)
    return report(options, outcome)


def report(options: argparse.Namespace, outcome: Any) -> int:
    """The exit code is 0 if what should be clean is, and what should not is not."""
    account = outcome.account
    print(json.dumps({"plan": vars(options), "faults": outcome.faults}))
    for kind in sorted(account.violations):
        for example in [one for one in account.examples if one.startswith(f"{kind}: ")][:SHOWN]:
            print(f"  {example[:300]}")
    wrong = {f"wrong: {name}": value for name, value in account.violations.items()}
    happened = (*sorted(account.happened.items()), *sorted(wrong.items()))
    width = max(21, *(len(name) for name, _ in happened))
    for name, value in (*happened, ("clean", account.clean), ("seconds", f"{outcome.seconds:.0f}")):
        print(f"{name:>{width}}  {value}")
    return 0 if account.clean == (options.guard == "on") else 1


WHAT = {"runs": runs, "monitor": monitor}

if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in WHAT:
        sys.exit(WHAT[sys.argv[1]](sys.argv[2:]))
    sys.exit(buffers(sys.argv[1:]))
