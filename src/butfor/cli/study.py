"""`butfor study`: the paper's experiments by name, on this machine or on a Ray cluster."""

import dataclasses
import inspect
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from butfor.cli.console import live_progress, print_next
from butfor.cli.options import Device, Flag, Seconds, choose_device
from butfor.runs.files import check_writable, read_json
from butfor.runs.reading import is_run

if TYPE_CHECKING:
    from butfor.studies.paper import Study
    from butfor.studies.units import UnitState

Names = Annotated[tuple[str, ...], tyro.conf.Positional]
RECORDS = "studies that were run; small ones end in -small"
Records = Annotated[Names, tyro.conf.arg(metavar="NAME", help=RECORDS, help_behavior_hint="(default: all)")]
Number = Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="(default: the study's)")]
Root = Annotated[Path, tyro.conf.arg(help="folder of all runs, and of reports/")]


def study(arguments: list[str]) -> None:
    """Run the paper's experiments by name: list, run, status, films and report.

    A study is a set of runs, each in a folder named after its settings; studies share runs.
    """
    commands: dict[str, Any] = {"list": list_studies, "run": run, "status": status, "films": films, "report": report}
    text = inspect.getdoc(study)
    tyro.extras.subcommand_cli_from_dict(commands, prog="butfor study", description=text, args=arguments or ["--help"])


@dataclasses.dataclass(frozen=True)
class Selection:
    """Which runs of which studies: the options that `run` and `status` share."""

    names: Annotated[Names, tyro.conf.arg(metavar="NAME", help_behavior_hint="")] = ()
    """studies; `butfor study list` lists them"""
    size: Literal["paper", "small"] = "paper"
    """small: minutes on two cores, too short to learn anything"""
    root: Root = Path("studies")
    arms: Annotated[tuple[str, ...], tyro.conf.arg(metavar="LABEL", help_behavior_hint="(default: all)")] = ()
    """labels of single runs of the studies, as status shows them"""
    seeds: Number = None
    """seeds of every run"""
    episodes: Number = None
    """episodes of every training run"""
    num_envs: Number = None
    """environments that a seed plays in at once"""
    evaluate_every: Number = None
    """episodes between evaluations"""
    overlap: Annotated[
        tuple[Literal["acting", "updates", "model"], ...], tyro.conf.arg(help_behavior_hint="(default: the study's)")
    ] = ()
    """parts of training that run at the same time"""

    def studies(self) -> "list[Study]":
        """Make the studies, with the changed settings."""
        from butfor.studies.paper import STUDIES, make_study

        if not self.names:
            raise ValueError(f"No study was given. The studies are {', '.join(STUDIES)}.")
        settings = ("seeds", "episodes", "num_envs", "evaluate_every", "overlap")
        changes = {name: value for name in settings if (value := getattr(self, name)) not in (None, ())}
        studies = [make_study(name, self.size, **changes) for name in self.names]
        labels = [label for one in studies for label in one.arms]
        if unknown := [label for label in self.arms if label not in labels]:
            known = ", ".join(repr(label) for label in dict.fromkeys(labels))
            raise ValueError(f"--arms names {', '.join(map(repr, unknown))}; the arms are {known}.")
        return studies

    def includes(self, label: str) -> bool:
        """Whether an arm is selected."""
        return not self.arms or label in self.arms

    def print_states(self, studies: "list[Study]") -> "list[UnitState]":
        """Print how far each selected run is, and return it."""
        from butfor.studies.paper import study_states

        found: list[UnitState] = []
        for one in studies:
            print(f"{one.title}:")
            for label, state in study_states(one, self.root).items():
                if not self.includes(label):
                    continue
                played = f", {state.played:,} of {state.asked:,} episodes" if state.asked and not state.words else ""
                worker = f", in progress by {state.worker}" if state.worker else ""
                print(f"  {label:<24}{state.state}{played}{worker}  {state.folder}")
                if state.words:
                    print(f"    {state.words}")
                found.append(state)
        return found


Selected = Annotated[Selection, tyro.conf.arg(name="")]


def list_studies() -> None:
    """List the studies: name, number of runs, and what they compare."""
    from butfor.studies.paper import STUDIES, make_study

    for name in STUDIES:
        described = make_study(name)
        runs = f"{len(described.arms)} run{'s' if len(described.arms) > 1 else ' '}"
        print(f"{name:<24}{runs:>7}  {described.about}")
    print_next("butfor study run NAME")


