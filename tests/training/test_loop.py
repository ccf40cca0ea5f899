"""The verbs of training: episodes that do not depend on how they are played, replicas alone and together, overlap."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.small_training import ALL_USES, brief, copy_of, metrics, models, small
from torch import Tensor

from butfor.envs import make_vector_env
from butfor.models.networks import make_generators
from butfor.rollouts.play import EnvError, episode_seed
from butfor.runs.checkpoints import latest_checkpoint
from butfor.runs.stopping import Stop
from butfor.training.exploration import draw_noise
from butfor.training.goal_env import GoalEnv, open_goal_env
from butfor.training.loop import Trainer
from butfor.training.run import train
from butfor.training.settings import Config, preset
from butfor.training.signals.cai import CaiSignal
from butfor.training.signals.learned import LearnedSignal

torch.set_num_threads(1)
FIELDS = ["observation", "action", "achieved_goal", "desired_goal", "sampled", "length", "terminated"]


@pytest.fixture(scope="module")
def slide() -> GoalEnv:
    return open_goal_env("slide", target_scale=1.0)


@pytest.fixture
def make(slide: GoalEnv) -> Iterator[Callable[[Config], Trainer]]:
    """Makes trainers on slide whose environments are given back."""
    made: list[Trainer] = []

    def make(config: Config) -> Trainer:
        made.append(Trainer(config, slide, "cpu"))
        return made[-1]

    yield make
    for trainer in made:
        trainer.close()


Make = Callable[[Config], Trainer]


def warm_up(trainer: Trainer, *counts: int) -> None:
    """Play and store random episodes, so many at once in turn."""
    for count in counts:
        trainer.goal_env = dataclasses.replace(trainer.goal_env, evaluation_envs=count)
        trainer.store(trainer.play_random())


def fit(trainer: Trainer) -> None:
    """What of the signal's fitting is due, without an interruption."""
    trainer.fit_and_rescore(Stop(None), lambda stage, done, total, text: None)


def trained(tmp_path: Path, config: Config, name: str = "run") -> dict[str, Any]:
    """What the last checkpoint of a whole run holds."""
    state = latest_checkpoint(train(config, tmp_path / name))
    assert state is not None
    return state


# ----------------------------------------------------------------------------------------- episodes


def test_random_episodes_do_not_depend_on_how_many_are_played_at_once(make: Make) -> None:
    config = small(seeds=2, first_seed=3)
    together, one_by_one, mixed = make(config), make(config), make(config)
    warm_up(together, 4)
    warm_up(one_by_one, 1, 1, 1, 1)
    warm_up(mixed, 3, 1)
    for name in FIELDS:
        for other in (one_by_one, mixed):
            assert torch.equal(getattr(together.replay, name), getattr(other.replay, name)), name
    assert together.replay.sampled[:, :4].all()
    numbers = [[g.get_state() for g in t.generators["actions"]] for t in (together, one_by_one, mixed)]
    assert all(torch.equal(a, b) for other in numbers[1:] for a, b in zip(numbers[0], other, strict=True))


def test_every_reset_is_seeded_by_seed_and_episode_alone(make: Make) -> None:
    trainer = make(small(seeds=2, first_seed=5, episodes=8, num_envs=2))
    warm_up(trainer, 3, 1)
    for _ in range(2):
        trainer.store(trainer.play())
    env = make_vector_env("slide", 1)
    for r, seed in enumerate((5, 6)):
        for episode in range(8):
            obs = env.reset(seed=[episode_seed(seed, 0, episode)])[0]  # type: ignore[arg-type]
            assert np.array_equal(trainer.replay.observation[r, episode, 0].numpy(), obs["observation"][0])
            assert np.array_equal(trainer.replay.desired_goal[r, episode, 0].numpy(), obs["desired_goal"][0])
    env.close()


def test_random_actions_are_uniform_within_the_bounds(make: Make) -> None:
    trainer = make(small(seeds=2, episodes=200, warmup=200))
    warm_up(trainer, 200)
    action = trainer.replay.action.double()
    low, high = (bound.item() for bound in trainer.bounds)
    unit = ((action - low) / (high - low)).flatten(1)  # [R, N]
    assert 0 <= unit.min() < 0.001
    assert 0.999 < unit.max() <= 1
    error = (1 / 12 / unit.shape[1]) ** 0.5
    assert (unit.mean(1) - 0.5).abs().max() < 5 * error
    assert (unit[0] != unit[1]).all()  # replicas have numbers of their own


