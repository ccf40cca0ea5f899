"""Pictures of a finished detection run on a robot: episodes step by step, its failures, a map around the object.

They are in the run's folder `pictures`; `index.json`, written last, lists them. `illustrate` also writes the report.
"""

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from butfor.detection.episode_kinds import episode_kinds, object_way
from butfor.envs import make_vector_env
from butfor.envs.facts import EnvFacts, facts_of, named
from butfor.influence.influence import Influence
from butfor.rollouts.episodes import Episodes
from butfor.rollouts.play import Observation, Progress, play, play_again, reset_seeds
from butfor.runs.files import atomic_write, write_json
from butfor.runs.reading import read_arrays, read_run
from butfor.scenes import save_scene
from butfor.scenes.scene import SCENE_FILE
from butfor.scenes.view import view_episodes

Flags = NDArray[np.bool_]
Floats = NDArray[np.float64]
Frame = NDArray[np.uint8]

FAILURES = 12
SIZE = 360  # pixels of a picture, each way
TIMELINE_PICTURE = 840  # pixels of the rendering that a picture of an episode is cut from
CLOSE_PICTURE = 1440  # the same for a failure
ABOVE = 0.08  # metres from the gripper's start up to the middle of an episode's frames
JPEG_QUALITY = 85
# The gripper moves above its place of the map until SINKING, then down, and rests from RESTING on. The object of
# rot-table stands still at the end of these steps.
SINKING, RESTING, MAP_STEPS = 17, 25, 30
CLEAR_HEIGHT = 0.15  # metres above the object
GAIN = 20.0  # an action of 1 moves the gripper's target by 0.05 metres
OPEN = 1.0  # the fingers' action
UNTOUCHED = 1e-6  # metres between the object and one that no gripper came near
ON_PLACE = 5e-3  # metres
REACH = 0.12  # metres from the object to the edge of the map


def illustrate(
    run: Path, pictures: bool = True, progress: Progress = lambda stage, done, total, text: None
) -> tuple[Path | None, list[str]]:
    """Draw the pictures of a detection run, if it has any, and write its report.

    Pictures are drawn of robots only. They need a screen or EGL, the report needs plotly; without these, a run is
    finished all the same.

    Returns:
        The path of the report, if it could be written, and a sentence for each thing that was skipped.
    """
    skipped = []
    drawn = [write_scene] if pictures else []
    if pictures and _robot_facts(run) is not None:
        drawn.append(write_pictures)
    for draw in drawn:
        try:
            draw(run, progress)
        except (ImportError, ValueError, RuntimeError, OSError) as error:
            skipped.append(f"No pictures were drawn: {error}")
    try:
        from butfor.reporting.study_page import write_report

        return write_report(run), skipped
    except ImportError as error:
        return None, [*skipped, f"No report was written: {error}. Write it with: butfor report {run}"]


def write_scene(run: Path | str, progress: Progress = lambda stage, done, total, text: None) -> Path:
    """Write player.json, the episodes that the report's player shows, unless it is there already."""
    path = Path(run) / SCENE_FILE
    if path.is_file():
        return path
    episodes, scores = _read_test_set(Path(run))
    episodes.score = scores.mean(0).astype(np.float32)
    if episodes.contact is not None and _robot_facts(Path(run)) is not None:
        chosen = choose_timelines(episodes)
    else:
        influenced = (episodes.label["exact"] & episodes.valid).any(1)
        kinds = {"With influence": influenced, "Without influence": ~influenced}
        chosen = {title: int(kind.argmax()) for title, kind in kinds.items() if kind.any()}
    titles = [f"{title} (episode {number})" for title, number in chosen.items()]
    save_scene(path, view_episodes(episodes, list(chosen.values()), progress=progress, titles=titles))
    return path


def is_illustrated(run: Path) -> bool:
    """Whether a run has its report, and its pictures if the environment is a robot."""
    has_pictures = (run / "pictures" / "index.json").is_file() or _robot_facts(run) is None
    return has_pictures and (run / "report.html").is_file()


