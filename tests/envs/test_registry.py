"""Environments by name, and what is said where there is none."""

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import butfor.envs
from butfor.envs import ENVS, env_id, make_vector_env
from butfor.envs.slide import SlideVectorEnv
from butfor.runs.modules import module_imports

pytestmark = pytest.mark.filterwarnings("error")


def test_env_id() -> None:
    """Short names and Gymnasium ids resolve; mistakes are answered with what exists."""
    assert ENVS["slide"] == env_id("slide") == env_id("butfor/Slide-v0") == "butfor/Slide-v0"
    assert env_id("CartPole-v1") == "CartPole-v1"
    assert env_id("butfor.envs:butfor/Slide-v0") == "butfor/Slide-v0"
    with pytest.raises(ValueError, match=r"'Slyde'.*'slide'"):
        env_id("Slyde")
    with pytest.raises(ValueError, match="CartPole-v1"):
        env_id("cartpole-v1")
    for name in ("", "no such thing", "butfor.envs:Absent-v0"):
        with pytest.raises(ValueError, match=f"'{name}'"):
            env_id(name)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("absent_module:Env-v0", None, ["'absent_module'"]),
        ("json.absent:Env-v0", None, ["'json.absent'"]),
        ("a:b:c", None, ["'a:b'"]),
        ("needy_module:Env-v0", "import absent_package", ["ModuleNotFoundError", "absent_package"]),
        ("broken_module:Env-v0", "1 / 0", ["'broken_module'", "ZeroDivisionError"]),
        ("unfinished_module:Env-v0", "def", ["'unfinished_module'", "SyntaxError"]),
        ("empty_module:Slide-v0", "", ["'empty_module'", "Slide-v0", "'butfor/Slide-v0'"]),
    ],
)
def test_a_module_that_fails_is_named(
    name: str, text: str | None, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No such module, one whose own code fails, and one that does not register the environment."""
    monkeypatch.syspath_prepend(tmp_path)
    if text is not None:
        (tmp_path / f"{name.partition(':')[0]}.py").write_text(text)
    with pytest.raises(ValueError, match=name) as caught:
        env_id(name)
    for words in expected:
        assert words in str(caught.value)


def test_make_vector_env_disables_autoreset() -> None:
    """Native where the native class can do it, Gymnasium's SyncVectorEnv otherwise."""
    native = make_vector_env("slide", 4, max_episode_steps=7)
    assert isinstance(native, SlideVectorEnv)
    assert native.max_episode_steps == 7
    limited = make_vector_env("slide", 1)
    assert isinstance(limited, SlideVectorEnv)
    assert limited.max_episode_steps == 30
    for name in ("CartPole-v1", "Pendulum-v1"):  # a native class without the mode; no native class
        env = make_vector_env(name, 2)
        assert isinstance(env, SyncVectorEnv)
        assert env.metadata["autoreset_mode"] is AutoresetMode.DISABLED
        assert env.num_envs == 2
    assert native.metadata["autoreset_mode"] is AutoresetMode.DISABLED
    with pytest.raises(ValueError, match="num_envs is 0"):
        make_vector_env("slide", 0)


@pytest.mark.parametrize("kind", [RuntimeError, KeyError, AttributeError, AssertionError, OSError, ValueError])
def test_an_environment_that_cannot_be_made_is_named(kind: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**given: Any) -> Any:
        raise kind("no port")

    monkeypatch.setitem(gymnasium.registry, "tests/Fails-v0", EnvSpec("tests/Fails-v0", fail))
    with pytest.raises(ValueError, match=rf"^tests/Fails-v0 .*{kind.__name__}.*no port"):
        make_vector_env("tests/Fails-v0", 1)


def test_missing_arguments_and_classes_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def needs(table: int, **given: Any) -> Any:
        raise AssertionError(table)

    monkeypatch.setitem(gymnasium.registry, "tests/Needs-v0", EnvSpec("tests/Needs-v0", needs))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"TypeError: .*'table'.*kwargs=.*make_env="):
        make_vector_env("tests/Needs-v0", 1)
    monkeypatch.setitem(gymnasium.registry, "tests/Typo-v0", EnvSpec("tests/Typo-v0", "butfor.envs.slide:SlydeEnv"))
    with pytest.raises(ValueError, match=r"Typo-v0 .*'butfor.envs.slide:SlydeEnv'.*AttributeError"):
        make_vector_env("tests/Typo-v0", 1)
    with pytest.raises(TypeError, match="colour"):  # built-in environments report their own errors
        make_vector_env("slide", 1, colour="red")


