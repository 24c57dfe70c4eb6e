"""The client for URLs that others typed in: what it refuses to reach, and how long it can be held up (PITFALL 53)."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import gzip
import ipaddress
import logging
import socket
import time
import traceback
import tracemalloc
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import pytest
from http_endpoint import (
    Endpoint,
    answers,
    breaks_off,
    certificate,
    drips,
    drops,
    floods,
    hangs,
    late,
    redirects,
    writes,
)

from holdfast.errors import ConfigurationError
from holdfast.monitor import outgoing as module
from holdfast.monitor.addresses import closed, resolve
from holdfast.monitor.outgoing import Outgoing
from holdfast.monitor.record import DeliveryFailed
from holdfast.monitor.wire import Wire, connect
from support.conditions import until

SECRET = "T0KEN-hunter2"


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as running:
        yield running


@pytest.fixture
async def local() -> AsyncIterator[Outgoing]:
    """May reach the loopback, and nothing else that is private."""
    async with Outgoing(allow=["127.0.0.0/8"], timeout=5) as made:
        yield made


@pytest.fixture
async def strict() -> AsyncIterator[Outgoing]:
    async with Outgoing(timeout=2) as made:
        yield made


class Resolver:
    """Answers what it is told to, and counts."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, int]] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append((host, port))
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Any:
    def use(*answers: Sequence[str]) -> Resolver:
        resolver = Resolver(*answers)
        monkeypatch.setattr(module, "resolve", resolver)
        return resolver

    return use


def told(error: BaseException) -> str:
    """Everything that is printed of an error, its causes included."""
    lines = list(traceback.format_exception(error))
    seen: BaseException | None = error
    while seen is not None:
        lines += (str(seen), repr(seen), repr(seen.args))
        seen = seen.__cause__ or seen.__context__
    return "\n".join(lines)


# -- the request as it arrives ----------------------------------------------------------------------------------------


async def test_a_request_and_its_answer(local: Outgoing, endpoint: Endpoint) -> None:
    endpoint.always(answers(201, b"made", X_Thing="a"))

    answer = await local.request("POST", endpoint.url("/a b/ü?q=ü&r=%20".replace(" ", "%20")), content="héllo")

    assert (answer.status, answer.body, answer.headers["x-thing"]) == (201, b"made", "a")
    (got,) = endpoint.requests
    assert (got.method, got.path, got.body) == ("POST", "/a%20b/%C3%BC?q=%C3%BC&r=%20", "héllo".encode())
    assert got.headers["host"] == f"127.0.0.1:{endpoint.port}"
    assert got.headers["accept-encoding"] == "identity"


async def test_any_status_is_an_answer(local: Outgoing, endpoint: Endpoint) -> None:
    for status in (204, 304, 404, 500):
        endpoint.always(answers(status))
        assert (await local.request("GET", endpoint.url())).status == status


async def test_connections_are_used_again_and_bounded(local: Outgoing, endpoint: Endpoint) -> None:
    for _ in range(5):
        await local.request("GET", endpoint.url())
    assert endpoint.connections == 1

    await asyncio.gather(*(local.request("GET", endpoint.url()) for _ in range(100)))
    assert endpoint.connections <= 32
    assert len(endpoint.requests) == 105


async def test_a_connection_that_the_other_side_closed_is_not_used(local: Outgoing, endpoint: Endpoint) -> None:
    # Given a server that closes after its answer, without having said so
    def answers_and_closes(handler: Any) -> None:
        answers(200)(handler)
        handler.close_connection = True

    endpoint.always(answers_and_closes)

    for times in range(1, 4):
        assert (await local.request("GET", endpoint.url())).status == 200
        (way,) = local._ways.values()
        await until(lambda way=way: not any(wire.quiet() for wire in way._resting), what="the end is noticed")
        assert endpoint.connections == times


async def test_a_connection_with_something_unasked_is_not_used(local: Outgoing, endpoint: Endpoint) -> None:
    # Given an answer that is followed by a second one, which nobody asked for
    one = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"
    endpoint.next(writes(one + b"ok" + one + b"no"))

    first = await local.request("GET", endpoint.url())
    second = await local.request("GET", endpoint.url())

    assert (first.body, second.body) == (b"ok", b"")
    assert endpoint.connections == 2


