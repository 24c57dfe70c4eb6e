"""Every Lua file does what its header says, and what must free memory works when there is none (PITFALLS 46, 47)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import redis

import holdfast
from holdfast import Holdfast, ServerFull
from holdfast.engine.embedded import EmbeddedServer
from holdfast.engine.scripts import Scripts
from holdfast.engine.status import Status
from holdfast.errors import ConfigurationError
from holdfast.events import Event, Renewed
from support.conditions import until
from support.each import each

PACKAGE = Path(holdfast.__file__).parent
FILES = sorted(PACKAGE.glob("*/lua/*.lua"))
NAMES = [f"{file.parent.parent.name}/{file.stem}" for file in FILES if not file.stem.startswith("_")]
INCLUDES = [file for file in FILES if file.stem.startswith("_")]

FREES_OR_KEEPS = {
    "locks/release",
    "locks/renew",
    "locks/force",
    "fleet/record",  # what frees memory is done after it was written down
    "fleet/outcome",
    "buffers/take",
    "buffers/claim",
    "buffers/find",
    "buffers/ack",
    "buffers/nack",
    "buffers/quarantine",
    "buffers/renew",
    "buffers/pop",
    "buffers/clear",
    "buffers/leave",
    "buffers/revive",
    "sessions/touch",
    "sessions/pop",
    "sessions/clear",
    "sessions/unindex",
    "runs/settle",
    "runs/renew",
    "runs/stop",
    "runs/stop_all",
    "runs/sweep",
    "runs/leave",
    "runs/look",
    "runs/events",
    "runs/list",
    "runs/archive",
    "once/forget",
    "once/confirm",
    "once/drop",
    "once/renew",
    "once/due",
    "once/told",
    "once/untell",
    "monitor/forget",
    "monitor/peek",
    "monitor/take",
    "monitor/done",
    "monitor/strike",
    "monitor/replay",
}
"""What must work on a full server. Adding a script here needs a reason: it can grow a server that is full."""

WALKS = (["unpack", "("], ["ipairs", "("])
TYPES = {"hash", "zset", "stream", "set", "list", "string"}
GROUPS = {"zset": "sorted-set"}
FORBIDDEN = {"cjson", "cmsgpack", "loadstring"}
SCANNING = {"KEYS", "SCAN", "RANDOMKEY", "FLUSHALL", "FLUSHDB"}


# -- reading Lua ------------------------------------------------------------------------------------------------------

TOKEN = re.compile(
    r"""(?P<space>\s+) | (?P<comment>--\[\[.*?\]\]|--[^\n]*)
    | (?P<string>'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*") | (?P<number>\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)
    | (?P<name>[A-Za-z_]\w*) | (?P<symbol>\.\.\.|\.\.|==|~=|<=|>=|[-+*/%^\#<>=(){}\[\];:,.])""",
    re.X | re.S,
)

NAMED = re.compile(r" (\w+)\(")


@dataclass(frozen=True)
class Token:
    kind: str
    text: str
    line: int
    inside: str
    """The function that it is in; empty: the main part."""


def tokens_of(source: str) -> list[Token]:
    """The tokens of a script, without comments and shebang."""
    if source.startswith("#!"):
        source = "\n" + source.partition("\n")[2]
    tokens: list[Token] = []
    blocks: list[str] = []
    at = 0
    while at < len(source):
        found = TOKEN.match(source, at)
        assert found, f"cannot read Lua at {source[at : at + 40]!r}"
        kind, text, at = str(found.lastgroup), found.group(), found.end()
        if kind in ("space", "comment"):
            continue
        if kind == "name" and text in ("function", "if", "do", "repeat"):
            named = NAMED.match(source, at) if text == "function" else None
            blocks.append(named[1] if named else "?" if text == "function" else "")
        inside = next(filter(None, blocks), "")
        tokens.append(Token(kind, text, source.count("\n", 0, found.start()), inside))
        if kind == "name" and text in ("end", "until"):
            blocks.pop()
    assert not blocks, f"not closed: {blocks}"
    return tokens


def split(tokens: list[Token]) -> list[list[Token]]:
    """Parts between the commas that are in no bracket."""
    parts: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        depth += (token.text in "([{") - (token.text in ")]}") if token.kind == "symbol" else 0
        if token.text == "," and depth == 0:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def bracket(tokens: list[Token], at: int) -> list[Token]:
    """What is inside the bracket that opens at `at`."""
    depth = 0
    for end in range(at, len(tokens)):
        if tokens[end].kind == "symbol":
            depth += (tokens[end].text in "([{") - (tokens[end].text in ")]}")
        if depth == 0:
            return tokens[at + 1 : end]
    raise AssertionError("a bracket is not closed")


def unquoted(token: Token) -> str:
    assert token.kind == "string"
    return token.text[1:-1]


class Body:
    """What a script, with its includes, really does."""

    def __init__(self, source: str) -> None:
        self.tokens = tokens_of(source)

    def text(self, at: int) -> str:
        return self.tokens[at].text if 0 <= at < len(self.tokens) else ""

    def names(self) -> set[str]:
        return {token.text for token in self.tokens if token.kind == "name"}

    # -- arguments

    def indexes(self, table: str) -> tuple[set[int], bool]:
        """Fixed indexes used of KEYS, K or ARGV, and whether it is also walked through."""
        fixed: set[int] = set()
        walked = False
        for at, token in enumerate(self.tokens):
            if token.kind != "name" or token.text != table or self.text(at - 1) == ".":
                continue
            if self.text(at + 1) == "[":
                inside = bracket(self.tokens, at + 1)
                if len(inside) == 1 and inside[0].kind == "number":
                    fixed.add(int(inside[0].text))
                else:
                    walked = True
            elif self.text(at - 1) == "#" or [self.text(at - 2), self.text(at - 1)] in WALKS:
                walked = True
            else:
                alias = table == "KEYS" and [self.text(at - 2), self.text(at - 1)] == ["K", "="]
                target = table == "K" and self.text(at + 1) == "="
                assert alias or target, f"{table} is used in a way that this test cannot follow, line {token.line}"
        return fixed, walked

    def keys(self) -> tuple[set[int], bool]:
        """As `indexes`, with K followed: an alias of KEYS, unless the script makes it a table of its own."""
        fixed, walked = self.indexes("KEYS")
        own = [at for at, token in enumerate(self.tokens) if token.text == "K" and self.text(at + 1) == "="]
        tables = [at for at in own if self.text(at + 2) == "{"]
        by_alias, walked_alias = self.indexes("K")
        if not tables:
            return fixed | by_alias, walked or walked_alias
        for at in tables:
            for index in by_alias:
                item = split(bracket(self.tokens, at + 2))[index - 1 : index]
                nothing = not item or item[0][0].text == "nil"
                assert not nothing, f"K[{index}] is used and is nil in this script"
        return fixed, walked

    # -- answers

    def assigned(self, name: str) -> list[list[Token]]:
        """Everything that a variable is set to. A statement ends with its line, or with its last bracket."""
        values = []
        for at, token in enumerate(self.tokens):
            if token.text != "=" or token.kind != "symbol":
                continue
            start = at
            while self._goes_on_left(start, token.line):
                start -= 1
            left = [part[-1].text for part in split(self.tokens[start:at]) if part]
            end, depth = at + 1, 0
            while end < len(self.tokens) and (depth or self.tokens[end].line == self.tokens[end - 1].line):
                depth += (self.text(end) in ("(", "[", "{")) - (self.text(end) in (")", "]", "}"))
                end += 1
            if name in left:
                values.append(split(self.tokens[at + 1 : end])[left.index(name)])
        return values

    def _goes_on_left(self, at: int, line: int) -> bool:
        before = self.tokens[at - 1] if at else None
        if before is None or before.line != line or before.text == "local":
            return False
        return before.kind == "name" or before.text == ","

    def words(self) -> set[str]:
        """The status words with which it can answer."""
        words: set[str] = set()
        for at, token in enumerate(self.tokens):
            if token.text != "return" or token.kind != "name":
                continue
            if self.text(at + 1) == "{":
                table = bracket(self.tokens, at + 1)
                if not token.inside or any(t.kind == "string" for t in split(table)[0]):  # else: a part of an answer
                    words |= self._first(table)
            elif not token.inside:
                words |= self._returned(at + 1)
        return words

    def _first(self, table: list[Token]) -> set[str]:
        first = split(table)[0]
        if written := {unquoted(token) for token in first if token.kind == "string"}:
            return written
        assert [token.kind for token in first] == ["name"], "an answer starts with a word or with a variable"
        found = {unquoted(t) for value in self.assigned(first[0].text) for t in value if t.kind == "string"}
        assert found, f"nothing is known of {first[0].text}"
        return found

    def _returned(self, at: int) -> set[str]:
        name = self.tokens[at]
        assert name.kind == "name", "an answer is a table, a variable or a call"
        if self.text(at + 1) == "(":
            assert ["function", name.text] in [[self.text(i), self.text(i + 1)] for i in range(len(self.tokens))]
            return set()  # its own return was read already
        values = [value for value in self.assigned(name.text) if value[0].text == "{"]
        assert values, f"{name.text} is never made as a table"
        return set().union(*(self._first(value[1:-1]) for value in values))

    # -- commands

    def commands(self) -> list[tuple[str, str, int]]:
        """Command, table and index of its first key as far as written out; "" for one made at run time."""
        found, unused = [], self.unused()
        for at, token in enumerate(self.tokens):
            if token.text not in ("call", "pcall") or self.text(at + 1) != "(":
                continue
            words = split(bracket(self.tokens, at + 1))
            command = unquoted(words[0][0]).upper() if words[0][0].kind == "string" else ""
            key = words[1] if len(words) > 1 else []
            literal = len(key) == 4 and key[0].text in ("K", "KEYS") and key[2].kind == "number"
            if token.inside not in unused:
                found.append((command, key[0].text if literal else "", int(key[2].text) if literal else 0))
        return found

    def unused(self) -> set[str]:
        """Functions that came with an include and are not called."""
        defined = {token.inside for token in self.tokens if token.inside}
        calls: dict[str, set[str]] = {}
        for token in self.tokens:
            if token.kind == "name" and token.text in defined and token.text != token.inside:
                calls.setdefault(token.inside, set()).add(token.text)
        used, new = {"?"}, set(calls.get("", ()))
        while new:
            used |= new
            new = set().union(*(calls.get(name, set()) for name in new)) - used
        return defined - used


# -- reading headers --------------------------------------------------------------------------------------------------

LINE = re.compile(r"-- (?P<table>KEYS|ARGV|    ) +(?P<index>\d+)(?P<more>\.\.)? +(?P<name>\w+)(?: +(?P<rest>\S.*))?")


class Header:
    """What a script promises. Read here anew: the reader in `scripts.py` is under test too."""

    def __init__(self, source: str) -> None:
        lines = source.split("\n")
        self.flags = set(filter(None, lines[0].removeprefix("#!lua").strip().removeprefix("flags=").split(",")))
        title = re.fullmatch(r"-- (\w+/\w+) +retry: (safe|opid|never)", lines[1])
        assert title, f"a title in line 2, not {lines[1]!r}"
        self.name, self.retry = title.groups()
        self.arguments: dict[str, list[tuple[int, bool, str, str]]] = {"KEYS": [], "ARGV": []}
        self.words: list[str] = []
        table = ""
        for line in lines[2:]:
            if line.startswith("-- returns "):
                self.words = [word.strip() for word in line.removeprefix("-- returns ").split("|")]
                break
            found = LINE.fullmatch(line)
            assert found, f"a line of the header cannot be read: {line!r}"
            table = found["table"].strip() or table
            self.arguments[table].append((int(found["index"]), bool(found["more"]), found["name"], found["rest"] or ""))

    @property
    def derives(self) -> bool:
        """It works its keys out from what they start with, all in the slot of the one it is sent with."""
        first = self.arguments["ARGV"][:1]
        return bool(first) and first[0][:3] == (1, False, "base") and first[0][3].endswith("'s keys start with")

    def indexes(self, table: str) -> tuple[set[int], bool]:
        """Fixed indexes declared, and whether the last of them is only the first of many."""
        declared = self.arguments[table]
        assert [index for index, *_ in declared] == list(range(1, len(declared) + 1)), f"{table} has a gap"
        assert not any(more for _, more, *_ in declared[:-1]), f"only the last of {table} may be many"
        return {index for index, more, *_ in declared if not more}, bool(declared and declared[-1][1])


def drift(source: str, expanded: str) -> list[str]:
    """Where the header and the body of a script differ."""
    header, body = Header(source), Body(expanded)
    found = []
    for table, (fixed, walked) in (("KEYS", body.keys()), ("ARGV", body.indexes("ARGV"))):
        declared, many = header.indexes(table)
        if fixed - declared:
            found.append(f"{table} {sorted(fixed - declared)} used and not declared")
        if table == "KEYS" and header.derives:
            fixed |= declared  # what it finds through its base; it is named for routing and for rights
        if table == "KEYS":
            fixed |= {
                index for index, _, name, _ in header.arguments["KEYS"] if name == "none"
            }  # never there, on purpose
        if declared - fixed:
            found.append(f"{table} {sorted(declared - fixed)} declared and not used")
        if walked != many:
            found.append(f"{table} walked through: {walked}, declared as many: {many}")
    if body.words() != set(header.words):
        found.append(f"answers {sorted(body.words())}, declared {sorted(header.words)}")
    return found


def source_of(name: str) -> str:
    room, _, file = name.partition("/")
    return (PACKAGE / room / "lua" / f"{file}.lua").read_text("utf-8")


@dataclass(frozen=True)
class File:
    name: str
    source: str

    @cached_property
    def expanded(self) -> str:
        return Scripts().get(self.name).source

    @cached_property
    def header(self) -> Header:
        return Header(self.source)

    @cached_property
    def body(self) -> Body:
        return Body(self.expanded)


each_script = each("script", (File(name, source_of(name)) for name in NAMES), lambda script: script.name)
"""For what is read off a script. It reads each of them once, and says which ones are wrong."""


@pytest.fixture(scope="module")
def server() -> Iterator[redis.Redis]:
    embedded = EmbeddedServer.open("embedded:")
    try:
        with redis.Redis(unix_socket_path=embedded.socket_path, protocol=2) as client:
            yield client
    finally:
        embedded.close()


# -- header against body ----------------------------------------------------------------------------------------------


def test_there_are_scripts_to_look_at() -> None:
    assert {"locks/acquire", "locks/release", "locks/renew", "locks/force", "locks/inspect"} <= set(NAMES)


@each_script
def test_header_and_body_agree(script: File) -> None:
    assert drift(script.source, script.expanded) == []


@pytest.mark.parametrize(
    ("name", "old", "new", "complaint"),
    [
        ("locks/acquire", "ARGV[8]", "ARGV[9]", r"ARGV \[9\] used and not declared"),
        ("locks/acquire", "ARGV[6]", "'f'", r"ARGV \[6\] declared and not used"),
        ("locks/acquire", "--       3 shard       zset\n", "", r"KEYS \[3\] used and not declared"),
        ("locks/acquire", "--       3 shard       zset\n", "--       3 shard       zset\n--       4 more        set\n",
         r"KEYS \[4\] declared and not used"),
        ("locks/acquire", "{'busy'", "{'bussy'", "answers .*bussy"),
        ("locks/release", "and 'released' or", "and 'gone' or", "answers .*gone"),
        ("locks/release", "return {'not_held'}", "return {'withdrawn'}", "declared .*not_held"),
        ("locks/renew", "{'renewed', now}", "{'kept', now}", "answers .*kept"),
        ("locks/renew", "2.. locks ", "2 locks   ", "walked through: True"),
        ("locks/guarded", "4.. commands", "4 commands  ", "walked through: True"),
        ("locks/guarded", "{'written'}", "{'wrote'}", "answers .*wrote"),
        ("locks/inspect", "-- ARGV  1 waiters ", "-- ARGV  1.. waiters ", "declared as many: True"),
    ],
)  # fmt: skip
def test_drift_is_noticed(name: str, old: str, new: str, complaint: str) -> None:
    # Given a script in which header or body was changed alone
    source, expanded = source_of(name), Scripts().get(name).source
    assert old in source

    found = drift(source.replace(old, new), expanded.replace(old, new))

    assert re.search(complaint, "\n".join(found))


def test_a_renewal_that_needs_the_queue_is_noticed() -> None:
    # Given a renewal that uses K[2], which it does not have
    expanded = Scripts().get("locks/renew").source.replace("answer[#answer + 1] = 1", "call('ZCARD', K[2])")

    with pytest.raises(AssertionError, match=r"K\[2\] is used and is nil"):
        drift(source_of("locks/renew"), expanded)


@each_script
def test_title_is_the_place_of_the_file(script: File) -> None:
    assert script.header.name == script.name


@each_script
def test_parsed_header_is_what_the_client_uses(script: File) -> None:
    loaded = Scripts().get(script.name)

    assert loaded.name == script.header.name
    assert loaded.retry == script.header.retry
    assert set(loaded.flags) == script.header.flags
    assert list(loaded.returns) == script.header.words


@each_script
def test_every_status_word_is_in_the_enum(script: File) -> None:
    assert set(script.header.words) <= set(Status)


def test_every_member_of_the_enum_is_some_scripts_word() -> None:
    declared = {word for name in NAMES for word in Header(source_of(name)).words}

    assert {str(status) for status in Status} == declared


@each_script
def test_keys_have_a_type(script: File) -> None:
    assert {rest.split(" ")[0] for *_, rest in script.header.arguments["KEYS"]} <= TYPES


@each_script
def test_keys_are_used_as_the_type_they_are_declared_to_be(script: File, server: redis.Redis) -> None:
    # Given the type of each key by the header; a script that gives K a meaning of its own is left out
    if re.search(r"^\s*K = \{", script.expanded, re.M):
        types = {}
    else:
        types = {index: rest.split(" ")[0] for index, _, _, rest in script.header.arguments["KEYS"]}

    for command, table, index in script.body.commands():
        if table and index in types:
            group = group_of(server, command)
            kind = types[index]
            assert group in ("generic", GROUPS.get(kind, kind)), f"{command} on {kind}"


def group_of(server: redis.Redis, command: str) -> str:
    _, fields = plain(server, "COMMAND", "DOCS", command)
    return str(fields[fields.index(b"group") + 1].decode()).replace("_", "-")


def plain(server: redis.Redis, *words: str) -> Any:
    """The bare reply: redis-py reshapes those of COMMAND."""
    connection = server.connection_pool.get_connection()
    try:
        connection.send_command(*words)
        return connection.read_response()
    finally:
        server.connection_pool.release(connection)


# -- flags and commands -----------------------------------------------------------------------------------------------


@each_script
def test_flags_are_known_ones(script: File) -> None:
    assert script.header.flags in (set(), {"allow-oom"}, {"no-writes"})


def test_what_frees_or_keeps_and_only_that_is_allowed_without_memory() -> None:
    allowed = {name for name in NAMES if "allow-oom" in Header(source_of(name)).flags}

    assert allowed == FREES_OR_KEEPS


@each_script
def test_a_script_writes_unless_it_says_that_it_does_not(script: File, server: redis.Redis) -> None:
    commands = [command for command, _, _ in script.body.commands()]
    writing = [command for command in commands if not command or "write" in flags_of(server, command)]

    assert bool(writing) == ("no-writes" not in script.header.flags), writing


def flags_of(server: redis.Redis, command: str) -> set[str]:
    (info,) = plain(server, "COMMAND", "INFO", command)
    return {flag.decode() for flag in info[2]}


@each_script
def test_a_script_that_carries_an_operation_id_has_an_argument_for_it(script: File) -> None:
    named = [name for _, _, name, _ in script.header.arguments["ARGV"]]

    # One that is never repeated may carry it too, so that another script can tell whether it was executed.
    assert "opid" in named if script.header.retry == "opid" else script.header.retry == "never" or "opid" not in named


@each_script
def test_a_script_that_is_repeated_by_operation_id_can_say_so(script: File) -> None:
    said = "replayed" in script.header.words

    assert said if script.header.retry == "opid" else script.header.retry == "never" or not said


@each_script
def test_nothing_forbidden_is_called(script: File) -> None:
    assert not script.body.names() & FORBIDDEN
    assert "random" not in script.body.names(), "a replayed script must do the same again"
    assert not {command for command, _, _ in script.body.commands()} & SCANNING


@each_script
def test_only_the_server_tells_the_time(script: File) -> None:
    # `os.clock` and `os.time` exist in the sandbox of some servers.
    assert "os" not in script.body.names()


@each_script
def test_every_file_loads_on_the_server(script: File, server: redis.Redis) -> None:
    loaded = Scripts().get(script.name)

    assert server.script_load(loaded.source) == loaded.sha.decode()


def test_every_include_is_used() -> None:
    included = set(re.findall(r"^-- include (\w+)$", "\n".join(file.read_text("utf-8") for file in FILES), re.M))

    assert {file.stem.removeprefix("_") for file in INCLUDES} == included


def test_every_script_is_used() -> None:
    code = "\n".join(file.read_text("utf-8") for file in PACKAGE.rglob("*.py"))

    assert [name for name in NAMES if f'"{name}"' not in code] == []


def test_include_comes_once_however_often_it_is_named() -> None:
    source = Scripts().get("locks/release").source

    assert source.count("local time = call('TIME')") == 1
    assert "-- include" not in source


class Still(Scripts):
    """With a clock that stands still."""

    def read(self, room: str, name: str) -> str | None:
        if name == "_time":
            return "local call = redis.call local now_us = 5000 local now = 5"
        return super().read(room, name)


def test_a_test_can_put_another_include_in() -> None:
    assert "call('TIME')" not in Still().get("locks/acquire").source
    assert Still().get("locks/acquire").sha != Scripts().get("locks/acquire").sha


def test_script_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="reinstall holdfast: the header of script 'locks/nothing'"):
        Scripts().get("locks/nothing")


class Without(Scripts):
    """An installation in which a file is missing."""

    def read(self, room: str, name: str) -> str | None:
        return None if name == "_queue" else super().read(room, name)


def test_include_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="reinstall holdfast: the script include 'queue' is missing"):
        Without().get("locks/release")


