"""Where a training run keeps its episodes, so that a copy of its folder does not write into the same file."""

import uuid
from dataclasses import dataclass, replace
from pathlib import Path

from butfor.rollouts.episodes import EpisodeStream
from butfor.runs.config import config_from
from butfor.runs.files import read_json
from butfor.runs.reading import expected_form


@dataclass(frozen=True)
class KeptEpisodes:
    """The content of episodes.json: where a run keeps its episodes, and who it is."""

    file: str
    run: str = ""
    """the run folder, by which a copy of it is recognised; empty in files of before"""
    id: str = ""
    """written into the episode file, by which the episodes of another run are recognised"""

    @classmethod
    def of_new_run(cls, file: Path | str, folder: Path) -> "KeptEpisodes":
        """A new run, with an identity that no other has."""
        return cls(str(Path(file).resolve()), str(folder.resolve()), uuid.uuid4().hex[:16])

    @classmethod
    def of_run(cls, folder: Path, given: Path | str | None) -> "KeptEpisodes | None":
        """What a run was started with.

        Raises:
            ValueError: another file is given, or the folder is a copy of a run that uses the file.
        """
        path = folder / "episodes.json"
        if not path.is_file():
            return None if given is None else cls.of_new_run(given, folder)
        with expected_form(path):
            kept = config_from(cls, read_json(path))
        here = str(folder.resolve())
        other = given is not None and str(Path(given).resolve()) != kept.file
        if kept.run not in ("", here) and _is_file(Path(kept.run) / "config.json"):
            if not other:
                raise ValueError(
                    f"{folder} is a copy of {kept.run}, which keeps its episodes in {kept.file}. Copy that file (or "
                    f"{kept.file}.parts) and give the copy with --keep-episodes, or remove {path} to keep none."
                )
            return cls(str(Path(given or "").resolve()), here, kept.id)
        if other:
            raise ValueError(f"{folder} keeps its episodes in {kept.file}; it cannot continue in {given}.")
        return replace(kept, run=here)

    def refuse_taken(self) -> None:
        """Refuse a file that exists, or whose parts another run has begun."""
        for taken in (Path(self.file), EpisodeStream.parts_of(self.file)):
            if taken.exists():
                raise FileExistsError(f"{taken} already exists; give another name for the episode file.")


def _is_file(path: Path) -> bool:
    """Whether a file is there, as far as this user can see."""
    try:
        return path.is_file()
    except OSError:  # in a folder of somebody else
        return False
