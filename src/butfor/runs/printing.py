"""Small tables of results, as text for a terminal and as HTML for a notebook."""

import html
from collections.abc import Sequence

Rows = Sequence[Sequence[str]]


def text_table(rows: Rows) -> str:
    """Rows as aligned columns: names to the left, and to the right the numbers of a table with a heading."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    align = str.ljust if len(widths) == 2 else str.rjust
    lines = []
    for first, *rest in rows:
        cells = [first.ljust(widths[0]), *(align(cell, width) for cell, width in zip(rest, widths[1:], strict=True))]
        lines.append(("  " + "  ".join(cells)).rstrip())
    return "\n".join(lines)


def html_table(rows: Rows, title: str = "", colour: str = "inherit", below: Sequence[str] = ()) -> str:
    """The same for a notebook, with a heading and sentences below; everything is escaped."""
    parts = [f'<div><b style="color: {colour}">{html.escape(title)}</b>'] if title else ["<div>"]
    parts.append("<table>")
    side = "left" if rows and len(rows[0]) == 2 else "right"
    for first, *rest in rows:
        cells = "".join(f'<td style="text-align: {side}">{html.escape(cell)}</td>' for cell in rest)
        parts.append(f'<tr><th style="text-align: left">{html.escape(first)}</th>{cells}</tr>')
    parts.append("</table>")
    parts += [f"<p>{html.escape(sentence)}</p>" for sentence in below]
    return "".join(parts) + "</div>"


def count_words(count: int, noun: str) -> str:
    """Such as "1 seed" or "3 seeds"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def printable(text: str) -> str:
    """Return a text without control characters, which could move a terminal's cursor or change its colours."""
    return "".join(letter if letter.isprintable() or letter == "\n" else "\N{REPLACEMENT CHARACTER}" for letter in text)
