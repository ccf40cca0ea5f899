"""Array files: what is asked for is read; what is too large or promises too much is refused before memory is taken."""

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from butfor.rollouts.episodes import Episodes
from butfor.runs.arrays import open_arrays
from butfor.runs.reading import read_arrays


def write_promise(path: Path, shape: tuple[int, ...], content: bytes = b"") -> None:
    """An .npz file whose array `big` has a header for this shape, and other content."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("big.npy", header.getvalue() + content)


def test_arrays_are_as_numpy_reads_them(tmp_path: Path) -> None:
    given = {
        "table": np.arange(6.0).reshape(2, 3), "by column": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "text": np.array("a ü"), "none": np.zeros((0, 4), np.float32), "flags": np.array([True, False]),
        "other order": np.arange(3, dtype=">i4"), "parts/arm": np.ones(2),
    }  # fmt: skip
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "a.npz", **given)  # type: ignore[arg-type]
        with open_arrays(tmp_path / "a.npz") as file:
            assert list(file) == list(given)
            assert len(file) == len(given)
            for name, array in given.items():
                assert file.header(name) == (array.shape, array.dtype)
                assert file[name].dtype == array.dtype
                np.testing.assert_array_equal(file[name], array)
            assert "nothing" not in file
            with pytest.raises(KeyError, match="nothing"):
                file["nothing"]


def test_only_so_much_is_read_from_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A megabyte and a half of zeros in two arrays, with a limit of a megabyte."""
    np.savez_compressed(tmp_path / "a.npz", first=np.zeros(100_000), second=np.zeros(100_000))
    assert (tmp_path / "a.npz").stat().st_size < 10_000
    monkeypatch.setenv("BUTFOR_MEMORY_GB", "0.004")  # a quarter of it for a file
    with open_arrays(tmp_path / "a.npz") as file:
        assert file["second"].nbytes == 800_000
        with pytest.raises(ValueError, match=r"first takes 800 kB.*BUTFOR_MEMORY_GB"):
            file["first"]
    monkeypatch.setenv("BUTFOR_MEMORY_GB", "0.008")
    assert read_arrays(tmp_path / "a.npz").keys() == {"first", "second"}


@pytest.mark.parametrize("shape", [(10**14,), (2**40, 2**40), (5,)])
def test_an_array_that_promises_another_size_is_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    write_promise(tmp_path / "a.npz", shape, bytes(24))
    with pytest.raises(ValueError, match=r"a\.npz"):
        read_arrays(tmp_path / "a.npz")


def test_asking_whether_an_array_is_there_does_not_read_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez(tmp_path / "a.npz", a=np.zeros(100))
    monkeypatch.setenv("BUTFOR_MEMORY_GB", "0.000004")  # 1,000 bytes for a file: the array fits once
    with open_arrays(tmp_path / "a.npz") as file:
        assert "a" in file
        assert "b" not in file
        assert file["a"].shape == (100,)


def test_objects_are_named_and_not_loaded(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", fine=np.ones(2), wrong=np.array([{}]))
    with open_arrays(tmp_path / "a.npz") as file:
        assert file.header("wrong").dtype == object
        assert file["fine"].sum() == 2
        with pytest.raises(ValueError, match="wrong contains pickled objects"):
            file["wrong"]


def test_every_flipped_byte_of_an_array_is_noticed(tmp_path: Path) -> None:
    """Or it changes nothing, as those of the times in a zip file do."""
    path = tmp_path / "a.npz"
    np.savez_compressed(path, a=np.arange(50), b=np.arange(5.0))
    content = path.read_bytes()
    intact = read_arrays(path)
    noticed = 0
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 0x10
        path.write_bytes(damaged)
        try:
            found = read_arrays(path)
        except ValueError:
            noticed += 1
            continue
        assert found.keys() == intact.keys()
        assert all(np.array_equal(found[name], intact[name]) for name in intact)
    assert noticed > 0.6 * len(content)


def test_an_array_whose_name_is_damaged_is_not_just_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, observation=np.ones(3), contact=np.ones(3))
    content = path.read_bytes()
    place = content.rindex(b"contact.npy")  # in the list at the end of the file
    path.write_bytes(content[:place] + b"contakt.npy" + content[place + 11 :])
    with pytest.raises(ValueError, match="contact"), open_arrays(path) as file:
        file["observation"]


def test_an_unknown_array_of_an_episode_file_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.npz"
    states = np.zeros((2, 4, 3), np.float32)
    goal = np.zeros((2, 4, 1), np.float32)
    Episodes(states, states[:, 1:, :2], goal, goal, np.array([3, 2]), np.ones((2, 3), bool)).save(path)
    with zipfile.ZipFile(path, "a") as archive:
        bomb = io.BytesIO()
        np.save(bomb, np.zeros(10**6))
        archive.writestr("bomb.npy", bomb.getvalue(), zipfile.ZIP_DEFLATED)
    monkeypatch.setenv("BUTFOR_MEMORY_GB", "0.01")  # 2.5 MB for a file; the bomb takes 8
    assert len(Episodes.load(path)) == 2
