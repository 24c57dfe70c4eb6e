"""The picture of a number over time: what is drawn, what is written, and that it is safe to show."""

from __future__ import annotations

import math
import re
import time
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import ConfigurationError
from holdfast.monitor.plot import plot, spark
from holdfast.monitor.record import Snapshot
from support.depth import tries

SVG = "{http://www.w3.org/2000/svg}"
T = 1_747_051_200.0
"""2025-05-12 12:00 UTC."""


def shots(*rows: tuple[float, Any]) -> list[Snapshot]:
    """Newest first, as a history is."""
    made = [Snapshot(f"{n:05}", "shop", "sku-1", "changed", state, at) for n, (at, state) in enumerate(rows)]
    return made[::-1]


def prices(*values: Any, every: float = 60.0) -> list[Snapshot]:
    return shots(*((T + n * every, {} if value is None else {"price": value}) for n, value in enumerate(values)))


class Picture:
    def __init__(self, text: str) -> None:
        self.text = text
        self.root = ElementTree.fromstring(text)

    def texts(self) -> list[str]:
        return [one.text or "" for one in self.root.iter(f"{SVG}text")]

    def count(self, kind: str) -> int:
        return sum(one.get("class") == kind for one in self.root.iter())

    def runs(self) -> list[list[tuple[float, float]]]:
        """The corners of each piece of the line."""
        (line,) = [one for one in self.root.iter(f"{SVG}path") if one.get("class") == "line"]
        found: list[list[tuple[float, float]]] = []
        for word, first, second in re.findall(r"([MHV])(-?[\d.e+-]+)(?: (-?[\d.]+))?", line.get("d", "")):
            if word == "M":
                found.append([(float(first), float(second))])
            else:
                x, y = found[-1][-1]
                found[-1].append((float(first), y) if word == "H" else (x, float(first)))
        return found

    def inside(self) -> bool:
        width, height = float(self.root.get("width", 0)), float(self.root.get("height", 0))
        return all(0 <= x <= width and 0 <= y <= height for run in self.runs() for x, y in run)


def test_a_value_holds_until_the_next() -> None:
    picture = Picture(plot(prices(10, 20, 15), "price"))

    # expect across, up, across, down, and across to the end
    ((start, second, up, third, down, end),) = picture.runs()
    assert start[1] == second[1] > up[1] == third[1] < down[1] == end[1] < start[1]
    assert start[0] < second[0] == up[0] < third[0] == down[0] < end[0]
    assert second[0] - start[0] == pytest.approx(third[0] - second[0], abs=0.11)
    assert picture.count("dot") == 3
    assert "last 15" in picture.texts()
    assert picture.root.find(f"{SVG}desc").text == "3 values, lowest 10, highest 20, last 15"


def test_snapshots_may_come_in_any_order() -> None:
    newest_first = prices(3, 1, 2, 5)

    assert plot(newest_first, "price") == plot(newest_first[::-1], "price") == plot(iter(newest_first), "price")


@pytest.mark.parametrize("gap", [None, "12", True, math.nan, math.inf, [1], 10**400, {"a": 1}])
def test_what_is_no_number_is_a_gap(gap: Any) -> None:
    picture = Picture(plot(prices(1, 2, gap, gap, 3, gap), "price"))

    # expect two pieces; the first holds until the gap begins, and nothing is last
    first, second = picture.runs()
    assert len(first) == 4
    assert first[-1][0] < second[0][0]
    assert first[-1][0] == pytest.approx(first[0][0] + 2 * (first[1][0] - first[0][0]), abs=0.2)
    assert not [text for text in picture.texts() if text.startswith("last")]


def test_a_value_too_short_to_be_seen_gets_a_dot() -> None:
    many = [(T + n, {"price": 1}) for n in range(100)]

    picture = Picture(plot(shots(*many, (T + 5000, {}), (T + 9000, {"price": 2}), (T + 9001, {})), "price"))

    assert picture.count("dot") == 1
    assert Picture(plot(shots(*many), "price")).count("dot") == 0


