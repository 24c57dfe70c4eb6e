"""How commands end: exit codes, questions before a change, mistakes in one line, pipes, completion."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer

import holdfast as package
from cli.cli_support import HOLDFAST, Told, command_line, environment, process
from cli.pseudo_terminal import Terminal
from holdfast import errors
from holdfast.cli import running
from holdfast.cli.app import app
from holdfast.cli.exits import Exit, exit_of
from holdfast.cli.output import data, plain, size, span
from holdfast.sync import Holdfast
from holdfast.testing.ports import free_port
from support.backends import Backend

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "exit-codes.md"


# -- codes -----------------------------------------------------------------------------------------------------------


def test_the_page_has_every_code_and_what_it_means() -> None:
    rows = re.findall(r"^\| (\d+) \| (.+?) \|$", PAGE.read_text("utf-8"), re.M)
    assert rows == [(str(int(code)), code.meaning) for code in Exit]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (package.ConfigurationError("x"), 2), (package.InvalidId("x"), 2), (package.UnsafeServer("x"), 2),
        (package.Unavailable("x"), 3), (package.ServerFull("x"), 3), (package.Indeterminate("x"), 4),
        (package.NotAcquired("x"), 5), (package.RunActive("x"), 5), (package.QueueFull("x"), 5),
        (package.Fenced("x"), 5), (package.RunGone("x"), 1), (package.ServerError("x"), 1),
        (package.NewerPayload("x"), 1),
    ],
)  # fmt: skip
def test_each_error_has_its_code(error: package.HoldfastError, code: int) -> None:
    assert exit_of(error) == code


def test_errors_that_ask_for_different_reactions_have_different_codes() -> None:
    found = {exit_of(kind("x")) for kind in (errors.Unavailable, errors.Indeterminate, errors.NotAcquired)}
    assert len(found) == 3
    assert not found & {Exit.DONE, Exit.FOUND, Exit.MISTAKE}


@pytest.mark.parametrize(
    ("words", "env", "says"),
    [
        (["locks"], {"HOLDFAST_URL": None}, "pass a URL"),
        (["locks"], {"HOLDFAST_URL": "ftp://x"}, "holdfast: "),
        (["locks"], {"HOLDFAST_CONFIG": "/nowhere.toml"}, "mend the configuration file"),
        (["locks"], {"HOLDFAST_TTL": "long"}, "holdfast: "),
        (["locks", "inspect", "a", "--kind", "mutex"], {}, "pass kind as lock, rw or sem"),
        (["locks", "inspect", ""], {}, "pass an id that is not empty"),
        (["runs", "list", "agent", "--state", "lost"], {}, "holdfast: "),
        (["runs", "events", "agent", "r", "--after", "x"], {}, ""),
        (["dead", "messages", "seven"], {}, "pass the id of a dead letter"),
        (["locks", "relase", "a"], {}, "Did you mean 'release'?"),
        (["locks", "--count", "many"], {}, "--count"),
        (["locks", "release", "a"], {}, "--reason"),
        (["sessions", "list", "chat"], {}, "add the USER"),
        (["nothing"], {}, "No such command"),
        (["audit", "--before", "x"], {}, "pass the id of an action"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    holdfast: Told, hf: Holdfast, words: list[str], env: dict[str, Any], says: str
) -> None:
    if "events" in words:
        hf.runs("agent").start("r")
    assert says in holdfast.error(*words, code=2, **env)


def test_a_server_that_cannot_be_reached_is_code_3_and_shows_no_password(holdfast: Told) -> None:
    for words in (["locks"], ["top"], ["bench"], ["doctor"], ["dead", "purge", "x", "1.1", "--reason", "y", "--yes"]):
        env = {"HOLDFAST_URL": "redis://:hunter2@127.0.0.1:1", "HOLDFAST_RETRY_FOR": "0.05"}
        assert "hunter2" not in holdfast.error(*words, code=3, **env)


def test_without_words_it_helps(holdfast: Told) -> None:
    done = holdfast.done()
    assert done.exit_code in (0, 2)  # older Typers end with 0
    assert "Usage" in done.output
    assert "doctor" in done.output


# -- questions -------------------------------------------------------------------------------------------------------

CHANGES = [
    ["locks", "release", "a"], ["buffers", "flush", "m", "u"], ["buffers", "clear", "m", "u"],
    ["buffers", "forget", "m", "u"], ["runs", "stop", "r", "1"], ["runs", "stop-all", "r", "k"],
    ["sessions", "clear", "c", "s"], ["sessions", "forget", "c", "u"], ["dead", "replay", "m", "1.1"],
    ["dead", "purge", "m", "1.1"],
]  # fmt: skip


@pytest.mark.parametrize("words", CHANGES, ids=" ".join)
def test_nothing_is_changed_without_a_reason_and_an_answer(holdfast: Told, words: list[str]) -> None:
    assert "--reason" in holdfast.error(*words, code=2)
    assert "1 to 1000 characters" in holdfast.error(*words, "--reason", " ", "--yes", code=2)
    assert "add --yes" in holdfast.error(*words, "--reason", "x", code=2)
    assert holdfast.json("audit") == []


def test_every_command_that_takes_a_reason_is_in_that_list() -> None:
    # Given every command there is; `release` is the old way, which does not ask
    root: Any = typer.main.get_command(app)
    found = set()
    for name, group in root.commands.items():
        for sub, command in getattr(group, "commands", {"": group}).items():
            if any("--reason" in option.opts for option in command.params):
                assert sub == "" or any("--yes" in option.opts for option in command.params)
                found.add(f"{name} {sub}".strip())
    assert found == {" ".join(words[:2]) for words in CHANGES} | {"release"}


def test_every_command_that_shows_something_can_say_it_as_json() -> None:
    root: Any = typer.main.get_command(app)
    without = {
        f"{name} {sub}".strip()
        for name, group in root.commands.items()
        for sub, command in getattr(group, "commands", {"": group}).items()
        if not any("--json" in option.opts for option in command.params)
    }
    assert without <= {"up", "work", "release"}


def test_in_a_terminal_it_asks_and_does_what_is_answered(valkey: Backend, hf: Holdfast) -> None:
    words = ("locks", "release", "a", "--reason", "stuck", "--url", valkey.url)
    lease = hf.lock("a", renew=False, ttl=60).acquire()
    # when the answer is no, expect nothing to be done; when it is yes, expect it to be done
    for answer, code, says in (("n\n", 1, "nothing was done"), ("y\n", 0, "1 lease(s) ended")):
        with Terminal(*words) as terminal:
            terminal.expect("end the lease of 'a'?")
            assert not lease.lost
            assert hf.inspect("a").held
            terminal.type(answer)
            assert terminal.wait() == code, terminal.text
            assert says in terminal.text
    assert not hf.inspect("a").held


def test_a_question_is_ended_by_ctrl_c(valkey: Backend) -> None:
    with Terminal("locks", "release", "a", "--reason", "stuck", "--url", valkey.url) as terminal:
        terminal.expect("end the lease of 'a'?")
        terminal.interrupt()
        assert terminal.wait() == 130
        assert "Traceback" not in terminal.text


# -- pipes, signals, completion ---------------------------------------------------------------------------------------


def test_ctrl_c_ends_a_stream_with_130_and_no_noise(valkey: Backend, hf: Holdfast) -> None:
    with hf.runs("agent").claim("r") as run:
        run.emit(1)
        run.flush()
        with process("runs", "events", "agent", "r", "--follow", "--json", HOLDFAST_URL=valkey.url) as reader:
            assert json.loads(reader.stdout.readline())["kind"] == "data"
            reader.send_signal(signal.SIGINT)
            out, err = reader.communicate(timeout=20)
            assert (reader.returncode, out, err) == (130, b"", b"")


def test_a_reader_that_goes_away_is_no_noise(valkey: Backend, hf: Holdfast) -> None:
    # Given more than a pipe holds
    with hf.runs("agent").claim("r") as run:
        for _ in range(2000):
            run.emit("x" * 100)
    with process("runs", "events", "agent", "r", "--payloads", HOLDFAST_URL=valkey.url) as writer:
        writer.stdout.readline()
        writer.stdout.close()
        assert writer.stderr.read() == b""


def test_nor_is_one_that_was_never_there(valkey: Backend) -> None:
    # Given so little to say that it would be written only when Python ends
    ours, theirs = os.pipe()
    os.close(ours)
    env = environment(HOLDFAST_URL=valkey.url)
    done = subprocess.run([HOLDFAST, "locks"], stdout=theirs, stderr=subprocess.PIPE, timeout=30, env=env)
    os.close(theirs)
    assert (done.stderr, done.returncode) == (b"", 1)


def test_subcommands_are_completed() -> None:
    asked = {"holdfast do": {"doctor"}, "holdfast runs stop": {"stop", "stop-all"}}
    asking = []
    for words in asked:
        last = str(len(words.split()) - 1)
        env = {"_HOLDFAST_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": last}
        asking.append(process(**env))
    for shell, expected in zip(asking, asked.values(), strict=True):
        with shell:
            out, err = shell.communicate(timeout=30)
        assert (set(out.decode().split()), err) == (expected, b"")


# -- how things are shown ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain é 漢", "plain é 漢"), ("a\nb\t\x00", r"a\nb\t\x00"), ("\x1b]0;x\x07", r"\x1b]0;x\x07"),
        ("\u202eabc\u200b", r"\u202eabc\u200b"), (b"\xff\x1b", r"\xff\x1b"), ("\udcff", r"\udcff"),
        ("\x9b31m", r"\x9b31m"), (7, "7"),
    ],
)  # fmt: skip
def test_control_characters_are_written_out(value: object, text: str) -> None:
    assert plain(value) == text


class Named(NamedTuple):
    id: str
    data: object


@dataclass(frozen=True, slots=True)
class Record:
    inside: tuple[Named, ...]


def test_json_of_everything() -> None:
    given = {"a": b"\x00", "b": (1, [b"x"]), b"c": Record((Named("1", {"x": b"y"}),))}
    assert data(given) == {
        "a": {"$bytes": "AA=="}, "b": [1, [{"$bytes": "eA=="}]],
        "c": {"inside": [{"id": "1", "data": {"x": {"$bytes": "eQ=="}}}]},
    }  # fmt: skip


def test_durations_and_sizes_as_one_would_say_them() -> None:
    assert [span(one) for one in (None, 0.04, 119, 120, 7300, 200_000)] == [
        "",
        "0.0 s",
        "119.0 s",
        "2 min",
        "2 h",
        "2 d",
    ]
    assert [size(one) for one in (0, 999, 1000, 2_500_000, 5e12)] == ["0 B", "999 B", "1.0 kB", "2.5 MB", "5000.0 GB"]


def test_a_server_that_does_not_answer_is_said_before_it_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "SILENT", 0.05)
    url = f"redis://127.0.0.1:{free_port()}"
    told = command_line(url, monkeypatch).error("locks", code=3, HOLDFAST_RETRY_FOR="0.5")
    assert told.startswith(f"holdfast: {url} does not answer; trying for 0.5 s\n")
