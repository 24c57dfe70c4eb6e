"""`call`: which answer leads to which next step. Driven by hand first, then against real and unwilling servers."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import hiredis
import pytest
import redis

import holdfast.sync
from holdfast import Holdfast
from holdfast.engine.aio import AsyncDriver
from holdfast.engine.embedded import EmbeddedServer
from holdfast.engine.flow import (
    BACKOFF_FIRST,
    BACKOFF_MOST,
    Effect,
    Flow,
    NotSent,
    Refresh,
    ReplyLost,
    Send,
    Sleep,
    Together,
    backoff,
    call,
)
from holdfast.engine.resp import pack
from holdfast.engine.scripts import Script, Scripts
from holdfast.engine.signals import Mailbox
from holdfast.engine.threads import ThreadDriver
from holdfast.engine.topology import Topology
from holdfast.engine.url import parse
from holdfast.errors import (
    ConfigurationError,
    HoldfastError,
    Indeterminate,
    NotPermitted,
    ServerError,
    ServerFull,
    Unavailable,
)
from holdfast.events import Event, Renewed

TAG = "locks.7"
SHA = b"0123456789abcdef0123456789abcdef01234567"


def script(retry: str = "safe") -> Script:
    return Script(name="locks/test", source="return {'ok'}", retry=retry, flags=(), returns=("ok",), sha=SHA)


class Time:
    """A clock that moves when the flow sleeps, and when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Driven:
    """A call, driven by hand: `effect` is what it wants next, `result` or `error` how it ended."""

    def __init__(self, retry: str = "safe", *, until: float = 110.0, lost: list[ReplyLost] | None = None) -> None:
        self.clock = Time()
        self.flow = call(
            script(retry), TAG, ("key",), ("arg", 1), clock=self.clock, until=until, key="the-key", lost=lost
        )
        self.effect: Effect | None = None
        self.result: Any = None
        self.error: HoldfastError | None = None
        self.sent: list[Send] = []
        self._step(lambda: next(self.flow))

    def _step(self, step: Callable[[], Effect]) -> None:
        try:
            self.effect = step()
        except StopIteration as stop:
            self.effect, self.result = None, stop.value
        except HoldfastError as error:
            self.effect, self.error = None, error
        if isinstance(self.effect, Send):
            self.sent.append(self.effect)

    def answer(self, value: Any) -> Self:
        self._step(lambda: self.flow.send(value))
        return self

    def say(self, text: str) -> Self:
        """An error reply."""
        return self.answer(hiredis.ReplyError(text))

    def fail(self, error: Exception) -> Self:
        self._step(lambda: self.flow.throw(error))
        return self

    def sleep(self) -> float:
        """It wants to sleep: let it."""
        assert isinstance(self.effect, Sleep), self.effect
        seconds = self.effect.seconds
        self.clock.now += seconds
        self.answer(None)
        return seconds

    def refresh(self) -> str:
        """It wants the topology anew."""
        assert isinstance(self.effect, Refresh), self.effect
        hint = self.effect.hint
        self.answer(None)
        return hint

    def sending(self, *, replies: int = 1, node: Any = None) -> bytes:
        """It wants to send: the payload."""
        assert isinstance(self.effect, Send), self.effect
        assert (self.effect.tag, self.effect.replies, self.effect.node) == (TAG, replies, node)
        assert not self.effect.alone
        return self.effect.payload


PLAIN = script().pack(("key",), ("arg", 1))
WHOLE = pack(b"EVAL", script().source, 1, "key", "arg", 1)
"""The same call with the script's text."""


# -- answers ----------------------------------------------------------------------------------------------------------


def test_first_it_sends_the_digest_of_the_script() -> None:
    driven = Driven()

    assert driven.sending() == PLAIN
    assert PLAIN.startswith(b"*6\r\n$7\r\nEVALSHA\r\n$40\r\n" + SHA)


def test_an_answer_ends_it() -> None:
    driven = Driven().answer([b"ok", 1])

    assert driven.result == [b"ok", 1]
    assert len(driven.sent) == 1


def test_an_error_inside_an_answer_is_data() -> None:
    # A script may answer with the error of one of several commands; only an error reply of its own is the call's.
    inner = [b"written", hiredis.ReplyError("WRONGTYPE")]

    assert Driven().answer(inner).result is inner


