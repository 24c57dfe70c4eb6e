"""Every error has an answer over HTTP, and that tells the right people the right things."""

from __future__ import annotations

import json
import re
from http import HTTPStatus
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast import (
    ConfigurationError,
    HoldfastError,
    InvalidId,
    NotAcquired,
    RunActive,
    TooLarge,
    Unavailable,
    errors,
)
from holdfast.adapters.problems import TABLE, TYPES, problem, slug

CLASSES = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, HoldfastError)]


def test_every_error_has_a_row() -> None:
    assert set(TABLE) == set(CLASSES)


@pytest.mark.parametrize("kind", CLASSES)
def test_an_answer_is_whole(kind: type[HoldfastError]) -> None:
    for direct in (False, True):
        found = problem(kind("do this first", operation="x/y", key="k"), direct=direct)
        body = json.loads(found.encode())
        assert body["status"] == found.status
        assert HTTPStatus(found.status) >= 400
        assert body["type"] == TYPES + slug(kind)
        assert body["title"]
        assert body["detail"]
        # Where nothing helps, or nobody knows what was done, trying again is not advised.
        assert ("Retry-After" in found.headers) <= (found.status in (409, 503))


@pytest.mark.parametrize(
    ("name", "status", "retry"),
    [
        ("NotAcquired", 409, True), ("InProgress", 409, True), ("RunActive", 409, False), ("RunEnded", 409, False),
        ("QueueFull", 503, True), ("ServerFull", 503, True), ("Unavailable", 503, True), ("NotReplicated", 503, True),
        ("Indeterminate", 504, False), ("TooLarge", 413, False), ("InvalidId", 422, False),
        ("KeyMismatch", 422, False), ("RunMismatch", 422, False), ("RunGone", 404, False), ("LeaseLost", 409, False),
        ("Fenced", 409, False), ("EarlierFailure", 409, False), ("ServerError", 500, False),
    ],
)  # fmt: skip
def test_the_status_says_what_to_do(name: str, status: int, retry: bool) -> None:
    found = problem(getattr(errors, name)("do this"))
    assert (found.status, "Retry-After" in found.headers) == (status, retry)


def test_the_page_about_fastapi_has_the_same_table() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "fastapi.md").read_text("utf-8")
    rows = re.findall(r"^\| (\d{3})(, `Retry-After`)? \| (.*) \|$", page, re.M)
    told = {name: (int(status), bool(retry)) for status, retry, names in rows for name in re.findall(r"`(\w+)`", names)}
    meant = {kind.__name__: (row.status, row.retry is not None) for kind, row in TABLE.items() if row.status != 500}
    assert {name: told.get(name) for name in meant} == meant


def test_the_client_of_an_application_is_told_what_it_sent_and_no_more() -> None:
    away = Unavailable("check that the server at redis://10.0.0.7 runs", operation="locks/acquire", key="user:7")
    assert problem(away).body() == {
        "type": "urn:holdfast:problem:unavailable", "title": "Not available now", "status": 503,
        "detail": "Try again later: nothing was done.",
    }  # fmt: skip
    assert "512" in problem(InvalidId("pass at most 512 bytes")).detail
    assert "limit" in problem(TooLarge("store it elsewhere: the limit is 5")).detail


def test_who_calls_holdfast_itself_is_told_everything() -> None:
    run: Any = SimpleNamespace(id="r-1", state="running")
    busy = RunActive("wait, or stop it first: it is running on host-a", run=run, operation="runs/start", key="r-2")
    assert problem(busy, direct=True).body() == {
        "type": "urn:holdfast:problem:run-active", "title": "It is running", "status": 409, "detail": str(busy),
        "operation": "runs/start", "key": "r-2", "run": {"id": "r-1", "state": "running"},
    }  # fmt: skip
    assert problem(ConfigurationError("pass wait as seconds"), direct=True).status == 400
    assert problem(ConfigurationError("pass wait as seconds")).status == 500


def test_an_error_of_somebody_elses_is_answered_as_its_kind() -> None:
    class Taken(NotAcquired):
        """One that an application made."""

    assert problem(Taken("later")).type == "urn:holdfast:problem:not-acquired"
