"""Statistics of learning curves, the paper's claims and the verdicts on them, from run folders; no torch, no drawing.

Read `statistics` first. `rank_tests` has the exact tests, `claims` and `table_claims` a rule for each kind of claim,
`arms` reads a study with its runs and verdicts, `detection_runs` the tables of a detection run, and `rows` turns the
numbers of arms into cells of tables.
"""

from butfor.analysis.arms import ReadArm, ReadStudy, read_run_folder, read_study, study_names
from butfor.analysis.claims import Claim, Curve, Verdict, decide_together, judge
from butfor.analysis.statistics import (
    area_under_curve,
    curve_summary,
    episodes_to_reach,
    export_rliable,
    probability_of_improvement,
    reach_summary,
    speedup,
)
from butfor.analysis.table_claims import judge_tables

__all__ = [
    "Claim", "Curve", "ReadArm", "ReadStudy", "Verdict", "area_under_curve", "curve_summary", "decide_together",
    "episodes_to_reach", "export_rliable", "judge", "judge_tables", "probability_of_improvement", "reach_summary",
    "read_run_folder", "read_study", "speedup", "study_names",
]  # fmt: skip
