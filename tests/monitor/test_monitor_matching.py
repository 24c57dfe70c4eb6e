"""Who wants to know of a change, and when. No server."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from holdfast import Change, ConfigurationError, Subscriber
from holdfast.monitor import matching
from holdfast.monitor.matching import as_record, check_subscriber, from_record, quiet_for, retry_in, wants
from holdfast.monitor.spec import from_text, to_text

BERLIN = ZoneInfo("Europe/Berlin")
EVERYTHING: dict[str, Any] = {
    "sources": ("web",), "keys": ("a*", ("19:*", "court ?")), "fields": ("price",),
    "min_change": {"price": "5%", "n": 2}, "first": True, "interval": 60.0, "quiet": ("22:00", "07:00"),
    "timezone": "Europe/Berlin", "max_changes": 7,
    "retries": 5, "retry_delay": 2.5, "backoff": 2.0, "jitter": 0.25, "timeout": 3.0, "enabled": False,
}  # fmt: skip


def subscriber(**options: Any) -> Subscriber:
    return check_subscriber(Subscriber("s", "webhook", "https://example.com", **options))


def change(before: Any = None, after: Any = None, key: Any = "a", source: str = "web", kind: str = "changed") -> Change:
    return Change("0001", "venues", source, key, kind, before, after, 1000.0, 1000.0)


# -- who --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "found", "told"),
    [
        ({}, change(1, 2), True),
        ({"enabled": False}, change(1, 2), False),
        ({}, change(None, 2, kind="first"), False),
        ({"first": True}, change(None, 2, kind="first"), True),
        ({}, change(None, 2, kind="settled"), True),
        # sources
        ({"sources": ["web"]}, change(1, 2), True),
        ({"sources": ["web"]}, change(1, 2, source="web2"), False),
        # keys
        ({"keys": ["a*"]}, change(1, 2, key="abc"), True),
        ({"keys": ["a*"]}, change(1, 2, key="ba"), False),
        ({"keys": ["a?"]}, change(1, 2, key="abc"), False),
        ({"keys": ["A"]}, change(1, 2, key="a"), False),
        ({"keys": ["1*"]}, change(1, 2, key=19), True),
        ({"keys": ["x", "y"]}, change(1, 2, key="y"), True),
        ({"keys": [("19:*", "court ?")]}, change(1, 2, key=("19:00", "court 3")), True),
        ({"keys": [["19:*", "*"]]}, change(1, 2, key=("19:00", 3)), True),
        ({"keys": [("19:*", "court ?")]}, change(1, 2, key=("20:00", "court 3")), False),
        ({"keys": [("*", "*")]}, change(1, 2, key=("a", "b", "c")), False),
        ({"keys": ["*"]}, change(1, 2, key=("a", "b")), False),
        ({"keys": [("*",)]}, change(1, 2, key="a"), True),
        # fields
        ({"fields": ["price"]}, change({"price": 1, "n": 1}, {"price": 2, "n": 1}), True),
        ({"fields": ["price"]}, change({"price": 1, "n": 1}, {"price": 1, "n": 2}), False),
        ({"fields": ["price"]}, change({"n": 1}, {"n": 1, "price": None}), True),
        ({"fields": ["price"]}, change({"price": None}, {}), True),
        ({"fields": ["price"]}, change({"price": True}, {"price": 1}), True),
        ({"fields": ["price"]}, change({"price": [1]}, {"price": [1.0], "n": 2}), False),
        ({"fields": ["price"]}, change("text", "other"), False),
        ({"fields": ["price"]}, change(None, {"n": 1}, kind="settled"), True),
        # how much
        ({"min_change": {"price": 5}}, change({"price": 10}, {"price": 15}), True),
        ({"min_change": {"price": 5}}, change({"price": 10}, {"price": 5.5}), False),
        ({"min_change": {"price": 5}}, change({"price": 10}, {"price": 5}), True),
        ({"min_change": {"price": "5%"}}, change({"price": 100}, {"price": 95}), True),
        ({"min_change": {"price": "5%"}}, change({"price": 100}, {"price": 104.9}), False),
        ({"min_change": {"price": "5%"}}, change({"price": -100}, {"price": -105}), True),
        ({"min_change": {"price": "5%"}}, change({"price": 0}, {"price": 0.1}), True),
        ({"min_change": {"price": "5%"}}, change({"price": 1, "n": 1}, {"price": 1, "n": 2}), False),
        ({"min_change": {"price": "5%", "n": 1}}, change({"price": 1, "n": 1}, {"price": 1, "n": 2}), True),
        ({"min_change": {"price": 5}}, change({"price": None}, {"price": 1}), True),
        ({"min_change": {"price": 5}}, change({"price": 1}, {}), True),
        ({"min_change": {"price": 5}}, change({"n": 1}, {"n": 2}), False),
        ({"min_change": {"price": 0}}, change({"price": 1}, {"price": 1.5}), True),
        ({"min_change": {"price": "5%"}}, change({"price": 10**400}, {"price": 2 * 10**400}), True),
        ({"min_change": {"price": 1}}, change({"price": 1.5}, {"price": 10**400}), True),
        # several must all agree
        ({"sources": ["web"], "keys": ["b"]}, change(1, 2, key="a"), False),
        ({"fields": ["n"], "min_change": {"price": 5}}, change({"n": 1, "price": 1}, {"n": 1, "price": 9}), False),
    ],
)  # fmt: skip
def test_every_filter_must_agree(options: dict[str, Any], found: Change, told: bool):
    assert wants(subscriber(**options), found) is told


# -- quiet hours ------------------------------------------------------------------------------------------------------


def at(*when: int, fold: int = 0) -> float:
    return datetime(*when, tzinfo=BERLIN, fold=fold).timestamp()  # type: ignore[misc, arg-type]


def night(begin: str = "22:00", end: str = "07:00") -> Subscriber:
    return subscriber(quiet=(begin, end), timezone="Europe/Berlin")


@pytest.mark.parametrize(
    ("who", "when", "hours"),
    [
        (subscriber(), at(2026, 5, 1, 3), 0.0),
        (night(), at(2026, 5, 1, 21, 59), 0.0),
        (night(), at(2026, 5, 1, 22), 9.0),
        (night(), at(2026, 5, 1, 23, 30), 7.5),
        (night(), at(2026, 5, 1), 7.0),
        (night(), at(2026, 5, 1, 6, 45), 0.25),
        (night(), at(2026, 5, 1, 7), 0.0),
        (night(), at(2026, 12, 31, 23), 8.0),
        (night("12:00", "13:30"), at(2026, 5, 1, 11, 59), 0.0),
        (night("12:00", "13:30"), at(2026, 5, 1, 12), 1.5),
        (night("12:00", "13:30"), at(2026, 5, 1, 13, 30), 0.0),
        # The night that is an hour shorter, and the one that is an hour longer
        (night(), at(2026, 3, 28, 22), 8.0),
        (night(), at(2026, 3, 29, 1), 5.0),
        (night(), at(2026, 10, 24, 22), 10.0),
        (night(), at(2026, 10, 25, 2, 30), 5.5),
        (night(), at(2026, 10, 25, 2, 30, fold=1), 4.5),
        (subscriber(quiet=("22:00", "07:00"), timezone="Asia/Tokyo"), at(2026, 5, 1, 16), 8.0),
    ],
)  # fmt: skip
def test_quiet_hours_end_by_the_wall(who: Subscriber, when: float, hours: float):
    assert quiet_for(who, when) == pytest.approx(hours * 3600)


@pytest.mark.parametrize("hours", [("22:00", "07:00"), ("01:30", "02:30"), ("02:15", "02:45"), ("22:00", "02:30"),
                                   ("02:30", "22:00"), ("02:00", "03:00")], ids=str)  # fmt: skip
@pytest.mark.parametrize("day", [(2026, 3, 28), (2026, 10, 24), (2026, 7, 1)], ids=str)
def test_when_it_is_over_it_is_not_quiet(hours: tuple[str, str], day: tuple[int, int, int]):
    """Whatever the clocks do: at the end of what was said it may be told, and never a whole day later."""
    who = night(*hours)
    start = datetime(*day, 12, tzinfo=BERLIN)
    for minutes in range(0, 30 * 60, 15):
        when = (start.astimezone(UTC) + timedelta(minutes=minutes)).timestamp()
        wait = quiet_for(who, when)
        assert 0 <= wait <= 21 * 3600
        assert quiet_for(who, when + wait) == 0, f"quiet at the end of {wait} s from {minutes} minutes after noon"


# -- retries ----------------------------------------------------------------------------------------------------------


def test_the_pause_grows_by_the_backoff_up_to_a_day():
    who = subscriber(retry_delay=5, backoff=2)
    assert [retry_in(who, failures, None) for failures in (1, 2, 3, 4)] == [5, 10, 20, 40]
    assert retry_in(who, 1000, None) == retry_in(subscriber(backoff=10), 1000, None) == 86_400
    assert retry_in(subscriber(retry_delay=0, backoff=10), 1000, None) == 0
    assert [retry_in(subscriber(), failures, None) for failures in (1, 2, 3)] == [5, 5, 5]


def test_a_receiver_may_ask_for_more_and_not_for_less_nor_for_more_than_an_hour():
    who = subscriber(retry_delay=5)
    assert [retry_in(who, 1, asked) for asked in (None, 0.0, 1.0, 60.0, 10**9)] == [5, 5, 5, 60, 3600]


def test_jitter_spreads_the_pause(monkeypatch: pytest.MonkeyPatch):
    who = subscriber(retry_delay=10, jitter=0.5)
    for drawn, expected in ((0.0, 5.0), (0.5, 10.0), (1.0, 15.0)):
        monkeypatch.setattr(matching.random, "random", lambda value=drawn: value)
        assert retry_in(who, 1, None) == pytest.approx(expected)
    monkeypatch.undo()
    random.seed(1)
    assert len({retry_in(who, 1, None) for _ in range(20)}) == 20


# -- what is asked for ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"sink": "mail"}, "pass sink as one of"),
        ({"target": ""}, "pass target"),
        ({"target": 5}, "pass target"),
        ({"name": ""}, "not empty"),
        ({"name": b"x"}, "pass"),
        ({"name": 5}, "pass"),
        ({"interval": -1}, "pass interval"),
        ({"interval": float("nan")}, "pass interval"),
        ({"max_changes": 0}, "pass max_changes"),
        ({"max_changes": 1001}, "pass max_changes"),
        ({"max_changes": True}, "pass max_changes"),
        ({"retries": -1}, "pass retries"),
        ({"retry_delay": -1}, "pass retry_delay"),
        ({"timeout": 0}, "pass timeout"),
        ({"timeout": 601}, "pass timeout"),
        ({"backoff": 0.5}, "pass backoff"),
        ({"backoff": float("nan")}, "pass backoff"),
        ({"backoff": "2"}, "pass backoff"),
        ({"jitter": 2}, "pass backoff"),
        ({"min_change": {"p": "5"}}, "least change"),
        ({"min_change": {"p": "-5%"}}, "least change"),
        ({"min_change": {"p": True}}, "least change"),
        ({"min_change": {"p": float("inf")}}, "least change"),
        ({"min_change": {"p": -1}}, "least change"),
        ({"min_change": ["p"]}, "pass min_change"),
        ({"quiet": ("22:00", "22:00")}, "two different times"),
        ({"quiet": ("22:00",)}, "two different times"),
        ({"quiet": "22:00"}, "two different times"),
        ({"quiet": 22}, "two different times"),
        ({"quiet": ("22:00", "24:00")}, 'pass times as "HH:MM"'),
        ({"quiet": ("9:00", "10:00")}, 'pass times as "HH:MM"'),
        ({"timezone": "Berlin"}, "pass timezone"),
        ({"timezone": "../etc/passwd"}, "pass timezone"),
        ({"timezone": ""}, "pass timezone"),
        ({"sources": "web"}, "pass sources as a list"),
        ({"keys": "a*"}, "pass keys as a list"),
        ({"fields": "price"}, "pass fields as a list"),
        ({"keys": (5,)}, "as text"),
        ({"keys": (("a", 5),)}, "as text"),
        ({"keys": ((("a",),),)}, "as text"),
        ({"sources": (b"web",)}, "as text"),
        ({"fields": ([1],)}, "as text"),
        ({"min_change": {5: 1}}, "as text"),
    ],
    ids=str,
)
def test_nonsense_is_refused_with_what_works(options: dict[str, Any], advice: str):
    given = {"name": "s", "sink": "webhook", "target": "https://example.com", **options}
    with pytest.raises(ConfigurationError, match=advice):
        check_subscriber(Subscriber(**given))


def test_lists_are_as_good_as_tuples_and_records_come_back():
    plain = {**EVERYTHING, "sources": ["web"], "keys": ["a*", ["19:*", "court ?"]], "fields": ["price"],
             "quiet": ["22:00", "07:00"]}  # fmt: skip
    made = subscriber(**plain)
    assert made == Subscriber("s", "webhook", "https://example.com", **EVERYTHING)
    record = from_text(to_text(as_record(made)))
    assert from_record(record) == made
    assert from_record({**record, "of a newer version": 1}) == made


def test_nothing_secret_is_shown():
    shown = repr(subscriber(secret="hush", keys=("a",)))
    assert "hush" not in shown
    assert "example.com" not in shown
