"""Training agents that use a signal of influence. Read `loop.py` first: the whole loop is in that file.

`run.py` fills, evaluates and resumes run folders around it. `settings.py` holds all settings and presets, `agents/`
what acts and learns, `signals/` what scores states, `replay.py` the replay buffer, `priorities.py` which steps are
drawn, `bonus.py` what is added to the reward, `exploration.py` which actions are tried, and `goal_env.py` what is known
of the environment.
"""

from butfor.training.agents import Agent, AgentConfig, TrainedPolicy, load_policy
from butfor.training.goal_env import GoalEnv, open_goal_env
from butfor.training.loop import Trainer
from butfor.training.run import evaluate_run, resume, train
from butfor.training.settings import Config, preset
from butfor.training.signals import Signal

__all__ = [
    "Agent", "AgentConfig", "Config", "GoalEnv", "Signal", "TrainedPolicy", "Trainer", "evaluate_run", "load_policy",
    "open_goal_env", "preset", "resume", "train",
]  # fmt: skip