def test_unknown_script_is_loaded_and_called_in_one_go() -> None:
    driven = Driven().say("NOSCRIPT No matching script. Please use EVAL.")

    assert driven.sending(replies=2) == script().pack_load() + PLAIN
    assert driven.answer([b"ok"]).result == [b"ok"]


def test_a_script_that_is_unknown_again_goes_along_as_a_whole() -> None:
    # Given a server where SCRIPT LOAD is not allowed, or a cache that was flushed once more
    driven = Driven().say("NOSCRIPT no").say("NOSCRIPT no")

    assert driven.sleep() > 0
    assert driven.sending() == WHOLE
    assert driven.answer([b"ok"]).result == [b"ok"]


def test_a_moved_slot_is_looked_up_and_asked_for_there() -> None:
    driven = Driven().say("MOVED 3999 127.0.0.1:6381")

    assert driven.refresh() == "MOVED 3999 127.0.0.1:6381"
    assert driven.sending() == PLAIN, "without a pause: the new owner is known"


@pytest.mark.parametrize(
    ("text", "node"),
    [
        ("ASK 3999 127.0.0.1:6381", ("127.0.0.1", 6381)),
        ("ASK 3999 node-2.example:7", ("node-2.example", 7)),
        ("ASK 3999 ::1:6381", ("::1", 6381)),
    ],
)
def test_a_slot_on_its_way_is_asked_for_at_its_new_place_once(text: str, node: tuple[str, int]) -> None:
    driven = Driven().say(text)

    assert driven.sending(replies=2, node=node) == b"*1\r\n$6\r\nASKING\r\n" + PLAIN
    driven.say("TRYAGAIN multiple keys")
    driven.sleep()
    assert driven.sending() == PLAIN, "the next attempt starts again with the owner"


def test_an_unknown_script_at_a_slots_new_place_goes_along_as_text() -> None:
    # ASK and then NOSCRIPT: loading it at the owner would not help, for the owner only redirects again.
    driven = Driven().say("ASK 3999 127.0.0.1:6381").say("NOSCRIPT no")

    assert isinstance(driven.effect, Send)
    assert driven.effect.node == ("127.0.0.1", 6381)
    assert driven.effect.replies == 2
    assert driven.effect.payload == pack(b"ASKING") + script().as_eval(PLAIN)


@pytest.mark.parametrize(
    "text",
    [
        "TRYAGAIN Multiple keys request during rehashing of slot",
        "LOADING Valkey is loading the dataset in memory",
        "BUSY Valkey is busy running a script",
        "NOREPLICAS Not enough good replicas to write.",
        "MISCONF Errors writing to the AOF file: No space left on device",
    ],
)
def test_a_server_that_is_busy_is_asked_again_after_a_pause(text: str) -> None:
    driven = Driven().say(text)

    assert driven.sleep() > 0
    assert driven.sending() == PLAIN


@pytest.mark.parametrize(
    "text",
    [
        "READONLY You can't write against a read only replica.",
        "CLUSTERDOWN The cluster is down",
        "MASTERDOWN Link with MASTER is down",
        "ERR Error running script: -READONLY You can't write against a read only replica.",
    ],
)
def test_a_server_that_is_no_primary_is_looked_up_anew_after_a_pause(text: str) -> None:
    driven = Driven().say(text)

    driven.refresh()
    assert driven.sleep() > 0
    assert driven.sending() == PLAIN


def test_a_full_server_is_told_apart() -> None:
    driven = Driven().say("OOM command not allowed when used memory > 'maxmemory'.")

    assert type(driven.error) is ServerFull
    assert (driven.error.operation, driven.error.key) == ("locks/test", "the-key")
    assert len(driven.sent) == 1


@pytest.mark.parametrize("text", ["NOAUTH Authentication required.", "WRONGPASS invalid", "NOPERM no permissions"])
def test_missing_rights_are_a_matter_of_configuration(text: str) -> None:
    driven = Driven().say(text)

    assert type(driven.error) is NotPermitted
    assert text in str(driven.error)
    assert len(driven.sent) == 1


