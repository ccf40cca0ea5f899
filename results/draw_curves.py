"""Draw the success curves of training runs as one SVG: python results/draw_curves.py OUT TITLE LABEL=RUN ...

Lines are means over seeds, bands one standard deviation to each side, as in the paper's figures. With --intervals, they
are the 95 % intervals of intervals.py. --last and --top limit the axes.
"""

import argparse
from pathlib import Path

from intervals import interval, read_runs

# safe for colour-blind readers
COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#999999"]
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 360, 52, 24, 40, 44


def main(out: str, title: str, runs: list[str], intervals: bool, last: int | None, top: float) -> None:
    """Read each run's metrics and write the figure."""
    curves = read_runs(runs, last)
    end = max(max(curve) for curve in curves.values())

    def x(episode: float) -> float:
        return LEFT + episode / end * (WIDTH - LEFT - RIGHT)

    def y(success: float) -> float:
        return TOP + (1 - min(max(success / top, 0.0), 1.0)) * (HEIGHT - TOP - BOTTOM)

    style = 'font-family="sans-serif" font-size="13"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" {style}>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/><text x="{LEFT}" y="22" font-size="15">{title}</text>',
    ]
    step = 2 if top > 0.5 else 1  # tenths between two grid lines
    for tenth in range(0, int(top * 10 + 1.5), step):
        level = y(tenth / 10)
        parts.append(f'<path d="M{LEFT} {level:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{level + 4:.1f}" text-anchor="end">{tenth / 10:.1f}</text>')
    for episode in range(0, end + 1, 500 if end <= 5000 else 1000):
        parts.append(f'<text x="{x(episode):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{episode}</text>')
    parts.append(
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">episodes of each seed</text>'
    )
    lines = []  # over all the bands
    for index, (label, curve) in enumerate(curves.items()):
        colour = COLOURS[index % len(COLOURS)]
        points = []
        for episode, success in curve.items():
            mean, std = float(success.mean()), float(success.std())
            points.append((episode, mean, *(interval(success) if intervals else (mean - std, mean + std))))
        upper = [f"{x(e):.1f},{y(high):.1f}" for e, _, _, high in points]
        lower = [f"{x(e):.1f},{y(low):.1f}" for e, _, low, _ in reversed(points)]
        line = [f"{x(e):.1f},{y(mean):.1f}" for e, mean, _, _ in points]
        parts.append(f'<polygon points="{" ".join(upper + lower)}" fill="{colour}" opacity="0.2"/>')
        lines.append(f'<polyline points="{" ".join(line)}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
        height = TOP + 16 + 20 * index
        parts.append(f'<path d="M{LEFT + 12} {height - 4}h24" stroke="{colour}" stroke-width="2.5"/>')
        seeds = len(next(iter(curve.values())))
        parts.append(f'<text x="{LEFT + 42}" y="{height}">{label}, {seeds} seeds</text>')
    Path(out).write_text("\n".join([*parts, *lines, "</svg>"]) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("title")
    parser.add_argument("runs", nargs="+", metavar="LABEL=RUN")
    parser.add_argument("--intervals", action="store_true", help="bands are 95 %% intervals of the mean")
    parser.add_argument("--last", type=int, help="leave out evaluations after so many episodes")
    parser.add_argument("--top", type=float, default=1.0, help="the highest success on the axis")
    main(**vars(parser.parse_args()))
