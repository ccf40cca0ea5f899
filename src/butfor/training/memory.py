"""The memory that the settings of a training run need at least, known before anything is made or written."""

import torch

from butfor.runs.memory import check_memory, network_bytes
from butfor.training.goal_env import GoalEnv
from butfor.training.settings import Config

ENV_BYTES = 3_000  # of the smallest environment: random generator and state
ADVICE = "Use fewer --seeds or --num-envs, smaller networks and batches, or a smaller replay.capacity."


def check_training_memory(config: Config, goal_env: GoalEnv, device: torch.device | str) -> None:
    """Refuse settings whose arrays alone do not fit into memory, before the first of them is made.

    Raises:
        MemoryError: names what takes the memory, and how much.
    """
    if torch.device(device).type != "cpu":
        return  # torch says what a GPU lacks
    for what, needed in (_agent_parts(config, goal_env) | _signal_parts(config, goal_env)).items():
        check_memory(float(config.seeds * needed), f"{what} (for {config.seeds:,} seeds)", ADVICE)


def _agent_parts(config: Config, goal_env: GoalEnv) -> dict[str, float]:
    """Bytes of one seed by what needs them: environments, episodes and the agent."""
    obs, action, goal = goal_env.sizes
    agent = config.agent
    envs = max(config.num_envs, min(config.evaluation_episodes, goal_env.evaluation_envs))
    episode = (goal_env.steps + 1) * (obs + action + 2 * goal + 2) * 4
    stored = min(config.replay.capacity, config.episodes)
    rows = agent.updates * config.num_envs * agent.batch_size
    networks = (1 + agent.critics) * network_bytes(obs + goal, agent.width, agent.layers)
    return {
        f"{config.seeds * envs:,} environments": envs * (ENV_BYTES + episode),
        f"A replay buffer of {stored:,} episodes": stored * episode,
        f"An agent with {agent.layers:,} layers of {agent.width:,} units and {agent.critics:,} critics": networks,
        f"The {rows:,} transitions of one round of updates": rows * (2 * obs + action + goal) * 4,
    }


def _signal_parts(config: Config, goal_env: GoalEnv) -> dict[str, float]:
    """Bytes of one seed by what needs them: the model of the signal, and its uses."""
    obs, action, _ = goal_env.sizes
    parts: dict[str, float] = {}
    if "active" in config.use:
        tried = config.explore.candidates
        parts[f"The choice among {tried:,} actions in each step"] = goal_env.steps * tried * (action + 1) * 4
    if config.swap.share:
        parts[f"A table of {config.swap.candidates:,} swapped transitions"] = config.swap.candidates * 5 * 8
    if not config.use or config.signal not in ("cai", "shuffled", "vime", "disagreement"):
        return parts
    learned = {"vime": config.vime, "disagreement": config.disagreement}.get(config.signal, config.cai.network)
    batch = {
        "vime": max(config.vime.batch_size, config.vime.group),
        "disagreement": config.disagreement.batch_size,
    }.get(config.signal, config.cai.batch_size)
    copies = {"vime": config.vime.samples, "disagreement": config.disagreement.members}.get(config.signal, 1)
    parts[f"A model with {learned.layers:,} layers of {learned.width:,} units"] = network_bytes(
        obs + action, learned.width, learned.layers
    )
    parts[f"A batch of {batch:,} transitions, {copies:,} times"] = batch * copies * (obs + action) * 4
    if config.signal in ("cai", "shuffled"):
        tried = config.cai.scoring.actions
        parts[f"Comparing {tried:,} actions in one state"] = tried * (3 * learned.width + 6 * tried) * 4
    return parts
