"""Scenes for the player: episodes of a training run, or stored ones.

Episodes of a built-in environment are played again from their reset seeds, so that the whole robot is shown and every
state can be forked.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from butfor.envs import EnvFacts, facts_of, make_vector_env
from butfor.influence.influence import Influence
from butfor.rollouts.episodes import Episodes, concatenate
from butfor.rollouts.play import Stream, episode_seed, play, play_again
from butfor.scenes.branches import Choose, FetchSimulator, Simulator, SlideSimulator, flat_poses
from butfor.scenes.ghosts import DEFAULT_HOLD, deciding_step, fork_ghosts, replay_recorded
from butfor.scenes.scene import Body, Floats, Scene, SceneEpisode
from butfor.training.agents.policy import load_policy

Progress = Callable[[str, int, int, str], None]
FETCH_ACTIONS = ("x", "y", "z", "fingers")
GOAL_RADIUS = 0.02  # metres, of the ball that marks a goal of the robot
TOLERANCE = 1e-6  # metres; the exact label, as in `butfor.envs.truth`
SUCCESS_RADIUS = 0.05  # metres around the goal in which an object counts as there
SLIDE_ACTIONS = ("push",)


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
) -> Scene:
    """Show evaluation episodes of a training run with ghosts of other actions.

    Args:
        run: run folder.
        numbers: which of the evaluation's episodes.
        seed: which seed of the run acts; default: its first.
        hold: steps for which another action is held.
        outcomes: also find the step that decided the outcome, which takes longer.
        progress: called with the stage, how much of it is done, how much there is, and a word.

    Raises:
        ValueError: the environment of the run is not a built-in one.
    """
    policy = load_policy(run, seed)
    facts = _known(policy.env)
    weights = Path(run) / "influence.safetensors"
    influence = Influence.load(weights, replica=policy.seeds.index(policy.seed)) if weights.is_file() else None
    env = make_vector_env(policy.env, 1)
    played = []
    for number in numbers:
        start = episode_seed(policy.seed, Stream.EVALUATION, number)
        played.append(play([env], lambda group, time, obs: (policy(obs), np.zeros(1, dtype=bool)), [start]).episodes)
    env.close()
    actor = Actor(lambda obs, time: policy(obs), "the trained policy acts") if outcomes else Actor()
    titles = [f"Seed {policy.seed}, episode {number}" for number in numbers]
    return _show(facts, concatenate(played), titles, [actor] * len(titles), influence, hold, progress)


def view_episodes(
    episodes: Episodes,
    numbers: Sequence[int] = (0,),
    influence: Influence | None = None,
    hold: int = DEFAULT_HOLD,
    outcomes: bool = True,
    progress: Progress = lambda stage, done, total, text: None,
) -> Scene:
    """Show stored episodes of a built-in environment with ghosts of other actions.

    Args:
        episodes: with reset seeds.
        numbers: which of them.
        influence: scores the states; by default the scores in the file are shown, if it has any.
        hold: steps for which another action is held.
        outcomes: also find the step that decided the outcome, which takes longer.
        progress: called with the stage, how much of it is done, how much there is, and a word.

    Raises:
        ValueError: there is no such episode, or it cannot be played again.
    """
    wrong = [number for number in numbers if not 0 <= number < len(episodes)]
    if wrong:
        raise ValueError(f"There is no episode {wrong[0]}; the file has the episodes 0 to {len(episodes) - 1}.")
    config = episodes.metadata.get("config", {})
    facts = _known(config.get("env", "an environment that the file does not name"))
    chosen = episodes.take(np.array(numbers, dtype=np.int64))
    actors = [_actor(facts, config, action) if outcomes else Actor() for action in chosen.action]
    return _show(facts, chosen, [f"Episode {number}" for number in numbers], actors, influence, hold, progress)


def _actor(facts: EnvFacts, config: Mapping[str, Any], action: Floats) -> Actor:
    """Return the policy of a collected file; the recorded actions go on where it is not known."""
    name = config.get("policy")
    if name in ("expert", "noisy-expert"):
        return Actor(lambda obs, time: facts.expert(obs["observation"], obs["desired_goal"])[0], "the expert acts")
    if isinstance(name, str) and Path(name).is_dir():
        policy = load_policy(name, config.get("agent_seed"))
        return Actor(lambda obs, time: policy(obs), "the trained policy acts")
    return Actor(replay_recorded(action), "the recorded actions go on")


def _known(env: str) -> EnvFacts:
    facts = facts_of(env)
    if facts is None:
        raise ValueError(f"{env} is not a built-in environment, so its episodes cannot be played again and forked.")
    return facts


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
    robot = facts.drawing == "robot"
    env: Any = make_vector_env(facts.name, 1, ("contact",) if robot else ())
    simulator: Simulator = FetchSimulator(env) if robot else SlideSimulator()
    bodies: tuple[Body, ...] = ()
    shown = []
    for number, (title, actor) in enumerate(zip(titles, actors, strict=True)):
        saved: list[Floats] = []

        def look(time: int, saved: list[Floats] = saved) -> None:
            saved.append(env.save_state())

        again = play_again(env, episodes, [number], look if robot else lambda time: None)
        length = int(episodes.length[number])
        obs = episodes.observation[number, : length + 1]
        goal = episodes.desired_goal[number, : length + 1]
        if robot:
            states = np.concatenate([*saved[:length], env.save_state()])
            bodies, pose = _robot(simulator, states, goal)
        else:
            states = np.concatenate([obs, goal], axis=1).astype(np.float64)
            bodies, pose = _line(obs, goal)
        objects = tuple(place for place, body in enumerate(bodies) if body.role == "object")

        def show(done: int, total: int, place: int = number) -> None:
            progress("forks", place * total + done, len(titles) * total, "")

        ghosts = fork_ghosts(simulator, states, objects, hold, actor.choose, show)
        labels = {name: value[0, :length] for name, value in again.labels().items() if name != "exact"}
        effect = ghosts.spread()[:, 0]
        labels["exact"] = episodes.label["exact"][number, :length] if "exact" in episodes.label else effect > TOLERANCE
        reached = simulator.reached(states)
        decided = None if ghosts.success is None else deciding_step(ghosts.success, reached)
        shown.append(
            SceneEpisode(
                title=title,
                pose=pose,
                action=episodes.action[number, :length],
                scores=_scores(episodes, number, obs[:-1], influence),
                labels=labels,
                reached=reached,
                ghosts=ghosts,
                decided=decided,
                decided_text=_explain(actor, hold, decided, bool(reached[-1])),
            )
        )
    env.close()
    names = FETCH_ACTIONS if robot else SLIDE_ACTIONS
    return Scene(
        facts.name, 3 if robot else 2, bodies, tuple(shown), 0.04 if robot else 0.1, names, "m" if robot else ""
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
        return f"{how} After none of them the episode ends differently."
    end = "fails" if succeeded else "succeeds"
    return f"{how} This is the last step at which the episode then {end}."


def _robot(simulator: Any, states: Floats, goal: Floats) -> tuple[tuple[Body, ...], Floats]:
    """The bodies of a Fetch environment and their poses [T + 1, B, 7]; the goal is the last."""
    from butfor.scenes.robot import bodies_of, poses_of, visible_geoms

    model = simulator.forker.physics.model.mj
    geoms = visible_geoms(model)
    bodies = bodies_of(model, geoms)
    ball = Body("goal", "goal", "sphere", (GOAL_RADIUS, 0.0, 0.0))
    zone = Body("goal zone", "goal", "sphere", (SUCCESS_RADIUS, 0.0, 0.0), opacity=0.15)
    poses = poses_of(model, states[:, simulator.layout.qpos], geoms)
    place = flat_poses(goal)[:, None]
    return (*bodies, ball, zone), np.concatenate([poses, place, place], axis=1)


def _line(obs: Floats, goal: Floats) -> tuple[tuple[Body, ...], Floats]:
    """The bodies of `slide` and their poses [T + 1, B, 7]."""
    from butfor.envs import slide

    half = slide.WIDTH / 2
    bodies = (
        Body("goal zone", "goal", "box", (slide.GOAL_RADIUS, half, half), opacity=0.35),
        Body("limit of the agent", "scenery", "box", (0.02, 2 * half, half)),
        Body("agent", "agent", "box", (half, half, half)),
        Body("object", "object", "box", (half, half, half)),
    )
    limit = np.full_like(goal, slide.AGENT_LIMIT + half)
    poses = np.stack([flat_poses(place) for place in (goal, limit, obs[:, 0:1], obs[:, 2:3])], axis=1)
    return bodies, poses