@pytest.mark.parametrize(
    ("field", "state"),
    [
        ("a.b", {"a": {"b": 7}}), ("a.b", {"a.b": 7, "a": {"b": 9}}), ("a[1].b", {"a": [0, {"b": 7}]}),
        ("a.1.b", {"a": [0, {"b": 7}]}), ("", 7), ("a[", {"a[": 7}), ("äö ü", {"äö ü": 7}),
    ],
)  # fmt: skip
def test_a_field_may_be_a_path(field: str, state: Any) -> None:
    assert "last 7" in Picture(plot(shots((T, state)), field)).texts()


@pytest.mark.parametrize(
    ("snapshots", "says"),
    [
        ([], "Nothing to draw: there are no snapshots"),
        (prices("x", None), "Nothing to draw: “price” is a number in no snapshot"),
        (shots((math.nan, {"price": 1})), "Nothing to draw: there are no snapshots"),
    ],
)
def test_with_nothing_to_draw_it_says_so(snapshots: list[Snapshot], says: str) -> None:
    picture = Picture(plot(snapshots, "price", title="Price"))

    assert picture.texts() == ["Price", says]
    assert picture.root.find(f"{SVG}desc").text == says
    assert picture.count("line") == 0


# -- axes -------------------------------------------------------------------------------------------------------------


def labels(*values: float, every: float = 60.0, **options: Any) -> list[str]:
    return Picture(plot(prices(*values, every=every), "price", **options)).texts()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((1, 9), ["0", "5", "10"]), ((100, 104), ["100", "102", "104"]), ((-1, 1), ["-1.0", "-0.5", "0.0", "0.5"]),
        ((5,), ["4.5", "5.0", "5.5"]), ((0,), ["-1.0", "0.0", "1.0"]), ((0.001, 0.003), ["0.001", "0.002", "0.003"]),
        ((2_000_000, 9_000_000), ["0", "5M", "10M"]), ((10_000, 12_000), ["10,000", "11,000", "12,000"]),
        ((1e17, 3e17), ["0", "2e+17"]), ((3e9, 4e9), ["3.0G", "3.5G", "4.0G"]), ((-3, -3), ["-3.4", "-3.0", "-2.6"]),
    ],
)  # fmt: skip
def test_values_have_round_ticks(values: tuple[float, ...], expected: list[str]) -> None:
    found = labels(*values)

    assert [text for text in expected if text not in found] == [], found


