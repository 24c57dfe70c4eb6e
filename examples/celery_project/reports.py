"""Order a report, follow it, stop it. What a web process would do.

python reports.py order march april --rows 100
python reports.py follow march
python reports.py stop march --reason 'wrong month'
"""

from __future__ import annotations

import argparse
import json

from project import hf, make_report, reports


def order(report: list[str], customer: str, rows: int) -> None:
    """Visible, and to be stopped, from now on; ordered twice, it is made once."""
    for one in report:
        reports.start(one, key=f"customer:{customer}", conflict="queue")
        make_report.delay(one, customer, rows)
        print(f"ordered {one}")


def follow(report: str, after: str | None) -> None:
    """Every event from the first, or after the last that was seen, until the end."""
    for event in reports.events(report, after):
        print(event.id, event.kind, json.dumps(event.data), flush=True)


def stop(report: str, reason: str) -> None:
    print(f"{report} is {reports.stop(report, reason).state}")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    verbs = options.add_subparsers(dest="verb", required=True)
    for name in ("order", "follow", "stop"):
        verbs.add_parser(name).add_argument("report", nargs="+" if name == "order" else None)
    verbs.choices["order"].add_argument("--customer", default="ann")
    verbs.choices["order"].add_argument("--rows", type=int, default=100)
    verbs.choices["follow"].add_argument("--after", help="the id of the last event that was seen")
    verbs.choices["stop"].add_argument("--reason", default="by hand")
    chosen = vars(options.parse_args())
    verb = {"order": order, "follow": follow, "stop": stop}[chosen.pop("verb")]
    with hf:
        verb(**chosen)


if __name__ == "__main__":
    main()
