"""Other people's formats. `opening.py` recognises a dataset by its content; read it first.

`dataset.py` has what all formats share: the list of columns, a `Recording` of the episodes, and copies with columns
added. `hdf5.py` (a group for each episode), `flat.py` (one row per step), `lerobot.py` and `tables.py` are the formats.
None needs the package of its format.
"""

from butfor.datasets.formats.dataset import Column, Dataset, Segment
from butfor.datasets.formats.opening import copy_path, default_copy, is_frame, open_dataset

__all__ = ["Column", "Dataset", "Segment", "copy_path", "default_copy", "is_frame", "open_dataset"]
