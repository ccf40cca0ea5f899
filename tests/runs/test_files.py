"""Files are whole or absent, and reading one never runs anything that it contains."""

import os
import pickle
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from support.files import Malicious, full_disk, protected

from butfor.rollouts.episodes import Episodes
from butfor.runs.files import (
    atomic_write,
    check_writable,
    load_checkpoint,
    load_tensors,
    read_json,
    save_checkpoint,
    save_tensors,
    write_json,
)

Writer = Callable[[Path, int], None]


def episodes_of(size: int) -> Episodes:
    """One episode of `size` steps with numbers that do not compress."""
    number = np.random.default_rng(0).standard_normal((1, size + 1, 1)).astype(np.float32)
    return Episodes(number, number[:, 1:], number, number, np.array([size]), np.ones((1, size), bool))


# each writes about 4 `size` bytes or more
WRITERS: dict[str, Writer] = {
    "json": lambda path, size: write_json(path, list(range(size))),
    "tensors": lambda path, size: save_tensors(path, {"weight": torch.arange(size).float()}, {"size": size}),
    "checkpoint": lambda path, size: save_checkpoint(path, {"weight": torch.arange(size).float()}),
    "episodes": lambda path, size: episodes_of(size).save(path),
}
each_writer = pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS.keys())


@pytest.fixture
def read_only() -> Iterator[Path]:
    """A folder that can be read and not written."""
    with tempfile.TemporaryDirectory() as name:
        Path(name, "old").write_text("old")
        with protected(Path(name)):
            yield Path(name)


# ------------------------------------------------------------------------------------------ check_writable


def test_a_place_that_can_be_written_is_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "held").write_text("old")
    for path in (tmp_path, tmp_path / "held", tmp_path / "file", tmp_path / "a" / "b" / "file"):
        check_writable(path)
    assert [path.name for path in tmp_path.iterdir()] == ["held"]
    assert (tmp_path / "held").read_text() == "old"


def test_a_place_that_cannot_be_written_is_told_before_the_work(read_only: Path) -> None:
    for path in (read_only, read_only / "file", read_only / "a" / "file"):
        with pytest.raises(OSError, match=f"{path} .*{read_only} "):
            check_writable(path)
    with pytest.raises(OSError, match=f"{read_only / 'old'} "):
        check_writable(read_only / "old" / "file")


# ---------------------------------------------------------------------------------------------- written


def test_written_makes_missing_folders_and_leaves_only_the_file(tmp_path: Path) -> None:
    with atomic_write(tmp_path / "a" / "b" / "file.txt") as temporary:
        assert temporary.parent == tmp_path / "a" / "b"  # the same file system, so that renaming is atomic
        temporary.write_text("new")
        assert not (tmp_path / "a" / "b" / "file.txt").exists()
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["file.txt"]
    assert (tmp_path / "a" / "b" / "file.txt").read_text() == "new"


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, SystemExit, MemoryError])
def test_a_crash_while_writing_leaves_the_old_file_and_no_temporary(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "file.txt"
    path.write_text("old")

    def crash() -> None:
        with atomic_write(path) as temporary:
            temporary.write_text("half of the n")
            raise error

    with pytest.raises(error):
        crash()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_crash_before_anything_is_written_leaves_nothing(tmp_path: Path) -> None:
    def crash() -> None:
        with atomic_write(tmp_path / "file.txt"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        crash()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_the_way_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.mkdir()
    with pytest.raises(OSError, match=r"config\.json"):
        write_json(path, {})
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_where_a_folder_is_needed_is_refused_and_kept(tmp_path: Path) -> None:
    (tmp_path / "folder").write_text("precious")
    with pytest.raises(OSError, match=f"{tmp_path / 'folder'}"):
        write_json(tmp_path / "folder" / "config.json", {})
    assert (tmp_path / "folder").read_text() == "precious"


def test_a_value_that_is_not_json_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    write_json(path, {"seeds": 5})
    with pytest.raises(TypeError, match="JSON"):
        write_json(path, {"seeds": {5}})
    assert read_json(path) == {"seeds": 5}
    assert list(tmp_path.iterdir()) == [path]


@each_writer
def test_a_full_disk_gives_an_os_error_and_leaves_the_old_file(tmp_path: Path, write: Writer) -> None:
    path = tmp_path / "file"
    write(path, 10)
    old = path.read_bytes()
    with full_disk(20_000), pytest.raises(OSError):  # noqa: PT011 (each system words it differently)
        write(path, 100_000)
    assert path.read_bytes() == old
    assert list(tmp_path.iterdir()) == [path]


@each_writer
def test_a_read_only_folder_gives_an_os_error_and_stays_as_it_was(read_only: Path, write: Writer) -> None:
    with pytest.raises(OSError):  # noqa: PT011
        write(read_only / "file", 10)
    with pytest.raises(OSError):  # noqa: PT011
        write(read_only / "old", 10)
    assert [path.name for path in read_only.iterdir()] == ["old"]
    assert (read_only / "old").read_text() == "old"


@each_writer
def test_who_may_read_a_file_is_decided_by_the_umask_alone(tmp_path: Path, write: Writer) -> None:
    before = os.umask(0o022)
    try:
        write(tmp_path / "file", 10)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o644


# ------------------------------------------------------------------------------------------------- JSON


def test_json_comes_back_as_it_was(tmp_path: Path) -> None:
    value = {"name": "Größe ± 1", "list": [1, 2.5, None, True], "nested": {"a": {"b": 1e-300}}}
    write_json(tmp_path / "value.json", value)
    assert read_json(tmp_path / "value.json") == value


@pytest.mark.parametrize("content", [b"", b"{", b'{"seeds": 5', b"\xff\xfe{}", b"\x80", b"seeds: 5"])
def test_broken_json_is_refused_with_the_file_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"config\.json"):
        read_json(path)


def test_a_missing_json_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        read_json(tmp_path / "config.json")


# ---------------------------------------------------------------------------------------------- tensors


def test_tensors_and_header_come_back_bit_for_bit(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    weight = torch.tensor([[0.1, float("nan")], [float("inf"), -0.0]])
    tensors = {"weight": weight, "turned": weight.T, "count": torch.tensor(3), "none": torch.zeros(0, 2)}
    save_tensors(path, tensors, {"kind": "influence", "scale": [1.5]})
    loaded, header = load_tensors(path)
    assert header == {"kind": "influence", "scale": [1.5]}
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype
        assert loaded[name].shape == tensor.shape
        assert loaded[name].numpy().tobytes() == tensor.numpy().tobytes()  # -0.0 and NaN count, too


def test_truncated_tensors_are_refused_at_any_length(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_tensors(path, {"weight": torch.arange(10).float()}, {"kind": "influence"})
    whole = path.read_bytes()
    for length in range(0, len(whole), 3):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"model\.safetensors"):
            load_tensors(path)


@pytest.mark.parametrize("content", [b"hello", b"\x00" * 100, b"\xff" * 100, pickle.dumps({"a": 1})])
def test_a_file_of_another_kind_is_refused_as_tensors(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"model\.safetensors"):
        load_tensors(path)


def test_a_torch_pickle_is_refused_as_tensors(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    torch.save({"weight": torch.zeros(3)}, path)
    with pytest.raises(ValueError, match=r"model\.safetensors"):
        load_tensors(path)


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}, {"butfor": "{"}, {"butfor": "[1]"}])
def test_a_safetensors_file_of_somebody_else_is_refused(tmp_path: Path, metadata: dict[str, str] | None) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"weight": torch.zeros(3)}, path, metadata=metadata)
    with pytest.raises(ValueError, match=r"model\.safetensors"):
        load_tensors(path)


