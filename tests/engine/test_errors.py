"""The tree of errors, what their first line says, and that none of them prints a password (PITFALL 52)."""

from __future__ import annotations

import ast
import asyncio
import copy
import logging
import re
import socket
import traceback
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import hiredis
import pytest
import redis

import holdfast
import holdfast.sync
from holdfast import Holdfast, errors
from holdfast.engine.embedded import EmbeddedServer
from holdfast.engine.url import parse
from holdfast.errors import (
    ConfigurationError,
    EarlierFailure,
    Fenced,
    HoldfastError,
    Indeterminate,
    LeaseLost,
    NotAcquired,
    ServerError,
    ServerFull,
    Unavailable,
)
from support.each import each

CLASSES = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, HoldfastError)
}

# -- the tree ---------------------------------------------------------------------------------------------------------


def drawn_tree() -> dict[str, str]:
    """Each class and the one it hangs on, as drawn at the top of the file."""
    parents: dict[str, str] = {}
    above: list[tuple[int, str]] = []
    for line in str(errors.__doc__).split("\n"):
        if found := re.match(r"( {4,}[│├└─ ]*)([A-Z]\w+)", line):
            depth, name = len(found[1]), found[2]
            above = [(d, n) for d, n in above if d < depth]
            parents[name] = above[-1][1] if above else ""
            above.append((depth, name))
    return parents


def test_the_tree_is_as_drawn() -> None:
    assert drawn_tree() == {
        name: "" if kind is HoldfastError else kind.__mro__[1].__name__ for name, kind in CLASSES.items()
    }


def test_different_reactions_never_share_a_branch() -> None:
    apart = [
        NotAcquired,
        LeaseLost,
        Unavailable,
        Indeterminate,
        ConfigurationError,
        ServerError,
        Fenced,
        EarlierFailure,
    ]

    for one in apart:
        assert [other for other in apart if issubclass(other, one)] == [one]


def test_a_full_server_did_nothing() -> None:
    assert issubclass(ServerFull, Unavailable)


def test_a_wrong_argument_is_a_value_error_too() -> None:
    assert issubclass(ConfigurationError, ValueError)


@each("name", CLASSES)
def test_every_error_is_public(name: str) -> None:
    assert name in holdfast.__all__
    assert getattr(holdfast, name) is CLASSES[name]


@each("name", CLASSES)
def test_every_error_says_what_it_means(name: str) -> None:
    assert (CLASSES[name].__doc__ or "").strip().endswith(".")


# -- what one says ----------------------------------------------------------------------------------------------------


def test_error_says_where_it_happened() -> None:
    error = Unavailable("check the server", operation="locks/acquire", key="a b", elapsed=1.23456)

    assert str(error) == "check the server (operation locks/acquire, key 'a b', after 1.235 s)"
    assert (error.operation, error.key, error.elapsed) == ("locks/acquire", "a b", 1.23456)


def test_error_says_nothing_of_what_is_not_known() -> None:
    assert str(Unavailable("check the server")) == "check the server"
    assert str(Unavailable("check the server", elapsed=0.0)) == "check the server (after 0.000 s)"


def test_error_keeps_its_details() -> None:
    lost = LeaseLost("stop", reason="forced", operation="locks/release", key="a", elapsed=1.0)
    fenced = Fenced("stop", fence=3, seen=5, key="a")

    assert (lost.reason, lost.operation, lost.key) == ("forced", "locks/release", "a")
    assert (fenced.fence, fenced.seen, fenced.key) == (3, 5, "a")
    earlier = EarlierFailure("mend it", error="ValueError", key="a")
    assert (earlier.error, earlier.key) == ("ValueError", "a")