async def test_cookies_and_proxies_are_not_used(
    local: Outgoing, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    endpoint.always(answers(200, Set_Cookie="id=1"))

    for _ in range(2):
        assert (await local.request("GET", endpoint.url())).status == 200

    assert all("cookie" not in got.headers for got in endpoint.requests)


@pytest.mark.parametrize("headers", [{"Host": "other"}, {"Content-Length": "1"}, {"A": "x\r\nB: y"}, {"a b": "x"}])
async def test_headers_that_would_change_the_request_are_refused(
    local: Outgoing, endpoint: Endpoint, headers: dict[str, str]
) -> None:
    with pytest.raises(ConfigurationError, match="header"):
        await local.request("GET", endpoint.url(), headers=headers)

    assert endpoint.requests == []


# -- URLs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "", "nonsense", "ftp://host/", "file:///etc/passwd", "https://", "https:///path", "https://host:99999/",
        "https://host:x/", "https://host:0/", "https://user:pw@host/", "https://user@host/", "https://@host/",
        "https://ho st/", "https://host/\n", "https://host\\@other/", "https://[::1/", "https://[fe80::1%25eth0]/",
        "https://127%2e0.0.1/", "https://-host/", "https://a..b/", "https://host/\ud800", "https://ex\u2024ample\u00ad..de/",
        None, b"https://host/",
    ],
)  # fmt: skip
async def test_what_is_no_usable_url_is_refused(strict: Outgoing, url: Any) -> None:
    with pytest.raises(ConfigurationError):
        await strict.request("GET", url)


@pytest.mark.parametrize(
    "url", ["http://example.com/", "http://localhost:1/", "http://10.0.0.1/", "HTTP://EXAMPLE.com/"]
)
async def test_only_https(strict: Outgoing, url: str) -> None:
    with pytest.raises(ConfigurationError, match="use https"):
        await strict.request("GET", url)


async def test_a_name_that_is_not_ascii(names: Any, endpoint: Endpoint, local: Outgoing) -> None:
    resolver = names(["127.0.0.1"])

    await local.request("GET", f"http://bücher.example:{endpoint.port}/")

    assert resolver.asked == [("xn--bcher-kva.example", endpoint.port)]
    assert endpoint.requests[0].headers["host"] == f"xn--bcher-kva.example:{endpoint.port}"


@pytest.mark.parametrize(
    ("allow", "fine", "refused"),
    [
        ("LocalHost.", "http://localhost:1/", "http://localhost.example:1/"),
        ("localhost:81", "http://localhost:81/", "http://localhost:82/"),
        ("10.0.0.1", "http://10.0.0.1:5/", "http://10.0.0.2/"),
        ("10.0.0.1:5", "http://10.0.0.1:5/", "http://10.0.0.1:6/"),
        ("10.0.0.0/8", "http://10.9.9.9/", "http://11.0.0.1/"),
        ("10.0.0.0/8", "http://[::ffff:10.9.9.9]/", "http://[::ffff:11.0.0.1]/"),
        ("fd00::/8", "http://[fd00::1]/", "http://[fe80::1]/"),
        ("[::1]:80", "http://[::1]/", "http://[::1]:81/"),
    ],
)
async def test_what_is_allowed(allow: str, fine: str, refused: str) -> None:
    async with Outgoing(allow=[allow]) as made:
        made.check(fine)
        with pytest.raises(ConfigurationError):
            made.check(refused)


@pytest.mark.parametrize("entry", ["", "http://host", "a b", "host:x", "host:0", "10.0.0.1/8/8", "*"])
async def test_allow_entries_that_mean_nothing_are_refused(entry: str) -> None:
    with pytest.raises(ConfigurationError, match="allow"):
        Outgoing(allow=[entry])


async def test_arguments_that_cannot_work_are_refused() -> None:
    for arguments in ({"allow": "localhost"}, {"timeout": 0}, {"max_bytes": 0}, {"verify": False}):
        with pytest.raises(ConfigurationError):
            Outgoing(**arguments)


# -- addresses --------------------------------------------------------------------------------------------------------

