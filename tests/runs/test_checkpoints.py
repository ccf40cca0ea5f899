"""A run goes on from its newest whole checkpoint, whatever happened to the files, and none of them runs code."""

import errno
import hashlib
import os
import pickle
import re
import subprocess
import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.files import Malicious, full_disk

from butfor.runs import checkpoints
from butfor.runs.checkpoints import latest_checkpoint, save_checkpoint_in


def state_of(episode: int, size: int = 10) -> dict[str, Any]:
    """A state that tells its episode, in a number and in a tensor."""
    return {"episode": episode, "weight": torch.arange(size).float() + episode}


def saved(folder: Path, *episodes: int) -> list[Path]:
    """Checkpoints of these episodes, in this order."""
    return [save_checkpoint_in(folder, episode, state_of(episode)) for episode in episodes]


def latest_episode(folder: Path) -> int | None:
    """The episode of the latest checkpoint, which must be whole."""
    state = latest_checkpoint(folder)
    if state is None:
        return None
    assert torch.equal(state["weight"], state_of(state["episode"])["weight"])
    return int(state["episode"])


def digest_of(content: bytes) -> str:
    return hashlib.blake2b(content).hexdigest()[:16]


# ------------------------------------------------------------------------------------------------ whole


def test_no_folder_and_an_empty_one_hold_no_checkpoint(tmp_path: Path) -> None:
    assert latest_checkpoint(tmp_path / "run") is None
    (tmp_path / "checkpoint").mkdir()
    assert latest_checkpoint(tmp_path) is None


def test_a_state_comes_back_bit_for_bit(tmp_path: Path) -> None:
    generator, network = np.random.default_rng(3), torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(network.parameters())
    network(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    state: dict[str, Any] = {
        "model": network.state_dict(),
        "optimizer": optimizer.state_dict(),
        "numpy": generator.bit_generator.state,  # whole numbers of 128 bits
        "torch": torch.Generator().manual_seed(3).get_state(),
        "numbers": [1, 2.5, float("inf"), True, None, "Größe", (1, 2)],
        "special": torch.tensor([float("nan"), -0.0]),
    }
    save_checkpoint_in(tmp_path, 0, state)
    loaded = latest_checkpoint(tmp_path)
    assert loaded is not None
    assert loaded.keys() == state.keys()
    assert loaded["numpy"] == state["numpy"]
    assert loaded["numbers"] == state["numbers"]
    assert loaded["special"].numpy().tobytes() == state["special"].numpy().tobytes()
    assert torch.equal(loaded["torch"], state["torch"])
    assert all(torch.equal(loaded["model"][name], value) for name, value in network.state_dict().items())
    moments = optimizer.state_dict()["state"]
    assert torch.equal(loaded["optimizer"]["state"][0]["exp_avg"], moments[0]["exp_avg"])
    assert loaded["optimizer"]["param_groups"] == optimizer.state_dict()["param_groups"]


def test_the_name_tells_episode_order_and_content(tmp_path: Path) -> None:
    path = save_checkpoint_in(tmp_path, 1234, state_of(1234))
    assert path.parent == tmp_path / "checkpoint"
    assert path.name == f"00001234-0001-{digest_of(path.read_bytes())}.pt"
    assert list(path.parent.iterdir()) == [path]


def test_the_newest_two_are_kept(tmp_path: Path) -> None:
    paths: list[Path] = []
    for episode in (10, 20, 30, 40):
        paths += saved(tmp_path, episode)
        assert set((tmp_path / "checkpoint").iterdir()) == set(paths[-2:])
        assert latest_episode(tmp_path) == episode
    assert paths[-1].name.startswith("00000040-0004-")


def test_checkpoints_of_one_episode_stay_in_order(tmp_path: Path) -> None:
    for number in range(12):
        save_checkpoint_in(tmp_path, 5, {"number": number})
        assert latest_checkpoint(tmp_path) == {"number": number}


def test_a_run_that_goes_on_at_an_earlier_episode_has_its_own_checkpoint_as_latest(tmp_path: Path) -> None:
    saved(tmp_path, 100, 200, 150)
    assert latest_episode(tmp_path) == 150


def test_episodes_and_serials_of_more_digits_are_found(tmp_path: Path) -> None:
    (path,) = saved(tmp_path, 999_999_999)
    path.rename(path.with_name(path.name.replace("-0001-", "-9999-")))
    assert [found.name[:16] for found in saved(tmp_path, 1_000_000_000)] == ["1000000000-10000"]
    assert latest_episode(tmp_path) == 1_000_000_000


def test_other_files_beside_the_checkpoints_are_left_alone(tmp_path: Path) -> None:
    place = tmp_path / "checkpoint"
    place.mkdir()
    names = {"cai.pt", "notes.txt", "00000001-0001.pt", "00000009-0009-0123456789abcdeg.pt"}
    for name in names:
        (place / name).write_text("precious")
    assert latest_checkpoint(tmp_path) is None
    paths = saved(tmp_path, 1, 2, 3)
    assert {path.name for path in place.iterdir()} == names | {path.name for path in paths[1:]}
    assert latest_episode(tmp_path) == 3


# ----------------------------------------------------------------------------------------------- damage


def test_one_changed_byte_anywhere_is_noticed(tmp_path: Path) -> None:
    (path,) = saved(tmp_path, 1)
    whole = path.read_bytes()
    inside = whole.index(state_of(1)["weight"].numpy().tobytes()) + 6
    unnoticed = whole[:inside] + bytes([whole[inside] ^ 1]) + whole[inside + 1 :]
    path.write_bytes(unnoticed)
    assert not torch.equal(torch.load(path, weights_only=True)["weight"], state_of(1)["weight"])  # so torch is blind
    for position in [inside, *range(0, len(whole), 7), len(whole) - 1]:
        for change in (1, 128):
            path.write_bytes(whole[:position] + bytes([whole[position] ^ change]) + whole[position + 1 :])
            with pytest.raises(ValueError, match=re.escape(str(path))):
                latest_checkpoint(tmp_path)
    path.write_bytes(whole)
    assert latest_episode(tmp_path) == 1


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda whole: b"",
    "half": lambda whole: whole[: len(whole) // 2],
    "one byte short": lambda whole: whole[:-1],
    "one byte more": lambda whole: whole + b"\0",
    "zeros": lambda whole: bytes(len(whole)),
    "one bit": lambda whole: whole[:500] + bytes([whole[500] ^ 4]) + whole[501:],
}
each_damage = pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())