@pytest.mark.parametrize(
    "error",
    [
        Unavailable("check it", operation="x/y", key="k", elapsed=1.0),
        LeaseLost("stop", reason="forced", key="k"),
        Fenced("stop", fence=3, seen=5),
        EarlierFailure("mend it", error="ValueError", key="k"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_error_survives_the_way_to_another_process(error: HoldfastError) -> None:
    # Copying rebuilds an exception as unpickling does, which process pools depend on.
    again = copy.copy(error)

    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


# -- the first line says what to do -----------------------------------------------------------------------------------

VERBS = (
    " add ask call change check chmod choose clean clear close decorate drop enter expect find follow give go inspect "
    "install keep leave list look lower make mend move name nest open pass pip put raise register reinstall release "
    "remove report restart return roll run send set shorten start stop store subscribe treat try use wait write "
)
"""A message that starts with another word is no instruction; or add the verb here."""


def messages() -> Iterator[tuple[str, str]]:
    """Every message of an error that is written out in the source."""
    package = Path(holdfast.__file__).parent
    for file in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CLASSES:
                first = node.args[0] if node.args else None
                text = first.values[0] if isinstance(first, ast.JoinedStr) else first
                if isinstance(text, ast.Constant):
                    yield file.stem, text.value


def test_first_line_says_what_to_do() -> None:
    found = list(messages())
    wrong = [
        f"{file}: {message}"
        for file, message in found
        if not ((first_word := re.match(r"[A-Za-z]+", message)) and f" {first_word.group()} " in VERBS)
    ]

    assert len(found) > 300
    assert not wrong, "\n".join(wrong)


# -- no password anywhere ---------------------------------------------------------------------------------------------

SECRET = "hunter2-Sw0rdfish"
QUOTED, UNQUOTED = "p%40ss%2Fhunter2", "p@ss/hunter2"


def told(error: BaseException) -> str:
    """Everything that is printed of an error: itself, its causes and the trace of all of them."""
    lines = list(traceback.format_exception(error))
    seen: BaseException | None = error
    while seen is not None:
        lines += (str(seen), repr(seen), repr(seen.args))
        seen = seen.__cause__ or seen.__context__
    return "\n".join(lines)


@pytest.fixture
def nobody() -> Iterator[int]:
    """A port that is taken and on which nobody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


PLACES = {
    "redis": "redis://{who}@127.0.0.1:{port}/0",
    "rediss": "rediss://{who}@127.0.0.1:{port}/0",
    "valkey": "valkey://{who}@127.0.0.1:{port}",
    "valkeys": "valkeys://{who}@127.0.0.1:{port}",
    "unix": "unix://{who}@/nowhere/at-all.sock",
    "redis+sentinel": "redis+sentinel://{who}@127.0.0.1:{port},localhost:{port}/svc",
    "rediss+sentinel": "rediss+sentinel://{who}@127.0.0.1:{port}/svc",
    "valkey+sentinel": "valkey+sentinel://{who}@127.0.0.1:{port}/svc",
    "valkeys+sentinel": "valkeys+sentinel://{who}@127.0.0.1:{port}/svc",
    "redis+cluster": "redis+cluster://{who}@127.0.0.1:{port},localhost:{port}",
    "rediss+cluster": "rediss+cluster://{who}@127.0.0.1:{port}",
    "valkey+cluster": "valkey+cluster://{who}@127.0.0.1:{port}",
    "valkeys+cluster": "valkeys+cluster://{who}@127.0.0.1:{port}",
}
WHO = [f":{SECRET}", f"user:{SECRET}", f"user:{QUOTED}", f"user:a@{SECRET}:b"]


@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize("scheme", PLACES)
def test_no_password_in_what_is_printed_of_a_target_or_client(scheme: str, who: str) -> None:
    url = PLACES[scheme].format(who=who, port=6379)

    target, client, twin = parse(url, {}), Holdfast(url), holdfast.sync.Holdfast(url)

    assert target.options["password"] in (SECRET, UNQUOTED, f"a@{SECRET}:b"), "it is there to be hidden"
    printed = f"{target!r} {target} {client!r} {client} {twin!r} {twin} {target.shown}"
    assert "***" in printed
    assert not re.search("hunter2", printed)


@pytest.mark.parametrize("scheme", PLACES)
async def test_no_password_in_the_error_of_a_refused_connection(
    scheme: str, nobody: int, caplog: pytest.LogCaptureFixture
) -> None:
    # Given a URL with a password and nobody there
    caplog.set_level(logging.DEBUG)
    events: list[Any] = []
    url = PLACES[scheme].format(who=f"user:{SECRET}", port=nobody)
    client = Holdfast(url, retry_for=0, connect_timeout=1, observers=[events.append])

    # when it is opened
    with pytest.raises(Unavailable) as refused:
        await client.open()

    # expect an instruction and the place, and nowhere the password
    assert str(refused.value).startswith("check that the server at ")
    assert "user:***@" in str(refused.value)
    printed = "\n".join((told(refused.value), repr(client), repr(events), caplog.text))
    assert SECRET not in printed


@pytest.mark.parametrize("scheme", ["redis", "unix", "redis+sentinel", "redis+cluster"])
def test_no_password_in_the_error_of_the_blocking_twin(scheme: str, nobody: int) -> None:
    client = holdfast.sync.Holdfast(
        PLACES[scheme].format(who=f"user:{SECRET}", port=nobody), retry_for=0, connect_timeout=1
    )

    with pytest.raises(Unavailable, match="check that the server at") as refused:
        client.open()

    assert SECRET not in told(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        f"http://user:{SECRET}@h",
        f"redis://user:{SECRET}@h:port",
        f"redis://user:{SECRET}@h:99999",
        f"redis://user:{SECRET}@h?db=x",
        f"redis+sentinel://user:{SECRET}@h",
        f"redis+sentinel://user:{SECRET}@h:port/svc",
        f"redis+sentinel://user:{SECRET}@",
        f"redis+cluster://user:{SECRET}@h/3",
        f"redis+cluster://user:{SECRET}@,",
        f"unix://user:{SECRET}@",
        # A password with an unquoted # / ? is the most usual mistake of all.
        f"redis://user:{SECRET}#1@h",
        f"redis://user:{SECRET}/1@h",
        f"redis://user:{SECRET}?1@h",
        f"redis+sentinel://user:{SECRET}/1@h/svc",
        f"redis+cluster://user:{SECRET}/1@h",
        f"user:{SECRET}@h:6379",
        f"redis:user:{SECRET}@h",
        f"redis:/user:{SECRET}@h",
    ],
)
def test_no_password_in_the_error_of_a_url_that_has_no_meaning(url: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse(url, {})

    assert "hunter2" not in told(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        f"redis://h?password={SECRET}",
        f"unix:///run/valkey.sock?db=0&password={SECRET}",
        f"redis+sentinel://h/svc?password={SECRET}",
        f"redis+cluster://h?password={SECRET}",
        f"rediss://h?ssl_password={SECRET}",
    ],
)
def test_no_password_in_what_is_printed_of_a_url_that_has_it_as_an_option(url: str) -> None:
    # Given a password where redis-py's documentation puts it for sockets
    target = parse(url, {})
    assert SECRET in target.options.values()

    assert SECRET not in f"{target!r} {target.shown} {Holdfast(url)!r}"


@pytest.fixture(scope="module")
def locked() -> Iterator[str]:
    """The socket of a server that wants a password."""
    embedded = EmbeddedServer.open("embedded:")
    try:
        with redis.Redis(unix_socket_path=embedded.socket_path) as admin:
            admin.config_set("requirepass", "the right one")
        yield embedded.socket_path
    finally:
        embedded.close()


async def test_no_password_in_the_error_of_a_wrong_password(locked: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    with pytest.raises(HoldfastError) as refused:
        await Holdfast(f"unix://:{SECRET}@{locked}", retry_for=0).open()

    assert SECRET not in told(refused.value) + caplog.text


@pytest.mark.parametrize("who", ["", f":{SECRET}@"], ids=["no password", "a wrong one"])
def test_bad_credentials_are_told_apart_from_an_unreachable_server(locked: str, who: str) -> None:
    with pytest.raises(ConfigurationError, match="credentials") as refused:
        holdfast.sync.Holdfast(f"unix://{who}{locked}", retry_for=0.2).open()

    assert SECRET not in told(refused.value)


@pytest.mark.parametrize("who", ["", f":{SECRET}@"], ids=["no password", "a wrong one"])
async def test_bad_credentials_are_told_apart_on_asyncio_too(locked: str, who: str) -> None:
    with pytest.raises(ConfigurationError, match="credentials"):
        await Holdfast(f"unix://{who}{locked}", retry_for=0.2).open()


async def test_the_right_password_gets_in(locked: str) -> None:
    async with Holdfast(f"unix://:the%20right%20one@{locked}") as hf, hf.lock("a") as lease:
        assert "right" not in f"{hf!r} {lease!r}"


@asynccontextmanager
async def server_that_quotes() -> AsyncIterator[int]:
    """A server that does not know a command and says so with its arguments, as real ones do."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        parser = hiredis.Reader()
        while data := await reader.read(4096):
            parser.feed(data)
            while (command := parser.gets()) is not False:
                words = " ".join(f"'{word.decode()}'" for word in command[1:])
                writer.write(
                    f"-ERR unknown command '{command[0].decode()}', with args beginning with: {words}\r\n".encode()
                )
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()


async def test_no_password_in_the_error_of_a_server_that_quotes_it() -> None:
    # Given a server without AUTH (renamed, or a proxy), which repeats the arguments it was sent
    async with server_that_quotes() as port:
        with pytest.raises(HoldfastError) as refused:
            await Holdfast(f"redis://:{SECRET}@127.0.0.1:{port}", retry_for=0).open()

    assert SECRET not in told(refused.value)
