"""Live pages: what changes on the server changes in the browser, and a page says when it is not live."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest
from dashboard_house import House

from holdfast.node import dashboard
from holdfast.node.dashboard import live

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def off(house: House, work: Awaitable[Any]) -> Any:
    return await asyncio.to_thread(house.ask, work)


async def test_the_overview_changes_by_itself(tab: Any, house: House) -> None:
    # given the overview
    page = await tab.goto("/")
    await tab.live()
    await page.evaluate("window.mine = true")
    before = int((await page.inner_text(".tile:has-text('Users waiting') .big")).replace(",", ""))

    # when a new user comes
    await off(house, house.hf.buffer("waiting").append("a new one", "hello"))

    # expect one more, and the page to be the same one
    await tab.says(".tile:has-text('Users waiting') .big", f"{before + 1}")
    assert await page.evaluate("window.mine")
    assert "worker" in await page.inner_text("[data-live=live_workers]")
    assert "buffer:messages" in await page.inner_text("[data-live=live_workers]")


async def test_the_time_of_a_lock_runs_out(tab: Any, house: House) -> None:
    # given a lock with a minute to go
    lease = await off(house, house.hf.lock("minute", ttl=60, renew=False).acquire())
    page = await tab.goto("/locks/lock/minute")
    await tab.live()
    first = float((await page.inner_text("[data-left]")).split()[0])

    # expect its time to run out, and when it is released, to see that
    await tab.says("[data-left]", f"{first - 2:.0f} s")
    await off(house, lease.release())
    await tab.says("[data-live=live_holders]", "Nobody holds it")


async def test_what_one_does_on_a_page_survives_its_changes(tab: Any, house: House) -> None:
    # given a page on which somebody types, scrolls and has opened a dialog
    page = await tab.goto("/buffers/waiting/users/user-01")
    await tab.live()
    await page.click("text=Forget user…")
    await page.fill("dialog #reason", "half a sent")

    # when what it shows changes
    await off(house, house.hf.buffer("waiting").append("user-01", "hello"))
    await tab.says(".tile .big", "3")

    # expect the dialog to be open, with what was typed
    assert await page.input_value("dialog #reason") == "half a sent"
    assert await page.evaluate("document.activeElement.id") == "reason"


async def test_a_lost_connection_is_said_and_mended(tab: Any, house: House) -> None:
    # given a live page
    page = await tab.goto("/buffers")
    await tab.live()

    # when the network is gone
    await tab.context.set_offline(True)
    await page.evaluate("dispatchEvent(new PageTransitionEvent('pagehide'))")
    await page.evaluate("dispatchEvent(new PageTransitionEvent('pageshow'))")

    # expect the page to say so
    await tab.says("[data-status]", "Connection lost")
    tab.said.clear()  # the browser complained of the network, and rightly

    # when it is back, expect it to be live again
    await tab.context.set_offline(False)
    await tab.live()
    tab.said.clear()


async def test_a_server_that_does_not_answer_is_said(tab: Any, house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    # given live pages, one of them about the node's samples, and little patience
    monkeypatch.setattr(live, "PATIENCE", 0.5)
    monkeypatch.setattr(dashboard, "PATIENCE", 0.5)
    for path in ("/", "/buffers/waiting/users/user-02"):
        page = await tab.goto(path)
        await tab.live()

        # when the server stands still
        house.server.pause()
        try:
            # expect the page to say so, and a new one to say what to do
            await tab.says("[data-status]", "The server does not answer")
            tab.wrong_status = {503}
            other = await tab.context.new_page()
            await other.goto(tab.base + "/locks")
            assert "look again later" in await other.inner_text("main")
            await other.close()
        finally:
            house.server.resume()

        # when it goes on, expect the page to be live, without a reload
        await tab.live()
        assert page.url == tab.base + path


async def test_a_page_that_nobody_sees_is_not_live(tab: Any, house: House) -> None:
    # given a live page, and the streams that the node has
    page = await tab.goto("/locks")
    await tab.live()
    assert house.node.streams == 1

    # when it is paused, expect the stream to be closed
    await page.keyboard.press("p")
    await tab.says("[data-status]", "Paused")
    await asyncio.to_thread(house.until, lambda: _streams(house, 0))

    # when it goes on, expect it to be live
    await page.keyboard.press("p")
    await tab.live()

    # when it is left, expect no stream to be left
    await tab.goto("/login")
    await asyncio.to_thread(house.until, lambda: _streams(house, 0))


async def _streams(house: House, count: int) -> bool:
    return house.node.streams == count


class Speaker:
    """Owns a run, on the loop of the house, and says what it is told to."""

    def __init__(self, house: House, run: str) -> None:
        self._house = house
        self._run = run

    async def __aenter__(self) -> Speaker:
        self._words: asyncio.Queue[Any] = asyncio.Queue()
        self._task = await off(self._house, self._begin())
        return self

    async def _begin(self) -> asyncio.Task[None]:
        active = await self._house.hf.runs("agent").claim(self._run)
        return asyncio.create_task(self._own(active))

    async def _own(self, active: Any) -> None:
        async with active as run:
            while (word := await self._words.get()) is not None:
                await run.emit(word)

    async def say(self, *words: Any) -> None:
        async def put() -> None:
            for word in words:
                self._words.put_nowait(word)

        await off(self._house, put())

    async def give_up(self) -> None:
        async def cancel() -> None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

        await off(self._house, cancel())

    async def __aexit__(self, *gone: object) -> None:
        await self.say(None)
        await off(self._house, asyncio.wait([self._task]))


async def test_events_come_once_and_in_order_also_over_a_break(tab: Any, house: House) -> None:
    # given a run that somebody owns, and its page
    async with Speaker(house, "told") as speaker:
        await speaker.say({"number": 0})
        page = await tab.goto("/runs/agent/told")
        await tab.live()
        await tab.says("[data-feed]", '"number": 0')

        # when events come, the stream breaks, and more come
        await speaker.say(*({"number": number} for number in range(1, 5)))
        await tab.says("[data-feed]", '"number": 4')
        await page.keyboard.press("p")
        await speaker.say(*({"number": number} for number in range(5, 9)))
        await page.keyboard.press("p")
        await tab.says("[data-feed]", '"number": 8')

    # and it ends
    await tab.says("[data-feed]", "Ended")
    await tab.says("[data-live=live_state]", "completed")

    # expect each event once, in order
    said = await page.locator("[data-feed] .what").all_inner_texts()
    assert said[:-1] == [f'{{"number": {number}}}' for number in range(9)]

    # and the same after a reload
    await page.reload()
    assert await page.locator("[data-feed] .what").all_inner_texts() == said


async def test_a_takeover_is_shown(tab: Any, house: House) -> None:
    # given a run whose first owner said something and gave up
    async with Speaker(house, "passed on") as first:
        await first.say({"said": "by the first"})
        page = await tab.goto("/runs/agent/~cGFzc2VkIG9u")
        await tab.says("[data-feed]", "by the first")
        await first.give_up()

    # when another goes on
    async with Speaker(house, "passed on") as second:
        await second.say({"said": "by the second"})

    # expect the takeover among the events, between the two
    await tab.says("[data-feed]", "Ended")
    said = await page.locator("[data-feed] .event").all_inner_texts()
    assert ["first" in said[0], "Taken over" in said[1], "second" in said[2]] == [True] * 3
