"""The command `butfor study`: every experiment of the paper by name, here or on a cluster."""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from butfor.cli.console import live_progress, print_study_states
from butfor.cli.train import choose_device
from butfor.runs.files import check_writable, read_json

if TYPE_CHECKING:
    from butfor.studies.paper import Study

Number = Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="(default: the study's)")]
OVERLAP = tyro.conf.arg(metavar="{acting,updates,model}", help_behavior_hint="(default: none)")


def study(
    action: Annotated[Literal["list", "run", "status", "films", "report"], tyro.conf.Positional],
    names: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="NAME", help_behavior_hint="")] = (),
    /,
    size: Literal["paper", "small"] = "paper",
    root: Path = Path("studies"),
    arms: Annotated[tuple[str, ...], tyro.conf.arg(metavar="LABEL", help_behavior_hint="(default: all)")] = (),
    seeds: Number = None,
    episodes: Number = None,
    worlds: Number = None,
    evaluate_every: Number = None,
    overlap: Annotated[tuple[Literal["acting", "updates", "model"], ...], OVERLAP] = (),
    ray: Annotated[str | None, tyro.conf.arg(metavar="[ADDRESS]", help_behavior_hint="")] = None,
    cpus: float = 1,
    gpus: float = 0,
    processes: int = 1,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    time_limit: Annotated[float | None, tyro.conf.arg(metavar="SECONDS", help_behavior_hint="")] = None,
    figures: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    rliable: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
) -> None:
    """Every table and figure of the paper as a named study: list, run, see how far it is, film its agents, report.

    A study is a set of runs, each in a folder named after its settings; studies share runs. Called again, `run` skips
    what is finished and goes on with what was cut off; what another process works on is left to it. Options of `run`
    change its runs: give them to `status`, too.

    Args:
        action: list (the studies), run, status (how far), films (of its agents), report (pages of what there is)
        names: studies by name; films and report without a name: all that were run
        size: the paper's, or small: minutes on two cores, too short to learn anything
        root: the folder of all runs, and of reports/
        arms: of `run` and `status`: only these runs of the studies, by the labels that `status` shows
        seeds: of every run
        episodes: of every training run
        worlds: episodes that a seed plays at once
        evaluate_every: episodes between evaluations
        overlap: what of training is done side by side
        ray: run on a Ray cluster: at ADDRESS, at RAY_ADDRESS, or one that is started here
        cpus: that a run needs, and the threads that it simulates with (on Ray)
        gpus: that a run needs (on Ray); a part of one lets runs share it
        processes: runs at once on each GPU, or on the CPU (without Ray); they share the processors
        device: where to compute; auto takes a GPU where there is one
        time_limit: of each training run: it saves and stops; `run` goes on with it later
        figures: of `report`: figures for papers besides, as SVG and PNG
        rliable: of `report`: the curves besides, in the layout of the library rliable
    """
    from butfor.studies.paper import STUDIES, make_study, study_states, write_study
    from butfor.studies.units import StudyError

    if time_limit is not None and time_limit < 0:
        raise ValueError(f"--time-limit is {time_limit:g}; give a number of seconds of at least 0.")
    if ray is None and (cpus, gpus) != (1, 0):
        raise ValueError("--cpus and --gpus are for --ray; without it all GPUs of this machine are used.")
    if processes < 1 or (ray is not None and processes != 1):
        raise ValueError(f"--processes is {processes}; give at least 1, and on Ray leave it to --cpus and --gpus.")
    if ray is not None and device == "cuda" and not gpus:
        raise ValueError("On Ray a run gets a GPU by --gpus 1 (or a part of one); --device cuda alone gives it none.")
    if ray in STUDIES:
        raise ValueError(f"Is {ray} the address of a cluster, or a study? Name studies before --ray.")
    if arms and action not in ("run", "status"):
        raise ValueError(f"--arms is for butfor study run and status, not for {action}.")
    if (figures or rliable) and action != "report":
        raise ValueError(f"--figures and --rliable are for butfor study report, not for {action}.")
    if action == "list":
        if names:
            raise ValueError(f"butfor study list shows all studies and takes no name; got {', '.join(names)}.")
        for name in STUDIES:
            described = make_study(name)
            runs = f"{len(described.arms)} run{'s' if len(described.arms) > 1 else ' '}"
            print(f"{name:<24}{runs:>7}  {described.about}")
        return
    if action in ("films", "report"):
        found = _recorded(action, names, size, root)
        if unread := _write_pages(root, found, action == "films", figures, rliable):
            raise ValueError(" ".join(unread))
        return
    if not names:
        raise ValueError(f"Which study? butfor study {action} NAME, where NAME is one of {', '.join(STUDIES)}.")
    options = {"seeds": seeds, "episodes": episodes, "num_envs": worlds, "evaluate_every": evaluate_every}
    chosen = [make_study(name, size, **options, overlap=overlap or None) for name in names]
    _check_arms(arms, chosen)
    problems: list[str] = []
    if action == "run":
        for place in (root, root / "studies"):  # the root itself may be a file
            check_writable(place)
        configs = [arm.config for one in chosen for arm in one.arms if not arms or arm.label in arms]
        for one in chosen:
            _tell_replaced(one, root, size)
        pages = [write_study(one, root, size).stem for one in chosen]
        try:
            with live_progress() as progress:
                if ray is not None:
                    from butfor.studies.cluster import run_on_ray

                    address = None if ray == "here" else ray
                    run_on_ray(
                        configs, root, address, cpus=cpus, gpus=gpus, time_limit=time_limit, progress=progress
                    )  # fmt: skip
                else:
                    from butfor.studies.units import run_here

                    run_here(configs, root, _devices(device) * processes, time_limit, progress)
        except StudyError as error:  # told in the end: the others are shown all the same
            problems.append(str(error))
        problems += [problem for one in chosen if one.name == "heatmaps" for problem in _draw_heatmaps(one, root)]
    states = {
        one.title: {label: state for label, state in study_states(one, root).items() if not arms or label in arms}
        for one in chosen
    }
    for title, those in states.items():
        print_study_states(title, those)
    each = [state for those in states.values() for state in those.values()]
    broken = {state.folder for state in each if state.state == "broken"}
    if broken and action == "status":
        problems.append(f"{len(broken)} run{'s' if len(broken) > 1 else ''} cannot be read; above is what to do.")
    if action == "run":
        others = {state.folder for state in each if state.worker}
        if others:
            runs = f"{len(others)} run{'s are' if len(others) > 1 else ' is'}"
            print(f"{runs} left to another process; the same command goes on with what that may leave behind.")
        begun = {state.folder for state in each if state.state == "begun"} - others
        if begun:
            runs = f"{len(begun)} run{'s are' if len(begun) > 1 else ' is'}"
            print(f"{runs} not finished yet; the same command goes on where it was cut off.")
        try:
            problems += _write_pages(root, pages)
        except ImportError as error:  # a machine that only computes may lack what draws
            print(f"No report was written: {error}. Write it elsewhere with: butfor study report --root {root}")
    if problems:
        raise StudyError(" ".join(problems))


