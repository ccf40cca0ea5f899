"""Sphinx configuration; build the site with `make docs`, or `sphinx-build -W docs docs/_build/html`."""

import json
import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.ext.autodoc.mock import _MockObject  # type: ignore[attr-defined]

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT / "src"))

from butfor import __version__ as release  # noqa: E402

project = "butfor"
author = "butfor authors"
copyright = "butfor authors, MIT licence"
version = release

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["_build", "notebooks"]
html_theme = "furo"
html_title = f"butfor {release}"
html_copy_source = False
html_show_sphinx = False
html_favicon = "site/favicon.svg"
html_static_path = ["site"]
html_js_files = ["copy.js"]
html_css_files = ["copy.css"]
html_theme_options = {"light_css_variables": {"color-brand-primary": "#0072B2", "color-brand-content": "#0072B2"}}
pygments_style = "default"

# Files elsewhere in the repository, and the page of the site that includes each.
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "results/README.md": "measurements.md"}
INCLUDED = re.compile(r"<!-- include (\S+) -->")
NOTEBOOK = re.compile(r"<!-- notebook (\S+) -->")
LINK = re.compile(r"(!?\[[^\]\[]*\]\()(?![a-z]+:|#)([^)#\s]*)(#[^)\s]*)?\)")
# Address under which other files of the repository are shown; empty: link to the files themselves.
REPOSITORY = os.environ.get("BUTFOR_REPOSITORY", "")

myst_heading_anchors = 4
myst_enable_extensions = ["dollarmath"]
html_math_renderer = "mathml"
ABOUT = "How much does an agent's action matter, state by state? Causal action influence for reinforcement learning."
# What other sites show of a link; they need the address of the published site for the picture.
SITE = os.environ.get("BUTFOR_SITE", "")
myst_html_meta = {"description lang=en": ABOUT, "property=og:title": "butfor", "property=og:description": ABOUT} | (
    {"property=og:image": f"{SITE}/_static/card.png", "name=twitter:card": "summary_large_image"} if SITE else {}
)
myst_url_schemes: dict[str, Any] = {"http": None, "https": None, "mailto": None}

default_role = "code"
smartquotes = False
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_inherit_docstrings = False  # those of other libraries use other markup
autodoc_typehints_format = "short"
napoleon_numpy_docstring = False
napoleon_use_rtype = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
# Packages of extras need not be installed: mocks are enough to read signatures.
OPTIONAL = (
    "gymnasium_robotics",
    "imageio",
    "matplotlib",
    "minari",
    "mujoco",
    "ray",
    "stable_baselines3",
    "tensorboard",
    "torchrl",
)
autodoc_mock_imports = [name for name in OPTIONAL if find_spec(name) is None]
for operator in ("__or__", "__ror__"):  # annotations such as `VecNormalize | None` are evaluated
    setattr(_MockObject, operator, lambda self, other: Any)
_MockObject.__int__ = lambda self: 4  # type: ignore[attr-defined]  # constants of MuJoCo, and its version


def include_files(app: Sphinx, docname: str, source: list[str]) -> None:
    """Insert the text of other files where a page includes them, and adapt all links."""
    place = Path(app.srcdir, docname).parent

    def text_of(found: re.Match[str]) -> str:
        path = (place / found[1]).resolve()
        app.env.note_dependency(str(path))
        text = path.read_text(encoding="utf-8")
        return adapt_links(text.partition("\n")[2], path.parent, place)  # without its heading

    def notebook_of(found: re.Match[str]) -> str:
        path = (place / found[1]).resolve()
        app.env.note_dependency(str(path))
        return show_notebook(json.loads(path.read_text(encoding="utf-8")))

    source[0] = INCLUDED.sub(text_of, adapt_links(source[0], place, place))
    source[0] = NOTEBOOK.sub(notebook_of, source[0])


def show_notebook(notebook: dict[str, Any]) -> str:
    """The cells of a notebook as Markdown, with the outputs that it contains; the first heading is the page's own."""
    parts = []
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if picture := data.get("image/png"):
                parts.append(f'<img alt="The figure that this cell shows" src="data:image/png;base64,{picture}">')
            else:
                shown = "".join(output.get("text") or data.get("text/plain", ""))
                parts.append(f"```text\n{shown.rstrip()}\n```")
    return "\n\n".join(parts).partition("\n")[2]


def adapt_links(text: str, from_folder: Path, to_folder: Path) -> str:
    """Rewrite links for a page of another folder; links to files that are not pages lead to the repository."""

    def link(found: re.Match[str]) -> str:
        opening, path, fragment = found[1], found[2], found[3] or ""
        target = Path(os.path.normpath(from_folder / path))
        if not path or not target.is_relative_to(ROOT):
            return found[0]
        name = target.relative_to(ROOT).as_posix()
        page = HERE / PAGES[name] if name in PAGES else target
        if opening.startswith("!") or (page.suffix == ".md" and page.is_relative_to(HERE)):
            return f"{opening}{Path(os.path.relpath(page, to_folder)).as_posix()}{fragment})"
        return f"{opening}repository:{name}{fragment})"

    return LINK.sub(link, text)


def choose_repository(app: Sphinx, config: Any) -> None:
    """Set the target of links to files that are not pages: the repository's address, or the files themselves."""
    files = f"{REPOSITORY}/blob/main" if REPOSITORY else Path(os.path.relpath(ROOT, app.outdir)).as_posix()
    config.myst_url_schemes["repository"] = {"url": files + "/{{path}}"}


def escape_markup(app: Sphinx, what: str, name: str, item: Any, options: Any, lines: list[str]) -> None:
    """Escape everything but code in single backticks: docstrings use no other markup."""
    for number, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...")):
            parts = re.split("(`[^`]*`)", line)
            parts[::2] = [re.sub(r"([*|]|_(?!\w))", r"\\\1", part) for part in parts[::2]]
            lines[number] = "".join(parts)


def write_formula(translator: Any, node: nodes.math | nodes.math_block) -> None:
    """Write a formula as MathML, which browsers draw themselves: the site loads nothing from elsewhere."""
    block = isinstance(node, nodes.math_block)
    formula = tex2mathml(node.astext(), as_block=block)
    translator.body.append(f'<div class="math">{formula}</div>' if block else formula)
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    """Connect the functions above; called by Sphinx."""
    app.add_html_math_renderer("mathml", (write_formula, None), (write_formula, None))
    app.connect("autodoc-process-docstring", escape_markup, priority=400)  # before napoleon
    app.connect("config-inited", choose_repository, priority=100)
    app.connect("source-read", include_files)
