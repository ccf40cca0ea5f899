"""Work that does not fit into memory is refused with what it would take."""

import resource
import subprocess
import sys

import pytest

from butfor.runs.memory import (
    LARGEST_FILE,
    available_memory,
    check_memory,
    describe_exhaustion,
    file_limit,
    in_words,
    memory_limit,
)


def test_the_system_tells_how_much_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BUTFOR_MEMORY_GB", raising=False)
    assert 2**26 < available_memory() < 2**50
    assert file_limit() <= LARGEST_FILE


def test_a_limit_of_the_process_counts() -> None:
    code = (
        "import resource; from butfor.runs.memory import available_memory\n"
        "resource.setrlimit(resource.RLIMIT_AS, (2**32, resource.RLIM_INFINITY)); print(available_memory())"
    )
    found = int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    assert 0 < found < 2**32
    assert resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY


def test_the_variable_takes_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUTFOR_MEMORY_GB", "2.5")
    assert memory_limit() == 2_500_000_000
    assert file_limit() == 625_000_000
    monkeypatch.setenv("BUTFOR_MEMORY_GB", "100000")
    assert file_limit() > LARGEST_FILE


@pytest.mark.parametrize("text", ["much", "-1", "0", "nan", "inf"])
def test_another_limit_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUTFOR_MEMORY_GB", text)
    with pytest.raises(ValueError, match=f"BUTFOR_MEMORY_GB is '{text}'"):
        memory_limit()


def test_what_does_not_fit_is_refused_with_what_it_would_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUTFOR_MEMORY_GB", "1")
    check_memory(999_999_999, "The replay buffer", "Use fewer seeds.")
    with pytest.raises(MemoryError, match=r"The replay buffer .*3\.2 TB.*1\.0 GB.*Use fewer seeds"):
        check_memory(3.2e12, "The replay buffer", "Use fewer seeds.")


@pytest.mark.parametrize(
    ("size", "words"), [(7, "7 bytes"), (1500, "1.5 kB"), (12.4e9, "12 GB"), (5e18, "5,000,000 TB")]
)
def test_sizes_in_words(size: float, words: str) -> None:
    assert in_words(size) == words


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError("Unable to allocate 7 TiB for an array"), "Unable to allocate 7 TiB"),
        (MemoryError(), "not enough memory"),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4000000000000 bytes."),
            "4.0 TB",
        ),
        (RecursionError("maximum recursion depth exceeded"), "nested too deeply"),
    ],
    ids=["numpy", "plain", "torch", "recursion"],
)
def test_memory_that_runs_out_is_a_sentence(error: Exception, words: str) -> None:
    assert words in str(describe_exhaustion(error))
    assert describe_exhaustion(ValueError("other")) is None
    assert describe_exhaustion(RuntimeError("mat1 and mat2 shapes cannot be multiplied")) is None
