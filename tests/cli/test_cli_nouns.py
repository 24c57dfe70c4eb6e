"""`locks`, `buffers`, `runs`, `sessions`: what they show, what they do, and what they write down."""

from __future__ import annotations

import pytest

from cli.cli_support import HOSTILE, Told, tell_names
from holdfast.sync import Holdfast
from support.backends import Backend

# -- locks ------------------------------------------------------------------------------------------------------------


def test_locks_lists_and_a_name_inspects(holdfast: Told, hf: Holdfast) -> None:
    # Given a lock that is held
    with hf.lock("report:42") as lease:
        # expect the same with and without `list`, and one of it by its name
        assert holdfast.json("locks", "list")[0]["name"] == "report:42"
        (row,) = holdfast.json("locks")
        assert (row["name"], row["holders"][0]["fence"], row["waiting"]) == ("report:42", lease.fence, 0)
        shown = holdfast.json("locks", "report:42")
        assert (shown["held"], shown["free"], shown["waiters"]) == (True, 0, [])
        assert holdfast.json("locks", "inspect", "report:42").keys() == shown.keys()
        assert str(lease.fence) in holdfast("locks", "report:42")
    # when it is free, expect that to be said, with a code
    assert holdfast("locks", "report:42", code=1) == "nobody holds it and nobody waits\n"
    assert holdfast("locks") == "no lock is in use\n"


def test_a_lock_is_released_by_force_and_that_is_written_down(holdfast: Told, hf: Holdfast) -> None:
    lease = hf.lock("a", ttl=1).acquire()
    assert holdfast("locks", "release", "a", "--fence", "1", "--reason", "no", "--yes", code=1) == "nobody holds it\n"
    assert holdfast("locks", "release", "a", "--reason", "stuck", "--yes") == "1 lease(s) ended\n"
    assert lease.wait_lost(15)
    # expect it in the history of the lock, and among what operators did
    (entry,) = holdfast.json("locks", "history", "a")
    assert (entry["reason"], entry["ended"], entry["fences"]) == ("stuck", 1, [lease.fence])
    assert "@" in entry["by"]
    assert "stuck" in holdfast("locks", "history", "a")
    last, first = holdfast.json("audit")
    assert (last["action"], last["target"], last["reason"], last["outcome"], last["by"]) == (
        "force-release", "lock:a", "stuck", "done", entry["by"],
    )  # fmt: skip
    assert first["outcome"] == "nothing to do"
    assert "force-release" in holdfast("audit", "--count", "1")
    assert holdfast.json("audit", "--before", last["id"]) == [first]


# -- buffers ----------------------------------------------------------------------------------------------------------


def test_buffers_show_totals_then_users_then_one_user(holdfast: Told, hf: Holdfast, valkey: Backend) -> None:
    # Given twenty messages of one user, one of another, and a process that has told what it uses
    buffer = hf.buffer("messages")
    buffer.extend("user-7", [{"text": f"secret {n}"} for n in range(20)])
    buffer.append("user-8", b"\x00\xff")
    tell_names(valkey.url, lambda one: one.buffer("messages"))
    (row,) = holdfast.json("buffers")
    assert (row["name"], row["users"], row["dead_letters"]) == ("messages", 2, 0)
    assert "messages" in holdfast("buffers")
    # expect the largest and the oldest
    shown = holdfast.json("buffers", "messages")
    assert [one["user"] for one in shown["largest"]] == ["user-7"]
    assert {one["user"] for one in shown["oldest"]} == {"user-7", "user-8"}
    assert "user-7" in holdfast("buffers", "messages")
    # and what one of them said only if it is asked for
    user = holdfast.json("buffers", "messages", "user-7")
    assert (user["waiting"], len(user["messages"])) == (20, 20)
    assert "secret" not in str(user)
    assert "secret" not in holdfast("buffers", "messages", "user-7")
    assert "secret 0" in holdfast("buffers", "messages", "user-7", "--payloads", "--count", "1")
    bytes_ = holdfast.json("buffers", "messages", "user-8", "--payloads")["messages"]
    assert bytes_[0]["data"] == {"$bytes": "AP8="}
    assert holdfast("buffers", "messages", "nobody", code=1) == "nothing waits of this user\n"
    assert holdfast("buffers", "other", code=1) == "nothing is known of such a buffer\n"


