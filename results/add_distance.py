"""Add the distance between hand and object to a detection run that was made before it was a detector:

python results/add_distance.py RUN DATA [DEVICE]

DATA contains test.npz and random.npz of the run; files that it lacks are collected again with the settings of the run.
Nothing is written unless the shares of influenced states and all numbers of the detectors contact and moved equal those
of the run to the last digit, so that the distance is that of the same states.
"""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from butfor.detection.data import ExperimentData
from butfor.detection.detectors import DETECTORS
from butfor.detection.settings import DetectionConfig
from butfor.detection.thresholds import evaluate, summarize
from butfor.rollouts.episodes import Episodes
from butfor.runs.config import config_from
from butfor.runs.files import read_json, write_json
from butfor.runs.folder import invoked_as, versions, write_metrics
from butfor.runs.reading import read_metrics, read_run

NAME = "distance"
KNOWN = ("contact", "moved")  # what a run has of the detectors that need no model


def main(run: Path, data: Path, device: str) -> None:
    """Check the episodes, and write metrics.jsonl, summary.json and versions.json with the distance."""
    config = config_from(DetectionConfig, {"data": "scripted"} | read_run(run)["config"])  # the field came later
    collected = ExperimentData(config, data, lambda stage, done, total, text: None, device)
    counts = {"test": config.test_episodes, "random": config.random_episodes}
    sets = {name: collected.episodes(name, count) for name, count in counts.items() if count}
    summary = read_json(run / "summary.json")
    rows = [row for row in read_metrics(run) if row["detector"] != NAME]
    for table in (summary, *summary.get("others", [])):
        add(table, rows, sets[table.get("set", "test")], config.env)
    now = versions("cpu")
    added = {"detector": NAME} | {key: now[key] for key in ("commit", "command", "started")}
    write_metrics(run, rows)
    write_json(run / "summary.json", summary)
    write_json(run / "versions.json", read_json(run / "versions.json") | {"added": [added]})


def add(table: dict[str, Any], rows: list[dict[str, Any]], episodes: Episodes, env: str) -> None:
    """Add the distance to a table of summary.json and to the rows of metrics.jsonl that belong to it."""
    models: Any = SimpleNamespace(env=env)  # detectors without a model use the name alone
    truth = episodes.label[table["label"]][episodes.valid]
    found = {name: evaluate(DETECTORS[name][1](models, episodes)[0], truth) for name in (*KNOWN, NAME)}
    place = (table.get("set", "test"), table["label"])
    here = {row["detector"]: row for row in rows if (row.get("set", "test"), row.get("label", "exact")) == place}
    numbers = [(table["states"], len(truth)), (table["positive_share"], float(truth.mean()))]
    numbers += [(here[name][metric], value) for name in KNOWN for metric, value in found[name].items()]
    differing = [pair for pair in numbers if pair[0] != pair[1]]
    if differing:
        raise SystemExit(f"Other states than those of the run ({' and '.join(place)}): stored and found {differing}")
    last = here[KNOWN[-1]]
    rows.insert(rows.index(last) + 1, last | {"detector": NAME} | found[NAME])
    row = {"name": NAME, "title": DETECTORS[NAME][0], "seeds": 1} | summarize([found[NAME]]) | {"paper": None}
    table["detectors"] = [one for one in table["detectors"] if one["name"] != NAME] + [row]


if __name__ == "__main__":
    with invoked_as(f"python {' '.join(sys.argv)}"):
        main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "cpu")