@pytest.mark.parametrize("text", ["ERR unknown command", "WRONGTYPE Operation against a key", "BUSYKEY x", "", "ERR"])
def test_any_other_error_is_reported_and_not_repeated(text: str) -> None:
    driven = Driven().say(text)

    assert type(driven.error) is ServerError
    assert text in str(driven.error)
    assert driven.error.operation == "locks/test"
    assert len(driven.sent) == 1


@pytest.mark.parametrize("text", ["ASK", "ASK 3999", "ASK 3999 nowhere", "ASK 3999 host:port"])
def test_a_redirection_that_cannot_be_read_is_reported(text: str) -> None:
    driven = Driven().say(text)

    assert type(driven.error) is ServerError
    assert text in str(driven.error)


def test_a_redirection_without_a_host_is_to_another_port_of_the_same_one() -> None:
    driven = Driven().say("ASK 3999 :6381")
    topology = Topology(parse("redis://10.0.0.7:6379", {}), connect_timeout=1, call_timeout=1, client_name="x")

    assert isinstance(driven.effect, Send)
    assert topology.place(driven.effect.node, "locks.1") == ("10.0.0.7", 6381)


# -- no answer --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("retry", ["safe", "opid", "never"])
def test_what_was_not_sent_is_sent_again(retry: str) -> None:
    # Nothing was executed, so this holds for every script.
    driven = Driven(retry).fail(NotSent("cannot connect"))

    driven.refresh()
    driven.sleep()
    assert driven.sending() == PLAIN
    assert driven.answer([b"ok"]).result == [b"ok"]


@pytest.mark.parametrize("retry", ["safe", "opid"])
def test_a_lost_reply_of_what_may_be_repeated_is_asked_for_again(retry: str) -> None:
    lost: list[ReplyLost] = []
    problem = ReplyLost("no reply in time")
    driven = Driven(retry, lost=lost).fail(problem)

    driven.sleep()
    assert driven.sending() == PLAIN, "the same request, with the same token or operation id"
    assert driven.answer([b"ok"]).result == [b"ok"]
    assert lost == [problem], "the caller is told that an earlier attempt may be what the answer speaks of"


def test_a_lost_reply_of_what_must_not_be_repeated_is_unknown_and_was_sent_once() -> None:
    problem = ReplyLost("no reply in time")
    driven = Driven("never").fail(problem)

    assert type(driven.error) is Indeterminate
    assert driven.error.__cause__ is problem
    assert len(driven.sent) == 1
    assert (driven.error.operation, driven.error.key) == ("locks/test", "the-key")
    assert driven.error.elapsed is not None


def test_a_request_that_was_redirected_goes_back_to_the_owner_after_a_loss() -> None:
    driven = Driven().say("ASK 3999 127.0.0.1:6381").fail(ReplyLost("cut"))

    driven.sleep()
    assert driven.sending() == PLAIN


# -- time is up -------------------------------------------------------------------------------------------------------


def test_time_is_up_and_nothing_was_executed() -> None:
    driven = Driven(until=101.0)
    driven.clock.now = 101.5
    problem = NotSent("cannot connect")
    driven.fail(problem)
    driven.refresh()

    assert type(driven.error) is Unavailable
    assert driven.error.__cause__ is problem
    assert "cannot connect" in str(driven.error)
    assert (driven.error.operation, driven.error.key, driven.error.elapsed) == ("locks/test", "the-key", 1.5)


@pytest.mark.parametrize("text", ["LOADING x", "TRYAGAIN x", "BUSY x", "READONLY x", "CLUSTERDOWN x"])
def test_time_is_up_and_the_server_said_that_it_did_not_act(text: str) -> None:
    driven = Driven(until=101.0)
    driven.clock.now = 101.5
    driven.say(text)
    if isinstance(driven.effect, Refresh):
        driven.refresh()

    assert type(driven.error) is Unavailable
    assert text in str(driven.error)


def test_time_is_up_and_the_server_only_wants_the_text_of_the_script() -> None:
    driven = Driven(until=101.0)
    driven.clock.now = 101.5
    driven.say("NOSCRIPT x")
    # expect it to be sent along, once more; but not for ever
    assert isinstance(driven.effect, Send)
    driven.say("NOSCRIPT x")
    assert type(driven.error) is Unavailable


