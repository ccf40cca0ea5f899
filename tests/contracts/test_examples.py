"""The examples run: the single-file agent here, the others in the tests of what they show."""

import ast
import importlib.util
import math
import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import tyro
from gymnasium.envs.classic_control import PendulumEnv
from support.project import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
RUN_BY = {  # the test file that calls its main
    "cleanrl_ddpg": "contracts/test_examples.py",
    "franka_kitchen": "training/test_foreign_envs.py",
    "sb3_her": "integrations/test_sb3.py",
    "two_objects": "training/test_foreign_envs.py",
}


def load(name: str) -> Any:
    """Import an example without running its `main`."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_has_a_main_that_a_test_calls(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert "main" in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert f"python examples/{path.name}" in (ast.get_docstring(tree) or ""), "the docstring must show the command"
    tests = (ROOT / "tests" / RUN_BY[path.stem]).read_text(encoding="utf-8")
    assert re.search(rf"\b{path.stem}\b", tests)
    assert ".main(" in tests


BRIEF: dict[str, Any] = {
    "learning_starts": 120,
    "updates_per_step": 1,
    "batch_size": 16,
    "cai_learn_every": 200,
    "cai_batches": 3,
}


def test_the_single_file_agent_runs_in_a_goal_env() -> None:
    """Its result excludes the bonus, so it lies between -30 and 0."""
    example = load("cleanrl_ddpg")
    assert -30 <= example.main(example.Args(total_timesteps=500, cai_bonus=100.0, **BRIEF)) <= 0


def test_the_single_file_agent_runs_in_an_env_without_goals(capsys: pytest.CaptureFixture[str]) -> None:
    """Pendulum's reward per step lies between -16.3 and 0; the torque always has influence."""
    example = load("cleanrl_ddpg")
    env = {"env_id": "Pendulum-v1", "cai_entity": "velocity=2", "num_envs": 2}
    assert -200 * 16.3 < example.main(example.Args(total_timesteps=440, **env, **BRIEF)) < 0
    influence = [float(line.split()[-1]) for line in capsys.readouterr().out.splitlines()]
    assert influence[0] == 0  # nothing learned yet
    assert influence[-1] > 0
    printed = []
    for seed in (1, 1, 2):
        example.main(example.Args(total_timesteps=160, seed=seed, **env, **BRIEF | {"cai_learn_every": 100}))
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1] != printed[2]


class DoublePendulum(PendulumEnv):
    """Pendulum with actions in double precision, as some robots have."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.action_space = gymnasium.spaces.Box(-2.0, 2.0, (1,), np.float64)


def test_the_single_file_agent_acts_in_any_precision() -> None:
    gymnasium.register("butfor-tests/Double-v0", DoublePendulum, max_episode_steps=20)
    try:
        env = {"env_id": "butfor-tests/Double-v0", "cai_entity": "velocity=2", "num_envs": 2}
        example = load("cleanrl_ddpg")
        assert -20 * 16.3 < example.main(example.Args(total_timesteps=168, **env, **BRIEF)) < 0
    finally:
        gymnasium.registry.pop("butfor-tests/Double-v0")


def test_the_single_file_agent_takes_its_settings_from_the_command_line() -> None:
    example = load("cleanrl_ddpg")
    args = tyro.cli(example.Args, args=["--cai-entity", "red=2:4", "--cai-bonus", "0"])
    assert (args.cai_entity, args.cai_bonus) == ("red=2:4", 0.0)
    assert math.isnan(example.main(example.Args(total_timesteps=8)))  # no episode ended
