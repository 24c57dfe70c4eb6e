"""One connection for many callers: replies reach whoever asked, and nobody else, whatever the server does (PITFALL 8).

The server here does what a test tells it, by hand: a real one cannot be made to answer late, cut or out of turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace, TracebackType
from typing import Any, Self

import hiredis
import pytest

from holdfast.engine.aio import AsyncDriver
from holdfast.engine.flow import Flow, NotSent, ReplyLost, Send
from holdfast.engine.mux import EARLY, MuxConnection
from holdfast.engine.resp import pack
from holdfast.engine.signals import Mailbox
from holdfast.engine.threads import ThreadDriver
from holdfast.engine.topology import Topology
from holdfast.engine.url import parse
from support.conditions import until

HANDSHAKE = {b"CLIENT", b"HELLO", b"SELECT", b"AUTH"}


class Peer:
    """A server that reads, remembers, and answers only what it is told to, or what `answer` says."""

    def __init__(self, answer: Callable[[list[bytes]], bytes] | None = None) -> None:
        self.answer = answer
        self.seen: list[list[bytes]] = []
        self.chunks: list[bytes] = []
        self.lines: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for line in self.lines:
            line.transport.abort()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.lines.append(writer)
        parser = hiredis.Reader()
        try:
            while data := await reader.read(65536):
                self.chunks.append(data)
                parser.feed(data)
                while (command := parser.gets()) is not False:
                    if command[0] in HANDSHAKE:
                        writer.write(b"+OK\r\n")
                        continue
                    self.seen.append(command)
                    if self.answer is not None:
                        writer.write(self.answer(command))
        except ConnectionError:
            pass
        finally:
            writer.transport.abort()

    async def saw(self, count: int) -> None:
        await until(lambda: len(self.seen) >= count, what=f"{count} requests at the server, not {self.seen}")

    def say(self, data: bytes, line: int = -1) -> None:
        self.lines[line].write(data)

    def hang_up(self) -> None:
        self.lines[-1].transport.abort()

    def end(self) -> None:
        """In an orderly way, after what was said."""
        self.lines[-1].close()


class Tap:
    """Stands before a transport and writes down what it is given to send."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.writes: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.writes.append(data)
        self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Line:
    """A multiplexed connection to a peer."""

    def __init__(self, peer: Peer, mux: MuxConnection, tap: Tap) -> None:
        self.peer = peer
        self.mux = mux
        self.tap = tap

    def ask(self, word: bytes, **options: Any) -> asyncio.Future[Any]:
        return self.mux.send(pack(b"GET", word), **options)


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    async with Peer() as peer:
        yield peer


@pytest.fixture
async def connect(peer: Peer) -> AsyncIterator[Callable[..., Any]]:
    made: list[MuxConnection] = []

    async def make(timeout: float = 5.0, in_flight: int = 1000, **options: Any) -> Line:
        reader, writer = await asyncio.open_connection("127.0.0.1", peer.port)
        tap = Tap(writer.transport)
        mux = MuxConnection(timeout=timeout, in_flight=in_flight, **options)
        mux.adopt(SimpleNamespace(_reader=reader, _writer=SimpleNamespace(transport=tap, writer=writer)))
        made.append(mux)
        await until(lambda: peer.lines, what="accepted")
        return Line(peer, mux, tap)

    yield make
    for mux in made:
        mux.abort(NotSent("the test is over"))
    await asyncio.sleep(0)


def simple(*words: bytes) -> bytes:
    return b"".join(b"+%s\r\n" % word for word in words)


async def outcome(future: asyncio.Future[Any]) -> Any:
    """The reply, or the error that came instead of it. A future that stays open is a failure of the test."""
    async with asyncio.timeout(5):
        try:
            return await future
        except (NotSent, ReplyLost) as error:
            return error


# -- sending ----------------------------------------------------------------------------------------------------------


async def test_what_is_sent_in_one_turn_leaves_in_one_write(connect: Any, peer: Peer) -> None:
    # Given a connection in use, and fewer requests than are written early
    line = await in_use(connect)
    words = [b"%d" % n for n in range(EARLY - 1)]

    # when they are sent in one turn of the loop
    futures = [line.ask(word) for word in words]
    assert line.tap.writes == []
    await peer.saw(1 + len(words))

    # expect one write with all of them, in order
    assert len(line.tap.writes) == 1
    assert peer.seen[1:] == [[b"GET", word] for word in words]
    peer.say(simple(b"before", *words))
    assert await asyncio.gather(*futures) == words


