"""The command line, `butfor COMMAND`: its files parse, call the library and print.

Read `evaluate.py` first. `settings.py` makes options of a config, for `detect` and `train`. Everything heavy (torch,
plotly, gymnasium) is imported inside the command that needs it.
"""

import difflib
import os
import select
import shlex
import signal
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TextIO

import tyro

from butfor import __version__
from butfor.cli import benchmark, collect, detect, evaluate, labels, report, study, train, why
from butfor.cli.console import FoldedLines, fold
from butfor.cli.data import augment, curate, demo, listing, score
from butfor.cli.options import refuse_repeated
from butfor.runs.folder import invoked_as
from butfor.runs.memory import describe_exhaustion
from butfor.runs.modules import module_imports
from butfor.runs.printing import printable

__all__ = ["main"]

COMMANDS: dict[str, Callable[..., None]] = {
    "demo": demo.demo,
    "detect": detect.detect,
    "data": listing.data,
    "score": score.score,
    "curate": curate.curate,
    "augment": augment.augment,
    "train": train.train,
    "evaluate": evaluate.evaluate,
    "watch": evaluate.watch,
    "view": evaluate.view,
    "collect": collect.collect,
    "labels": labels.labels,
    "why": why.why,
    "study": study.study,
    "benchmark": benchmark.benchmark,
    "report": report.report,
    "compare": report.compare,
}
DESCRIPTION = """Would it have happened but for the action?

butfor measures, state by state, how much an agent's action influences each object of its environment (causal action
influence, CAI).

Start with: butfor demo. `butfor --version` prints the version."""
STDOUT = 1  # its file descriptor
CLOSED_PIPE = 128 + 13  # the exit code that shells show for a program ended by SIGPIPE
SPINS = 1000  # about 40 microseconds; GNU OpenMP's own default is 300,000


def main() -> None:
    """Run the command in `sys.argv`.

    Exit code: 0 after success, 1 after an error (one sentence on stderr), 2 for arguments that cannot be parsed, 130
    after an interruption, `CLOSED_PIPE` where the output is no longer read.
    """
    limit_spinning()
    with other_warnings_last(), module_imports(False):
        _run(sys.argv[1:])


def limit_spinning() -> None:
    """Let threads of torch, which is not imported yet, sleep soon while they wait for each other.

    By default they wait busily, for milliseconds. Where programs share the processors, the thread that is waited for
    then has none, and training is a hundred times slower. The number of threads, and so each bit, stays the same.
    """
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & set(os.environ):
        os.environ["GOMP_SPINCOUNT"] = str(SPINS)


@contextmanager
def other_warnings_last() -> Iterator[None]:
    """Print warnings as sentences; those of other packages once, when the command has answered."""
    held: dict[str, None] = {}
    show_now = warnings.showwarning

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_globals.get("__name__") == "warnings":
            frame = frame.f_back
        package = "" if frame is None else str(frame.f_globals.get("__name__")).split(".")[0]
        if package == "butfor" and category is UserWarning:
            # where in the source it comes from helps no user
            print(f"Warning: {printable(str(message))}", file=sys.stderr)
        elif package == "butfor":
            show_now(message, category, filename, lineno, file, line)
        else:
            held[f"  {package}: {' '.join(printable(str(message)).split())}"] = None

    warnings.showwarning = show
    try:
        yield
    except SystemExit as ended:
        if isinstance(ended.code, str):  # else the interpreter would print it after the warnings
            print(ended.code, file=sys.stderr)
            ended.code = 1
        raise
    finally:
        warnings.showwarning = show_now
        if held:
            print("\n".join(["Warnings of other packages:", *held]), file=sys.stderr)


def _run(arguments: list[str]) -> None:
    """Run a command; errors become a sentence and an exit code."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C
    if "" not in sys.path:  # environments of a module in the current folder; last, to hide no installed package
        sys.path.append("")
    try:
        with invoked_as(shlex.join(["butfor", *arguments])):
            _call(arguments)
    except KeyboardInterrupt as stopped:
        again = "butfor train --resume RUN" if arguments[:1] == ["train"] else "the same command"
        without = " without --overwrite" if "--overwrite" in arguments else ""
        advice = f"Interrupted. What was written so far is kept; resume with {again}{without}."
        print(f"\n{stopped if stopped.args else advice}", file=sys.stderr)
        sys.exit(130)
    except (ValueError, TypeError, OSError, FloatingPointError, ImportError, MemoryError) as error:
        if not _is_read():
            os.dup2(os.open(os.devnull, os.O_WRONLY), STDOUT)  # what is left would fail again as the interpreter ends
            if isinstance(error, BrokenPipeError):
                sys.exit(CLOSED_PIPE)
        sys.exit(fold(f"Error: {describe_exhaustion(error) or printable(str(error))}", sys.stderr))
    except (RuntimeError, OverflowError) as error:
        if (exhausted := describe_exhaustion(error)) is not None:
            sys.exit(fold(f"Error: {exhausted}", sys.stderr))
        # Compared by name: these classes are in modules that import torch.
        if type(error).__name__ not in ("OutOfMemoryError", "EnvError", "StudyError"):
            raise
        from butfor.studies.units import FEWER, LESS, words_of

        advice = FEWER if arguments[0] in ("detect", "train", "study") else LESS
        sys.exit(fold(f"Error: {printable(words_of(error, advice))}", sys.stderr))


def _call(arguments: list[str]) -> None:
    """Run a command and flush its output here, where a closed pipe is noticed."""
    name = arguments[0] if arguments else "--help"
    code: Any = 0
    try:
        refuse_repeated(arguments)
        if not arguments or {"-h", "--help", "--help-all"} & set(arguments):
            sys.stdout = FoldedLines(sys.stdout)
        if name in ("--version", "-V"):
            print(f"butfor {__version__}")
        elif not name.startswith("-") and name not in COMMANDS:
            sys.exit(_refuse_command(name))
        elif name in ("detect", "train", "study"):  # these parse their own arguments
            COMMANDS[name](arguments[1:])
        else:
            tyro.extras.subcommand_cli_from_dict(
                COMMANDS if name in COMMANDS else {one: _summary(command) for one, command in COMMANDS.items()},
                prog="butfor",
                description=DESCRIPTION,
                args=arguments or ["--help"],
            )
    except SystemExit as ended:  # after a help, or by rich where its output is not read
        code = CLOSED_PIPE if isinstance(ended.__context__, BrokenPipeError) else ended.code
    finally:
        if isinstance(sys.stdout, FoldedLines):
            sys.stdout = sys.stdout.stream
    print(end="", flush=True)
    if code:
        sys.exit(code)


def _summary(command: Callable[..., None]) -> Callable[[], None]:
    """A function with the first paragraph of a command's description, for the list of commands."""

    def summary() -> None: ...

    summary.__doc__ = (command.__doc__ or "").partition("\n\n")[0]
    return summary


def _refuse_command(name: str) -> int:
    """Say which command a user may have meant; returns the exit code."""
    near = difflib.get_close_matches(name, COMMANDS, n=2, cutoff=0.5)
    meant = f" Did you mean {' or '.join(f'butfor {one}' for one in near)}?" if near else ""
    listed = textwrap.fill(f"The commands are {', '.join(COMMANDS)}.", 79)
    print(f"Error: There is no command {name!r}.{meant}\n{listed}", file=sys.stderr)
    return 2


def _is_read() -> bool:
    """Whether stdout still has a reader; `head`, for one, closes its pipe early."""
    poll = select.poll()
    poll.register(STDOUT, 0)
    return not poll.poll(0)
