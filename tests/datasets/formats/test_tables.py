"""Tables: texts of any type, times in any unit, and the names of columns that are read."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
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


def shown_actions(dataset: TableFile) -> tuple[str, ...]:
    """The columns that the action is made of."""
    return tuple(one for name in dataset.action for one in dataset.stacks.get(name, (name,)))


def test_counters_flags_and_texts_are_no_actions() -> None:
    step, _ = step_and_rate()
    whole = np.stack(table_of().table["action"].to_numpy())
    flag = np.zeros(len(step), bool)
    dataset = table_of(
        action=None,
        action_x=whole[:, 0],
        action_y=whole[:, 1],
        action_id=step,
        action_is_pad=flag,
        action_name=["a"] * 18,
    )
    assert shown_actions(dataset) == ("action_x", "action_y")
    np.testing.assert_array_equal(dataset.recording().action, np.concatenate(hand_and_cube()[1]))
    for words in ("action_id (int64)", "action_is_pad (bool)", "action_name (values of type text)", "--action"):
        assert words in dataset.notes[0]
    assert shown_actions(table_of(action_is_pad=flag)) == ("action",)
    lone = table_of(action=None, action_id=step % 2, action_is_pad=flag)  # the number of a discrete action
    assert shown_actions(lone) == ("action_id",)
    assert shown_actions(table_of(action=flag)) == ("action",)


def test_columns_of_the_action_can_be_left_out() -> None:
    whole = np.stack(table_of().table["action"].to_numpy())
    dataset = table_of(action=None, action_x=whole[:, 0], action_y=whole[:, 1], action_z=whole[:, 0])
    found = dataset.recording(ignore=["action_z"])
    np.testing.assert_array_equal(found.action, np.concatenate(hand_and_cube()[1]))
    with pytest.raises(ValueError, match="no actions"):
        dataset.recording(ignore=["action_x", "action_y", "action_z"])
    assert table_of(action_name=["a"] * 18).recording(ignore=["action_name"]).action.shape == (15, 2)


def test_columns_with_other_names_can_be_the_action() -> None:
    whole = np.stack(table_of().table["action"].to_numpy())
    dataset = table_of(action=None, u1=whole[:, 0], u0=whole[:, 1], note=["a"] * 18)
    np.testing.assert_array_equal(dataset.recording(action=["u1", "u0"]).action, np.concatenate(hand_and_cube()[1]))
    with pytest.raises(ValueError, match=r"--action names 'u7'.*u0"):
        dataset.recording(action=["u7"])
    with pytest.raises(ValueError, match=r"'note' holds values of type text.*--action"):
        dataset.recording(action=["note"])
    with pytest.raises(ValueError, match="--action"):
        dataset.recording()


def test_an_action_is_not_observed_too() -> None:
    """Neither a number of the observation that is chosen as the action, nor one that is left out."""
    numbers = np.concatenate(hand_and_cube()[0])
    dataset = table_of(obs=None, **{f"obs_{place}": numbers[:, place] for place in range(6)})
    assert dataset.recording(action=["obs_5"]).observation.shape[1] == 5
    np.testing.assert_array_equal(dataset.recording(ignore=["obs_1", "obs_2"]).observation, numbers[:, [0, 3, 4, 5]])


def missing_in_last_rows(values: Any) -> Any:
    """Rows as a list, with None in the last one of each episode."""
    last = np.cumsum([len(one) for one in hand_and_cube()[0]]) - 1
    return [None if row in last else value for row, value in enumerate(values)]


def test_an_action_that_is_not_used_may_be_empty() -> None:
    whole = np.stack(table_of().table["action"].to_numpy())
    singles = {f"action_{place}": missing_in_last_rows(whole[:, place].tolist()) for place in range(2)}
    for columns in (singles | {"action": None}, {"action": missing_in_last_rows(whole.tolist())}):
        found = table_of(**columns).recording().action
        np.testing.assert_allclose(found, np.concatenate(hand_and_cube()[1]))
    discrete = table_of(action=missing_in_last_rows(step_and_rate()[0] % 3)).recording().action
    assert discrete.dtype.kind == "i"


def test_an_empty_number_is_told_with_its_place() -> None:
    whole = np.stack(table_of().table["action"].to_numpy()).tolist()
    whole[2] = None
    with pytest.raises(ValueError, match="episode 0, step 2"):
        table_of(action=whole).recording()
    with pytest.raises(ValueError, match=r"action is empty in 18 row"):
        table_of(action=pyarrow.array([None] * 18, pyarrow.list_(pyarrow.float32()))).recording()


@pytest.mark.parametrize("name", ["episode", "step"])
def test_a_missing_counter_is_told(name: str) -> None:
    values = np.arange(18) // 6 + 0.0
    values[5] = np.nan
    with pytest.raises(ValueError, match=rf"{name} is NaN in 1 row\(s\), first in row 5"):
        table_of(**{name: values})
    with pytest.raises(ValueError, match=f"{name} is empty in 1 row"):
        table_of(**{name: [None, *values[:5], *values[6:]]})


@pytest.mark.parametrize("columns", [{"step": [0, 1, 2]}, {}], ids=["steps", "no steps"])
def test_tables_that_number_their_episodes_alike_are_not_mixed(columns: dict[str, list[int]], tmp_path: Path) -> None:
    episodes = [0, 0, 0] if columns else [0, 0, 1]
    for name in ("a", "b"):
        table = pyarrow.table({"episode": episodes, "obs": [0.0, 1.0, 2.0], "action": [0.0, 1.0, 0.0], **columns})
        pyarrow.parquet.write_table(table, tmp_path / f"{name}.parquet")
    with pytest.raises(ValueError, match="episode"):
        open_dataset(tmp_path)


def test_an_episode_may_go_on_in_the_next_table_and_with_other_types(tmp_path: Path) -> None:
    for name, episodes, kind in (("a", [0, 0, 1], np.float32), ("b", [1, 1, 2], np.float64)):
        numbers = np.arange(3, dtype=kind)
        table = pyarrow.table({"episode": episodes, "obs": numbers, "action": numbers})
        pyarrow.parquet.write_table(table, tmp_path / f"{name}.parquet")
    assert open_dataset(tmp_path).rows.tolist() == [2, 3, 1]


def test_missing_steps_are_told() -> None:
    table = pyarrow.table({"episode": [0] * 4, "step": [0, 1, 2, 9], "obs": [0.0] * 4, "action": [0.0] * 4})
    assert any("missing" in note for note in table_dataset(table, Path("table"), "table").notes)


def test_a_row_of_another_width_is_told_with_its_place() -> None:
    rows = [[0.0, 1.0], [0.0, 1.0], [0.0, 1.0, 2.0], [0.0, 1.0]]
    table = pyarrow.table({"episode": [0] * 4, "obs": rows, "action": [0.0] * 4})
    with pytest.raises(ValueError, match=r"obs.*row 2"):
        table_dataset(table, Path("table"), "table").recording()


def test_a_struct_is_not_called_an_image() -> None:
    table = pyarrow.table({"episode": [0], "obs": [{"x": 0.0}], "obs_camera": [{"bytes": b"", "path": ""}]})
    columns = table_dataset(table, Path("table"), "table").columns
    assert "image" not in columns["obs"].reason
    assert "image" in columns["obs_camera"].reason
