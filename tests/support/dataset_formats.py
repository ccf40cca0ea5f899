"""Small datasets in the documented layout of each format: episodes of a hand (3 numbers) and a cube (3 numbers)."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow
import pyarrow.feather
import pyarrow.parquet

from butfor.rollouts.episodes import Episodes

LENGTHS = (5, 3, 7)
CAMERA = (48, 48, 3)
HAND, CUBE = slice(0, 3), slice(3, 6)
NAMES = ["hand_x", "hand_y", "hand_z", "cube_x", "cube_y", "cube_z"]


def hand_and_cube(lengths: tuple[int, ...] = LENGTHS) -> tuple[list[Any], list[Any]]:
    """Observations [T + 1, 6] and actions [T, 2], float32, all numbers different."""
    random = np.random.default_rng(0)
    observations = [random.normal(size=(steps + 1, 6)).astype(np.float32) for steps in lengths]
    return observations, [random.uniform(-1, 1, (steps, 2)).astype(np.float32) for steps in lengths]


def digest(path: Path) -> dict[str, str]:
    """The SHA-256 of a file and of the JSON file beside it, or of every file in a folder."""
    pair = [path, path.with_suffix(".json")]
    files = [one for one in (pair if path.is_file() else sorted(path.rglob("*"))) if one.is_file()]
    return {str(file.relative_to(path.parent)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def write_robomimic(folder: Path, observations: list[Any], actions: list[Any]) -> Path:
    """`data/demo_N` with obs and next_obs, and a list of validation episodes in `mask`."""
    path = folder / "low_dim.hdf5"
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["total"] = sum(map(len, actions))
        data.attrs["env_args"] = json.dumps({"env_name": "Lift", "type": 1, "env_kwargs": {}})
        for number, (obs, action) in enumerate(zip(observations, actions, strict=True)):
            demo = data.create_group(f"demo_{number}")
            demo.attrs["num_samples"] = len(action)
            demo.attrs["model_file"] = "<mujoco/>"
            for group, rows in (("obs", obs[:-1]), ("next_obs", obs[1:])):
                demo.create_dataset(f"{group}/object", data=rows[:, CUBE])
                demo.create_dataset(f"{group}/robot0_eef_pos", data=rows[:, HAND])
                demo.create_dataset(f"{group}/agentview_image", data=np.zeros((len(rows), *CAMERA), np.uint8))
            demo.create_dataset("states", data=np.hstack([obs[:-1], obs[:-1]]))
            demo.create_dataset("actions", data=action)
            demo.create_dataset("rewards", data=np.zeros(len(action)))
            demo.create_dataset("dones", data=np.arange(len(action)) == len(action) - 1)
        file.create_dataset("mask/valid", data=np.array(["demo_1"], "S"))
        file.create_dataset("mask/train", data=np.array(["demo_0", "demo_2"], "S"))
    return path


def write_libero(folder: Path, observations: list[Any], actions: list[Any]) -> Path:
    """`data/demo_N` without next_obs; the objects are only in states, and obs is what is seen after the action."""
    path = folder / "libero.hdf5"
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["problem_info"] = json.dumps({"language_instruction": "put the cube away"})
        data.attrs["bddl_file_name"] = "cube.bddl"
        data.attrs["total"] = sum(len(one) + 1 for one in actions)
        data.attrs["num_demos"] = len(actions)
        for number, (obs, action) in enumerate(zip(observations, actions, strict=True)):
            demo = data.create_group(f"demo_{number}")
            demo.attrs["num_samples"] = len(obs)
            demo.create_dataset("obs/ee_pos", data=np.concatenate([obs[1:], obs[-1:]])[:, HAND])
            demo.create_dataset("obs/agentview_rgb", data=np.zeros((len(obs), *CAMERA), np.uint8))
            demo.create_dataset("states", data=obs)
            demo.create_dataset("actions", data=np.concatenate([action, np.zeros((1, 2), np.float32)]))
            demo.create_dataset("dones", data=np.arange(len(obs)) == len(obs) - 1)
    return path


def write_maniskill(folder: Path, observations: list[Any], actions: list[Any], with_obs: bool = True) -> Path:
    """`traj_N` with one observation more than actions, simulator states, and a JSON file beside it."""
    path = folder / "trajectory.h5"
    with h5py.File(path, "w") as file:
        for number, (obs, action) in enumerate(zip(observations, actions, strict=True)):
            group = file.create_group(f"traj_{number}")
            if with_obs:
                group.create_dataset("obs/agent/qpos", data=obs[:, HAND])
                group.create_dataset("obs/extra/cube_pose", data=obs[:, CUBE])
            group.create_dataset("env_states/actors/cube", data=obs[:, CUBE])
            group.create_dataset("env_states/articulations/panda", data=obs[:, HAND])
            group.create_dataset("actions", data=action)
            for name in ("terminated", "truncated", "success"):
                group.create_dataset(name, data=np.arange(len(action)) == len(action) - 1)
    episodes = [
        {"episode_id": n, "episode_seed": n, "elapsed_steps": len(one), "success": True}
        for n, one in enumerate(actions)
    ]
    about = {"env_info": {"env_id": "PushCube-v1", "env_kwargs": {}}, "episodes": episodes}
    path.with_suffix(".json").write_text(json.dumps(about))
    return path


def write_d4rl(folder: Path, observations: list[Any], actions: list[Any]) -> Path:
    """One row per step, with next observations, in an HDF5 file."""
    path = folder / "cube-v2.hdf5"
    with h5py.File(path, "w") as file:
        file.create_dataset("observations", data=np.concatenate([one[:-1] for one in observations]))
        file.create_dataset("next_observations", data=np.concatenate([one[1:] for one in observations]))
        file.create_dataset("actions", data=np.concatenate(actions))
        file.create_dataset("rewards", data=np.zeros(sum(map(len, actions)), np.float32))
        file.create_dataset("terminals", data=np.zeros(sum(map(len, actions)), bool))
        file.create_dataset("timeouts", data=np.concatenate([np.arange(len(one)) == len(one) - 1 for one in actions]))
        file.create_dataset("infos/qpos", data=np.concatenate([one[:-1, HAND] for one in observations]))
        file.create_dataset("metadata/algorithm", data="SAC")
    return path


def write_ogbench(folder: Path, observations: list[Any], actions: list[Any]) -> Path:
    """One row per state, the last one included, whose action is not used; `terminals` is 1 there."""
    path = folder / "cube-play-v0.npz"
    rows = [len(one) for one in observations]
    padded = [np.concatenate([one, np.zeros((1, 2), np.float32)]) for one in actions]
    ends = np.concatenate([np.arange(count) == count - 1 for count in rows]).astype(np.float32)
    whole = np.concatenate(observations)
    np.savez_compressed(
        path, observations=whole, actions=np.concatenate(padded), terminals=ends, qpos=whole[:, :4], qvel=whole[:, 4:]
    )
    return path


def write_npz(folder: Path, observations: list[Any], actions: list[Any]) -> Path:
    """One row per step, and one observation more than actions in each episode; `length` shows the ends."""
    path = folder / "steps.npz"
    np.savez(
        path,
        observations=np.concatenate(observations),
        actions=np.concatenate(actions),
        length=[len(one) for one in actions],
        robot="panda",
    )
    return path


def write_padded(folder: Path, observations: list[Any], actions: list[Any]) -> Path:
    """Padded arrays, without `length`: flags show the ends."""
    path = folder / "padded.npz"
    ends = [np.arange(len(one)) == len(one) - 1 for one in actions]
    np.savez(path, observations=_pad(observations), actions=_pad(actions), truncations=_pad(ends))
    return path


def write_episodes(folder: Path, observations: list[Any], actions: list[Any]) -> Path:
    """An episode file of butfor."""
    path = folder / "pucks.npz"
    states = _pad(observations)
    lengths = np.array([len(one) for one in actions])
    drawn = np.zeros((len(actions), lengths.max()), bool)
    seeds = np.arange(len(actions))
    goals = states[..., CUBE]
    Episodes(states, _pad(actions), goals, goals, lengths, drawn, reset_seed=seeds).save(path)
    return path


def _pad(episodes: list[Any]) -> Any:
    """Episodes [T, ...] as one array [E, T, ...], with zeros at the ends."""
    longest = max(map(len, episodes))
    return np.stack(
        [np.concatenate([one, np.zeros_like(one, shape=(longest - len(one), *one.shape[1:]))]) for one in episodes]
    )


def write_parquet(folder: Path, observations: list[Any], actions: list[Any]) -> Path:
    """Columns of single numbers, an episode and a step; the rows are shuffled."""
    path = folder / "table.parquet"
    pyarrow.parquet.write_table(_scalar_table(observations, actions), path)
    return path


def write_feather(folder: Path, observations: list[Any], actions: list[Any]) -> Path:
    """Columns of lists, in an Arrow file."""
    path = folder / "table.feather"
    pyarrow.feather.write_feather(_list_table(observations, actions, "obs", "episode"), path)
    return path


def _rows(observations: list[Any], actions: list[Any]) -> tuple[Any, Any, Any, Any]:
    """Observations, actions (zeros in the last row of an episode), episodes and steps, one row per state."""
    padded = np.concatenate([np.concatenate([one, np.zeros((1, 2), np.float32)]) for one in actions])
    episode = np.repeat(np.arange(len(actions)), [len(one) for one in observations])
    return np.concatenate(observations), padded, episode, np.concatenate([np.arange(len(one)) for one in observations])


def _scalar_table(observations: list[Any], actions: list[Any]) -> Any:
    obs, action, episode, step = _rows(observations, actions)
    columns: dict[str, Any] = {"episode": episode, "step": step}
    columns |= {f"observation.{name}": obs[:, place] for place, name in enumerate(NAMES)}
    columns |= {f"action_{place}": action[:, place] for place in range(2)}
    return pyarrow.table(columns).take(np.random.default_rng(1).permutation(len(obs)))


def _list_table(observations: list[Any], actions: list[Any], name: str, episode_name: str) -> Any:
    obs, action, episode, step = _rows(observations, actions)
    columns: dict[str, Any] = {name: list(obs), "action": list(action)}
    columns |= {"timestamp": (step / 10).astype(np.float32), "frame_index": step, episode_name: episode}
    columns |= {"index": np.arange(len(obs)), "task_index": episode % 2}
    columns["next.done"] = np.diff(episode, append=-1) != 0
    return pyarrow.table(columns)


def _info(version: str, observations: list[Any], video: bool) -> dict[str, Any]:
    single = {
        name: {"dtype": "int64", "shape": [1], "names": None} for name in ("frame_index", "episode_index", "index")
    }
    features: dict[str, Any] = {
        "observation.state": {"dtype": "float32", "shape": [6], "names": NAMES},
        "action": {"dtype": "float32", "shape": [2], "names": {"motors": ["dx", "dy"]}},
        "timestamp": {"dtype": "float32", "shape": [1], "names": None},
        "task_index": {"dtype": "int64", "shape": [1], "names": None},
        "next.done": {"dtype": "bool", "shape": [1], "names": None},
    } | single
    if video:
        features["observation.images.top"] = {"dtype": "video", "shape": [48, 48, 3], "names": ["height", "width", "c"]}
    data = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
    return {
        "codebase_version": version, "robot_type": "so100", "total_episodes": len(observations),
        "total_frames": sum(map(len, observations)), "total_tasks": 2, "total_chunks": 1, "chunks_size": 1000,
        "fps": 10,        "splits": {"train": f"0:{len(observations)}"}, "data_path": data, "features": features,
    }  # fmt: skip


def write_lerobot_2(folder: Path, observations: list[Any], actions: list[Any], video: bool = True) -> Path:
    """A folder of version 2.1: a Parquet file, a video and a line of JSON for each episode."""
    root = folder / "so100_cube"
    table = _list_table(observations, actions, "observation.state", "episode_index")
    episode = np.array(table["episode_index"])
    (root / "meta").mkdir(parents=True)
    (root / "meta" / "info.json").write_text(json.dumps(_info("v2.1", observations, video)))
    (root / "meta" / "tasks.jsonl").write_text(
        "".join(json.dumps({"task_index": n, "task": task}) + "\n" for n, task in enumerate(("push", "lift")))
    )
    lines, stats = [], []
    for number, obs in enumerate(observations):
        file = root / f"data/chunk-000/episode_{number:06d}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        pyarrow.parquet.write_table(table.filter(pyarrow.array(episode == number)), file)
        lines.append({"episode_index": number, "tasks": [("push", "lift")[number % 2]], "length": len(obs)})
        stats.append({"episode_index": number, "stats": {"observation.state": {"min": obs.min(0).tolist()}}})
        if video:
            film = root / f"videos/chunk-000/observation.images.top/episode_{number:06d}.mp4"
            film.parent.mkdir(parents=True, exist_ok=True)
            film.write_bytes(b"film %d" % number)
    (root / "meta" / "episodes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (root / "meta" / "episodes_stats.jsonl").write_text("".join(json.dumps(line) + "\n" for line in stats))
    return root


def write_lerobot_3(folder: Path, observations: list[Any], actions: list[Any]) -> Path:
    """A folder of version 3.0: two Parquet files for all rows, tables of episodes and tasks, one video for all."""
    root = folder / "so100_cube_v3"
    table = _list_table(observations, actions, "observation.state", "episode_index")
    hugging = {"info": {"features": {name: {"_type": "Value"} for name in table.column_names}}}
    table = table.replace_schema_metadata({"huggingface": json.dumps(hugging)})
    episode = np.array(table["episode_index"])
    (root / "meta" / "episodes" / "chunk-000").mkdir(parents=True)
    (root / "data" / "chunk-000").mkdir(parents=True)
    info = _info("v3.0", observations, video=True) | {
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
    }
    (root / "meta" / "info.json").write_text(json.dumps(info))
    whole = np.concatenate(observations)
    stats = {"observation.state": {"min": whole.min(0).tolist(), "mean": whole.mean(0).tolist()}}
    (root / "meta" / "stats.json").write_text(json.dumps(stats))
    tasks = pyarrow.table({"task_index": [0, 1], "__index_level_0__": ["push", "lift"]})
    pyarrow.parquet.write_table(tasks, root / "meta" / "tasks.parquet")
    for number, mask in enumerate((episode < 2, episode >= 2)):
        pyarrow.parquet.write_table(
            table.filter(pyarrow.array(mask)), root / f"data/chunk-000/file-{number:03d}.parquet"
        )
    ends = np.cumsum([len(one) for one in observations])
    starts = ends - [len(one) for one in observations]
    rows = {
        "episode_index": range(len(observations)),
        "tasks": [[("push", "lift")[number % 2]] for number in range(len(observations))],
        "length": ends - starts, "data/chunk_index": [0] * len(observations),
        "data/file_index": [int(n >= 2) for n in range(len(observations))], "dataset_from_index": starts,
        "dataset_to_index": ends, "videos/observation.images.top/from_timestamp": starts / 10,
        "videos/observation.images.top/to_timestamp": ends / 10, "meta/episodes/chunk_index": [0] * len(observations),
        "meta/episodes/file_index": [0] * len(observations),
        "stats/observation.state/min": [one.min(0).tolist() for one in observations],
        "stats/observation.state/q50": [np.quantile(one, 0.5, axis=0).tolist() for one in observations],
        "stats/observation.state/count": [[len(one)] for one in observations],
        "stats/index/max": [[int(end) - 1] for end in ends],
        "stats/observation.images.top/mean": [[[[0.5]]] * 3 for _ in observations],
    }  # fmt: skip
    columns = {name: list(values) for name, values in rows.items()}
    pyarrow.parquet.write_table(pyarrow.table(columns), root / "meta" / "episodes" / "chunk-000" / "file-000.parquet")
    film = root / "videos/observation.images.top/chunk-000/file-000.mp4"
    film.parent.mkdir(parents=True)
    film.write_bytes(b"film")
    return root


def write_minari(folder: Path, observations: list[Any], actions: list[Any]) -> Path:
    """A dataset written by Minari itself, in the folder that `MINARI_DATASETS_PATH` names."""
    import minari
    from gymnasium import spaces
    from minari.data_collector.episode_buffer import EpisodeBuffer

    buffers = [
        EpisodeBuffer(
            seed=number,
            observations={"hand": obs[:, HAND], "cube": obs[:, CUBE]},
            actions=action,
            rewards=np.zeros(len(action)),
            terminations=np.zeros(len(action), bool),
            truncations=np.arange(len(action)) == len(action) - 1,
        )
        for number, (obs, action) in enumerate(zip(observations, actions, strict=True))
    ]
    box = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    minari.create_dataset_from_buffers(
        "test/cube-v0", buffers, observation_space=spaces.Dict({"hand": box, "cube": box}),
        action_space=spaces.Box(-1.0, 1.0, (2,), np.float32),
    )  # fmt: skip
    return folder / "test" / "cube-v0"


Writer = Callable[[Path, list[Any], list[Any]], Path]
WRITERS: dict[str, Writer] = {
    "robomimic": write_robomimic,
    "LIBERO": write_libero,
    "ManiSkill": write_maniskill,
    "D4RL HDF5": write_d4rl,
    "OGBench .npz": write_ogbench,
    ".npz": write_npz,
    "padded .npz": write_padded,
    "episodes of butfor": write_episodes,
    "Parquet table": write_parquet,
    "Feather table": write_feather,
    "LeRobot v2.1": write_lerobot_2,
    "LeRobot v3.0": write_lerobot_3,
    "Minari": write_minari,
}
"""by the name of the format"""
