"""The episodes of the demo are those of the simulator; tools/build_demo_data.py collects them."""

from importlib.metadata import version

import numpy as np
import pytest
from build_demo_data import ENV, LABELS, PARTS

from butfor.datasets.demo import FILE
from butfor.envs import make_vector_env
from butfor.rollouts.episodes import Episodes
from butfor.rollouts.play import play_again


def test_episodes_of_every_policy_can_be_played_again() -> None:
    pytest.importorskip("mujoco")
    kept = Episodes.load(FILE)
    assert kept.metadata["parts"] == PARTS
    if version("mujoco") != kept.metadata["mujoco"]:
        pytest.skip("trajectories differ between versions of MuJoCo")
    chosen = [0, PARTS["random"], len(kept) - 1]
    env = make_vector_env(ENV, len(chosen), LABELS)
    again = play_again(env, kept, chosen)
    env.close()
    np.testing.assert_allclose(again.observation, kept.observation[chosen], rtol=0, atol=1e-5)
    assert (again.label["exact"] == kept.label["exact"][chosen]).all()
    assert again.contact is not None
    assert kept.contact is not None
    assert (again.contact == kept.contact[chosen]).all()