def write_pictures(run: Path | str, progress: Progress = lambda stage, done, total, text: None, grid: int = 25) -> Path:
    """Draw the pictures of a detection run into a folder, continuing where an earlier call was interrupted."""
    folder = Path(run) / "pictures"
    facts, episodes, scores = _read(Path(run))
    if (folder / "index.json").is_file():
        return folder
    timelines = _timelines(folder, facts, episodes, scores, progress)
    failures = _failures(folder, facts, episodes, scores, progress)
    if not (folder / "map.npz").is_file():
        influence = Influence.load(Path(run) / "model.safetensors")
        arrays = influence_map(facts, central_seed(facts, episodes), influence, grid, progress)
        with atomic_write(folder / "map.npz") as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)
    index = {"schema": 1, "timelines": timelines, "failures": failures, "map": {"file": "map.npz"}}
    write_json(folder / "index.json", index)
    return folder


def choose_timelines(episodes: Episodes) -> dict[str, int]:
    """Title -> number of the first episode without contact, the first with a brief touch, and the best manipulation.

    The best moves the object farthest, to the goal if any does. Scores are not used, so that no episode is chosen
    because CAI does well in it.
    """
    from butfor.envs.fetch import reward

    untouched, brief, handled = episode_kinds(episodes)
    distance = object_way(episodes)
    last = (np.arange(len(episodes)), episodes.length)
    reached = reward(episodes.achieved_goal[last], episodes.desired_goal[last]) == 0
    kinds = {"No contact": untouched, "A brief touch": brief}
    if (handled & reached).any():
        kinds["A successful manipulation"] = distance * (handled & reached)
    else:
        kinds["A manipulation that does not end at the goal"] = distance * handled
    return {title: int(kind.argmax()) for title, kind in kinds.items() if kind.any()}