# -- out of memory ----------------------------------------------------------------------------------------------------


class Full:
    """A server that can be filled up, and a client of it."""

    def __init__(self, admin: redis.Redis, hf: Holdfast, events: list[Event]) -> None:
        self.admin = admin
        self.hf = hf
        self.events = events

    def fill(self) -> None:
        used = int(self.admin.info("memory")["used_memory"])
        self.admin.config_set("maxmemory", used + 256 * 1024)
        for number in range(10_000):
            try:
                self.admin.set(f"ballast:{number}", b"x" * 4096)
            except redis.exceptions.OutOfMemoryError:
                return
        raise AssertionError("the server was not filled")


@pytest.fixture
async def full() -> AsyncIterator[Full]:
    embedded = await asyncio.to_thread(EmbeddedServer.open, "embedded:")
    events: list[Event] = []
    try:
        with redis.Redis(unix_socket_path=embedded.socket_path) as admin:
            url = f"unix://{embedded.socket_path}"
            # A waiter that shows that it lives asks again, and asking adds: let it be silent for a while.
            async with Holdfast(url, observers=[events.append], waiter_lease=60) as hf:
                yield Full(admin, hf, events)
    finally:
        await asyncio.to_thread(embedded.close)


async def test_full_server_refuses_what_adds(full: Full) -> None:
    # Given a server at its memory limit
    full.fill()

    # when a lock is asked for
    with pytest.raises(ServerFull, match="memory") as refused:
        await full.hf.lock("new").acquire()

    # expect that it is told apart and that nothing was added
    assert refused.value.operation == "locks/acquire"
    assert refused.value.key == "new"
    assert full.admin.keys("hf:*") == []


