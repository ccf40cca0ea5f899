"""Array files (.npz): only the arrays that are asked for are read, and none before its size is known.

A zip file of a few megabytes can unpack to many gigabytes, and the header of an array can promise any size: numpy would
take the memory first.
"""

import math
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from butfor.runs.memory import Allowance

DAMAGED = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, RuntimeError, OverflowError)
END = struct.Struct("<4s4H2LH")  # of a zip file: signature, disks, entries here, entries, size, place, comment
READERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


class Header(NamedTuple):
    """What an array file says about one of its arrays."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class ArrayFile(Mapping[str, NDArray[Any]]):
    """The arrays of an open .npz file by name, read when they are asked for; nothing in it is executed."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self.archive = archive
        self.allowance = Allowance()
        self.members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}

    def header(self, name: str) -> Header:
        """Return shape and type of an array, without reading it.

        Raises:
            KeyError: there is no such array.
            ValueError: its header is damaged, or promises another size than the file has.
        """
        info = self.members[name]
        with self.archive.open(info) as member:
            version = npy.read_magic(member)
            if version not in READERS:
                raise ValueError(f"{name} has version {version} of the .npy format; expected 1.0 or 2.0.")
            shape, _, dtype = READERS[version](member)
            size = info.file_size - member.tell()
        if not dtype.hasobject and math.prod(shape) * dtype.itemsize != size:
            raise ValueError(f"{name} has {size} bytes; its header describes {dtype} of shape {list(shape)}.")
        return Header(shape, dtype)

    def __getitem__(self, name: str) -> NDArray[Any]:
        shape, dtype = self.header(name)
        if dtype.hasobject:
            raise ValueError(f"{name} contains pickled objects, which are not loaded.")
        size = math.prod(shape) * dtype.itemsize
        self.allowance.take(size, name)
        with self.archive.open(self.members[name]) as member:
            array: NDArray[Any] = npy.read_array(member, allow_pickle=False)
            member.read()  # to the end, where the checksum is compared
        return array

    def __contains__(self, name: object) -> bool:
        return name in self.members  # a Mapping would read the array to find out

    def __iter__(self) -> Iterator[str]:
        return iter(self.members)

    def __len__(self) -> int:
        return len(self.members)


def _check_count(file: BinaryIO, found: int) -> None:
    """Compare the number of arrays with that at the end of the file: zipfile leaves out a damaged entry silently."""
    file.seek(-END.size, os.SEEK_END)
    signature, *_, count, _, _, comment = END.unpack(file.read())
    if signature != b"PK\5\6" or comment or (count != found and count != 0xFFFF):  # 0xFFFF: of a very large file
        raise zipfile.BadZipFile(f"it has {found} arrays; its end says {count}")


@contextmanager
def open_arrays(path: Path | str) -> Iterator[ArrayFile]:
    """Open an .npz file; the arrays that are read from it may take `butfor.runs.memory.file_limit` bytes.

    Raises:
        ValueError: it is damaged; the message does not name the file, which the caller does.
    """
    try:
        with Path(path).open("rb") as file, zipfile.ZipFile(file) as archive:
            _check_count(file, len(archive.infolist()))
            for info in archive.infolist():  # also of those that nobody asks for: a damaged name hides an array
                archive.open(info).close()  # compares the name with that at the array itself
            yield ArrayFile(archive)
    except DAMAGED as error:
        raise ValueError(str(error) or type(error).__name__) from error
