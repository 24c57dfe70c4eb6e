"""What a demonstration shows while it goes on."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from holdfast.cli.demo_account import Account
from holdfast.cli.demo_fleet import PAUSED, Seat
from holdfast.cli.demo_plan import draw
from holdfast.cli.demo_process import Task
from holdfast.cli.demo_show import Lively, Plain, account_lines, show_for
from holdfast.cli.demo_tally import Tally

PLAN = draw(1, 2, 2, True)


@pytest.fixture
def seats(tmp_path: Path) -> list[Seat]:
    task = Task("worker", 0, "embedded:", str(tmp_path), "demo-1", 1, 2, 2.0, True, ())
    seat = Seat(task, tmp_path)
    seat.state = PAUSED
    seat.did.update({"absorbed": 120, "taken": 17, "lost": 3})
    return [seat]


@pytest.fixture
def tally() -> Tally:
    made = Tally()
    made.hear({"did": "appended", "first": 0, "count": 130, "dropped": {"capacity": 30}})
    made.hear({"did": "absorbed", "messages": [[number, 0.1] for number in range(50)]})
    return made


def test_a_terminal_shows_the_processes_what_happened_and_how_far_it_is(seats: list[Seat], tally: Tally) -> None:
    file = io.StringIO()
    with Lively(PLAN, Console(file=file, force_terminal=True, width=120, height=40, _environ={})) as show:
        for number in range(20):
            show.say(f"killed [red]worker {number}")
        show.step("working", seats, tally)
    text = file.getvalue().rpartition("working")[2]

    assert "worker 1" in text
    assert "paused" in text
    for number in ("120", "17", f"130/{PLAN.messages}", f"80/{PLAN.messages}"):
        assert number in text
    assert "killed [red]worker 19" in text, "text is text, and the last is there"
    assert "killed [red]worker 5\n" not in text, "but not all of it"


def test_a_pipe_gets_lines_and_json_gets_nothing(
    seats: list[Seat], tally: Tally, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.cli.demo_show.PLAIN_EVERY", 0.0)
    with show_for(PLAN, as_json=True) as silent:
        silent.say("killed worker 1")
        silent.step("working", seats, tally)
    assert capsys.readouterr() == ("", "")

    with show_for(PLAN, as_json=False) as lines:
        assert type(lines) is Plain
        lines.say("killed worker 1")
        lines.step("working", seats, tally)
    out = capsys.readouterr().out.splitlines()
    assert [line.partition(" s  ")[2] for line in out] == [
        "killed worker 1",
        f"working: 130 of {PLAN.messages} messages in, 50 absorbed, 30 dropped",
    ]


def test_the_account_in_words() -> None:
    account = Account(accepted=9, absorbed=7, dropped={"capacity": 2}, runs_ended={"completed": 3, "failed": 1})
    lines = dict(account_lines(account))

    assert lines["messages in"] == "9"
    assert lines["dropped"] == "2 (capacity 2)"
    assert lines["runs ended"] == "4 (completed 3, failed 1)"
    assert lines["takeovers"] == "0"
    assert "no answer, refused" not in lines
    assert dict(account_lines(Account(unknown=1)))["no answer, refused"] == "1, 0"
