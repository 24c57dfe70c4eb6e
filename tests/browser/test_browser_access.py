"""Who may see and do what; the node inside somebody else's application; and pages without a script."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from dashboard_house import House, furnish

pytestmark = pytest.mark.asyncio(loop_scope="session")
READER, OPERATOR = "reader-0123456789abcdef", "operator-0123456789abcdef"


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """A node with tokens, mounted in another application."""
    options = {"token": OPERATOR, "tokens": f"reader=read:{READER}"}
    with House(tmp_path_factory.mktemp("guarded"), prefix="/holdfast", work=False, **options) as made:
        made.ask(furnish(made.hf))
        yield made


async def sign_in(tab: Any, token: str) -> None:
    await tab.page.fill("#token", token)
    async with tab.page.expect_navigation():
        await tab.page.click("main button")


async def test_one_signs_in_and_out(tab: Any) -> None:
    # given somebody who is nobody yet, and asks for a page
    page = await tab.goto("/buffers/waiting?order=largest")
    assert "/holdfast/login" in page.url
    assert await page.locator("nav").count() == 0, "a menu of pages that nobody may see yet"

    # when a wrong token is given, expect to be told so
    await sign_in(tab, "wrong-wrong-wrong-wrong")
    assert "not known" in await page.inner_text(".wrong")

    # when the right one is given, expect the page that was asked for
    await sign_in(tab, OPERATOR)
    assert page.url.endswith("/holdfast/buffers/waiting?order=largest")
    assert OPERATOR not in await page.content()

    # when one signs out, expect to be nobody again
    async with page.expect_navigation():
        await page.click("text=Sign out")
    await tab.goto("/locks")
    assert "/login" in page.url


async def test_a_reader_sees_and_does_nothing(tab: Any, house: House) -> None:
    # given somebody with the scope read alone
    page = await tab.goto("/buffers/waiting/users/user-03")
    await sign_in(tab, READER)

    # expect the numbers, but neither payloads nor actions
    assert await page.inner_text("h1") == "user-03"
    assert await page.locator("main button, main a.button").count() == 0
    assert "scope operate" in await page.inner_text("main")

    # and when one goes to their addresses nevertheless, expect a refusal
    tab.wrong_status = {403}
    for path in ("forget", "show"):
        answer = await page.request.post(f"{tab.base}/buffers/waiting/users/user-03/{path}", form={"reason": "x"})
        assert answer.status == 403
    await tab.goto("/buffers/waiting/users/user-03/forget")
    assert "use a token with the scope operate" in await page.inner_text("main")
    answer = await page.request.post(f"{tab.base}/try/message", form={"buffer": "waiting", "user": "x", "data": "x"})
    assert answer.status == 403
    stats = await asyncio.to_thread(house.ask, house.hf.buffer("waiting").stats("user-03"))
    assert stats.waiting == 4


async def test_every_link_stays_inside_and_works(house: House) -> None:
    # given the node inside another application
    origin = house.base.removesuffix("/holdfast")
    headers = {"Authorization": f"Bearer {OPERATOR}", "Accept": "text/html"}
    todo, done = {"/holdfast/"}, set[str]()
    async with httpx.AsyncClient(base_url=origin, headers=headers, timeout=30) as client:
        # when every link is followed
        while todo and len(done) < 150:
            path = todo.pop()
            done.add(path)
            answer = await client.get(path)

            # expect it to work, and to be inside
            assert answer.status_code == 200, path
            for link in re.findall(r'(?:href|src|action)="([^"]*)"', answer.text):
                assert link.startswith(("/holdfast/", "#")) or link == "/holdfast", f"{link} on {path}"
                clean = link.replace("&amp;", "&").partition("#")[0]
                sent = re.search(r"/(try/|show$|logout$|login$|find/|docs$)", clean)
                if clean and clean not in done and not sent:
                    todo.add(clean)
    assert len(done) > 60


async def test_static_files_are_kept_and_pages_are_not(house: House) -> None:
    headers = {"Authorization": f"Bearer {OPERATOR}"}
    async with httpx.AsyncClient(headers=headers) as client:
        page = await client.get(f"{house.base}/locks", headers={"Accept": "text/html"})
        assert page.headers["cache-control"] == "no-store"
        assert page.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
        (sheet,) = re.findall(r'href="([^"]*app.css)"', page.text)
        found = await client.get(house.base.removesuffix("/holdfast") + sheet)
        assert "immutable" in found.headers["cache-control"]
        assert found.headers["content-encoding"] == "gzip"
        # a file that is not there any more is not another one
        assert (await client.get(f"{house.base}/static/000000000000/app.css")).status_code == 404


@pytest.mark.parametrize("tab", [{"java_script_enabled": False}], indirect=True)
async def test_without_a_script_pages_and_actions_work(tab: Any, house: House) -> None:
    # given a browser without JavaScript
    page = await tab.goto("/buffers/waiting/users/user-05")
    await sign_in(tab, OPERATOR)
    for path in ("/", "/locks", "/buffers", "/runs", "/sessions", "/monitors", "/audit", "/try"):
        await tab.goto(path)
        assert await page.locator("h1").count() == 1
        assert not await page.is_visible("[data-status]")

    # when a user is forgotten, over the page that asks
    await tab.goto("/buffers/waiting/users/user-05")
    await page.click("text=Forget user…")
    assert await page.inner_text("h1") == "Forget user"
    await page.fill("#typed", "user-05")
    await page.fill("#reason", "no script")
    await page.click("button:text-is('Forget')")

    # expect it to be done, and said once
    assert "Forget user: nothing is left" in await page.inner_text(".flash")
    assert (await asyncio.to_thread(house.ask, house.hf.buffer("waiting").stats("user-05"))).waiting == 0
    await page.reload()
    assert await page.locator(".flash").count() == 0


async def test_a_form_of_another_site_is_refused(house: House) -> None:
    # when a browser sends a form that stands on another site
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {OPERATOR}"}) as client:
        for where in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://elsewhere.example"}):
            answer = await client.post(
                f"{house.base}/buffers/waiting/users/user-06/flush", data={"reason": "x"}, headers=where
            )
            # expect a refusal
            assert answer.status_code == 403


async def test_an_address_that_is_none_is_a_page_that_leads_on(tab: Any, house: House) -> None:
    tab.wrong_status.add(404)
    page = await tab.goto("/nonsense/<b>x")
    assert "there is no such address" in await page.inner_text("main")
    async with page.expect_navigation():
        await page.click("text=Back")
    assert page.url.endswith("/login?next=%2Fholdfast%2F")


async def test_a_live_page_of_somebody_who_is_not_known_any_more_leads_to_signing_in(tab: Any, house: House) -> None:
    # given a live page
    page = await tab.goto("/locks")
    await sign_in(tab, OPERATOR)
    await tab.live()

    # when its session ends, and the stream is asked for again
    tab.wrong_status.add(401)
    await tab.context.clear_cookies()
    await page.evaluate("dispatchEvent(new PageTransitionEvent('pagehide'))")
    await page.evaluate("dispatchEvent(new PageTransitionEvent('pageshow'))")

    # expect to be asked, and led back afterwards
    await page.wait_for_url("**/login?next=*")
    await sign_in(tab, OPERATOR)
    assert page.url.endswith("/holdfast/locks")