def test_without_gymnasium_robotics_the_error_has_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium_robotics", None)
    monkeypatch.delitem(gymnasium.registry, "FetchPush-v4", raising=False)
    with pytest.raises(ValueError, match=r"'FetchPush-v4'.*butfor\[fetch\]"):
        env_id("FetchPush-v4")
    with pytest.raises(ValueError, match="Slied-v0") as caught:
        env_id("butfor.envs:Slied-v0")
    assert "pip" not in str(caught.value)


def test_registering_twice_is_silent() -> None:
    """Importing the package again neither warns nor overrides."""
    before = gymnasium.spec("butfor/Slide-v0")
    importlib.reload(butfor.envs)
    assert gymnasium.spec("butfor/Slide-v0") is before


def run_python(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_the_package_after_gymnasium_robotics_is_enough() -> None:
    first = "import gymnasium, gymnasium_robotics, butfor.envs; gymnasium.register_envs(gymnasium_robotics)"
    run_python(f"{first}; gymnasium.make('FetchPickAndPlace-v4').reset(seed=0)")


def test_gymnasium_robotics_works_with_this_mujoco() -> None:
    """After the fix, which changes only comparisons with numbers; importing the package does not load mujoco."""
    program = """
        import sys
        import butfor.envs
        assert "mujoco" not in sys.modules
        butfor.envs.make_vector_env("FetchPush-v4", 1).reset(seed=0)
        butfor.envs.fix_gymnasium_robotics()  # again
        import gymnasium, mujoco, numpy as np
        gymnasium.make("FetchPickAndPlace-v4").reset(seed=0)
        hinge = mujoco.mjtJoint.mjJNT_HINGE
        assert hinge == np.int32(3) and np.int32(3) == hinge and hinge == 3 and hinge == mujoco.mjtJoint(3)
        assert not hinge != np.int32(3) and hinge != np.int32(2) and hinge != mujoco.mjtGeom(3)
        assert hinge != None and hinge != "3" and hinge.__eq__(None) is NotImplemented and {hinge: 1}[hinge] == 1
        print("works")
    """
    program = "\n".join(line.strip() for line in program.splitlines())
    assert run_python(program).endswith("works\n")


def test_the_notice_of_gymnasium_robotics_is_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    notices = pytest.importorskip("farama_notifications").notifications
    monkeypatch.setitem(notices, "gymnasium_robotics", {"1.4.2": "A notice."})
    with pytest.raises(ValueError, match="no-such"):
        env_id("no-such-env")
    assert "gymnasium_robotics" not in notices


def test_without_mujoco_the_package_imports_and_says_what_to_install() -> None:
    for missing in ("mujoco", "gymnasium_robotics"):
        program = f"""
            import sys
            sys.modules["{missing}"] = None
            import gymnasium, butfor.envs
            gymnasium.make("butfor/Slide-v0").reset(seed=0)
            for id in ("butfor/FetchPush-v0", "butfor/FetchRotTable-v0"):
                try:
                    gymnasium.make(id)
                except ImportError as error:
                    print(error)
        """
        program = "\n".join(line.removeprefix(" " * 12) for line in program.splitlines())
        printed = run_python(program).splitlines()
        assert len(printed) == 2
        assert all("butfor[fetch]" in line for line in printed)


def test_the_module_of_a_runs_environment_is_imported_only_if_that_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run folder of somebody else names a module that happens to be in the current folder."""
    (tmp_path / "module_of_others.py").write_text("open('executed', 'w').close()")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with module_imports(False), pytest.raises(ValueError, match=r"'module_of_others'.*--import-module"):
        env_id("module_of_others:Env-v0")
    assert not (tmp_path / "executed").exists()
    with module_imports(True), pytest.raises(ValueError, match="does not register it"):
        env_id("module_of_others:Env-v0")
    assert (tmp_path / "executed").exists()


def test_environments_of_panda_gym_are_made_without_the_lines_that_pybullet_prints(
    capfd: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("panda_gym")
    capfd.readouterr()
    make_vector_env("panda_gym:PandaReach-v3", 2).close()
    assert capfd.readouterr().out == ""