async def test_on_an_idle_connection_one_more_write_at_the_most(connect: Any, peer: Peer) -> None:
    # The first request may leave at once: the server works while the others are still being made.
    line = await connect()

    futures = [line.ask(b"%d" % n) for n in range(EARLY - 1)]
    await peer.saw(len(futures))

    assert len(line.tap.writes) <= 2
    peer.say(simple(*(b"%d" % n for n in range(len(futures)))))
    assert await asyncio.gather(*futures) == [b"%d" % n for n in range(len(futures))]


async def test_many_requests_start_to_leave_before_the_turn_ends(connect: Any, peer: Peer) -> None:
    line = await in_use(connect)

    futures = [line.ask(b"%d" % n) for n in range(EARLY * 2 + 3)]

    assert len(line.tap.writes) == 2, "the server works while the rest is being made"
    await peer.saw(1 + len(futures))
    assert len(line.tap.writes) == 3
    peer.say(simple(b"before", *(b"%d" % n for n in range(len(futures)))))
    assert await asyncio.gather(*futures) == [b"%d" % n for n in range(len(futures))]


async def in_use(connect: Any) -> Line:
    """A connection on which one request, `before`, is under way."""
    line: Line = await connect()
    line.ask(b"before")
    await line.peer.saw(1)
    line.tap.writes.clear()
    return line


async def test_the_next_turn_is_another_write(connect: Any, peer: Peer) -> None:
    line = await connect()

    first = line.ask(b"a")
    await peer.saw(1)
    second = line.ask(b"b")
    await peer.saw(2)

    assert len(line.tap.writes) == 2
    peer.say(simple(b"a", b"b"))
    assert [await first, await second] == [b"a", b"b"]


async def test_nothing_is_sent_on_a_closed_connection(connect: Any, peer: Peer) -> None:
    line = await connect()
    line.mux.abort(NotSent("closed"))

    with pytest.raises(NotSent):
        line.ask(b"a")

    assert peer.seen == []


# -- receiving --------------------------------------------------------------------------------------------------------


async def test_replies_reach_their_callers_in_order(connect: Any, peer: Peer) -> None:
    line = await connect()
    futures = [line.ask(b"%d" % n) for n in range(100)]
    await peer.saw(100)

    # when the replies come in several pieces, the first of them alone
    peer.say(simple(b"0"))
    assert await futures[0] == b"0"
    assert not futures[1].done()
    peer.say(simple(*(b"%d" % n for n in range(1, 100))))

    assert await asyncio.gather(*futures[1:]) == [b"%d" % n for n in range(1, 100)]


REPLIES = b"+one\r\n$5\r\ntw\r\no\r\n*2\r\n:3\r\n$-1\r\n-ERR four\r\n"


@pytest.mark.parametrize("cut", range(1, len(REPLIES)))
async def test_replies_may_be_cut_anywhere(connect: Any, cut: int) -> None:
    # Given four requests and replies of every kind
    line = await connect()
    futures = [line.ask(b"%d" % n) for n in range(4)]

    # when they come in two pieces
    line.mux.data_received(REPLIES[:cut])
    line.mux.data_received(REPLIES[cut:])

    # expect each caller to get its own
    one, two, three, four = await asyncio.gather(*futures)
    assert (one, two, three) == (b"one", b"tw\r\no", [3, None])
    assert isinstance(four, hiredis.ReplyError)
    assert str(four) == "ERR four"


async def test_an_error_reply_is_an_answer_and_closes_nothing(connect: Any, peer: Peer) -> None:
    line = await connect()
    first, second = line.ask(b"a"), line.ask(b"b")
    await peer.saw(2)

    peer.say(b"-NOSCRIPT no\r\n+b\r\n")

    assert isinstance(await first, hiredis.ReplyError)
    assert await second == b"b"
    assert not line.mux.closed


