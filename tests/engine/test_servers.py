"""What is asked of a server when connecting: version, eviction, persistence, credentials, TLS."""

from __future__ import annotations

import os
import subprocess

import pytest

from holdfast import ConfigurationError, Holdfast, Unavailable, UnsafeServer
from holdfast.engine.checks import _check_version
from holdfast.events import ServerWarning
from holdfast.sync import Holdfast as SyncHoldfast
from holdfast.testing import LocalServer, redis_binary


def test_an_evicting_server_is_refused_with_the_line_that_fixes_it():
    """PITFALL 47."""
    with LocalServer(config={"maxmemory-policy": "volatile-lru"}) as server:
        with pytest.raises(UnsafeServer, match="CONFIG SET maxmemory-policy noeviction"):
            SyncHoldfast(server.url).open()
        with SyncHoldfast(server.url, allow_eviction=True) as hf, hf.lock("a"):
            pass
        server.client().config_set("maxmemory-policy", "noeviction")
        with SyncHoldfast(server.url) as hf, hf.lock("a"):
            pass


def test_an_old_server_is_refused():
    with pytest.raises(UnsafeServer, match=r"redis 7\.0 or newer"):
        _check_version({"redis_version": "6.2.14"})
    with pytest.raises(UnsafeServer, match=r"valkey 7\.2 or newer"):
        _check_version({"redis_version": "7.2.4", "valkey_version": "7.1.9"})
    _check_version({"redis_version": "7.0.15"})
    _check_version({"redis_version": "7.2.4", "valkey_version": "9.1.2"})


def test_a_server_without_persistence_is_warned_about(valkey):
    seen = []
    with SyncHoldfast(valkey.url, observers=[seen.append]):
        pass
    assert any(isinstance(event, ServerWarning) and "append-only" in event.message for event in seen)


async def test_a_missing_server_is_told_within_its_time():
    with pytest.raises(Unavailable, match=r"check that the server at redis://127\.0\.0\.1:1 is up"):
        await Holdfast("redis://127.0.0.1:1", retry_for=0.2).open()
    with pytest.raises(Unavailable):
        SyncHoldfast("redis+sentinel://127.0.0.1:1/x", retry_for=0.2).open()
    with pytest.raises(Unavailable):
        await Holdfast("redis+cluster://127.0.0.1:1", retry_for=0.2).open()


async def test_passwords_and_users():
    with LocalServer(config={"requirepass": "open-sesame"}) as server:
        good = f"redis://:open-sesame@127.0.0.1:{server.port}"
        async with Holdfast(good) as hf, hf.lock("a"):
            assert "sesame" not in repr(hf)
        with SyncHoldfast(good) as hf, hf.lock("a"):
            assert "sesame" not in repr(hf)
        for url in (f"redis://:wrong@127.0.0.1:{server.port}", f"redis://127.0.0.1:{server.port}"):
            with pytest.raises(ConfigurationError, match="credentials") as refused:
                await Holdfast(url, retry_for=1.0).open()
            assert "wrong@" not in str(refused.value)
            with pytest.raises(ConfigurationError, match="credentials"):
                SyncHoldfast(url, retry_for=1.0).open()


def test_a_user_with_the_documented_rights_is_enough(valkey):
    """docs/how-to/operate.md names these."""
    client = valkey.owner.client()
    client.execute_command(
        "ACL", "SETUSER", "app", "on", ">pw", "~hf:*", "&hf:*", "+@connection", "+info", "+evalsha", "+script|load",
        "+ssubscribe", "+spublish", "+wait", "+time", "+@hash", "+@sortedset", "+pexpire", "+exists", "+del",
        "+xadd", "+xrevrange",
    )  # fmt: skip
    try:
        with SyncHoldfast(f"redis://app:pw@127.0.0.1:{valkey.owner.port}") as hf, hf.lock("a"):
            assert hf.inspect("a").held
            assert hf.force_release("a", reason="x", fence=1) == 0
    finally:
        client.execute_command("ACL", "DELUSER", "app")


async def test_two_databases_are_two_worlds(valkey):
    async with (
        Holdfast(valkey.url + "/0") as zero,
        Holdfast(valkey.url + "/1") as one,
        zero.lock("a"),
        one.lock("a"),
    ):
        assert (await zero.inspect("a")).held


async def test_prefixes_are_two_worlds(valkey):
    async with (
        Holdfast(valkey.url, prefix="x") as x,
        Holdfast(valkey.url, prefix="y") as y,
        x.lock("a"),
        y.lock("a"),
    ):
        keys = valkey.keys()
        assert {k.partition(":")[0] for k in keys} == {"x", "y"}


async def test_tls(tmp_path):
    """Debian's Redis: the embedded Valkey has no TLS."""
    if redis_binary() is None:
        assert not os.environ.get("CI"), "CI must have redis-tools"
        pytest.skip("Debian's Redis is not installed")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost", "-keyout", tmp_path / "key.pem",
         "-out", tmp_path / "cert.pem"], check=True, capture_output=True,
    )  # fmt: skip
    from holdfast.testing.ports import free_port

    port = free_port()
    config = {
        "tls-port": str(port), "tls-cert-file": str(tmp_path / "cert.pem"), "tls-key-file": str(tmp_path / "key.pem"),
        "tls-ca-cert-file": str(tmp_path / "cert.pem"), "tls-auth-clients": "no",
    }  # fmt: skip
    with LocalServer(binary=redis_binary(), config=config):
        url = f"rediss://127.0.0.1:{port}?ssl_ca_certs={tmp_path}/cert.pem"
        async with Holdfast(url) as hf, hf.lock("a") as lease:
            assert lease.fence
        with SyncHoldfast(url) as hf, hf.lock("a") as lease:
            assert lease.fence
        with pytest.raises(Unavailable):
            await Holdfast(f"rediss://127.0.0.1:{port}", retry_for=0.5).open()  # an unknown authority


async def test_an_embedded_server_that_was_killed_comes_back(tmp_path):
    import signal

    async with Holdfast(f"embedded://{tmp_path}/data?fsync=always") as hf:
        lease = await hf.lock("a", ttl=10).acquire()
        os.kill(hf._core._embedded.pid(), signal.SIGKILL)
        other = await hf.lock("b", ttl=10).acquire()
        assert other.fence > lease.fence
        assert (await hf.inspect("a")).held
        await lease.release()
        await other.release()


async def test_a_client_belongs_to_its_loop_and_says_so(valkey):
    import asyncio

    async with Holdfast(valkey.url) as hf:

        def elsewhere():
            async def use():
                await hf.lock("a").acquire()

            with pytest.raises(ConfigurationError, match="another loop"):
                asyncio.run(use())
            return True

        assert await asyncio.to_thread(elsewhere)
    with pytest.raises(ConfigurationError, match="open it first"):
        hf.lock("a")
