"""Ids of others are text wherever they are shown: never markup, never another address, never invisible."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

import pytest
from dashboard_house import HOSTILE, House

from holdfast.node.dashboard.monitors import thing_token
from holdfast.node.dashboard.text import shown, token

pytestmark = pytest.mark.asyncio(loop_scope="session")
NAMES = ('"><img src=x onerror="alert(1)">', "a/b\u202e<script>")
"""Collections may be named like this too."""

INJECTED = """[...document.querySelectorAll("*")].filter(e =>
    e.matches("iframe, object, embed, base, style, u, s, em, video, marquee, [style], a[href^='javascript' i]")
    || e.matches("script:not([src*='/static/']), img:not([src*='/static/'], .svgplot)")
    || [...e.attributes].some(a => a.name.startsWith("on"))
).map(e => e.outerHTML)"""
"""Elements and attributes that no template has, and that are in the hostile ids."""


async def injected(page: Any) -> list[str]:
    found: list[str] = await page.evaluate(INJECTED)
    return found


async def test_hostile_users_are_text(tab: Any) -> None:
    # given a list of users with every hostile id among them
    page = await tab.goto("/buffers/waiting?order=oldest")
    await tab.live()

    # expect each to be shown as text, also after a live change
    names = await page.locator("[data-live=live_users] tbody td:first-child").all_inner_texts()
    for name in HOSTILE:
        if len(shown(name)) <= 40:
            assert shown(name) in names
    assert await injected(page) == []

    # and to lead to a page of its own
    for name in HOSTILE:
        page = await tab.goto(f"/buffers/waiting/users/{token(name)}")
        title = (await page.inner_text("h1")).replace("…", "")
        assert title[:20] == shown(name)[:20]
        assert await page.inner_text(".tile .big") == "1"
        assert await injected(page) == []


async def test_what_cannot_be_seen_is_shown(tab: Any) -> None:
    # given an id that reads backwards, and one with control characters
    page = await tab.goto(f"/buffers/waiting/users/{token(HOSTILE[5])}")

    # expect escapes that stand out, and no such character in the page at all
    assert await page.inner_text("h1") == r"invoice\u202egnp.exe"
    assert await page.inner_text("h1 .esc") == r"\u202e"
    assert not re.search("[\u202a-\u202e\u2066-\u2069\u0000]", await page.content())


async def test_a_long_id_is_cut_and_whole_in_its_title(tab: Any) -> None:
    page = await tab.goto(f"/buffers/waiting/users/{token('x' * 500)}")
    assert len(await page.inner_text("h1")) < 70
    assert await page.get_attribute("h1 .id", "title") == "x" * 500


async def test_hostile_runs_sessions_and_things_are_text(tab: Any) -> None:
    for path in ("/runs/agent", "/monitors/venues", "/audit", "/"):
        page = await tab.goto(path)
        await tab.live()
        assert await injected(page) == []
    places = ("runs/agent", "sessions/chat/of", "sessions/chat/users", "locks/lock")
    for number, name in enumerate(HOSTILE):
        # the first ones everywhere, the others in turn
        for place in places if number < 2 else (places[number % 4],):
            page = await tab.goto(f"/{place}/{token(name)}")
            assert (await page.inner_text("h1")).replace("…", "")[:20] == shown(name)[:20]
            assert await injected(page) == []


async def test_hostile_names_of_collections_are_text(tab: Any, house: House) -> None:
    # given collections that are named by somebody who means no good
    for name in NAMES:
        house.ask(house.hf.buffer(name).append(name, name))
        house.ask(house.hf.runs(name).start("one", name))
        house.ask(house.hf.sessions(name).save("one", name))
        house.ask(house.hf.monitor(name).observe(name, name, name))
    house.until(lambda: _known(house))

    # expect their pages to be drawn, and to be text
    for path in ("/buffers", "/runs", "/sessions", "/monitors", "/try"):
        page = await tab.goto(path)
        assert await injected(page) == []
    for name in NAMES:
        for room in ("buffers", "runs", "monitors"):
            page = await tab.goto(f"/{room}/{token(name)}")
            assert await page.inner_text("h1") == shown(name)
            assert await injected(page) == []


async def _known(house: House) -> bool:
    found = [one.kind for one in await house.hf.fleet.names() if one.name in NAMES]
    return len(found) >= 4 * len(NAMES)


async def test_a_plot_is_a_picture_that_can_do_nothing(tab: Any, house: House) -> None:
    # given a thing whose name is markup, with a number to draw
    house.ask(house.hf.monitor("venues").observe("<script>", "<script>alert(1)</script>", {"price <b>": 1}))
    thing = thing_token("<script>", "<script>alert(1)</script>")
    answer = await tab.context.request.get(f"{tab.base}/monitors/venues/things/{thing}/plot.svg?field=price%20%3Cb%3E")

    # expect an image with a policy of its own, in which the name is text
    assert answer.status == 200
    assert answer.headers["content-type"] == "image/svg+xml"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-security-policy"].startswith(
        "default-src 'none'; style-src 'unsafe-inline'; sandbox"
    )
    assert "<script" not in await answer.text()


async def test_a_link_cannot_put_words_into_a_page(tab: Any) -> None:
    # when somebody is sent to a page with a text in its address
    page = await tab.goto("/locks?flash=Your+token+was+stolen&done=x&sort=%3Cb%3E")

    # expect that it is not shown
    assert "stolen" not in await page.inner_text("body")
    assert await injected(page) == []

    # and what stands in a field because it was asked for is a value, and nothing else
    hostile = quote(NAMES[0])
    for path in (
        f"/runs/agent?key={hostile}&state={hostile}",
        f"/monitors/venues?subscriber={hostile}",
        f"/audit?action={hostile}&before=1-1",
        f"/try?buffer={hostile}&user={hostile}&runs={hostile}&run={hostile}&monitor={hostile}&thing={hostile}",
        f"/login?next={hostile}&wrong={hostile}",
    ):
        assert await injected(await tab.goto(path)) == [], path