async def test_of_several_replies_to_one_request_the_last_is_answered(connect: Any, peer: Peer) -> None:
    # Given one request of two commands (a script is loaded and called) between two others
    line = await connect()
    before, both, after = line.ask(b"a"), line.mux.send(pack(b"GET", b"b1") + pack(b"GET", b"b2"), 2), line.ask(b"c")
    await peer.saw(4)

    peer.say(simple(b"a", b"b1"))
    assert await before == b"a"
    assert not both.done()
    peer.say(simple(b"b2", b"c"))

    assert (await both, await after) == (b"b2", b"c")


# -- callers that give up ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before it is written", "after it is written", "with half of its reply there"])
async def test_a_cancelled_caller_leaves_the_line_in_step(connect: Any, peer: Peer, when: str) -> None:
    # Given three requests
    line = await connect()
    first, second, third = (line.ask(word) for word in (b"a", b"b", b"c"))
    if when != "before it is written":
        await peer.saw(3)
    if when == "with half of its reply there":
        peer.say(b"+a\r\n+")
        await first

    # when the second caller is cancelled, and the replies come
    second.cancel()
    await peer.saw(3)
    peer.say({"with half of its reply there": b"b\r\n+c\r\n"}.get(when, simple(b"a", b"b", b"c")))

    # expect the others to get their own
    assert (await first, await third) == (b"a", b"c")
    assert await after_that(line, b"d") == b"d"


async def after_that(line: Line, word: bytes) -> Any:
    """One more request and its reply, to see whether the line is still in step."""
    seen = len(line.peer.seen)
    future = line.ask(word)
    await line.peer.saw(seen + 1)
    line.peer.say(simple(word))
    return await outcome(future)


async def test_a_cancelled_caller_of_several_replies_leaves_the_line_in_step(connect: Any, peer: Peer) -> None:
    line = await connect()
    both = line.mux.send(pack(b"GET", b"a1") + pack(b"GET", b"a2"), 2)
    other = line.ask(b"b")
    await peer.saw(3)

    both.cancel()
    peer.say(simple(b"a1", b"a2", b"b"))

    assert await other == b"b"


async def test_a_task_cancelled_in_flight_leaves_the_line_in_step(connect: Any, peer: Peer) -> None:
    line = await connect()

    async def caller(word: bytes) -> Any:
        return await line.ask(word)

    tasks = [asyncio.create_task(caller(b"%d" % n)) for n in range(20)]
    await peer.saw(20)
    for task in tasks[::3]:
        task.cancel()
    peer.say(simple(*(b"%d" % n for n in range(20))))

    results = await asyncio.gather(*tasks, return_exceptions=True)
    for n, result in enumerate(results):
        assert isinstance(result, asyncio.CancelledError) if n % 3 == 0 else result == b"%d" % n


async def test_a_short_time_limit_leaves_the_line_in_step(connect: Any, peer: Peer) -> None:
    # Given a caller with little patience behind one with more
    line = await connect(timeout=30.0)
    patient, hasty, third = line.ask(b"a"), line.ask(b"b", timeout=0.05), line.ask(b"c")
    await peer.saw(3)

    # when its time is up first, and the server answers later
    with pytest.raises(ReplyLost, match="no reply in time"):
        await hasty
    assert not patient.done()
    peer.say(simple(b"a", b"b", b"c"))

    # expect that the late reply went to nobody
    assert (await patient, await third) == (b"a", b"c")
    assert not line.mux.closed


async def test_an_overdue_reply_ends_the_connection_for_everybody(connect: Any, peer: Peer) -> None:
    # Given a server that is silent
    line = await connect(timeout=0.05)
    first, second = line.ask(b"a"), line.ask(b"b", timeout=30.0)
    await peer.saw(2)

    # when the first reply is overdue
    assert isinstance(await outcome(first), ReplyLost)

    # expect that the one behind it is told at once, and that a late reply can reach nobody
    assert isinstance(await outcome(second), ReplyLost)
    assert line.mux.closed
    peer.say(simple(b"a", b"b"))
    with pytest.raises(NotSent):
        line.ask(b"c")


