"""Render an HTML page from a template and write it: self-contained, offline, and complete or absent."""

import base64
import json
import math
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from butfor.reporting.charts import detector_look, line_look
from butfor.reporting.plotly_renderer import DARK
from butfor.runs.files import write_text


def render_page(template: str, page: dict[str, Any], **values: Any) -> str:
    """The page as text; `page` is the data that its scripts read, with plotly figures by name in `figures`."""
    loader = jinja2.FileSystemLoader(Path(__file__).parent / "templates")
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals |= {"flatten": flatten, "detector_look": detector_look, "line_look": line_look, "inf": math.inf}
    plotly = ""
    if page["figures"]:
        from plotly.offline import get_plotlyjs  # large, so it is loaded only when a page needs it

        plotly = Markup(get_plotlyjs())
    return environment.get_template(template).render(page=page | {"dark": DARK}, plotly=plotly, **values)


def write_page(target: Path, text: str) -> Path:
    """Write a page completely, or leave the file that was there."""
    write_text(target, text)
    return target


def data_address(kind: str, content: bytes) -> str:
    """The data: address of an image or a film."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def flatten(value: Any, prefix: str = "") -> list[tuple[str, str]]:
    """Rows of a table: nested keys joined with dots, long values cut."""
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        value = dict(enumerate(value))
    if isinstance(value, dict):
        return [row for key in value for row in flatten(value[key], f"{prefix}.{key}" if prefix else str(key))]
    text = value if isinstance(value, str) else "–" if value is None else json.dumps(value, ensure_ascii=False)
    return [(prefix, text if len(text) <= 300 else text[:300] + " …")]
