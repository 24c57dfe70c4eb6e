"""Logs as JSON: one object on a line, with what an event says, and never what must not be there."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast import ConfigurationError
from holdfast.events import Buried, Dropped, HandlerFailed, Lost, NotDelivered, RunFinished, ServerWarning
from holdfast.observe import JsonFormatter, LogObserver, write_logs
from holdfast.sync import Holdfast
from support.backends import Backend

SECRET = "hunter2-and-more"


class Written:
    """A logger whose lines can be read back."""

    def __init__(self) -> None:
        self._stream = io.StringIO()
        self.logger = logging.Logger("holdfast.test", logging.DEBUG)
        handler = logging.StreamHandler(self._stream)
        handler.setFormatter(JsonFormatter())
        self.logger.addHandler(handler)

    @property
    def text(self) -> str:
        return self._stream.getvalue()

    @property
    def lines(self) -> list[dict[str, Any]]:
        def refuse(word: str) -> Any:
            raise AssertionError(f"{word} is no JSON")

        return [json.loads(line, parse_constant=refuse) for line in self.text.splitlines()]


@pytest.fixture
def written() -> Written:
    return Written()


def test_an_event_is_an_object_with_its_fields(written: Written) -> None:
    LogObserver(written.logger)(Dropped("inbox", "message", "capacity", 3))

    (line,) = written.lines
    when = line.pop("time")
    assert line == {
        "level": "warning", "logger": "holdfast.test", "event": "Dropped", "name": "inbox", "what": "message",
        "reason": "capacity", "count": 3,
    }  # fmt: skip
    assert len(when) == len("2026-01-01T00:00:00.000Z")
    assert when.endswith("Z")


def test_other_records_have_a_message_and_what_was_raised(written: Written) -> None:
    written.logger.info("started %s with %d workers", "inbox", 4)
    try:
        raise ValueError("no")
    except ValueError:
        written.logger.exception("a handler failed")
    written.logger.warning("two %s", *("many", "arguments"))

    plain, raised, odd = written.lines
    assert (plain["message"], plain["level"]) == ("started inbox with 4 workers", "info")
    assert (raised["message"], raised["error"]) == ("a handler failed", "ValueError")
    assert "ValueError: no" in raised["traceback"]
    assert odd["message"] == "two %s"


@pytest.mark.parametrize(
    "name", ["a\nb", "\x1b[31mred", 'quote " and \\', "half \ud800", "\u2028", "\x00", "</script>", "ä→😀"], ids=ascii
)
def test_hostile_names_stay_on_their_line_and_come_back_as_they_were(written: Written, name: str) -> None:
    LogObserver(written.logger)(Lost(name, 1, 0.5, "expired"))

    assert [line["name"] for line in written.lines] == [name]
    assert written.text.isascii()
    assert written.text.count("\n") == 1
    assert not [char for char in written.text[:-1] if ord(char) < 32]


def test_what_json_does_not_have_is_written_as_text(written: Written) -> None:
    fields = {
        "event": "X",
        "a": float("nan"),
        "b": float("inf"),
        "c": b"raw",
        "d": {1: (object, None, True)},
        "level": "x",
    }
    written.logger.info("X", extra={"holdfast": fields})

    (line,) = written.lines
    assert (line["a"], line["b"], line["c"], line["d"]["1"][1:]) == ("nan", "inf", "b'raw'", [None, True])
    assert line["level"] == "info", "no field takes the place of what every line has"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (f"cannot reach redis://:{SECRET}@db:6379/0 now", "redis://***@db:6379/0 now"),
        (f"rediss://user:p@{SECRET}@db/0", "rediss://***@db/0"),
        (f'"GET /events?token={SECRET}&after=1 HTTP/1.1"', "&after=1"),
        (f"Authorization: Bearer {SECRET}", "Bearer ***"),
        (f'{{"password": "{SECRET}", "user": "u"}}', '"user": "u"'),
        (f"api_key={SECRET} HOLDFAST_TOKEN='{SECRET}' x=1", "x=1"),
    ],
)
def test_secrets_are_hidden_wherever_they_stand(written: Written, text: str, kept: str) -> None:
    written.logger.warning("%s", text)
    LogObserver(written.logger)(ServerWarning(text))
    try:
        raise RuntimeError(text)
    except RuntimeError:
        written.logger.exception("failed")

    assert SECRET not in written.text
    assert [kept in line["message"] for line in written.lines[:2]] == [True, True]
    assert kept in written.lines[2]["traceback"]


def test_fields_that_are_secrets_by_name_are_hidden(written: Written) -> None:
    written.logger.info(
        "X", extra={"holdfast": {"event": "X", "token": SECRET, "more": [{"api_key": SECRET}], "key": "u"}}
    )

    assert SECRET not in written.text
    assert written.lines[0]["key"] == "u"


def test_attributes_that_others_gave_a_record_are_left_out(written: Written) -> None:
    written.logger.info("request", extra={"body": SECRET})

    assert SECRET not in written.text


def test_payloads_are_in_no_line(written: Written, valkey: Backend) -> None:
    # Given everything that is logged about a message, a run and an observation
    with Holdfast(valkey.url, observers=[LogObserver(written.logger)]) as hf:
        inbox = hf.buffer("inbox", capacity=2)
        for _ in range(3):
            inbox.append("u", {"text": SECRET})
        batch = inbox.take("u", max_attempts=1)
        assert batch is not None
        batch.nack(error="no")
        hf.runs("agent").start("r", {"prompt": SECRET})
        with hf.runs("agent").claim("r") as run:
            run.emit(SECRET)
            run.result = SECRET
        hf.monitor("venues").observe("site", "court", {"html": SECRET})
        hf.sessions("chat").save("s", SECRET)
        with hf.lock("l"):
            pass

    assert {"Dropped", "Taken", "Buried", "RunTaken", "RunFinished", "Observed", "Granted"} <= {
        line["event"] for line in written.lines
    }
    assert SECRET not in written.text


def test_what_handlers_raised_can_be_left_out(written: Written) -> None:
    # Given events with the text of an exception, which may be what a user wrote
    error = f"ValueError: I do not know {SECRET}"
    events = (
        HandlerFailed("inbox", "u", "1", 1, error), Buried("inbox", "u", "1", 9, error),
        RunFinished("agent", "r", "", "failed", error, 1, 0.1), NotDelivered("venues", "board", "d", 1, 1, error, True),
        Buried("inbox", "u", "2", 1, f"{SECRET} and no kind"),
    )  # fmt: skip
    quiet = LogObserver(written.logger, texts=False)
    for event in events:
        quiet(event)

    # Expect its kind alone; by default all of it
    assert [line.get("error", line.get("reason")) for line in written.lines] == [*["ValueError"] * 4, ""]
    assert SECRET not in written.text
    LogObserver(written.logger)(events[0])
    assert written.lines[-1]["error"] == error


def test_a_trimmed_session_is_no_trouble(written: Written) -> None:
    observer = LogObserver(written.logger)
    observer(Dropped("chat:s", "session entry", "entries", 1))
    observer(Dropped("inbox", "message", "capacity", 1))
    assert [(line["name"], line["level"]) for line in written.lines] == [("chat:s", "debug"), ("inbox", "warning")]


APP = """
import holdfast
hf = holdfast.Holdfast({url!r}, report=0)
inbox = hf.buffer("inbox")