async def test_the_overdue_reply_of_a_cancelled_caller_ends_the_connection_too(connect: Any, peer: Peer) -> None:
    line = await connect(timeout=0.05)
    first, second = line.ask(b"a"), line.ask(b"b", timeout=30.0)
    await peer.saw(2)

    first.cancel()

    assert isinstance(await outcome(second), ReplyLost)
    assert line.mux.closed


async def test_a_slow_server_that_answers_in_time_is_not_given_up(connect: Any, peer: Peer) -> None:
    # Given answers that each come later than the sweep but before the time limit, and new requests all the while
    line = await connect(timeout=0.5)

    for n in range(4):
        future = line.ask(b"%d" % n)
        await peer.saw(n + 1)
        asyncio.get_running_loop().call_later(0.12, peer.say, simple(b"%d" % n))
        assert await outcome(future) == b"%d" % n

    assert not line.mux.closed


# -- servers that misbehave -------------------------------------------------------------------------------------------

GARBAGE = [
    b"hello\r\n",
    b"HTTP/1.1 400 Bad Request\r\n\r\n",
    b"\x00\x01\x02",
    b"\x16\x03\x01\x00\x02",
    b"$many\r\n",
    b"$-7\r\n",
    b"*-7\r\n",
    b":12x\r\n",
]


@pytest.mark.parametrize("garbage", GARBAGE)
async def test_garbage_ends_the_connection(connect: Any, peer: Peer, garbage: bytes) -> None:
    # Given two requests, the first of which was answered well
    line = await connect()
    first, second, third = line.ask(b"a"), line.ask(b"b"), line.ask(b"c")
    await peer.saw(3)

    peer.say(simple(b"a") + garbage + simple(b"c"))

    # expect that what came before it counts and nothing behind it does
    assert await first == b"a"
    for future in (second, third):
        problem = await outcome(future)
        assert isinstance(problem, ReplyLost)
        assert "cannot be read" in str(problem)
    assert line.mux.closed


async def test_a_boolean_that_a_server_should_not_send_does_not_put_the_line_out_of_step(
    connect: Any, peer: Peer
) -> None:
    line = await connect()
    first, _ = line.ask(b"a"), line.ask(b"b")
    await peer.saw(2)

    line.mux.data_received(b"#f\r\n")
    line.mux.data_received(simple(b"b"))

    line.mux.abort(ReplyLost("the test is over"))
    assert await outcome(first) != b"b", "the reply of another caller"


async def test_a_reply_that_nobody_asked_for_ends_the_connection(connect: Any, peer: Peer) -> None:
    line = await connect()
    first = line.ask(b"a")
    await peer.saw(1)

    peer.say(simple(b"a", b"surplus"))

    assert await first == b"a"
    await until(lambda: line.mux.closed, what="closed")
    with pytest.raises(NotSent):
        line.ask(b"b")


async def test_a_reply_before_any_request_reaches_nobody(connect: Any, peer: Peer) -> None:
    line = await connect()

    peer.say(simple(b"surplus"))

    await until(lambda: line.mux.closed, what="closed")
    with pytest.raises(NotSent):
        line.ask(b"a")


@pytest.mark.parametrize("half", [b"", b"+", b"+a", b"$10\r\nabc", b"*3\r\n+a\r\n"])
async def test_a_connection_cut_in_the_middle_of_a_reply_loses_it(connect: Any, peer: Peer, half: bytes) -> None:
    line = await connect()
    first, second = line.ask(b"a"), line.ask(b"b")
    await peer.saw(2)

    peer.say(half)
    peer.end()

    for future in (first, second):
        problem = await outcome(future)
        assert isinstance(problem, ReplyLost)
        assert "connection was lost" in str(problem)
    assert line.mux.closed


async def test_half_a_reply_and_then_silence_is_given_up_in_time(connect: Any, peer: Peer) -> None:
    line = await connect(timeout=0.05)
    future = line.ask(b"a")
    await peer.saw(1)

    peer.say(b"$10\r\nabc")

    assert isinstance(await outcome(future), ReplyLost)


# -- the end of a connection ------------------------------------------------------------------------------------------


