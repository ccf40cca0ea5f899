"""The command line: parse, call, print. Everything heavy is imported by the command that needs it."""

import dataclasses
import re
import signal
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from butfor import __version__
from butfor.console import live_progress, print_detection, print_training

PRESET = "(default: the preset's)"
KLFormName = Literal["preset", "product", "variational", "mean", "mean_clip_product"]
Count = Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint=PRESET)]
DESCRIPTION = """Would it have happened but for the action?

butfor measures, state by state, how much an agent's action influences each object of its world (causal action
influence, CAI). Start with: butfor detect slide --preset demo. `butfor --version` prints the version."""


def detect(
    world: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="WORLD")],
    /,
    preset: Literal["paper", "demo"] = "paper",
    seeds: Count = None,
    train_episodes: Count = None,
    validation_episodes: Count = None,
    test_episodes: Count = None,
    max_epochs: Count = None,
    actions: Count = None,
    form: Annotated[KLFormName, tyro.conf.arg(help_behavior_hint=PRESET)] = "preset",
    run: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER", help_behavior_hint="")] = None,
    overwrite: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    device: Literal["auto", "cpu", "cuda"] = "auto",
) -> None:
    """How well can one tell, state by state, whether the action influences the object?

    Collects episodes, trains the influence model and its rivals over several seeds at once, compares every detector
    with the exact answer, and writes a run folder with a report. Called again, it goes on where it was cut off.

    Args:
        world: the world whose states are judged: slide (or its Gymnasium id)
        preset: settings to start from: the paper's, or a short run of a minute or two
        seeds: independent models, trained together as one batch
        train_episodes: episodes to learn from
        validation_episodes: episodes that decide when training ends
        test_episodes: episodes to judge
        max_epochs: training ends earlier for a seed whose validation error no longer improves
        actions: K, the actions tried in each state
        form: how the KL of a Gaussian to a mixture is approximated
        run: the run folder (default: runs/ and a name made from the settings)
        overwrite: start anew where the run folder holds a run already
        device: where to compute; auto takes a GPU where there is one
    """
    from butfor.envs import short_name
    from butfor.record import run_name
    from butfor.study import DETECTION_PRESETS, run_detection

    base = DETECTION_PRESETS[preset]
    config = _changed(
        base,
        world=short_name(world),
        seeds=seeds,
        train_episodes=train_episodes,
        validation_episodes=validation_episodes,
        test_episodes=test_episodes,
        fitting=_changed(base.fitting, max_epochs=max_epochs),
        scoring=_changed(base.scoring, actions=actions, form=None if form == "preset" else form),
    )
    folder = run or Path("runs") / run_name("detection", config)
    with live_progress() as progress:
        run_detection(config, folder, choose_device(device), overwrite, progress)
    print_detection(folder)
    try:
        from butfor.report import write_report

        print(f"\nReport: {write_report(folder)}")
    except ImportError as error:  # a machine that only computes may lack what draws
        print(f"\nRun: {folder}\nNo report was written: {error}. Write it elsewhere with: butfor report {folder}")


def collect(
    world: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="WORLD")],
    /,
    policy: str = "random",
    episodes: int = 1000,
    labels: str = "",
    seed: int = 0,
    agent_seed: Count = None,
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = None,
) -> None:
    """Play episodes into a file, with labels that say whether the action matters in each state.

    The file is saved whole every 500 episodes; called again after an interruption, the command goes on from there.

    Args:
        world: slide, push, pick-and-place, rot-table, or the id of any Gymnasium goal world (random actions, no labels)
        policy: random (uniform actions), expert (scripted), noisy-expert (with noise and a fifth of random actions), or
            the run folder of a trained agent
        episodes: how many episodes
        labels: any of exact, heuristic, contact, separated by commas
        seed: the seed of the episodes' starts and of the policy
        agent_seed: which seed of a trained run acts (default: its first)
        out: the episode file (default: data/WORLD-POLICY.npz)
    """
    from butfor.collect import CollectConfig, collect_file
    from butfor.envs import short_name

    wanted = tuple(filter(None, labels.split(",")))
    config = CollectConfig(world, policy, episodes, wanted, seed, agent_seed)
    path = out or Path("data") / f"{short_name(world).replace('/', '-')}-{Path(policy).name}.npz"
    with live_progress() as progress:
        data = collect_file(config, path, lambda done: progress("episodes", done, episodes, policy))
    parts = [f"{name} {value[data.valid].mean():.1%}" for name, value in data.labels().items()]
    print(f"{len(data)} episodes, {int(data.length.sum()):,} states" + (f": {', '.join(parts)}" if parts else ""))
    print(f"Episodes: {path}")