@hf.absorber(inbox, threshold=1, max_attempts=1)
async def handle(batch):
    hf.stop_work()
    raise ValueError("no")
"""


def test_workers_of_a_node_log_as_it_does(tmp_path: Path, valkey: Backend) -> None:
    (tmp_path / "app.py").write_text(APP.format(url=valkey.url))
    with Holdfast(valkey.url) as hf:
        hf.buffer("inbox").append("u", 1)
    command = [str(Path(sys.executable).with_name("holdfast")), "work", "app:hf", "--supervised"]
    env = {**os.environ, "HOLDFAST_NODE_LOG_FORMAT": "json"}
    # Its standard input stays open: the end of that is the end of whoever looks after it.
    with subprocess.Popen(command, cwd=tmp_path, env=env, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.wait(60) == 0
        text = process.stderr.read().decode()
    lines = [json.loads(line) for line in text.splitlines()]
    assert any("handler" in line["message"] for line in lines), text
    assert {line["level"] for line in lines} <= {"warning", "error"}


@pytest.mark.parametrize(("form", "level"), [("xml", "info"), ("json", "loud")])
def test_logs_of_another_kind_are_refused(form: str, level: str) -> None:
    with pytest.raises(ConfigurationError, match="set log_"):
        write_logs(form, level)