async def test_abort_tells_what_was_sent_from_what_was_not(connect: Any, peer: Peer) -> None:
    # Given two requests that were written and two that were not yet
    line = await connect()
    sent = [line.ask(b"a"), line.ask(b"b")]
    await peer.saw(2)
    unsent = [line.ask(b"c"), line.ask(b"d")]

    line.mux.abort(ReplyLost("lost"))

    assert [type(await outcome(future)) for future in sent] == [ReplyLost, ReplyLost]
    assert [type(await outcome(future)) for future in unsent] == [NotSent, NotSent]
    assert peer.seen == [[b"GET", b"a"], [b"GET", b"b"]]


async def test_abort_after_an_early_write_tells_them_apart_too(connect: Any, peer: Peer) -> None:
    # Given so many in one turn that the first are written and the last are not
    line = await in_use(connect)
    futures = [line.ask(b"%d" % n) for n in range(EARLY + 3)]

    line.mux.abort(ReplyLost("lost"))

    kinds = [type(await outcome(future)) for future in futures]
    assert kinds == [ReplyLost] * EARLY + [NotSent] * 3


async def test_abort_after_some_replies_tells_them_apart_too(connect: Any, peer: Peer) -> None:
    line = await connect()
    first, second = line.ask(b"a"), line.ask(b"b")
    await peer.saw(2)
    peer.say(simple(b"a"))
    await first
    third = line.ask(b"c")

    line.mux.abort(ReplyLost("lost"))

    assert [type(await outcome(future)) for future in (second, third)] == [ReplyLost, NotSent]


async def test_abort_twice_is_abort_once(connect: Any) -> None:
    ended: list[MuxConnection] = []
    line = await connect(on_lost=ended.append)

    line.mux.abort(NotSent("one"))
    line.mux.abort(NotSent("two"))

    assert ended == [line.mux]


async def test_a_server_that_hangs_up_is_noticed_without_a_request(connect: Any, peer: Peer) -> None:
    ended: list[MuxConnection] = []
    line = await connect(on_lost=ended.append)

    peer.hang_up()

    await until(lambda: ended == [line.mux], what="told")
    assert line.mux.closed


async def test_close_waits_for_replies_that_are_expected(connect: Any, peer: Peer) -> None:
    # Given one request on its way and one that is not even written
    line = await connect()
    first = line.ask(b"a")
    await peer.saw(1)
    second = line.ask(b"b")

    # when the connection is closed
    closing = asyncio.create_task(line.mux.close())
    await peer.saw(2)
    assert not closing.done()
    peer.say(simple(b"a"))
    await first
    assert not closing.done()
    peer.say(simple(b"b"))

    # expect both answered, then the end
    assert await second == b"b"
    await closing
    assert line.mux.closed


async def test_close_without_anything_expected_is_immediate(connect: Any, peer: Peer) -> None:
    line = await connect()

    async with asyncio.timeout(1):
        await line.mux.close()
        await line.mux.close()

    assert line.mux.closed


async def test_close_does_not_wait_for_ever(connect: Any, peer: Peer) -> None:
    line = await connect(timeout=0.1)
    future = line.ask(b"a")
    await peer.saw(1)

    async with asyncio.timeout(2):
        await line.mux.close()

    assert isinstance(await outcome(future), (NotSent, ReplyLost))


async def test_close_does_not_say_of_what_was_sent_that_it_was_not(connect: Any, peer: Peer) -> None:
    # Given a request that the server has, and a reply that comes too late
    line = await connect(timeout=0.1)
    future = line.ask(b"a", timeout=30.0)
    await peer.saw(1)

    await line.mux.close()

    assert type(await outcome(future)) is ReplyLost


async def test_close_waits_although_the_last_caller_has_gone(connect: Any, peer: Peer) -> None:
    line = await connect()
    first, last = line.ask(b"a"), line.ask(b"b")
    await peer.saw(2)
    last.cancel()

    closing = asyncio.create_task(line.mux.close())
    asyncio.get_running_loop().call_later(0.05, peer.say, simple(b"a", b"b"))
    await closing

    assert await outcome(first) == b"a"


# -- back-pressure ----------------------------------------------------------------------------------------------------


def topology(port: int, timeout: float) -> Topology:
    target = parse(f"redis://127.0.0.1:{port}", {})
    return Topology(target, connect_timeout=2.0, call_timeout=timeout, client_name="test")


