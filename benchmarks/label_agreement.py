"""How often the exact, heuristic and contact labels agree, and what the exact one costs, by environment and policy.

python -m benchmarks.label_agreement [episodes]
"""

import sys
import tempfile
import time
from pathlib import Path

from benchmarks._timing import describe
from butfor.detection.collect import POLICIES, CollectConfig, collect_file
from butfor.detection.labels import compare_labels


def main(episodes: int) -> None:
    print(describe("cpu"))
    print(f"{episodes} episodes each, seed 0; shares of all states")
    print(
        f"{'environment':<16}{'policy':<14}{'exact':>8}{'heuristic':>11}{'contact':>9}{'exact=heuristic':>17}", end=""
    )
    print(f"{'only exact':>12}{'only heur.':>12}{'ms/state':>12}")
    with tempfile.TemporaryDirectory() as folder:
        for env in ("pick-and-place", "push", "rot-table"):
            for policy in POLICIES:
                began = time.perf_counter()
                config = CollectConfig(env, policy, episodes, ("exact", "heuristic", "contact"))
                data = collect_file(config, Path(folder) / f"{env}-{policy}.npz")
                cost = 1000 * (time.perf_counter() - began) / data.length.sum()
                rows = {(row["first"], row["second"]): row for row in compare_labels(data)}
                row, touch = rows["exact", "heuristic"], rows["exact", "contact"]
                exact, heuristic = row["both"] + row["only_first"], row["both"] + row["only_second"]
                contact, agree = touch["both"] + touch["only_second"], row["both"] + row["neither"]
                print(f"{env:<16}{policy:<14}{exact:>8.1%}{heuristic:>11.1%}{contact:>9.1%}{agree:>17.1%}", end="")
                print(f"{row['only_first']:>12.2%}{row['only_second']:>12.2%}{cost:>12.2f}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
