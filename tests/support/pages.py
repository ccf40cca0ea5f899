"""What an HTML page contains: its tags, its words and the data of its charts; and text that tries to break it."""

import html
import json
import re
from html.parser import HTMLParser
from typing import Any

HOSTILE = "<script>alert(1)</script>"
BREAKOUT = "</script><img src=x onerror=alert(2)>"
FITS = "document.documentElement.scrollWidth <= window.innerWidth"


class Tags(HTMLParser):
    """Every start tag of a page with its attributes; what stands inside scripts and styles is no tag."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


def page_data(page: str) -> dict[str, Any]:
    """The JSON that the page carries for its charts."""
    found = re.search(r'<script type="application/json" id="page-data">(.*?)</script>', page, re.DOTALL)
    assert found
    return dict(json.loads(found[1]))


def words(markup: str) -> str:
    """Text without tags, with single spaces."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", markup)).split())


def section(page: str, name: str) -> str:
    found = re.search(rf'<section aria-labelledby="{name}".*?</section>', page, re.DOTALL)
    assert found, name
    return found[0]
