"""`butfor evaluate`, `butfor watch` and `butfor view`: a trained agent's success, its video and its player."""

from pathlib import Path

import pytest
from support.command_line import Butfor, assert_error

from butfor.training.run import evaluate_run


def test_evaluate_prints_every_seed_and_the_mean(tiny_run: Path, butfor_command: Butfor) -> None:
    code, out, err = butfor_command("evaluate", str(tiny_run), "--episodes", "4", "--device", "cpu")
    assert code == 0, err
    expected = evaluate_run(tiny_run, 4)
    *rows, last, following = out.splitlines()
    assert rows == [f"seed {seed}: {share:.3f}" for seed, share in expected.items()]
    assert last == f"success {sum(expected.values()) / 2:.3f}, mean over 2 seed(s), 4 episodes each"
    assert following == f"Next: butfor watch {tiny_run}"


def test_watch_hands_its_options_on(butfor_command: Butfor, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = pytest.importorskip("butfor.reporting.video")
    monkeypatch.setattr(watch, "watch", lambda *values: values)
    code, out, _ = butfor_command("watch", ".", "--out", "a.gif", "--seed", "3", "--episodes", "2", "--first", "5")
    assert code == 0
    assert out.splitlines()[0] == f"Video: {(Path('.'), Path('a.gif'), 3, 2, 5)}"


def test_view_writes_the_player_of_a_run(tiny_run: Path, butfor_command: Butfor, tmp_path: Path) -> None:
    page = tmp_path / "view.html"
    code, out, err = butfor_command("view", str(tiny_run), "--episodes", "0", "1", "--out", str(page), "--no-browser")
    assert code == 0, err
    assert out.splitlines() == [f"Player: {page}", f"Next: open {page} in a browser"]
    assert 'class="bf-player"' in page.read_text(encoding="utf-8")


def test_view_writes_a_film_instead(tiny_run: Path, butfor_command: Butfor, tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    film = tmp_path / "a.gif"
    code, out, err = butfor_command("view", str(tiny_run), "--gif", str(film), "--skip-outcomes")
    assert code == 0, err
    assert out.splitlines() == [f"Film: {film}"]
    assert film.read_bytes().startswith(b"GIF8")


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["model.safetensors"], "--data"),
        (["RUN", "--data", "x.npz"], "--data"),
        (["RUN", "--gif", "film.mp4"], "film.mp4"),
        (["RUN", "--hold", "0"], "0"),
    ],
)
def test_view_refuses(arguments: list[str], part: str, tiny_run: Path, butfor_command: Butfor) -> None:
    result = butfor_command("view", *[str(tiny_run) if word == "RUN" else word for word in arguments])
    assert_error(result, part)
