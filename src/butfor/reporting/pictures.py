"""Pictures of a finished detection run on a Fetch world: episodes step by step, its failures, a map around the object.

They lie in the run's folder `pictures`; `index.json`, written last, says what there is to see.
"""

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from butfor.envs import is_fetch_world, make_vector_env, short_name
from butfor.influence.influence import Influence
from butfor.rollouts.episodes import Episodes
from butfor.rollouts.play import Observation, Progress, play, play_again, reset_seeds
from butfor.runs.files import atomic_write, write_json
from butfor.runs.reading import read_run

Flags = NDArray[np.bool_]
Floats = NDArray[np.float64]
Frame = NDArray[np.uint8]

FAILURES = 12
SIZE = 360  # pixels of a picture, each way
TIMELINE_PICTURE, CLOSE_PICTURE = 840, 1440  # pixels of the drawing that it is cut from
ABOVE = 0.08  # metres from the gripper's start up to the middle of an episode's frames
JPEG_QUALITY = 85
BRIEF = 5  # steps
FAR = 0.05  # metres that a manipulated object has moved
# the gripper's way to a place of the map: across above the object, down, and at rest; rot-table pauses at the end
SINKING, RESTING, MAP_STEPS = 17, 25, 30
CLEAR_HEIGHT = 0.15  # metres above the object
GAIN = 20.0  # an action of 1 moves the gripper's target by 0.05 metres
OPEN = 1.0  # the fingers' action
UNTOUCHED = 1e-6  # metres from where the object lies if nobody comes near
ON_PLACE = 5e-3  # metres


def write_pictures(run: Path | str, progress: Progress = lambda stage, done, total, text: None, grid: int = 25) -> Path:
    """Draws what `index.json` lists into the run's folder `pictures`; called again, it goes on where it was cut off."""
    folder = Path(run) / "pictures"
    world, episodes, scores = _read(Path(run))
    if (folder / "index.json").is_file():
        return folder
    timelines = _timelines(folder, world, episodes, scores, progress)
    failures = _failures(folder, world, episodes, scores, progress)
    if not (folder / "map.npz").is_file():
        influence = Influence.load(Path(run) / "model.safetensors")
        arrays = influence_map(world, central_seed(episodes), influence, grid, progress=progress)
        with atomic_write(folder / "map.npz") as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)
    index = {"schema": 1, "timelines": timelines, "failures": failures, "map": {"file": "map.npz"}}
    write_json(folder / "index.json", index)
    return folder


def choose_timelines(episodes: Episodes) -> dict[str, int]:
    """Title -> number of the first episode without contact, the first with a brief touch, and the best manipulation.

    The best moves the object farthest, to the goal if any does. The scores have no say: no episode is chosen because
    CAI does well in it.
    """
    from butfor.envs.fetch import reward

    untouched, brief, handled = episode_kinds(episodes)
    (end, goal), way = (_last(episodes, part) for part in ("achieved_goal", "desired_goal")), _way(episodes)
    reached = reward(end, goal) == 0
    kinds = {"No contact": untouched, "A brief touch": brief}
    if (handled & reached).any():
        kinds["A successful manipulation"] = way * (handled & reached)
    else:
        kinds["A manipulation that does not end at the goal"] = way * handled
    return {title: int(kind.argmax()) for title, kind in kinds.items() if kind.any()}


def episode_kinds(episodes: Episodes) -> tuple[Flags, Flags, Flags]:
    """Which episodes [E] have no contact, have a brief one and then none, and end with the object moved by many."""
    contact = _contact(episodes) & episodes.valid
    touches = contact.sum(1)
    last = np.where(contact, np.arange(contact.shape[1]), -1).max(1)
    brief = (touches > 0) & (last - contact.argmax(1) < BRIEF) & (last < episodes.length - BRIEF)
    return touches == 0, brief, (_way(episodes) > FAR) & (touches > BRIEF)


def _last(episodes: Episodes, part: str) -> Any:
    """A part of the last state of each episode [E, ...]."""
    return getattr(episodes, part)[np.arange(len(episodes)), episodes.length]


