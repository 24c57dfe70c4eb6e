"""The rules for Prometheus and the dashboard for Grafana: they hold by promtool, and use what the code exports."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest

import holdfast
from holdfast.node.metrics import COUNTED, NAMES, OUTCOMES
from holdfast.observe.prometheus import PrometheusObserver

ROOT = Path(__file__).parents[2]
OPS = ROOT / "ops"
RULES, TESTS = OPS / "prometheus" / "holdfast.rules.yml", OPS / "prometheus" / "holdfast.rules.test.yml"
DASHBOARD = OPS / "grafana" / "holdfast.json"
GUIDE = ROOT / "docs" / "how-to" / "observe.md"


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text("utf-8"))["groups"] for rule in group["rules"]]


def alerts() -> dict[str, dict[str, Any]]:
    return {rule["alert"]: rule for rule in rules() if "alert" in rule}


def worlds() -> list[dict[str, Any]]:
    return list(yaml.safe_load(TESTS.read_text("utf-8"))["tests"])


def targets() -> list[str]:
    """Every expression of the dashboard."""
    panels = json.loads(DASHBOARD.read_text("utf-8"))["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", [])]


def samples() -> dict[str, list[dict[str, str]]]:
    """Names that can be asked for, with the labels that are there from the start."""
    registry = CollectorRegistry()
    PrometheusObserver(registry)
    found: dict[str, list[dict[str, str]]] = {name: [] for name in NAMES}
    for metric in registry.collect():
        for sample in metric.samples:
            if not sample.name.endswith("_created"):
                found.setdefault(sample.name, []).append(sample.labels)
    found["holdfast_fleet_events_total"] = [{"event": name} for name in COUNTED]
    found["holdfast_buffer_messages_total"] = [{"outcome": name} for name in OUTCOMES]
    return found


# -- what is asked for is there ---------------------------------------------------------------------------------------

SELECTOR = re.compile(r"\b(holdfast_\w+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)(=~|=)"([^"]*)"')


def wrong(expression: str, known: dict[str, list[dict[str, str]]]) -> Iterator[str]:
    """Metrics, and values of labels, that nothing exports from its start."""
    for name, inside in SELECTOR.findall(expression):
        if name not in known:
            yield name
        for label, how, value in MATCHER.findall(inside):
            if label in ("job", "instance", "state", "buffer", "runs", "monitor"):
                continue  # whoever runs it names these
            values = [labels[label] for labels in known.get(name, ()) if label in labels]
            for one in alternatives(value) if how == "=~" else [re.escape(value)]:
                if not any(re.fullmatch(one, there) for there in values):
                    yield f'{name}{{{label}="{one}"}}'


def alternatives(pattern: str) -> list[str]:
    """`a: (b|c)` as `a: b` and `a: c`: each of them must be there, not only one."""
    head, _, inside = pattern.rstrip(")").rpartition("(")
    return [head + one for one in inside.split("|")]


def test_every_metric_and_label_of_the_rules_is_exported_from_the_start() -> None:
    known = samples()

    assert [complaint for rule in rules() for complaint in wrong(rule["expr"], known)] == []


def test_every_metric_and_label_of_the_dashboard_is_exported() -> None:
    known = samples()

    assert [complaint for expression in targets() for complaint in wrong(expression, known)] == []


def test_the_dashboard_shows_every_metric() -> None:
    shown = {name for expression in targets() for name, _ in SELECTOR.findall(expression)}
    recorded = {rule["record"]: rule["expr"] for rule in rules() if "record" in rule}
    for name in set(re.findall(r"holdfast:[\w:]+", " ".join(targets()))):
        shown |= {metric for metric, _ in SELECTOR.findall(recorded[name])}

    base = {re.sub(r"_(bucket|sum|count)$", "", name) for name in samples()}
    assert base - {re.sub(r"_bucket$", "", name) for name in shown} == set()


@pytest.mark.parametrize(
    ("expression", "complaint"),
    [
        ("rate(holdfast_nothing_total[5m])", ["holdfast_nothing_total"]),
        ('holdfast_batches_total{outcome="eaten"}', ['holdfast_batches_total{outcome="eaten"}']),
        ('holdfast_batches_total{outcome=~"eaten|lost"}', ['holdfast_batches_total{outcome="eaten"}']),
        ('holdfast_batches_total{outcome=~"taken.*"}', []),
        (
            'holdfast_fleet_events_total{event=~"runs_(failed|fell)"}',
            ['holdfast_fleet_events_total{event="runs_fell"}'],
        ),
        ("holdfast_wait_seconds_bucket + holdfast_locks_held", []),
    ],
)
def test_what_is_not_exported_is_noticed(expression: str, complaint: list[str]) -> None:
    assert list(wrong(expression, samples())) == complaint


def test_recorded_names_that_are_used_are_recorded() -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    used = {name for text in (*targets(), *(rule["expr"] for rule in rules()), TESTS.read_text("utf-8"))
            for name in re.findall(r"holdfast:[\w:]+", text)}  # fmt: skip

    assert used <= recorded


def test_reasons_for_dropping_are_all_there_from_the_start() -> None:
    # Given every place in the code where something is said to be dropped, as far as it can be read
    found = set()
    texts = [file.read_text("utf-8") for file in Path(holdfast.__file__).parent.rglob("*.py")]
    for text in texts:
        for node in ast.walk(ast.parse(text)) if " Dropped(" in text or "(Dropped(" in text else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Dropped":
                what, reason = node.args[1:3]
                if isinstance(what, ast.Constant) and isinstance(reason, ast.Constant):
                    found.add((what.value, reason.value))

    # Expect that each is exported before it happens
    known = {(labels["what"], labels["reason"]) for labels in samples()["holdfast_dropped_total"]}
    assert len(found) > 8
    assert found <= known


# -- promtool ---------------------------------------------------------------------------------------------------------


def promtool(*arguments: str | Path, given: str = "") -> subprocess.CompletedProcess[str]:
    tool = shutil.which("promtool")
    if tool is None:
        if os.environ.get("CI"):
            pytest.fail("install promtool: Debian has it in the package prometheus")
        pytest.skip("promtool is not installed (Debian: prometheus)")
    return subprocess.run([tool, *map(str, arguments)], input=given, capture_output=True, text=True, timeout=60)


def test_the_metrics_are_named_as_they_should_be() -> None:
    registry = CollectorRegistry()
    PrometheusObserver(registry)

    done = promtool("check", "metrics", given=generate_latest(registry).decode())

    assert done.returncode == 0, done.stdout + done.stderr


def test_the_rules_are_valid() -> None:
    done = promtool("check", "rules", RULES)

    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_fires_where_it_should_and_nowhere_else() -> None:
    done = promtool("test", "rules", TESTS)

    assert done.returncode == 0, done.stdout + done.stderr


def test_the_test_of_the_alerts_can_fail(tmp_path: Path) -> None:
    # Given rules in which one alert looks at something else
    text = RULES.read_text("utf-8")
    broken = text.replace('holdfast_batches_total{outcome="buried"}', 'holdfast_batches_total{outcome="taken"}')
    assert broken != text
    (tmp_path / RULES.name).write_text(broken, "utf-8")
    one = yaml.safe_load(TESTS.read_text("utf-8"))
    one["tests"] = one["tests"][:1]
    one["tests"][0]["promql_expr_test"] = one["tests"][0]["promql_expr_test"][:2]
    (tmp_path / TESTS.name).write_text(yaml.safe_dump(one), "utf-8")

    done = promtool("test", "rules", tmp_path / TESTS.name)

    assert done.returncode != 0
    assert "HoldfastBatchesBuried" in done.stdout + done.stderr


def test_the_expressions_of_the_dashboard_are_valid(tmp_path: Path) -> None:
    made = [
        {"record": f"panel:{number}", "expr": expression.replace("$__rate_interval", "5m")}
        for number, expression in enumerate(targets())
    ]
    file = tmp_path / "panels.yml"
    file.write_text(json.dumps({"groups": [{"name": "panels", "rules": made}]}), "utf-8")

    done = promtool("check", "rules", file)

    assert done.returncode == 0, done.stdout + done.stderr


# -- each alert is tested, and explained ------------------------------------------------------------------------------


def test_each_alert_is_seen_firing() -> None:
    seen = set()
    for world in worlds():
        for test in world["promql_expr_test"]:
            for sample in test["exp_samples"]:
                seen |= set(re.findall(r'alertname="(\w+)"', sample["labels"]))

    assert seen == set(alerts())


def test_each_alert_is_seen_quiet_while_its_metrics_are_there() -> None:
    # Given the world where all is well, in which no alert may fire
    (well,) = [world for world in worlds() if world["name"].startswith("all is well")]
    assert [test["exp_samples"] for test in well["promql_expr_test"][:2]] == [[], []]
    present = " ".join(series["series"] for series in well["input_series"])
    recorded = {rule["record"]: rule["expr"] for rule in rules() if "record" in rule}

    # Expect series for everything that an alert looks at: else it would be quiet for want of them
    for name, rule in alerts().items():
        expression = rule["expr"]
        for record in re.findall(r"holdfast:[\w:]+", expression):
            expression += recorded[record]
        for metric, inside in SELECTOR.findall(expression):
            assert metric in present, f"{name}: {metric}"
            for label, how, value in MATCHER.findall(inside):
                texts = re.findall(rf'{metric}\{{[^}}]*{label}="([^"]*)"', present)
                wanted = re.compile(value if how == "=~" else re.escape(value))
                assert any(wanted.fullmatch(text) for text in texts), f'{name}: {metric}{{{label}="{value}"}}'


def test_each_alert_says_how_bad_it_is_and_what_to_do() -> None:
    guide = GUIDE.read_text("utf-8")
    for name, rule in alerts().items():
        assert name.startswith("Holdfast")
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert {"summary", "description"} <= set(rule["annotations"])
        assert f"`{name}`" in guide, f"explain {name} in {GUIDE.name}"


# -- the dashboard ----------------------------------------------------------------------------------------------------


def test_the_dashboard_is_fresh() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "make_grafana.py"), "--check"], capture_output=True, text=True, timeout=60
    )

    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dashboard_takes_any_data_source_and_no_panel_covers_another() -> None:
    made = json.loads(DASHBOARD.read_text("utf-8"))
    taken: set[tuple[int, int]] = set()
    ids = [panel["id"] for panel in made["panels"]]
    assert len(set(ids)) == len(ids)
    assert made["templating"]["list"][0]["type"] == "datasource"
    for panel in made["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert all(0 <= x < 24 for x, _ in cells), panel["title"]
        taken |= cells
        for target in panel.get("targets", []):
            assert target["datasource"]["uid"] == panel["datasource"]["uid"] == "${datasource}"
