"""AWS Lambda Powertools' `@idempotent_function` with its layer for Redis and Valkey, on redis-py and hiredis.

    python -m bench.peers.python.powertools_peer ADDR SECONDS PHASE …

It blocks, so callers are threads. The key is its default, a hash of the argument; arguments are not compared. The
context says how long a call may be in progress, as AWS Lambda's does: without one it warns at each call, and keeps
out everybody else for as long as a result would be stored.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator, Mapping

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it deprecates its own class, which is the one that its other name stands for
    from aws_lambda_powertools.utilities.idempotency import IdempotencyConfig, idempotent_function
    from aws_lambda_powertools.utilities.idempotency.persistence.cache import CachePersistenceLayer
from redis import Redis

from bench.peers.python.calling import BlockingCall, main_blocking

TTL, IN_PROGRESS_MS = 3600, 30_000


class Context:
    """The one method of a Lambda context that is used."""

    def get_remaining_time_in_millis(self) -> int:
        return IN_PROGRESS_MS


@contextlib.contextmanager
def calls(addr: str) -> Iterator[Mapping[str, BlockingCall]]:
    host, _, port = addr.rpartition(":")
    config = IdempotencyConfig(expires_after_seconds=TTL)
    config.register_lambda_context(Context())
    made = 0
    with Redis(host=host, port=int(port), decode_responses=True) as client, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        layer = CachePersistenceLayer(client=client)

        @idempotent_function(data_keyword_argument="order", persistence_store=layer, config=config)
        def charge(order: str) -> dict[str, object]:
            nonlocal made
            made += 1
            return {"order": order, "number": made}

        known = charge(order="known")

        def fresh(who: str, number: int) -> int:
            order = f"{who}-{number}"
            return int(charge(order=order)["order"] == order)

        def stored(who: str, number: int) -> int:
            return int(charge(order="known") == known)

        yield {"fresh": fresh, "stored": stored}


if __name__ == "__main__":
    main_blocking(calls, sys.argv[1:])
