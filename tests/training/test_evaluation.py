"""Evaluation of a run: the successes of every seed's policy, counted once more environment by environment."""

import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from support.small_training import TRACK, small

from butfor.envs import make_vector_env
from butfor.models.networks import make_generators
from butfor.rollouts.play import episode_seed
from butfor.spaces.actions import ActionLaw
from butfor.training.agents.ddpg import DDPG
from butfor.training.agents.policy import AgentConfig, load_policy, save_agent
from butfor.training.run import evaluate_run, train

SEEDS = (3, 4)


@pytest.fixture(scope="module")
def slide_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two agents for slide that always push to the right, one more than the other, and so hit a goal now and then."""
    agent = DDPG(5, 1, AgentConfig(layers=1, width=4), make_generators(SEEDS))
    with torch.no_grad():
        for parameter in agent.policy.actor.parameters():
            parameter.zero_()
        agent.policy.actor.layers[-1].bias.copy_(torch.tensor([[[0.3]], [[0.6]]]))  # type: ignore[operator]
    folder = tmp_path_factory.mktemp("slide")
    save_agent(
        folder / "model.safetensors",
        agent.state_dict(),
        agent.config,
        ActionLaw((-1.0,), (1.0,)),
        (4, 1, 1),
        "slide",
        SEEDS,
    )
    return folder


def one_by_one(run: Path, env_name: str, episodes: int) -> dict[int, list[bool]]:
    """Whether each episode ends in success, from one environment that is stepped in a plain loop."""
    env = make_vector_env(env_name, 1)
    outcomes: dict[int, list[bool]] = {seed: [] for seed in SEEDS}
    for seed in SEEDS:
        policy = load_policy(run, seed)
        for episode in range(episodes):
            obs: Any = env.reset(seed=[episode_seed(seed, 3, episode)])[0]  # type: ignore[arg-type]
            over = False
            while not over:
                obs, _, terminated, truncated, info = env.step(policy(obs))
                over = bool(terminated[0] or truncated[0])
            outcomes[seed].append(bool(info["is_success"][0]))
    env.close()
    return outcomes


def test_successes_are_those_of_single_environments(slide_run: Path) -> None:
    expected = {seed: sum(each) / 40 for seed, each in one_by_one(slide_run, "slide", 40).items()}
    assert evaluate_run(slide_run, 40) == expected
    assert 0 < expected[4] < expected[3]


def test_more_episodes_than_environments_and_episodes_of_unequal_lengths(tmp_path: Path) -> None:
    """Foreign environments are played four at a time: of the last round, only what was asked for counts."""
    run = train(small(env=TRACK, seeds=2, first_seed=3), tmp_path / "run")
    outcomes = one_by_one(run, TRACK, 20)
    assert {episode % 4 for each in outcomes.values() for episode in range(20) if each[episode]} & {1, 2, 3}
    for episodes in (1, 2, 3, 5, 6, 7, 9, 10, 11, 18, 19, 20):
        expected = {seed: sum(each[:episodes]) / episodes for seed, each in outcomes.items()}
        assert evaluate_run(run, episodes) == expected


def test_an_environment_that_a_function_makes(slide_run: Path) -> None:
    """The same environment under a name that nobody has registered."""
    run = slide_run / "renamed"
    agent, law = DDPG(5, 1, AgentConfig(layers=1, width=4), make_generators([3])), ActionLaw((-1.0,), (1.0,))
    for env_name in ("slide", "my-world"):
        save_agent(
            run / env_name / "model.safetensors", agent.state_dict(), agent.config, law, (4, 1, 1), env_name, [3]
        )
    expected = evaluate_run(run / "slide", 20)
    assert evaluate_run(run / "my-world", 20, make_env=lambda: gymnasium.make("butfor/Slide-v0")) == expected
    with pytest.raises(ValueError, match=r"'my-world'.*make_env="):
        evaluate_run(run / "my-world")


def test_the_model_file_will_do_in_place_of_its_folder(slide_run: Path) -> None:
    assert evaluate_run(slide_run / "model.safetensors", 3) == evaluate_run(slide_run, 3)


def test_progress_counts_the_episodes_of_all_seeds(slide_run: Path) -> None:
    shown: list[tuple[str, int, int, str]] = []
    evaluate_run(slide_run, 150, progress=lambda *values: shown.append(values))
    expected = [(100, 3), (150, 3), (250, 4), (300, 4)]
    assert shown == [("episodes", done, 300, f"seed {seed}") for done, seed in expected]


def test_fresh_episodes_are_not_those_of_training_or_its_evaluations() -> None:
    kinds = [{episode_seed(3, kind, episode) for episode in range(200)} for kind in (0, 1, 2, 3)]
    assert len(set.union(*kinds)) == 800


@pytest.mark.parametrize("sizes", [(5, 1, 1), (4, 2, 1), (4, 1, 2)])
def test_an_environment_of_other_sizes_is_refused(tmp_path: Path, sizes: tuple[int, int, int]) -> None:
    law = ActionLaw((-1.0,) * sizes[1], (1.0,) * sizes[1])
    agent = DDPG(sizes[0] + sizes[2], sizes[1], AgentConfig(layers=1, width=4), make_generators([3]))
    save_agent(tmp_path / "model.safetensors", agent.state_dict(), agent.config, law, sizes, "slide", [3])
    with pytest.raises(ValueError, match=rf"{tmp_path}.*{re.escape(str(sizes))}.*slide.*\(4, 1, 1\)"):
        evaluate_run(tmp_path, 2)


def test_what_cannot_be_evaluated_is_refused(tmp_path: Path, slide_run: Path) -> None:
    with pytest.raises(ValueError, match=r"episodes.* 0"):
        evaluate_run(slide_run, 0)
    with pytest.raises(FileNotFoundError, match=str(tmp_path)):
        evaluate_run(tmp_path)
    assert np.isfinite(list(evaluate_run(slide_run, 1).values())).all()
