"""Every action, from the button to its effect on the server, and what the audit log says of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from dashboard_house import HOSTILE, House

from holdfast.node.dashboard.text import shown, token

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def off(house: House, work: Awaitable[Any]) -> Any:
    """A call of the library, while the browser goes on."""
    return await asyncio.to_thread(house.ask, work)


async def seen(house: House, condition: Callable[[], Awaitable[Any]]) -> Any:
    return await asyncio.to_thread(house.until, condition)


async def last_action(house: House) -> tuple[str, str, str]:
    (entry,) = await off(house, house.hf.fleet.actions(1))
    assert entry.by == "local"
    assert entry.outcome != ""
    return entry.action, entry.target, entry.reason


async def test_force_release(tab: Any, house: House) -> None:
    # given a lock that somebody holds
    lease = await off(house, house.hf.lock("report:42", ttl=600).acquire())
    page = await tab.goto("/locks/lock/report:42")
    assert str(lease.fence) in await page.inner_text("[data-live=live_holders]")

    # when an operator ends it, with a reason
    await tab.confirm("Force release…", "it hangs")

    # expect it to be free, the history to say why, and the audit log too
    assert "1 ended" in await page.inner_text(".flash")
    assert "Nobody holds it" in await page.inner_text("[data-live=live_holders]")
    assert "it hangs" in await page.inner_text("[data-live=live_history]")
    assert not (await off(house, house.hf.inspect("report:42"))).held
    assert await last_action(house) == ("force-release", "lock:report:42", "it hangs")


async def test_release_of_one_holder_among_several(tab: Any, house: House) -> None:
    # given a semaphore with two holders
    first = await off(house, house.hf.semaphore("slots", 3, ttl=600).acquire())
    second = await off(house, house.hf.semaphore("slots", 3, ttl=600).acquire())
    page = await tab.goto("/locks/sem/slots")
    assert await page.locator("[data-live=live_holders] tbody tr").count() == 2

    # when the first in the list is ended
    await tab.confirm("Release this…", "only this one")

    # expect the other to be there still
    info = await off(house, house.hf.inspect("slots", "sem"))
    assert [holder.fence for holder in info.holders] == [max(first.fence, second.fence)]
    await off(house, second.release())


async def test_requeue(tab: Any, house: House) -> None:
    # given a message that no trigger makes due
    await off(house, house.hf.buffer("messages").append("slow", "hello"))
    page = await tab.goto("/buffers/messages/users/slow")
    await tab.says(".tile .big", "1")

    # when it is requeued
    await tab.confirm("Requeue now…", "do not wait")

    # expect a worker to absorb it, and the page to show that without a reload
    await seen(house, lambda: _absorbed(house, "slow"))
    await tab.says("[data-live=live_stats]", "nothing waits")
    assert await page.inner_text(".tile .big") == "0"
    assert await last_action(house) == ("requeue", "buffer:messages slow", "do not wait")


async def _absorbed(house: House, user: str) -> bool:
    stats = await house.hf.buffer("messages").stats(user)
    return not stats.waiting and not stats.in_flight


async def test_forget_needs_the_id_typed(tab: Any, house: House) -> None:
    # given a user whose id nobody could type as it is
    user = HOSTILE[5]
    await tab.goto(f"/buffers/waiting/users/{token(user)}")

    # when something else is typed
    tab.wrong_status = {422}
    await tab.confirm("Forget user…", "asked for", typed="somebody else")

    # expect a refusal that keeps the reason, and nothing done
    assert "to confirm" in await tab.page.inner_text(".wrong")
    assert await tab.page.input_value("#reason") == "asked for"
    assert (await off(house, house.hf.buffer("waiting").stats(user))).waiting == 1

    # when the id is typed as it is shown
    await tab.page.fill("#typed", shown(user))
    async with tab.page.expect_navigation():
        await tab.page.click("button[type=submit]:text('Forget')")

    # expect nothing to be left
    assert (await off(house, house.hf.buffer("waiting").stats(user))).waiting == 0
    assert await last_action(house) == ("forget", f"buffer:waiting {shown(user)}", "asked for")


async def test_replay_and_purge_dead_letters(tab: Any, house: House) -> None:
    # given dead letters
    page = await tab.goto("/buffers/sour")
    before = await off(house, house.hf.buffer("sour").totals())
    assert await page.locator("[data-live=live_letters] tbody tr").count() == before.dead_letters >= 2

    # when one is purged
    await tab.confirm("Purge…", "useless")

    # expect one less
    assert (await off(house, house.hf.buffer("sour").totals())).dead_letters == before.dead_letters - 1
    assert (await last_action(house))[0] == "purge"

    # when one is replayed, expect it to be tried again, and to die again
    await tab.confirm("Replay…", "mended?")
    assert "1 messages are back" in await page.inner_text(".flash")
    await seen(house, lambda: _replayed(house, before.dead_letters - 1))
    assert (await last_action(house))[0] == "replay"


async def _replayed(house: House, letters: int) -> bool:
    totals = await house.hf.buffer("sour").totals()
    return totals.counts.get("replayed", 0) >= 1 and totals.dead_letters == letters


async def test_stop_a_run(tab: Any, house: House) -> None:
    # given a run that would never end
    await off(house, house.hf.runs("agent").start("endless"))
    page = await tab.goto("/runs/agent/endless")
    await tab.says("[data-live=live_state]", "running")
    await tab.says("[data-feed]", "word 1")

    # when it is stopped
    await tab.confirm("Stop…", "enough")

    # expect the page to say so without a reload, with the end among the events
    await tab.says("[data-live=live_state]", "stopped")
    await tab.says("[data-feed]", "Ended")
    run = await off(house, house.hf.runs("agent").get("endless"))
    assert (run.state, run.stop_reason) == ("stopped", "enough")
    assert await page.locator("a:text('Stop…')").count() == 0
    assert await last_action(house) == ("stop", "runs:agent endless", "enough")


async def test_clear_a_session_and_forget_a_user(tab: Any, house: House) -> None:
    # given two sessions of a user
    chat = house.hf.sessions("chat")
    for name in ("s-1", "s-2"):
        await off(house, chat.save(name, "hello", user="user-7"))

    # when one is cleared
    await tab.goto("/sessions/chat/of/s-1")
    await tab.confirm("Clear…", "asked for")
    assert await off(house, chat.count("s-1")) == 0
    assert await last_action(house) == ("clear", "sessions:chat s-1", "asked for")

    # and the user forgotten
    await tab.goto("/sessions/chat/users/user-7")
    await tab.confirm("Forget user…", "asked for", typed="user-7")

    # expect both to be gone
    assert await off(house, chat.sessions_of("user-7")) == []
    assert "1 sessions removed" in await tab.page.inner_text(".flash")


async def test_letters_of_a_monitor(tab: Any, house: House) -> None:
    # given a letter that a subscriber did not accept
    venues = house.hf.monitor("venues")
    page = await tab.goto("/monitors/venues")
    before = (await off(house, venues.status())).dead_letters
    assert before >= 1

    # when it is replayed, expect it to be told again, and to come back
    await tab.confirm("Replay…", "mended?")
    assert "1 changes will be told again" in await page.inner_text(".flash")
    await seen(house, lambda: _has_letters(house, before))

    # when it is purged
    await tab.goto("/monitors/venues")
    await tab.confirm("Purge…", "useless")

    # expect it to be gone
    assert (await off(house, venues.status())).dead_letters == before - 1
    assert (await last_action(house))[0] == "purge"


async def _has_letters(house: House, count: int) -> bool:
    return (await house.hf.monitor("venues").status()).dead_letters == count


async def test_payloads_are_hidden_until_an_operator_asks(tab: Any, house: House) -> None:
    for path, button in (
        ("/buffers/waiting/users/user-03", "Show payloads"),
        ("/sessions/chat/of/~fnRpbGRl", "Show content"),
    ):
        # given a page about somebody's data
        page = await tab.goto(path)
        assert "said" not in await page.content()

        # when an operator asks for it
        async with page.expect_navigation():
            await page.get_by_role("button", name=button).click()

        # expect it to be shown as text, and that to be written down
        assert "said" in await page.inner_text("pre >> nth=0")
        assert await page.locator("pre b").count() == 0
        assert (await last_action(house))[0] == "show"

    # and the address that shows it cannot be opened
    tab.wrong_status = {405}
    answer = await tab.page.goto(tab.base + "/buffers/waiting/users/user-03/show")
    assert answer.status == 405


async def test_an_action_without_a_reason_is_refused(tab: Any, house: House) -> None:
    # given the page that asks, where the browser does not insist on the field
    page = await tab.goto("/buffers/waiting/users/user-05/flush")
    await page.eval_on_selector("form.askform", "form => form.noValidate = true")

    # when it is sent without a reason
    tab.wrong_status = {422}
    async with page.expect_navigation():
        await page.click("form.askform button[type=submit]")

    # expect a refusal, and nothing in the audit log
    assert "Give a reason" in await page.inner_text(".wrong")
    assert (await off(house, house.hf.fleet.actions(1)))[0].target != "buffer:waiting user-05"


async def test_try_it(tab: Any, house: House) -> None:
    # given the page to try things on
    page = await tab.goto("/try")
    before = (await off(house, house.hf.buffer("messages").totals())).counts.get("absorbed", 0)

    # when a message is sent
    await page.fill("#t-buffer", "messages")
    await page.fill("#t-user", "reader")
    async with page.expect_navigation():
        await page.click("#message button:text('Send')")

    # expect to see it absorbed, without a reload
    await tab.says("[data-live=live_message]", "absorbed")
    assert (await off(house, house.hf.buffer("messages").totals())).counts["absorbed"] > before

    # when a run is started, expect to see it run
    await page.fill("#t-runs", "agent")
    await page.fill("#t-run", "tried")
    await page.fill("#t-input", "")
    async with page.expect_navigation():
        await page.click("#run button:text('Start')")
    await tab.says("[data-live=live_started]", "running")

    # when it is stopped, expect to see that
    async with page.expect_navigation():
        await page.click("#run button:text('Stop it')")
    await tab.says("[data-live=live_started]", "stopped")
    assert (await off(house, house.hf.runs("agent").get("tried"))).state == "stopped"

    # when a state is observed, expect to see the change delivered
    await page.fill("#t-monitor", "venues")
    await page.fill("#t-source", "tried")
    await page.fill("#t-thing", "court 9")
    async with page.expect_navigation():
        await page.click("#observe button:text('Observe')")
    await tab.says("[data-live=live_observed]", "delivered to board")
    assert await off(house, house.hf.monitor("venues").get("tried", "court 9")) == {"status": "free", "price": 20}