def _way(episodes: Episodes) -> Any:
    """How far the object is from where it was, at the end of each episode [E]."""
    return np.linalg.norm(_last(episodes, "achieved_goal") - episodes.achieved_goal[:, 0], axis=1)


def choose_failures(episodes: Episodes, score: Floats, count: int = FAILURES) -> list[tuple[str, int, int]]:
    """(kind, episode, time): influenced states of the lowest score [E, T], free ones of the highest, one an episode."""
    label, used, chosen = _exact(episodes), set[int](), list[tuple[str, int, int]]()
    for kind, of_kind, sign in (("missed", label, 1), ("false alarm", ~label, -1)):
        places = np.argwhere(of_kind & episodes.valid)
        order = np.argsort(sign * score[tuple(places.T)], kind="stable")
        found = 0
        for episode, time in places[order].tolist():
            if found < count // 2 and episode not in used:
                used.add(episode)
                chosen.append((kind, episode, time))
                found += 1
    return chosen


def central_seed(episodes: Episodes) -> int:
    """The reset whose object lies beside the gripper's start, so that all of its surroundings can be reached."""
    far = np.abs(episodes.observation[:, 0, 6:8]) @ [2, 1]  # along x, away from the robot, its arm reaches less far
    return int(reset_seeds(episodes)[far.argmin()])


def influence_map(
    world: str,
    seed: int,
    influence: Influence,
    grid: int = 25,
    reach: float = 0.12,
    progress: Progress = lambda stage, done, total, text: None,
) -> dict[str, NDArray[Any]]:
    """CAI and the exact effect of the action with the gripper at rest on a grid of places around the object.

    x and y [grid] are the gripper's place from the object's, in cm; cai (nats, mean over seeds) and effect (metres: the
    largest range of the object's next position over the actions' corners) are [y, x]; `half` [2] is half the object's
    width, in cm. NaN: a place that the gripper could not take, or not without touching the object.
    """
    if grid < 2 or not reach > 0:
        raise ValueError(f"grid is {grid} and reach {reach}; expected at least 2 places each way and a positive reach.")
    from butfor.envs.truth import Forker, exact_label

    line = np.linspace(-reach, reach, grid)
    offsets = np.stack(np.meshgrid(line, line), -1).reshape(-1, 2)  # [y, x, 2] -> [y * x, 2]
    progress("influence map", 0, 2, "placing the gripper")
    env: Any = make_vector_env(world, len(offsets) + 1)
    with closing(env):
        states, placed = place_gripper(env, seed, offsets)
        forker, model = Forker(env), env.unwrapped.physics.model.mj
    progress("influence map", 1, 2, "trying the actions")
    effect = exact_label(forker, states)[1]
    cai = np.asarray(influence.score(states[:, forker.layout.observation])["object"], dtype=np.float64)
    progress("influence map", 2, 2, "done")
    arrays = {name: np.where(placed, value, np.nan) for name, value in (("cai", cai), ("effect", effect))}
    half = model.geom_size[model.geom("object0").id, :2]
    shaped = {name: value.reshape(grid, grid) for name, value in arrays.items()}
    return {"x": 100 * line, "y": 100 * line, **shaped, "half": 100 * half}


