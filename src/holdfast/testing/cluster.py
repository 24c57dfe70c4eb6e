"""A Cluster of primaries and replicas on this machine, with failovers and slot migrations that stop half-way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import combinations
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import redis

from .ports import free_port
from .processes import LocalServerError, wait_until
from .sentinel import start_all
from .server import Binary, LocalServer, Persistence

SLOTS = 16_384


class ClusterNode(LocalServer):
    """One node. Its id, once it has one, survives restarts."""

    def _pick_port(self) -> int:
        return free_port(cluster=True)

    @property
    def node_id(self) -> str:
        """The name the other nodes know it by."""
        node_id: str = self.call("CLUSTER", "MYID").decode()
        return node_id


class _Member(NamedTuple):
    """One line of CLUSTER NODES: what one node believes of another, or of itself."""

    node_id: str
    port: int
    flags: set[str]
    primary_id: str
    epoch: int
    connected: bool
    slots: list[range]

    def owns(self, slot: int) -> bool:
        return "master" in self.flags and any(slot in part for part in self.slots)


class LocalCluster:
    """Three primaries with a replica each (by default), joined and in sync when `start` returns.

        with LocalCluster() as cluster:
            client = connect(cluster.url)
            cluster.failover(slot)                 # the primary of that slot is killed, its replica takes over
            cluster.restart_dead()

            cluster.begin_migration(slot, target)  # from here the source answers ASK for keys it does not have
            cluster.move_keys(slot, limit=1)       # scripts on a moved and an unmoved key are told TRYAGAIN
            cluster.finish_migration(slot)         # from here the source answers MOVED

    A failover by `kill` needs three primaries, because the others elect the successor. `persistence` and
    `config` are those of `LocalServer`.
    """

    def __init__(
        self,
        primaries: int = 3,
        replicas: int = 1,
        *,
        binary: str | Path | Binary | None = None,
        node_timeout: float = 1.5,
        persistence: Persistence = "none",
        config: Mapping[str, str] | None = None,
    ) -> None:
        self.nodes: list[ClusterNode] = []
        self._primaries = primaries
        self._replicas = replicas
        self._binary = binary
        self._persistence: Persistence = persistence
        self._migrations: dict[int, tuple[ClusterNode, ClusterNode]] = {}
        self._config = {
            "cluster-enabled": "yes",
            "cluster-config-file": "nodes.conf",
            "cluster-node-timeout": str(int(node_timeout * 1000)),
            "cluster-announce-ip": "127.0.0.1",
            # A replica that moves to another primary on its own would surprise a test.
            "cluster-allow-replica-migration": "no",
            "repl-diskless-sync-delay": "0",
            "repl-ping-replica-period": "1",
            **(config or {}),
        }

    @property
    def url(self) -> str:
        """All nodes, as `redis+cluster://host:port,host:port`."""
        return f"redis+cluster://{','.join(f'{node.host}:{node.port}' for node in self.nodes)}"

    # -- its life

    def start(self, timeout: float = 20.0) -> Self:
        """Start and join all nodes. Returns when every node sees a whole cluster and the replicas are in sync."""
        if self.nodes:
            raise LocalServerError("Stop it before starting it again.")
        count = self._primaries * (1 + self._replicas)
        self.nodes += [
            ClusterNode(self._binary, persistence=self._persistence, config=self._config) for _ in range(count)
        ]
        try:
            start_all(self.nodes)
            self._join(timeout)
            self.wait_ready(timeout=timeout)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Kill all nodes and remove their data. May be repeated."""
        for node in self.nodes:
            if node.alive:
                node.kill()
            node.stop()
        self.nodes.clear()
        self._migrations.clear()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # -- who owns what

    def node_for_slot(self, slot: int) -> ClusterNode:
        """The primary that owns the slot, by its own account; of two that both think so, the later elected."""
        claims: list[tuple[int, ClusterNode]] = []
        for node in self._working():
            myself = next(member for member in _view(node) if "myself" in member.flags)
            if myself.owns(slot):
                claims.append((myself.epoch, node))
        if not claims:
            raise LocalServerError(f"Call wait_ready() or restart_dead() first: nobody owns slot {slot}.")
        return max(claims, key=lambda claim: claim[0])[1]

    def replicas_of(self, primary: ClusterNode) -> list[ClusterNode]:
        """The working replicas of a primary, by its own account."""
        node_id = primary.node_id
        ports = {member.port for member in _view(primary) if member.primary_id == node_id}
        return [node for node in self._working() if node.port in ports]

    def wait_ready(self, *, timeout: float = 20.0) -> None:
        """Wait until all working nodes see the same, whole cluster and every replica among them is in sync."""
        wait_until(self._is_ready, "a cluster that all nodes call ok", timeout=timeout)

    # -- failover

    def failover(self, slot_or_node: int | ClusterNode, *, kill: bool = True, timeout: float = 20.0) -> ClusterNode:
        """Make a replica take over from the primary given, or from the owner of the slot given. Returns the new one.

        With `kill` the primary is killed and the others elect its replica. Without it the replica is told to
        take over in agreement with its primary (CLUSTER FAILOVER), which loses nothing.
        """
        old = self.node_for_slot(slot_or_node) if isinstance(slot_or_node, int) else slot_or_node
        heirs = self.replicas_of(old)
        slots = next(member.slots for member in _view(old) if "myself" in member.flags)
        if not heirs or not slots:
            raise LocalServerError("Choose a primary that has slots and a working replica for a failover.")
        if kill:
            old.kill()
        else:
            heirs[0].call("CLUSTER", "FAILOVER")
        slot = slots[0].start
        wait_until(lambda: self._owner(slot) in heirs, f"a new owner of slot {slot}", timeout=timeout)
        return self.node_for_slot(slot)

    def restart_dead(self, *, timeout: float = 20.0) -> None:
        """Restart what is dead, resume what is paused, and return when the cluster is whole again."""
        for node in self.nodes:
            node.revive()
        self.wait_ready(timeout=timeout)

    # -- migration

    def migrate_slot(
        self, slot: int, target: ClusterNode, *, batch: int = 100, between: Callable[[], None] | None = None
    ) -> None:
        """Move a slot and its keys to another primary. `between` is called before each batch of keys is moved."""
        self.begin_migration(slot, target)
        while True:
            if between is not None:
                between()
            if self.move_keys(slot, limit=batch) < batch:
                break
        self.finish_migration(slot)

    def begin_migration(self, slot: int, target: ClusterNode) -> None:
        """Mark the slot as moving. Its owner serves the keys it still has and answers ASK for the others."""
        source = self.node_for_slot(slot)
        if source is target:
            raise LocalServerError(f"Choose another target: slot {slot} is there already.")
        target.call("CLUSTER", "SETSLOT", slot, "IMPORTING", source.node_id)
        source.call("CLUSTER", "SETSLOT", slot, "MIGRATING", target.node_id)
        self._migrations[slot] = (source, target)

    def move_keys(self, slot: int, limit: int | None = None) -> int:
        """Move up to `limit` keys of a slot whose migration has begun. Returns how many were moved."""
        source, target = self._migration(slot)
        moved = 0
        while limit is None or moved < limit:
            count = 100 if limit is None else min(100, limit - moved)
            keys = source.call("CLUSTER", "GETKEYSINSLOT", slot, count)
            if not keys:
                break
            source.call("MIGRATE", target.host, target.port, "", 0, 5000, "KEYS", *keys, timeout=10)
            moved += len(keys)
        return moved

    def finish_migration(self, slot: int, *, timeout: float = 20.0) -> None:
        """Move what is left and give the slot to the target. Returns when all nodes know."""
        source, target = self._migration(slot)
        self.move_keys(slot)
        node_id = target.node_id
        # The target first: if the source let go before, for a moment nobody would own the slot.
        others = [node for node in self._working() if node not in (source, target) and _is_primary(node)]
        for node in (target, source, *others):
            node.call("CLUSTER", "SETSLOT", slot, "NODE", node_id)
        del self._migrations[slot]
        wait_until(lambda: self._owner(slot) is target, f"slot {slot} at its target", timeout=timeout)

    # -- inside

    def _migration(self, slot: int) -> tuple[ClusterNode, ClusterNode]:
        if slot not in self._migrations:
            raise LocalServerError(f"Call begin_migration({slot}, target) first.")
        return self._migrations[slot]

    def _join(self, timeout: float) -> None:
        primaries = self.nodes[: self._primaries]
        for number, (node, slots) in enumerate(zip(primaries, _shares(self._primaries), strict=True)):
            node.call("CLUSTER", "ADDSLOTSRANGE", slots.start, slots.stop - 1)
            # Equal epochs would be sorted out by the nodes themselves, some seconds later.
            node.call("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        # Each with each: gossip alone would spread the news as well, but slower.
        for one, other in combinations(self.nodes, 2):
            one.call("CLUSTER", "MEET", other.host, other.port)
        wait_until(self._all_met, "nodes that all know each other", timeout=timeout)
        for number, node in enumerate(self.nodes[self._primaries :]):
            node.call("CLUSTER", "REPLICATE", primaries[number % self._primaries].node_id)

    def _working(self) -> list[ClusterNode]:
        return [node for node in self.nodes if node.alive and not node.paused]

    def _all_met(self) -> bool:
        ports = {node.port for node in self.nodes}
        for node in self.nodes:
            members = _view(node)
            if {member.port for member in members if "handshake" not in member.flags} != ports:
                return False
            if not all(member.connected for member in members) or len(members) != len(ports):
                return False
        return True

    def _owner(self, slot: int) -> ClusterNode | None:
        """The owner of the slot if all working nodes name the same one, it agrees, and the cluster is up."""
        owners: set[int] = set()
        try:
            for node in self._working():
                owners |= {member.port for member in _view(node) if member.owns(slot)}
                if not _is_ok(node):
                    return None
        except redis.RedisError:
            return None
        found = [node for node in self._working() if node.port in owners]
        return found[0] if len(owners) == 1 and found and _is_primary(found[0]) else None

    def _is_ready(self) -> bool:
        working = self._working()
        ports = {node.port for node in working}
        try:
            for node in working:
                seen = [member for member in _view(node) if member.port in ports]
                replicas = [member for member in seen if "slave" in member.flags]
                if (
                    not _is_ok(node)
                    or not all(member.connected and "fail?" not in member.flags for member in seen)
                    or len(replicas) != len(ports) - self._primaries
                    or not _is_in_sync(node)
                ):
                    return False
        except redis.RedisError:
            return False
        return True


def _shares(parts: int) -> Iterator[range]:
    for number in range(parts):
        yield range(SLOTS * number // parts, SLOTS * (number + 1) // parts)


def _is_ok(node: ClusterNode) -> bool:
    return b"cluster_state:ok" in node.call("CLUSTER", "INFO")


def _is_primary(node: ClusterNode) -> bool:
    return bool(node.call("ROLE")[0] == b"master")


def _is_in_sync(node: ClusterNode) -> bool:
    role = node.call("ROLE")
    return bool(role[0] == b"master" or role[3] == b"connected")


def _view(node: ClusterNode) -> list[_Member]:
    text: str = node.call("CLUSTER", "NODES").decode()
    return [_member(line.split()) for line in text.splitlines()]


def _member(words: list[str]) -> _Member:
    node_id, address, flags, primary_id, _, _, epoch, link, *slots = words
    # "[93->-id]" marks a slot on the move; the owner lists it as its own besides.
    parts = [part.split("-") for part in slots if not part.startswith("[")]
    return _Member(
        node_id=node_id,
        port=int(address.partition("@")[0].rpartition(":")[2]),
        flags=set(flags.split(",")),
        primary_id=primary_id,
        epoch=int(epoch),
        connected=link == "connected" or "myself" in flags,
        slots=[range(int(part[0]), int(part[-1]) + 1) for part in parts],
    )