CLOSED = [
    "0.0.0.0", "0.1.2.3", "10.0.0.1", "10.255.255.255", "100.64.0.1", "100.127.255.254", "127.0.0.1", "127.255.0.1",
    "169.254.169.254", "169.254.0.1", "172.16.0.1", "172.31.255.255", "192.0.0.8", "192.0.2.1", "192.88.99.1",
    "192.168.0.1", "198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.1.1.1", "240.0.0.1",
    "255.255.255.255",
    "::", "::1", "::2", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254",
    "::ffff:0:127.0.0.1",
    "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "100::1", "2001::1", "2001:0:7f00:1::1", "2001:10::1",
    "2001:db8::1", "2002:7f00:1::", "2002:0a00:0001::1", "3fff::1", "5f00::1", "fc00::1", "fd00:ec2::254", "fe80::1",
    "fec0::1", "ff02::1",
]  # fmt: skip
OPEN = [
    "1.1.1.1", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "172.15.255.255", "172.32.0.0",
    "192.167.255.255", "223.255.255.255", "2606:4700:4700::1111", "2a00:1450::1", "::ffff:1.1.1.1", "64:ff9b::101:101",
]  # fmt: skip


@pytest.mark.parametrize("address", CLOSED)
async def test_an_address_that_is_not_public_is_refused(names: Any, strict: Outgoing, address: str) -> None:
    # As it stands in the URL, and as what a name leads to
    shown = f"[{address}]" if ":" in address else address
    with pytest.raises(ConfigurationError, match="allow"):
        await strict.request("GET", f"https://{shown}/")

    names([address])
    with pytest.raises(DeliveryFailed, match=r"put hooks\.example into allow") as refused:
        await strict.request("GET", "https://hooks.example/")
    assert refused.value.retry is False


@pytest.mark.parametrize("address", OPEN)
def test_public_addresses_are_not_refused(address: str) -> None:
    assert closed(ipaddress.ip_address(address)) == ""


@pytest.mark.parametrize(
    "host",
    ["2130706433", "0x7f000001", "0x7f.1", "127.1", "0177.0.0.1", "017700000001", "127.0.0.1.", "localhost", "0",
     "LOCALHOST", "①②⑦.⓪.⓪.①", "127。0。0。1"],
)  # fmt: skip
async def test_odd_spellings_of_the_loopback_are_found_out(endpoint: Endpoint, strict: Outgoing, host: str) -> None:
    # Given the system's resolver, which takes some of them for an address
    with pytest.raises((ConfigurationError, DeliveryFailed)) as refused:
        await strict.request("GET", f"https://{host}:{endpoint.port}/")

    assert "into allow" in str(refused.value)
    assert endpoint.connections == 0


async def test_one_private_address_among_public_ones_refuses_the_name(names: Any, strict: Outgoing) -> None:
    names(["1.1.1.1", "10.0.0.1"])

    with pytest.raises(DeliveryFailed, match=r"it resolves to 10\.0\.0\.1, which is private"):
        await strict.request("GET", "https://hooks.example/")


