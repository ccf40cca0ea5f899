"""Tables with an episode column: Parquet and Feather files, folders of them, and pandas data frames."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from butfor.datasets.formats.dataset import Arrays, Column, Dataset, Segment, describe_left_out, rate_notes
from butfor.datasets.recording import Recording, Table
from butfor.runs.memory import Allowance

EPISODE = ("episode_index", "episode", "episode_id", "trajectory", "traj", "demo", "run")
TIME = ("timestamp", "time", "t")
STEP = ("frame_index", "step", "frame", "index_in_episode")
OBSERVATION = ("observation", "observations", "obs", "state", "states")
ACTION = ("action", "actions", "act")
COUNTER = re.compile(r".*[._/: ](id|index|idx|step|time|timestamp|pad|mask)")  # what beside actions is seldom one
WIDTHS = {"INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}  # bytes of a value of a Parquet file
BEGINNINGS = {b"PAR1": "Parquet table", b"ARRO": "Feather table"}


def import_pyarrow() -> Any:
    """The package that reads Parquet files."""
    try:
        import pyarrow
        import pyarrow.feather
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError("Parquet files need pyarrow; install it with: pip install 'butfor[data]'.") from error
    return pyarrow


def read_table(path: Path, allowance: Allowance | None = None) -> Any:
    """Read a Parquet or Feather file; tables of one dataset share an allowance."""
    pyarrow = import_pyarrow()
    allowance = allowance or Allowance()
    with path.open("rb") as file:
        begins = file.read(4)
    try:
        if begins == b"PAR1":
            held = pyarrow.parquet.ParquetFile(path)
            return read_columns(held, held.schema_arrow.names, path, allowance)
        with pyarrow.memory_map(str(path)) as source:
            held = pyarrow.ipc.open_file(source)
            batches = []
            for number in range(held.num_record_batches):
                batches.append(held.get_batch(number))
                allowance.take(batches[-1].nbytes, str(path))
            return pyarrow.Table.from_batches(batches, held.schema)
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{path} is damaged ({error}); write or download it again.") from error


def read_columns(held: Any, names: Sequence[str], path: Path, allowance: Allowance) -> Any:
    """Read columns of a Parquet file; their size is counted first, from the number of their values.

    The sizes in the file are those of its encoding: a million equal numbers take a few bytes there.
    """
    for group in range(held.metadata.num_row_groups):
        parts = held.metadata.row_group(group)
        for column in map(parts.column, range(parts.num_columns)):
            inner = column.path_in_schema  # of a list: NAME.list.element
            if any(inner == name or inner.startswith(f"{name}.") for name in names):
                size = column.num_values * WIDTHS.get(column.physical_type, 1)
                allowance.take(max(size, column.total_uncompressed_size), f"{inner} of {path}")
    return held.read(columns=list(names))


def to_array(column: Any, name: str, place: str, missing: bool = False) -> Any:
    """A column as an array [N, ...]; its lists must have equal lengths. `missing`: read empty rows as NaN."""
    pyarrow = import_pyarrow()
    if column.null_count:
        is_number = not column_of(_inner_type(column.type)).reason
        if not (missing and is_number and column.null_count < len(column)):
            raise ValueError(f"{place}: {name} is empty in {column.null_count} row(s); remove these rows.")
        given = to_array(column.drop_null(), name, place)
        filled = np.full((len(column), *given.shape[1:]), np.nan, np.result_type(given, np.float32))
        filled[np.asarray(column.is_valid())] = given
        return filled
    kind = column.type
    whole = column.combine_chunks() if isinstance(column, pyarrow.ChunkedArray) else column
    shape: list[int] = []
    rows = len(whole)
    while pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind) or pyarrow.types.is_fixed_size_list(kind):
        sizes = np.diff(whole.offsets.to_numpy()) if hasattr(whole, "offsets") else np.full(len(whole), kind.list_size)
        if len(sizes) and sizes.min() != sizes.max():
            other = int((sizes != sizes[0]).argmax())
            raise ValueError(
                f"{place}: {name} has rows of {sizes.min()} to {sizes.max()} numbers; expected the same number in all. "
                f"The first to differ is row {other}; remove it, or leave the column out."
            )
        shape.append(int(sizes[0]) if len(sizes) else 0)
        whole = whole.flatten()
        kind = whole.type
    return whole.to_numpy(zero_copy_only=False).reshape(rows, *shape)


def _inner_type(kind: Any) -> Any:
    """The type of the numbers in lists of any depth."""
    return _inner_type(kind.value_type) if hasattr(kind, "value_type") else kind


def column_of(kind: Any, value: Any = None) -> Column:
    """The shape and type of a row, from an Arrow type and a first value."""
    pyarrow = import_pyarrow()
    shape: list[int] = []
    while pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind) or pyarrow.types.is_fixed_size_list(kind):
        shape.append(len(value) if value is not None else 0)
        value = value[0] if value else None
        kind = kind.value_type
    is_struct = pyarrow.types.is_struct(kind)
    if is_struct and "bytes" in {kind.field(place).name for place in range(kind.num_fields)}:  # of Hugging Face
        return Column((), "image")
    if pyarrow.types.is_dictionary(kind):  # a categorical column of pandas
        kind = kind.value_type
    is_text = any(test(kind) for test in (pyarrow.types.is_string, pyarrow.types.is_large_string, _is_string_view))
    names = {"float": "float32", "double": "float64", "halffloat": "float16"}
    return Column(tuple(shape), "text" if is_text else names.get(str(kind), str(kind)))


def _is_string_view(kind: Any) -> bool:
    return str(kind) == "string_view"


def _times(column: Any) -> Table | None:
    """The times of the rows: floats in seconds, also of dates, or integers in a unit that is not known; else None."""
    types = import_pyarrow().types
    kinds = (types.is_floating, types.is_integer, types.is_timestamp, types.is_duration)
    if column.null_count or not len(column) or not any(test(column.type) for test in kinds):
        return None
    times: Table = column.to_numpy()
    return (times - times[0]) / np.timedelta64(1, "s") if times.dtype.kind in "mM" else times


@dataclass
class TableFile(Dataset):
    """A table in memory, with the rows of its file in their order."""

    table: Any = None
    order: Any = None
    """the rows [N], episode by episode and in the order of their steps"""
    stacks: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """columns of single numbers that are read as one array"""
    action_names: ClassVar[str] = f"{' or '.join(ACTION)}, or begin with it: action_0, action.x"

    @property
    def is_folder(self) -> bool:
        return False  # several tables are written as one

    @property
    def suffix(self) -> str:
        return ".feather" if self.kind.startswith("Feather") else ".parquet"

    def recording(
        self, observe: Sequence[str] = (), ignore: Sequence[str] = (), action: Sequence[str] = ()
    ) -> Recording:
        taken = [*ignore, *action] if not observe else [*ignore]
        table = self._without(taken) if set(taken) & {one for group in self.stacks.values() for one in group} else self
        return Dataset.recording(table, observe, ignore, action)

    def _without(self, singles: Sequence[str]) -> "TableFile":
        """This table without some columns of single numbers in the arrays that are made of them."""
        stacks = {name: tuple(one for one in group if one not in singles) for name, group in self.stacks.items()}
        nexts = {f"next_{one}" for one in singles}
        if "next_observation" in stacks:
            stacks["next_observation"] = tuple(one for one in stacks["next_observation"] if one not in nexts)
        columns = self.columns | {
            name: _stacked(self.columns, group, _shared_beginning(group)) for name, group in stacks.items() if group
        }
        left = {name for name, group in stacks.items() if not group}
        observe, action = (tuple(name for name in names if name not in left) for names in (self.observe, self.action))
        return replace(self, stacks=stacks, columns=columns, observe=observe, action=action)

    def _whole_action(self, actions: Arrays) -> Any:
        whole = super()._whole_action(actions)
        kinds = {np.dtype(self.columns[name].dtype).kind for name in actions}
        if kinds <= set("iub") and np.asarray(whole).dtype.kind == "f" and np.isfinite(whole).all():
            return whole.astype(np.int64)  # discrete actions, floats only because one that is not used is empty
        return whole

    def read(self, names: Sequence[str]) -> Iterator[Arrays]:
        singles = {
            one: to_array(self.table[one], one, str(self.path), missing=True)
            for name in names
            for one in self._singles(name)
        }
        arrays = {
            name: np.stack([singles[one] for one in self.stacks[name]], 1) if name in self.stacks else singles[name]
            for name in names
        }
        for rows in np.split(self.order, np.cumsum(self.rows)[:-1]):
            yield {name: array[rows] for name, array in arrays.items()}

    def _singles(self, name: str) -> tuple[str, ...]:
        return self.stacks.get(name, (name,))

    def frame(self, segments: Sequence[Segment] | None = None, added: Mapping[str, Any] | None = None) -> Any:
        """The rows of some segments as an Arrow table, with columns added; each segment is an episode."""
        pyarrow = import_pyarrow()
        chosen = self.whole() if segments is None else list(segments)
        new = self.table
        for name, values in (added or {}).items():
            column = np.empty(len(self.order), np.float32)
            column[self.order] = np.concatenate(values)
            new = new.append_column(name, pyarrow.array(column))
        if chosen == self.whole():
            return new  # in the order of the original
        starts = np.cumsum(self.rows) - self.rows
        kept = np.concatenate([self.order[starts[place] + a : starts[place] + b] for place, a, b in chosen])
        new = new.take(kept)
        pieces = [place for place, _, _ in chosen]
        if len(set(pieces)) < len(pieces):  # parts of one episode are episodes of their own
            episode = next(name for name in EPISODE if name in new.column_names)
            numbers = np.repeat(np.arange(len(chosen)), [b - a for _, a, b in chosen])
            kind = new.schema.field(episode).type
            column = pyarrow.array(numbers).cast(kind.value_type if pyarrow.types.is_dictionary(kind) else kind)
            new = new.set_column(new.column_names.index(episode), episode, column)
        return new

    def _write(self, temporary: Path, segments: Sequence[Segment], added: Mapping[str, Sequence[Table]]) -> None:
        pyarrow = import_pyarrow()
        table = self.frame(segments, added)
        if self.kind.startswith("Feather"):
            return pyarrow.feather.write_feather(table, temporary)  # type: ignore[no-any-return]
        pyarrow.parquet.write_table(table, temporary)


def open_table(path: Path) -> TableFile:
    """Open a Parquet or Feather file, or a folder of Parquet files."""
    pyarrow = import_pyarrow()
    if path.is_file():
        with path.open("rb") as file:
            kind = BEGINNINGS[file.read(4)]
        return table_dataset(read_table(path), path, kind)
    allowance = Allowance()
    tables = [read_table(part, allowance) for part in sorted(path.rglob("*.parquet"))]
    _check_parts(tables, path)
    return table_dataset(pyarrow.concat_tables(tables, promote_options="permissive"), path, "folder of Parquet tables")


def _check_parts(tables: Sequence[Any], path: Path) -> None:
    """Refuse tables of a folder that number their episodes alike: rows of different episodes would be mixed.

    An episode may go on in the next table. Where steps are numbered, they show it (see `table_dataset`).
    """
    done: set[Any] = set()
    for table in tables:
        name = next((name for name in EPISODE if name in table.column_names), None)
        here = [] if name is None or set(STEP) & set(table.column_names) else table[name].unique().to_pylist()
        if again := done & set(here):
            raise ValueError(
                f"{path} has the {name} {min(map(str, again))} in several tables that do not follow each other; give "
                "each episode a number of its own."
            )
        done |= set(here[:-1])


def table_dataset(table: Any, path: Path, kind: str) -> TableFile:
    """Find the episodes, observations and actions of an Arrow table by the names of its columns."""
    names = table.column_names
    episode = next((name for name in EPISODE if name in names), None)
    if episode is None:
        raise ValueError(f"{path} has no column {' or '.join(EPISODE[:3])}; it has {', '.join(names)}. Add one.")
    first = table.slice(0, 1).to_pylist()
    columns = {name: column_of(table.schema.field(name).type, first[0][name] if first else None) for name in names}
    observe = _beginning_with(OBSERVATION, names)
    action, notes = _choose_actions(columns, _beginning_with(ACTION, names))
    has_next = bool(observe) and all(f"next_{name}" in names for name in observe)
    prefix = observe[0] if len(observe) == 1 else _shared_beginning(observe)
    stacks: dict[str, tuple[str, ...]] = {}
    if len(observe) > 1 and all(not columns[name].shape and not columns[name].reason for name in observe):
        stacks["observation"] = observe
        if has_next:
            stacks["next_observation"] = tuple(f"next_{name}" for name in observe)
        columns["observation"] = _stacked(columns, observe, prefix)
        observe = ("observation",)
        prefix = "observation"
    if len(action) > 1 and all(not columns[name].shape for name in action):
        stacks["action"] = action
        columns["action"] = _stacked(columns, action, _shared_beginning(action))
        action = ("action",)
    numbers = np.unique(_read_counter(table[episode], episode, path), return_inverse=True)[1]
    step = next((name for name in (*STEP, *TIME) if name in names), None)
    steps = np.arange(len(numbers)) if step is None else _read_counter(table[step], step, path).astype(float)
    order = np.lexsort((steps, numbers))
    rows = np.bincount(numbers).astype(np.int64)
    same = (np.diff(numbers[order]) == 0) & (np.diff(steps[order]) == 0) if step in STEP else np.zeros(0, bool)
    if same.any():
        first, second = sorted(order[[same.argmax(), same.argmax() + 1]].tolist())
        raise ValueError(
            f"{path}: rows {first} and {second} are of the same {episode}, {table[episode][first].as_py()}, and have "
            f"the same {step}, {table[step][first].as_py()}. Give each episode a number of its own, or rename {step}."
        )
    texts = [name for name, column in columns.items() if column.dtype == "text"]
    task = next((name for name in ("task", "language_instruction") if name in texts), "")
    starts = order[np.cumsum(rows) - rows]
    tasks = tuple(str(table[task][int(row)].as_py()) for row in starts) if task else ()
    dataset = TableFile(
        path, kind, columns, rows, observe, action, "next" if has_next else "row", prefix, tasks,
        notes=describe_left_out(columns, observe) + notes, table=table, order=order, stacks=stacks,
    )  # fmt: skip
    time = next((name for name in (*TIME, *STEP) if name in names), None)
    times = None if time is None else _times(table[time])
    if times is not None:
        unit = "second" if times.dtype.kind == "f" and time in TIME else f"unit of {time}"
        dataset.notes += rate_notes(np.split(times[order], np.cumsum(rows)[:-1]), unit=unit)
    return dataset


def _read_counter(column: Any, name: str, path: Path) -> Any:
    """The episode or the step of each row; refuses rows in which it is missing."""
    values = to_array(column, name, str(path))
    if values.dtype.kind == "f" and np.isnan(values).any():
        first = int(np.isnan(values).argmax())
        raise ValueError(
            f"{path}: {name} is NaN in {int(np.isnan(values).sum())} row(s), first in row {first}; remove these rows, "
            "or fill in the number."
        )
    return values


def _choose_actions(columns: Mapping[str, Column], found: Sequence[str]) -> tuple[tuple[str, ...], list[str]]:
    """Of the columns with the name of an action, those that are read, and a note on the others.

    A number of a step or a flag of padding, such as `action_id` and `action_is_pad`, is read only if there is no other.
    """
    numbers = [name for name in found if not columns[name].reason]
    no_flags = [name for name in numbers if columns[name].dtype != "bool"]
    chosen = [name for name in no_flags if not COUNTER.fullmatch(name)] or no_flags or numbers
    left = [f"{name} ({columns[name].reason or columns[name].dtype})" for name in found if name not in chosen]
    notes = [f"Not read as actions: {', '.join(left)}; choose other columns with --action."] if left else []
    return tuple(chosen), notes


def _stacked(columns: Mapping[str, Column], names: Sequence[str], prefix: str) -> Column:
    """One column made of columns of single numbers."""
    dtype = np.result_type(*(columns[name].dtype for name in names)).name
    return Column((len(names),), dtype, tuple(name.removeprefix(prefix) for name in names))


def _beginning_with(words: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """The columns called by one of the words, or beginning with it and a separator: obs, obs_0, obs.cube."""
    pattern = re.compile(rf"(?:{'|'.join(words)})(?:[._/:\[ ].*|\d+)?")
    return tuple(name for name in names if pattern.fullmatch(name))


def _shared_beginning(names: Sequence[str]) -> str:
    """What all names begin with, up to a separator: observation.x, observation.y -> `observation.`."""
    pieces = {match[0] for name in names if (match := re.match(r"[^._/:]+[._/:]+", name))}
    return pieces.pop() if len(pieces) == 1 and all(name.startswith(tuple(pieces)) for name in names) else ""
