"""The paper's experiments by name, and running them here or on a Ray cluster.

Read `paper` first: it lists the arms of each study and what the paper claims about them. `units` runs one config as one
run folder, `cluster` does so on Ray.
"""

from butfor.studies.paper import STUDIES, Study, make_study, study_states, write_study
from butfor.studies.units import StudyError, UnitState, run_here, run_unit, unit_name, unit_state

__all__ = [
    "STUDIES", "Study", "StudyError", "UnitState", "make_study", "run_here", "run_unit", "study_states",
    "unit_name", "unit_state", "write_study",
]  # fmt: skip
