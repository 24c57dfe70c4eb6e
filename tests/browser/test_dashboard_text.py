"""Ids in addresses and on pages, numbers, charts: without a browser."""

from __future__ import annotations

import re
import unicodedata

import pytest
from dashboard_house import HOSTILE
from hypothesis import given
from hypothesis import strategies as st

from holdfast import ConfigurationError
from holdfast.node.dashboard.charts import Chart, Line, bar, ceiling, draw, fill_level
from holdfast.node.dashboard.text import (
    data_html,
    id_html,
    id_time,
    moment,
    name_of,
    number,
    rate,
    same_id,
    seconds,
    short_data,
    shown,
    ticking,
    token,
    untoken,
)

any_text = st.text(st.characters(), min_size=1, max_size=60)
ids = st.one_of(any_text, st.binary(min_size=1, max_size=60))


@given(ids)
def test_a_token_is_one_segment_and_comes_back(value: str | bytes) -> None:
    made = token(value)
    # expect a segment that no server or proxy reads as anything else
    assert re.fullmatch(r"[A-Za-z0-9_:@+=,~.-]+", made)
    assert made not in (".", "..")
    # and the same id: text and the bytes of its UTF-8 are one
    back = untoken(made)
    raw = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
    assert (back.encode("utf-8", "surrogatepass") if isinstance(back, str) else back) == raw


@given(any_text, any_text)
def test_two_ids_never_share_a_token(one: str, other: str) -> None:
    assert (token(one) == token(other)) == (one == other)


@pytest.mark.parametrize("text", ["~!", "~a", "~é"])
def test_what_is_no_token_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="follow a link"):
        untoken(text)
    with pytest.raises(ConfigurationError, match="names of collections are text"):
        name_of(token(b"\xff"))


@given(ids)
def test_nothing_of_an_id_is_markup_or_unseen(value: str | bytes) -> None:
    html = str(id_html(value))
    inside = re.sub(r'</?(bdi|span)( class="[a-z]+")?( title="[^"<>]*")?>', "", html)
    assert "<" not in inside
    assert ">" not in inside
    for letter in html:
        assert unicodedata.category(letter) not in ("Cc", "Cf", "Cs", "Cn", "Co", "Zl", "Zp")


@pytest.mark.parametrize("value", HOSTILE)
def test_an_id_may_be_typed_as_it_is_shown(value: str | bytes) -> None:
    assert same_id(shown(value), value)
    assert not same_id("another", value)
    assert not same_id("", value)


def test_ids_as_they_are_shown() -> None:
    assert shown("user-7") == "user-7"
    assert shown("a\u202eb\n\u00a0 ") == r"a\u202eb\n\xa0\x20"
    assert shown(b"\xffraw") == r"bytes \xffraw"
    assert shown(("court", 1)) == "court · 1"
    assert str(id_html(None)) == str(id_html("")) == '<span class="none">\u2013</span>'
    assert str(id_html("a<b")) == '<bdi class="id">a&lt;b</bdi>'
    assert '<span class="esc">\\u202e</span>' in id_html("a\u202eb")


def test_data_is_text_and_cut() -> None:
    assert "&lt;b&gt;" in data_html({"x": "<b>"})
    assert data_html(["a"]) == "[\n  &#34;a&#34;\n]"
    assert "characters more" in data_html("x" * 10_000)
    assert short_data({"b": b"\xff"}) == "{&#34;b&#34;: {&#34;$bytes&#34;: &#34;/w==&#34;}}"
    assert "\u202e" not in short_data("a\u202eb")


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "\u2013"), (0, "0 s"), (0.00002, "< 0.1 ms"), (0.0004, "0.4 ms"), (0.25, "250 ms"), (4.24, "4.2 s"),
     (42, "42 s"), (600, "10 min"), (7200, "2.0 h"), (200_000, "2.3 d")],
)  # fmt: skip
def test_durations(value: float | None, text: str) -> None:
    assert seconds(value) == text


def test_numbers() -> None:
    assert [number(value) for value in (None, 0, 1234567, 12_345_678, 2.5)] == [
        "\u2013",
        "0",
        "1,234,567",
        "12.3 M",
        "2.5",
    ]
    assert [rate(value) for value in (None, 0, 0.123, 4.56, 1234)] == ["\u2013", "0", "0.12", "4.6", "1,234"]
    assert id_time("1763210000000-0") == 1763210000.0
    assert id_time("nonsense") is None
    assert 'data-at="1763210000.000"' in moment(1763210000)
    assert moment(None) == moment(float("inf"))
    assert 'data-left="12.50"' in ticking(12.5)


@given(st.lists(st.one_of(st.none(), st.floats(0, 1e9)), max_size=40))
def test_a_chart_stays_in_its_frame(values: list[float | None]) -> None:
    chart = Chart("<b>", "/s", (Line("a", values), Line("b", values[::-1])), 0.0, 10.0)
    svg = str(draw(chart))
    assert "&lt;b&gt;: now" in svg
    for points in re.findall(r'points="([^"]*)"', svg):
        for point in points.split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= 320
            assert 8 <= y <= 80
    assert len(re.search(r'data-lines="a=([^;]*);', svg)[1].split(",")) == max(1, len(values))


def test_charts_end_at_round_numbers() -> None:
    assert [ceiling(value) for value in (0, 0.3, 1, 1.2, 21, 26, 999)] == [1, 0.5, 1, 2, 25, 50, 1000]
    assert [fill_level(share) for share in (0, 0.79, 0.8, 1)] == ["", "", "high", "full"]
    assert 'width="100.0"' in bar(7)
