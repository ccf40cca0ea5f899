"""The command line: parse, call, print. Everything heavy is imported by the command that needs it."""

import dataclasses
import os
import re
import select
import shlex
import signal
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from butfor import __version__
from butfor.cli.console import (
    live_progress,
    print_agreement,
    print_detection,
    print_episodes,
    print_evaluation,
)
from butfor.cli.score import score
from butfor.cli.study import study
from butfor.cli.train import choose_device, refuse_repeated, train_command
from butfor.runs.files import check_writable
from butfor.runs.folder import invoked_as

STDOUT = 1  # its file descriptor
CLOSED_PIPE = 128 + 13  # the exit code of a program whose output nobody reads any more (SIGPIPE), as shells show it
PRESET = "(default: the preset's)"
KLFormName = Literal["preset", "product", "variational", "mean", "mean_clip_product"]
Count = Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint=PRESET)]
AgentSeed = Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="")]
DESCRIPTION = """Would it have happened but for the action?

butfor measures, state by state, how much an agent's action influences each object of its world (causal action
influence, CAI). Start with: butfor detect slide --preset demo. `butfor --version` prints the version."""


def detect(
    world: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="WORLD")],
    /,
    preset: Literal["paper", "reduced", "demo"] = "paper",
    data: Annotated[Literal["preset", "scripted", "agents"], tyro.conf.arg(help_behavior_hint=PRESET)] = "preset",
    studies: Annotated[str | None, tyro.conf.arg(metavar="NAMES", help_behavior_hint=PRESET)] = None,
    seeds: Count = None,
    train_episodes: Count = None,
    validation_episodes: Count = None,
    test_episodes: Count = None,
    random_episodes: Count = None,
    agent_episodes: Count = None,
    agent_envs: Count = None,
    extra_episodes: Count = None,
    split_agent: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    max_epochs: Count = None,
    decay: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    actions: Count = None,
    form: Annotated[KLFormName, tyro.conf.arg(help_behavior_hint=PRESET)] = "preset",
    run: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER", help_behavior_hint="")] = None,
    pictures: bool = True,
    overwrite: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    device: Literal["auto", "cpu", "cuda"] = "auto",
) -> None:
    """How well can one tell, state by state, whether the action influences the object?

    Collects episodes, trains the influence model and its rivals over several seeds at once, compares every detector
    with the exact answer, and writes a run folder with a report. Called again, it goes on where it was cut off.

    Args:
        world: the world whose states are judged: slide or pick-and-place
        preset: settings to start from: the paper's, reduced ones for minutes on a GPU, or a demo for minutes on two
            cores
        data: who plays: scripted policies, or agents while they learn (DDPG with HER)
        studies: further questions, separated by commas: actions, decisions, ensembles, helps, noise, reference; or
            none
        seeds: independent models, trained together as one batch
        train_episodes: episodes to learn from
        validation_episodes: episodes that decide when training ends
        test_episodes: episodes to judge
        random_episodes: episodes of a random policy to judge besides
        agent_episodes: how long the agents learn that play (with data agents)
        agent_envs: episodes that each of these agents plays at once; more than one is faster
        extra_episodes: episodes of each further policy whose states the study of decisions judges
        split_agent: two tokens for the agent in the Transformer of pick-and-place, as in the authors' release
        max_epochs: of the influence models, and at most of the Transformer; training ends earlier for a seed whose
            validation error no longer improves
        decay: let the influence models' learning rate fall to zero over these epochs; a few hundred are then enough
        actions: K, the actions tried in each state
        form: how the KL of a Gaussian to a mixture is approximated
        run: the run folder (default: runs/ and a name made from the settings)
        pictures: render episodes, failures and a map of influence for the report (pick-and-place)
        overwrite: start anew where the run folder holds a run already
        device: where to compute; auto takes a GPU where there is one
    """
    from butfor.detection.experiment import run_detection
    from butfor.detection.settings import detection_preset
    from butfor.envs import ENVS, short_name
    from butfor.reporting.pictures import illustrate
    from butfor.runs.folder import run_name

    base = detection_preset(short_name(world) if world in ENVS.values() else world, preset)
    names = None if studies is None else tuple(name for name in re.split("[ ,]+", studies) if name not in ("", "none"))
    config = _changed(
        base,
        data=None if data == "preset" else data,
        studies=names,
        seeds=seeds,
        train_episodes=train_episodes,
        validation_episodes=validation_episodes,
        test_episodes=test_episodes,
        random_episodes=random_episodes,
        agent_episodes=agent_episodes,
        agent_envs=agent_envs,
        extra_episodes=extra_episodes,
        split_agent=split_agent or None,
        attention_fitting=_changed(
            base.attention_fitting, max_epochs=max_epochs and min(max_epochs, base.attention_fitting.max_epochs)
        ),
        fitting=_changed(base.fitting, max_epochs=max_epochs, decay=decay or None),
        scoring=_changed(base.scoring, actions=actions, form=None if form == "preset" else form),
    )
    folder = run or Path("runs") / run_name("detection", config)
    with live_progress() as progress:
        run_detection(config, folder, choose_device(device), overwrite, progress)
    print_detection(folder)
    with live_progress() as progress:
        page, lacking = illustrate(folder, pictures, progress)
    for sentence in lacking:
        print(sentence, file=sys.stderr)
    print(f"\nReport: {page}" if page else f"\nRun: {folder}")


