"""A primary, its replicas and the sentinels that watch them, on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import redis

from .processes import LocalServerError, wait_until
from .server import Binary, LocalServer, Persistence

Address = tuple[str, int]


class SentinelNode(LocalServer):
    """One sentinel process. It rewrites its own configuration file as it learns."""

    def __init__(self, binary: str | Path | Binary | None, watch: Sequence[str]) -> None:
        super().__init__(binary)
        self._watch = list(watch)

    def _flags(self) -> Sequence[str]:
        return ("--sentinel",)

    def _configuration(self, port: int) -> list[str]:
        return [*self._address_lines(port), *self._watch]

    def _boot(self, timeout: float, *, fresh: bool) -> None:
        super()._boot(timeout, fresh=fresh)
        # Not configurable, but open to tests. Sentinels find each other by announcements every 2 s and new
        # replicas by INFO every 10 s; a stall of 2 s (a busy test machine) makes them stand aside for 30 s.
        self.call("SENTINEL", "DEBUG", "info-period", 500, "publish-period", 200, "ask-period", 100)
        self.call("SENTINEL", "DEBUG", "tilt-trigger", 5000, "tilt-period", 1000)
        # A failover cuts the sentinels' own connections, and they reconnect no sooner than after this. At the
        # default of 1 s that is longer than down-after: they would think the new primary dead and fail over
        # again. Five times this is how old a replica's INFO may be, which comes every second then: less finds
        # no heir.
        self.call("SENTINEL", "DEBUG", "ping-period", 300)


class LocalSentinel:
    """One primary, two replicas and three sentinels (by default), with failovers that take a second or two.

        with LocalSentinel() as sentinel:
            client = connect(sentinel.url)
            sentinel.failover()          # the primary is killed, a replica takes over
            sentinel.restart_dead()      # the old primary comes back, as a replica

    `persistence` and `config` are those of `LocalServer`, for the primary and the replicas.
    """

    def __init__(
        self,
        binary: str | Path | Binary | None = None,
        *,
        replicas: int = 2,
        sentinels: int = 3,
        service: str = "holdfast",
        down_after: float = 0.5,
        persistence: Persistence = "none",
        config: Mapping[str, str] | None = None,
    ) -> None:
        self.service = service
        self.servers: list[LocalServer] = []
        self.sentinels: list[LocalServer] = []
        self._binary = binary
        self._counts = (replicas, sentinels)
        self._down_after = down_after
        self._persistence: Persistence = persistence
        # Without these a new replica waits 5 s for company before its first synchronisation.
        self._config = {"repl-diskless-sync-delay": "0", "repl-ping-replica-period": "1", **(config or {})}

    @property
    def url(self) -> str:
        """All sentinels and the service, as `redis+sentinel://host:port,host:port/service`."""
        return f"redis+sentinel://{','.join(f'{s.host}:{s.port}' for s in self.sentinels)}/{self.service}"

    # -- its life

    def start(self, timeout: float = 20.0) -> Self:
        """Start everything and return when the sentinels know every replica and each other."""
        if self.servers:
            raise LocalServerError("Stop it before starting it again.")
        try:
            self._start(timeout)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Kill everything and remove its data. May be repeated."""
        for node in [*self.sentinels, *self.servers]:
            # Orderly shutdowns would wait for replicas that are going to die as well.
            if node.alive:
                node.kill()
            node.stop()
        self.servers.clear()
        self.sentinels.clear()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # -- who is primary

    def primary(self) -> Address:
        """The address that the sentinels give out. Raises if a live sentinel does not know or they disagree."""
        addresses = {self._announced(s) for s in self.sentinels if s.alive and not s.paused}
        if len(addresses) != 1:
            raise LocalServerError(f"Call wait_ready() first: the sentinels name {addresses or 'nobody'}.")
        return addresses.pop()

    def primary_server(self) -> LocalServer:
        """The server at the address that `primary` gives."""
        return self._server_at(self.primary())

    def failover(self, *, kill: bool = True, timeout: float = 20.0) -> Address:
        """Kill the primary (or freeze it, with `kill=False`), and return the address of the next one.

        Returns when every sentinel names it and it calls itself a primary. The remaining replicas may still
        be on their way to it: `wait_ready` waits for them.
        """
        old = self.primary()
        server = self._server_at(old)
        if kill:
            server.kill()
        else:
            server.pause()
        wait_until(lambda: self._moved_from(old), f"a primary other than {old}", timeout=timeout)
        return self.primary()

    def restart_dead(self, *, timeout: float = 20.0) -> None:
        """Restart what is dead, resume what is paused, and return when everything is in its place again."""
        for node in [*self.servers, *self.sentinels]:
            node.revive()
        self.wait_ready(timeout=timeout)

    def wait_ready(self, *, timeout: float = 20.0) -> None:
        """Wait until the sentinels agree and every live server follows the primary they name."""
        wait_until(self._is_ready, "sentinels that agree and replicas in sync", timeout=timeout)

    # -- inside

    def _start(self, timeout: float) -> None:
        replicas, sentinels = self._counts
        primary = LocalServer(self._binary, persistence=self._persistence, config=self._config)
        self.servers.append(primary.start())
        follow = {**self._config, "replicaof": f"{primary.host} {primary.port}"}
        self.servers += [
            LocalServer(self._binary, persistence=self._persistence, config=follow) for _ in range(replicas)
        ]
        self.sentinels += [
            SentinelNode(self._binary, self._watch(primary, sentinels // 2 + 1)) for _ in range(sentinels)
        ]
        start_all([*self.servers[1:], *self.sentinels])
        self.wait_ready(timeout=timeout)

    def _watch(self, primary: LocalServer, quorum: int) -> list[str]:
        return [
            f"sentinel monitor {self.service} {primary.host} {primary.port} {quorum}",
            f"sentinel down-after-milliseconds {self.service} {int(self._down_after * 1000)}",
            # Also the time after which a failed attempt is repeated, doubled.
            f"sentinel failover-timeout {self.service} 2000",
            f"sentinel parallel-syncs {self.service} 8",
        ]

    def _announced(self, sentinel: LocalServer) -> Address:
        reply = sentinel.call("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.service)
        return reply[0].decode(), int(reply[1])

    def _server_at(self, address: Address) -> LocalServer:
        return next(server for server in self.servers if (server.host, server.port) == address)

    def _moved_from(self, old: Address) -> bool:
        try:
            new = self.primary()
            return new != old and bool(self._server_at(new).call("ROLE")[0] == b"master")
        except (LocalServerError, redis.RedisError):
            return False

    def _is_ready(self) -> bool:
        try:
            primary = self.primary()
            working = [server for server in self.servers if server.alive and not server.paused]
            followers = [server for server in working if (server.host, server.port) != primary]
            return (
                self._server_at(primary).call("ROLE")[0] == b"master"
                and all(self._follows(server, primary) for server in followers)
                and all(self._sees_everybody(s) for s in self.sentinels if s.alive and not s.paused)
            )
        except (LocalServerError, redis.RedisError):
            return False

    def _follows(self, server: LocalServer, primary: Address) -> bool:
        role = server.call("ROLE")
        return bool(role[0] == b"slave" and (role[1].decode(), role[2]) == primary and role[3] == b"connected")

    def _sees_everybody(self, sentinel: LocalServer) -> bool:
        master = pairs(sentinel.call("SENTINEL", "MASTER", self.service))
        replicas = [pairs(each) for each in sentinel.call("SENTINEL", "REPLICAS", self.service)]
        healthy = {(r["ip"], int(r["port"])) for r in replicas if r["flags"] == "slave"}
        expected = {(s.host, s.port) for s in self.servers if s.alive and not s.paused} - {
            (master["ip"], int(master["port"]))
        }
        return (
            master["flags"] == "master"
            and int(master["num-other-sentinels"]) == len(self.sentinels) - 1
            and expected <= healthy
        )


def pairs(flat: list[bytes]) -> dict[str, str]:
    """The dictionary that RESP2 sends as a flat list."""
    words = [word.decode() for word in flat]
    return dict(zip(words[::2], words[1::2], strict=True))


def start_all(nodes: Sequence[LocalServer]) -> None:
    """Start all at the same time. If one fails, the caller stops the rest."""
    with ThreadPoolExecutor(len(nodes)) as pool:
        jobs: list[Any] = [pool.submit(node.start) for node in nodes]
    for job in jobs:
        job.result()
