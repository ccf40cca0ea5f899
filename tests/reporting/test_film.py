"""Films of the player's scene: what is drawn, and the files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageSequence
from support.scenes import STEPS, small_scene

from butfor.reporting.player.film import PAUSE, SPEED, FlatArtist, SolidArtist, strength, write_film

ARTISTS: Any = {2: FlatArtist, 3: SolidArtist}


@pytest.mark.parametrize("dimensions", [2, 3])
def test_ghosts_are_drawn_where_they_differ(dimensions: Any) -> None:
    """Before step 20 all ghosts coincide: the picture is that without ghosts. From then on it is another one."""
    if dimensions == 3:
        pytest.importorskip("mujoco")
    scenes = [small_scene(dimensions), small_scene(dimensions, ghosts=False)]
    artist = ARTISTS[dimensions](scenes[0], scenes[0].episodes[0], 120)
    pictures = {step: [np.asarray(artist.draw(one.episodes[0], step, 5)) for one in scenes] for step in (5, 30)}
    artist.close()
    assert np.array_equal(pictures[5][0], pictures[5][1])
    assert (pictures[30][0] != pictures[30][1]).any()


def test_the_object_has_its_colour() -> None:
    """Vermillion is the colour of objects in charts, pages and films."""
    scene = small_scene(2, ghosts=False)
    picture = np.asarray(FlatArtist(scene, scene.episodes[0], 240).draw(scene.episodes[0], 0, 1))
    assert (picture == (0xD5, 0x5E, 0x00)).all(axis=-1).sum() > 100


def test_a_fan_is_as_visible_as_it_is_wide() -> None:
    scene = small_scene(3)
    assert strength(scene, scene.episodes[0], 5, 5, 0) == 0
    assert 0 < strength(scene, scene.episodes[0], 30, 1, 0) < strength(scene, scene.episodes[0], 30, 5, 0) <= 1
    assert strength(scene, scene.episodes[0], STEPS, 5, 0) == 0  # no action is taken in the last state


def test_a_gif_pauses_at_the_step_that_decided(tmp_path: Path) -> None:
    """Every state is shown for one frame, the deciding and the last one for longer."""
    scene = small_scene(2)
    path = write_film(tmp_path / "film.gif", scene, width=120)
    pause = round(PAUSE * SPEED / scene.step_seconds)
    with Image.open(path) as film:
        total = sum(frame.info["duration"] for frame in ImageSequence.Iterator(film))
    assert total == (STEPS - 1 + 2 * pause) * round(1000 * scene.step_seconds / SPEED)


def test_other_endings_and_episodes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="webm"):
        write_film(tmp_path / "film.webm", small_scene(2))
    with pytest.raises(ValueError, match="3"):
        write_film(tmp_path / "film.gif", small_scene(2), number=3)
