"""What each kind of URL asks for, and what is refused with the way to mend it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis.asyncio.connection as aio

from holdfast import Holdfast
from holdfast.engine.topology import Topology
from holdfast.engine.url import Target, hide_password, parse
from holdfast.errors import ConfigurationError


def target(url: str) -> Target:
    return parse(url, {})


def topology(url: str) -> Topology:
    return Topology(target(url), connect_timeout=1.5, call_timeout=2.5, client_name="test")


# -- one server -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "host", "options"),
    [
        ("redis://", ("localhost", 6379), {}),
        ("redis://h", ("h", 6379), {}),
        ("redis://h:7000", ("h", 7000), {}),
        ("redis://h:7000/3", ("h", 7000), {"db": 3}),
        ("redis://h?db=4", ("h", 6379), {"db": 4}),
        ("redis://[::1]:7000", ("::1", 7000), {}),
        ("valkey://h:7000/3", ("h", 7000), {"db": 3}),
        ("redis://user:word@h", ("h", 6379), {"username": "user", "password": "word"}),
        ("redis://:word@h", ("h", 6379), {"password": "word"}),
        ("redis://user:p%40ss%2Fw%3A@h", ("h", 6379), {"username": "user", "password": "p@ss/w:"}),
        ("REDIS://h", ("h", 6379), {}),
    ],
)
def test_one_server(url: str, host: tuple[str, int], options: dict[str, Any]) -> None:
    found = target(url)

    assert (found.kind, found.hosts, found.tls) == ("single", (host,), False)
    assert found.options == options


@pytest.mark.parametrize("url", ["rediss://h:7000", "valkeys://h:7000", "REDISS://h:7000", "ValkeyS://h:7000"])
def test_one_server_over_tls(url: str) -> None:
    found = target(url)

    assert found.tls
    assert type(topology(url).connection(found.hosts[0])).__name__ == "SSLConnection"
    assert type(topology(url).aio_connection(found.hosts[0])).__name__ == "SSLConnection"


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("unix:///run/valkey.sock", {"path": "/run/valkey.sock"}),
        ("unix:///run/valkey.sock?db=2", {"path": "/run/valkey.sock", "db": 2}),
        ("unix://user:word@/run/v.sock", {"path": "/run/v.sock", "username": "user", "password": "word"}),
    ],
)
def test_a_socket(url: str, options: dict[str, Any]) -> None:
    found = target(url)

    assert (found.kind, found.hosts, found.options) == ("single", (), options)
    assert topology(url).connection(("", 0)).path == options["path"]


# -- several servers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "hosts", "service", "options"),
    [
        ("redis+sentinel://h1,h2:7,h3/svc", (("h1", 26379), ("h2", 7), ("h3", 26379)), "svc", {}),
        ("redis+sentinel://h1/svc/3", (("h1", 26379),), "svc", {"db": 3}),
        ("redis+sentinel://h1/my%20svc", (("h1", 26379),), "my svc", {}),
        ("redis+sentinel://[::1]:7,[::2]/svc", (("::1", 7), ("::2", 26379)), "svc", {}),
        ("valkey+sentinel://u:w@h1,h2/svc?db=2", (("h1", 26379), ("h2", 26379)), "svc",
         {"username": "u", "password": "w", "db": 2}),
        ("redis+sentinel://u:p%40s%2F@h1/svc", (("h1", 26379),), "svc", {"username": "u", "password": "p@s/"}),
        ("redis+sentinel://u:p@w,x@h1,h2/svc", (("h1", 26379), ("h2", 26379)), "svc",
         {"username": "u", "password": "p@w,x"}),
    ],
)  # fmt: skip
def test_a_sentinel_service(url: str, hosts: Any, service: str, options: dict[str, Any]) -> None:
    found = target(url)

    assert (found.kind, found.hosts, found.service, found.tls) == ("sentinel", hosts, service, False)
    assert found.options == options


@pytest.mark.parametrize(
    ("url", "hosts", "options"),
    [
        ("redis+cluster://h1,h2:7", (("h1", 6379), ("h2", 7)), {}),
        ("redis+cluster://h1/", (("h1", 6379),), {}),
        ("redis+cluster://h1/0", (("h1", 6379),), {"db": 0}),
        ("valkey+cluster://:w@h1", (("h1", 6379),), {"password": "w"}),
        ("redis+cluster://h1,h2?socket_keepalive=yes", (("h1", 6379), ("h2", 6379)), {"socket_keepalive": True}),
    ],
)
def test_a_cluster(url: str, hosts: Any, options: dict[str, Any]) -> None:
    found = target(url)

    assert (found.kind, found.hosts, found.tls) == ("cluster", hosts, False)
    assert found.options == options


TLS_OF_SEVERAL = ["rediss+sentinel://h/s", "valkeys+sentinel://h/s", "rediss+cluster://h", "valkeys+cluster://h"]


@pytest.mark.parametrize("url", TLS_OF_SEVERAL)
def test_several_servers_over_tls(url: str) -> None:
    assert target(url).tls


@pytest.mark.parametrize("url", ["REDISS+SENTINEL://h/s", "Valkeys+cluster://h"])
def test_a_scheme_in_capitals_keeps_its_tls(url: str) -> None:
    # Given a scheme that is taken whatever its case, the password must not go out in clear text
    assert target(url).tls


# -- the embedded server ----------------------------------------------------------------------------------------------


def test_the_embedded_server() -> None:
    private, kept = target("embedded:"), target("embedded:///var/lib/app?fsync=always")

    assert (private.kind, private.embedded) == ("embedded", "embedded:")
    assert (kept.kind, kept.embedded) == ("embedded", "embedded:///var/lib/app?fsync=always")


def test_a_client_that_is_not_opened_starts_nothing() -> None:
    assert repr(Holdfast("embedded:")) == "<Holdfast embedded: closed>"


# -- which URL --------------------------------------------------------------------------------------------------------


def test_the_environment_is_asked_where_nothing_is_passed() -> None:
    assert parse(None, {"HOLDFAST_URL": "redis://from-env"}).hosts == (("from-env", 6379),)
    assert parse("", {"HOLDFAST_URL": "redis://from-env"}).hosts == (("from-env", 6379),)


def test_what_is_passed_wins_over_the_environment() -> None:
    assert parse("redis://passed", {"HOLDFAST_URL": "redis://from-env"}).hosts == (("passed", 6379),)


def test_the_real_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_URL", "redis://from-env")

    assert repr(Holdfast()) == "<Holdfast redis://from-env closed>"


def test_without_any_url_the_error_says_what_to_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given neither an argument nor the variable: a silent default would make every pod coordinate with itself
    monkeypatch.delenv("HOLDFAST_URL", raising=False)

    with pytest.raises(ConfigurationError, match=r"pass a URL to Holdfast\(\.\.\.\) or set HOLDFAST_URL") as refused:
        Holdfast()

    for example in ("embedded:", "redis://", "unix://", "redis+sentinel://", "redis+cluster://"):
        assert example in str(refused.value)


def test_an_empty_variable_is_no_url() -> None:
    with pytest.raises(ConfigurationError, match="HOLDFAST_URL"):
        parse(None, {"HOLDFAST_URL": ""})


# -- refused ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("http://h", "pass a URL of a known kind"),
        ("localhost:6379", "pass a URL of a known kind"),
        ("redis+http://h", "pass a URL of a known kind"),
        ("redis:h", "mend the URL"),
        ("redis://h:port", "mend the URL"),
        ("redis://h:99999", "mend the URL"),
        ("redis://[::1", "mend the URL"),
        ("redis://h?db=x", "mend the URL"),
        ("unix://", "name the socket's path"),
        ("redis+sentinel://h1,h2", "name the Sentinel service"),
        ("redis+sentinel:///svc", "name at least one host"),
        ("redis+sentinel://h:0/svc", r"write hosts as host, host:port or \[ipv6\]:port"),
        ("redis+sentinel://h:70000/svc", r"write hosts as host, host:port or \[ipv6\]:port"),
        ("redis+sentinel://:7/svc", r"write hosts as host, host:port or \[ipv6\]:port"),
        ("redis+sentinel://h:seven/svc", r"write hosts as host, host:port or \[ipv6\]:port"),
        ("redis+cluster://", "name at least one host"),
        ("redis+cluster://,", "name at least one host"),
        ("redis+cluster://h/1", "a Cluster has database 0 only"),
        ("redis+cluster://h?db=x", "mend the URL"),
        ("embedded://host", "three slashes"),
    ],
)
def test_what_has_no_meaning_is_refused(url: str, advice: str) -> None:
    with pytest.raises(ConfigurationError, match=advice) as refused:
        target(url)

    assert isinstance(refused.value, ValueError)


def test_an_address_without_its_closing_bracket_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="write hosts"):
        target("redis+cluster://[::1")


def test_another_database_of_a_cluster_is_refused_as_an_option_too() -> None:
    with pytest.raises(ConfigurationError, match="database 0"):
        target("redis+cluster://h?db=3")


def test_a_database_that_is_no_number_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="a number after the host names the database"):
        target("redis://h/orders")


def test_an_option_cannot_bring_another_one_along() -> None:
    assert target("redis+sentinel://h/s?username=a%26db%3D5").options == {"username": "a&db=5"}


@pytest.mark.parametrize("option", ["max_connections=10", "sokcet_keepalive=yes", "ssl_cert_reqs=none"])
async def test_an_option_that_nobody_knows_is_refused(option: str) -> None:
    with pytest.raises(ConfigurationError, match=option.partition("=")[0]):
        async with asyncio.timeout(10), Holdfast(f"redis://127.0.0.1:1?{option}", retry_for=0):
            pass


# -- what redis-py is told --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "redis://h",
        "redis://h?retry_on_timeout=yes&socket_timeout=99&socket_connect_timeout=99&health_check_interval=5",
        "redis+cluster://h?retry_on_timeout=yes&socket_timeout=99",
        "redis+sentinel://h/s?socket_timeout=99",
    ],
)
def test_nothing_in_a_url_turns_the_retries_of_redis_py_on(url: str) -> None:
    # Given a URL that asks for what would send writes twice (PITFALL 45) or hang
    where = topology(url)

    for made in (where.connection(("h", 1)), where.aio_connection(("h", 1))):
        assert made.retry._retries == 0
        assert made.socket_timeout == 2.5
        assert made.socket_connect_timeout == (None if isinstance(made, aio.AbstractConnection) else 1.5)  # it is ours
        assert made.health_check_interval == 0


# -- what is shown ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://h/0", "redis://h/0"),
        ("redis://u:w@h/0", "redis://u:***@h/0"),
        ("redis://:w@h", "redis://:***@h"),
        ("redis://u@h", "redis://:***@h"),
        ("redis://u:w@x@h", "redis://:***@h"),
        ("redis://u:w/x@h", "redis://:***@h"),
        ("redis://u:w@h/0?password=w&ssl_password=w", "redis://u:***@h/0"),
        ("unix:///run/s?password=w", "unix:///run/s"),
        ("u:w@h:6379", ":***@h:6379"),
        ("unix://u:w@/run/s", "unix://u:***@/run/s"),
        ("redis+sentinel://u:w@h1,h2/svc", "redis+sentinel://u:***@h1,h2/svc"),
        ("embedded:", "embedded:"),
    ],
)
def test_the_url_is_shown_without_its_password(url: str, shown: str) -> None:
    assert hide_password(url) == shown
