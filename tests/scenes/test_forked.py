"""Scenes of environments that are not built in, against the environment itself."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from support.pusher import STEPS, make_pusher, register_pusher
from support.small_training import small

from butfor.datasets.view import ViewOptions, view_anything
from butfor.detection.collect import CollectConfig, collect_file
from butfor.scenes.scene import Scene
from butfor.training.run import train

pytest.importorskip("mujoco")
from butfor.scenes.forked import view_env
from butfor.scenes.view import view_run

SEED = 3


def forwards(obs: Any, step: int) -> Any:
    return np.array([0.6], dtype=np.float32)


def there(obs: Any, info: Any) -> bool:
    return bool(obs["achieved_goal"][0] >= obs["desired_goal"][0])


def walk(actions: Any) -> list[Any]:
    """The observations of an episode with these actions, played without any fork."""
    env = make_pusher()
    seen = [env.reset(seed=SEED)[0]]
    seen += [env.step(action)[0] for action in actions]
    return seen


@pytest.fixture(scope="module")
def scene() -> Scene:
    return view_env(make_pusher(), forwards, [SEED], hold=2, reached=there)


def test_what_moves_without_a_motor_is_the_object(scene: Scene) -> None:
    roles = {body.name: body.role for body in scene.bodies}
    assert roles == {"wall": "scenery", "pusher": "robot", "puck": "object", "goal": "goal"}


def test_forks_do_not_change_the_episode(scene: Scene) -> None:
    (episode,) = scene.episodes
    seen = walk([forwards(None, 0)] * STEPS)
    assert np.array_equal(episode.pose[:, 1, 0], [obs["observation"][0] for obs in seen])
    assert np.array_equal(episode.pose[:, 2, 0], [obs["achieved_goal"][0] for obs in seen])
    assert episode.reached is not None
    assert episode.reached.tolist() == [there(obs, {}) for obs in seen]


def test_ghosts_and_outcomes_are_those_of_the_environment(scene: Scene) -> None:
    """From each state each action is held for two steps, and then the policy acts; here from the start, every time."""
    (episode,) = scene.episodes
    ghosts = episode.ghosts
    assert ghosts is not None
    assert ghosts.success is not None
    assert ghosts.source == "simulator"
    for step in range(STEPS - 1):
        for number, action in enumerate(ghosts.action[step]):
            way = [forwards(None, 0)] * step + [action] * 2
            seen = walk(way + [forwards(None, 0)] * (STEPS - len(way)))
            places = [obs["achieved_goal"][0] for obs in seen[step + 1 : step + 3]]
            assert np.array_equal(ghosts.path[step, number, :, 0, 0], places)
            assert ghosts.success[step, number] == there(seen[-1], {})
    assert episode.decided is not None  # pulling back from the first step on does not reach the goal


def test_actions_matter_from_the_contact_on(scene: Scene) -> None:
    """The puck touches nothing until the pusher's front, 5 cm before its middle, is 10 cm from the puck's middle."""
    (episode,) = scene.episodes
    exact = episode.labels["exact"]
    gap = episode.pose[:-1, 2, 0] - episode.pose[:-1, 1, 0] - 0.1
    assert exact.any()
    assert not exact[gap > 0.1].any()  # no force of a motor crosses this within a step of 0.05 s
    assert exact[np.flatnonzero(gap < 1e-3)[0]]


def test_an_environment_without_mujoco_is_refused() -> None:
    with pytest.raises(TypeError, match="CartPole"):
        view_env(gymnasium.make("CartPole-v1"), lambda obs, step: 0)


def test_the_view_of_a_run_forks_its_environment(tmp_path: Path) -> None:
    run = train(small(env="a pusher", entities=("puck=1",), use=("bonus",)), tmp_path / "run", make_env=make_pusher)
    shown = view_run(run, (0, 1), hold=1, make_env=make_pusher)
    assert [body.role for body in shown.bodies] == ["scenery", "robot", "object", "goal"]
    assert [one.ghosts.source for one in shown.episodes if one.ghosts is not None] == ["simulator"] * 2
    assert all(one.ghosts is not None and one.ghosts.success is not None for one in shown.episodes)


def test_recorded_episodes_are_played_again_and_forked(tmp_path: Path) -> None:
    episodes = collect_file(CollectConfig(register_pusher(), "random", 2), tmp_path / "pusher.npz")
    shown = view_anything(tmp_path / "pusher.npz", ViewOptions((1,), hold=1))
    (episode,) = shown.episodes
    assert episode.ghosts is not None
    assert "recorded actions" in episode.decided_text
    assert np.array_equal(episode.action, episodes.action[1])
    np.testing.assert_allclose(episode.pose[:, 2, 0], episodes.achieved_goal[1, :, 0], atol=1e-6)
