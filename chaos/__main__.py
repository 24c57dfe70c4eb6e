from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from chaos.run import Plan, run
from chaos.runs import RunPlan
from chaos.runs import run as run_runs

SHOWN = 20


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
    account = outcome.account
    print(json.dumps({"plan": vars(options), "faults": outcome.faults}))
    for example in account.examples[:SHOWN]:
        print(f"  {example[:300]}")
    wrong = {f"wrong: {name}": value for name, value in account.violations.items()}
    for name, value in (*sorted(account.happened.items()), *sorted(wrong.items())):
        print(f"{name:>21}  {value}")
    print(f"{'clean':>21}  {account.clean}")
    print(f"{'seconds':>21}  {outcome.seconds:.0f}")
    return 0 if account.clean == (options.guard == "on") else 1


if __name__ == "__main__":
    sys.exit(runs(sys.argv[2:]) if sys.argv[1:2] == ["runs"] else buffers(sys.argv[1:]))