def test_environments_of_a_replica_stand_side_by_side(make: Make) -> None:
    """With two environments a replica, episodes n and n + 1 are played at once, each with noise of its own."""
    trainer = make(small(seeds=2, episodes=8, num_envs=2))
    warm_up(trainer, 4)
    generators = [g.clone_state() for g in trainer.generators["actions"]]
    trainer.store(trainer.play())
    assert trainer.replay.stored == 6
    steps, law = trainer.goal_env.steps, trainer.goal_env.law
    expected = torch.stack([draw_noise(steps, 2, law, 0, g) for g in generators], 1)  # [T, R, W, n]
    assert torch.equal(trainer.explorers[0].noise, expected)
    low, high = trainer.bounds
    for r in range(2):
        for w in range(2):
            lot, uniform = expected[:, r, w, 0], expected[:, r, w, 2:3]
            random = lot < 0.3
            assert torch.equal(trainer.replay.sampled[r, 4 + w], random)
            drawn = low + (high - low) * uniform
            assert torch.allclose(trainer.replay.action[r, 4 + w][random], drawn[random])


def test_what_is_stored_is_what_was_played(make: Make) -> None:
    trainer = make(small(seeds=2, episodes=8, num_envs=2))
    warm_up(trainer, 4)
    played = trainer.play()
    trainer.store(played)
    for name in ("observation", "action", "achieved_goal", "desired_goal", "sampled", "length"):
        given = torch.as_tensor(getattr(played.episodes, name))  # [R x W, ...]
        for r in range(2):
            assert torch.equal(getattr(trainer.replay, name)[r, 4:6], given[2 * r : 2 * r + 2]), name


# ------------------------------------------------------------------------------- alone and together


@pytest.mark.parametrize("use", [(), ALL_USES], ids=["HER", "all uses"])
def test_a_replica_alone_follows_the_same_course_as_in_a_batch(tmp_path: Path, use: tuple[Any, ...]) -> None:
    config = small(seeds=3, first_seed=4, use=use)
    together = trained(tmp_path, config, "together")
    rows = metrics(tmp_path / "together")
    for r in range(3):
        alone = trained(tmp_path, small(first_seed=4 + r, use=use), f"alone {r}")
        mine = {name: value[r : r + 1] for name, value in together["replay"].items() if name != "stored"}
        for name in FIELDS:  # random episodes to the bit, whatever they hold
            assert torch.equal(mine[name][:, :4], alone["replay"][name][:, :4]), name
        assert torch.equal(mine["observation"][:, :, 0], alone["replay"]["observation"][:, :, 0])
        assert torch.equal(mine["sampled"], alone["replay"]["sampled"])  # the same lots
        drawn = mine["sampled"]
        assert torch.equal(mine["action"][drawn], alone["replay"]["action"][drawn])
        for name in ("action", "observation", "score"):
            assert torch.allclose(mine[name], alone["replay"][name], rtol=1e-4, atol=1e-5), name
        for name, streams in together["generators"].items():
            assert torch.equal(streams[r], alone["generators"][name][0]), name
        pairs = [(together["learner"]["agent"], alone["learner"]["agent"])]
        pairs += [(together["model"]["model"], alone["model"]["model"])] if use else []
        for whole, single in pairs:
            for name, value in single.items():
                assert torch.allclose(whole[name][r : r + 1], value, rtol=1e-4, atol=1e-6), name
        single_rows = metrics(tmp_path / f"alone {r}")
        for row, other in zip([row for row in rows if row["seed"] == 4 + r], single_rows, strict=True):
            assert row == pytest.approx(other, rel=1e-3, abs=1e-5)


def test_replicas_differ_from_each_other(tmp_path: Path) -> None:
    state = trained(tmp_path, small(seeds=2, use=ALL_USES))
    for name, value in [*state["learner"]["agent"].items(), *state["model"]["model"].items()]:
        if name.endswith("weight"):
            assert (value[0] != value[1]).any(), name