async def test_without_the_check_it_would_be_reached(
    endpoint: Endpoint, names: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given the safeguard off: what the tests above see is this check, and no other obstacle
    made = certificate("hooks.example")
    names(["127.0.0.1"])
    with Endpoint(certificate=made, name="hooks.example") as behind:
        async with Outgoing(verify=made.trusting(), timeout=5) as out:
            with pytest.raises(DeliveryFailed):
                await out.request("GET", behind.url())
            assert behind.connections == 0

            monkeypatch.setattr(module, "closed", lambda address: "")
            assert (await out.request("GET", behind.url())).status == 200


async def test_a_name_in_an_allowed_network_needs_no_tls(names: Any, endpoint: Endpoint, local: Outgoing) -> None:
    names(["127.0.0.1"], ["127.0.0.1", "1.1.1.1"])

    assert (await local.request("GET", f"http://a.example:{endpoint.port}/")).status == 200

    # but one of whose addresses only some are inside does
    with pytest.raises(DeliveryFailed, match="use https") as refused:
        await local.request("GET", f"http://b.example:{endpoint.port}/")
    assert refused.value.retry is False


async def test_an_allowed_name_may_lead_anywhere(names: Any, endpoint: Endpoint) -> None:
    names(["127.0.0.1"])
    async with Outgoing(allow=["intranet"]) as out:
        assert (await out.request("GET", f"http://intranet:{endpoint.port}/")).status == 200


# -- pinning ----------------------------------------------------------------------------------------------------------


async def test_the_connection_goes_to_what_was_checked(names: Any, endpoint: Endpoint, local: Outgoing) -> None:
    # Given a resolver that answers well once, and would then lead elsewhere
    resolver = names(["127.0.0.1"], ["10.0.0.1"])

    for _ in range(3):
        assert (await local.request("GET", f"http://hooks.example:{endpoint.port}/")).status == 200

    assert resolver.asked == [("hooks.example", endpoint.port)]


async def test_nobody_else_resolves(
    names: Any, endpoint: Endpoint, local: Outgoing, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given that any other question to a resolver is an error
    names(["127.0.0.1"])
    monkeypatch.setattr(socket, "getaddrinfo", lambda *a, **k: pytest.fail("it asked the resolver"))

    assert (await local.request("GET", f"http://hooks.example:{endpoint.port}/")).status == 200


def time_passes(out: Outgoing) -> None:
    """So much that what was resolved is not believed any more."""
    for way in out._ways.values():
        way.until = 0.0


async def test_a_name_is_checked_again_after_a_while(names: Any, endpoint: Endpoint, local: Outgoing) -> None:
    # Given a name that was fine twice, whose connection is still open
    resolver = names(["127.0.0.1"], ["127.0.0.1"], ["10.0.0.1"])
    url = f"http://hooks.example:{endpoint.port}/"
    await local.request("GET", url)
    time_passes(local)
    await local.request("GET", url)
    time_passes(local)

    # When it leads to a private address, then not even that connection is used
    with pytest.raises(DeliveryFailed, match="private"):
        await local.request("GET", url)

    assert len(resolver.asked) == 3
    assert (len(endpoint.requests), endpoint.connections) == (2, 1)


async def test_a_name_that_moved_is_followed(names: Any, endpoint: Endpoint, local: Outgoing) -> None:
    names(["127.0.0.1"], ["127.0.0.2", "127.0.0.1"])
    url = f"http://hooks.example:{endpoint.port}/"

    await local.request("GET", url)
    time_passes(local)
    await local.request("GET", url)

    assert endpoint.connections == 2


async def test_a_connection_that_was_busy_when_its_name_moved_is_closed(
    names: Any, endpoint: Endpoint, local: Outgoing
) -> None:
    # Given a request under way
    names(["127.0.0.1"], ["127.0.0.2", "127.0.0.1"])
    url = f"http://hooks.example:{endpoint.port}/"
    endpoint.next(late(10))
    task = asyncio.ensure_future(local.request("GET", url))
    await until(lambda: endpoint.requests, what="it arrived")
    (old,) = local._ways.values()

    # When the name moves
    time_passes(local)
    await local.request("GET", url)
    endpoint.release.set()

    # Then it ends well, and its connection is not kept
    assert (await task).status == 200
    assert old not in local._ways.values()
    assert not old.busy
    assert not old._resting


async def test_the_next_address_is_tried(names: Any, endpoint: Endpoint, local: Outgoing) -> None:
    # Given a first address where nobody listens
    names(["127.0.0.2", "127.0.0.1"])

    assert (await local.request("GET", f"http://hooks.example:{endpoint.port}/")).status == 200


async def test_a_silent_address_leaves_time_for_the_next(names: Any) -> None:
    # Given a first address that accepts connections and says nothing
    names(["127.0.0.2", "127.0.0.1"])
    made = certificate("hooks.example")
    with Endpoint(certificate=made, name="hooks.example") as behind, socket.socket() as silent:
        try:
            silent.bind(("127.0.0.2", behind.port))
        except OSError:
            pytest.skip("this system has one loopback address only")
        silent.listen()
        async with Outgoing(allow=["127.0.0.0/8"], verify=made.trusting()) as out:
            assert (await out.request("GET", behind.url(), timeout=1)).status == 200


async def test_a_name_without_an_address_may_have_one_later(strict: Outgoing) -> None:
    # Given the system's resolver and a name that never exists
    with pytest.raises(DeliveryFailed, match="check the host name") as failed:
        await strict.request("GET", "https://nobody.invalid/")

    assert failed.value.retry


async def test_resolve_answers_addresses() -> None:
    assert set(await resolve("localhost", 80)) <= {"127.0.0.1", "::1"}


async def test_few_places_are_remembered(
    names: Any, endpoint: Endpoint, local: Outgoing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PLACES", 3)
    names(["127.0.0.1"])

    for number in range(10):
        await local.request("GET", f"http://h{number}.example:{endpoint.port}/")

    assert [place.host for place in local._ways] == ["h7.example", "h8.example", "h9.example"]


# -- TLS --------------------------------------------------------------------------------------------------------------


async def test_the_certificate_is_for_the_name_not_the_address(names: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    names(["127.0.0.1"])
    made = certificate("hooks.example")
    with Endpoint(certificate=made, name="hooks.example") as behind:
        async with Outgoing(allow=["127.0.0.0/8"], verify=made.trusting()) as out:
            assert (await out.request("GET", behind.url())).status == 200
            assert behind.requests[0].headers["host"] == f"hooks.example:{behind.port}"

            # a second name at the same address has no use of the first one's connection
            for host in ("other.example", "127.0.0.1"):
                with pytest.raises(DeliveryFailed, match=r"certificate is not trusted: .*mismatch") as refused:
                    await out.request("GET", f"https://{host}:{behind.port}/")
                assert refused.value.retry
            assert len(behind.requests) == 1

            # With the safeguard off, connections being kept by address, it would be used
            way = next(iter(out._ways.values()))

            async def by_address(place: Any) -> Any:
                return way

            monkeypatch.setattr(out, "_way", by_address)
            assert (await out.request("GET", f"https://other.example:{behind.port}/")).status == 200


async def test_the_real_name_of_the_loopback(endpoint: Endpoint) -> None:
    made = certificate("localhost", "127.0.0.1")
    with Endpoint(certificate=made, name="localhost") as behind:
        async with Outgoing(allow=["localhost", "127.0.0.1"], verify=made.trusting()) as out:
            assert (await out.request("GET", behind.url())).status == 200
            assert (await out.request("GET", f"https://127.0.0.1:{behind.port}/")).status == 200
        async with Outgoing(allow=["localhost"]) as out:
            with pytest.raises(DeliveryFailed, match="self-signed"):
                await out.request("GET", behind.url())


async def test_a_server_without_tls(endpoint: Endpoint, local: Outgoing) -> None:
    with pytest.raises(DeliveryFailed, match="TLS"):
        await local.request("GET", f"https://127.0.0.1:{endpoint.port}/")


async def test_a_handshake_that_hangs_ends_at_the_deadline_and_leaves_nothing(local: Outgoing) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(DeliveryFailed, match=r"within|in time"):
            await local.request("GET", f"https://127.0.0.1:{silent.getsockname()[1]}/", timeout=0.1)
        gc.collect()  # a socket that was not closed would warn, and a warning is an error


# -- redirects --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_not_followed(local: Outgoing, endpoint: Endpoint, status: int) -> None:
    endpoint.always(redirects("http://169.254.169.254/latest/meta-data/", status))

    answer = await local.request("POST", endpoint.url(), content=b"x")

    assert (answer.status, answer.headers["location"]) == (status, "http://169.254.169.254/latest/meta-data/")
    assert len(endpoint.requests) == 1


# -- time and size ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("behaviour", [hangs, drips()], ids=["hangs", "drips"])
async def test_slow_servers_end_at_the_deadline(local: Outgoing, endpoint: Endpoint, behaviour: Any) -> None:
    endpoint.next(behaviour)
    started = time.monotonic()

    with pytest.raises(DeliveryFailed, match=r"no answer within 0\.2 s") as failed:
        await local.request("GET", endpoint.url(), timeout=0.2)

    assert failed.value.retry
    assert time.monotonic() - started < 2
    # and the next one has a connection of its own
    assert (await local.request("GET", endpoint.url())).status == 200


async def test_an_answer_that_is_too_large(endpoint: Endpoint) -> None:
    async with Outgoing(allow=["127.0.0.1"], max_bytes=1000) as out:
        bomb = answers(200, gzip.compress(b"x" * 10_000_000)[:900], Content_Encoding="gzip")
        # what says its length is not waited for
        for behaviour in (answers(200, b"x" * 1001), floods(), drips(), bomb):
            endpoint.next(behaviour)
            with pytest.raises(DeliveryFailed, match="more than 1000 bytes"):
                await out.request("GET", endpoint.url())
        endpoint.next(answers(200, b"x" * 1000))
        assert len((await out.request("GET", endpoint.url())).body) == 1000


async def test_a_packed_answer_takes_no_more_room_than_a_plain_one(endpoint: Endpoint) -> None:
    endpoint.always(answers(200, gzip.compress(b"x" * 30_000_000), Content_Encoding="gzip"))
    async with Outgoing(allow=["127.0.0.1"], max_bytes=200_000) as out:
        tracemalloc.start()
        try:
            with pytest.raises(DeliveryFailed, match="more than 200000 bytes"):
                await out.request("GET", endpoint.url())
            assert tracemalloc.get_traced_memory()[1] < 5_000_000
        finally:
            tracemalloc.stop()


async def test_nobody_is_sent_more_than_is_taken() -> None:
    # Given a peer that sends a lot, which nobody takes
    ours, theirs = socket.socketpair()
    loop = asyncio.get_running_loop()
    _, wire = await loop.create_connection(Wire, sock=ours)
    theirs.setblocking(False)
    sending = asyncio.ensure_future(loop.sock_sendall(theirs, b"x" * 5_000_000))

    # When some has come, then no more is read
    await until(lambda: wire._paused, what="a pause")
    assert len(wire._received) < 1_000_000
    assert not sending.done()

    # and when it is taken, the rest comes
    taken = 0
    while taken < 5_000_000:
        taken += len(await wire.take())
    await sending
    wire.end()
    theirs.close()
    await asyncio.sleep(0)


async def test_packed_answers_are_unpacked(local: Outgoing, endpoint: Endpoint) -> None:
    endpoint.next(answers(200, gzip.compress(b"hello"), Content_Encoding="gzip"))
    assert (await local.request("GET", endpoint.url())).body == b"hello"

    for encoding, raw in (("br", b"x"), ("gzip", b"nonsense")):
        endpoint.next(answers(200, raw, Content_Encoding=encoding))
        with pytest.raises(DeliveryFailed, match=r"compressed|unpacked"):
            await local.request("GET", endpoint.url())


@pytest.mark.parametrize("behaviour", [floods(), drips(), breaks_off()], ids=["floods", "drips", "breaks off"])
async def test_where_the_status_is_enough_the_body_does_not_matter(
    local: Outgoing, endpoint: Endpoint, behaviour: Any
) -> None:
    endpoint.next(behaviour)

    answer = await local.request("POST", endpoint.url(), timeout=0.5, enough=100)

    assert answer.status == 200
    assert len(answer.body) <= 100


@pytest.mark.parametrize(
    "behaviour",
    [drops, breaks_off(), writes(b"nonsense\r\n\r\n"), writes(b"HTTP/1.1 200 OK\r\nA: " + b"x" * 200_000 + b"\r\n\r\n"),
     writes(b"HTTP/1.1 101 Switching\r\n\r\n")],
    ids=["drops", "breaks off", "no http", "long header", "switches"],
)  # fmt: skip
async def test_no_whole_answer_may_be_one_later(local: Outgoing, endpoint: Endpoint, behaviour: Any) -> None:
    endpoint.next(behaviour)

    with pytest.raises(DeliveryFailed) as failed:
        await local.request("POST", endpoint.url(), content=b"x")

    assert failed.value.retry
    # nothing was sent twice
    assert len(endpoint.requests) == 1


async def test_an_answer_before_all_was_read(local: Outgoing) -> None:
    # Given a server that refuses a large body at its beginning, and closes
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        with contextlib.suppress(OSError):
            await reader.read()
        writer.close()
        ended.set()

    ended = asyncio.Event()
    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        answer = await local.request("POST", f"http://127.0.0.1:{port}/", content=b"x" * 20_000_000)
        await ended.wait()

    assert answer.status == 413


async def test_an_ipv6_address(local: Outgoing) -> None:
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.0 200 OK\r\n\r\nuntil the end")
        writer.close()

    try:
        server = await asyncio.start_server(serve, "::1", 0)
    except OSError:
        pytest.skip("this system has no IPv6")
    async with server, Outgoing(allow=["::1"]) as out:
        port = server.sockets[0].getsockname()[1]
        answer = await out.request("GET", f"http://[0:0::1]:{port}/")

    assert answer.body == b"until the end"
    assert f"host: [::1]:{port}\r\n".encode() in seen[0]


async def test_nobody_listens(local: Outgoing) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        with pytest.raises(DeliveryFailed, match="connection refused") as failed:
            await local.request("GET", f"http://127.0.0.1:{bound.getsockname()[1]}/")
    assert failed.value.retry


# -- ends -------------------------------------------------------------------------------------------------------------


async def test_a_cancelled_request_closes_its_connection(local: Outgoing, endpoint: Endpoint) -> None:
    endpoint.next(hangs)
    task = asyncio.ensure_future(local.request("GET", endpoint.url()))
    await until(lambda: endpoint.requests, what="it arrived")

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    (way,) = local._ways.values()
    assert not way.busy
    assert not way._resting
    assert (await local.request("GET", endpoint.url())).status == 200


async def test_closing_ends_what_is_under_way(local: Outgoing, endpoint: Endpoint) -> None:
    endpoint.next(hangs)
    task = asyncio.ensure_future(local.request("GET", endpoint.url()))
    await until(lambda: endpoint.requests, what="it arrived")

    await local.close()
    await local.close()

    with pytest.raises(DeliveryFailed, match="closed the connection without an answer"):
        await task
    with pytest.raises(ConfigurationError, match="closed"):
        await local.request("GET", endpoint.url())


async def test_closing_ends_what_is_not_yet_under_way(monkeypatch: pytest.MonkeyPatch, endpoint: Endpoint) -> None:
    # Given one request that waits for the resolver, and one for a connection
    resolving, go = asyncio.Event(), asyncio.Event()
    connecting = asyncio.Event()

    async def slow_resolve(host: str, port: int) -> Sequence[str]:
        resolving.set()
        await go.wait()
        return ["127.0.0.1"]

    async def slow_connect(*arguments: Any) -> Any:
        connecting.set()
        await go.wait()
        return await connect(*arguments)

    monkeypatch.setattr(module, "resolve", slow_resolve)
    monkeypatch.setattr(module, "connect", slow_connect)
    out = Outgoing(allow=["127.0.0.1"], timeout=5)
    hosts = ("hooks.example", "127.0.0.1")
    tasks = [asyncio.ensure_future(out.request("GET", f"http://{host}:{endpoint.port}/")) for host in hosts]
    await resolving.wait()
    await connecting.wait()

    # When it is closed, and they get on
    await out.close()
    go.set()

    # Then they fail, and leave nothing open
    for task in tasks:
        with pytest.raises(DeliveryFailed, match="closed here"):
            await task
    assert endpoint.requests == []
    assert not out._ways
    await asyncio.sleep(0)
    gc.collect()


# -- secrets ----------------------------------------------------------------------------------------------------------


async def test_no_error_and_no_log_shows_path_query_or_headers(
    local: Outgoing, endpoint: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    secret = {"authorization": SECRET}
    url = endpoint.url(f"/services/{SECRET}?access_token={SECRET}")
    endpoint.behaviours[:0] = [drops, breaks_off(), hangs, floods(), writes(SECRET.encode()), redirects(SECRET)]

    failures: list[BaseException] = []
    for timeout in (5, 5, 0.2, 5, 5, 5):
        try:
            shown = repr(await local.request("POST", url, headers=secret, content=SECRET, timeout=timeout))
            assert SECRET not in shown
        except DeliveryFailed as error:
            failures.append(error)
    for bad in (
        f"https://host:port/{SECRET}", f"https://user:{SECRET}@host/", f"ftp://host/{SECRET}", f"http://host/{SECRET}",
        f"https://10.0.0.1/{SECRET}", f"https://nobody.invalid/{SECRET}", f"https://[::1/{SECRET}",
        f"https://a b/{SECRET}", f"https://\u2100@{SECRET}/",
    ):  # fmt: skip
        try:
            await local.request("POST", bad, headers=secret)
        except (ConfigurationError, DeliveryFailed) as error:
            failures.append(error)
    with pytest.raises(ConfigurationError) as caught:
        await local.request("POST", url, headers={"authorization": f"{SECRET}\n"})
    failures.append(caught.value)

    assert len(failures) == 15
    assert not [text for text in map(told, failures) if SECRET in text]
    assert SECRET not in caplog.text
    assert SECRET not in repr(local) + repr(local.check(url)) + str(local.check(url))