@each_damage
def test_the_checkpoint_before_a_damaged_one_is_used_and_both_are_named(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    old, new = saved(tmp_path, 1, 2)
    new.write_bytes(damage(new.read_bytes()))
    with pytest.warns(UserWarning, match=f"{re.escape(str(new))} .*{old.name}") as told:
        assert latest_episode(tmp_path) == 1
    assert len(told) == 1
    saved(tmp_path, 3)
    with warnings.catch_warnings(action="error"):
        assert latest_episode(tmp_path) == 3


def test_a_damaged_older_checkpoint_disturbs_nobody(tmp_path: Path) -> None:
    old, _ = saved(tmp_path, 1, 2)
    old.write_bytes(b"")
    with warnings.catch_warnings(action="error"):
        assert latest_episode(tmp_path) == 2


@each_damage
def test_if_all_are_damaged_the_run_stops_and_says_what_to_do(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    paths = saved(tmp_path, 1, 2)
    for path in paths:
        path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match="--overwrite") as e:
        latest_checkpoint(tmp_path)
    assert all(str(path) in str(e.value) for path in paths)


def dangerous(trace: Path, how: str, path: Path) -> bytes:
    """A file whose reader creates `trace`, unless reading runs no code."""
    if how == "pickle":
        path.write_bytes(pickle.dumps({"weight": Malicious(trace)}, protocol=2))
    else:
        torch.save({"weight": Malicious(trace)}, path, _use_new_zipfile_serialization=how == "torch")
    return path.read_bytes()


@pytest.mark.parametrize("how", ["torch", "old torch", "pickle"])
@pytest.mark.parametrize("renamed", [False, True])
def test_code_in_a_checkpoint_is_never_run(tmp_path: Path, how: str, renamed: bool) -> None:
    trace = tmp_path / "trace"
    old, new = saved(tmp_path, 1, 2)
    content = dangerous(trace, how, new)
    if renamed:  # somebody who can write a file can also give it the right name
        new = new.rename(new.with_name(f"00000002-0002-{digest_of(content)}.pt"))
    with pytest.warns(UserWarning, match=f"{re.escape(str(new))} is .*{old.name}"):
        assert latest_episode(tmp_path) == 1
    assert not trace.exists()
    if how == "pickle":
        pickle.loads(content)["weight"].close()
    else:
        torch.load(new, weights_only=False)["weight"].close()
    assert trace.exists()  # so the file was a danger indeed


def test_a_checkpoint_that_cannot_be_read_is_not_called_damaged(tmp_path: Path) -> None:
    """Its name is that of a folder, say; whoever is told of damage might delete the run."""
    saved(tmp_path, 1)
    (tmp_path / "checkpoint" / "00000002-0002-0123456789abcdef.pt").mkdir()
    with pytest.raises(OSError, match="00000002"):
        latest_checkpoint(tmp_path)


# ---------------------------------------------------------------------------------------- failed writes


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "checkpoint").iterdir()}