# ---------------------------------------------------------------------------------------- evaluation


def test_evaluation_counts_the_successes_of_the_bare_policy(make: Make) -> None:
    """Against environments stepped one by one; the number of the evaluation decides which episodes are played."""
    trainer = make(small(seeds=2, first_seed=2))
    with torch.no_grad():  # policies that push to the right, more or less, hit a goal now and then
        trainer.agent.policy.actor.layers[-1].bias.copy_(torch.tensor([[[0.5]], [[1.0]]]))  # type: ignore[operator]
    for number in (0, 3):
        got, _ = trainer.evaluate(30, number)
        expected = np.zeros(2)
        env = make_vector_env("slide", 1)
        for r, seed in enumerate((2, 3)):
            for episode in range(30):
                obs = env.reset(seed=[episode_seed(seed, 1, 30 * number + episode)])[0]  # type: ignore[arg-type]
                for _ in range(trainer.goal_env.steps):
                    inputs = torch.from_numpy(np.concatenate([obs["observation"], obs["desired_goal"]], 1)).float()
                    with torch.no_grad():
                        unit = trainer.agent.policy(inputs.expand(2, 1, -1))[r]
                    low, high = trainer.bounds
                    action = (low + high) / 2 + (high - low) / 2 * unit
                    obs, _, _, _, info = env.step(action.numpy())
                expected[r] += bool(info["is_success"][0])
        env.close()
        assert np.array_equal(got, expected / 30)
        assert expected.any()


def test_evaluation_leaves_no_trace_in_training(tmp_path: Path) -> None:
    often = train(small(seeds=2, use=ALL_USES, evaluate_every=1, evaluation_episodes=2), tmp_path / "often")
    seldom = train(small(seeds=2, use=ALL_USES, evaluate_every=9), tmp_path / "seldom")
    assert models(often) == models(seldom)
    assert len(metrics(often)) == 2 * 7  # from the end of the warm-up on
    assert sorted({row["episode"] for row in metrics(seldom)}) == [9, 10]


def test_more_evaluation_episodes_than_environments_at_once(make: Make, slide: GoalEnv) -> None:
    trainer = make(small(seeds=2))
    object.__setattr__(slide, "evaluation_envs", 100)
    whole, _ = trainer.evaluate(10)
    object.__setattr__(slide, "evaluation_envs", 4)
    try:
        assert np.array_equal(trainer.evaluate(10)[0], whole)
    finally:
        object.__setattr__(slide, "evaluation_envs", 100)


# ---------------------------------------------------------------------------------- every variant


def parameters(trainer: Trainer) -> dict[str, Tensor]:
    """Everything that is trained, a copy."""
    modules: dict[str, Any] = {"agent": trainer.agent}
    if isinstance(trainer.signal, LearnedSignal):
        modules["model"] = trainer.signal.model
    return {
        f"{name}.{inner}": value.detach().clone()
        for name, module in modules.items()
        for inner, value in module.named_parameters()
    }


@pytest.fixture
def changes_seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[dict[str, Tensor], Trainer]]:
    """The trainers made in a test, each with its parameters at the start."""
    made: list[tuple[dict[str, Tensor], Trainer]] = []
    original = Trainer.__init__

    def remember(self: Trainer, *arguments: Any) -> None:
        original(self, *arguments)
        made.append((parameters(self), self))

    monkeypatch.setattr(Trainer, "__init__", remember)
    return made


Seen = list[tuple[dict[str, Tensor], Trainer]]


def assert_all_changed(seen: Seen) -> None:
    """Every parameter of every replica moved, and is still a number."""
    (before, trainer), *_ = seen
    after = parameters(trainer)
    for name, value in after.items():
        assert torch.isfinite(value).all(), name
        for r in range(len(value)):
            assert not torch.equal(value[r], before[name][r]), f"{name} of replica {r} did not change"