def test_time_is_up_and_a_reply_was_lost() -> None:
    driven = Driven(until=101.0)
    driven.clock.now = 101.5
    driven.fail(ReplyLost("no reply in time"))

    assert type(driven.error) is Indeterminate
    assert driven.error.elapsed == 1.5


def test_time_is_up_and_a_reply_was_lost_long_ago() -> None:
    # Given a lost reply, and after it a server that cannot even be reached
    driven = Driven(until=101.0).fail(ReplyLost("no reply in time"))
    driven.sleep()
    driven.clock.now = 101.5
    driven.fail(NotSent("cannot connect"))
    driven.refresh()

    # expect that the first attempt is not forgotten
    assert type(driven.error) is Indeterminate


@pytest.mark.parametrize("text", ["OOM command not allowed", "NOPERM no", "NOAUTH no"])
def test_a_refusal_after_a_lost_reply_does_not_say_that_nothing_happened(text: str) -> None:
    # Given an attempt that may have been executed, and one that was refused before it was
    driven = Driven("opid").fail(ReplyLost("no reply in time"))
    driven.sleep()
    driven.say(text)

    # expect neither of the errors that promise that nothing was done
    assert not isinstance(driven.error, (Unavailable, ConfigurationError))


def test_an_attempt_is_not_made_long_after_the_time_is_up() -> None:
    # Given little time left
    driven = Driven(until=100.0078125)

    driven.say("LOADING x")
    driven.sleep()

    assert driven.clock.now == 100.0078125, "it does not sleep past its time"


# -- every sequence ---------------------------------------------------------------------------------------------------

STEPS: dict[str, Callable[[Driven], Any]] = {
    "not sent": lambda driven: driven.fail(NotSent("x")),
    "reply lost": lambda driven: driven.fail(ReplyLost("x")),
    "noscript": lambda driven: driven.say("NOSCRIPT x"),
    "moved": lambda driven: driven.say("MOVED 1 h:1"),
    "ask": lambda driven: driven.say("ASK 1 h:1"),
    "loading": lambda driven: driven.say("LOADING x"),
    "readonly": lambda driven: driven.say("READONLY x"),
    "time is up": lambda driven: setattr(driven.clock, "now", 200.0),
}


@pytest.mark.parametrize("retry", ["safe", "opid", "never"])
def test_every_sequence_of_troubles_ends_honestly(retry: str) -> None:
    # Given every way in which four attempts can go wrong
    for steps in itertools.product(STEPS, repeat=4):
        driven, lost = after(retry, steps)
        where = f"{retry}: {', '.join(steps)}"

        # expect that what may not be repeated is not sent again once a reply was lost,
        if retry == "never" and lost:
            assert type(driven.error) is Indeterminate, where
        # that an error says "nothing happened" only if that is sure,
        if driven.error is not None:
            assert type(driven.error) is (Indeterminate if lost else Unavailable), where
        else:
            assert isinstance(driven.effect, Send), where
        # and that every attempt asks for the same thing.
        assert all(send.payload.endswith((PLAIN, WHOLE)) for send in driven.sent), where


def after(retry: str, steps: tuple[str, ...]) -> tuple[Driven, bool]:
    """A call to which all this happened, and whether one of its replies was lost."""
    driven, lost = Driven(retry), False
    for step in steps:
        if driven.effect is not None:
            STEPS[step](driven)
            lost = lost or step == "reply lost"
        while isinstance(driven.effect, (Sleep, Refresh)):
            driven.sleep() if isinstance(driven.effect, Sleep) else driven.refresh()
    return driven, lost


@pytest.mark.parametrize("text", ["MOVED 1 h:1", "ASK 1 h:1", "NOSCRIPT x"])
def test_redirections_without_end_do_not_spin(text: str) -> None:
    # Given a server that sends us round in circles
    driven = Driven(until=110.0)
    for _ in range(2000):
        if driven.effect is None:
            break
        if isinstance(driven.effect, Sleep):
            driven.sleep()
        elif isinstance(driven.effect, Refresh):
            driven.refresh()
        else:
            driven.say(text)

    assert type(driven.error) is Unavailable
    assert driven.clock.now >= 110.0, "the pauses took up the time"
    assert len(driven.sent) < 60


# -- the pause --------------------------------------------------------------------------------------------------------


