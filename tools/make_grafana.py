"""Writes `ops/grafana/holdfast.json`, a dashboard for Grafana. `--check` fails if it is stale.

A panel is one line here. What speaks for the whole fleet comes from nodes, which all say the same: `max`, never `sum`.
What a process says of itself is added up over the processes that are scraped.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

TARGET = Path(__file__).resolve().parent.parent / "ops" / "grafana" / "holdfast.json"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH = 24

Panel = dict[str, Any]
Query = tuple[str, str]
"""An expression, and how its series are called."""


def of(metric: str, **labels: str) -> str:
    """A metric of the chosen jobs."""
    chosen = "".join(f', {name}=~"{value}"' for name, value in labels.items())
    return f'{metric}{{job=~"$job"{chosen}}}'


def each(metric: str, label: str, **labels: str) -> Query:
    """Events in a second, by a label, of all processes that are scraped."""
    return f"sum by ({label}) (rate({of(metric, **labels)}[$__rate_interval]))", f"{{{{{label}}}}}"


def fleet(metric: str, label: str, **labels: str) -> Query:
    """What each node says, by a label."""
    return f"max by ({label}) ({of(metric, **labels)})", f"{{{{{label}}}}}"


def times(metric: str) -> list[Query]:
    """Median and 99th percentile of a histogram."""
    rate = f"sum by (le) (rate({of(metric + '_bucket')}[$__rate_interval]))"
    return [(f"histogram_quantile({share}, {rate})", name) for share, name in ((0.5, "p50"), (0.99, "p99"))]


def panel(title: str, *queries: Query, unit: str = "short", kind: str = "timeseries", note: str = "") -> Panel:
    return {
        "type": kind, "title": title, "description": note, "datasource": SOURCE,
        "targets": [
            {"refId": chr(ord("A") + at), "datasource": SOURCE, "expr": expr, "legendFormat": legend}
            for at, (expr, legend) in enumerate(queries)
        ],
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "options": (
            {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value", "textMode": "value"}
            if kind == "stat"
            else {"legend": {"displayMode": "list"}, "tooltip": {"mode": "multi", "sort": "desc"}}
        ),
    }  # fmt: skip


def stat(title: str, expr: str, unit: str = "short", *, bad_above: float | None = None, note: str = "") -> Panel:
    """One number; red above a bound."""
    made = panel(title, (expr, ""), unit=unit, kind="stat", note=note)
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if bad_above is not None:
        steps.append({"color": "red", "value": bad_above})
    made["fieldConfig"]["defaults"]["thresholds"] = {"mode": "absolute", "steps": steps}
    return made


def rows() -> list[tuple[str, int, list[Panel]]]:
    """Title, height and panels of each row."""
    return [
        ("The fleet now", 4, [
            stat("Server", f'min({of("holdfast_up")})', note="1 while it answers the nodes."),
            stat("Processes", f'max({of("holdfast_processes", state="alive")})'),
            stat("Vanished", f'max({of("holdfast_processes", state="gone")})', bad_above=1,
                 note="Gone without a good-bye within the last hour."),
            stat("Locks held", f'max({of("holdfast_locks_held")})'),
            stat("Runs active", "holdfast:runs_active"),
            stat("Users due", f'sum({fleet("holdfast_buffer_waiting_users_due", "buffer")[0]})',
                 note="Users whom a worker should look at now."),
            stat("Oldest message", f'max({of("holdfast_buffer_oldest_seconds")})', "s"),
            stat("Dead letters", f'sum({fleet("holdfast_buffer_dead_letters", "buffer")[0]})', bad_above=1),
            stat("Alerts", 'count(ALERTS{alertname=~"Holdfast.+", alertstate="firing"}) or vector(0)', bad_above=1),
        ]),
        ("What it does", 8, [
            panel("In a second", ("holdfast:absorbed:rate5m", "messages absorbed"),
                  ("holdfast:locks_acquired:rate5m", "locks acquired"),
                  ("holdfast:runs_completed:rate5m", "runs completed"), unit="ops"),
            panel("Slowest in a hundred", ("holdfast:lock_wait_seconds:p99_5m", "wait for a lock"),
                  ("holdfast:absorb_seconds:p99_5m", "absorb"), ("holdfast:run_seconds:p99_5m", "run"),
                  ("holdfast:push_seconds:p99_5m", "push"), unit="s"),
            panel("All events of the fleet", (
                f'max by (event) (rate({of("holdfast_fleet_events_total")}[$__rate_interval])) > 0', "{{event}}"
            ), unit="ops"),
        ]),
        ("Buffers", 8, [
            panel("Users with messages", fleet("holdfast_buffer_users", "buffer")),
            panel("Users due", fleet("holdfast_buffer_waiting_users_due", "buffer"),
                  note="If it keeps growing: too few workers, or a slow sink."),
            panel("Oldest message", fleet("holdfast_buffer_oldest_seconds", "buffer"), unit="s"),
            panel("Dead letters", fleet("holdfast_buffer_dead_letters", "buffer")),
            panel("Messages by what became of them", (
                f'max by (buffer, outcome) (rate({of("holdfast_buffer_messages_total")}[$__rate_interval])) > 0',
                "{{buffer}} {{outcome}}",
            ), unit="ops"),
            panel("Batches", each("holdfast_batches_total", "outcome"), unit="ops"),
            panel("From taking to acknowledging", *times("holdfast_absorb_seconds"), unit="s"),
            panel("Near a bound, and discarded", (
                f'sum by (kind) (increase({of("holdfast_alerts_total")}[10m]))', "{{kind}}"
            ), (f'sum by (what, reason) (increase({of("holdfast_dropped_total")}[10m])) > 0', "{{what}}: {{reason}}"),
                note="In ten minutes."),
        ]),
        ("Locks", 8, [
            panel("Attempts", each("holdfast_acquire_total", "outcome"), unit="ops"),
            panel("Attempts that succeed", ("holdfast:locks_success:ratio5m", "success"), unit="percentunit"),
            panel("From asking to the grant", *times("holdfast_wait_seconds"), unit="s"),
            panel("From the grant to its end", *times("holdfast_hold_seconds"), unit="s"),
            panel("Held by processes", (f'sum by (instance) ({of("holdfast_leases_held")})', "{{instance}}")),
            panel("Lost", (f'sum by (reason) (increase({of("holdfast_lost_total")}[10m]))', "{{reason}}"),
                  note="In ten minutes, by reason."),
            panel("Renewals", each("holdfast_renewals_total", "outcome"), unit="ops"),
            panel("Expired, taken over, forced",
                  (f'sum(increase({of("holdfast_expired_total")}[10m]))', "expired"),
                  (f'sum(increase({of("holdfast_takeovers_total")}[10m]))', "taken over"),
                  (f'sum(increase({of("holdfast_forced_total")}[10m]))', "forced"), note="In ten minutes."),
        ]),
        ("Runs", 8, [
            panel("By state", (f'max by (runs, state) ({of("holdfast_runs_state")})', "{{runs}} {{state}}")),
            panel("What happens to them", each("holdfast_runs_total", "outcome"), unit="ops"),
            panel("From taking to the end", *times("holdfast_run_seconds"), unit="s"),
            panel("Owned by processes", (f'sum by (instance) ({of("holdfast_runs_owned")})', "{{instance}}")),
        ]),
        ("Each thing once", 8, [
            panel("Ids", each("holdfast_ids_total", "outcome"), unit="ops"),
            panel("Claims", each("holdfast_claims_total", "outcome"), unit="ops"),
            panel("States that gates judged", each("holdfast_states_total", "outcome"), unit="ops"),
            panel("Answers without the server", each("holdfast_outages_total", "outcome"), unit="ops"),
        ]),
        ("Monitor", 8, [
            panel("Observations", each("holdfast_observations_total", "outcome"), unit="ops"),
            panel("Changes to be told", fleet("holdfast_monitor_backlog", "monitor")),
            panel("Pushes", each("holdfast_deliveries_total", "outcome"), unit="ops"),
            panel("What a push takes", *times("holdfast_delivery_seconds"), unit="s"),
            panel("Changes accepted", each("holdfast_told_total", "outcome"), unit="ops"),
            panel("Dead letters", fleet("holdfast_monitor_dead_letters", "monitor")),
            panel("Pages", each("holdfast_fetches_total", "outcome"), unit="ops"),
            panel("Clock jumps and warnings",
                  (f'sum(increase({of("holdfast_clock_jumps_total")}[10m]))', "clock jumps"),
                  (f'sum(increase({of("holdfast_warnings_total")}[10m]))', "warnings"), note="In ten minutes."),
        ]),
    ]  # fmt: skip


def placed() -> list[Panel]:
    """All panels with their places: up to four beside each other, eight numbers."""
    panels: list[Panel] = []
    y = 0
    for title, height, row in rows():
        panels.append(
            {"type": "row", "title": title, "collapsed": False, "panels": [], "gridPos": grid(0, y, WIDTH, 1)}
        )
        y += 1
        beside = min(len(row), 8 if row[0]["type"] == "stat" else 4)
        width = WIDTH // beside
        for at, one in enumerate(row):
            panels.append(one | {"gridPos": grid(at % beside * width, y + at // beside * height, width, height)})
        y += -(-len(row) // beside) * height
    return [one | {"id": number} for number, one in enumerate(panels, 1)]


def grid(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


def dashboard() -> dict[str, Any]:
    return {
        "title": "Holdfast", "uid": "holdfast", "tags": ["holdfast"], "schemaVersion": 39, "version": 1,
        "editable": True, "graphTooltip": 1, "refresh": "30s", "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser", "annotations": {"list": []}, "links": [],
        "templating": {"list": [
            {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
            {
                "name": "job", "label": "Job", "type": "query", "datasource": SOURCE, "refresh": 2, "multi": True,
                "includeAll": True, "allValue": ".*", "current": {"text": "All", "value": "$__all"},
                "query": {"query": 'label_values({__name__=~"holdfast_(processes|acquire_total)"}, job)',
                          "refId": "job"},
            },
        ]},
        "panels": placed(),
    }  # fmt: skip


def text() -> str:
    return json.dumps(dashboard(), indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the dashboard is stale")
    if parser.parse_args().check:
        if not TARGET.exists() or TARGET.read_text("utf-8") != text():
            sys.exit(f"stale: {TARGET.name}. Run tools/make_grafana.py and commit the result.")
    else:
        TARGET.parent.mkdir(parents=True, exist_ok=True)
        TARGET.write_text(text(), "utf-8")
    print("the dashboard is fresh")


if __name__ == "__main__":
    main()