def collect(
    world: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="WORLD")],
    /,
    policy: str = "random",
    episodes: int = 1000,
    labels: str = "",
    seed: int = 0,
    agent_seed: AgentSeed = None,
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
    from butfor.detection.collect import CollectConfig, collect_file
    from butfor.envs import short_name

    wanted = tuple(filter(None, re.split("[ ,]+", labels)))
    config = CollectConfig(world, policy, episodes, wanted, seed, agent_seed)
    path = out or Path("data") / f"{short_name(world).replace('/', '-')}-{Path(policy).name}.npz"
    with live_progress() as progress:
        data = collect_file(config, path, lambda done: progress("episodes", done, episodes, policy))
    print_episodes(data)
    print(f"Episodes: {path}")


def labels(file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")], /, pictures: int = 12) -> None:
    """Where do the labels of an episode file agree? A table, and a page with pictures of states where they differ.

    Args:
        file: an episode file with at least two labels
        pictures: states to draw for each pair of labels; those of slide are not drawn
    """
    from butfor.detection.agreement import compare, undrawn, write_agreement
    from butfor.rollouts.episodes import Episodes

    episodes = Episodes.load(file)
    print_agreement(compare(episodes))
    if pictures and (lack := undrawn(episodes)):
        print(f"No pictures: {lack}")
    print(f"Page: {write_agreement(episodes, file, pictures)}")


def train() -> None:
    """Train agents on a goal world: DDPG with hindsight replay, and influence as priority, bonus or exploration."""
    raise AssertionError("main hands `butfor train` to train_command")


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
    from butfor.training.evaluation import evaluate_run

    with live_progress() as progress:
        success = evaluate_run(run, episodes, choose_device(device), progress)
    print_evaluation(success, episodes)


def watch(
    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")],
    /,
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = None,
    seed: AgentSeed = None,
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
    from butfor.reporting.video import watch as render

    print(f"Video: {render(run, out, seed, episodes, first)}")


def report(
    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")],
    /,
    figures: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = None,
) -> None:
    """Write the report of a finished run anew.

    Args:
        run: the run folder
        figures: write figures for papers besides, as SVG and PNG
        out: the report, .html (default: report.html in the run folder); figures go beside it, to NAME-figures
    """
    from butfor.reporting.report import write_report

    if run.is_dir():
        check_writable(out or run / "report.html")
    print(f"Report: {write_report(run, out)}")
    if figures:
        from butfor.reporting.figures import write_figures
        from butfor.reporting.study_figures import write_training_figures
        from butfor.runs.reading import read_run

        write = write_training_figures if read_run(run)["kind"] == "training" else write_figures
        print(f"Figures: {write(run, out and out.with_name(f'{out.stem}-figures'))[0].parent}")


def _changed(config: Any, **changes: Any) -> Any:
    """A config with those fields replaced that were given."""
    return dataclasses.replace(config, **{name: value for name, value in changes.items() if value is not None})


def _interrupt(number: int, frame: Any) -> None:
    """A polite end by SIGTERM is treated like Ctrl-C."""
    raise KeyboardInterrupt


def _is_read() -> bool:
    """Whether somebody may still read the output; `head`, for one, closes its pipe once it has seen enough."""
    if not hasattr(select, "poll"):  # Windows
        return True
    look = select.poll()
    look.register(STDOUT, 0)
    return not look.poll(0)


def _call(arguments: list[str]) -> None:
    """Runs a command, then hands out what it printed: here, not as the interpreter ends, a closed pipe is noticed."""
    functions = (detect, score, train, evaluate, watch, collect, labels, study, report)
    commands: dict[str, Any] = {function.__name__: function for function in functions}
    try:
        if arguments in (["--version"], ["-V"]):
            print(f"butfor {__version__}")
        elif arguments[:1] == ["train"]:
            train_command(arguments[1:], train.__doc__ or "")
        else:
            if arguments[:1] != ["score"]:  # which takes --entity several times
                refuse_repeated(arguments)
            tyro.extras.subcommand_cli_from_dict(
                commands, prog="butfor", description=DESCRIPTION, args=arguments or ["--help"]
            )
    except SystemExit:  # after a help
        print(end="", flush=True)
        raise
    print(end="", flush=True)


def main() -> None:
    """The entry point: exit code 0 if all went well, 1 after an error's sentence, 130 after an interruption.

    Where nobody reads the output any more, the command ends without a word, by `CLOSED_PIPE`.
    """
    arguments = sys.argv[1:]
    signal.signal(signal.SIGTERM, _interrupt)
    if "" not in sys.path:  # the worlds of a module in the current folder; last, so that it hides no installed package
        sys.path.append("")
    if arguments[:1] == ["study"]:  # --ray takes an address, or stands alone
        arguments = re.sub(r"--ray(?=\0--|$)", "--ray=here", "\0".join(arguments)).split("\0")
    try:
        with invoked_as(shlex.join(["butfor", *sys.argv[1:]])):
            _call(arguments)
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # rich ends the program itself
            sys.exit(CLOSED_PIPE)
        raise
    except KeyboardInterrupt as stopped:
        if stopped.args:  # a run that was stopped at a good moment says how to go on
            print(f"\n{stopped}", file=sys.stderr)
            sys.exit(130)
        again = "the same command without --overwrite" if "--overwrite" in arguments else "the same command"
        again = "butfor train --resume RUN" if arguments[:1] == ["train"] else again
        print(f"\nInterrupted; nothing that was written is lost, and {again} goes on from there.", file=sys.stderr)
        sys.exit(130)
    except (ValueError, TypeError, OSError, FloatingPointError, ImportError, MemoryError) as error:
        if not _is_read():
            os.dup2(os.open(os.devnull, os.O_WRONLY), STDOUT)  # what is left would fail again as the interpreter ends
            if isinstance(error, BrokenPipeError):
                sys.exit(CLOSED_PIPE)
        sys.exit(f"Error: {error}")
    except RuntimeError as error:
        # of torch, rollout and units, which are slow to import
        if type(error).__name__ in ("OutOfMemoryError", "EnvError", "StudyError"):
            from butfor.studies.units import FEWER, LESS, words_of

            advice = FEWER if arguments[:1] in (["detect"], ["train"], ["study"]) else LESS
            sys.exit(f"Error: {words_of(error, advice)}")
        raise


if __name__ == "__main__":
    main()
