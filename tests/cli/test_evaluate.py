"""`butfor evaluate` and `butfor watch`: a trained agent's success and its video."""

from pathlib import Path

import pytest
from support.command_line import Butfor

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
