"""Functions that refuse, a probe that shows that a worker has looked, and subscribers of real endpoints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from http_endpoint import Endpoint
from monitor_desk import Post, Posts, states

from holdfast import Delivery, Subscriber
from holdfast.events import Delivered, NotDelivered
from support.conditions import until


def failing(times: int, error: Callable[[], Exception] = lambda: ValueError("not now")) -> Callable[[Delivery], None]:
    """Refuses so many attempts."""
    left = [times]

    def answer(delivery: Delivery) -> None:
        if left[0]:
            left[0] -= 1
            raise error()

    return answer


async def looked(post: Post, probe: list[Any]) -> None:
    """A worker has looked who is due since this was called: what another subscriber had to hear it has heard."""
    state = f"probe {len(probe)}"
    await post.see(state, key="probe", source="probe")
    await until(lambda: state in states(probe), what="a worker that looks")


async def failed(post: Post, times: int) -> None:
    """So many attempts have failed, and the server knows."""
    await until(lambda: len(post.events_of(NotDelivered)) == times, what=f"{times} failures")


async def delivered(times: int, *posts: Post, name: str = "ear") -> None:
    """So many messages were accepted, and the server knows: now the clock may be moved."""

    def accepted() -> int:
        return sum(event.subscriber == name for post in posts for event in post.events_of(Delivered))

    await until(lambda: accepted() == times, what=f"{times} messages told to {name}")


async def listening(posts: Posts, **options: Any) -> tuple[Post, list[Any], list[Any]]:
    """A worker with one function that is told of `web`, with these options, and a probe. Their clock is the test's."""
    clock = posts.clock or posts.drive()
    post = await posts.post(workers=options.pop("workers", 10))
    heard = post.hears("ear", sources=("web",), **options)
    probe = post.hears("probe", sources=("probe",))
    await posts.start(post)
    assert clock is post.clock
    return post, heard, probe


def hook(endpoint: Endpoint, name: str = "hook", **options: Any) -> Subscriber:
    return Subscriber(name, "webhook", endpoint.url(), **{"first": True, **options})


async def with_store(posts: Posts, store: Any, **options: Any) -> Post:
    return await posts.post(store=store, allow=["127.0.0.1"], **options)


def told(endpoint: Endpoint) -> list[Any]:
    return [change["after"] for body in endpoint.bodies for change in body["changes"]]