def place_gripper(env: Any, seed: int, offsets: Floats) -> tuple[Floats, Flags]:
    """Brings open fingers down beside the object, at its height, and to rest: offsets [n, 2] -> (states [n, S], [n]).

    The worlds are n + 1: the last one's gripper stays where it is, and who has touched the object is told by comparing
    with the object there. Second: whether the gripper is on its place and the object has not been touched.
    """

    def act(group: int, time: int, obs: Observation) -> tuple[NDArray[Any], Flags]:
        state = obs["observation"]
        gripper, thing = state[:-1, :3], state[:-1, 3:6]
        way = thing - gripper + state[:-1, 14:17] + state[:-1, 20:23]  # a table may carry the object on
        way += np.insert(offsets, 2, CLEAR_HEIGHT * (time < SINKING), axis=1)
        action = np.zeros((len(state), 4), dtype=np.float32)
        action[:-1, :3] = np.clip(GAIN * way * (time < RESTING), -1, 1)
        action[:-1, 3] = OPEN * (time < RESTING)
        return action, np.zeros(len(state), dtype=bool)

    play([env], act, [seed] * env.num_envs, MAP_STEPS, "the gripper's way to the object")
    worlds = env.unwrapped
    states = worlds.save_state()
    seen, thing = states[:-1, worlds.layout.observation], states[:, worlds.layout.object_pose]
    untouched = np.abs(thing[:-1] - thing[-1]).max(1) < UNTOUCHED
    gap = seen[:, :3] - seen[:, 3:6] - np.insert(offsets, 2, 0, axis=1)
    return states[:-1], untouched & (np.abs(gap).max(1) < ON_PLACE)


def close_up(env: Any, place: int, point: Floats) -> Frame:
    """One world, seen by a camera that stays where it is, cut [SIZE, SIZE, 3] around a point."""
    from butfor.envs.drawing import CAMERA

    frame, camera = env.render([place])[0], dict[str, Any](CAMERA)
    azimuth, elevation = np.radians([camera["azimuth"], camera["elevation"]])
    forward = np.array([np.cos(elevation) * np.cos(azimuth), np.cos(elevation) * np.sin(azimuth), np.sin(elevation)])
    right = np.array([np.sin(azimuth), -np.cos(azimuth), 0.0])
    seen = point - camera["lookat"] + forward * camera["distance"]
    angle = np.radians(float(env.unwrapped.physics.model.mj.vis.global_.fovy))
    scale = len(frame) / 2 / np.tan(angle / 2) / (seen @ forward)  # pixels a metre, at that distance
    centre = len(frame) / 2 + scale * np.array([-seen @ np.cross(right, forward), seen @ right])  # rows go down
    row, column = np.clip(np.rint(centre - SIZE / 2).astype(int), 0, len(frame) - SIZE)
    return np.asarray(frame[row : row + SIZE, column : column + SIZE])


def _timelines(
    folder: Path, world: str, episodes: Episodes, scores: Floats, progress: Progress
) -> list[dict[str, Any]]:
    """Entries of `index.json`, with a frame for every state in which an action was taken."""
    chosen = choose_timelines(episodes)
    if not chosen:
        return []
    numbers = list(chosen.values())
    names = [[f"step-{number:05d}-{t:03d}.jpg" for t in range(episodes.length[number])] for number in numbers]
    total = sum(map(len, names))
    drawn = 0

    def look(time: int) -> None:
        nonlocal drawn
        for place, frames in enumerate(names):
            if time < len(frames):
                if not (folder / frames[time]).is_file():
                    _save(folder / frames[time], close_up(env, place, middle))
                drawn += 1
        progress("pictures of episodes", drawn, total, "frames")

    env: Any = _open_drawn(world, len(numbers), TIMELINE_PICTURE)
    middle = env.unwrapped.physics.model.gripper + np.array(
        [0, 0, ABOVE]
    )  # all frames of an episode show the same place
    with closing(env):
        play_again(env, episodes, numbers, look)
    rows = []
    for (title, number), frames in zip(chosen.items(), names, strict=True):
        steps = len(frames)
        marks = {"label": _exact(episodes), "contact": _contact(episodes)}
        marks |= {name: value for name, value in episodes.label.items() if name == "heuristic"}
        shown = {name: value[number, :steps].tolist() for name, value in marks.items()}
        score = scores[:, number, :steps].tolist()
        rows.append({"title": title, "episode": number, "frames": frames, "score": score, **shown})
    return rows