@pytest.mark.parametrize(
    ("every", "expected"),
    [
        (0.01, ["12:00:00.000", "2025-05-12 UTC", "12:00:00.040"]),
        (5, ["12:00:00", "2025-05-12 UTC", "12:00:10"]),
        (600, ["12:00", "2025-05-12 UTC", "12:30"]),
        (3600, ["14:00", "2025-05-12 UTC", "16:00"]),
        (8 * 3600, ["May 13", "2025 UTC", "May 14"]),
        (86400 * 20, ["Jul", "2025 UTC", "Sep"]),
        (86400 * 60, ["Jan", "2026", "Jul"]),
        (86400 * 365, ["2026", "2028", "UTC"]),
        (86400 * 3650, ["2040", "2060", "UTC"]),
    ],
)
def test_times_have_round_ticks_in_utc(every: float, expected: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        found = labels(*range(10), every=every)
    finally:
        monkeypatch.undo()
        time.tzset()

    assert [text for text in expected if text not in found] == [], found


def test_the_day_is_written_where_it_changes() -> None:
    found = labels(*range(12), every=3600 * 3)

    assert [text for text in found if text.startswith("2025-")] == ["2025-05-12 UTC", "2025-05-13"]


@pytest.mark.parametrize(
    "rows",
    [
        [(0.0, 1), (0.0, 2)], [(-1e10, 1), (1e10, 2)], [(-1e15, 1), (1e15, 2)], [(1e18, 1), (1e18 + 1000, 2)],
        [(1e299, 1), (-1e299, -1)], [(T, 1e300), (T + 1, -1e300)], [(T, 5e-324), (T + 1, -1e-300)],
        [(T, 1e16), (T + 1, 1e16 + 2)], [(T, 1.0), (T + 1, 1.0 + 2**-52)], [(T, 1), (T + 1e-6, 2)],
        [(253402300799.0, 1), (253402300000.0, 2)], [(-62135596800.0, 1), (T, 2)], [(T, 0), (T + 1, 1e-289)],
        [(T, -0.0), (T + 60, 0.0)],
    ],
)  # fmt: skip
def test_extremes_are_drawn_too(rows: list[tuple[float, float]]) -> None:
    for size in ({}, {"width": 200, "height": 120}):
        picture = Picture(plot(shots(*((at, {"price": value}) for at, value in rows)), "price", **size))

        assert picture.inside()
        assert len(picture.texts()) < 40
        values = [value for one in picture.root.iter() for value in one.attrib.values()]
        assert not [value for value in values if re.search("nan|inf", value)]


FLOATS = st.floats(allow_nan=True, allow_infinity=True) | st.integers() | st.none()


@settings(**tries(150, 4000))
@given(
    st.lists(st.tuples(FLOATS.filter(lambda at: at is not None) | st.floats(1.6e9, 1.8e9), FLOATS), max_size=12),
    st.integers(200, 900), st.integers(120, 500), st.text(max_size=80),
)  # fmt: skip
def test_any_picture_is_well_formed(rows: list[Any], width: int, height: int, title: str) -> None:
    snapshots = shots(*((at, {"price": value}) for at, value in rows))

    picture = Picture(plot(snapshots, "price", width=width, height=height, title=title))

    assert picture.count("line") == 0 or picture.inside()
    assert picture.count("grid") <= 40
    assert picture.count("axis") <= 60


# -- safe to show -----------------------------------------------------------------------------------------------------


def test_text_is_text() -> None:
    hostile = "</title><script>alert(1)</script>&\"' ]]> <!-- \x00\x1b\ud800\ufffe"
    for picture in (
        Picture(plot(prices(1, 2), "price", title=hostile, width=2000)),
        Picture(plot(prices(1, 2), hostile, width=2000)),
        Picture(plot(shots((T, {hostile: 1})), hostile, width=2000)),
    ):
        assert "<script" not in picture.text
        safe = "</title><script>alert(1)</script>&\"' ]]> <!-- \ufffd\ufffd\ufffd\ufffd"
        assert picture.root.find(f"{SVG}title").text == safe
        assert picture.texts()[0] == safe


def test_it_stands_alone() -> None:
    text = plot(prices(*range(30)), "price", title="Price")

    names = {one.tag.removeprefix(SVG) for one in ElementTree.fromstring(text).iter()}
    assert names == {"svg", "title", "desc", "style", "rect", "text", "path", "circle"}
    assert re.findall(r"https?://[^\"<]*", text) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"href|url\(|@import|\son\w+=|javascript", text)
    assert "@media (prefers-color-scheme:dark)" in text
    # Several in one page do not get in each other's way: no ids, and styles only inside
    assert " id=" not in text
    rules = re.findall(r"[{}]\s*([^{}@]+)\{", ElementTree.fromstring(text).find(f"{SVG}style").text)
    assert rules
    assert all(rule.startswith(".hf-plot ") for rule in rules)


def test_a_long_title_is_cut() -> None:
    for title in ("word " * 200_000, "茶" * 500):
        picture = Picture(plot(prices(1, 2), "price", title=title, width=300))

        assert picture.texts()[0].endswith("…")
        assert len(picture.texts()[0]) < 45


def test_it_has_the_size_that_was_asked_for() -> None:
    root = Picture(plot(prices(1, 2), "price", width=500, height=300)).root

    assert (root.get("width"), root.get("height"), root.get("viewBox")) == ("500", "300", "0 0 500 300")
    for bad in ({"width": 199}, {"width": 4001}, {"height": 119}, {"height": True}, {"width": 300.5}):
        with pytest.raises(ConfigurationError, match=r"pass (width|height)"):
            plot([], "price", **bad)


def test_many_values_are_still_one_line() -> None:
    picture = Picture(plot(prices(*(math.sin(n / 50) for n in range(10_000))), "price"))

    assert picture.inside()
    assert picture.count("dot") == 0
    assert len(picture.text) < 200_000


# -- in the shell -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ([], ""), ([5], "▄"), ([5, 5.0], "▄▄"), (range(8), "▁▂▃▄▅▆▇█"), ([8, 1], "█▁"), ([-1, 0, 1], "▁▅█"),
        ([1, None, "x", math.nan, True, 2], "▁    █"), ([None, "x"], "  "), ([1e300, -1e300, 0], "█▁▅"),
        ((n for n in (0, 100)), "▁█"),
    ],
)  # fmt: skip
def test_a_line_of_bars(values: Any, line: str) -> None:
    assert spark(values) == line
