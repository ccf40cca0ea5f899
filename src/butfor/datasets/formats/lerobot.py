"""LeRobot folders, versions 2.0, 2.1 and 3.0: Parquet tables of rows and JSON beside them, without their package."""

import json
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from butfor.datasets.formats.dataset import (
    Arrays,
    Column,
    Dataset,
    Segment,
    as_its_format,
    describe_left_out,
    rate_notes,
)
from butfor.datasets.formats.tables import import_pyarrow, read_columns, read_table, to_array
from butfor.datasets.recording import Table
from butfor.runs.files import read_json
from butfor.runs.memory import Allowance

VERSIONS = ("v2.0", "v2.1", "v3.0")
DONE = "next.done"
COUNTERS = ("timestamp", "frame_index", "episode_index", "index", "task_index")


def is_lerobot(folder: Path) -> bool:
    """Whether a folder contains a LeRobot dataset."""
    return (folder / "meta" / "info.json").is_file() and (folder / "data").is_dir()


@dataclass
class LeRobotFolder(Dataset):
    """A LeRobot dataset: every Parquet file under data/ holds whole episodes."""

    info: dict[str, Any] = field(default_factory=dict)
    places: list[tuple[Path, int]] = field(default_factory=list)
    """the file and the first row of each episode"""
    action_names: ClassVar[str] = "action"

    @property
    def is_v3(self) -> bool:
        """Whether files hold many episodes, and lists of episodes and tasks are Parquet files."""
        return str(self.info["codebase_version"]) == "v3.0"

    def check_copy(
        self, out: Path | str, added: Iterable[str] = (), overwrite: bool = False, cut: bool = False
    ) -> Path:
        if self.is_v3 and not any((self.path / "meta" / "episodes").rglob("*.parquet")):
            raise ValueError(f"{self.path} has no list of its episodes under meta/episodes/; download it completely.")
        return super().check_copy(out, added, overwrite, cut)

    def is_of_format(self, folder: Path) -> bool:
        return is_lerobot(folder)

    def read(self, names: Sequence[str]) -> Iterator[Arrays]:
        pyarrow = import_pyarrow()
        opened: tuple[Path | None, Arrays] = (None, {})
        allowance = Allowance()
        for (file, first), rows in zip(self.places, self.rows, strict=True):
            if file != opened[0]:
                table = read_columns(pyarrow.parquet.ParquetFile(file), names, file, allowance)
                if missing := [name for name in names if name not in table.column_names]:
                    raise ValueError(f"{file} has no column {missing[0]}, which meta/info.json lists.")
                opened = file, {name: to_array(table[name], name, str(file)) for name in names}
            yield {name: array[first : first + rows] for name, array in opened[1].items()}

    @property
    def videos(self) -> list[str]:
        """The features that are videos."""
        return [name for name, one in self.info["features"].items() if one.get("dtype") == "video"]

    @property
    def uncuttable(self) -> str:
        words = f"stores a video for each episode ({', '.join(self.videos)}), which cannot be cut; keep whole episodes"
        return f"{words}, or convert the dataset to v3.0" if self.videos and not self.is_v3 else ""

    def _write(self, temporary: Path, segments: Sequence[Segment], added: Mapping[str, Sequence[Table]]) -> None:
        new: list[Any] = []
        starts = np.cumsum([0, *(last - first for _, first, last in segments)])
        opened: tuple[Path | None, Any] = (None, None)
        for number, (place, first, last) in enumerate(segments):
            file, start = self.places[place]
            if file != opened[0]:
                opened = file, read_table(file)
            table = opened[1].slice(start + first, last - first)
            columns = {name: values[place] for name, values in added.items()}
            is_end = last == self.rows[place]
            new.append(self._renumber(table, number, int(starts[number]), columns, first, is_end))
        self._copy_meta(temporary)
        self._write_tables(temporary, segments, new)
        with as_its_format(self.path / "meta"):
            self._write_episodes(temporary, segments, new, starts)
        self._write_info(temporary, segments, new, added)
        self._copy_videos(temporary, segments)

    def _renumber(
        self, table: Any, number: int, start: int, added: Mapping[str, Table], first: int, is_end: bool
    ) -> Any:
        """Rows of one new episode: its number, its place in the dataset, frames and times from 0, and new columns.

        If it does not have the end of its original, it is marked as done in its last row.
        """
        pyarrow = import_pyarrow()
        rows = len(table)
        counters: dict[str, Any] = {
            "episode_index": np.full(rows, number),
            "index": start + np.arange(rows),
            "frame_index": np.arange(rows),
        }
        if first and "timestamp" in table.column_names:
            times = to_array(table["timestamp"], "timestamp", str(self.path))
            counters["timestamp"] = times - times[0]
        if not is_end and DONE in table.column_names:
            counters[DONE] = to_array(table[DONE], DONE, str(self.path)).copy()
            counters[DONE][-1] = True
        for name, values in counters.items():
            if name in table.column_names:
                column = pyarrow.array(values.tolist(), table.schema.field(name).type)
                table = table.set_column(table.column_names.index(name), table.schema.field(name), column)
        for name, column in added.items():
            table = table.append_column(name, pyarrow.array(np.asarray(column[first : first + rows], np.float32)))
        about = table.schema.metadata or {}
        if b"huggingface" in about:  # the list of columns that the `datasets` package keeps in the file
            listed = json.loads(about[b"huggingface"])
            for name in added:
                listed.setdefault("info", {}).setdefault("features", {})[name] = {"dtype": "float32", "_type": "Value"}
            table = table.replace_schema_metadata(about | {b"huggingface": json.dumps(listed).encode()})
        return table

    def _data_file(self, number: int, place: int) -> Path:
        """Where the rows of a new episode are: a file of its own, or from version 3.0 on that of the original."""
        if self.is_v3:
            return self.places[place][0].relative_to(self.path)
        return Path(f"data/chunk-{number // self._chunk:03d}/episode_{number:06d}.parquet")

    @property
    def _chunk(self) -> int:
        return int(self.info.get("chunks_size", 1000))

    def _write_tables(self, temporary: Path, segments: Sequence[Segment], new: Sequence[Any]) -> None:
        pyarrow = import_pyarrow()
        files: dict[Path, list[Any]] = {}
        for number, ((place, _, _), table) in enumerate(zip(segments, new, strict=True)):
            files.setdefault(self._data_file(number, place), []).append(table)
        for file, tables in files.items():
            (temporary / file).parent.mkdir(parents=True, exist_ok=True)
            pyarrow.parquet.write_table(pyarrow.concat_tables(tables), temporary / file)

    def _copy_meta(self, temporary: Path) -> None:
        """Copy what describes the dataset as a whole; what lists episodes is written by the caller."""
        replaced = ("info.json", "episodes.jsonl", "episodes_stats.jsonl", "stats.json")
        (temporary / "meta").mkdir(parents=True)
        for path in (self.path / "meta").iterdir():
            if path.is_file() and path.name not in replaced:
                shutil.copyfile(path, temporary / "meta" / path.name)

    def _write_episodes(self, temporary: Path, segments: Sequence[Segment], new: Sequence[Any], starts: Any) -> None:
        if self.is_v3:
            return self._write_episode_table(temporary, segments, new, starts)
        listed = {row["episode_index"]: row for row in _read_lines(self.path / "meta" / "episodes.jsonl")}
        stats = {row["episode_index"]: row for row in _read_lines(self.path / "meta" / "episodes_stats.jsonl")}
        episodes = []
        statistics = []
        for number, ((place, first, last), table) in enumerate(zip(segments, new, strict=True)):
            episodes.append(listed.get(place, {}) | {"episode_index": number, "length": last - first})
            if stats:
                before = stats.get(place, {}).get("stats", {})
                found = self._episode_stats(before, table, self.is_cut((place, first, last)))
                statistics.append({"episode_index": number, "stats": found})
        _write_lines(temporary / "meta" / "episodes.jsonl", episodes)
        if statistics:
            _write_lines(temporary / "meta" / "episodes_stats.jsonl", statistics)

    def _episode_stats(self, before: Mapping[str, Any], table: Any, is_cut: bool) -> dict[str, Any]:
        """Statistics of a new episode; those of images are known only if it is a whole episode of the original."""
        found = self._measure([table], before)
        return found if is_cut else found | {name: one for name, one in before.items() if name not in COUNTERS}

    def _write_episode_table(
        self, temporary: Path, segments: Sequence[Segment], new: Sequence[Any], starts: Any
    ) -> None:
        pyarrow = import_pyarrow()
        files = sorted((self.path / "meta" / "episodes").rglob("*.parquet"))
        table = pyarrow.concat_tables([read_table(file) for file in files], promote_options="default")
        rows = {row["episode_index"]: row for row in table.to_pylist()}
        fps = float(self.info.get("fps", 1))
        written = []
        for number, (place, first, last) in enumerate(segments):
            row = dict(rows.get(place, {}))
            row |= {"episode_index": number, "length": last - first}
            row |= {"dataset_from_index": int(starts[number]), "dataset_to_index": int(starts[number + 1])}
            row |= {"meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0}
            for key in [key for key in row if key.endswith("/from_timestamp")]:  # where its video begins and ends
                begin = row[key] + first / fps
                row |= {key: begin, key.replace("/from_", "/to_"): begin + (last - first) / fps}
            row |= self._stats_columns(row, new[number], self.is_cut((place, first, last)), table.schema)
            written.append({name: value for name, value in row.items() if name in table.column_names})
        target = temporary / "meta" / "episodes" / "chunk-000" / "file-000.parquet"
        target.parent.mkdir(parents=True, exist_ok=True)
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(written, schema=table.schema), target)

    def _stats_columns(self, row: Mapping[str, Any], table: Any, is_cut: bool, schema: Any) -> dict[str, Any]:
        """The columns stats/FEATURE/KEY of a new episode; empty where they are not known."""
        before: dict[str, dict[str, Any]] = {}
        for column in (name for name in row if name.startswith("stats/") and name.count("/") == 2):
            _, feature, key = column.split("/")
            before.setdefault(feature, {})[key] = row[column]
        found = self._episode_stats(before, table, is_cut)
        columns = {}
        for feature, keys in before.items():
            for key in keys:
                value = found.get(feature, {}).get(key)
                name = f"stats/{feature}/{key}"
                columns[name] = value if value is keys[key] else _of_type(value, schema.field(name).type)
        return columns

    def _write_info(
        self, temporary: Path, segments: Sequence[Segment], new: Sequence[Any], added: Mapping[str, Any]
    ) -> None:
        info = dict(self.info)
        feature = {"dtype": "float32", "shape": [1], "names": None}
        info["features"] = dict(info["features"]) | {name: dict(feature) for name in added}
        info |= {"total_episodes": len(segments), "total_frames": int(sum(map(len, new)))}
        if "total_chunks" in info:
            info["total_chunks"] = -(-len(segments) // self._chunk)
        if info.get("total_videos"):
            info["total_videos"] = info["total_videos"] // max(len(self), 1) * len(segments)
        info["splits"] = {"train": f"0:{len(segments)}"}
        (temporary / "meta" / "info.json").write_text(json.dumps(info, indent=4), encoding="utf-8")
        if (self.path / "meta" / "stats.json").is_file():
            before = read_json(self.path / "meta" / "stats.json")
            found = self._measure(new, before)
            is_whole = list(segments) == self.whole()
            stats = found | before if is_whole else before | found  # those of images are not measured
            (temporary / "meta" / "stats.json").write_text(json.dumps(stats, indent=4), encoding="utf-8")

    def _measure(self, tables: Sequence[Any], before: Mapping[str, Any]) -> dict[str, Any]:
        """Statistics of all columns of numbers, with the quantiles (q01) that the original has of them."""
        pyarrow = import_pyarrow()
        whole = pyarrow.concat_tables(tables)
        found = {}
        for name in whole.column_names:
            known = self.columns.get(name)
            if (name in before or name not in COUNTERS) and (known is None or not known.reason):
                values = to_array(whole[name], name, str(self.path)).reshape(len(whole), -1).astype(np.float64)
                found[name] = {key: getattr(values, key)(0).tolist() for key in ("min", "max", "mean", "std")}
                found[name]["count"] = [len(values)]
                for key in filter(re.compile(r"q\d\d").fullmatch, before.get(name, ())):
                    found[name][key] = np.quantile(values, int(key[1:]) / 100, axis=0).tolist()
        return found

    def _copy_videos(self, temporary: Path, segments: Sequence[Segment]) -> None:
        if self.is_v3 and (self.path / "videos").is_dir():
            for path in sorted((self.path / "videos").rglob("*")):  # without modes: the original may be read-only
                copy = temporary / path.relative_to(self.path)
                copy.mkdir(parents=True, exist_ok=True) if path.is_dir() else shutil.copyfile(path, copy)
        if self.is_v3:
            return
        for number, (place, _, _) in enumerate(segments):
            for name in self.videos:
                where = "videos/chunk-{:03d}/{}/episode_{:06d}.mp4"
                source = self.path / where.format(place // self._chunk, name, place)
                target = temporary / where.format(number // self._chunk, name, number)
                if source.is_file():
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(source, target)


def open_lerobot(folder: Path) -> LeRobotFolder:
    """Open a LeRobot dataset; reads the counters of all rows.

    Raises:
        ValueError: another version, no rows, or episodes in pieces.
    """
    info = read_json(folder / "meta" / "info.json")
    version = str(info.get("codebase_version")) if isinstance(info, dict) else "none"
    if version not in VERSIONS or not isinstance(info.get("features"), dict):
        raise ValueError(
            f"{folder} is a LeRobot dataset of version {version}; {', '.join(VERSIONS)} are read. Convert it."
        )
    columns = {name: _column(feature) for name, feature in info["features"].items()}
    pyarrow = import_pyarrow()
    places: dict[int, tuple[Path, int]] = {}
    rows: dict[int, int] = {}
    times: dict[int, Table] = {}
    task_numbers: dict[int, int] = {}
    allowance = Allowance()
    for file in sorted((folder / "data").rglob("*.parquet")):
        if folder.resolve() not in file.resolve().parents:
            raise ValueError(f"{file} is a link to another folder, which is not followed; copy the file there.")
        try:
            held = pyarrow.parquet.ParquetFile(file)
            table = read_columns(held, [name for name in COUNTERS if name in held.schema_arrow.names], file, allowance)
        except (pyarrow.ArrowException, OSError) as error:
            raise ValueError(f"{file} is damaged ({error}); download it again.") from error
        numbers = to_array(table["episode_index"], "episode_index", str(file))
        begins = np.flatnonzero(np.diff(numbers, prepend=numbers[:1] - 1))
        for first, last in zip(begins, [*begins[1:], len(numbers)], strict=True):
            number = int(numbers[first])
            if number in places:
                raise ValueError(f"Episode {number} of {folder} is in pieces; its rows must follow each other.")
            places[number] = file, int(first)
            rows[number] = int(last - first)
            if "timestamp" in table.column_names:
                times[number] = to_array(table["timestamp"], "timestamp", str(file))[first:last]
            if "task_index" in table.column_names:
                task_numbers[number] = int(table["task_index"][int(first)].as_py())
    if not places:
        raise ValueError(f"{folder} has no rows under data/; download it completely.")
    if sorted(places) != list(range(len(places))):
        raise ValueError(
            f"{folder} has the episodes {sorted(places)[:5]}...; expected 0 to {len(places) - 1}. "
            "Download it completely, or number its episodes from 0 on."
        )
    order = sorted(places)
    names = _task_names(folder, version)
    observe = tuple(name for name in columns if name.startswith("observation"))
    notes = describe_left_out(columns, observe) + rate_notes(
        [times[number] for number in order if times], info.get("fps")
    )
    if info.get("total_episodes") not in (None, len(places)):
        notes.append(f"meta/info.json lists {info['total_episodes']} episodes; {len(places)} are there.")
    return LeRobotFolder(
        folder, f"LeRobot {version}", columns, np.array([rows[number] for number in order], np.int64), observe,
        ("action",) if "action" in columns else (), "row", "observation.",
        tuple(names.get(task_numbers.get(number, 0), "") for number in order) if names else (),
        notes=notes, info=info, places=[places[number] for number in order],
    )  # fmt: skip


def _of_type(value: Sequence[float] | None, kind: Any) -> Any:
    """Numbers as a value of an Arrow type: a list of them, or a single number."""
    if value is None:
        return None
    types = import_pyarrow().types
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    inner = kind.value_type if is_list else kind
    cast = bool if types.is_boolean(inner) else int if types.is_integer(inner) else float
    numbers = [cast(one) for one in value]
    return numbers if is_list else numbers[0]


def _column(feature: Mapping[str, Any]) -> Column:
    """A column as meta/info.json describes it; names are a list, or a list in a dictionary."""
    names = feature.get("names")
    if isinstance(names, dict):
        names = next((value for value in names.values() if isinstance(value, list)), None)
    shape = tuple(int(size) for size in feature.get("shape", ()))
    kind = str(feature.get("dtype"))
    listed = tuple(map(str, names)) if isinstance(names, list) and kind not in ("image", "video") else ()
    return Column(shape, "text" if kind == "string" else kind, listed)


def _task_names(folder: Path, version: str) -> dict[int, str]:
    """The task of each task number."""
    if version == "v3.0":
        path = folder / "meta" / "tasks.parquet"
        rows = read_table(path).to_pylist() if path.is_file() else []
        return {row["task_index"]: str(row.get("task", row.get("__index_level_0__", ""))) for row in rows}
    return {row["task_index"]: str(row["task"]) for row in _read_lines(folder / "meta" / "tasks.jsonl")}


def _read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a file with one JSON object per line; none if there is no file."""
    if not path.is_file():
        return []
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON ({error}); download it again.") from error


def _write_lines(path: Path, rows: Sequence[Any]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