def test_missing_tensors_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"model\.safetensors"):
        load_tensors(tmp_path / "model.safetensors")


# ------------------------------------------------------------------------------------------- checkpoints


def test_a_checkpoint_comes_back_bit_for_bit(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(3)
    state = {
        "epoch": 7,
        "error": torch.tensor([0.1, float("inf")]),
        "best": {"weight": torch.arange(3)},
        "config": {"betas": (0.9, 0.999), "name": "relu", "none": None},
        "generators": [generator.get_state()],
    }
    save_checkpoint(tmp_path / "cai.pt", state)
    loaded = load_checkpoint(tmp_path / "cai.pt")
    assert loaded.keys() == state.keys()
    assert loaded["epoch"] == 7
    assert loaded["config"] == state["config"]
    assert torch.equal(loaded["error"], torch.tensor([0.1, float("inf")]))
    assert torch.equal(loaded["best"]["weight"], torch.arange(3))
    assert torch.equal(loaded["generators"][0], generator.get_state())


def test_truncated_checkpoints_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "cai.pt"
    save_checkpoint(path, {"weight": torch.arange(10).float()})
    whole = path.read_bytes()
    for length in [*range(0, len(whole), 97), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"cai\.pt"):
            load_checkpoint(path)


@pytest.mark.parametrize("how", ["torch", "old torch", "pickle"])
def test_code_in_a_checkpoint_is_never_run(tmp_path: Path, how: str) -> None:
    path, trace = tmp_path / "cai.pt", tmp_path / "trace"
    if how == "pickle":
        path.write_bytes(pickle.dumps({"weight": Malicious(trace)}))
    else:
        new = how == "torch"
        torch.save({"weight": Malicious(trace)}, path, _use_new_zipfile_serialization=new)
    with pytest.raises(ValueError, match=r"cai\.pt"):
        load_checkpoint(path)
    assert not trace.exists()
    if how == "pickle":
        pickle.loads(path.read_bytes())["weight"].close()
    else:
        torch.load(path, weights_only=False)["weight"].close()
    assert trace.exists()  # so the file was a danger indeed


def test_a_missing_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"cai\.pt"):
        load_checkpoint(tmp_path / "cai.pt")


def test_a_folder_under_a_checkpoints_name_is_an_os_error(tmp_path: Path) -> None:
    """What cannot be read at all is not called incomplete: somebody would believe it and delete the run."""
    (tmp_path / "cai.pt").mkdir()
    with pytest.raises(OSError, match=r"cai\.pt"):
        load_checkpoint(tmp_path / "cai.pt")


@pytest.mark.skipif(torch.cuda.is_available(), reason="the checkpoint's GPU would be found")
def test_a_checkpoint_of_a_gpu_is_read_where_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:0")
        save_checkpoint(tmp_path / "cai.pt", {"weight": torch.arange(3)})
    assert load_checkpoint(tmp_path / "cai.pt")["weight"].tolist() == [0, 1, 2]