async def test_full_server_lets_a_lease_be_released(full: Full) -> None:
    lease = await full.hf.lock("held").acquire()
    full.fill()

    await lease.release()

    assert lease.released
    assert not full.admin.exists(b"hf:{locks.%d}:lock:held" % shard("held"))


async def test_full_server_lets_a_lease_be_renewed(full: Full) -> None:
    # Given a lease that is about to be renewed, and a full server
    lease = await full.hf.lock("held", ttl=0.5).acquire()
    full.fill()
    full.events.clear()

    # when two renewals are due
    await until(lambda: len([e for e in full.events if isinstance(e, Renewed)]) >= 2 or lease.lost, what="renewed")

    # expect the lease to live on
    assert not lease.lost
    await lease.release()


async def test_full_server_lets_an_operator_end_a_lease(full: Full) -> None:
    lease = await full.hf.lock("held").acquire()
    full.fill()

    assert await full.hf.force_release("held", reason="server is full") == 1

    assert not (await full.hf.inspect("held")).held
    del lease


async def test_full_server_hands_a_lock_to_the_next_waiter(full: Full) -> None:
    # Given a holder and one in the queue, and a full server
    lease = await full.hf.lock("held").acquire()
    waiting = asyncio.create_task(full.hf.lock("held").acquire(wait=10))
    await until(lambda: any(map(callable, full.hf._core.mailbox._slots.values())), what="in the queue and listening")
    full.fill()

    # when it is released
    await lease.release()

    # expect that the next one has it
    following = await waiting
    assert following.fence > lease.fence
    await following.release()


async def test_full_server_that_forgot_its_scripts_lets_a_lease_be_released(full: Full) -> None:
    lease = await full.hf.lock("held").acquire()
    full.fill()
    full.admin.script_flush()

    await lease.release()

    assert lease.released


async def test_full_server_with_room_again_grants_again(full: Full) -> None:
    full.fill()
    with pytest.raises(ServerFull):
        await full.hf.lock("new").acquire()

    full.admin.config_set("maxmemory", 0)

    async with full.hf.lock("new") as lease:
        assert lease.fence


def shard(name: str) -> int:
    from holdfast.keys import id_bytes, shard_of

    return shard_of(id_bytes(name))