def _check_arms(arms: tuple[str, ...], studies: "list[Study]") -> None:
    labels = [arm.label for study in studies for arm in study.arms]
    if unknown := [label for label in arms if label not in labels]:
        known = ", ".join(repr(label) for label in dict.fromkeys(labels))
        raise ValueError(f"--arms names {', '.join(map(repr, unknown))}; the arms are {known}.")


def _tell_replaced(study: "Study", root: Path, size: str) -> None:
    """Says which runs leave a study's page for those of other settings, and how to have that page again."""
    from butfor.studies.paper import record_path
    from butfor.studies.units import unit_name

    path = record_path(study.name, root, size)
    wanted = {unit_name(arm.config) for arm in study.arms}
    with suppress(OSError, ValueError, TypeError, KeyError):  # there is none yet, or none that can be read
        record = read_json(path)
        left = [str(arm["label"]) for arm in record["arms"]
                if arm["folder"] not in wanted and (root / arm["folder"] / "config.json").is_file()]  # fmt: skip
        if left:
            again = record["command"] or "the command that was given for them"
            print(
                f"{path} named runs of other settings: {', '.join(left)}. They stay in {root} and leave the page; to "
                f"have it again: {again} (what is finished is skipped); to keep both, give another --root.",
                flush=True,
            )