def choose_failures(episodes: Episodes, score: Floats) -> list[tuple[str, int, int]]:
    """(kind, episode, time): influenced states of the lowest score [E, T], others of the highest, one per episode."""
    label = episodes.label["exact"]
    chosen: dict[int, tuple[str, int]] = {}
    for kind, of_kind, sign in (("missed", label, 1), ("false alarm", ~label, -1)):
        places = np.argwhere(of_kind & episodes.valid)
        order = np.argsort(sign * score[tuple(places.T)], kind="stable")
        worst: dict[int, tuple[str, int]] = {}
        for episode, time in places[order].tolist():
            worst.setdefault(episode, (kind, time))
        left = [episode for episode in worst if episode not in chosen]
        chosen |= {episode: worst[episode] for episode in left[: FAILURES // 2]}
    return [(kind, episode, time) for episode, (kind, time) in chosen.items()]


def central_seed(facts: EnvFacts, episodes: Episodes) -> int:
    """The reset whose object lies beside the gripper's start, so that all places around it can be reached."""
    offset = episodes.observation[:, 0, facts.object_offset[:2]]
    distance = np.abs(offset) @ [2, 1]  # along x, away from the robot, its arm reaches less far
    return int(reset_seeds(episodes)[distance.argmin()])


def influence_map(
    facts: EnvFacts, seed: int, influence: Influence, grid: int, progress: Progress
) -> dict[str, NDArray[Any]]:
    """CAI and the exact effect of the action with the gripper at rest on a grid of places around the object.

    x and y [grid] are the gripper's place relative to the object, in cm; cai (nats, mean over seeds) and effect
    (metres: the largest range of the object's next position over the actions' corners) are [y, x]; `half` [2] is half
    the object's width, in cm. NaN: a place that the gripper could not take without touching the object.
    """
    from butfor.envs.truth import Forker, exact_label

    line = np.linspace(-REACH, REACH, grid)
    offsets = np.stack(np.meshgrid(line, line), -1).reshape(-1, 2)  # [y, x, 2] -> [y * x, 2]
    progress("influence map", 0, 2, "placing the gripper")
    env: Any = make_vector_env(facts.name, len(offsets) + 1)
    with closing(env):
        states, placed = place_gripper(facts, env, seed, offsets)
    progress("influence map", 1, 2, "trying the actions")
    effect = exact_label(Forker(facts.name), states)[1]
    cai = np.asarray(influence.score(states[:, env.unwrapped.layout.observation])["object"], dtype=np.float64)
    model = env.unwrapped.physics.model.mj
    progress("influence map", 2, 2, "done")
    return {
        "x": 100 * line,
        "y": 100 * line,
        "cai": np.where(placed, cai, np.nan).reshape(grid, grid),
        "effect": np.where(placed, effect, np.nan).reshape(grid, grid),
        "half": 100 * model.geom_size[model.geom("object0").id, :2],
    }


def place_gripper(facts: EnvFacts, env: Any, seed: int, offsets: Floats) -> tuple[Floats, Flags]:
    """Bring open fingers down beside the object, at its height, and to rest: offsets [n, 2] -> (states [n, S], [n]).

    The second result: the gripper is on its place and has not touched the object. `env` has n + 1 environments; the
    gripper of the last one does not move, and its object shows where an untouched object is.
    """

    def act(group: int, time: int, obs: Observation) -> tuple[NDArray[Any], Flags]:
        state = obs["observation"]
        gripper, thing, gripper_velocity, relative_velocity = (
            state[:-1, columns]
            for columns in (facts.agent_position, facts.object_position, facts.agent_velocity, facts.object_velocity)
        )
        way = thing - gripper + relative_velocity + gripper_velocity  # a turning table carries the object on
        way += np.insert(offsets, 2, CLEAR_HEIGHT * (time < SINKING), axis=1)
        action = np.zeros((len(state), 4), dtype=np.float32)
        action[:-1, :3] = np.clip(GAIN * way * (time < RESTING), -1, 1)
        action[:-1, 3] = OPEN * (time < RESTING)
        return action, np.zeros(len(state), dtype=bool)

    play([env], act, [seed] * env.num_envs, MAP_STEPS, "the gripper's way to the object")
    layout = env.unwrapped.layout
    states = env.unwrapped.save_state()
    obs = states[:-1, layout.observation]
    pose = states[:, layout.object_pose]
    untouched = np.abs(pose[:-1] - pose[-1]).max(1) < UNTOUCHED
    gap = obs[:, facts.agent_position] - obs[:, facts.object_position] - np.insert(offsets, 2, 0, axis=1)
    return states[:-1], untouched & (np.abs(gap).max(1) < ON_PLACE)


def close_up(env: Any, place: int, point: Floats) -> Frame:
    """Render one environment by the fixed camera and cut out [SIZE, SIZE, 3] around a point."""
    from butfor.envs.drawing import CAMERA

    frame = env.render([place])[0]
    camera: dict[str, Any] = dict(CAMERA)
    azimuth, elevation = np.radians([camera["azimuth"], camera["elevation"]])
    forward = np.array([np.cos(elevation) * np.cos(azimuth), np.cos(elevation) * np.sin(azimuth), np.sin(elevation)])
    right = np.array([np.sin(azimuth), -np.cos(azimuth), 0.0])
    seen = point - camera["lookat"] + forward * camera["distance"]
    angle = np.radians(float(env.unwrapped.physics.model.mj.vis.global_.fovy))
    scale = len(frame) / 2 / np.tan(angle / 2) / (seen @ forward)  # pixels per metre at that distance
    centre = len(frame) / 2 + scale * np.array([-seen @ np.cross(right, forward), seen @ right])  # rows go down
    row, column = np.clip(np.rint(centre - SIZE / 2).astype(int), 0, len(frame) - SIZE)
    return np.asarray(frame[row : row + SIZE, column : column + SIZE])


def _draw_states(
    folder: Path,
    facts: EnvFacts,
    episodes: Episodes,
    files: dict[tuple[int, int], str],
    close: bool,
    progress: Progress,
) -> dict[tuple[int, int], Floats]:
    """Play episodes again and draw those states (episode, time) of `files` that have no file yet; return all states.

    With `close`, a picture shows gripper and object from nearby; without, all show the same place.
    """
    from imageio.v3 import imwrite

    pixels = CLOSE_PICTURE if close else TIMELINE_PICTURE
    stage = "pictures of failures" if close else "pictures of episodes"
    numbers = list(dict.fromkeys(number for number, _ in files))
    env: Any = make_vector_env(facts.name, len(numbers), render_mode="rgb_array", width=pixels, height=pixels)
    layout = env.unwrapped.layout
    middle = env.unwrapped.physics.model.gripper + np.array([0, 0, ABOVE])
    states = {}

    def look(time: int) -> None:
        for place, number in enumerate(numbers):
            if (number, time) not in files:
                continue
            state = env.unwrapped.save_state([place])[0]
            states[number, time] = state
            path = folder / files[number, time]
            if not path.is_file():
                obs = state[layout.observation]
                between = (obs[list(facts.agent_position)] + obs[list(facts.object_position)]) / 2
                frame = close_up(env, place, between if close else middle)
                with atomic_write(path) as temporary:
                    imwrite(temporary, frame, extension=".jpg", quality=JPEG_QUALITY)
            progress(stage, len(states), len(files), "states")

    with closing(env):
        play_again(env, episodes, numbers, look)
    return states


def _timelines(
    folder: Path, facts: EnvFacts, episodes: Episodes, scores: Floats, progress: Progress
) -> list[dict[str, Any]]:
    """Entries of `index.json` for episodes, with a frame for every state in which an action was taken."""
    chosen = choose_timelines(episodes)
    states = [(number, time) for number in chosen.values() for time in range(episodes.length[number])]
    files = {(number, time): f"step-{number:05d}-{time:03d}.jpg" for number, time in states}
    if files:
        _draw_states(folder, facts, episodes, files, False, progress)
    marks: dict[str, Any] = {"label": episodes.label["exact"], "contact": episodes.contact}
    if "heuristic" in episodes.label:
        marks["heuristic"] = episodes.label["heuristic"]
    rows = []
    for title, number in chosen.items():
        steps = int(episodes.length[number])
        frames = [files[number, time] for time in range(steps)]
        shown = {name: value[number, :steps].tolist() for name, value in marks.items()}
        score = scores[:, number, :steps].tolist()
        rows.append({"title": title, "episode": number, "frames": frames, "score": score, **shown})
    return rows


def _failures(
    folder: Path, facts: EnvFacts, episodes: Episodes, scores: Floats, progress: Progress
) -> list[dict[str, Any]]:
    """Entries of `index.json` for failures, each with a picture from nearby."""
    from butfor.envs.truth import Forker, exact_label

    chosen = choose_failures(episodes, scores.mean(0))
    files = {(number, time): f"state-{number:05d}-{time:03d}.jpg" for _, number, time in chosen}
    contact: Any = episodes.contact  # choose_timelines refuses episodes without
    if not chosen:
        return []
    states = _draw_states(folder, facts, episodes, files, True, progress)
    actions = [episodes.action[state] for state in files]
    effect = exact_label(Forker(facts.name), [states[state] for state in files], actions)[1]
    return [
        {
            "image": files[number, time],
            "episode": number,
            "time": time,
            "score": float(scores[:, number, time].mean()),
            "spread": float(scores[:, number, time].std()),
            "exact": bool(episodes.label["exact"][number, time]),
            "effect": None if np.isnan(effect[place]) else float(effect[place]),
            "contact": bool(contact[number, time]),
            "distance": float(np.linalg.norm(episodes.observation[number, time, facts.object_offset])),
            "kind": kind,
        }
        for place, (kind, number, time) in enumerate(chosen)
    ]


def _robot_facts(run: Path) -> EnvFacts | None:
    """The facts of a detection run's environment, if it is a robot."""
    record = read_run(run)
    facts = facts_of(record["config"].get("env", "")) if record["kind"] == "detection" else None
    return facts if facts is not None and facts.drawing == "robot" else None


def _read(run: Path) -> tuple[EnvFacts, Episodes, Floats]:
    """The environment, the test episodes and CAI [S, E, T] of a finished detection run."""
    facts = _robot_facts(run)
    if facts is None:
        raise ValueError(
            f"Pictures need a detection run on {' or '.join(named(drawing='robot'))}; {run} is another one."
        )
    return facts, *_read_test_set(run)


def _read_test_set(run: Path) -> tuple[Episodes, Floats]:
    """The test episodes and CAI [S, E, T] of a finished detection run."""
    episodes = Episodes.load(run / "data" / "test.npz")
    held = read_arrays(run / "scores.npz")
    score = np.atleast_2d(held["cai"])
    scores = np.zeros((len(score), *episodes.valid.shape))
    scores[:, held["episode"], held["time"]] = score
    return episodes, scores