def test_pauses_grow_up_to_a_limit() -> None:
    for attempt in range(60):
        most = min(BACKOFF_MOST, BACKOFF_FIRST * 2**attempt)
        assert all(most / 2 <= backoff(attempt) <= most for _ in range(20))


def test_pauses_differ_so_that_a_fleet_does_not_return_as_one() -> None:
    assert len({backoff(3) for _ in range(100)}) > 50


def test_pauses_follow_the_attempts() -> None:
    driven = Driven(until=10_000.0)
    slept = []
    for _ in range(12):
        driven.say("LOADING x")
        slept.append(driven.sleep())

    for attempt, seconds in enumerate(slept):
        assert seconds <= min(BACKOFF_MOST, BACKOFF_FIRST * 2**attempt)
    assert min(slept[-4:]) >= BACKOFF_MOST / 2


def test_the_pause_after_a_very_long_outage_is_the_longest_one() -> None:
    assert BACKOFF_MOST / 2 <= backoff(1024) <= BACKOFF_MOST
    assert BACKOFF_MOST / 2 <= backoff(1_000_000) <= BACKOFF_MOST


# -- a server that accepts and never answers (PITFALL 45) -------------------------------------------------------------


class Silent:
    """Completes the handshake, then takes every command and answers none."""

    HANDSHAKE = (b"CLIENT", b"HELLO", b"SELECT", b"AUTH")

    def __init__(self, answer: Callable[[list[bytes], int], bytes] | None = None) -> None:
        self.answer = answer or (lambda _command, _count: b"")
        self.seen: list[list[bytes]] = []
        self._lines: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for line in self._lines:
            line.transport.abort()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._lines.append(writer)
        parser = hiredis.Reader()
        try:
            while data := await reader.read(65536):
                parser.feed(data)
                while (command := parser.gets()) is not False:
                    if command[0] in self.HANDSHAKE:
                        writer.write(b"+OK\r\n")
                    else:
                        self.seen.append(command)
                        writer.write(self.answer(command, len(self.seen)))
        except ConnectionError:
            pass
        finally:
            writer.transport.abort()

    def copies(self) -> int:
        return sum(command[:2] == [b"EVALSHA", SHA] for command in self.seen)

    def topology(self, timeout: float) -> Topology:
        # With everything switched on in the URL that makes redis-py repeat commands.
        url = f"redis://127.0.0.1:{self.port}?retry_on_timeout=yes&health_check_interval=1"
        return Topology(parse(url, {}), connect_timeout=2.0, call_timeout=timeout, client_name="test")


def counted(flow: Flow[Any], sends: list[Send]) -> Flow[Any]:
    """The same flow, with what it sends written down."""
    value: Any = None
    problem: BaseException | None = None
    while True:
        try:
            effect = flow.throw(problem) if problem else flow.send(value)
        except StopIteration as stop:
            return stop.value
        if isinstance(effect, Send):
            sends.append(effect)
        value = problem = None
        try:
            value = yield effect
        except (NotSent, ReplyLost) as error:
            problem = error


TIMEOUT = 0.08
"""For servers that never answer; those that do get more than they need."""


@contextmanager
def drivers(kind: str, server: Silent, timeout: float = 10.0) -> Iterator[tuple[Any, Callable[[Flow[Any]], Any]]]:
    """A driver of this kind, and a coroutine function that runs a flow on it."""
    if kind == "asyncio":
        driver = AsyncDriver(server.topology(timeout), Mailbox(), timeout=timeout, in_flight=100)
        yield driver, driver.run
    else:
        keeper: Any = None
        blocking = ThreadDriver(server.topology(timeout), Mailbox(), keeper, timeout=timeout, after_fork=lambda: None)
        try:
            yield blocking, lambda flow: asyncio.to_thread(blocking.run, flow)
        finally:
            blocking.close()


async def closed(driver: Any) -> None:
    if isinstance(driver, AsyncDriver):
        await driver.close()


