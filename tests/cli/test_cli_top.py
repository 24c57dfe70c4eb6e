"""`top` and `bench`: what the fleet does, and what the server gives."""

from __future__ import annotations

import signal

import pytest

from cli.cli_support import HOSTILE, Told
from cli.pseudo_terminal import Terminal
from holdfast.cli.bench import KINDS
from holdfast.cli.top_view import spark
from holdfast.sync import Holdfast
from support.backends import Backend
from support.conditions import until_blocking


def test_one_picture_of_the_fleet(holdfast: Told, valkey: Backend) -> None:
    # Given a process with a hostile name that holds something, and has done something
    with Holdfast(valkey.url, report=0.05, name=HOSTILE) as hf:
        buffer = hf.buffer("messages")
        buffer.extend("user-7", [1, 2, 3])
        hf.runs("agent").start("run-1")
        hf.monitor("venues").observe("shop", "k", 1)
        with hf.lock("a"):
            until_blocking(lambda: [one for one in hf.fleet.processes() if one.leases], what="a report of the lease")
            frame, text = holdfast.json("top"), holdfast("top", "--once")
    # expect all of it
    (process,) = frame["processes"]
    assert (process["leases"], process["alive"], process["label"]) == (1, True, HOSTILE.replace("\n", " "))
    (messages,) = frame["buffers"]
    assert (messages["name"], messages["users"], messages["oldest"] > 0) == ("messages", 1, True)
    assert frame["runs"][0]["queued"] == 1
    assert frame["monitors"][0]["changes"] == 1
    assert set(frame["rates"]) == {"granted", "absorbed", "runs", "told", "lost", "dropped"}
    for word in ("1 process(es) alive", "held now: 1 leases", "messages", "agent", "venues", "leases granted"):
        assert word in text
    assert r"[red]evil[/] \x1b[31m\u202e {x}" in text
    assert "\x1b" not in text


def test_live_in_a_terminal_until_somebody_ends_it(valkey: Backend) -> None:
    # Given a terminal
    with Terminal("top", "--every", "0.2", HOLDFAST_URL=valkey.url) as terminal:
        # expect pictures, one after the other, on a screen of its own
        terminal.expect("process(es) alive")
        terminal.expect("\x1b[?1049h")
        seen = len(terminal.text)
        terminal.expect("process(es) alive", after=seen)
        # when it is interrupted, expect the screen to be given back and no noise
        terminal.signal(signal.SIGINT)
        assert terminal.wait() == 0
        assert "\x1b[?1049l" in terminal.text
        assert "Traceback" not in terminal.text


@pytest.mark.parametrize(
    ("values", "bars"), [((), ""), ((0, 0), ""), ((0, 1, 2, 4), " ▂▄█"), ((1e9,) * 70, "█" * 60), ((1e-9, 1), "▁█")]
)
def test_a_row_of_bars(values: tuple[float, ...], bars: str) -> None:
    assert spark(values) == bars


def test_a_quick_measurement(holdfast: Told) -> None:
    told = holdfast.json("bench", "--seconds", "0.1", "--callers", "3")
    assert [row["what"] for row in told["measured"]] == list(KINDS)
    for row in told["measured"]:
        assert row["ops_per_second"] > 0
        assert 0 < row["p50"] <= row["p99"]
    text = holdfast("bench", "--seconds", "0.1", "--callers", "1")
    assert "ops/s" in text
    assert "not for a report" in text
