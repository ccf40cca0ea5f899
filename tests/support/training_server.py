"""A process that has loaded everything and forks `butfor` commands, which then start in milliseconds."""

import importlib
import json
import os
import signal
import subprocess
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from support.project import ROOT


class Server:
    """Runs one command at a time in a child process, which can be stopped by signals."""

    def __init__(self, folder: Path) -> None:
        """`folder` is where the commands run and where `stdout` and `stderr` of the last one are."""
        self.folder, self.child = folder, 0
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests'}"}
        self.process = subprocess.Popen(
            [sys.executable, __file__], cwd=folder, env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def start(self, *arguments: str) -> int:
        """Start `butfor` with these arguments; return its process id."""
        assert self.process.stdin is not None
        for name in ("stdout", "stderr"):
            (self.folder / name).write_text("")
        self.process.stdin.write(json.dumps(arguments) + "\n")
        self.process.stdin.flush()
        self.child = int(self._line())
        return self.child

    def signal(self, number: int) -> None:
        """Send a signal, unless the command has ended."""
        with suppress(ProcessLookupError):
            os.kill(self.child, number)

    def wait(self) -> int:
        """The exit code; negative where a signal ended it."""
        return int(self._line())

    def run(self, *arguments: str) -> int:
        """Start a command, wait for its end, and return its exit code."""
        self.start(*arguments)
        return self.wait()

    @property
    def stdout(self) -> str:
        """What the last command printed to stdout."""
        return (self.folder / "stdout").read_text()

    @property
    def stderr(self) -> str:
        """What the last command printed to stderr."""
        return (self.folder / "stderr").read_text()

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the process that forks commands has died"
        return line

    def __enter__(self) -> "Server":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if kind is not None and self.child:
            self.signal(signal.SIGKILL)
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(20)
        assert self.process.stdout is not None
        self.process.stdout.close()


def _command(arguments: list[str]) -> int:
    """Run `butfor` as the interpreter would; return its exit code."""
    from butfor import cli

    for name, stream in (("stdout", 1), ("stderr", 2)):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    sys.argv = ["butfor", *arguments]
    code: Any = 0
    try:
        cli.main()
    except SystemExit as ended:
        code = ended.code or 0
        if isinstance(code, str):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return int(code)


def serve() -> None:
    """Fork a child for every line of arguments; print its process id, and at its end its exit code."""
    import torch

    slow = ("rich.progress", "safetensors.torch", "torch._dynamo", "torch.utils.tensorboard", "butfor.envs.slide")
    for name in (*slow, "butfor.training.loop", "butfor.cli"):  # an optimiser loads torch._dynamo
        importlib.import_module(name)
    torch.set_num_threads(1)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            os._exit(_command(json.loads(line)))
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    serve()
