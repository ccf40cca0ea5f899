"""Detection of influence: detectors, labels, and the experiment that compares them (the paper's section 5).

Read `experiment.py` first: `run_detection` is the whole sequence behind `butfor detect`. `detectors.py` has the
detectors, `thresholds.py` their metrics and decisions, `side_studies.py` the further questions, `data.py` the episodes.
`collect.py` plays episodes with labels (`butfor collect`), `agreement.py` compares labels (`butfor labels`).
"""

from butfor.detection.agreement import compare, write_agreement
from butfor.detection.collect import CollectConfig, add_labels, collect_file
from butfor.detection.detectors import DETECTORS, Models
from butfor.detection.experiment import run_detection
from butfor.detection.settings import DetectionConfig, detection_preset
from butfor.detection.thresholds import evaluate

__all__ = [
    "DETECTORS", "CollectConfig", "DetectionConfig", "Models", "add_labels", "collect_file", "compare",
    "detection_preset", "evaluate", "run_detection", "write_agreement",
]  # fmt: skip