@pytest.mark.parametrize("kind", ["asyncio", "threads"])
@pytest.mark.parametrize("retry", ["safe", "opid", "never"])
async def test_nothing_is_sent_more_often_than_the_flow_says(kind: str, retry: str) -> None:
    # Given a server that never answers
    async with Silent() as server:
        with drivers(kind, server, TIMEOUT) as (driver, run):
            sends: list[Send] = []
            flow = call(script(retry), TAG, ("key",), ("arg",), clock=time.monotonic, until=time.monotonic() + 0.3)

            # when a script is called
            with pytest.raises(Indeterminate):
                await run(counted(flow, sends))
            await closed(driver)

        # expect as many copies as the flow sent itself, and one only where one is allowed
        assert server.copies() == len(sends)
        assert len(sends) == 1 if retry == "never" else len(sends) >= 2
        assert [command for command in server.seen if command[0] != b"EVALSHA"] == []


@pytest.mark.parametrize("kind", ["asyncio", "threads"])
async def test_a_connection_cut_after_the_request_does_not_repeat_it_below_us(kind: str) -> None:
    # Given a server that takes the request and hangs up
    def cut(_command: list[bytes], _count: int) -> bytes:
        server._lines[-1].transport.abort()
        return b""

    async with Silent(cut) as server:
        with drivers(kind, server) as (driver, run):
            flow = call(script("never"), TAG, (), (), clock=time.monotonic, until=time.monotonic() + 5)
            with pytest.raises(Indeterminate):
                await run(flow)
            await closed(driver)

        assert server.copies() == 1


@pytest.mark.parametrize("kind", ["asyncio", "threads"])
async def test_error_replies_are_followed_to_the_end(kind: str) -> None:
    # Given a server with every passing trouble in turn
    troubles = [
        b"-LOADING wait\r\n",
        b"-TRYAGAIN wait\r\n",
        b"-READONLY replica\r\n",
        b"-BUSY script\r\n",
        b"-CLUSTERDOWN wait\r\n",
        b"-NOSCRIPT no\r\n",
        b"+" + SHA + b"\r\n",
        b"*1\r\n$2\r\nok\r\n",
    ]

    async with Silent(lambda _command, count: troubles[count - 1]) as server:
        with drivers(kind, server) as (driver, run):
            flow = call(script("never"), TAG, (), (), clock=time.monotonic, until=time.monotonic() + 10)
            assert await run(flow) == [b"ok"]
            await closed(driver)

        assert [command[0] for command in server.seen] == [b"EVALSHA"] * 6 + [b"SCRIPT", b"EVALSHA"]


@pytest.mark.parametrize("kind", ["asyncio", "threads"])
async def test_a_slot_on_its_way_is_asked_for_on_one_connection(kind: str) -> None:
    # Given an owner that redirects to another node
    async with Silent(lambda command, _count: b"+OK\r\n" if command[0] == b"ASKING" else b"*1\r\n+ok\r\n") as there:
        ask = b"-ASK 1 127.0.0.1:%d\r\n" % there.port
        async with Silent(lambda _command, _count: ask) as owner:
            with drivers(kind, owner) as (driver, run):
                flow = call(script(), TAG, (), (), clock=time.monotonic, until=time.monotonic() + 5)
                assert await run(flow) == [b"ok"]
                await closed(driver)

        assert [command[0] for command in there.seen] == [b"ASKING", b"EVALSHA"]


def get(word: bytes) -> Flow[Any]:
    return (yield Send(TAG, pack(b"GET", word)))


def fails_at_once() -> Flow[Any]:
    yield from ()
    raise ConfigurationError("pass something else")


def ends_at_once() -> Flow[Any]:
    yield from ()
    return "nothing to ask"


def together(*flows: Flow[Any]) -> Flow[Any]:
    return (yield Together(flows))


async def echoed(kind: str, *flows: Flow[Any]) -> Any:
    """What several flows answer together, on a server that answers what it is asked for."""
    async with Silent(lambda command, _count: b"+%s\r\n" % command[1]) as server:
        with drivers(kind, server) as (driver, run):
            try:
                return await run(together(*flows))
            finally:
                await closed(driver)


@pytest.mark.parametrize("kind", ["asyncio", "threads"])
async def test_flows_that_run_together_each_get_their_own(kind: str) -> None:
    words = [b"%d" % n for n in range(600)]

    assert await echoed(kind, *map(get, words)) == words


