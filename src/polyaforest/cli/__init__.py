"""The command line. Each command is a module `_<name>.py` with a `command`, imported when it runs.

Data goes to stdout, messages and progress to stderr. Exit codes: 0 success; 1 anomalies found with
``--fail-on-anomaly``, or a change found by `compare` (commands call ``ctx.exit(1)``); 2 wrong usage; 3 bad input (any
``ValueError`` or ``OSError`` that a command raises), or out of memory; 70 a bug in polyaforest; 130 interrupted. If
stdout is closed early, as by ``head``, a command exits with 0 and prints no error.
"""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NoReturn

import click

from polyaforest import __version__
from polyaforest.cli._imports import defer_slow_imports
from polyaforest.cli._screen import escaped_output
from polyaforest.util.text import printable, printable_lines

if sys.platform != "win32":
    import resource

FOUND, USAGE, BAD_INPUT, DEFECT, INTERRUPTED = 1, 2, 3, 70, 130
_M_ARENA_MAX = -8  # of glibc's malloc.h
TRACEBACK = "POLYAFOREST_TRACEBACK"  # set to 1 to see where an error comes from

_HELP_ONLY = getattr(click.exceptions, "NoArgsIsHelpError", ())  # its message is the whole help; new in click 8.2

# In the order of the help.
COMMANDS = {
    "detect": "Find anomalies in a file and explain them.",
    "compare": "Test whether two files differ, by how much and where.",
    "watch": "Find anomalies in a stream, record by record.",
    "serve": "Serve a live dashboard and an API for streams.",
    "mcp": "Serve tools for agents (Model Context Protocol).",
    "backup": "Save the data of a running service.",
    "restore": "Restore a backup into a data folder.",
    "fit": "Learn what is normal in a file and save it as a model.",
    "score": "Score the rows of a file with a model.",
    "explain": "Explain why a model finds a row normal or anomalous.",
    "info": "Show what a model file holds.",
    "export": "Write a model in a format that other programs score with.",
    "merge": "Merge models that counted different rows.",
    "forget": "Delete rows from a model as if never learned.",
    "demo": "Write an example file and find the anomalies in it.",
    "datasets": "List the public data sets, or export one.",
    "warmup": "Compile the kernels before the first use.",
    "bench": "Measure speed on this machine.",
    "completion": "Print the shell completion script.",
}


class LazyGroup(click.Group):
    """A group that lists its commands without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"{__name__}._{cmd_name}").command
        command.short_help = COMMANDS[cmd_name]
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command; suggest similar names if there is no such command."""
        name = args[0]
        if name in COMMANDS or name.startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        near = get_close_matches(name, COMMANDS)
        advice = f" Did you mean {' or '.join(near)}?" if near else ""
        if not near and os.path.exists(name):
            advice = f" To find anomalies in a file: polyaforest detect {name}"
        raise click.UsageError(f"No such command {name!r}.{advice}", ctx)

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Parse the options; ``--help`` prints here."""
        with _ignore_closed_stdout():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        with _ignore_closed_stdout():
            return super().invoke(ctx)


_HELP = """Find and explain anomalies in tables, streams and time series.

Start with a file of your own:

  polyaforest detect server-metrics.csv

