"""Episodes as a Minari dataset: what was played, with rewards, seeds and the labels."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import minari
import numpy as np
import pytest

from butfor.datasets.export import export_minari
from butfor.datasets.files import read_minari
from butfor.detection.collect import CollectConfig, collect_file
from butfor.envs import make_vector_env


def test_a_minari_dataset_has_the_episodes_and_their_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    config = CollectConfig("slide", "noisy-expert", 6, ("exact", "contact"))
    episodes = collect_file(config, tmp_path / "slide.npz")
    folder = export_minari(episodes, "mine/slide-v0", "slide", "noisy-expert")
    assert folder == tmp_path / "minari" / "mine" / "slide-v0"
    found = list(minari.load_dataset("mine/slide-v0").iterate_episodes())
    assert len(found) == 6
    for place, one in enumerate(found):
        steps = int(episodes.length[place])
        np.testing.assert_array_equal(one.observations["observation"], episodes.observation[place, : steps + 1])
        np.testing.assert_array_equal(one.actions, episodes.action[place, :steps])
        for name, label in episodes.labels().items():
            info = one.infos[name if name == "contact" else f"label_{name}"]
            assert info.reshape(-1).tolist() == [*label[place, :steps].tolist(), False]
        assert set(one.rewards.tolist()) <= {-1.0, 0.0}  # whether the goal is reached
        assert len(one.rewards) == steps
    recording = read_minari("mine/slide-v0", ignore=["achieved_goal", "desired_goal"])
    assert recording.length.tolist() == episodes.length.tolist()
    with pytest.raises(FileExistsError, match="slide-v0"):
        export_minari(episodes, "mine/slide-v0", "slide")
    with pytest.raises(ValueError, match="'slide'"):
        export_minari(episodes, "slide", "slide")


def test_the_environment_is_recovered_without_butfor_being_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    episodes = collect_file(CollectConfig("slide", "random", 2), tmp_path / "slide.npz")
    export_minari(episodes, "mine/slide-v0", "slide")
    code = (
        "import minari; data = minari.load_dataset('mine/slide-v0'); env = data.recover_environment(); "
        f"obs, _ = env.reset(seed={int(np.asarray(episodes.reset_seed)[0])}); "
        "print(env.spec.id, (obs['observation'] == data[0].observations['observation'][0]).all())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ))
    assert done.stdout.split() == ["butfor/Slide-v0", "True"], done.stderr
    # an environment that a function makes cannot be stored
    make: Any = gymnasium.spec("butfor/Slide-v0").make
    monkeypatch.setitem(gymnasium.registry, "Own-v0", gymnasium.envs.registration.EnvSpec("Own-v0", make))
    monkeypatch.setattr("butfor.datasets.export.make_vector_env", lambda name, count: make_vector_env("slide", count))
    export_minari(episodes, "mine/own-v0", "Own-v0")
    assert minari.load_dataset("mine/own-v0").env_spec is None
