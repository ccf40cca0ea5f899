"""Episodes of butfor as a Minari dataset, with the labels of influence in its infos."""

import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

from butfor.datasets.files import DATASET_ID, minari_root
from butfor.envs import env_id, make_vector_env
from butfor.rollouts.episodes import STATES, Episodes


def check_minari_id(dataset_id: str) -> Path:
    """The folder of a new Minari dataset; refuses an id that is not valid or taken, before episodes are played."""
    if not DATASET_ID.fullmatch(dataset_id):
        raise ValueError(f"{dataset_id!r} is not a valid id of a Minari dataset; expected one such as mine/push-v0.")
    folder = minari_root() / dataset_id
    if folder.exists():
        raise FileExistsError(f"{folder} already exists; choose another id, or remove it with: minari delete.")
    return folder


def export_minari(episodes: Episodes, dataset_id: str, env_name: str, policy: str = "") -> Path:
    """Write episodes as a new Minari dataset.

    Args:
        episodes: with labels, if they have any.
        dataset_id: the id of the dataset, such as mine/push-v0.
        env_name: the environment in which they were played.
        policy: who played them, for the description.

    Returns:
        The folder of the dataset. Observations are dictionaries with `observation`, `achieved_goal` and `desired_goal`.
        Each label is `infos["label_NAME"]`, and contact is `infos["contact"]`, of shape (T + 1,): the last state, in
        which no action was taken, is False. Rewards are those of the goal-conditioned environment, which
        `MinariDataset.recover_environment()` makes again.

    Raises:
        FileExistsError: the dataset exists.
        ImportError: Minari is not installed.
    """
    folder = check_minari_id(dataset_id)
    try:
        import minari
        from minari.data_collector.episode_buffer import EpisodeBuffer
    except ImportError as error:
        raise ImportError("Minari is not installed; install it with: pip install 'butfor[minari]'.") from error
    env: Any = make_vector_env(env_name, 1)
    has_own = hasattr(env, "compute_reward")  # a vector environment of butfor; others hold single environments
    reward_of = env.compute_reward if has_own else env.envs[0].get_wrapper_attr("compute_reward")
    buffers = []
    for place, steps in enumerate(episodes.length.tolist()):
        states = {name: getattr(episodes, name)[place, : steps + 1] for name in STATES}
        infos = {
            name if name == "contact" else f"label_{name}": np.append(label[place, :steps], False)
            for name, label in episodes.labels().items()
        }
        achieved, desired = (states[name][1:] for name in ("achieved_goal", "desired_goal"))
        seed = None if episodes.reset_seed is None else int(episodes.reset_seed[place])
        buffers.append(
            EpisodeBuffer(
                id=place,
                seed=seed,
                observations=states,
                actions=episodes.action[place, :steps],
                rewards=np.asarray(reward_of(achieved, desired, {}), np.float32).reshape(-1),
                terminations=np.zeros(steps, bool),
                truncations=np.arange(steps) == steps - 1,
                infos=infos,
            )
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Minari asks for an author and the like
        minari.create_dataset_from_buffers(
            dataset_id,
            buffers,
            env=_stored_spec(env_name),
            observation_space=env.single_observation_space,
            action_space=env.single_action_space,
            algorithm_name=policy or None,
            description=f"Episodes of {env_name} collected with butfor, with labels of influence in infos.",
        )
    env.close()
    return folder


def _stored_spec(env_name: str) -> EnvSpec | None:
    """The environment as Minari stores it; None if it is made by a function, which has no text."""
    spec = gymnasium.spec(env_id(env_name))
    return spec if isinstance(spec.entry_point, str) else None