@pytest.fixture
async def driver(peer: Peer) -> AsyncIterator[Callable[..., AsyncDriver]]:
    made: list[AsyncDriver] = []

    def make(timeout: float = 5.0, in_flight: int = 1000) -> AsyncDriver:
        made.append(AsyncDriver(topology(peer.port, timeout), Mailbox(), timeout=timeout, in_flight=in_flight))
        return made[-1]

    yield make
    peer.hang_up() if peer.lines else None
    for one in made:
        await one.close()


def get(word: bytes) -> Flow[Any]:
    """The shortest operation there is: one request."""
    return (yield Send("locks.0", pack(b"GET", word)))


async def test_no_more_are_under_way_than_allowed(driver: Any, peer: Peer) -> None:
    # Given a limit of 4 and 30 callers
    one = driver(in_flight=4)
    tasks = [asyncio.create_task(one.run(get(b"%d" % n))) for n in range(30)]
    answered = 0

    # when the server answers one at a time, and only once the line is full
    while answered < 30:
        await peer.saw(min(30, answered + 4))
        await asyncio.sleep(0.002)
        assert len(peer.seen) - answered <= 4
        peer.say(simple(peer.seen[answered][1]))
        answered += 1

    # expect that every caller got its own
    assert await asyncio.gather(*tasks) == [b"%d" % n for n in range(30)]


async def test_who_waits_for_room_is_told_when_the_connection_ends(connect: Any, peer: Peer) -> None:
    line = await connect(in_flight=1)
    line.ask(b"a")
    waiting = asyncio.create_task(line.mux.room())
    await peer.saw(1)

    peer.hang_up()

    with pytest.raises(NotSent):
        await asyncio.wait_for(waiting, 2)


async def test_room_is_there_again_when_the_transport_has_drained(connect: Any) -> None:
    line = await connect()
    line.mux.pause_writing()
    waiting = asyncio.create_task(line.mux.room())
    await asyncio.sleep(0)
    assert line.mux.full
    assert not waiting.done()

    line.mux.resume_writing()

    await asyncio.wait_for(waiting, 2)


@pytest.mark.parametrize("when", ["before there is room", "as there is room"])
async def test_a_caller_that_goes_while_it_waits_for_room_holds_up_nobody(connect: Any, peer: Peer, when: str) -> None:
    # Given a full line and two callers who wait for room
    line = await connect(in_flight=1)
    first = line.ask(b"a")
    leaving, staying = (asyncio.create_task(line.mux.room()) for _ in range(2))
    await peer.saw(1)

    # when the one in front is cancelled, and there is room
    if when == "before there is room":
        leaving.cancel()
        await asyncio.sleep(0)
    line.mux.data_received(simple(b"a"))
    leaving.cancel()
    await first

    # expect the other to go on
    try:
        await asyncio.wait_for(staying, 0.3)
    finally:
        staying.cancel()


# -- the drivers ------------------------------------------------------------------------------------------------------


async def test_callers_share_one_connection(driver: Any, peer: Peer) -> None:
    peer.answer = lambda command: simple(command[1])
    one = driver()

    results = await asyncio.gather(*(one.run(get(b"%d" % n)) for n in range(200)))

    assert results == [b"%d" % n for n in range(200)]
    assert len(peer.lines) == 1


async def test_a_late_reply_never_reaches_the_next_caller(driver: Any, peer: Peer) -> None:
    # Given a server that lets the first request wait too long
    one = driver(timeout=0.4)
    with pytest.raises(ReplyLost):
        await one.run(get(b"first"))

    # when it answers after all, while the next request is under way
    following = asyncio.create_task(one.run(get(b"second")))
    await peer.saw(2)
    peer.say(simple(b"first"), line=0)
    peer.say(simple(b"second"), line=-1)

    # expect the next caller to get its own
    assert await following == b"second"
    assert len(peer.lines) == 2, "on another connection"


