"""Shows a finished scenario: a table for the terminal, a JSON file for machines, a picture for everyone else."""

from __future__ import annotations

import json
import math
from pathlib import Path

from rich.console import Console
from rich.table import Table

from .harness import Bar, Contestant, Metric, Report

NOTHING = "-"
OURS, THEIRS = "#0b6e4f", "#9aa5b1"
VERDICT_STYLE = {"PASS": "bold green", "MISSED": "bold red", "REPORTED": "cyan", "NOT MEASURED": "yellow"}


def number(value: float, digits: int = 1) -> str:
    if math.isnan(value):
        return NOTHING
    return f"{value:,.0f}" if digits == 0 or abs(value) >= 10_000 else f"{value:,.{digits}f}"


def _cell(report: Report, contestant: Contestant, metric: Metric) -> str:
    values = report.results.values(contestant.name, metric.key)
    if not values:
        return NOTHING
    middle = number(report.results.median(contestant.name, metric.key), metric.digits)
    if len(values) == 1:
        return middle
    least, most = (number(value, metric.digits) for value in (min(values), max(values)))
    return middle if least == most else f"{middle}\n[dim]{least} .. {most}[/dim]"


def _ratio_cell(report: Report, contestant: Contestant) -> str:
    assert report.scenario.ratio is not None
    key, baseline = report.scenario.ratio
    ratios = report.results.ratios(contestant.name, key, baseline)
    return f"{report.results.ratio(contestant.name, key, baseline):.2f}" if ratios else NOTHING


def show(report: Report, console: Console) -> None:
    scenario = report.scenario
    table = Table(title=f"{scenario.name}: {scenario.title}", title_justify="left", caption=scenario.how)
    table.caption_justify = "left"
    table.add_column("contestant", no_wrap=True)
    for metric in scenario.metrics:
        unit = f"\n{metric.unit}" if metric.unit else ""
        table.add_column(f"{metric.label}{unit}", justify="right")
    if scenario.ratio is not None:
        table.add_column(f"{scenario.ratio[0]} over\n{scenario.ratio[1]}", justify="right")
    for contestant in report.contestants:
        if contestant.unavailable or contestant.name in report.results.failures:
            continue
        cells = [_cell(report, contestant, metric) for metric in scenario.metrics]
        if scenario.ratio is not None:
            cells.append(_ratio_cell(report, contestant))
        table.add_row(contestant.name, *cells, style="bold" if contestant.ours else None)
    console.print(table)
    for contestant in report.contestants:
        if contestant.unavailable:
            console.print(f"  {contestant.name}: not available: {contestant.unavailable}", markup=False)
        elif contestant.name in report.results.failures:
            console.print(f"  {contestant.name}: failed: {report.results.failures[contestant.name]}", markup=False)
    show_bars([(scenario.name, bar) for bar in report.bars], console)


def show_bars(bars: list[tuple[str, Bar]], console: Console) -> None:
    if not bars:
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("scenario", "bar", "target", "reached", ""):
        table.add_column(heading)
    for scenario, bar in bars:
        verdict = f"[{VERDICT_STYLE[bar.verdict]}]{bar.verdict}[/]"
        table.add_row(scenario, bar.what, bar.target, bar.reached or NOTHING, verdict)
    console.print(table)
    console.print()


def save(report: Report, directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    scenario, results = report.scenario, report.results
    keys = [metric.key for metric in scenario.metrics]
    document = {
        "scenario": scenario.name,
        "title": scenario.title,
        "how": scenario.how,
        "machine": report.machine,
        "settings": report.settings,
        "contestants": [
            {
                "name": contestant.name,
                "version": contestant.version,
                "unavailable": contestant.unavailable or None,
                "failed": results.failures.get(contestant.name),
                "median": {key: _plain(results.median(contestant.name, key)) for key in keys},
                "rounds": [
                    {key: _plain(value) for key, value in figures.items()}
                    for _, figures in sorted(results.figures.get(contestant.name, {}).items())
                ],
            }
            for contestant in report.contestants
        ],
        "bars": [
            {"what": bar.what, "target": bar.target, "reached": bar.reached, "verdict": bar.verdict}
            for bar in report.bars
        ],
    }
    text = json.dumps(document, indent=1, ensure_ascii=False)
    (directory / f"{scenario.name}.json").write_text(text + "\n", encoding="utf-8")
    draw(report, directory / f"{scenario.name}.png")


def _plain(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 4)


def draw(report: Report, path: Path) -> None:
    """One panel per plotted metric: medians as bars, every round as a dot."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    scenario, results = report.scenario, report.results
    metrics = [metric for metric in scenario.metrics if metric.key in scenario.plots]
    present = [contestant for contestant in report.contestants if results.figures.get(contestant.name)]
    if not metrics or not present:
        return
    size = (4.2 * len(metrics) + 2.2, 0.42 * len(present) + 1.9)
    figure, axes = pyplot.subplots(1, len(metrics), figsize=size, sharey=True, squeeze=False, layout="constrained")
    for axis, metric in zip(axes[0], metrics, strict=True):
        for place, contestant in enumerate(present):
            values = results.values(contestant.name, metric.key)
            if not values:
                continue
            middle = results.median(contestant.name, metric.key)
            axis.barh(place, middle, color=OURS if contestant.ours else THEIRS, height=0.66)
            axis.plot(values, [place] * len(values), ".", color="#222222", markersize=4, alpha=0.7)
            axis.annotate(
                number(middle, metric.digits),
                (max(values), place),
                xytext=(5, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
            )
        if metric.key in scenario.log_scale:
            axis.set_xscale("log")
        axis.margins(x=0.18)
        better = "more is better" if metric.higher_is_better else "less is better"
        label = metric.label.replace("-\n", "").replace("\n", " ")
        axis.set_title(f"{label}{f', {metric.unit}' if metric.unit else ''}\n({better})", fontsize=9)
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=8)
        axis.grid(axis="x", alpha=0.25)
    axes[0][0].set_yticks(range(len(present)), [contestant.name for contestant in present])
    axes[0][0].invert_yaxis()
    machine = report.machine
    figure.suptitle(f"{scenario.title}", fontsize=11, x=0.01, ha="left")
    figure.supxlabel(
        f"{machine['server']}, Python {machine['python']}, {machine['cores']} cores; "
        f"median of {report.settings['rounds']} rounds, dots are the rounds",
        fontsize=7.5,
        x=0.01,
        ha="left",
    )
    figure.savefig(path, dpi=130, facecolor="white")
    pyplot.close(figure)