def labels(file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")], /, pictures: int = 12) -> None:
    """Where do the labels of an episode file agree? A table, and a page with pictures of states where they differ.

    Args:
        file: an episode file of a Fetch world with at least two labels
        pictures: states to draw for each pair of labels
    """
    from butfor.agreement import compare, write_agreement
    from butfor.episodes import Episodes

    for row in compare(Episodes.load(file)):
        agree = row["both"] + row["neither"]
        print(f"{row['first']} and {row['second']}: agree in {agree:.2%} of {row['states']:,} states; both ", end="")
        print(f"{row['both']:.2%}, only {row['first']} {row['only_first']:.2%}, ", end="")
        print(f"only {row['second']} {row['only_second']:.2%}")
    print(f"Page: {write_agreement(file, pictures)}")


@dataclasses.dataclass
class RunOptions:
    """Where a training run goes and how long it may take."""

    run: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER", help_behavior_hint="")] = None
    """the run folder (default: runs/ and a name made from the settings)"""
    resume: Annotated[Path | None, tyro.conf.arg(metavar="RUN", help_behavior_hint="")] = None
    """go on with this run instead; only --episodes, --device, --time-limit and --keep-episodes may be given with it"""
    preset: Annotated[str, tyro.conf.arg(metavar="NAME")] = "paper"
    """settings to start from: paper (those for the world), intrinsic (influence is the only reward),
    fast (shorter rounds of the model), or a rival: vime, vime-object, vime-full, disagreement, disagreement-position,
    disagreement-full"""
    overwrite: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """start anew where the run folder holds a run already"""
    time_limit: Annotated[float | None, tyro.conf.arg(metavar="SECONDS", help_behavior_hint="")] = None
    """finish the episode, save and stop after so long"""
    keep_episodes: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = None
    """write every episode that is played to this .npz file"""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """where to compute; auto takes a GPU where there is one"""


@dataclasses.dataclass
class ResumeOptions:
    """Go on with a training run from its last checkpoint."""

    resume: Annotated[Path, tyro.conf.arg(metavar="RUN")]
    """the run folder"""
    episodes: Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="(default: as first asked for)")] = (
        None
    )
    """go on to more episodes than first asked for"""
    time_limit: Annotated[float | None, tyro.conf.arg(metavar="SECONDS", help_behavior_hint="")] = None
    """finish the episode, save and stop after so long"""
    keep_episodes: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = None
    """the file given to the run at first"""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """where to compute; auto takes a GPU where there is one"""


def _train(arguments: list[str]) -> None:
    """Parses and runs `butfor train`: its defaults depend on the world and the preset."""
    from butfor.envs import WORLDS
    from butfor.settings import Config, preset
    from butfor.train import resume as resume_run
    from butfor.train import train as train_run

    arguments = [re.sub(r"^--priority(?=$|=)", "--priority.kind", word) for word in arguments]
    if any(word.split("=")[0] == "--resume" for word in arguments):
        going_on = tyro.cli(ResumeOptions, args=arguments, prog="butfor train")
        device = choose_device(going_on.device)
        with live_progress() as progress:
            folder = resume_run(
                going_on.resume, device, episodes=going_on.episodes, time_limit=going_on.time_limit,
                keep_episodes=going_on.keep_episodes, progress=progress,
            )  # fmt: skip
    else:
        named = bool(arguments) and not arguments[0].startswith("-")
        world = arguments[0] if named else "pick-and-place"
        joined = " ".join(arguments)
        chosen = re.search(r"--preset[= ]([\w-]+)", joined)
        rival = re.search(r"--curiosity[= ](vime|disagreement)", joined)  # brings the paper's settings for it along
        name = chosen[1] if chosen else "paper"
        if rival and name != "paper" and not name.startswith(rival[1]):
            raise ValueError(f"--preset {name} and --curiosity {rival[1]} do not go together; choose one of them.")
        base = preset(world, rival[1] if rival and name == "paper" else name)

        def command(
            config: Annotated[Config, tyro.conf.arg(name="")] = base,
            options: Annotated[RunOptions, tyro.conf.arg(name="")] = RunOptions(),  # noqa: B008
        ) -> tuple[Config, RunOptions]:
            return config, options

        worlds = f"{', '.join(WORLDS)}, or the id of any Gymnasium goal world"
        text = f"{train.__doc__}\n\nusage: butfor train WORLD [options], where WORLD is {worlds}."
        given = arguments[1:] if named else arguments
        config, options = tyro.cli(command, args=given, prog=f"butfor train {world}", description=text)
        if config.world != base.world:
            raise ValueError(f"Which world, {world} or {config.world}? Name it once: butfor train WORLD.")
        if not named:
            raise ValueError(f"Which world? Say butfor train WORLD, where WORLD is {worlds}.")
        with live_progress() as progress:
            folder = train_run(
                config, options.run, choose_device(options.device), overwrite=options.overwrite,
                time_limit=options.time_limit, keep_episodes=options.keep_episodes, progress=progress,
            )  # fmt: skip
    if not print_training(folder):
        print(f"Stopped at the time limit; go on by: butfor train --resume {folder}")
    print(f"Run: {folder}")


