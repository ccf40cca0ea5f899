"""One HTML page from a template: self-contained, offline, and whole or absent."""

import base64
import json
import os
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup
from plotly.offline import get_plotlyjs


def render_page(template: str, page: dict[str, Any], **values: Any) -> str:
    """The page as text; `page` is what its scripts read: figures by name, and the colours of a dark page."""
    page = page | {"figures": {name: json.loads(figure.to_json()) for name, figure in page["figures"].items()}}
    loader = jinja2.FileSystemLoader(Path(__file__).parent / "templates")
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined,
                                     trim_blocks=True, lstrip_blocks=True)  # fmt: skip
    plotly = Markup(get_plotlyjs()) if page["figures"] else ""
    return environment.get_template(template).render(page=page, plotly=plotly, flatten=flatten, **values)


def write_page(target: Path, text: str) -> Path:
    """Write a page whole, or leave what was there."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    return target


def data_address(kind: str, content: bytes) -> str:
    """An image or a film as an address that holds it."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def flatten(value: Any, prefix: str = "") -> list[tuple[str, str]]:
    """Rows of a readable table: nested keys joined with dots, long values cut."""
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        value = dict(enumerate(value))
    if isinstance(value, dict):
        return [row for key in value for row in flatten(value[key], f"{prefix}.{key}" if prefix else str(key))]
    text = value if isinstance(value, str) else "–" if value is None else json.dumps(value, ensure_ascii=False)
    return [(prefix, text if len(text) <= 300 else text[:300] + " …")]
