"""Scenes of environments that are not built in: MuJoCo draws them, and `butfor.fork` tries other actions in them.

From each state of an episode the environment goes every other way first, and then its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from butfor.envs.fetch_physics import mujoco
from butfor.envs.forks import fork, restore
from butfor.influence.influence import Influence
from butfor.rollouts.play import Progress
from butfor.scenes.branches import TOLERANCE, flat_poses
from butfor.scenes.edges import edges_notes, predicted_edges
from butfor.scenes.ghosts import DEFAULT_HOLD, check_hold, deciding_step, explain_decision
from butfor.scenes.positions import other_actions
from butfor.scenes.robot import bodies_of, geom_poses, geoms_of_trees, visible_geoms
from butfor.scenes.scene import Body, Floats, Ghosts, Scene, SceneEpisode
from butfor.spaces.actions import ActionLaw

Act = Callable[[Any, int], Any]
"""(observation of the environment, step of the episode) -> action."""
Reached = Callable[[Any, dict[str, Any]], bool]
"""(observation, info) -> whether the goal is reached."""

LONGEST = 200  # steps of an episode without a time limit
MOST_OBJECTS = 8  # geoms with ghosts: those that other actions move furthest
MARK = 0.01  # radius of the ball that marks a goal, as a share of the size of the model


@dataclass(frozen=True)
class Drawing:
    """How states of an environment are drawn: its visible geoms, then its achieved goal and its goal as balls."""

    data: Any  # MuJoCo's, of the environment
    scratch: Any  # others, so that drawing changes nothing
    geoms: Sequence[int]
    bodies: tuple[Body, ...]
    marked: tuple[str, ...]  # keys of the observation that are drawn as balls

    @property
    def objects(self) -> list[int]:
        """The bodies that have ghosts."""
        return [place for place, body in enumerate(self.bodies) if body.role == "object"]

    def poses(self, obs: Any) -> Floats:
        """Return the poses of all bodies [B, 7] in the state that the environment is in."""
        for name in ("qpos", "mocap_pos", "mocap_quat"):
            getattr(self.scratch, name)[:] = getattr(self.data, name)
        poses = geom_poses(self.data.model, self.scratch, self.geoms)
        balls = [flat_poses(np.ravel(obs[key])[None].astype(np.float64)) for key in self.marked]
        return np.concatenate([poses, *balls])


@dataclass(frozen=True)
class Forks:
    """What is tried from each state of an episode."""

    env: gymnasium.Env[Any, Any]
    act: Act
    tried: NDArray[Any]  # [M, A], or integers [M]
    hold: int
    reached: Reached | None
    drawing: Drawing
    limit: int  # steps of the longest episode


def view_env(
    env: gymnasium.Env[Any, Any],
    act: Act,
    seeds: Sequence[int] = (0,),
    influence: Influence | None = None,
    hold: int = DEFAULT_HOLD,
    reached: Reached | None = None,
    progress: Progress = lambda stage, done, total, text: None,
    *,
    title: str = "",
    titles: Sequence[str] = (),
    acting: str = "the policy acts",
    recorded: Sequence[NDArray[Any]] = (),
) -> Scene:
    """Play episodes in an environment that MuJoCo simulates, and show them with ghosts of other actions.

    Args:
        env: one environment, with its wrappers.
        act: chooses the action for an observation and a step.
        seeds: reset seeds, one for each episode.
        influence: scores the observations, or `obs["observation"]` of a dictionary.
        hold: steps for which another action is held.
        reached: whether the goal is reached in a state; with it the step that decided the outcome is searched, which
            takes longer. None: there are no outcomes.
        progress: called with the stage, how much of it is done, how much there is, and a word.
        title: of the scene; default: the environment's id.
        titles: of the episodes; default: their seeds.
        acting: who acts after another action was held, in words.
        recorded: actions [T, A] of each episode, to play those; `act` then acts only after another action was held.

    Returns:
        The scene, for `butfor.reporting.player.write_player`.

    Raises:
        TypeError: the environment is not simulated by MuJoCo.
        ValueError: `hold` is less than 1, or a wrapper of the environment cannot be saved.
    """
    check_hold(hold)
    obs, _ = env.reset(seed=seeds[0])
    fork(env)  # refuses what cannot be saved
    tried = other_actions(ActionLaw.from_space(env.action_space))
    forks = Forks(env, act, tried, hold, reached, _drawing(env, obs), _time_limit(env))
    shown = []
    for number, seed in enumerate(seeds):

        def show(done: int, total: int, place: int = number) -> None:
            progress("forks", place * total + done, len(seeds) * total, "")

        actions = recorded[number] if len(recorded) else None
        one = _play(forks, seed, titles[number] if titles else f"Seed {seed}", actions, influence, show)
        if one.reached is not None:
            text = explain_decision(acting, hold, one.decided, bool(one.reached[-1]))
            one = replace(one, decided_text=text)
        shown.append(one)
    fps = float(env.metadata.get("render_fps") or 25)
    spec = env.unwrapped.spec
    name = title or (spec.id if spec is not None else type(env.unwrapped).__name__)
    return Scene(
        title=name,
        dimensions=3,
        bodies=forks.drawing.bodies,
        episodes=tuple(shown),
        step_seconds=1 / fps,
        notes=edges_notes(influence, shown),
        horizon=1 if influence is None else influence.horizon,
    )


def _play(
    forks: Forks,
    seed: int,
    title: str,
    recorded: NDArray[Any] | None,
    influence: Influence | None,
    progress: Callable[[int, int], None],
) -> SceneEpisode:
    """Play one episode, and every other action from each of its states."""
    env, drawing, reached = forks.env, forks.drawing, forks.reached
    limit = forks.limit if recorded is None else len(recorded)
    obs, info = env.reset(seed=seed)
    seen = [_numbers(obs)]
    poses = [drawing.poses(obs)]
    there = [reached is not None and reached(obs, info)]
    actions: list[NDArray[Any]] = []
    paths, outcomes = [], []
    ended = False
    while not ended and len(actions) < limit:
        now = len(actions)
        here = fork(env)
        ways = []
        for other in forks.tried:
            restore(env, here)
            ways.append(_branch(forks, other, limit - now, now))
        restore(env, here)
        paths.append([way for way, _ in ways])
        outcomes.append([success for _, success in ways])
        actions.append(np.asarray(forks.act(obs, now) if recorded is None else recorded[now]))
        obs, _, terminated, truncated, info = env.step(actions[-1])
        ended = terminated or truncated
        seen.append(_numbers(obs))
        poses.append(drawing.poses(obs))
        there.append(reached is not None and reached(obs, info))
        progress(now + 1, limit)
    progress(limit, limit)
    success = None if reached is None else np.array(outcomes, dtype=np.bool_)
    flags = None if reached is None else np.array(there, dtype=np.bool_)
    flat = forks.tried.reshape(len(forks.tried), -1).astype(np.float64)
    tried = np.broadcast_to(flat, (len(actions), *flat.shape))
    ghosts = Ghosts("simulator", tuple(drawing.objects), tried, np.array(paths), success=success)
    scores = {} if influence is None else influence.score(np.array(seen[:-1]))
    return SceneEpisode(
        title=title,
        pose=np.array(poses),
        action=np.array(actions, dtype=np.float64).reshape(len(actions), -1),
        scores={name: np.asarray(value) for name, value in scores.items()},
        labels={"exact": ghosts.spread()[:, 0].max(axis=1) > TOLERANCE},
        edges=predicted_edges(influence, np.array(seen[:-1]), np.array(actions)),
        reached=flags,
        ghosts=_widest(ghosts),
        decided=None if success is None or flags is None else deciding_step(success, flags),
    )


def _branch(forks: Forks, other: NDArray[Any], left: int, now: int) -> tuple[Floats, bool]:
    """Hold an action, then act for the steps that are left of the episode: poses [K, J, 7], and the outcome."""
    poses: list[Floats] = []
    success = False
    obs: Any = None
    for ahead in range(max(forks.hold, left) if forks.reached is not None else forks.hold):
        action = other if ahead < forks.hold else forks.act(obs, now + ahead)
        obs, _, terminated, truncated, info = forks.env.step(action)
        if ahead < forks.hold:
            poses.append(forks.drawing.poses(obs)[forks.drawing.objects])
        if forks.reached is not None and ahead < left:
            success = forks.reached(obs, info)
        if terminated or (truncated and ahead >= forks.hold - 1):
            break
    poses += poses[-1:] * (forks.hold - len(poses))  # what an episode that has ended would show
    return np.array(poses), success


def _drawing(env: gymnasium.Env[Any, Any], obs: Any) -> Drawing:
    """Decide what is drawn: objects are what moves without a motor, else what the goal is about, else the agent."""
    inner: Any = env.unwrapped
    model, data = inner.model, inner.data
    geoms = visible_geoms(model)
    driven, free = geoms_of_trees(model, geoms)
    # Some environments put a body at the goal only when they render it themselves; in between it falls.
    marks = {geom for geom in free if any(word in _name(model, geom) for word in ("target", "goal"))}
    geoms = [geom for geom in geoms if geom not in marks]
    objects = set(free) - marks
    keys = ["achieved_goal", "desired_goal"] if isinstance(obs, dict) else []
    marked = [key for key in keys if key in obs and np.size(obs[key]) in (1, 2, 3)]
    if objects and "achieved_goal" in marked:
        marked.remove("achieved_goal")
    elif not objects and not marked and driven:
        root = model.geom_bodyid[driven[0]]
        objects = {geom for geom in driven if model.geom_bodyid[geom] == root}
    bodies = bodies_of(model, geoms, objects)
    size = MARK * float(model.stat.extent)
    balls = {
        "achieved_goal": Body("achieved goal", "object", "sphere", (size, 0.0, 0.0)),
        "desired_goal": Body("goal", "goal", "sphere", (size, 0.0, 0.0)),
    }
    return Drawing(data, mujoco.MjData(model), geoms, (*bodies, *(balls[key] for key in marked)), tuple(marked))


def _widest(ghosts: Ghosts) -> Ghosts:
    """Keep the ghosts of the bodies that other actions move furthest."""
    reach = ghosts.spread().max(axis=(0, 1))
    kept = np.sort(np.argsort(-reach, kind="stable")[:MOST_OBJECTS])
    bodies = tuple(ghosts.bodies[place] for place in kept)
    return Ghosts(ghosts.source, bodies, ghosts.action, ghosts.path[:, :, :, kept], None, ghosts.success)


def _numbers(obs: Any) -> Floats:
    """The columns of an observation that a model sees."""
    return np.ravel(obs["observation"] if isinstance(obs, dict) else obs).astype(np.float32)


def _name(model: Any, geom: int) -> str:
    return str(model.body(model.geom_bodyid[geom]).name)


def _time_limit(env: gymnasium.Env[Any, Any]) -> int:
    """The steps of the longest episode that is shown."""
    if env.has_wrapper_attr("_max_episode_steps"):  # gymnasium's TimeLimit
        return int(env.get_wrapper_attr("_max_episode_steps"))
    return LONGEST
