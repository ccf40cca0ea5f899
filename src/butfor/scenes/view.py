"""Scenes for the player: episodes of a training run, or stored ones.

Episodes of a built-in environment are played again from their reset seeds, so that the whole robot is shown and every
state can be forked.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray

from butfor.envs import EnvFacts, facts_of, make_vector_env
from butfor.envs.forks import fork
from butfor.influence.influence import Influence
from butfor.rollouts.episodes import Episodes, concatenate
from butfor.rollouts.play import Observation, Progress, Stream, episode_seed, play, play_again, reset_seeds
from butfor.scenes.branches import Choose, make_simulator
from butfor.scenes.edges import edges_notes, places_of_entities, predicted_edges, simulated_moves
from butfor.scenes.ghosts import DEFAULT_HOLD, deciding_step, explain_decision, fork_ghosts, replay_recorded
from butfor.scenes.positions import StatesOfEpisode, view_states
from butfor.scenes.scene import Floats, Scene, SceneEpisode
from butfor.training.agents.policy import load_policy
from butfor.training.goal_env import GoalEnv, MakeEnv, open_goal_env


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

    Built-in environments and those that MuJoCo simulates are forked in the simulator. Of others, positions are drawn:
    those of the entities of the run's influence model, which predicts the ghosts, or the achieved goal.
    """
    policy = load_policy(run, seed)
    facts = facts_of(policy.env) if make_env is None else None
    weights = Path(run) / "influence.safetensors"
    influence = Influence.load(weights, replica=policy.seeds.index(policy.seed)) if weights.is_file() else None
    # the entity and its scale, which open_goal_env finds by playing otherwise, are not used here
    goal_env = open_goal_env(policy.env, entities=["any=0"], target_scale=1.0, make_env=make_env)
    goal_env.check_sizes(run, policy.sizes)
    starts = [episode_seed(policy.seed, Stream.EVALUATION, number) for number in numbers]
    titles = titles or [f"Seed {policy.seed}, episode {number}" for number in numbers]

    def act(group: int, time: int, obs: Observation) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        return policy(obs), np.zeros(1, dtype=bool)

    env = goal_env.make(1)
    if facts is None and (inner := forkable(env)) is not None:
        from butfor.scenes.forked import view_env

        reached_in = _reached_in(goal_env) if outcomes else None
        return view_env(
            inner, lambda obs, step: policy(obs), starts, influence, hold, reached_in, progress,
            title=policy.env, titles=titles, acting="the trained policy acts",
        )  # fmt: skip
    played = [play([env], act, [start], goal_env.steps).episodes for start in starts]
    env.close()
    if facts is not None:
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
    """Show stored episodes of an environment that can be forked, with ghosts of other actions.

    Args:
        episodes: with reset seeds, of a built-in environment or of one that MuJoCo simulates.
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
    config = episodes.metadata.get("config", {})
    chosen = episodes.take(np.array(numbers, dtype=np.int64))
    actors = [_actor(facts, config, action) for action in chosen.action]
    titles = titles or [f"Episode {number}" for number in numbers]
    if facts is None:
        return _show_foreign(chosen, titles, actors, influence, hold, outcomes, progress)
    return _show(facts, chosen, titles, actors if outcomes else [Actor()] * len(actors), influence, hold, progress)


def forkable(env: Any) -> gymnasium.Env[Any, Any] | None:
    """Return the first environment of a vector environment if it is not built in and `butfor.fork` can save it."""
    inner = getattr(env, "envs", [None])[0]
    if inner is None:
        return None
    inner.reset(seed=0)
    try:
        fork(inner)
    except (TypeError, ValueError):  # no simulation, or a wrapper that cannot be saved
        return None
    return inner  # type: ignore[no-any-return]


def env_of(episodes: Episodes) -> str:
    """Return the name of the environment in the metadata of episodes, or an empty text."""
    config = episodes.metadata.get("config", episodes.metadata)
    return str(config.get("env", ""))


def _actor(facts: EnvFacts | None, config: Mapping[str, Any], action: Floats) -> Actor:
    """Return the policy of a collected file; the recorded actions go on where it is not known."""
    name = config.get("policy")
    if facts is not None and name in ("expert", "noisy-expert"):
        return Actor(lambda obs, time: facts.expert(obs["observation"], obs["desired_goal"])[0], "the expert acts")
    if isinstance(name, str) and Path(name).is_dir():
        policy = load_policy(name, config.get("agent_seed"))
        return Actor(lambda obs, time: policy(obs), "the trained policy acts")
    return Actor(replay_recorded(action), "the recorded actions go on")


def _reached_in(goal_env: GoalEnv) -> Callable[[Any, Any], bool]:
    """Whether the goal is reached in an observation, by the environment's reward."""

    def reached(obs: Any, info: Any) -> bool:
        achieved, desired = (torch.from_numpy(np.asarray(obs[key])[None]) for key in ("achieved_goal", "desired_goal"))
        return bool(goal_env.reward(achieved, desired) >= 0)

    return reached