def test_a_disk_that_is_full_in_the_middle_leaves_the_earlier_ones(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2)
    before = files_of(tmp_path)
    with full_disk(20_000), pytest.raises(OSError, match=r"episode 3 .*checkpoint"):
        save_checkpoint_in(tmp_path, 3, state_of(3, size=100_000))
    assert files_of(tmp_path) == before
    assert latest_episode(tmp_path) == 2


@pytest.mark.parametrize(("owner", "function"), [(Path, "open"), (os, "fsync"), (os, "replace")])
def test_a_full_disk_at_any_moment_leaves_the_earlier_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, function: str
) -> None:
    saved(tmp_path, 1, 2)
    before = files_of(tmp_path)

    def full(*arguments: Any, **settings: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(owner, function, full)
        with pytest.raises(OSError, match=rf"episode 3 .*{os.strerror(errno.ENOSPC)}"):
            save_checkpoint_in(tmp_path, 3, state_of(3))
    assert files_of(tmp_path) == before
    assert latest_episode(tmp_path) == 2


@pytest.mark.parametrize("moment", ["writing", "digest", "renaming"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, MemoryError])
def test_an_interrupted_write_leaves_the_earlier_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, error: type[BaseException]
) -> None:
    saved(tmp_path, 1, 2)
    before = files_of(tmp_path)

    def interrupted(*arguments: Any) -> Any:
        if moment == "writing":
            arguments[1].write(b"half of a checkp")
        raise error

    owner, name = {"writing": (torch, "save"), "digest": (checkpoints, "digest_of_file"), "renaming": (os, "replace")}[
        moment
    ]
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, interrupted)
        with pytest.raises(error):
            save_checkpoint_in(tmp_path, 3, state_of(3))
    assert files_of(tmp_path) == before
    assert latest_episode(tmp_path) == 2
    saved(tmp_path, 3)
    assert latest_episode(tmp_path) == 3


def test_a_file_in_place_of_the_folder_is_refused_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_text("precious")
    with pytest.raises(OSError, match="episode 1 "):
        saved(tmp_path, 1)
    assert (tmp_path / "checkpoint").read_text() == "precious"


def test_what_a_killed_process_left_half_written_is_removed(tmp_path: Path) -> None:
    """A real one, killed inside `torch.save`."""
    saved(tmp_path, 1)
    program = f"""
import os, pathlib, signal, torch
from butfor.runs.checkpoints import save_checkpoint_in

def killed(state, file):
    file.write(b"half of a checkp")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)

torch.save = killed
save_checkpoint_in(pathlib.Path({str(tmp_path)!r}), 2, {{"episode": 2}})
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True)
    assert ended.returncode == -9, ended.stderr
    (part,) = (tmp_path / "checkpoint").glob(".*.part")
    assert part.read_bytes() == b"half of a checkp"
    assert latest_episode(tmp_path) == 1
    paths = saved(tmp_path, 2)
    assert not part.exists()
    assert len(list((tmp_path / "checkpoint").iterdir())) == 2
    assert paths[0].name.startswith("00000002-0002-")


def test_only_the_parts_of_dead_processes_are_removed(tmp_path: Path) -> None:
    place = tmp_path / "checkpoint"
    place.mkdir()
    with subprocess.Popen(["true"]) as process:
        dead = process.pid
    kept = {f".cai.pt.{os.getppid()}.part", "archive.part"}
    for name in (f".cai.pt.{dead}.part", f"0001.{dead}.part", f"0007.{os.getpid()}.part", *kept):
        (place / name).write_text("half")
    (tmp_path / f".summary.json.{dead}.part").write_text("half")
    saved(tmp_path, 1)
    assert {path.name for path in place.glob("*.part")} == kept
    assert not list(tmp_path.glob("*.part"))


# ------------------------------------------------------------------------------------------------ content


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (np.zeros(3), "ndarray"),
        ({"b": [1, np.float64(2)]}, r"numpy.*scalar"),
        (OrderedDict(b=Path("x")), "PosixPath"),
        ({(1, np.int64(2)): 3}, r"numpy.*scalar"),
    ],
)
def test_what_could_not_be_loaded_is_not_saved(tmp_path: Path, value: Any, name: str) -> None:
    with pytest.raises(TypeError, match=name):
        save_checkpoint_in(tmp_path, 1, {"a": value})
    assert files_of(tmp_path) == {}