def run(
    selection: Selected,
    ray: Flag = False,
    ray_address: Annotated[str | None, tyro.conf.arg(metavar="ADDRESS", help_behavior_hint="")] = None,
    cpus: float = 1,
    gpus: float = 0,
    processes: int = 1,
    device: Device = "auto",
    time_limit: Seconds = None,
) -> None:
    """Run studies. Finished runs are skipped and interrupted ones resumed; runs of other processes are left to them.

    Args:
        ray: run on a Ray cluster: the one at --ray-address or RAY_ADDRESS, or one started on this machine
        ray_address: address of the Ray cluster; implies --ray
        cpus: CPU cores of each run, and its simulation threads (with --ray)
        gpus: GPUs of each run (with --ray); runs share a GPU with a fraction
        processes: runs at once on each GPU, or on the CPU (without --ray)
    """
    from butfor.runs.stopping import check_time_limit
    from butfor.studies.paper import write_study
    from butfor.studies.units import StudyError, run_here

    on_ray = ray or ray_address is not None
    check_time_limit(time_limit)
    if not on_ray and (cpus, gpus) != (1, 0):
        raise ValueError("--cpus and --gpus need --ray; without it all GPUs of this machine are used.")
    if processes < 1 or (on_ray and processes != 1):
        raise ValueError(f"--processes is {processes}; expected at least 1, and with --ray use --cpus and --gpus.")
    if on_ray and device == "cuda" and not gpus:
        raise ValueError("--device cuda: with --ray a run gets a GPU, or a fraction of one, with --gpus.")
    root = selection.root
    studies = selection.studies()
    check_writable(root / "studies")
    for one in studies:
        _print_replaced(one, root, selection.size)
    records = [write_study(one, root, selection.size).stem for one in studies]
    configs = [config for one in studies for label, config in one.arms.items() if selection.includes(label)]
    problems: list[str] = []
    try:
        with live_progress() as progress:
            if on_ray:
                from butfor.studies.cluster import run_on_ray

                run_on_ray(configs, root, ray_address, cpus=cpus, gpus=gpus, time_limit=time_limit, progress=progress)
            else:
                run_here(configs, root, _devices(device) * processes, time_limit, progress)
    except StudyError as error:  # raised at the end: the other runs are shown first
        problems.append(str(error))
    problems += [problem for one in studies if one.name == "heatmaps" for problem in _draw_heatmaps(one, root)]
    states = selection.print_states(studies)
    unfinished = {state.folder for state in states if state.worker or state.state == "begun"}
    if unfinished:
        print(f"Runs that are not finished: {len(unfinished)}.")
    try:
        problems += _write_pages(root, records)
    except ImportError as error:  # a machine that only computes may lack what draws
        print(f"No report was written: {error}. Write it elsewhere with: butfor study report --root {root}")
    if problems:
        raise StudyError(" ".join(problems))
    print_next("the same command, to resume them" if unfinished else f"butfor study films --root {root}")


def status(selection: Selected) -> None:
    """Show how far each run of studies is. Give the options that `run` was given."""
    states = selection.print_states(selection.studies())
    broken = {state.folder for state in states if state.state == "broken"}
    if broken:
        raise ValueError(f"Unreadable runs: {len(broken)}. See above what to do.")
    finished = all(state.state == "finished" for state in states)
    report_command = f"butfor study report --root {selection.root}"
    print_next(report_command if finished else "butfor study run, with the same options")


def films(names: Records = (), /, root: Root = Path("studies")) -> None:
    """Render films of the agents of studies, and write the pages that show them."""
    _report(names, root, films=True)


def report(names: Records = (), /, root: Root = Path("studies"), figures: Flag = False, rliable: Flag = False) -> None:
    """Write the pages of studies, and the index of all studies.

    Args:
        figures: also write figures for papers, as SVG and PNG
        rliable: also write the curves in the layout of the library rliable
    """
    _report(names, root, figures=figures, rliable=rliable)


