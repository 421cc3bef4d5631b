"""The command line. Every command is a module of its own, `_<name>.py` with a `command`, imported when it is run.

Data goes to stdout, words and progress to stderr. Exit codes: 0 done, or nothing found; 1 anomalies found with
``--fail-on-anomaly`` (commands call ``ctx.exit(1)``); 2 wrong usage; 3 bad input (any ``ValueError`` or ``OSError``
that a command raises), or more of it than the memory holds; 70 a defect of polyaforest; 130 interrupted. A reader of
stdout that has seen enough, such as ``head``, ends a command quietly and with 0.
"""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NoReturn

import click

from polyaforest import __version__
from polyaforest.cli._screen import guarded
from polyaforest.core.text import printable, printable_lines

try:
    import resource
except ImportError:  # where there are no such limits
    resource = None  # type: ignore[assignment]

FOUND, USAGE, BAD_INPUT, DEFECT, INTERRUPTED = 1, 2, 3, 70, 130
_M_ARENA_MAX = -8  # of glibc's malloc.h
TRACEBACK = "POLYAFOREST_TRACEBACK"  # set to 1 to see where an error comes from

_HELP_ONLY = getattr(click.exceptions, "NoArgsIsHelpError", ())  # its message is the whole help; new in click 8.2

# In the order in which people meet them.
COMMANDS = {
    "detect": "Find the anomalies in a file and say why they are.",
    "watch": "Judge an endless stream, record by record.",
    "fit": "Learn what is normal in a file and keep it as a model.",
    "score": "Score the rows of a file by a model.",
    "explain": "Say in words why a row is as strange as it is.",
    "info": "Show what a model file holds.",
    "merge": "Make one model of several that counted different rows.",
    "forget": "Take rows out of a model as if it had never seen them.",
    "demo": "Write an example file and find the anomalies in it.",
    "datasets": "List the public data sets, or export one.",
    "bench": "Measure how fast this machine is at all of this.",
    "completion": "Print the script that completes commands in your shell.",
}


class LazyGroup(click.Group):
    """A group that knows the names and the short help of its commands without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of the commands, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, imported now."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"{__name__}._{cmd_name}").command
        command.short_help = COMMANDS[cmd_name]
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands, from what is known without them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that was meant, or the nearest ones in words."""
        name = args[0]
        if name in COMMANDS or name.startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        near = get_close_matches(name, COMMANDS)
        advice = f" Did you mean {' or '.join(near)}?" if near else ""
        if not near and os.path.exists(name):
            advice = f" To find the anomalies in the file {name}: polyaforest detect {name}"
        raise click.UsageError(f"No such command {name!r}.{advice}", ctx)

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Read the program's own options, of which ``--help`` prints."""
        with _while_read():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        with _while_read():
            return super().invoke(ctx)


_HELP = """Find anomalies in tables, streams and time series, with reasons.

Start with a file that you have:

  polyaforest detect server-metrics.csv

or with one made up for you: polyaforest demo
"""


@click.group(
    cls=LazyGroup, help=_HELP, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, "-V", "--version", prog_name="polyaforest", message="%(prog)s %(version)s")
def main() -> None:
    """The program, of which every command is a part."""


def run(args: Sequence[str] | None = None) -> NoReturn:
    """The program itself: run the command, tell what went wrong in a sentence, and exit."""
    warnings.formatwarning = lambda message, *_, **__: f"Warning: {printable(str(message))}\n"
    _spare_address_space()
    with guarded():
        code = _outcome(args)
    try:
        if sys.stdout is not None:  # as it is where the shell has closed it
            sys.stdout.flush()
    except BrokenPipeError:
        _discard_stdout()
    sys.exit(code)


def _outcome(args: Sequence[str] | None) -> int:
    """Run the command and give the exit code, having told what went wrong."""
    try:
        answer = main.main(args, prog_name="polyaforest", standalone_mode=False)
    except click.Abort:
        return INTERRUPTED
    except click.ClickException as problem:
        if not isinstance(problem, _HELP_ONLY):
            problem.message = printable(problem.message)  # type: ignore[misc]  # it may quote what was given
        problem.show()
        return USAGE if isinstance(problem, click.UsageError) else BAD_INPUT
    except Exception as problem:
        if _is_want_of_memory(problem):
            return _tell(_memory_in_words(problem), BAD_INPUT)
        if _is_the_users(problem):
            return _tell(_words(problem), BAD_INPUT)
        where = f"set {TRACEBACK}=1 to see where it comes from, and please report it"
        return _tell(f"this is a defect of polyaforest ({type(problem).__name__}: {problem}); {where}.", DEFECT)
    return answer if isinstance(answer, int) else 0


def _is_the_users(problem: Exception) -> bool:
    """Whether an error is about what was given or installed, and not about polyaforest."""
    if isinstance(problem, ImportError):
        return not (problem.name or "").startswith("polyaforest")
    return isinstance(problem, ValueError | OSError)


def _spare_address_space() -> None:
    """Keep the C library from reserving 64 MB for every thread where address space is limited, as by ``ulimit -v``."""
    if resource is None or resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY:
        return
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc's, where that is the library
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)


def _is_want_of_memory(problem: Exception) -> bool:
    """Whether memory has run out: where a thread finds no room for its stack, Python says so in other words."""
    return isinstance(problem, MemoryError) or "can't start new thread" in str(problem)


def _memory_in_words(problem: Exception) -> str:
    """How much memory was needed where there was not enough, where that is known, and what to do."""
    taken = _memory_taken()
    wanted = str(problem) or "the system gave no more"
    return (
        f"there is not enough memory: {wanted[0].lower()}{wanted[1:]}{taken}. Allow the process more, or give it less "
        "to hold at a time: fewer --columns; in `detect`, --stream, which judges rows as it reads them; in `watch`, "
        "less --memory, a smaller --window or fewer --trees"
    )


def _memory_taken() -> str:
    """What the process has taken so far and may take, in words, where the system tells."""
    if resource is None:
        return ""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    limits = [resource.getrlimit(which)[0] for which in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
    allowed = [limit for limit in limits if limit != resource.RLIM_INFINITY]
    limit = f", of {min(allowed) / 1e9:.1f} GB of address space that it may use" if allowed else ""
    return f", with {most / 1e9:.1f} GB in use{limit}"


def _tell(message: str, code: int) -> int:
    """Print the error that is being handled, with its traceback if asked for."""
    if os.environ.get(TRACEBACK, "0") not in ("", "0"):
        click.echo(printable_lines(traceback.format_exc()), err=True, nl=False)
    click.echo(f"Error: {printable(message)}", err=True)
    return code


def _words(problem: Exception) -> str:
    """What a sentence says of an error: for the system's errors, the file first."""
    if isinstance(problem, OSError) and problem.filename is not None and problem.strerror:
        return f"{os.fsdecode(problem.filename)}: {problem.strerror}"
    return str(problem) or type(problem).__name__


@contextmanager
def _while_read() -> Iterator[None]:
    """Once nobody reads stdout any more, end as if all had been read: click's own 1 would mean anomalies."""
    try:
        yield
    except BrokenPipeError:
        _discard_stdout()
        raise click.exceptions.Exit(0) from None


def _discard_stdout() -> None:
    """Send what is still to be printed nowhere, so that Python does not complain about it when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
