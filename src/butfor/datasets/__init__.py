"""Recorded data of other people: read it, score every state, and write the scores back.

`open` recognises a dataset by its content; the formats are in `formats/`. `score.py` has the whole sequence behind
`butfor score` and is the file to read first. `recording.py` turns arrays of many forms into one table of states;
`files.py` reads and writes .npz files and Minari datasets.
"""

from butfor.datasets.files import read_data, read_minari, read_npz, write_columns, write_minari
from butfor.datasets.formats import Dataset
from butfor.datasets.formats import open_dataset as open
from butfor.datasets.recording import Recording, read_arrays
from butfor.datasets.score import Options, score_file

__all__ = [
    "Dataset", "Options", "Recording", "open", "read_arrays", "read_data", "read_minari", "read_npz", "score_file",
    "write_columns", "write_minari",
]  # fmt: skip