def test_what_waits_is_flushed_cleared_and_forgotten(holdfast: Told, hf: Holdfast) -> None:
    buffer = hf.buffer("messages")
    for user in ("a", "b"):
        buffer.append(user, 1)
    why = ("--reason", "asked to", "--yes")
    assert holdfast("buffers", "flush", "messages", "a", *why) == "a  a worker takes it now\n"
    assert holdfast("buffers", "clear", "messages", "a", "b", *why) == (
        "a  1 message(s) removed\nb  1 message(s) removed\n"
    )
    assert holdfast("buffers", "clear", "messages", "a", *why, code=1) == "a  nothing waits\n"
    buffer.append("a", 1)
    (line,) = holdfast.lines("buffers", "forget", "messages", "a", *why)
    assert (line["user"], line["answer"] > 0, buffer.count("a")) == ("a", True, 0)
    assert [(one["action"], one["target"], one["outcome"]) for one in holdfast.json("audit")] == [
        ("forget", "buffer:messages a", "done"), ("clear", "buffer:messages a", "nothing to do"),
        ("clear", "buffer:messages b", "done"), ("clear", "buffer:messages a", "done"),
        ("flush", "buffer:messages a", "done"),
    ]  # fmt: skip


# -- runs -------------------------------------------------------------------------------------------------------------


def test_runs_are_listed_shown_and_read(holdfast: Told, hf: Holdfast, valkey: Backend) -> None:
    agent = hf.runs("agent")
    agent.start("run-1", {"prompt": "secret"}, key="k")
    with agent.claim("run-2") as run:
        for number in range(3):
            run.emit({"token": f"secret {number}"})
        run.result = "secret"
    tell_names(valkey.url, lambda one: one.runs("agent"))
    (row,) = holdfast.json("runs")
    assert (row["name"], row["states"]["queued"], row["states"]["completed"]) == ("agent", 1, 1)
    assert "agent" in holdfast("runs")
    # expect lists by state, key and progress, without input and result
    listed = holdfast.json("runs", "agent")
    assert {one["id"] for one in listed} == {"run-1", "run-2"}
    assert "input" not in listed[0]
    assert [one["id"] for one in holdfast.json("runs", "list", "agent", "--state", "queued")] == ["run-1"]
    assert [one["id"] for one in holdfast.json("runs", "list", "agent", "--key", "k")] == ["run-1"]
    assert holdfast.json("runs", "list", "agent", "--stuck", "--stuck-after", "100") == []
    assert "completed" in holdfast("runs", "agent")
    # and one of them
    assert holdfast.json("runs", "agent", "run-2")["state"] == "completed"
    assert "secret" not in holdfast("runs", "agent", "run-2") + holdfast("runs", "agent", "run-2", "--json")
    assert holdfast.json("runs", "agent", "run-2", "--payloads")["result"] == "secret"
    assert "no such run" in holdfast.error("runs", "agent", "run-3", code=1)
    # and its events, from where one likes
    events = holdfast.lines("runs", "events", "agent", "run-2", "--payloads")
    assert [one["data"] for one in events[:3]] == [{"token": f"secret {n}"} for n in range(3)]
    assert events[3]["kind"] == "end"
    hidden = holdfast("runs", "events", "agent", "run-2", "--after", events[0]["id"])
    assert (len(hidden.splitlines()), "secret" in hidden) == (3, False)
    assert holdfast("runs", "events", "agent", "run-1") == ""  # it does not wait for more


def test_events_that_are_followed_end_with_the_run_and_others_do_not_wait(holdfast: Told, hf: Holdfast) -> None:
    agent = hf.runs("agent")
    with agent.claim("run-1") as run:
        run.emit(1)
        run.flush()
        assert len(holdfast.lines("runs", "events", "agent", "run-1")) == 1  # and there may be more to come
        run.emit(2)
    kinds = [one["kind"] for one in holdfast.lines("runs", "events", "agent", "run-1", "--follow")]
    assert kinds == ["data", "data", "end"]


