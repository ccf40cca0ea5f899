"""Films of a study's arms: whose, which episode, what the strip shows; what is kept, skipped, never half-written."""

import importlib
import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("imageio_ffmpeg", reason="videos need the extra 'video'")

from PIL import Image
from reporting.test_watch import Blind, register, untrained
from support.pages import HOSTILE, Tags
from support.small_training import small
from support.study_runs import write_training

from butfor.analysis.arms import ReadArm
from butfor.analysis.claims import Curve
from butfor.cli.study import study as command
from butfor.reporting import films
from butfor.reporting.films import FRAMES, GAP, LABEL, MOST_BYTES, PLOT, TITLE, WIDTH, Film, draw_frames, film_study
from butfor.reporting.study_page import described, write_study_report
from butfor.reporting.watch import AREA, GREEN, Course, Scene
from butfor.runs import locks
from butfor.runs.locks import locked
from butfor.studies import study as studies
from butfor.studies.study import Study, write_study
from butfor.studies.units import run_unit, unit_name

ARMS = {"with": small(influence=("priority",), first_seed=5, seeds=2), "without": small(), "not run": small(seeds=3)}
TINY = Study("tiny", "Tiny", "About nothing.", tuple(studies.Arm(*arm) for arm in ARMS.items()))


torch.set_num_threads(1)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with two runs of a study of three arms, and their films."""
    root = tmp_path_factory.mktemp("root")
    write_study(TINY, root, "paper")
    for label in ("with", "without"):
        run_unit(ARMS[label], root)
    film_study(root, "tiny")
    return root


@pytest.fixture
def root(trained: Path, tmp_path: Path) -> Path:
    """A copy of it to change."""
    return Path(shutil.copytree(trained, tmp_path / "root"))


def folder_of(root: Path, label: str) -> Path:
    return root / unit_name(ARMS[label])


def names(root: Path, label: str) -> set[str]:
    """What a run folder and the root hold that is no part of a run, or a rest."""
    return {path.name for path in (*folder_of(root, label).iterdir(), *root.iterdir())} & {"strip.png", "watch.mp4"} | {
        path.name for path in root.rglob(".*")
    }


def scene(values: list[float], reached: list[bool] | None = None, size: tuple[int, int] = (40, 40)) -> Scene:
    """An episode whose pictures are grey: as many shades as steps."""
    shades = np.linspace(40, 200, len(values)).astype(int).tolist()
    flags = np.array(reached or [False] * len(values))
    course = Course("CAI", "nats", np.array(values), flags, "world, seed 1, episode 2")
    return Scene([Image.new("RGB", size, (shade, shade, shade)) for shade in shades], course)


# --- what is filmed ---------------------------------------------------------------------------------


def test_every_trained_arm_has_a_strip_and_a_video(root: Path) -> None:
    for label in ("with", "without"):
        folder = folder_of(root, label)
        assert names(root, label) == {"strip.png", "watch.mp4"}
        assert (folder / "watch.mp4").read_bytes()[4:8] == b"ftyp"
        with Image.open(folder / "strip.png") as strip:
            # slide is drawn 480 by 120, so in two rows of four frames that are as wide as two and a gap
            wide, rows = 2 * WIDTH + GAP, 2 * (LABEL + round((2 * WIDTH + GAP) / 4) + GAP)
            assert strip.size == (4 * (wide + GAP) - GAP, rows + PLOT * (label == "with") + TITLE)
        assert (folder / "strip.png").stat().st_size <= MOST_BYTES
    assert "influence of its actions is largest at step" in described(
        (folder_of(root, "with") / "strip.png").read_bytes()
    )
    assert "no influence model in this run" in described((folder_of(root, "without") / "strip.png").read_bytes())


def test_the_best_seed_is_that_of_the_last_evaluation() -> None:
    arm, at = ReadArm("a", Path(), "training", "finished", ""), np.array([1, 2])
    assert films.best_seed(arm) is None  # never evaluated: the agent's first seed
    curve = Curve(at, np.array([[0.9, 0.5], [0.0, 0.8], [0.1, 0.8]]), 2)
    assert films.best_seed(replace(arm, curve=curve, seeds=(7, 8, 9))) == 9  # of two equal ends, more on the way
    held = {"held": Curve(at, np.array([[0.0, 1.0], [0.0, 0.2], [0.0, 0.1]]), 2)}
    arm = replace(arm, curve=curve, seeds=(7, 8, 9), behaviour=held)
    assert films.best_seed(arm) == 8
    alone = {"config": {"influence": ["intrinsic"]}}
    assert films.best_seed(replace(arm, config=alone)) == 7  # without a reward for it, success is chance


@pytest.mark.parametrize(
    ("ends", "expected"),
    [([(0, 0), (1, 1), (0, 1), (0, 1)], 2), ([(0, 0), (1, 1), (0, 0), (1, 1)], 1), ([(0, 0), (1, 0)] * 2, 0)],
)
def test_the_episode_is_a_success_that_was_not_given(
    ends: list[tuple[int, int]], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def play(stage: Any, number: int, drawn: bool) -> Scene:
        assert not drawn
        return scene([0.0] * 3, [bool(ends[number][0]), False, bool(ends[number][1])])

    monkeypatch.setattr(films, "play_scene", play)
    stage: Any = None
    assert films.choose_episode(stage, len(ends)) == expected


# --- the strip --------------------------------------------------------------------------------------


def at(strip: Image.Image, x: float, y: float) -> tuple[int, ...]:
    pixel = strip.getpixel((round(x), round(y)))
    assert isinstance(pixel, tuple)
    return pixel


def test_the_strip_shows_even_steps_and_the_influence_under_them() -> None:
    values = [0.0] * 23 + [1.0] * 13  # 36 states: eight frames at every fifth step
    shown = scene(values, [False] * 30 + [True] * 6)
    strip = draw_frames(shown)
    row = LABEL + WIDTH + GAP
    assert strip.size == (FRAMES * (WIDTH + GAP) - GAP, row + PLOT + TITLE)
    for place in range(FRAMES):
        middle, step = place * (WIDTH + GAP) + WIDTH / 2, 5 * place
        assert at(strip, middle, LABEL + WIDTH / 2) == at(shown.pictures[step], 20, 20)
        assert (at(strip, middle, LABEL + WIDTH + 2) == GREEN) == (step >= 30)
        if place < FRAMES - 1:  # beside the line that leads down from each frame
            assert (at(strip, middle + 20, row + PLOT / 2) == AREA) == (step > 20)
    assert at(strip, GAP * 0.5 + WIDTH, LABEL + WIDTH / 2) == (255, 255, 255)


def test_wide_tall_and_short_episodes_can_be_drawn() -> None:
    wide = draw_frames(scene([0.0] * 9, size=(80, 20)))
    assert at(wide, 10, LABEL + 5)[0] == 40
    assert at(wide, 10, 2 * LABEL + (2 * WIDTH + GAP) / 4 + GAP + 5)[0] > 110  # the fifth frame begins a second row
    tall = draw_frames(scene([0.0] * 9, size=(20, 80)))
    assert tall.size[1] == LABEL + films.TALLEST + GAP + PLOT + TITLE
    assert at(tall, WIDTH / 2, LABEL + 5)[0] == 40
    assert at(tall, 5, LABEL + 5)[0] == 255
    assert draw_frames(scene([0.0])).size == (tall.size[0], LABEL + WIDTH + GAP + PLOT + TITLE)
    without = replace(scene([0.0] * 9), course=replace(scene([0.0] * 9).course, quantity="reward"))
    assert draw_frames(without).size[1] == LABEL + WIDTH + GAP + TITLE


def test_a_strip_is_small_and_carries_its_description(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (9, 160, 160, 3), dtype=np.uint8)
    shown = replace(
        scene([0.0, 0.5] * 4 + [0.2], [True] + [False] * 5 + [True] * 3), pictures=list(map(Image.fromarray, noise))
    )
    films.write_strip(tmp_path / "strip.png", shown)
    content = (tmp_path / "strip.png").read_bytes()
    assert len(content) <= MOST_BYTES
    words = "Frames of an episode of world, seed 1, episode 2. The goal is reached from step 6 on."
    assert described(content) == f"{words} The influence of its actions is largest at step 1: CAI 0.50 nats."
    assert films._end(scene([0.0] * 2, [True, True])) == "the goal is reached from step 0 on"
    assert films._end(scene([0.0] * 2, [True, False])) == "the goal is not reached at the end"


# --- called again, stopped, in other hands ----------------------------------------------------------


def test_what_is_newer_than_the_agent_is_kept(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, made = folder_of(root, "with"), list[str]()
    write = films.write_strip

    def write_strip(path: Path, shown: Scene) -> None:
        made.append(path.name)
        write(path, shown)

    monkeypatch.setattr(films, "write_strip", write_strip)
    monkeypatch.setattr(films, "write_video", lambda path, scenes, stage: made.append(path.name))
    assert [film.words for film in film_study(root, "tiny")[:2]] == ["kept: newer than the agent"] * 2
    assert made == []
    (folder / "strip.png").unlink()
    (film, *_) = film_study(root, "tiny")
    assert made == ["strip.png"]
    assert film.files == (folder / "strip.png", folder / "watch.mp4")
    later = (folder / "strip.png").stat().st_mtime + 10
    os.utime(folder / "model.safetensors", (later, later))  # training went on
    film_study(root, "tiny")
    assert made == ["strip.png", "strip.png", "watch.mp4"]


@pytest.mark.parametrize("moment", ["play_scene", "write_video", "draw_frames"])
def test_stopped_at_any_moment_it_leaves_nothing_half_done(
    root: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*given: Any, **named: Any) -> None:
        raise KeyboardInterrupt

    for name in ("strip.png", "watch.mp4"):
        (folder_of(root, "with") / name).unlink()
    with monkeypatch.context() as patch:
        patch.setattr(films, moment, stop)
        with pytest.raises(KeyboardInterrupt):
            film_study(root, "tiny")
    assert names(root, "with") == ({"strip.png"} if moment == "write_video" else set())
    if moment == "write_video":
        film_study(root, "tiny")
        assert names(root, "with") == {"strip.png", "watch.mp4"}


def test_an_arm_that_another_process_works_on_is_skipped(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "GRACE", 0.0)
    (folder_of(root, "with") / "strip.png").unlink()
    with locked(folder_of(root, "with")):
        first, second, _ = film_study(root, "tiny")
    assert first.files == ()
    assert first.words.startswith(f"skipped: process {os.getpid()} on ")
    assert second.words == "kept: newer than the agent"


def test_what_cannot_be_filmed_is_told_and_keeps_no_other_from_it(root: Path) -> None:
    (folder_of(root, "without") / "model.safetensors").unlink()  # as among result files
    untrained(write_training(root / "blind", [[0.5]]), register(entry_point=Blind), (2, 2, 2))
    (root / "broken").mkdir()
    (root / "broken" / "config.json").write_text("{")
    record = json.loads((root / "studies" / "tiny.json").read_text())
    record["arms"][:0] = [{"label": name, "folder": name, "kind": "training"} for name in ("blind", "broken")]
    record["arms"].append({"label": "table", "folder": "table", "kind": "detection"})
    (root / "studies" / "tiny.json").write_text(json.dumps(record))
    blind, broken, good, bare, absent = film_study(root, "tiny")  # nothing of the detection
    assert "it needs the render mode 'rgb_array', and has ['ansi']" in blind.words
    assert broken.words.startswith("skipped: it cannot be read: ")
    assert len(good.files) == 2
    assert bare.words.startswith("skipped: ")
    assert "holds results, but no trained agent" in bare.words
    assert absent == Film("not run", (), "skipped: it has not been run")


def test_without_what_draws_it_says_how_to_get_it(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(folder_of(root, "without"))
    for name in ("strip.png", "watch.mp4"):
        (folder_of(root, "with") / name).unlink()
    monkeypatch.setattr(films, "find_spec", lambda name: None)
    film = film_study(root, "tiny")[0]
    assert [path.name for path in film.files] == ["strip.png"]
    assert film.words.endswith("; no video, which needs imageio-ffmpeg: pip install 'butfor[video]'")
    assert names(root, "with") == {"strip.png"}
    for name in ("PIL", "PIL.PngImagePlugin"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "butfor.reporting.films")
    with pytest.raises(ImportError, match=r"Films need pillow; install it with: pip install 'butfor\[video\]'"):
        importlib.import_module("butfor.reporting.films")


# --- the page and the command -----------------------------------------------------------------------


def test_the_page_shows_strips_with_words_for_them(root: Path) -> None:
    strip = folder_of(root, "with") / "strip.png"
    page = write_study_report(root, "tiny").read_text(encoding="utf-8")
    images = {str(tag["alt"]): str(tag["src"]) for tag in Tags(page).named("img")}
    assert list(images) == [
        f"{label}: {described((folder_of(root, label) / 'strip.png').read_bytes())}" for label in ("with", "without")
    ]
    assert all(source.startswith("data:image/png;base64,") for source in images.values())
    assert [tag["aria-label"] for tag in Tags(page).named("video")] == [
        f"Episodes of the trained agent: {label}" for label in ("with", "without")
    ]
    strip.write_bytes(strip.read_bytes().replace(b"Frames of an episode of ", HOSTILE.ljust(24)[:24].encode(), 1))
    page = write_study_report(root, "tiny").read_text(encoding="utf-8")
    assert HOSTILE[:24] not in page
    strip.write_bytes(b"<svg onload=alert(1)>")
    assert len(Tags(write_study_report(root, "tiny").read_text(encoding="utf-8")).named("img")) == 1


@pytest.mark.parametrize("end", [8, 20, 33, 40, 60])
def test_a_strip_that_is_cut_off_has_no_description(trained: Path, end: int) -> None:
    content = (folder_of(trained, "with") / "strip.png").read_bytes()
    assert described(content[:end]) in described(content)


def test_the_command_makes_films_and_the_page(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(studies.STUDIES, "tiny", lambda: TINY)
    command("films", ("tiny",), root=root)
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "Films of tiny:"
    assert " ".join(out[1].split()) == "with strip.png, watch.mp4; kept: newer than the agent"
    assert " ".join(out[3].split()) == "not run skipped: it has not been run"
    assert (root / "reports" / "tiny.html").is_file()
    write_study(TINY, root, "small")
    command("films", ("tiny",), root=root, size="small")
    assert "Films of tiny-small:" in capsys.readouterr().out
    with pytest.raises(ValueError, match="holds no studies yet"):
        command("films", root=root / "nothing")


def test_run_and_status_tell_what_is_left_to_another_process(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(locks, "GRACE", 0.0)
    monkeypatch.setitem(studies.STUDIES, "tiny", lambda: TINY)
    run: Callable[..., None] = command
    with locked(folder_of(root, "not run")):
        run("run", ("tiny",), root=root, device="cpu")
        out = capsys.readouterr().out
        assert f"absent, 0 of 10 episodes, process {os.getpid()} on " in out
        assert "1 run is left to another process; the same command goes on with what that may leave behind." in out
        run("status", ("tiny",), root=root)
        assert " works on it  " in capsys.readouterr().out
    run("status", ("tiny",), root=root)
    assert "works on it" not in capsys.readouterr().out
