from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio
from dashboard_house import House, furnish
from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, async_playwright

from support.conditions import until

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """The system's Chromium, once for a test process."""
    if CHROMIUM is None:
        if os.environ.get("CI") == "true":
            pytest.fail("install chromium: these tests are not skipped in CI")
        pytest.skip("no Chromium is installed")
    async with async_playwright() as playwright:
        made = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        )
        yield made
        await made.close()


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """A node with a fleet behind it, and something on every page."""
    with House(tmp_path_factory.mktemp("house")) as made:
        made.ask(furnish(made.hf))
        made.until(lambda: _settled(made))
        yield made


async def _settled(house: House) -> bool:
    letters = (await house.hf.buffer("sour").totals()).dead_letters
    changes = (await house.hf.monitor("venues").status()).dead_letters
    names = {one.kind for one in await house.hf.fleet.names()}
    return letters == 3 and changes >= 1 and {"buffer", "runs", "sessions", "monitor"} <= names


class Tab:
    """A page that remembers what went wrong on it."""

    def __init__(self, context: BrowserContext, page: Page, base: str) -> None:
        self.context = context
        self.page = page
        self.base = base
        self.said: list[str] = []
        self.asked: list[str] = []
        self.wrong_status: set[int] = set()
        """Answers that this test expects: the browser complains of each."""
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.said.append(f"error: {error}"))
        page.on("request", lambda request: self.asked.append(request.url))
        page.on("dialog", lambda dialog: self.said.append(f"dialog: {dialog.message}"))

    def _console(self, message: ConsoleMessage) -> None:
        expected = any(f"status of {status}" in message.text for status in self.wrong_status)
        if message.type in ("error", "warning") and not expected:
            self.said.append(f"{message.type}: {message.text}")

    async def goto(self, path: str) -> Page:
        await self.page.goto(self.base + path)
        return self.page

    async def live(self) -> None:
        """The stream has brought something."""
        await self.page.wait_for_selector('[data-status="live"]')

    async def says(self, selector: str, text: str, within: float = 10.0) -> None:
        """Wait until an element has this text, without a reload."""

        async def has() -> bool:
            return text in await self.page.inner_text(selector)

        await until(has, within, f"{text!r} in {selector}")

    async def confirm(self, label: str, reason: str = "a test", typed: str | None = None) -> None:
        """Press an action, fill in its dialog and send it."""
        await self.page.get_by_role("button", name=label).first.click()
        dialog = self.page.locator("dialog#ask")
        await dialog.wait_for(state="visible")
        if typed is not None:
            await dialog.locator("#typed").fill(typed)
        await dialog.locator("#reason").fill(reason)
        async with self.page.expect_navigation():
            await dialog.locator("button[type=submit]").click()

    def check(self) -> None:
        """No complaint in the console, and nobody else was asked for anything."""
        assert self.said == []
        origin = "/".join(self.base.split("/")[:3]) + "/"
        assert [url for url in self.asked if not url.startswith((origin, "data:"))] == []


@pytest_asyncio.fixture(loop_scope="session")
async def tab(browser: Browser, house: House, request: pytest.FixtureRequest) -> AsyncIterator[Tab]:
    """A fresh browser profile. What it was told must be nothing; parameters are options of the profile."""
    options: dict[str, Any] = getattr(request, "param", {})
    context = await browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce", **options)
    context.set_default_timeout(30_000)
    made = Tab(context, await context.new_page(), house.base)
    yield made
    await context.close()
    made.check()