def train() -> None:
    """Train agents on a goal world: DDPG with hindsight replay, and influence as priority, bonus or exploration."""
    raise AssertionError("main hands `butfor train` to _train")


def evaluate(
    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")],
    /,
    episodes: int = 100,
    device: Literal["auto", "cpu", "cuda"] = "auto",
) -> None:
    """How often does a trained agent succeed? Plays fresh episodes with every seed of a training run.

    Args:
        run: the run folder
        episodes: episodes of each seed
        device: where to compute; auto takes a GPU where there is one
    """
    from butfor.evaluation import evaluate_run

    with live_progress() as progress:
        success = evaluate_run(run, episodes, choose_device(device), progress)
    for seed, share in success.items():
        print(f"seed {seed}: {share:.3f}")
    values = list(success.values())
    mean = sum(values) / len(values)
    print(f"success {mean:.3f}, mean over {len(values)} seed(s), {episodes} episodes each")


def watch(
    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")],
    /,
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = None,
    seed: Count = None,
    episodes: int = 1,
    first: int = 0,
) -> None:
    """Render episodes of a trained agent to a video, with the influence of each step drawn in.

    Args:
        run: the run folder
        out: the video, .mp4 or .gif (default: watch.mp4 in the run folder)
        seed: which seed of the run acts (default: its first)
        episodes: how many episodes, one after the other
        first: the number of the first episode
    """
    from butfor.watch import watch as render

    print(f"Video: {render(run, out, seed, episodes, first)}")


def report(run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")], /) -> None:
    """Write the report of a finished run anew.

    Args:
        run: the run folder
    """
    from butfor.report import write_report

    print(f"Report: {write_report(run)}")


def choose_device(name: str) -> str:
    """The device to compute on; `auto` takes a GPU where there is one."""
    import torch

    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is cuda, but torch finds no CUDA GPU here; use --device cpu.")
    return "cuda" if name != "cpu" and torch.cuda.is_available() else "cpu"


def _changed(config: Any, **changes: Any) -> Any:
    """A config with those fields replaced that were given."""
    return dataclasses.replace(config, **{name: value for name, value in changes.items() if value is not None})


def _interrupt(number: int, frame: Any) -> None:
    """A polite end by SIGTERM is treated like Ctrl-C."""
    raise KeyboardInterrupt


def main() -> None:
    """The entry point: exit code 0 if all went well, 1 after an error's sentence, 130 after an interruption."""
    arguments = sys.argv[1:]
    if arguments in (["--version"], ["-V"]):
        print(f"butfor {__version__}")
        return
    signal.signal(signal.SIGTERM, _interrupt)
    functions = (detect, train, evaluate, watch, collect, labels, report)
    commands: dict[str, Any] = {function.__name__: function for function in functions}
    try:
        if arguments[:1] == ["train"]:
            return _train(arguments[1:])
        tyro.extras.subcommand_cli_from_dict(
            commands, prog="butfor", description=DESCRIPTION, args=arguments or ["--help"]
        )
    except KeyboardInterrupt as stopped:
        if stopped.args:  # a run that was stopped at a good moment says how to go on
            print(f"\n{stopped}", file=sys.stderr)
            sys.exit(130)
        again = "the same command without --overwrite" if "--overwrite" in arguments else "the same command"
        again = "butfor train --resume RUN" if arguments[:1] == ["train"] else again
        print(f"\nInterrupted; nothing that was written is lost, and {again} goes on from there.", file=sys.stderr)
        sys.exit(130)
    except (ValueError, TypeError, OSError, FloatingPointError, ImportError, MemoryError) as error:
        sys.exit(f"Error: {error}")
    except RuntimeError as error:
        if type(error).__name__ in ("OutOfMemoryError", "WorldError"):  # torch's and rollout's; both slow to import
            sys.exit(f"Error: {error}")
        raise


if __name__ == "__main__":
    main()