def _failures(folder: Path, world: str, episodes: Episodes, scores: Floats, progress: Progress) -> list[dict[str, Any]]:
    """Entries of `index.json`, each with a picture from nearby."""
    from butfor.envs.truth import Forker, exact_label

    chosen = choose_failures(episodes, scores.mean(0))
    if not chosen:
        return []
    numbers, times = [episode for _, episode, _ in chosen], [time for _, _, time in chosen]
    names = [f"state-{number:05d}-{time:03d}.jpg" for number, time in zip(numbers, times, strict=True)]
    env: Any = _open_drawn(world, len(numbers), CLOSE_PICTURE)
    worlds = env.unwrapped
    states = np.zeros((len(numbers), worlds.layout.size))
    drawn = 0

    def look(time: int) -> None:
        nonlocal drawn
        for place in np.flatnonzero(np.array(times) == time).tolist():
            states[place] = worlds.save_state([place])[0]
            if not (folder / names[place]).is_file():
                seen = states[place, worlds.layout.observation]
                _save(folder / names[place], close_up(env, place, (seen[:3] + seen[3:6]) / 2))
            drawn += 1
            progress("pictures of failures", drawn, len(numbers), "states")

    with closing(env):
        play_again(env, episodes, numbers, look)
        effect = exact_label(Forker(env), states, episodes.action[numbers, times])[1]
    rows = []
    for place, (kind, number, time) in enumerate(chosen):
        rows.append(
            {
                "image": names[place],
                "episode": number,
                "time": time,
                "score": float(scores[:, number, time].mean()),
                "spread": float(scores[:, number, time].std()),
                "exact": bool(_exact(episodes)[number, time]),
                "effect": None if np.isnan(effect[place]) else float(effect[place]),
                "contact": bool(_contact(episodes)[number, time]),
                "distance": float(np.linalg.norm(episodes.observation[number, time, 6:9])),
                "kind": kind,
            }
        )
    return rows


def _open_drawn(world: str, count: int, size: int) -> Any:
    """Worlds whose pictures are squares of this many pixels."""
    return make_vector_env(world, count, render_mode="rgb_array", width=size, height=size)


def _save(path: Path, frame: Frame) -> None:
    """One JPEG file, whole or absent."""
    from imageio.v3 import imwrite

    with atomic_write(path) as temporary:
        imwrite(temporary, frame, extension=".jpg", quality=JPEG_QUALITY)


def _read(run: Path) -> tuple[str, Episodes, Floats]:
    """The world, the test episodes and CAI [S, E, T] of a detection run; refuses what pictures cannot be made of."""
    held = read_run(run)
    world = short_name(held["config"].get("env", "")) if held["kind"] == "detection" else ""
    if not is_fetch_world(world):
        what = f"a {held['kind']} run" + (f" on {world}" if world else "")
        raise ValueError(f"{run} holds {what}; pictures are made of detection runs on the Fetch worlds.")
    if not (run / "scores.npz").is_file():
        raise FileNotFoundError(f"{run} is not finished: it has no scores.npz. Run the same command again first.")
    episodes = Episodes.load(run / "data" / "test.npz")
    _exact(episodes), _contact(episodes), reset_seeds(episodes)
    with np.load(run / "scores.npz", allow_pickle=False) as file:
        score, places = np.atleast_2d(file["cai"]), (file["episode"], file["time"])
    if not np.array_equal(places, episodes.valid.nonzero()) or score.shape[1:] != places[0].shape:
        raise ValueError(f"{run / 'scores.npz'} is not of the episodes in data/test.npz; run the detection again.")
    scores = np.zeros((len(score), *episodes.valid.shape))
    scores[:, *places] = score
    return world, episodes, scores


def _contact(episodes: Episodes) -> Flags:
    """Contact [E, T], which has to be known."""
    if episodes.contact is None:
        raise ValueError("These episodes do not say when the gripper touched the object; collect them with contact.")
    return episodes.contact


def _exact(episodes: Episodes) -> Flags:
    """The exact label [E, T], which has to be known."""
    if "exact" not in episodes.label:
        raise ValueError(f"These episodes have no exact label (labels: {', '.join(episodes.labels()) or 'none'}).")
    return episodes.label["exact"]
