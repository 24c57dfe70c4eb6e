"""`python -m bench`: runs the scenarios, prints tables and bars, saves JSON and pictures."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from rich.console import Console

from . import buffers, harness, locks, monitor, node, once, report, runs, sessions

AREAS = {
    "locks": locks.scenarios,
    "buffers": buffers.scenarios,
    "sessions": sessions.scenarios,
    "runs": runs.scenarios,
    "once": once.scenarios,
    "monitor": monitor.scenarios,
    "node": node.scenarios,
}
HERE = Path(__file__).resolve().parent


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("areas", nargs="*", metavar="area", help=f"which to run: {', '.join(AREAS)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="2 rounds of 1 s: does it run, not how fast it is")
    parser.add_argument("--only", action="append", metavar="NAME", help="only this scenario (may be repeated)")
    parser.add_argument("--who", action="append", metavar="PART", help="only contestants with this in their name")
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds per scenario")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="where JSON and PNG go (default: bench/results; build/bench-quick with --quick or --who)",
    )
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a bar is missed or not measured")
    parser.add_argument("--list", action="store_true", help="print the scenarios and stop")
    arguments = parser.parse_args()
    if unknown := set(arguments.areas) - AREAS.keys():
        parser.error(f"unknown area {', '.join(sorted(unknown))}; there is {', '.join(AREAS)}")
    if arguments.rounds is not None and arguments.rounds < 1:
        parser.error("--rounds must be at least 1")
    return arguments


def main() -> int:
    arguments = _arguments()
    # Ends like Ctrl-C does, through every `finally`: the server and the workers end with the bench.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    chosen = [scenario for area in arguments.areas or AREAS for scenario in AREAS[area]()]
    if arguments.only:
        names = {scenario.name for scenario in chosen}
        if unknown := set(arguments.only) - names:
            print(f"unknown scenario {', '.join(sorted(unknown))}; there is {', '.join(sorted(names))}")
            return 2
        chosen = [scenario for scenario in chosen if scenario.name in arguments.only]
    if arguments.list:
        for scenario in chosen:
            print(f"{scenario.name:12} {scenario.title}")
        return 0
    # Quick figures, or those of a few contestants, say little:
    # by default they must not replace the results that are kept.
    partial = arguments.quick or arguments.who
    default_out = HERE.parent / "build" / "bench-quick" if partial else HERE / "results"
    who = tuple(arguments.who or ())
    options = harness.Options(arguments.out or default_out, arguments.quick, arguments.rounds, who)
    return _run(chosen, options, strict=arguments.strict)


def _run(chosen: list[harness.Scenario], options: harness.Options, *, strict: bool) -> int:
    console = Console(width=None if sys.stdout.isatty() else 150)
    bars: list[tuple[str, harness.Bar]] = []
    for scenario in chosen:
        done = harness.run(scenario, options)
        report.show(done, console)
        report.save(done, options.out)
        bars.extend((scenario.name, bar) for bar in done.bars)
    if len(chosen) > 1:
        console.rule("summary")
        report.show_bars(bars, console)
    short = [bar for _, bar in bars if bar.verdict in ("MISSED", "NOT MEASURED")]
    console.print(f"{len(bars) - len(short)} of {len(bars)} bars met or reported; results in {options.out}")
    return 1 if strict and short else 0


if __name__ == "__main__":
    sys.exit(main())
