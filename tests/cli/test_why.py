"""`butfor why`: what it prints."""

from pathlib import Path

import numpy as np
from support.command_line import Butfor, assert_error
from support.small_training import small

from butfor.detection.collect import CollectConfig, collect_file
from butfor.envs.several.pucks import BODIES, advance
from butfor.influence import GraphConfig, Influence
from butfor.training import train


def test_steps_and_entities_are_printed(butfor_command: Butfor, tmp_path: Path) -> None:
    episodes = collect_file(CollectConfig("pucks", "noisy-expert", episodes=6), tmp_path / "some.npz")
    way = np.linalg.norm(episodes.observation[:, :, 12:14] - episodes.observation[:, :1, 12:14], axis=-1).max(1)
    number = str(int(way.argmax()))
    options = ("--event", "third moved", "--episode", number, "--alternatives", "4")
    code, out, err = butfor_command("why", "some.npz", *options)
    assert code == 0, err
    assert "Without agent: it does not happen." in out
    assert f"of episode {number}" in out
    code, out, err = butfor_command("why", "some.npz", *options, "--sufficient")
    assert code == 0, err
    assert "With random actions in all steps: " in out
    assert_error(butfor_command("why", "some.npz", "--event", "nothing"), "nothing", "third moved")
    assert_error(butfor_command("why", "some.npz", "--far", "0.9"), "--far 0.9", "--influence FILE")
    assert_error(butfor_command("why", "some.npz", "--near", "0.9"), "--near 0.9", "--influence FILE")


def test_the_policy_of_a_run_plays_and_goes_on(butfor_command: Butfor, tmp_path: Path) -> None:
    train(small(env="pucks", episodes=5), tmp_path / "run")
    options = ("--event", "agent moved", "--alternatives", "2", "--episode", "1")
    code, out, err = butfor_command("why", "run", *options)
    assert code == 0, err
    assert "'agent moved'" in out
    influence_of_pucks(tmp_path / "graph.safetensors")
    code, by_model, err = butfor_command("why", "run", "--influence", "graph.safetensors", *options)
    assert code == 0, err
    assert by_model.splitlines()[0] == out.splitlines()[0]  # the same episode, so the same step
    assert "Without third" in by_model
    assert_error(butfor_command("why", "run", "--influence", "none.safetensors"), "none.safetensors")
    success = ("--influence", "graph.safetensors", "--event", "success", "--far", "0.1")
    assert_error(butfor_command("why", "run", *success), "--far 0.1", "--near")


def influence_of_pucks(path: Path) -> None:
    """Save a model of pairs after a fit that teaches it nothing."""
    random = np.random.default_rng(0)
    obs = random.uniform(-0.5, 0.5, (400, 16)).astype(np.float32)
    action = random.uniform(-1, 1, (400, 2)).astype(np.float32)
    settings = GraphConfig(updates=2, motion_updates=2, width=8)
    entities = {name: list(range(4 * place, 4 * place + 4)) for place, name in enumerate(BODIES)}
    Influence.fit(obs, action, advance(obs, action)[0], entities, model=settings, progress=False).save(path)
