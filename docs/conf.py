"""How the pages of this folder become a site: `make docs`, or `sphinx-build -W docs docs/_build/html`."""

import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

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

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"butfor {release}"
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"light_css_variables": {"color-brand-primary": "#0072B2", "color-brand-content": "#0072B2"}}
pygments_style = "default"

# Files that are pages elsewhere in the repository, and where their text stands here.
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "results/README.md": "measurements.md"}
TAKEN_IN = re.compile(r"<!-- the text of ([^\s#]+)(?:#(\S+))? stands here -->")
LINK = re.compile(r"(!?\[[^\]\[]*\]\()(?![a-z]+:|#)([^)#\s]*)(#[^)\s]*)?\)")
# Where other files of the repository are shown: below an address, or beside the built pages.
REPOSITORY = os.environ.get("BUTFOR_REPOSITORY", "")

myst_heading_anchors = 4
myst_url_schemes: dict[str, Any] = {"http": None, "https": None, "mailto": None}

default_role = "code"
smartquotes = False
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_inherit_docstrings = False  # foreign ones are written for other pages
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
# What an extra brings need not be there: a stand-in does for reading signatures.
OPTIONAL = (
    "gymnasium_robotics",
    "imageio",
    "matplotlib",
    "minari",
    "mujoco",
    "ray",
    "stable_baselines3",
    "tensorboard",
)
autodoc_mock_imports = [name for name in OPTIONAL if find_spec(name) is None]
for operator in ("__or__", "__ror__"):  # annotations such as `VecNormalize | None` are computed of stand-ins, too
    setattr(_MockObject, operator, lambda self, other: Any)


def take_in(app: Sphinx, docname: str, source: list[str]) -> None:
    """Puts the text of files from elsewhere in the repository where a page asks for it, and mends all links."""
    place = Path(app.srcdir, docname).parent

    def text_of(found: re.Match[str]) -> str:
        path = (place / found[1]).resolve()
        app.env.note_dependency(str(path))
        text = path.read_text(encoding="utf-8")
        if found[2]:  # one section of it
            (text,) = re.findall(rf"^(## {found[2]}\n.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL | re.IGNORECASE)
        return mended(text.partition("\n")[2], path.parent, place)  # without its heading

    source[0] = TAKEN_IN.sub(text_of, mended(source[0], place, place))


def mended(text: str, from_folder: Path, to_folder: Path) -> str:
    """Links as they must read in a page of another folder; files that are no page are shown by the repository."""

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
    """Links to files that are no page lead to the repository's address, or to the files themselves."""
    files = f"{REPOSITORY}/blob/main" if REPOSITORY else Path(os.path.relpath(ROOT, app.outdir)).as_posix()
    config.myst_url_schemes["repository"] = {"url": files + "/{{path}}"}


def as_written(app: Sphinx, what: str, name: str, item: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are prose with code in single backticks: no other sign has a meaning."""
    for number, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...")):
            parts = re.split("(`[^`]*`)", line)
            parts[::2] = [re.sub(r"([*|]|_(?!\w))", r"\\\1", part) for part in parts[::2]]
            lines[number] = "".join(parts)


def setup(app: Sphinx) -> None:
    """What Sphinx calls."""
    app.connect("autodoc-process-docstring", as_written)
    app.connect("config-inited", choose_repository, priority=100)
    app.connect("source-read", take_in)
