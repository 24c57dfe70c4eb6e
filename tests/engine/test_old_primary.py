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
from holdfast.testing.sentinel import SentinelNode


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
    """A service that has failed over, its old primary back, and a Sentinel with the configuration from before."""

    def __init__(self, service: LocalSentinel, late: SentinelNode, old: Address) -> None:
        self.service, self.late, self.old = service, late, old
        self.new = service.primary()

    def topology(self, kind: type[Topology]) -> Topology:
        places = [self.late, *self.service.sentinels]
        url = f"redis+sentinel://{','.join(f'{s.host}:{s.port}' for s in places)}/{self.service.service}"
        return kind(parse(url), connect_timeout=1.0, call_timeout=1.0, client_name="test")

    @property
    def still(self) -> bool:
        """Is the late Sentinel wrong, and the old primary not demoted yet?"""
        named = self.late.call("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.service.service)
        host, port = self.old
        with redis.Redis(host=host, port=port) as old:
            return (named[0].decode(), int(named[1])) == self.old and old.role()[0] in (b"master", "master")


@pytest.fixture(scope="module")
def stale() -> Iterator[Stale]:
    """The moment lasts a second or two; here it lasts, because the others announce nothing more. Four times as long as
    they are silent they also leave a primary alone that calls itself one."""
    with LocalSentinel() as service:
        old = service.primary_server()
        late = SentinelNode(None, service._watch(old, 2))
        service.failover()
        for sentinel in service.sentinels:
            sentinel.call("SENTINEL", "DEBUG", "publish-period", 120_000)
        old.restart()
        with late:
            yield Stale(service, late, (old.host, old.port))


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
