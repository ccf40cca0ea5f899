"""Run the notebooks of the docs and keep what they show: python tools/run_notebook.py docs/notebooks/*.ipynb

Cells run in one namespace, without a kernel. Text and tables are kept as they are, figures of plotly as pictures, for
which Chromium and playwright are needed.
"""

import ast
import base64
import contextlib
import io
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Show = Callable[[Any], dict[str, Any]]


def run_cells(notebook: dict[str, Any], show: Show) -> list[list[dict[str, Any]]]:
    """Run every cell of code; returns their outputs in the form of a notebook."""
    names: dict[str, Any] = {"__name__": "__main__"}
    outputs = []
    for number, cell in enumerate(cell for cell in notebook["cells"] if cell["cell_type"] == "code"):
        tree = ast.parse("".join(cell["source"]), f"cell {number + 1}")
        last = tree.body[-1] if tree.body else None
        shown = last.value if isinstance(last, ast.Expr) else None
        tree.body = tree.body[:-1] if shown is not None else tree.body
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(tree, f"cell {number + 1}", "exec"), names)  # our own notebooks
            value = eval(compile(ast.Expression(shown), f"cell {number + 1}", "eval"), names) if shown else None
        found: list[dict[str, Any]] = []
        if printed.getvalue():
            lines = printed.getvalue().splitlines(keepends=True)
            found.append({"output_type": "stream", "name": "stdout", "text": lines})
        if value is not None:
            found.append({
                "output_type": "execute_result", "execution_count": number + 1, "metadata": {}, "data": show(value),
            })  # fmt: skip
        outputs.append(found)
    return outputs


def plain_text(value: Any) -> dict[str, Any]:
    """What a terminal shows."""
    return {"text/plain": repr(value).splitlines(keepends=True)}


def picture_or_table(value: Any) -> dict[str, Any]:
    """What a notebook shows: a picture of a figure, or the value's HTML, and its text."""
    if hasattr(value, "write_html"):
        return {"image/png": _photograph(value.to_html(include_plotlyjs=True)), "text/plain": ["a figure of plotly"]}
    if hasattr(value, "_repr_html_"):
        return plain_text(value) | {"text/html": value._repr_html_().splitlines(keepends=True)}
    return plain_text(value)


def _photograph(page: str) -> str:
    from playwright.sync_api import sync_playwright

    path = next(found for name in ("chromium", "google-chrome") if (found := shutil.which(name)))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        view = browser.new_page(viewport={"width": 720, "height": 440})
        view.set_content(page)
        view.wait_for_selector(".main-svg")
        picture = view.screenshot()
        browser.close()
    return base64.b64encode(picture).decode()


def main(paths: list[str]) -> None:
    """Run each notebook and write its outputs into it."""
    for path in map(Path, paths):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        outputs = iter(run_cells(notebook, picture_or_table))
        for number, cell in enumerate(cell for cell in notebook["cells"] if cell["cell_type"] == "code"):
            cell |= {"outputs": next(outputs), "execution_count": number + 1}
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main(sys.argv[1:])
