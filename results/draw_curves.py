"""Draws the success curves of training runs as one SVG: python results/draw_curves.py OUT TITLE LABEL=RUN ...

Lines are means over seeds, bands one standard deviation to each side, as in the paper's figures.
"""

import json
import sys
from pathlib import Path

COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00"]  # told apart by the colour-blind, too
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 360, 52, 16, 40, 44


def main(out: str, title: str, *runs: str) -> None:
    """Reads each run's summary and writes the figure."""
    curves = [
        (label, json.loads((Path(run) / "summary.json").read_text()))
        for label, _, run in (r.partition("=") for r in runs)
    ]
    last = max(curve["episodes"][-1] for _, curve in curves)

    def x(episode: float) -> float:
        return LEFT + episode / last * (WIDTH - LEFT - RIGHT)

    def y(success: float) -> float:
        return TOP + (1 - min(max(success, 0.0), 1.0)) * (HEIGHT - TOP - BOTTOM)

    style = 'font-family="sans-serif" font-size="13"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" {style}>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/><text x="{LEFT}" y="22" font-size="15">{title}</text>',
    ]
    for tenth in range(0, 11, 2):
        level = y(tenth / 10)
        parts.append(f'<path d="M{LEFT} {level:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{level + 4:.1f}" text-anchor="end">{tenth / 10:.1f}</text>')
    for episode in range(0, last + 1, 500):
        parts.append(f'<text x="{x(episode):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{episode}</text>')
    parts.append(
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">episodes of each seed</text>'
    )
    for index, (label, curve) in enumerate(curves):
        colour = COLOURS[index % len(COLOURS)]
        mean, std = curve["success"]["mean"], curve["success"]["std"]
        points = list(zip(curve["episodes"], mean, std, strict=True))
        upper = [f"{x(e):.1f},{y(m + s):.1f}" for e, m, s in points]
        lower = [f"{x(e):.1f},{y(m - s):.1f}" for e, m, s in reversed(points)]
        line = [f"{x(e):.1f},{y(m):.1f}" for e, m, _ in points]
        parts.append(f'<polygon points="{" ".join(upper + lower)}" fill="{colour}" opacity="0.2"/>')
        parts.append(f'<polyline points="{" ".join(line)}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
        height = TOP + 16 + 20 * index
        parts.append(f'<path d="M{LEFT + 12} {height - 4}h24" stroke="{colour}" stroke-width="2.5"/>')
        parts.append(f'<text x="{LEFT + 42}" y="{height}">{label}, {len(curve["seeds"])} seeds</text>')
    Path(out).write_text("\n".join([*parts, "</svg>"]) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
