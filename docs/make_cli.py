"""Write docs/cli.md: what the command line does, and the ``--help`` of every command. Part of ``make docs``."""

from __future__ import annotations

from pathlib import Path

import click

from polyaforest.cli import main as program

PAGE = Path(__file__).resolve().parent / "cli.md"
WIDTH = 90  # characters of a line of help
INTRODUCTION = """\
# The command line

`polyaforest` finds anomalies in files and streams, and says why they are. On a file that you have:

```sh
polyaforest detect server-metrics.csv
```

On one that is made up for you: `polyaforest demo`. `polyaforest COMMAND --help` says what is below.

## Manners

Data go to stdout; words, warnings and progress go to stderr, progress only if it is a terminal. Files are written whole
or not at all: until the end, and if anything goes wrong, what was there before stays. `-` is stdin or stdout.

| exit code | meaning |
|---|---|
| 0 | done; nothing was found, or nobody asked |
| 1 | anomalies were found, and `--fail-on-anomaly` was given |
| 2 | wrong usage: an unknown command or option, or two that do not go together |
| 3 | bad input: a file that is missing or damaged, no such column, unreadable rows, more than fits into memory |
| 70 | a defect of polyaforest: please report it |
| 130 | interrupted by Ctrl-C; `watch` saves first, and ends with 0 |

A reader that has seen enough (`| head`) ends a command quietly, with 0. Errors are a sentence or two. To see where one
comes from, set `POLYAFOREST_TRACEBACK=1`.

What comes from data and files (names of columns, keys, ids, paths) is shown with control characters spelled out, such
as `\\x1b`, `\\n` or `\\u202e`: nothing in it can act on your terminal or forge a line of a report. Letters of all
scripts and emoji stay. Names of more than 80 characters are shown without their middle. JSON writes such characters as
`\\u` escapes and reads the same. CSV and TSV are exact in files and pipes, and spelled out on a terminal. Cells that
begin with `=`, `+`, `-` or `@` are exact, too: if you open results in a spreadsheet, which would run them as formulas,
add `--spreadsheet-safe`.

Your shell completes commands, options and files once it has the script that `polyaforest completion` prints:

```sh
polyaforest completion bash > ~/.local/share/bash-completion/completions/polyaforest
```

This page is written by [make_cli.py](make_cli.py) from the commands themselves.
"""


def commands() -> dict[str, click.Command]:
    """Every command there is, by its name."""
    context = click.Context(program)
    found = {name: program.get_command(context, name) for name in program.list_commands(context)}
    return {name: command for name, command in found.items() if command is not None}


def help_of(name: str, command: click.Command) -> str:
    """What ``polyaforest name --help`` prints on a terminal that is `WIDTH` wide."""
    return command.get_help(click.Context(command, info_name=name, parent=_top()))


def _top() -> click.Context:
    """The program itself, on such a terminal."""
    return click.Context(program, info_name="polyaforest", **{**program.context_settings, "terminal_width": WIDTH})


def page(commands: dict[str, click.Command]) -> str:
    """The whole page."""
    texts = {
        "polyaforest": program.get_help(_top()),
        **{name: help_of(name, command) for name, command in commands.items()},
    }
    return "\n".join([INTRODUCTION, *(f"## {name}\n\n```text\n{text}\n```\n" for name, text in texts.items())])


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(commands()), "utf-8")
    print(PAGE)


if __name__ == "__main__":
    main()
