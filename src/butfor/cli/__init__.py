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
from collections.abc import Callable
from typing import Any

import tyro

from butfor import __version__
from butfor.cli import benchmark, collect, detect, evaluate, labels, report, study, train, why
from butfor.cli.data import augment, curate, demo, listing, score
from butfor.cli.options import refuse_repeated
from butfor.runs.folder import invoked_as
from butfor.runs.memory import describe_exhaustion
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
influence, CAI). Start with: butfor demo. `butfor --version` prints the version."""
STDOUT = 1  # its file descriptor
CLOSED_PIPE = 128 + 13  # the exit code that shells show for a program ended by SIGPIPE


def main() -> None:
    """Run the command in `sys.argv`.

    Exit code: 0 after success, 1 after an error (one sentence on stderr), 2 for arguments that cannot be parsed, 130
    after an interruption, `CLOSED_PIPE` where the output is no longer read.
    """
    arguments = sys.argv[1:]
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
        sys.exit(f"Error: {describe_exhaustion(error) or printable(str(error))}")
    except (RuntimeError, OverflowError) as error:
        if (exhausted := describe_exhaustion(error)) is not None:
            sys.exit(f"Error: {exhausted}")
        # Compared by name: these classes are in modules that import torch.
        if type(error).__name__ not in ("OutOfMemoryError", "EnvError", "StudyError"):
            raise
        from butfor.studies.units import FEWER, LESS, words_of

        sys.exit(
            f"Error: {printable(words_of(error, FEWER if arguments[0] in ('detect', 'train', 'study') else LESS))}"
        )


def _call(arguments: list[str]) -> None:
    """Run a command and flush its output here, where a closed pipe is noticed."""
    name = arguments[0] if arguments else "--help"
    code: Any = 0
    try:
        refuse_repeated(arguments)
        if name in ("--version", "-V"):
            print(f"butfor {__version__}")
        elif not name.startswith("-") and name not in COMMANDS:
            sys.exit(_refuse_command(name))
        elif name in ("detect", "train", "study"):  # these parse their own arguments
            COMMANDS[name](arguments[1:])
        else:
            tyro.extras.subcommand_cli_from_dict(
                COMMANDS, prog="butfor", description=DESCRIPTION, args=arguments or ["--help"]
            )
    except SystemExit as ended:  # after a help, or by rich where its output is not read
        code = CLOSED_PIPE if isinstance(ended.__context__, BrokenPipeError) else ended.code
    print(end="", flush=True)
    if code:
        sys.exit(code)


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
