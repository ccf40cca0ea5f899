"""The table of the heuristic label can be rebuilt."""

from pathlib import Path
from typing import Any

import build_reach_table
import gymnasium
import gymnasium_robotics
import numpy as np
import numpy.typing as npt
import pytest
from build_reach_table import all_targets, build_table, save_table

from butfor.envs import fix_gymnasium_robotics
from butfor.envs.heuristic import load_table

Floats = npt.NDArray[np.float64]
START, MOVEMENT = load_table()


def test_sampled_rows_can_be_rebuilt() -> None:
    """40 rows, the first among them, to half a unit of the file; and the targets are those of the paper."""
    targets = all_targets()
    assert len(targets) == len(START) == len(MOVEMENT) == 1 + 20**3 + 50**3 == 133_001
    assert np.abs(targets[0] - [1.3418, 0.7491, 0.5347]).max() < 1e-4  # initial gripper of gymnasium-robotics v4
    for grid, low, high, points in [
        (targets[1:8001], [0.5, 0.0, 0.05], [1.55, 1.4, 1.0], 20),
        (targets[8001:], [1.1, 0.5, 0.4], [1.5, 1.0, 0.9], 50),
    ]:
        assert len(np.unique(grid.round(9), axis=0)) == points**3
        for axis in range(3):
            assert np.allclose(np.unique(grid[:, axis].round(9)), np.linspace(low[axis], high[axis], points))
    generator = np.random.default_rng(0)
    rows = np.concatenate([[0], generator.integers(1, 8001, 15), generator.integers(8001, 133_001, 24)])
    told: list[tuple[int, int]] = []
    start, movement = build_table(targets[rows], threads=1, progress=lambda done, total: told.append((done, total)))
    assert told == [(40, 40)]
    assert np.abs(start - START[rows]).max() < 2.5e-5 + 1e-6
    assert np.abs(movement - MOVEMENT[rows]).max() < 1e-6 + 1e-6


def test_rows_equal_gymnasium_robotics_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    """The paper's procedure step by step in FetchReach-v4, resetting for each action, for near and far targets."""
    gymnasium.register_envs(gymnasium_robotics)
    fix_gymnasium_robotics()
    env: Any = gymnasium.make("FetchReach-v4").unwrapped
    targets = np.array([[1.3, 0.7, 0.5], [0.6, 0.1, 0.1], [1.55, 1.4, 1.0]])

    def settle(target: Floats) -> Floats:
        env.reset(seed=0)
        env._utils.set_mocap_pos(env.model, env.data, "robot0:mocap", target)
        env._utils.set_mocap_quat(env.model, env.data, "robot0:mocap", np.array([1.0, 0.0, 1.0, 0.0]))
        for _ in range(15):
            env._mujoco_step(None)
        return np.array(env._utils.get_site_xpos(env.model, env.data, "robot0:grip"))

    monkeypatch.setattr(build_reach_table, "CHUNK", 2)  # the last chunk is shorter
    start, movement = build_table(targets, threads=2)
    for row, target in enumerate(targets):
        assert np.abs(settle(target) - start[row]).max() <= 1e-12
        ways = []
        for axis, sign in [(axis, sign) for axis in range(3) for sign in (1, -1)]:
            settle(target)
            action = np.zeros(4, dtype=np.float32)
            action[axis] = sign
            ways.append(np.abs(env.step(action)[0]["observation"][:3] - start[row]))
        assert np.abs(np.max(ways, axis=0) - movement[row]).max() <= 1e-12


def test_tables_are_written_whole_and_read_back(tmp_path: Path) -> None:
    """16 bits with jumps from end to end; what does not fit leaves no file."""
    generator, path = np.random.default_rng(2), tmp_path / "table.npz"
    start, movement = generator.uniform(-1.638, 1.638, (1000, 3)), generator.uniform(0, 0.0655, (1000, 3))
    save_table(path, start, movement)
    read_start, read_movement = load_table(path)
    assert np.abs(read_start - start).max() <= 2.5e-5 + 1e-12
    assert np.abs(read_movement - movement).max() <= 1e-6 + 1e-12
    movement[7, 1] = 0.0656
    with pytest.raises(ValueError, match=r"0\.0656"):
        save_table(tmp_path / "other.npz", start, movement)
    assert [file.name for file in tmp_path.iterdir()] == ["table.npz"]


def test_the_command_builds_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With few targets here; a place that cannot be written to is refused before the work."""
    targets = np.array([[1.3, 0.7, 0.5], [1.2, 0.8, 0.6]])
    monkeypatch.setattr(build_reach_table, "all_targets", lambda: targets)
    build_reach_table.main([str(tmp_path / "new.npz"), "--threads", "1"])
    shown = capsys.readouterr().err
    assert "2 of 2 targets, 0.0 minutes left" in shown
    assert "new.npz" in shown
    start, _ = load_table(tmp_path / "new.npz")
    assert np.abs(start - targets + [0, 0, 0.02]).max() < 0.01  # the grip settles about 0.02 below its target
    with pytest.raises(SystemExit):
        build_reach_table.main([str(tmp_path / "missing" / "new.npz")])
    assert "missing/new.npz" in capsys.readouterr().err