def _report(names: tuple[str, ...], root: Path, **parts: bool) -> None:
    """Write the pages of studies, or of all studies that were run."""
    from butfor.analysis.arms import study_names

    recorded = study_names(root)
    missing = [name for name in names if name not in recorded]
    if missing or not recorded:
        known = f"{root} contains {', '.join(recorded) or 'no studies'}"
        raise ValueError(f"{' '.join(missing) or 'Nothing'} was run; {known}. Use: butfor study run NAME --root {root}")
    if problems := _write_pages(root, names or recorded, **parts):
        raise ValueError(" ".join(problems))
    print_next(f"open {root / 'reports' / 'index.html'} in a browser")


def _write_pages(
    root: Path, names: Sequence[str], films: bool = False, figures: bool = False, rliable: bool = False
) -> list[str]:
    """Write pages of studies and the index; return what could not be read."""
    from butfor.reporting.study_page import write_study_index, write_study_report

    check_writable(root / "reports" / "index.html")
    problems: list[str] = []
    for name in names:
        try:
            if films:
                _film(root, name)
            print(f"Report: {write_study_report(root, name)}")
        except ValueError as error:
            problems.append(str(error))
            continue
        for wanted, what, write in ((figures, "Figures", _figures), (rliable, "For rliable", _rliable)):
            if wanted:
                try:
                    print(f"{what}: {write(root, name)}")
                except ValueError as error:
                    print(f"{what}: none of {name}: {error}")
    try:
        print(f"Index: {write_study_index(root)}")
    except ValueError as error:  # the index is written all the same, and the error names all unreadable studies
        problems = [*(problem for problem in problems if problem not in str(error)), str(error)]
    return problems


def _film(root: Path, name: str) -> None:
    """Render the films of a study, and print a line for each training run."""
    from butfor.reporting.video import film_study

    with live_progress() as progress:
        films = film_study(root, name, progress)
    print(f"Films of {name}:" if films else f"Films of {name}: none, it trains no agents")
    for film in films:
        files = ", ".join(path.name for path in film.files)
        print(f"  {film.label:<24}{f'{files}; ' if files else ''}{film.note}")


def _figures(root: Path, name: str) -> str:
    """Write the figures of a study; return their folder, or none, and what is missing."""
    from butfor.reporting.figures import write_study_figures

    missing: list[str] = []
    paths = write_study_figures(root, name, missing.append)
    return "\n  ".join([str(paths[0].parent) if paths else f"none of {name}", *missing])


def _rliable(root: Path, name: str) -> str:
    """Write the curves for rliable; return their file, or why there is none."""
    from butfor.reporting.study_page import write_rliable

    return str(write_rliable(root, name) or f"none of {name}: its arms share no evaluation")


def _print_replaced(study: "Study", root: Path, size: str) -> None:
    """Print which runs leave a study's page for runs with other settings, and how to get that page back."""
    from butfor.studies.paper import record_path
    from butfor.studies.units import unit_name

    path = record_path(study.name, root, size)
    wanted = {unit_name(config) for config in study.arms.values()}
    with suppress(OSError, ValueError, TypeError, KeyError):  # there is no record yet, or it is damaged
        record = read_json(path)
        left = [arm["label"] for arm in record["arms"] if arm["folder"] not in wanted and is_run(root / arm["folder"])]
        if left:
            again = record["command"] or "the command that was used for them"
            print(f"{path} lists runs with other settings: {', '.join(left)}. They leave the page but stay in {root}.")
            print(f"To show them again: {again} (or use another --root for the new ones).", flush=True)


def _draw_heatmaps(study: "Study", root: Path) -> list[str]:
    """Draw the heat maps of a study's finished runs; return the problems."""
    from butfor.reporting.heatmap import write_heatmap
    from butfor.runs.locks import BusyError, locked
    from butfor.studies.paper import study_states

    problems: list[str] = []
    finished = [state.folder for state in study_states(study, root).values() if state.state == "finished"]
    with live_progress() as progress:
        for folder in finished:
            try:
                with suppress(BusyError), locked(folder):
                    write_heatmap(folder, progress)
            except ValueError as error:
                problems.append(str(error))
    return problems


def _devices(name: str) -> list[str]:
    """Return all GPUs, or the CPU."""
    import torch

    if choose_device(name) == "cpu":
        return ["cpu"]
    return [f"cuda:{index}" for index in range(torch.cuda.device_count())]