def _show_foreign(
    episodes: Episodes,
    titles: Sequence[str],
    actors: Sequence[Actor],
    influence: Influence | None,
    hold: int,
    outcomes: bool,
    progress: Progress,
) -> Scene:
    """Play episodes of an environment that is not built in again, and put them into a scene."""
    name = env_of(episodes)
    env = make_vector_env(name, 1) if name else None
    inner = forkable(env)
    if env is None or inner is None:
        raise ValueError(
            f"The episodes are of {name or 'an environment that the file does not name'}, which is neither built in "
            "nor simulated by MuJoCo, so they cannot be played again and forked."
        )
    from butfor.scenes.forked import view_env

    reached = _reached_in(open_goal_env(name, entities=["any=0"], target_scale=1.0)) if outcomes else None
    scenes = []
    for number, (title, actor) in enumerate(zip(titles, actors, strict=True)):
        play_again(env, episodes, [number])  # refuses another version of the environment

        def act(obs: Any, step: int, actor: Actor = actor) -> Any:
            assert actor.choose is not None
            return actor.choose({key: np.asarray(value)[None] for key, value in obs.items()}, np.array([step]))[0]

        def show(stage: str, done: int, total: int, text: str, place: int = number) -> None:
            progress(stage, place * total + done, len(titles) * total, text)

        actions = episodes.action[number, : episodes.length[number]]
        starts = reset_seeds(episodes)[[number]].tolist()
        scene = view_env(
            inner, act, starts, influence, hold, reached, show,
            title=name, titles=[title], acting=actor.words, recorded=[actions],
        )  # fmt: skip
        scenes.append(scene)
    env.close()
    return replace(scenes[0], episodes=tuple(scene.episodes[0] for scene in scenes))


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
        decided, explained = None, ""
        if ghosts.success is not None:
            decided = deciding_step(ghosts.success, reached)
            explained = explain_decision(actor.words, hold, decided, bool(reached[-1]))
        shown.append(
            SceneEpisode(
                title=title,
                pose=simulator.poses(states),
                action=episodes.action[number, :length],
                scores=_scores(episodes, number, obs[:-1], influence),
                labels=labels,
                moves=simulated_moves(facts, simulator.bodies, kept[:-1], episodes.action[number, :length]),
                edges=predicted_edges(influence, obs[:-1], episodes.action[number, :length]),
                reached=reached,
                ghosts=ghosts,
                decided=decided,
                decided_text=explained,
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
        notes=edges_notes(influence, shown),
        horizon=1 if influence is None else influence.horizon,
        places=places_of_entities(influence, facts, simulator.bodies),
    )


def _scores(episodes: Episodes, number: int, obs: Floats, influence: Influence | None) -> dict[str, Floats]:
    """CAI [T] by entity: of a model, or as the file has it."""
    if influence is not None:
        return {name: np.asarray(values) for name, values in influence.score(obs).items()}
    if episodes.score is None:
        return {}
    return {"object": episodes.score[number, : len(obs)]}
