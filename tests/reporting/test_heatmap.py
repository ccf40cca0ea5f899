"""The heat map of a run shows the scores and labels of the episodes in its replay buffer."""

from pathlib import Path

import numpy as np
import pytest
import torch
from support import slide
from support.small_training import ALL_USES, small

from butfor.reporting.heatmap import write_heatmap
from butfor.runs.checkpoints import latest_checkpoint
from butfor.training.run import resume, train

torch.set_num_threads(1)


def test_a_heat_map_is_of_what_the_replay_buffer_contains(tmp_path: Path) -> None:
    """A capacity of 6 keeps the last 6 of 10 episodes; slide's labels are a function of the state."""
    run = train(small(use=ALL_USES, replay={"capacity": 6}), tmp_path / "run")
    state = latest_checkpoint(run)
    assert state is not None
    with np.load(write_heatmap(run), allow_pickle=False) as file:
        found = {name: file[name] for name in file.files}
    assert found["episodes"].tolist() == [np.mean([4, 5, 6, 7, 8, 9])]
    assert (int(found["seed"]), found["counts"].tolist(), found["labelled"].tolist()) == (0, [6], [4])
    np.testing.assert_allclose(found["score"][:, 0], state["replay"]["score"][0].numpy().mean(0), rtol=1e-6)
    order = np.arange(4, 10) % 6
    states = state["replay"]["observation"][0].numpy()[order][[0, 1, 2, 3], :-1]  # the first four of six, one in one
    np.testing.assert_allclose(found["label"][:, 0], slide.influence(states.reshape(-1, 4)).reshape(4, -1).mean(0))
    (run / "heatmap.npz").unlink()
    with np.load(write_heatmap(run, labels=False), allow_pickle=False) as file:
        assert "label" not in file
    with np.load(write_heatmap(run), allow_pickle=False) as file:  # labels are added where they are wanted
        assert np.array_equal(file["label"], found["label"])
    before = (run / "heatmap.npz").stat().st_mtime_ns
    assert write_heatmap(run).stat().st_mtime_ns == before  # once is enough
    resume(run, episodes=12)
    with np.load(write_heatmap(run), allow_pickle=False) as file:  # but not after the run was resumed
        assert file["episodes"].tolist() == [np.mean([6, 7, 8, 9, 10, 11])]


def test_runs_without_scores_have_no_heat_map(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"{tmp_path / 'run'} "):
        write_heatmap(train(small(), tmp_path / "run"))