async def test_a_late_reply_never_reaches_the_next_caller_of_the_blocking_driver(peer: Peer) -> None:
    # Given the same on threads, where each call has a connection of its own that is used again
    where = topology(peer.port, 0.6)
    keeper: Any = None
    one = ThreadDriver(where, Mailbox(), keeper, timeout=0.6, after_fork=lambda: None)
    with pytest.raises(ReplyLost):
        await asyncio.to_thread(one.run, get(b"first"))

    peer.answer = lambda command: simple(command[1])
    peer.say(simple(b"first"), line=0)
    await until(peer.lines[0].transport.is_closing, what="the overdue connection closed")

    assert await asyncio.to_thread(one.run, get(b"second")) == b"second"
    assert await asyncio.to_thread(one.run, get(b"third")) == b"third"
    assert len(peer.lines) == 2, "the overdue one was closed, the next one used twice"
    one.close()


@pytest.mark.parametrize("said", [*GARBAGE[:3], b"+half", b"$10\r\nabc"])
async def test_the_blocking_driver_gives_a_connection_up_that_is_out_of_step(peer: Peer, said: bytes) -> None:
    where = topology(peer.port, 0.6)
    keeper: Any = None
    one = ThreadDriver(where, Mailbox(), keeper, timeout=0.6, after_fork=lambda: None)
    peer.answer = lambda command: said

    with pytest.raises(ReplyLost):
        await asyncio.to_thread(one.run, get(b"first"))

    peer.answer = lambda command: simple(command[1])
    assert await asyncio.to_thread(one.run, get(b"second")) == b"second"
    one.close()


async def test_a_reply_that_nobody_asked_for_does_not_reach_the_next_caller_of_the_blocking_driver(peer: Peer) -> None:
    keeper: Any = None
    one = ThreadDriver(topology(peer.port, 1.5), Mailbox(), keeper, timeout=1.5, after_fork=lambda: None)
    peer.answer = lambda command: simple(command[1], b"surplus")

    try:
        # Nobody can tell which of the two is the answer, so neither of them is.
        with pytest.raises(ReplyLost, match="nobody asked for"):
            await asyncio.to_thread(one.run, get(b"first"))
        peer.answer = lambda command: simple(command[1])
        assert await asyncio.to_thread(one.run, get(b"second")) == b"second"
        assert len(peer.lines) == 2, "on another connection"
    finally:
        one.close()


async def test_a_reply_that_comes_between_two_calls_does_not_reach_the_next_caller_of_the_blocking_driver(
    peer: Peer,
) -> None:
    keeper: Any = None
    one = ThreadDriver(topology(peer.port, 1.5), Mailbox(), keeper, timeout=1.5, after_fork=lambda: None)
    peer.answer = lambda command: simple(command[1])

    try:
        # Given a surplus reply that has arrived before the next request leaves
        assert await asyncio.to_thread(one.run, get(b"first")) == b"first"
        peer.say(simple(b"surplus"))
        await asyncio.sleep(0.05)

        # when the answer to that one takes its time
        peer.answer = lambda command: b""
        following = asyncio.create_task(asyncio.to_thread(one.run, get(b"second")))
        await peer.saw(2)
        await asyncio.sleep(0.05)
        peer.say(simple(b"second"))

        # expect the caller to get its own
        assert await following == b"second"
    finally:
        one.close()


async def test_a_caller_cancelled_in_flight_takes_no_reply_from_others(driver: Any, peer: Peer) -> None:
    one = driver()
    gone, stays = (asyncio.create_task(one.run(get(word))) for word in (b"gone", b"stays"))
    await peer.saw(2)

    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    peer.say(simple(b"gone", b"stays"))

    assert await stays == b"stays"
    assert len(peer.lines) == 1, "nothing was closed for it"


async def test_a_connection_that_ended_is_made_anew(driver: Any, peer: Peer) -> None:
    peer.answer = lambda command: simple(command[1])
    one = driver()
    assert await one.run(get(b"a")) == b"a"

    peer.hang_up()
    await until(lambda: all(shared.closed for shared in one._shared.values()), what="noticed")

    assert await one.run(get(b"b")) == b"b"


async def test_close_of_the_driver_waits_for_what_is_under_way(driver: Any, peer: Peer) -> None:
    one = driver()
    task = asyncio.create_task(one.run(get(b"a")))
    await peer.saw(1)

    closing = asyncio.create_task(one.close())
    await asyncio.sleep(0.02)
    assert not closing.done()
    peer.say(simple(b"a"))

    assert await task == b"a"
    await closing
