"""Tables: texts of any type, times in any unit, and the names of columns that are read."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from support.dataset_formats import hand_and_cube

from butfor.datasets.formats import open_dataset
from butfor.datasets.formats.tables import TableFile, table_dataset


def table_of(**columns: Any) -> TableFile:
    """A table of three episodes of the hand and the cube, with further columns."""
    observations, actions = hand_and_cube()
    padded = [np.concatenate([one, one[-1:]]) for one in actions]
    episode = np.repeat(np.arange(3), [len(one) for one in observations])
    base = {"episode": episode, "obs": list(np.concatenate(observations)), "action": list(np.concatenate(padded))}
    given = {name: column for name, column in (base | columns).items() if column is not None}
    return table_dataset(pyarrow.table(given), Path("table.parquet"), "Parquet table")


def step_and_rate() -> tuple[Any, Any]:
    """The step of each row, and the rate of its episode: 10, 30 and 10 rows per second."""
    sizes = [len(one) for one in hand_and_cube()[0]]
    return np.concatenate([np.arange(size) for size in sizes]), np.repeat([10, 30, 10], sizes)


@pytest.mark.parametrize("kind", ["string", "large_string", "string_view", "dictionary"])
def test_tasks_are_read_from_texts_of_any_type(kind: str) -> None:
    tasks = ["push" if step else "lift" for step in step_and_rate()[0]]
    column = pyarrow.array(tasks).dictionary_encode() if kind == "dictionary" else pyarrow.array(tasks)
    if kind not in ("dictionary", "string"):
        column = column.cast(getattr(pyarrow, kind)())
    dataset = table_of(task=column)
    assert dataset.columns["task"].dtype == "text"
    assert dataset.tasks == ("lift",) * 3  # of the first row of each episode


def test_different_rates_are_told_for_times_of_any_type() -> None:
    step, rate = step_and_rate()
    nanoseconds = (step * 1e9 / rate).astype(np.int64)
    dates = (np.datetime64("2026-01-01T00:00:00", "ns") + nanoseconds).astype("datetime64[us]")
    for times in (
        step / rate,
        dates,
        pyarrow.array(dates, pyarrow.timestamp("us", "UTC")),
        pyarrow.array(dates - dates[0]),
    ):
        assert "10 to 30 rows per second" in table_of(timestamp=times).notes[0]
    assert "every 3.33e+07 to 1e+08 units of timestamp" in table_of(timestamp=nanoseconds).notes[0]
    assert table_of(timestamp=(step * 1e8).astype(np.int64)).notes == []
    assert table_of(step=step, time=pyarrow.array([None] * len(step), pyarrow.int64())).notes == []
    assert table_of(step=step, time=["noon"] * len(step)).notes == []


@pytest.mark.parametrize("kind", ["int32", "large_string", "dictionary"])
def test_parts_of_an_episode_get_numbers_of_their_own(kind: str, tmp_path: Path) -> None:
    names = pyarrow.array(["7", "8", "9"]).take(pyarrow.array(np.repeat(range(3), (6, 4, 8))))
    column = names.dictionary_encode() if kind == "dictionary" else names.cast(getattr(pyarrow, kind)())
    copy = table_of(episode=column).write(tmp_path / "cut.parquet", [(0, 0, 3), (0, 3, 6)])
    assert open_dataset(copy).rows.tolist() == [3, 3]


def test_the_names_of_actions_are_told() -> None:
    dataset = table_of(action=None, ax0=np.zeros(18))
    assert dataset.action == ()
    with pytest.raises(ValueError, match=r"ax0.* action or actions or act, .*action_0"):
        dataset.recording()
