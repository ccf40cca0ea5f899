"""Pages opened in a headless browser."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Dialog, Page, sync_playwright


@contextmanager
def chromium(*options: str) -> Iterator[Browser]:
    """Headless Chromium, where it is installed."""
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next((found for name in names if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip(f"no browser to open the report with: none of {', '.join(names)} is installed")
    arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=[*arguments, "--disable-sync", *options])
        yield browser
        browser.close()


@contextmanager
def watched_pages(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens a report; afterwards nothing may have gone wrong in it and nothing may have been fetched."""
    opened: list[Page] = []
    wrong: list[str] = []
    fetched: set[str] = set()

    def refuse(dialog: Dialog) -> None:
        wrong.append(dialog.message)
        dialog.dismiss()

    def open_page(run: Path, width: int = 1280, **options: Any) -> Page:
        view = browser.new_page(viewport={"width": width, "height": 900}, **options)
        view.set_default_timeout(120_000)  # of a busy machine; what it takes is not tested here
        opened.append(view)
        view.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
        view.on("pageerror", lambda error: wrong.append(str(error)))
        view.on("dialog", refuse)
        view.on("request", lambda request: fetched.add(request.url))
        view.goto((run / "report.html").as_uri())
        view.wait_for_selector("#plot-timeline .main-svg")
        return view

    yield open_page
    addresses = {view.url for view in opened}
    for view in opened:
        view.close()
    assert wrong == []
    assert fetched == addresses
