"""Scenes for the player: episodes of a training run, or stored ones.

Episodes of a built-in environment are played again from their reset seeds, so that the whole robot is shown and every
state can be forked.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from butfor.envs import EnvFacts, facts_of, make_vector_env
from butfor.influence.influence import Influence
from butfor.rollouts.episodes import Episodes, concatenate
from butfor.rollouts.play import Observation, Progress, Stream, episode_seed, play, play_again
from butfor.scenes.branches import Choose, make_simulator
from butfor.scenes.ghosts import DEFAULT_HOLD, deciding_step, fork_ghosts, replay_recorded
from butfor.scenes.positions import StatesOfEpisode, view_states
from butfor.scenes.scene import Floats, Scene, SceneEpisode
from butfor.training.agents.policy import load_policy
from butfor.training.goal_env import MakeEnv, open_goal_env


@dataclass(frozen=True)
class Actor:
    """Who acts in a branch after another action was held; nobody, if outcomes are not wanted."""

    choose: Choose | None = None
    words: str = ""  # such as "the trained policy acts"


def view_run(
    run: Path | str,
    numbers: Sequence[int] = (0,),
    seed: int | None = None,
    hold: int = DEFAULT_HOLD,
    outcomes: bool = True,
    progress: Progress = lambda stage, done, total, text: None,
    *,
    make_env: MakeEnv | None = None,
    titles: Sequence[str] = (),
) -> Scene:
    """Show evaluation episodes of a training run with ghosts of other actions.

    Args:
        run: run folder.
        numbers: which of the evaluation's episodes.
        seed: which seed of the run acts; default: its first.
        hold: steps for which another action is held.
        outcomes: also find the step that decided the outcome, which takes longer.
        progress: called with the stage, how much of it is done, how much there is, and a word.
        make_env: makes one environment; by default it is made by its name.
        titles: of the episodes; by default seed and number.

    A built-in environment is forked in the simulator. Of another one, positions are drawn: those of the entities of the
    run's influence model, which predicts the ghosts, or the achieved goal.
    """
    policy = load_policy(run, seed)
    facts = facts_of(policy.env)
    weights = Path(run) / "influence.safetensors"
    influence = Influence.load(weights, replica=policy.seeds.index(policy.seed)) if weights.is_file() else None
    # the entity and its scale, which open_goal_env finds by playing otherwise, are not used here
    goal_env = open_goal_env(policy.env, entities=["any=0"], target_scale=1.0, make_env=make_env)
    goal_env.check_sizes(run, policy.sizes)
    env = goal_env.make(1)

    def act(group: int, time: int, obs: Observation) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        return policy(obs), np.zeros(1, dtype=bool)

    played = []
    for number in numbers:
        start = episode_seed(policy.seed, Stream.EVALUATION, number)
        played.append(play([env], act, [start], goal_env.steps).episodes)
    env.close()
    titles = titles or [f"Seed {policy.seed}, episode {number}" for number in numbers]
    if facts is not None and make_env is None:
        actor = Actor(lambda obs, time: policy(obs), "the trained policy acts") if outcomes else Actor()
        return _show(facts, concatenate(played), titles, [actor] * len(titles), influence, hold, progress)
    shown = []
    for title, one in zip(titles, played, strict=True):
        states = int(one.length[0]) + 1
        goals = [goal[0, :states] for goal in (one.achieved_goal, one.desired_goal)]
        reached = np.asarray(goal_env.reward(*map(torch.from_numpy, goals)).numpy() >= 0)
        obs = goals[0] if influence is None else one.observation[0, :states]
        shown.append(StatesOfEpisode(title, obs, one.action[0, : states - 1], goals[1], reached=reached))
    size = min(3, policy.sizes[2])
    return view_states(policy.env, shown, None if influence else {"object": range(size)}, None, influence)


def view_episodes(
    episodes: Episodes,
    numbers: Sequence[int] = (0,),
    influence: Influence | None = None,
    hold: int = DEFAULT_HOLD,
    outcomes: bool = True,
    progress: Progress = lambda stage, done, total, text: None,
    *,
    titles: Sequence[str] = (),
) -> Scene:
    """Show stored episodes of a built-in environment with ghosts of other actions.

    Args:
        episodes: with reset seeds.
        numbers: which of them.
        influence: scores the states; by default the scores in the file are shown, if it has any.
        hold: steps for which another action is held.
        outcomes: also find the step that decided the outcome, which takes longer.
        progress: called with the stage, how much of it is done, how much there is, and a word.
        titles: of the episodes; by default their numbers.

    Raises:
        ValueError: there is no such episode, or it cannot be played again.
    """
    wrong = [number for number in numbers if not 0 <= number < len(episodes)]
    if wrong:
        raise ValueError(f"There is no episode {wrong[0]}; the file has the episodes 0 to {len(episodes) - 1}.")
    facts = facts_of(env_of(episodes))
    if facts is None:
        raise ValueError(
            f"The episodes are of {env_of(episodes) or 'an environment that the file does not name'}, which is not "
            "built in, so they cannot be played again and forked."
        )
    config = episodes.metadata.get("config", {})
    chosen = episodes.take(np.array(numbers, dtype=np.int64))
    actors = [_actor(facts, config, action) if outcomes else Actor() for action in chosen.action]
    titles = titles or [f"Episode {number}" for number in numbers]
    return _show(facts, chosen, titles, actors, influence, hold, progress)


def env_of(episodes: Episodes) -> str:
    """Return the name of the environment in the metadata of episodes, or an empty text."""
    config = episodes.metadata.get("config", episodes.metadata)
    return str(config.get("env", ""))


def _actor(facts: EnvFacts, config: Mapping[str, Any], action: Floats) -> Actor:
    """Return the policy of a collected file; the recorded actions go on where it is not known."""
    name = config.get("policy")
    if name in ("expert", "noisy-expert"):
        return Actor(lambda obs, time: facts.expert(obs["observation"], obs["desired_goal"])[0], "the expert acts")
    if isinstance(name, str) and Path(name).is_dir():
        policy = load_policy(name, config.get("agent_seed"))
        return Actor(lambda obs, time: policy(obs), "the trained policy acts")
    return Actor(replay_recorded(action), "the recorded actions go on")


def _show(
    facts: EnvFacts,
    episodes: Episodes,
    titles: Sequence[str],
    actors: Sequence[Actor],
    influence: Influence | None,
    hold: int,
    progress: Progress,
) -> Scene:
    """Play episodes again, one after the other, and put them into a scene."""
    wanted = tuple(name for name in ("contact", "exact") if name in facts.labels)
    robot = facts.drawing == "robot"
    env: Any = make_vector_env(facts.name, 1, wanted if not robot else ("contact",))  # the forks tell the exact label
    simulator = make_simulator(env, facts)
    objects = tuple(place for place, body in enumerate(simulator.bodies) if body.role == "object")
    shown = []
    for number, (title, actor) in enumerate(zip(titles, actors, strict=True)):
        saved: list[Floats] = []

        def look(time: int, saved: list[Floats] = saved) -> None:
            saved.append(env.unwrapped.save_state())

        again = play_again(env, episodes, [number], look if robot else lambda time: None)
        length = int(episodes.length[number])
        obs = episodes.observation[number, : length + 1]
        kept = np.concatenate([*saved[:length], env.unwrapped.save_state()]) if robot else obs
        states = simulator.states(kept, obs, episodes.desired_goal[number, : length + 1])

        def show(done: int, total: int, place: int = number) -> None:
            progress("forks", place * total + done, len(titles) * total, "")

        ghosts = fork_ghosts(simulator, states, objects, hold, actor.choose, show)
        labels = {name: value[0, :length] for name, value in again.labels().items()}
        labels |= {name: value[number, :length] for name, value in episodes.label.items()}
        labels.setdefault("exact", ghosts.spread()[:, 0].max(axis=1) > simulator.tolerance)
        reached = simulator.reached(states)
        decided = None if ghosts.success is None else deciding_step(ghosts.success, reached)
        shown.append(
            SceneEpisode(
                title=title,
                pose=simulator.poses(states),
                action=episodes.action[number, :length],
                scores=_scores(episodes, number, obs[:-1], influence),
                labels=labels,
                reached=reached,
                ghosts=ghosts,
                decided=decided,
                decided_text=_explain(actor, hold, decided, bool(reached[-1])),
            )
        )
    fps = float(env.metadata["render_fps"])
    env.close()
    return Scene(
        title=facts.name,
        dimensions=3 if robot else 2,
        bodies=simulator.bodies,
        episodes=tuple(shown),
        step_seconds=1 / fps,
        action_names=simulator.action_names,
        unit="m" if robot else "",
    )


def _scores(episodes: Episodes, number: int, obs: Floats, influence: Influence | None) -> dict[str, Floats]:
    """CAI [T] by entity: of a model, or as the file has it."""
    if influence is not None:
        return {name: np.asarray(values) for name, values in influence.score(obs).items()}
    if episodes.score is None:
        return {}
    return {"object": episodes.score[number, : len(obs)]}


def _explain(actor: Actor, hold: int, decided: int | None, succeeded: bool) -> str:
    """Say how the deciding step was found."""
    if actor.choose is None:
        return ""
    how = f"Another action is held for {hold} step{'s' if hold > 1 else ''}, then {actor.words}."
    if decided is None:
        when = "Until the goal is reached for good, " if succeeded else ""
        return f"{how} {when}{'no' if when else 'No'} other action would have changed the outcome."
    end = "fails" if succeeded else "succeeds"
    return f"{how} This is the last step at which the episode then {end}."
