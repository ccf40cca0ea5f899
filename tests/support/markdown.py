"""Fenced blocks and shell commands of Markdown pages."""

import re
import shlex
from itertools import groupby


def fenced_blocks(markdown: str) -> list[tuple[str, str, list[str]]]:
    """Every fenced block as (the heading above it, its language, its lines)."""
    blocks: list[tuple[str, str, list[str]]] = []
    heading, fence = "", ""
    for line in markdown.splitlines():
        mark = re.match(r"\s*(```+|~~~+)\s*(\w*)", line)
        if fence:
            if mark and mark[1].startswith(fence) and not mark[2]:
                fence = ""
            else:
                blocks[-1][2].append(line)
        elif mark:
            fence = mark[1]
            blocks.append((heading, mark[2], []))
        elif line.startswith("#"):
            heading = line.lstrip("# ")
    return blocks


def shell_commands(lines: list[str]) -> list[list[str]]:
    """The commands of a shell block as lists of words, without prompts, comments and variable settings."""
    commands: list[list[str]] = []
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        for separator, words in groupby(lexer, key=lambda word: set(word) <= set("&|;()<>")):
            command = list(words)
            while command and re.match(r"\w+=", command[0]):
                del command[0]
            if command and not separator:
                commands.append(command)
    return commands