VARIANTS: dict[str, dict[str, Any]] = {
    "HER": {},
    "PER": {"priority": {"kind": "per"}},
    "CAI-P": {"use": ("priority",)},
    "CAI-P, flatter and by step": {"use": ("priority",), "priority": {"rank_exponent": 0.5, "step_share": 0.5}},
    "bonus": {"use": ("bonus",)},
    "active": {"use": ("active",)},
    "all uses": {"use": ALL_USES},
    "PER with bonus and active": {"use": ("bonus", "active"), "priority": {"kind": "per"}},
    "influenced goals": {"use": ("active",), "replay": {"influenced_goals": 0.0}},
    "intrinsic": {"use": ("intrinsic",), "agent": {"target_range": None}, "replay": {"hindsight": 0.0}},
    "rescore the newest": {"use": ("priority",), "cai": {"rescore": "newest"}},
    "only sampled actions": {"use": ALL_USES, "cai": {"only_sampled": True}},
    "TD3": {"algorithm": "td3"},
    "SAC with the relay": {"algorithm": "sac", "use": (*ALL_USES, "relay")},
    "critics drawn as targets": {"use": ("relay",), "agent": {"critics": 3, "critics_in_target": 2}},
    "exploration that falls": {"use": ALL_USES, "explore": {"success_factor": 0.0}},
    "episodes of practice": {"use": (*ALL_USES, "relay"), "num_envs": 2, "explore": {"practice": 0.5}},
    "caution": {
        "use": ("priority", "relay"),
        "agent": {"critics": 2, "caution_rate": 0.5},
        "explore": {"practice": 0.9},
    },
    "TD3 with all uses": {"algorithm": "td3", "use": ALL_USES},
    "moved": {"use": ("priority", "bonus"), "signal": "moved"},
    "nearness": {"use": ("priority", "bonus"), "signal": "nearness"},
    "oracle": {"use": ("priority", "bonus"), "signal": "oracle"},
    "contact": {"use": ("priority", "bonus"), "signal": "contact"},
    "relay": {"use": (*ALL_USES, "relay")},
    "relay alone": {"use": ("relay",)},
    "the record": {
        "use": (*ALL_USES, "relay"),
        "replay": {"other_goals": 0.5, "influenced_goals": 0.0, "relative_goals": True},
        "agent": {"critic_layer_norm": True, "actor_layer_norm": True, "critics": 2},
    },
    "other goals": {"replay": {"other_goals": 0.5}},
    "relative goals": {"replay": {"relative_goals": True}},
    "shuffled": {"use": ("priority",), "signal": "shuffled"},
    "layer norm": {"agent": {"critic_layer_norm": True}},
    "two environments": {"use": ALL_USES, "num_envs": 2},
    "acting overlaps": {"use": ALL_USES, "overlap": ("acting",)},
    "updates overlap": {"use": ALL_USES, "overlap": ("updates",)},
    "the model overlaps": {"use": ALL_USES, "overlap": ("model",)},
    "everything overlaps": {"use": ALL_USES, "overlap": ("acting", "updates", "model"), "num_envs": 2},
    "a small memory": {"use": ALL_USES, "replay": {"capacity": 5}},
    "sobol": {"use": ALL_USES, "cai": {"scoring": {"sampling": "sobol", "separate_mixture": True}}},
    "no hindsight": {"replay": {"hindsight": 0.0}},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_runs_and_trains_every_parameter(tmp_path: Path, changes_seen: Seen, name: str) -> None:
    folder = train(small(seeds=3, **VARIANTS[name]), tmp_path)
    assert_all_changed(changes_seen)
    trainer = changes_seen[0][1]
    assert trainer.replay.stored == 10
    assert trainer.count == 0  # reported
    assert {row["episode"] for row in metrics(folder)} == ({6, 10, 4} if trainer.config.num_envs == 2 else {6, 9, 10})


@pytest.mark.parametrize(
    ("env_name", "name"),
    [
        ("slide", "paper"), ("slide", "intrinsic"), ("push", "paper"), ("pick-and-place", "paper"),
        ("pick-and-place", "intrinsic"), ("pick-and-place", "fast"), ("rot-table", "paper"),
    ],
)  # fmt: skip
def test_every_preset_runs_and_trains_every_parameter(
    tmp_path: Path, changes_seen: Seen, env_name: str, name: str
) -> None:
    """Networks, batches and scoring as they are, only fewer of everything."""
    if env_name != "slide":
        pytest.importorskip("mujoco")
    config = preset(env_name, name)
    train(brief(config, use=config.use or ALL_USES), tmp_path)
    assert_all_changed(changes_seen)
    replay = changes_seen[0][1].replay
    assert (replay.score[:, : replay.stored].sum(-1) > 0).all()


def test_energy_based_priority_runs_in_an_environment_with_positions_as_goals(
    tmp_path: Path, changes_seen: Seen
) -> None:
    pytest.importorskip("mujoco")
    train(small(env="push", seeds=2, warmup=2, episodes=5, priority={"kind": "ebp"}), tmp_path)
    assert_all_changed(changes_seen)


# ----------------------------------------------------------------------------------------- the memory


def test_a_full_memory_goes_on_with_the_newest_episodes(make: Make) -> None:
    trainer = make(small(seeds=2, replay={"capacity": 5}, use=ALL_USES))
    everything = make(small(seeds=2, use=ALL_USES))
    for one in (trainer, everything):
        warm_up(one, 4)
        for _ in range(4):
            one.store(one.play())
    assert trainer.replay.stored == 8
    for episode in range(3, 8):
        assert torch.equal(trainer.replay.action[:, episode % 5], everything.replay.action[:, episode])


def test_new_episodes_are_scored_as_they_come_once_the_model_has_learned(make: Make) -> None:
    trainer = make(small(seeds=2, use=("bonus",)))
    warm_up(trainer, 4)
    assert not trainer.replay.score.any()  # the model has learned nothing yet
    assert trainer.pending == 30
    fit(trainer)
    assert trainer.pending == 0
    before = trainer.replay.score.clone()
    assert before[:, :4].any()
    trainer.store(trainer.play())
    assert trainer.replay.score[:, 4].any()
    assert torch.equal(trainer.replay.score[:, :4], before[:, :4])


def test_recent_success_is_that_of_the_exploring_agents(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """An average that moves by 1 / 50 towards each episode; the warm-up does not count."""
    trainer = make(small(seeds=2))
    wins = np.array([True, False])
    monkeypatch.setattr(type(trainer.goal_env), "succeeded", lambda self, played: wins)
    warm_up(trainer, trainer.config.warmup)
    assert (trainer.recent_success == 0).all()
    for _ in range(3):
        trainer.store(trainer.play())
    np.testing.assert_allclose(trainer.recent_success, [1 - (1 - 1 / 50) ** 3, 0], rtol=1e-5)


def test_steps_are_drawn_by_their_scores(make: Make) -> None:
    trainer = make(small(seeds=2, use=("priority",), priority={"step_share": 1.0}))
    warm_up(trainer, trainer.config.warmup)
    trainer.replay.score.zero_()[:, :, 2] = 1.0
    trainer.set_weights()
    noise = torch.rand(2, 100, trainer._noise_size, generator=torch.Generator().manual_seed(0))
    batch = trainer.draw_batch(noise)
    assert (batch.time == 2).all()


def test_recent_success_is_that_of_practice_where_there_is_any(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exploration spoils successes, so that it would never fall; an episode without practice changes nothing."""
    trainer = make(small(seeds=3, num_envs=2, explore={"practice": 0.5}, overlap=("acting",)))
    wins = np.array([True, True, True, False, False, True])  # of two environments of each seed
    monkeypatch.setattr(type(trainer.goal_env), "succeeded", lambda self, played: wins)
    warm_up(trainer, trainer.config.warmup)
    played = trainer.play()
    set_practice(trainer, [[True, False], [False, True], [False, True]])
    trainer.store(played)
    np.testing.assert_allclose(trainer.recent_success, [1 / 50, 0, 1 / 50], rtol=1e-5)


def set_practice(trainer: Trainer, practises: list[list[bool]]) -> None:
    """Set which of the environments [R, W] have just played an episode of practice."""
    for part in trainer.explorers:
        part.practises.copy_(torch.tensor(practises)[part.part, :, None])


def test_caution_follows_what_episodes_of_practice_reach(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of rewards of -1 in all 30 steps, and for ever, the first state is worth -1 / (1 - 0.95) = -20."""
    agent = {"critics": 2, "caution_rate": 0.5, "discount": 0.95}
    trainer = make(small(seeds=3, num_envs=2, agent=agent, explore={"practice": 0.5}, overlap=("acting",)))
    warm_up(trainer, trainer.config.warmup)
    played = trainer.play()
    set_practice(trainer, [[True, False], [False, False], [True, True]])
    never = lambda achieved, desired: -torch.ones(achieved.shape[:-1])  # noqa: E731
    trainer.evaluation.goal_env = dataclasses.replace(trainer.goal_env, reward=never)
    promised = torch.tensor([[-16.0, 50.0], [50.0, 50.0], [-19.0, -18.0]])  # [R, W]
    monkeypatch.setattr(trainer.agent, "value", lambda inputs: promised)
    trainer.store(played)
    expected = [0.5 * 4 / 20, 0.0, 0.5 * (1 + 2) / 20]
    np.testing.assert_allclose(trainer.agent.state_dict()["caution"][:, 0], expected, rtol=1e-4)


def test_states_are_not_scored_where_only_actions_are_chosen(tmp_path: Path) -> None:
    assert not trained(tmp_path, small(use=("active",)))["replay"]["score"].any()


# -------------------------------------------------------------------------------------------- overlap


def test_acting_in_halves_gives_the_same_bits(tmp_path: Path) -> None:
    for seeds, num_envs in ((1, 1), (2, 2), (5, 1)):
        config: dict[str, Any] = {"seeds": seeds, "num_envs": num_envs, "use": ALL_USES}
        whole = train(small(**config), tmp_path / f"{seeds} whole")
        halves = train(small(**config, overlap=("acting",)), tmp_path / f"{seeds} halves")
        assert models(whole) == models(halves)
        assert metrics(whole) == metrics(halves)


@pytest.fixture
def policies(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[int, dict[str, Tensor]]]:
    """By episode: the policy that played it, and the learner's before and after the updates that follow it."""
    seen: dict[str, dict[int, dict[str, Tensor]]] = {"played by": {}, "before": {}, "after": {}}
    play, update = Trainer.play, Trainer.update

    def watched_play(self: Trainer) -> Any:
        seen["played by"][self.replay.stored + 1] = copy_of(self.explorers[0].policy)
        return play(self)

    def watched_update(self: Trainer) -> None:
        seen["before"][self.replay.stored] = copy_of(self.agent.policy)
        update(self)
        seen["after"][self.replay.stored] = copy_of(self.agent.policy)

    monkeypatch.setattr(Trainer, "play", watched_play)
    monkeypatch.setattr(Trainer, "update", watched_update)
    return seen


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return all(torch.equal(value, second[name]) for name, value in first.items())


@pytest.mark.parametrize("overlap", [(), ("updates",)])
def test_with_overlapping_updates_the_policy_that_plays_is_one_episode_old(
    tmp_path: Path, policies: dict[str, dict[int, dict[str, Tensor]]], overlap: tuple[Any, ...]
) -> None:
    train(small(seeds=2, use=ALL_USES, overlap=overlap), tmp_path)
    assert sorted(policies["played by"]) == [5, 6, 7, 8, 9, 10]
    for episode in range(5, 11):
        before, after = policies["before"][episode - 1], policies["after"][episode - 1]
        assert not same(before, after)
        assert same(policies["played by"][episode], before if overlap else after)


def test_a_spread_round_changes_scores_only_at_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds begin after episodes 4 (at once), 7 and 10; one of 10 batches is spread as 4, 4, 2 over three episodes."""
    fitted: list[tuple[int, int]] = []
    scores: dict[int, Tensor] = {}
    fit, update = CaiSignal.fit, Trainer.update

    def watched_fit(self: Any, batches: int, *rest: Any) -> Any:
        fitted.append((self.replay.stored, batches))
        return fit(self, batches, *rest)

    def watched_update(self: Trainer) -> None:
        scores[self.replay.stored] = self.replay.score[:, :4].clone()
        update(self)

    monkeypatch.setattr(CaiSignal, "fit", watched_fit)
    monkeypatch.setattr(Trainer, "update", watched_update)
    train(small(seeds=2, use=ALL_USES, overlap=("model",), episodes=13), tmp_path / "spread")
    assert fitted == [(4, 30), (7, 4), (8, 4), (9, 2), (10, 4), (11, 4), (12, 2), (13, 4)]
    new_at = [n for n in range(5, 14) if not torch.equal(scores[n], scores[n - 1])]
    assert new_at == [9, 12]
    fitted.clear()
    scores.clear()
    train(small(seeds=2, use=ALL_USES, episodes=13), tmp_path / "at once")
    assert fitted == [(4, 30), (7, 10), (10, 10), (13, 10)]
    assert [n for n in range(5, 14) if not torch.equal(scores[n], scores[n - 1])] == [7, 10, 13]


def test_a_spread_round_counts_episodes_not_plays(make: Make) -> None:
    """With two environments a play is two episodes: a round of 10 is spread over 6 episodes as shares of 4, 4, 2."""
    trainer = make(small(use=ALL_USES, overlap=("model",), num_envs=2, episodes=20, fit_every=6))
    warm_up(trainer, 4)
    fit(trainer)
    shares = []
    for _ in range(8):
        trainer.store(trainer.play())
        pending = trainer.pending
        fit(trainer)
        shares.append((trainer.replay.stored, pending - trainer.pending))
    assert shares == [(6, 0), (8, 0), (10, 4), (12, 4), (14, 2), (16, 4), (18, 4), (20, 2)]


# ------------------------------------------------------------------------------- reports and errors


def test_a_report_is_the_mean_since_the_last(make: Make) -> None:
    trainer = make(small(seeds=2, use=("bonus",)))
    warm_up(trainer, 4)
    fit(trainer)
    trainer.update()
    total, loss = trainer.statistics.clone(), trainer.model_loss.clone()
    rows = trainer.report()
    for r, row in enumerate(rows):
        assert [row[name] for name in ("critic_loss", "actor_loss", "value")] == pytest.approx((total[r] / 2).tolist())
        assert row["model_loss"] == pytest.approx(float(loss[r]) / 30)
        assert row["score"] == pytest.approx(float(trainer.replay.score[r, :4].mean()))
    later = trainer.report()[0]
    losses = {"critic_loss": 0, "actor_loss": 0, "value": 0, "model_loss": 0, "score": rows[0]["score"]}
    assert {name: later[name] for name in losses} == losses


def test_reports_of_a_plain_agent_speak_of_no_model(make: Make) -> None:
    assert list(make(small()).report()[0]) == ["critic_loss", "actor_loss", "value"]


@pytest.mark.parametrize(("where", "what"), [("agent", "agent's loss"), ("model", "signal's loss")])
def test_a_loss_that_is_no_number_is_named_with_its_replica(make: Make, where: str, what: str) -> None:
    trainer = make(small(seeds=3, use=("bonus",)))
    trainer.check()
    broken = trainer.statistics if where == "agent" else trainer.model_loss
    broken[1] = float("nan")
    with pytest.raises(FloatingPointError, match=f"The {what} of replica 1 became NaN or infinite"):
        trainer.check()


def test_an_environment_that_fails_is_named_with_its_episode(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make(small(seeds=2, first_seed=0))
    warm_up(trainer, 4)
    calls = 0

    def fail(action: Any) -> Any:
        nonlocal calls
        calls += 1
        raise ZeroDivisionError("the mass\nis zero")

    monkeypatch.setattr(trainer.envs[0], "step", fail)
    with pytest.raises(EnvError) as caught:
        trainer.play()
    assert str(caught.value) == "butfor/Slide-v0 raised ZeroDivisionError in episode 5: the mass is zero"
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert calls == 1


def test_streams_of_a_seed_are_its_own() -> None:
    """No two streams of eight seeds are alike, and they do not depend on what else is trained."""
    slide = open_goal_env("slide", target_scale=1.0)
    states = []
    for config in (small(seeds=8), small(seeds=2, first_seed=6)):
        trainer = Trainer(config, slide, "cpu")
        trainer.close()
        states.append({name: [g.initial_seed() for g in streams] for name, streams in trainer.generators.items()})
    assert {name: seeds[6:] for name, seeds in states[0].items()} == states[1]
    everything = [seed for seeds in states[0].values() for seed in seeds]
    assert len(set(everything)) == len(everything) == 4 * 8
    assert make_generators(everything[:1])[0].initial_seed() == everything[0]