def test_runs_are_stopped(holdfast: Told, hf: Holdfast) -> None:
    agent = hf.runs("agent", slots=9)
    for number in range(3):
        agent.start(f"run-{number}", key="k")
    why = ("--reason", "too much", "--yes")
    assert holdfast("runs", "stop", "agent", "run-0", *why) == "it is stopped\n"
    assert agent.get("run-0").reason == "too much"
    assert holdfast("runs", "stop-all", "agent", "k", *why) == "2 run(s) stopped\n"
    assert holdfast("runs", "stop-all", "agent", "k", *why, code=1) == "no run of this key is active\n"
    holdfast.error("runs", "stop", "agent", "never", *why, code=1)
    assert [(one["action"], one["outcome"]) for one in holdfast.json("audit")] == [
        ("stop", "RunGone"), ("stop-all", "nothing to do"), ("stop-all", "done"), ("stop", "done"),
    ]  # fmt: skip


# -- sessions ---------------------------------------------------------------------------------------------------------


def test_sessions_of_a_user_are_shown_cleared_and_forgotten(holdfast: Told, hf: Holdfast, valkey: Backend) -> None:
    chat = hf.sessions("chat")
    for session in ("s-1", "s-2"):
        chat.save(session, "secret", user="ann")
    tell_names(valkey.url, lambda one: one.sessions("chat"))
    assert holdfast.json("sessions") == ["chat"]
    assert {one["session"] for one in holdfast.json("sessions", "list", "chat", "ann")} == {"s-1", "s-2"}
    assert holdfast("sessions", "list", "chat", "bob", code=1) == "this user has no session here\n"
    (entry,) = holdfast.json("sessions", "chat", "s-1")
    assert (entry["role"], "secret" in str(entry)) == ("user", False)
    assert "secret" in holdfast("sessions", "chat", "s-1", "--payloads")
    why = ("--reason", "asked to", "--yes")
    assert holdfast("sessions", "clear", "chat", "s-1", *why) == "1 entries removed\n"
    assert holdfast("sessions", "clear", "chat", "s-1", *why, code=1) == "there was no such session\n"
    assert holdfast("sessions", "forget", "chat", "ann", *why) == "1 session(s) of ann removed\n"
    assert holdfast("sessions", "chat", "s-2", code=1) == "there is no such session, or it is empty\n"


# -- what strangers named ---------------------------------------------------------------------------------------------


def test_hostile_ids_are_shown_and_do_nothing(holdfast: Told, hf: Holdfast, valkey: Backend) -> None:
    # Given ids that want to be markup, colours and lines of their own
    hf.buffer("messages").append(HOSTILE, HOSTILE)
    hf.runs("agent").start(HOSTILE, key=HOSTILE)
    hf.sessions("chat").save(HOSTILE, HOSTILE, user="ann")
    tell_names(valkey.url, lambda one: one.buffer("messages"))
    with hf.lock(HOSTILE):
        shown = [
            holdfast("locks"), holdfast("locks", HOSTILE), holdfast("buffers", "messages"),
            holdfast("buffers", "messages", HOSTILE, "--payloads"), holdfast("runs", "agent"),
            holdfast("runs", "agent", HOSTILE), holdfast("sessions", "list", "chat", "ann"),
            holdfast("sessions", "chat", HOSTILE, "--payloads"),
        ]  # fmt: skip
        # expect them as they are in JSON
        assert holdfast.json("locks")[0]["name"] == HOSTILE
    # expect each to be one line of text, with its escapes written out
    for text in shown:
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert r"[red]evil[/] \x1b[31m\u202e\n{x}" in text, text


@pytest.mark.parametrize("words", [("locks", "inspect", "\udcff\udcfe"), ("locks", "\udcff\udcfe")])
def test_an_id_that_is_no_text_is_what_was_typed(holdfast: Told, hf: Holdfast, words: tuple[str, ...]) -> None:
    # Given a lock whose name is bytes, as a shell passes them: $'\xff\xfe'
    with hf.lock(b"\xff\xfe"):
        assert holdfast.json(*words)["name"] == {"$bytes": "//4="}
        assert r"\xff\xfe" in holdfast("locks")
