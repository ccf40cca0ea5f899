"""Detection of influence: detectors, labels, and the experiment that compares them (the paper's section 5).

Read `experiment.py` first: `run_detection` is the whole sequence behind `butfor detect`. `detectors.py` has the
detectors, `thresholds.py` their metrics and decisions, `side_studies.py` the further questions, `data.py` the episodes.
`labels.py` adds and compares labels (`butfor labels`), `collect.py` plays episodes with labels (`butfor collect`).
"""

from butfor.detection.collect import CollectConfig, collect_file
from butfor.detection.detectors import DETECTORS, Models
from butfor.detection.experiment import run_detection
from butfor.detection.labels import LABELS, add_labels, compare_labels
from butfor.detection.settings import DetectionConfig, detection_preset
from butfor.detection.thresholds import evaluate

__all__ = [
    "DETECTORS", "LABELS", "CollectConfig", "DetectionConfig", "Models", "add_labels", "collect_file",
    "compare_labels", "detection_preset", "evaluate", "run_detection",
]  # fmt: skip
