"""Where a node's settings come from, and mistakes in them: one line, exit 2, and no secret told."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from node_running import NodeHere, good
from typer.testing import CliRunner, Result

from holdfast.cli.app import app
from support.backends import Backend

SECRET = "never-shown-0123456789"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator:
    """The command line in this process, in a directory and an environment of its own."""
    monkeypatch.chdir(tmp_path)
    for name in ("HOLDFAST_URL", "HOLDFAST_CONFIG", "HOLDFAST_REPORT", "HOLDFAST_NODE_TOKEN"):
        monkeypatch.delenv(name, raising=False)

    def call(*words: str, **env: str) -> Result:
        return CliRunner().invoke(app, list(words), env={"COLUMNS": "200", **env})

    return call


def one_line(found: Result, code: int, *says: str) -> None:
    """A mistake is said in one line, and told by the exit code."""
    text = (found.stderr or found.output).strip()
    assert found.exit_code == code, (found.exit_code, found.output)
    assert len(text.splitlines()) == 1, text
    assert "Traceback" not in found.output
    for part in says:
        assert part in text, text


def settings(found: Result) -> dict[str, tuple[object, str]]:
    assert found.exit_code == 0, found.output
    return {f"{row['table']}.{row['setting']}": (row["value"], row["from"]) for row in json.loads(found.stdout)}


def test_flags_win_over_the_environment_over_the_file_over_the_defaults(run, tmp_path: Path):
    file = tmp_path / "holdfast.toml"
    file.write_text("[holdfast]\nttl = 12.5\n[node]\nport = 1111\nrate = 7.0\n")
    found = settings(run("config", "--json", "--config", str(file)))
    assert found["holdfast.ttl"] == (12.5, str(file))
    assert found["node.port"] == (1111, str(file))
    assert found["node.host"] == ("127.0.0.1", "default")
    found = settings(run("config", "--json", HOLDFAST_CONFIG=str(file), HOLDFAST_NODE_PORT="2222", HOLDFAST_TTL="3"))
    assert found["node.port"] == (2222, "HOLDFAST_NODE_PORT")
    assert found["holdfast.ttl"] == (3.0, "HOLDFAST_TTL")
    assert found["node.rate"] == (7.0, str(file))
    shown = run("config", HOLDFAST_CONFIG=str(file))
    assert "node.rate" in shown.stdout


def test_a_flag_of_up_wins(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    seen = []

    async def serve(config, **_):
        seen.append(config)
        return 0

    monkeypatch.setattr("holdfast.node.serve.serve", serve)
    file = tmp_path / "holdfast.toml"
    file.write_text('[node]\nport = 1111\nhost = "127.0.0.9"\nrate = 7.0\n')
    found = run(
        "up", "--port", "3333", "--config", str(file), HOLDFAST_NODE_PORT="2222", HOLDFAST_NODE_HOST="127.0.0.8"
    )
    assert found.exit_code == 0, found.output
    assert (seen[0].port, seen[0].host, seen[0].rate) == (3333, "127.0.0.8", 7.0)


def test_a_playground_stays_away_from_a_server_of_others(run):
    one_line(run("up", "--playground", HOLDFAST_URL="redis://h"), 2, "leave --playground out")


@pytest.mark.parametrize(
    ("words", "url"),
    [((), "redis://here"), (("--url", "redis://there"), "redis://there"), (("--data", "d"), ""),
     (("--data", "d", "--url", "redis://there"), "redis://there")],
)  # fmt: skip
def test_whoever_names_a_directory_means_the_server_in_it(run, monkeypatch: pytest.MonkeyPatch, words, url: str):
    """`make up` must not work on the server of somebody whose shell names one."""
    seen = []

    async def serve(config, **_):
        seen.append(config)
        return 0

    monkeypatch.setattr("holdfast.node.serve.serve", serve)
    assert run("up", *words, HOLDFAST_URL="redis://here").exit_code == 0
    assert seen[0].url == url


def test_a_token_comes_from_a_file_or_is_made_and_told_once(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    seen = []

    async def serve(config, *, told, **_):
        from holdfast.node.serve import Served

        seen.append(config)
        told(Served(config, "http://127.0.0.1:1", "embedded:"))
        return 0

    monkeypatch.setattr("holdfast.node.serve.serve", serve)
    (tmp_path / "token").write_text(f"{SECRET}\n")
    found = run("up", "--token-file", str(tmp_path / "token"))
    assert seen[0].token == SECRET
    assert SECRET not in found.output
    found = run("up", "--new-token")
    assert seen[1].token in found.stdout
    assert len(seen[1].token) >= 32
    assert SECRET not in repr(seen[0])


def test_secrets_are_hidden(run, tmp_path: Path):
    file = tmp_path / "holdfast.toml"
    file.write_text(f'[node]\ntoken = "{SECRET}"\n')
    env = {
        "HOLDFAST_CONFIG": str(file), "HOLDFAST_NODE_TOKENS": f"a=read:{SECRET}x", "HOLDFAST_URL": f"redis://:{SECRET}@h",
        "HOLDFAST_NODE_URL": f"redis://:{SECRET}@h", "HOLDFAST_NODE_STORE": f"postgresql://u:{SECRET}@h/d",
    }  # fmt: skip
    for words in (("config",), ("config", "--json")):
        found = run(*words, **env)
        assert found.exit_code == 0
        assert SECRET not in found.output
    rows = settings(run("config", "--json", **env))
    assert rows["node.token"] == ("(hidden)", str(file))
    assert rows["holdfast.url"][0] == "redis://:***@h"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[node\n", "mend the configuration file"), ("[node]\nprot = 1\n", "remove 'prot'"),
        ('[node]\nport = "x"\n', "set port"), ("[node]\nport = 70000\n", "set port between"),
        ("[holdfast]\nttl = -1\n", "set ttl between"), ("node = 1\n", "must be a table"),
        ("[node]\nrate = nan\n", "set rate"), (f'[node]\ntoken = ["{SECRET}"]\n', "set token"),
        ("[node]\nport = true\n", "set port"),
        ("ttl = 3\n[holdfast]\n", "move 'ttl'"),
        ("buffers = 1\n", "[buffers.NAME]"), ("[buffers]\ncapacity = 5\n", "[buffers.NAME]"),
        ("[runs.agent]\nslot = 5\n", "remove 'slot' of [runs.agent]"),
        ("[holdfast]\n[buffer.b]\nttl = 5\n", "write [buffers.NAME]"),
    ],
)  # fmt: skip
def test_mistakes_in_the_file_are_one_line(run, tmp_path: Path, text: str, says: str):
    file = tmp_path / "holdfast.toml"
    file.write_text(text)
    for command in ("config", "up"):
        found = run(command, "--config", str(file), HOLDFAST_NODE_DATA=str(tmp_path / "data"))
        one_line(found, 2, says)
        assert SECRET not in found.output


@pytest.mark.parametrize(
    ("words", "env", "code", "says"),
    [
        (("--host", "0.0.0.0"), {}, 2, "--new-token"),
        (("--host", "::"), {}, 2, "--new-token"),
        (("--config", "nowhere.toml"), {}, 2, "nowhere.toml"),
        (("--token-file", "nowhere"), {}, 2, "pass a file"),
        (("--log-level", "loud"), {}, 2, "set log_level"),
        (("--log-format", "xml"), {}, 2, "set log_format"),
        (("--url", "nonsense://x"), {}, 2, "redis://"),
        (("--url", "redis://127.0.0.1:1"), {"HOLDFAST_RETRY_FOR": "0.1"}, 3, "127.0.0.1:1"),
        (("--url", "redis://h", "--server-port", "7"), {}, 2, "server_port"),
        (("--playground", "--url", "redis://h"), {}, 2, "leave --playground out"),
        ((), {"HOLDFAST_NODE_PORT": "many"}, 2, "HOLDFAST_NODE_PORT"),
        ((), {"HOLDFAST_NODE_TOKEN": "short"}, 2, "at least 16"),
        ((), {"HOLDFAST_NODE_TOKENS": "nonsense"}, 2, "name=scope"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line_before_anything_is_started(run, tmp_path: Path, words, env, code: int, says: str):
    found = run("up", "--data", str(tmp_path / "data"), *words, **{"HOLDFAST_NODE_PORT": "0", **env})
    one_line(found, code, says)
    assert "Holdfast" not in found.stdout


def test_a_port_in_use_is_one_line(run, tmp_path: Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        found = run("up", "--port", port, "--data", str(tmp_path / "data"))
    one_line(found, 2, "--port", port)


FILE = """
[buffers.messages]
capacity = 3
[runs.agent]
slots = 2
conflict = "queue"
[sessions.chat]
max_entries = 2
[monitors.venues]
fields = ["price"]
"""


def test_collections_have_the_bounds_that_the_file_says(
    run, valkey: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    file = tmp_path / "holdfast.toml"
    file.write_text(FILE)
    shown = settings(run("config", "--json", "--config", str(file)))
    assert shown["buffers.messages.capacity"] == (3, str(file))
    assert shown["monitors.venues.fields"] == (["price"], str(file))
    monkeypatch.setenv("HOLDFAST_CONFIG", str(file))
    with NodeHere(valkey.url, sample=0.5) as node, node.http() as http:
        good(http.post("/v1/buffers/messages/messages", json={"user": "u", "items": list(range(10))}), 201)
        good(http.post("/v1/buffers/other/messages", json={"user": "u", "items": list(range(10))}), 201)
        assert good(http.get("/v1/buffers/messages/users/u"))["waiting"] == 3
        assert good(http.get("/v1/buffers/other/users/u"))["waiting"] == 10
        for run_id in ("a", "b"):
            good(http.post("/v1/runs/agent", json={"id": run_id, "key": "k"}), 201)
        assert good(http.post("/v1/runs/agent", json={"id": "c", "key": "k"}), 201)["waits"]
        asked = {"id": "d", "key": "k", "conflict": "reject"}
        assert http.post("/v1/runs/agent", json=asked).status_code == 409
        for number in range(5):
            good(http.post("/v1/sessions/chat/s", json={"content": str(number)}), 201)
        assert len(good(http.get("/v1/sessions/chat/s"))["entries"]) == 2
        states = ({"price": 1, "at": 1}, {"price": 1, "at": 2}, {"price": 2, "at": 3})
        sent = {"observations": [{"source": "s", "key": "k", "state": state} for state in states]}
        seen = [one["outcome"] for one in good(http.post("/v1/monitors/venues/observe", json=sent))]
        assert seen == ["first", "unchanged", "changed"]


@pytest.mark.parametrize(
    ("text", "says"),
    [("[buffers.b]\ncapacity = 0\n", "[buffers.b]: "), ('[runs.r]\nconflict = "fight"\n', "[runs.r]: "),
     ('[sessions.s]\nmax_entries = "many"\n', "[sessions.s]: "), ("[monitors.m]\nwindow = -1\n", "[monitors.m]: "),
     ('[monitors.m]\nfields = "price"\n', "[monitors.m]: "), ('[monitors.m]\nallow = "h"\n', "[monitors.m]: "),
     ('[runs.r]\narchive = "no"\n', "[runs.r]: ")],
)  # fmt: skip
def test_bounds_that_cannot_be_are_said_before_anything_is_served(run, tmp_path: Path, text: str, says: str):
    file = tmp_path / "holdfast.toml"
    file.write_text(text)
    one_line(run("up", "--config", str(file), "--port", "0", "--data", str(tmp_path / "data")), 2, says)