or with an example: polyaforest demo
"""


@click.group(
    cls=LazyGroup, help=_HELP, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, "-V", "--version", prog_name="polyaforest", message="%(prog)s %(version)s")
def main() -> None:
    """Run the program."""


def program() -> NoReturn:
    """Run the program and exit without cleanup: unloading compiled code takes half a second."""
    try:
        run()
    except SystemExit as request:
        with suppress(OSError, AttributeError):  # stderr was closed
            sys.stderr.flush()
        os._exit(request.code if isinstance(request.code, int) else 0)


def run(args: Sequence[str] | None = None) -> NoReturn:
    """Run the program, report errors in one line, and exit."""
    warnings.formatwarning = lambda message, *_, **__: f"Warning: {printable(str(message))}\n"
    _spare_address_space()
    defer_slow_imports()
    with escaped_output():
        code = _exit_code(args)
    try:
        if sys.stdout is not None:  # None if the shell closed it
            sys.stdout.flush()
    except BrokenPipeError:
        _discard_stdout()
    sys.exit(code)


def _exit_code(args: Sequence[str] | None) -> int:
    """Run the command, report errors, and return the exit code."""
    try:
        answer = main.main(args, prog_name="polyaforest", standalone_mode=False)
    except click.Abort:
        return INTERRUPTED
    except click.ClickException as problem:
        if not isinstance(problem, _HELP_ONLY):
            problem.message = printable(problem.message)  # type: ignore[misc]  # it may quote the input
        problem.show()
        return USAGE if isinstance(problem, click.UsageError) else BAD_INPUT
    except Exception as problem:
        if _is_out_of_memory(problem):
            return _report(_out_of_memory(problem), BAD_INPUT)
        if _is_user_error(problem):
            return _report(_message(problem), BAD_INPUT)
        advice = f"set {TRACEBACK}=1 to see a traceback, and please report it"
        return _report(f"this is a bug in polyaforest ({type(problem).__name__}: {problem}); {advice}.", DEFECT)
    return answer if isinstance(answer, int) else 0


def _is_user_error(problem: Exception) -> bool:
    """Return whether an error comes from the input or the installation, not from a bug."""
    if isinstance(problem, ImportError):
        return not (problem.name or "").startswith("polyaforest")
    return isinstance(problem, ValueError | OSError)


def _spare_address_space() -> None:
    """Keep glibc from reserving 64 MB per thread where address space is limited, as by ``ulimit -v``."""
    if sys.platform == "win32" or resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY:
        return
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc only
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)


def _is_out_of_memory(problem: Exception) -> bool:
    """Return whether memory has run out, including for the stack of a thread."""
    return isinstance(problem, MemoryError) or "can't start new thread" in str(problem)


def _out_of_memory(problem: Exception) -> str:
    """Describe how much memory was needed, if known, and what to do."""
    wanted = str(problem) or "allocation failed"
    return (
        f"not enough memory: {wanted[0].lower()}{wanted[1:]}{_memory_in_use()}. Raise the limit, or use less: "
        "fewer --columns; --stream in `detect`; a lower --memory-mb, a smaller --window or fewer --trees in `watch`"
    )


def _memory_in_use() -> str:
    """Describe the memory in use and its limit, if the system reports them."""
    if sys.platform != "win32":
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        limits = [resource.getrlimit(which)[0] for which in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
        allowed = [limit for limit in limits if limit != resource.RLIM_INFINITY]
        limit = f", of {min(allowed) / 1e9:.1f} GB of address space allowed" if allowed else ""
        return f", with {most / 1e9:.1f} GB in use{limit}"
    return ""


def _report(message: str, code: int) -> int:
    """Print an error, with its traceback if requested; return the exit code."""
    if os.environ.get(TRACEBACK, "0") not in ("", "0"):
        click.echo(printable_lines(traceback.format_exc()), err=True, nl=False)
    click.echo(f"Error: {printable(message)}", err=True)
    return code


def _message(problem: Exception) -> str:
    """Return the message of an error; for errors of the system, the file first."""
    if isinstance(problem, OSError) and problem.filename is not None and problem.strerror:
        return f"{os.fsdecode(problem.filename)}: {problem.strerror}"
    return str(problem) or type(problem).__name__


@contextmanager
def _ignore_closed_stdout() -> Iterator[None]:
    """Exit with 0 if stdout was closed: click would exit with 1, which means anomalies."""
    try:
        yield
    except BrokenPipeError:
        _discard_stdout()
        raise click.exceptions.Exit(0) from None


def _discard_stdout() -> None:
    """Discard further output, so that Python does not complain at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