def _draw_heatmaps(study: "Study", root: Path) -> list[str]:
    """The heat maps of a study's finished runs, and what kept some of them from being drawn."""
    from butfor.reporting.heatmap import write_heatmap
    from butfor.runs.locks import BusyError, locked
    from butfor.studies.paper import study_states

    problems: list[str] = []
    with live_progress() as progress:
        for state in study_states(study, root).values():
            if state.state == "finished":
                try:
                    with suppress(BusyError), locked(state.folder):
                        write_heatmap(state.folder, progress)
                except ValueError as error:
                    problems.append(str(error))
    return problems


def _write_pages(
    root: Path, names: list[str], films: bool = False, figures: bool = False, rliable: bool = False
) -> list[str]:
    """Writes pages of studies and the index, and tells what of the studies cannot be read."""
    from butfor.reporting.study_page import write_study_index, write_study_report

    check_writable(root / "reports" / "index.html")
    problems: list[str] = []
    for name in names:
        try:
            if films:
                _film(root, name)
            print(f"Report: {write_study_report(root, name)}")
            if figures:
                print(f"Figures: {_figures(root, name)}")
            if rliable:
                print(f"For rliable: {_rliable(root, name)}")
        except ValueError as error:
            problems.append(str(error))
    try:
        print(f"Index: {write_study_index(root)}")
    except ValueError as error:  # it is written all the same, and names every study that cannot be read
        problems = [*(problem for problem in problems if problem not in str(error)), str(error)]
    return problems


def _recorded(action: str, names: tuple[str, ...], size: str, root: Path) -> list[str]:
    """The records of the studies named, or of all that were run; the small ones have names of their own."""
    from butfor.analysis.arms import study_names
    from butfor.studies.paper import STUDIES, make_study, record_path

    held, small = study_names(root), " --size small"
    found = [record_path(name, root, size).stem if name in STUDIES else name for name in names] or held
    for name in (name for name in found if name not in held):
        base = make_study(name.removesuffix("-small")).name  # an unknown one is answered with those that there are
        again = f"butfor study {action} {base} --root {root}"
        if name == base and f"{base}-small" in held:
            raise ValueError(f"{base} was run with --size small; add that: {again}{small}")
        if name != base and base in held:
            raise ValueError(f"{base} was not run with --size small; leave that out: {again}")
        wanted = f"{base} --root {root}{small if name != base else ''}"
        raise ValueError(f"{base} was not run yet in {root}; run it first by: butfor study run {wanted}")
    if not found:
        raise ValueError(f"{root} holds no studies yet; run one by: butfor study run NAME --root {root}")
    return found


def _figures(root: Path, name: str) -> str:
    """Where the figures of a study are, or why there are none, which keeps no other study from having its own."""
    from butfor.reporting.study_figures import write_study_figures

    lacking: list[str] = []
    try:
        paths = write_study_figures(root, name, lacking.append)
    except ValueError as error:
        return f"none of {name}: {error}"
    where = str(paths[0].parent) if paths else f"none of {name}" if lacking else f"none of {name}, for it has no curves"
    return "\n  ".join([where, *lacking])


def _rliable(root: Path, name: str) -> str:
    """The same of the curves for rliable."""
    from butfor.reporting.study_page import write_rliable

    try:
        path = write_rliable(root, name)
    except ValueError as error:
        return f"nothing of {name}: {error}"
    return str(path) if path else f"nothing, for the arms of {name} share no evaluation"


def _film(root: Path, name: str) -> None:
    """The films of a study, and a line for each of its training runs."""
    from butfor.reporting.video import film_study

    with live_progress() as progress:
        films = film_study(root, name, progress)
    print(f"Films of {name}:" if films else f"Films of {name}: none, for it trains no agents.")
    for film in films:
        files = ", ".join(path.name for path in film.files)
        print(f"  {film.label:<24}{f'{files}; ' if files else ''}{film.note}")


def _devices(name: str) -> list[str]:
    """All GPUs, one process each, or the CPU."""
    import torch

    chosen = choose_device(name)
    return [f"cuda:{index}" for index in range(torch.cuda.device_count())] if chosen == "cuda" else ["cpu"]
