"""`holdfast watch`: what it prints, how it ends, and what it says to mistakes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from holdfast.cli.app import app
from holdfast.cli.watch import _clean, _difference
from monitor.http_endpoint import Behaviour, Endpoint, answers
from support.backends import Backend

Watch = Callable[..., Result]
CHANGE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  ")


def page(body: Any) -> Behaviour:
    kind = "text/html" if isinstance(body, str) else "application/json"
    return answers(200, body, Content_Type=kind)


@pytest.fixture
def watch(valkey: Backend, monkeypatch: pytest.MonkeyPatch) -> Watch:
    """The command in this process, on a server that remembers from one run to the next."""
    monkeypatch.setattr("holdfast.monitor.fetcher.FIRST", 0.01)
    monkeypatch.setattr("holdfast.monitor.fetcher.CLAIMED", 0.001)  # one run follows at once on the other

    def run(*words: str) -> Result:
        return CliRunner().invoke(
            app, ["watch", *words, "--allow", "127.0.0.1"], env={"HOLDFAST_URL": valkey.url}, catch_exceptions=False
        )

    return run


def test_once_tells_by_its_exit_code_what_changed(watch: Watch) -> None:
    with Endpoint(page("<p>1</p>"), page("<p>1</p>"), page("<p>2</p>")) as endpoint:
        first, same, changed, after = (watch(endpoint.url(), "--once", "--css", "p") for _ in range(4))

    assert [run.exit_code for run in (first, same, changed, after)] == [0, 0, 1, 0]
    assert [run.output for run in (first, same, after)] == ["", "", ""]
    assert CHANGE.sub("", changed.stdout) == "1 → 2\n"
    assert changed.stderr == ""


def test_it_remembers_in_a_folder(tmp_path: Path) -> None:
    with Endpoint(page("<p>1</p>"), page("<p>2</p>")) as endpoint:
        words = ["watch", endpoint.url(), "--once", "--data", str(tmp_path / "data"), "--allow", "127.0.0.1"]
        first, changed = (CliRunner().invoke(app, words, env={"HOLDFAST_URL": None}) for _ in range(2))

    assert (first.exit_code, first.output) == (0, "")
    assert (changed.exit_code, CHANGE.sub("", changed.stdout)) == (1, "1 → 2\n")


def test_a_page_that_fails_is_trouble_and_what_was_known_stays(watch: Watch) -> None:
    with Endpoint(page("<p>1</p>"), answers(500), page("<b>1</b>"), page("<p>2</p>")) as endpoint:
        runs = [watch(endpoint.url(), "--once", "--css", "p") for _ in range(4)]

    assert [run.exit_code for run in runs] == [0, 3, 3, 1]
    assert runs[1].stderr == "holdfast: check the page: it answers with status 500\n"
    assert runs[2].stderr == "holdfast: check css 'p': nothing on the page matches\n"
    assert CHANGE.sub("", runs[3].stdout) == "1 → 2\n"


def test_fields_and_lines_for_machines(watch: Watch) -> None:
    old, new = {"price": 1, "left": 3, "name": "tea"}, {"price": 2, "left": 3, "name": "\x1b[31mtea"}
    with Endpoint(page(old), page(new), page(old)) as endpoint:
        runs = [watch(endpoint.url(), "--once") for _ in range(2)]
        runs.append(watch(endpoint.url(), "--once", "--json"))

    assert [CHANGE.sub("", line) for line in runs[1].stdout.splitlines()] == [
        "price  1 → 2",
        r"name  tea → \x1b[31mtea",
    ]
    line = json.loads(runs[2].stdout)
    assert (line["fields"], line["before"], line["after"]) == (["price", "name"], new, old)
    assert line["url"] == endpoint.url()


def test_other_options_are_another_watch(watch: Watch) -> None:
    with Endpoint(page({"a": 1, "b": 2})) as endpoint:
        for words in (("--json-path", "$.a"), ("--json-path", "$.b"), ("--regex", r"\d")):
            assert (watch(endpoint.url(), "--once", *words).exit_code, len(endpoint.requests)) == (
                0,
                len(endpoint.requests),
            )
        assert len(endpoint.requests) == 3


def test_who_wants_to_know_is_told(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_NOTIFY_SECRET", "whsec_aHVudGVyMmh1bnRlcjJodW50ZXIyaHVudGVyMg==")
    with Endpoint(page("<p>1</p>"), page("<p>2</p>")) as endpoint, Endpoint(answers(500), answers(200)) as hook:
        words = (endpoint.url(), "--once", "--css", "p", "--notify", hook.url("/hook"), "--slack", hook.url("/slack"))
        assert watch(*words).exit_code == 0
        assert hook.requests == []
        hook.behaviours = [answers(200)]
        changed = watch(*words)

    assert (changed.exit_code, changed.stderr) == (1, "")
    assert sorted(received.path for received in hook.requests) == ["/hook", "/slack"]
    (told,) = [received for received in hook.requests if received.path == "/hook"]
    assert "webhook-signature" in told.headers
    assert "hunter2" not in changed.output


def test_a_receiver_that_refuses_is_trouble(watch: Watch) -> None:
    with Endpoint(page("<p>1</p>"), page("<p>2</p>")) as endpoint, Endpoint(answers(410)) as hook:
        words = (endpoint.url(), "--once", "--css", "p", "--notify", hook.url("/secret"))
        first, changed = watch(*words), watch(*words)

    assert (first.exit_code, changed.exit_code) == (0, 3)
    assert CHANGE.sub("", changed.stdout) == "1 → 2\n"
    assert "webhook-0 was not told, and is not told again" in changed.stderr
    assert "secret" not in changed.output


def test_headers_are_sent_and_not_shown(watch: Watch, tmp_path: Path) -> None:
    file = tmp_path / "headers"
    file.write_text("Authorization: Bearer hunter2\n\nX-B: b\n")
    with Endpoint(answers(401)) as endpoint:
        done = watch(endpoint.url("/?key=hunter2"), "--once", "--header", "X-A: a:b", "--header", f"@{file}")

    sent = endpoint.requests[0].headers
    assert (sent["x-a"], sent["authorization"], sent["x-b"]) == ("a:b", "Bearer hunter2", "b")
    assert done.exit_code == 3
    assert "hunter2" not in done.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("http://127.0.0.1/",), "(add --allow 127.0.0.1)"),
        (("https://10.0.0.1/",), "put 10.0.0.1 into allow if it may be reached: this address is private (add --allow"),
        (("http://example.com/",), "use https for example.com, or put the host into allow (add --allow example.com)"),
        (("ftp://example.com/",), "pass a URL such as https://"),
        (("https://u:hunter2@example.com/",), "remove user and password from the URL"),
        (("https://example.com/", "--css", "p["), "check the CSS selector 'p['"),
        (("https://example.com/", "--css", "p", "--json-path", "$"), "choose one of css and json"),
        (("https://example.com/", "--header", "hunter2"), "write --header as 'Name: value': number 1 has no colon"),
        (("https://example.com/", "--header", "@/no/such/file"), "check the file of --header: FileNotFoundError"),
        (("https://example.com/", "--header", "Host: hunter2"), "remove the header host"),
        (("https://example.com/", "--notify", "http://10.1.1.1/hunter2"), "into allow"),
        (("https://example.com/", "--once"), "add --data DIR to --once"),
        (("https://example.com/", "--data", "x", "--url", "embedded:"), "choose one of --data and --url"),
    ],
    ids=str,
)
def test_a_mistake_is_one_line(words: tuple[str, ...], message: str) -> None:
    done = CliRunner().invoke(app, ["watch", *words], env={"HOLDFAST_URL": None})

    assert done.exit_code == 2, done.output
    assert done.stderr.startswith("holdfast: ")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr
    assert "hunter2" not in done.output


def test_of_long_texts_the_part_that_differs_is_shown() -> None:
    start, end = "a" * 500, "b" * 500

    assert _difference(f"{start}1{end}", f"{start}22{end}") == f"…{'a' * 20}1{'b' * 20}… → …{'a' * 20}22{'b' * 20}…"
    assert _difference("x" * 200, "x" * 201) == f"…{'x' * 20} → …{'x' * 21}"
    assert _difference(None, [1, "é"]) == 'null → [1, "é"]'
    assert len(_difference("c" * 500, "d" * 500)) < 250


def test_nothing_moves_the_cursor() -> None:
    assert _clean("a\nb\x1b]0;x\x07\u202e\x9b") == r"a b\x1b]0;x\x07\x202e\x9b"


# -- as a process -----------------------------------------------------------------------------------------------------


def start(*words: str) -> subprocess.Popen[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    return subprocess.Popen(
        [sys.executable, "-m", "holdfast.cli", "watch", *words, "--allow", "127.0.0.1"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean,
    )  # fmt: skip


def test_it_watches_until_interrupted() -> None:
    with (
        Endpoint(page("<p>1</p>"), page("<p>2</p>")) as endpoint,
        start(endpoint.url(), "--every", "1", "--css", "p") as process,
    ):
        assert process.stdout is not None
        line = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)

    assert (CHANGE.sub("", line), out, process.returncode) == ("1 → 2\n", "", 0)
    assert re.fullmatch(r"holdfast: now 1\nholdfast: stopped after \d+ looks: 1 changes, 0 failures\n", err)
