"""Where the project is, and what its modules import."""

import ast
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "butfor"


@dataclass(frozen=True)
class Import:
    """One import statement's target: `butfor.envs.slide` or `numpy`, as seen from a file of the library."""

    file: str  # relative to the package: "envs/slide.py"
    line: int
    target: str
    lazy: bool  # inside a function, so it runs only when that function does

    def __str__(self) -> str:
        return f"src/butfor/{self.file}:{self.line} imports {self.target}"


def imports_of(path: Path) -> list[Import]:
    """Every import of a file at any depth; `from package import module` counts as an import of the module."""
    file = path.relative_to(PACKAGE)
    package = ["butfor", *file.parent.parts]
    found: list[Import] = []

    def visit(node: ast.AST, lazy: bool) -> None:
        if isinstance(node, ast.Import):
            found.extend(Import(str(file), node.lineno, alias.name, lazy) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                found.append(Import(str(file), node.lineno, f"{origin}.{alias.name}", lazy))
        inside = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            visit(child, inside)

    visit(ast.parse(path.read_text(encoding="utf-8")), lazy=False)
    return found