@pytest.mark.parametrize("kind", ["asyncio", "threads"])
async def test_a_flow_that_ends_before_it_asks_takes_none_of_the_others_along(kind: str) -> None:
    first, failed, ended, last = await echoed(kind, get(b"a"), fails_at_once(), ends_at_once(), get(b"b"))

    assert (first, ended, last) == (b"a", "nothing to ask", b"b")
    assert isinstance(failed, ConfigurationError)


async def test_a_server_that_nobody_can_reach_is_unavailable() -> None:
    # Given a port where somebody was
    async with Silent() as server:
        where = server.topology(TIMEOUT)
    driver = AsyncDriver(where, Mailbox(), timeout=TIMEOUT, in_flight=10)
    try:
        with pytest.raises(Unavailable, match="check that the server is up and reachable; nothing was done"):
            await driver.run(call(script("never"), TAG, (), (), clock=time.monotonic, until=time.monotonic() + 0.2))
    finally:
        await driver.close()


# -- a real server that forgets its scripts (PITFALL 46) --------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    embedded = EmbeddedServer.open("embedded:")
    yield embedded
    embedded.close()


@pytest.fixture
def admin(server: EmbeddedServer) -> Iterator[redis.Redis]:
    with redis.Redis(unix_socket_path=server.socket_path) as client:
        yield client


@pytest.fixture
async def client(server: EmbeddedServer) -> AsyncIterator[tuple[Holdfast, list[Event]]]:
    events: list[Event] = []
    async with Holdfast(f"unix://{server.socket_path}", observers=[events.append]) as hf:
        yield hf, events


async def test_a_flush_between_calls_is_not_noticed(client: Any, admin: redis.Redis) -> None:
    hf, _ = client
    for number in range(5):
        admin.script_flush()
        lease = await hf.lock(f"flush-{number}").acquire()
        admin.script_flush()
        assert (await hf.inspect(f"flush-{number}")).held
        admin.script_flush()
        await lease.release()
        assert not (await hf.inspect(f"flush-{number}")).held


async def test_a_flush_under_many_callers_costs_none_of_them(client: Any, admin: redis.Redis) -> None:
    hf, _ = client

    async def work(number: int) -> int:
        async with hf.lock(f"many-{number}") as lease:
            if number % 10 == 0:
                await asyncio.to_thread(admin.script_flush)
            return int(lease.fence)

    fences = await asyncio.gather(*(work(number) for number in range(100)))

    assert all(fences)


async def test_a_flush_does_not_cost_a_lease_its_renewal(client: Any, admin: redis.Redis) -> None:
    hf, events = client
    lease = await hf.lock("renewed", ttl=0.5).acquire()
    admin.script_flush()

    deadline = time.monotonic() + 10
    while not any(isinstance(event, Renewed) for event in events) and not lease.lost:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)

    assert not lease.lost
    await lease.release()


def test_a_flush_is_not_noticed_by_the_blocking_twin(server: EmbeddedServer, admin: redis.Redis) -> None:
    with holdfast.sync.Holdfast(f"unix://{server.socket_path}") as hf:
        for number in range(3):
            admin.script_flush()
            with hf.lock(f"sync-{number}") as lease:
                admin.script_flush()
                assert lease.fence
        admin.script_flush()
        assert all(lease is not None for lease in hf.acquire_many([f"batch-{n}" for n in range(20)]))


async def test_every_script_is_sent_by_its_digest_and_loaded_once(client: Any, admin: redis.Redis) -> None:
    # Given an empty cache and the server's own counts
    hf, _ = client
    admin.script_flush()
    admin.config_resetstat()

    for number in range(10):
        async with hf.lock(f"counted-{number}"):
            pass

    calls = {name: stat["calls"] for name, stat in admin.info("commandstats").items()}
    assert calls["cmdstat_script|load"] == 2, "acquire and release"
    assert calls["cmdstat_evalsha"] == 22, "twice ten, and the two that found no script"
    assert "cmdstat_eval" not in calls, "what EVAL loads may be evicted"
    assert Scripts().get("locks/acquire").sha.decode() in sha_of_loaded(admin)


def sha_of_loaded(admin: redis.Redis) -> list[str]:
    names = ["locks/acquire", "locks/release"]
    shas = [Scripts().get(name).sha.decode() for name in names]
    return [sha for sha, there in zip(shas, admin.script_exists(*shas), strict=True) if there]
