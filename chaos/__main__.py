from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from chaos.run import Plan, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m chaos")
    parser.add_argument("--server", choices=("single", "sentinel", "cluster"), default="single")
    parser.add_argument("--guard", choices=("on", "off"), default="on", help="off: a sink that checks nothing")
    for name, default in Plan()._asdict().items():
        if isinstance(default, (int, float)):
            parser.add_argument(f"--{name}", type=type(default), default=default)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        outcome = run(Plan(**vars(options)), Path(folder), say=lambda text: print(text, flush=True))
    print(json.dumps({"plan": vars(options), "faults": outcome.faults, "counts": outcome.counts}))
    for name, value in outcome.account.as_dict().items():
        print(f"{name:>14}  {value}")
    print(f"{'seconds':>14}  {outcome.seconds:.0f}")
    if options.guard == "off":
        return 0 if outcome.account.duplicates else 1
    return 0 if outcome.account.clean else 1


if __name__ == "__main__":
    sys.exit(main())
