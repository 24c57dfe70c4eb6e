"""A primary that was replaced and came back answers as a primary until it is demoted. What it is told is lost.

One Sentinel that has not heard of the failover yet still names it (PITFALL 48).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from holdfast.engine.flow import Address, NotSent
from holdfast.engine.topology import Topology, _Asker
from holdfast.engine.url import parse
from holdfast.testing import LocalSentinel

TRIES = 3


class FirstAnswerCounts(Topology):
    """The bug: whoever answers first is believed, if the one it names says that it is a primary."""

    def _ask_sentinels(self) -> Address:
        for place in list(self._known):
            with _Asker(self._sentinel_connection(place)) as ask:
                found = ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.target.service)
            address = (found[0].decode(), int(found[1]))
            with _Asker(self.connection(address)) as ask:
                if ask("ROLE")[0] == b"master":
                    return address
        raise NotSent("nobody")


class Stale:
    """A service whose first Sentinel slept through a failover, and whose old primary is back."""

    def __init__(self, service: LocalSentinel) -> None:
        self.service = service
        self.old = service.primary()
        self.sleeper = service.sentinels[0]
        self.sleeper.pause()
        service.failover()  # the two others are enough
        self.new = service.primary()
        next(server for server in service.servers if (server.host, server.port) == self.old).restart()
        self.sleeper.resume()

    def topology(self, kind: type[Topology]) -> Topology:
        return kind(parse(self.service.url), connect_timeout=1.0, call_timeout=1.0, client_name="test")

    @property
    def still(self) -> bool:
        """Is the first Sentinel wrong, and the old one not demoted yet?"""
        named = self.sleeper.call("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.service.service)
        host, port = self.old
        with redis.Redis(host=host, port=port) as old:
            return (named[0].decode(), int(named[1])) == self.old and old.role()[0] in (b"master", "master")


@pytest.fixture
def stale() -> Iterator[Stale]:
    """The moment lasts about two seconds; on a slow machine it may be missed, and is made again."""
    for _ in range(TRIES):
        with LocalSentinel() as service:
            made = Stale(service)
            if made.still:
                yield made
                return
    pytest.fail("the first Sentinel learned of the failover before it could be asked")


def test_the_newest_configuration_counts_not_the_first_answer(stale: Stale) -> None:
    believed = stale.topology(FirstAnswerCounts)
    right = stale.topology(Topology)

    believed.refresh(0)
    right.refresh(0)

    assert stale.still, "the moment was too short to show anything"
    assert right.address("any") == stale.new
    assert believed.address("any") == stale.old, "the bug put back must be seen, or this test shows nothing"


def test_a_connection_to_the_old_primary_is_not_confirmed(stale: Stale) -> None:
    topology = stale.topology(Topology)
    topology._primary = stale.old  # as an answer of a moment ago had it

    with pytest.raises(NotSent, match="no longer the primary"):
        topology.confirm(stale.old)
    topology.confirm(stale.new)
