"""One table of all benchmarks, and the comparison with the committed ratios.

python tools/bench_table.py ROWS            prints the table of the rows that `benchmarks._timing.note` has written
python tools/bench_table.py ROWS --check    and fails where a ratio is worse than committed by more than the noise
python tools/bench_table.py ROWS --commit   and writes the ratios into benchmarks/ratios.json, by processors

`make bench` and `make bench-check` run the benchmarks first.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

COMMITTED = Path(__file__).parents[1] / "benchmarks" / "ratios.json"
NOISE = 0.15  # relative, of a ratio between two runs on a quiet machine


@dataclass(frozen=True)
class Row:
    """Something that was measured beside a peer or a floor."""

    item: str
    ours: float
    other: float  # of the peer or the floor, in the same unit
    unit: str
    against: str  # what the peer or the floor is
    goal: float | None = None  # of the ratio
    processors: int = 1  # that the benchmark could use

    @property
    def ratio(self) -> float:
        """How many times as fast as the peer, or the share of the floor: higher is better."""
        return self.ours / self.other if "/s" in self.unit else self.other / self.ours


def read_rows(path: Path) -> list[Row]:
    """The rows of a file, the last of each item."""
    rows = [Row(**json.loads(line)) for line in path.read_text().splitlines()]
    return list({row.item: row for row in rows}.values())


def render(rows: Sequence[Row]) -> str:
    """The table as text."""
    width = max(len(row.item) for row in rows)
    other = max(len(row.against) for row in rows)
    lines = [f"{'item':<{width}}{'ours':>10}  {'against':<{other}}{'':>10}  {'unit':<12}{'ratio':>6}{'goal':>7}"]
    for row in rows:
        goal = "" if row.goal is None else f"{row.goal:.2f}"
        lines.append(
            f"{row.item:<{width}}{row.ours:>10.4g}  {row.against:<{other}}{row.other:>10.4g}  {row.unit:<12}"
            f"{row.ratio:>6.2f}{goal:>7}"
        )
    return "\n".join(lines)


def find_worse(rows: Sequence[Row], committed: dict[str, float], noise: float = NOISE) -> list[str]:
    """A sentence for each item that is missing, or whose ratio is worse than committed by more than the noise."""
    if not committed:
        return ["No ratios are committed for this number of processors; add them with --commit."]
    found = {row.item: row.ratio for row in rows}
    problems = []
    for item, before in committed.items():
        if item not in found:
            problems.append(f"{item}: not measured; its committed ratio is {before:.2f}.")
        elif not found[item] >= before * (1 - noise):
            problems.append(f"{item}: ratio {found[item]:.2f}, committed {before:.2f}, noise {noise:.0%}.")
    return problems


def main(arguments: Sequence[str], committed: Path = COMMITTED) -> int:
    """Print the table; 1 if something is worse and `--check` is given."""
    path, *options = arguments
    rows = read_rows(Path(path))
    print(render(rows))
    processors = str(rows[0].processors)
    ratios: dict[str, dict[str, float]] = json.loads(committed.read_text()) if committed.exists() else {}
    if "--commit" in options:
        ratios[processors] = ratios.get(processors, {}) | {row.item: round(row.ratio, 3) for row in rows}
        committed.write_text(json.dumps(ratios, indent=2) + "\n")
    if "--check" not in options:
        return 0
    problems = find_worse(rows, ratios.get(processors, {}))
    print("\n".join(problems) if problems else "No ratio is worse than the committed one by more than the noise.")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
