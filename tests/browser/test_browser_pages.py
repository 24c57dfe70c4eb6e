"""Every page: drawn, accessible in light and dark, readable on a phone, quiet in the console, quick to load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import axe_playwright_python
import pytest
from dashboard_house import House

from holdfast.node.dashboard.monitors import thing_token

pytestmark = pytest.mark.asyncio(loop_scope="session")

AXE = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text("utf-8")
FILES = """performance.getEntriesByType("resource").filter(r => r.name.includes("/static/"))
    .map(r => [r.name, r.transferSize])"""
DARK = "rgb(14, 17, 22)"
THING = thing_token("site", ("court", 1))
PAGES = {
    "/": "Overview",
    "/locks": "Locks",
    "/locks/lock/report": "report",
    "/buffers": "Buffers",
    "/buffers/waiting": "waiting",
    "/buffers/sour?order=largest": "sour",
    "/buffers/waiting/users/user-07": "user-07",
    "/buffers/waiting/users/user-07/forget": "Forget user",
    "/runs": "Runs",
    "/runs/agent?state=completed": "agent",
    "/runs/agent/~dGlsZGU": "tilde",
    "/sessions": "Sessions",
    "/sessions/chat/of/~fnRpbGRl": "~tilde",
    "/sessions/chat/users/~fnRpbGRl": "~tilde",
    "/monitors": "Monitors",
    "/monitors/venues": "venues",
    f"/monitors/venues/things/{THING}": "court · 1",
    "/audit": "Audit",
    "/try": "Try it",
    "/login": "Sign in",
}


@pytest.fixture(scope="module", autouse=True)
def held(house: House) -> Any:
    """A lock that somebody has, and a run with a plain name."""
    house.ask(house.hf.runs("agent").start("tilde", {"wait": False}))
    lease = house.ask(house.hf.lock("report").acquire())
    yield
    house.ask(lease.release())


async def complaints(page: Any, **options: Any) -> list[str]:
    """What axe finds wrong. It is put into the page as a debugger would: the page's own policy forbids it."""
    if not await page.evaluate("'axe' in window"):
        await page.evaluate(AXE)
    found = await page.evaluate("o => axe.run(o).then(r => r.violations)", {"resultTypes": ["violations"], **options})
    return [f"{one['id']}: {one['help']}: {[node['html'][:200] for node in one['nodes'][:3]]}" for one in found]


@pytest.mark.parametrize("path", PAGES)
async def test_a_page_is_drawn_accessible_and_fits_a_phone(tab: Any, path: str) -> None:
    # given a page, in light
    page = await tab.goto(path)

    # expect its heading, and no complaint of axe
    assert PAGES[path] in await page.inner_text("h1")
    assert await page.title() != ""
    assert await complaints(page) == []

    # when it is dark
    await page.emulate_media(color_scheme="dark")
    assert await page.evaluate("getComputedStyle(document.body).backgroundColor") == DARK

    # expect the same structure in other colours, which are what axe looks at once more
    assert await complaints(page, runOnly=["color-contrast"]) == []

    # and on a phone, expect nothing to the right of the screen
    await page.set_viewport_size({"width": 375, "height": 700})
    assert await page.evaluate("document.documentElement.scrollWidth") <= 375


async def test_the_overview_loads_in_under_a_second(browser: Any, tab: Any) -> None:
    # when browsers that know nothing of it load it; the best of three, for others use this machine too
    seconds = []
    for _ in range(3):
        context = await browser.new_context()
        page = await context.new_page()
        await page.goto(tab.base + "/")
        timing = json.loads(await page.evaluate("JSON.stringify(performance.getEntriesByType('navigation')[0])"))
        files = dict(await page.evaluate(FILES))
        seconds.append(timing["loadEventEnd"] / 1000)
        await context.close()

    # expect it to be there in a second, in few bytes
    assert min(seconds) < 1
    assert len(files) <= 4
    assert timing["transferSize"] + sum(files.values()) < 60_000

    # and when one goes on to another page, expect no file to come again
    await tab.goto("/")
    await tab.page.click("nav a[data-key=l]")
    await tab.page.wait_for_load_state("load")
    assert sum(dict(await tab.page.evaluate(FILES)).values()) == 0


async def test_light_and_dark_are_kept(tab: Any) -> None:
    # given a reader whose system is light
    page = await tab.goto("/locks")

    # when the theme is switched to dark, and another page is opened
    await page.keyboard.press("d")
    await page.keyboard.press("d")
    await tab.goto("/runs")

    # expect it to be dark still
    assert await page.evaluate("getComputedStyle(document.body).backgroundColor") == DARK
    assert "dark" in await page.inner_text("[data-theme-toggle]")


async def test_keys(tab: Any) -> None:
    # given a page
    page = await tab.goto("/")

    # when g and l are pressed, expect the locks
    await page.keyboard.press("g")
    await page.keyboard.press("l")
    await page.wait_for_url("**/locks")

    # when / is pressed, expect to be in the search field, where letters are letters
    await page.keyboard.press("/")
    await page.keyboard.type("gr?")
    assert await page.input_value("[data-search]") == "gr?"
    assert page.url.endswith("/locks")

    # when ? is pressed elsewhere, expect the list of keys, and Escape to close it
    await page.evaluate("document.activeElement.blur()")
    await page.keyboard.press("?")
    assert await page.is_visible("#keys")
    await page.keyboard.press("Escape")
    assert not await page.is_visible("#keys")


async def test_everything_can_be_reached_by_tab(tab: Any) -> None:
    # given the page of a lock
    page = await tab.goto("/locks/lock/report")

    # when one goes through it with the tab key
    reached: list[str] = []
    for _ in range(40):
        await page.keyboard.press("Tab")
        reached.append(await page.evaluate("document.activeElement.innerText || document.activeElement.tagName"))
        if "Force release…" in reached:
            break

    # expect the skip link first, the sections, and the action, which Enter opens with the reason in focus
    assert reached[0] == "Skip to the content"
    assert {"Overview", "Locks", "Try it", "Force release…"} <= set(reached)
    await page.keyboard.press("Enter")
    await page.wait_for_selector("dialog#ask[open]")
    assert await page.evaluate("document.activeElement.id") == "reason"
    await page.keyboard.press("Escape")
    assert not await page.is_visible("dialog#ask")


async def test_what_is_not_there_is_said_on_a_page(tab: Any) -> None:
    # when a run is opened that nobody started
    tab.wrong_status = {404}
    page = await tab.goto("/runs/agent/nobody")

    # expect a page that says so
    assert await page.inner_text("h1") == "There is no such run"


async def test_searching_is_by_the_exact_name(tab: Any) -> None:
    # when a user with a name that is a path is searched for
    page = await tab.goto("/buffers/waiting")
    await page.fill("[data-search]", "a/b/../..?x=1#y%2F")
    await page.keyboard.press("Enter")

    # expect that user
    await page.wait_for_url("**/users/**")
    assert await page.inner_text("h1") == "a/b/../..?x=1#y%2F"
    assert "1" in await page.inner_text(".tile .big")
