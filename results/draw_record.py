"""Draw the record beside the paper's agent and published numbers as one SVG: python results/draw_record.py OUT [RUNS]

RUNS is the folder of the runs (results/training). Its folders have the names of name_studies.py, such as push-record
and push-record-without-influence; an environment without a run of the record has no panel. Lines are means
over seeds, bands their 95 % intervals. Published numbers are of an older simulator; those beyond the axis are listed
below with their episodes.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

from intervals import Curve, interval, read_runs
from name_studies import record_folder

from butfor.studies.record import BARE, ENVS, PAPER, WHOLE

WIDTH, HEIGHT, LEFT, RIGHT, TOP = 330, 260, 40, 14, 34
LINE = 17  # between two lines of text
LINES = {  # arm: colour (safe for colour-blind readers) and text
    WHOLE: ("#d55e00", "butfor, --preset record"),
    PAPER: ("#0072b2", "the paper's agent, three uses of influence"),
    BARE: ("#999999", "the same agent as the record, without influence"),
}
TITLES = {"pick-and-place": "FetchPickAndPlace", "push": "FetchPush", "fetch-slide": "FetchSlide"}


@dataclass(frozen=True)
class Anchor:
    """A published number."""

    name: str
    success: float
    episodes: int
    latest: int = 0
    """episodes, where the source gives a range"""

    def text(self) -> str:
        """Such as "RHER: 0.95 at 1,300"."""
        at = f"{self.episodes:,}" + (f" to {self.latest:,}" if self.latest else "")
        return f"{self.name}: {self.success:.2f} at {at}"


SIMULATORS = {
    "butfor": "Fetch v4, MuJoCo 4.0",
    "RHER": "Fetch v1, MuJoCo 2.0",
    "RoMo-RHER": "Fetch v1",
    "mrl, DDPG + HER": "Fetch v1, MuJoCo 2.0",
}
ANCHORS = {
    "pick-and-place": [
        Anchor("RHER", 0.41, 1_000), Anchor("RoMo-RHER", 0.95, 3_600, 4_200), Anchor("RHER", 0.95, 4_900),
        Anchor("mrl, DDPG + HER", 0.95, 13_000),
    ],
    "push": [Anchor("RoMo-RHER", 0.95, 1_000), Anchor("RHER", 0.95, 1_300), Anchor("mrl, DDPG + HER", 0.95, 5_400)],
    "fetch-slide": [Anchor("mrl, DDPG + HER", 0.60, 6_600), Anchor("mrl, DDPG + HER", 0.88, 50_000)],
}  # fmt: skip


def find_runs(runs: Path, env: str) -> dict[str, Curve]:
    """Return the curves of an environment's arms that have been run, by label; none without the record itself."""
    folders = {label: runs / record_folder(env, label) for label in LINES}
    found = [f"{label}={folder}" for label, folder in folders.items() if (folder / "metrics.jsonl").is_file()]
    return read_runs(found) if (folders[WHOLE] / "metrics.jsonl").is_file() else {}


def panel(env: str, curves: dict[str, Curve], left: float) -> tuple[list[str], int]:
    """Return the elements of an environment's panel, whose left edge is given, and its lines of text below."""
    end = max(max(curve) for curve in curves.values())
    bottom = TOP + HEIGHT

    def x(episode: float) -> float:
        return left + LEFT + episode / end * (WIDTH - LEFT - RIGHT)

    def y(success: float) -> float:
        return TOP + (1 - success) * HEIGHT

    parts = [f'<text x="{left + LEFT:.0f}" y="{TOP - 12}" font-size="15">{TITLES[env]}</text>']
    for fifth in range(6):
        level = y(fifth / 5)
        parts.append(f'<path d="M{left + LEFT:.0f} {level:.1f}H{left + WIDTH - RIGHT:.0f}" stroke="#ddd"/>')
        parts.append(f'<text x="{left + LEFT - 6:.0f}" y="{level + 4:.1f}" text-anchor="end">{fifth / 5:.1f}</text>')
    step = next(size for size in (100, 250, 500, 1_000, 2_500, 5_000, 10_000, end) if end / size <= 6)
    for episode in range(0, end + 1, step):
        parts.append(f'<text x="{x(episode):.1f}" y="{bottom + 16}" text-anchor="middle">{episode:,}</text>')
    for label, curve in curves.items():
        colour = LINES[label][0]
        bounds = {episode: interval(success) for episode, success in curve.items()}
        upper = [f"{x(episode):.1f},{y(high):.1f}" for episode, (_, high) in bounds.items()]
        lower = [f"{x(episode):.1f},{y(low):.1f}" for episode, (low, _) in reversed(bounds.items())]
        line = [f"{x(episode):.1f},{y(float(success.mean())):.1f}" for episode, success in curve.items()]
        parts.append(f'<polygon points="{" ".join(upper + lower)}" fill="{colour}" opacity="0.2"/>')
        parts.append(f'<polyline points="{" ".join(line)}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
    for place, anchor in enumerate(ANCHORS[env]):
        mark = "ABCD"[place]
        if anchor.episodes <= end:
            at_x, at_y = x(anchor.episodes), y(anchor.success)
            parts.append(f'<path d="M{at_x:.1f} {at_y - 6:.1f}l6 6l-6 6l-6 -6z" fill="#000"/>')
            parts.append(f'<text x="{at_x + 8:.1f}" y="{at_y + 15:.1f}">{mark}</text>')
        height = bottom + 36 + LINE * (place + 1)
        parts.append(f'<text x="{left + LEFT:.0f}" y="{height}">{mark}  {anchor.text()}</text>')
    middle = left + (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle:.0f}" y="{bottom + 34}" text-anchor="middle">episodes of each seed</text>')
    return parts, len(ANCHORS[env])


def draw(runs: Path) -> str:
    """Return the picture of all environments that have a run of the record.

    Raises:
        FileNotFoundError: there is none.
    """
    found = {env: curves for env in ENVS if (curves := find_runs(runs, env))}
    if not found:
        expected = ", ".join(record_folder(env, WHOLE) for env in ENVS)
        raise FileNotFoundError(f"{runs} contains no run of the record; expected at least one of {expected}.")
    parts: list[str] = []
    most = 0
    for place, (env, curves) in enumerate(found.items()):
        drawn, lines = panel(env, curves, place * WIDTH)
        parts += drawn
        most = max(most, lines)
    height = TOP + HEIGHT + 36 + LINE * (most + 1)
    seeds = sorted({len(next(iter(curve.values()))) for curves in found.values() for curve in curves.values()})
    for label, (colour, text) in LINES.items():
        if any(label in curves for curves in found.values()):
            height += LINE
            parts.append(f'<path d="M{LEFT} {height - 4}h24" stroke="{colour}" stroke-width="2.5"/>')
            parts.append(f'<text x="{LEFT + 30}" y="{height}">{text}, {" or ".join(map(str, seeds))} seeds</text>')
    height += LINE
    simulators = "; ".join(f"{name} {version}" for name, version in SIMULATORS.items())
    parts.append(f'<text x="{LEFT}" y="{height}" font-size="11">{simulators}. A to D: published.</text>')
    width = max(WIDTH * len(found) + 10, 820)  # the last line needs as much; the last number stands over the edge
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height + 12}" font-family="sans-serif" '
        f'font-size="12"><rect width="{width}" height="{height + 12}" fill="white"/>'
    )
    return "\n".join([head, *parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("runs", type=Path, nargs="?", default=Path(__file__).parent / "training")
    given = parser.parse_args()
    given.out.write_text(draw(given.runs), encoding="utf-8")
    print(given.out)
