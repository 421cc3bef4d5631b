"""Write docs/reference/cli.md, the ``--help`` of all commands; part of ``make figures``."""

from __future__ import annotations

from pathlib import Path

import click

from polyaforest.cli import main as program

PAGE = Path(__file__).resolve().parent / "reference" / "cli.md"
WIDTH = 90  # characters of a line of help
INTRODUCTION = """\
# Command line

This page lists the output of `polyaforest COMMAND --help`. To start, run `polyaforest demo`, or use your own file:

```sh
polyaforest detect server-metrics.csv
```

## Conventions

Data goes to stdout, messages and progress to stderr. Files are written atomically. `-` is stdin or stdout. `--by`
always names a partition, `--id` always a row.

| exit code | meaning |
|---|---|
| 0 | success, with or without anomalies |
| 1 | anomalies were found, and `--fail-on-anomaly` was given; or `compare` found a change |
| 2 | wrong usage: an unknown command or option, or options that contradict each other |
| 3 | bad input: a missing or damaged file, an unknown column, unreadable rows, not enough memory |
| 70 | a bug in polyaforest: please report it |
| 130 | interrupted by Ctrl-C; `watch` saves first and exits with 0 |

If stdout is closed early (`| head`), a command exits quietly with 0. Set `POLYAFOREST_TRACEBACK=1` to see a traceback.

Control characters in text from data and files are shown as escapes, such as `\\x1b`, so that they cannot control your
terminal or fake a line of a report. Names of more than 80 characters are shortened in the middle. CSV and TSV in files
and pipes are exact. Spreadsheets evaluate cells that begin with `=`, `+`, `-` or `@` as formulas: add
`--spreadsheet-safe` if you open results in one.

To complete commands, options and files in your shell, install the script that `polyaforest completion` prints:

```sh
polyaforest completion bash > ~/.local/share/bash-completion/completions/polyaforest
```
"""


def commands() -> dict[str, click.Command]:
    """Return all commands by name."""
    context = click.Context(program)
    found = {name: program.get_command(context, name) for name in program.list_commands(context)}
    return {name: command for name, command in found.items() if command is not None}


def help_of(name: str, command: click.Command) -> str:
    """Return the output of ``polyaforest name --help`` on a terminal of `WIDTH` columns."""
    return command.get_help(click.Context(command, info_name=name, parent=_top()))


def _top() -> click.Context:
    """Return the context of the program, with the width of the page."""
    return click.Context(program, info_name="polyaforest", **{**program.context_settings, "terminal_width": WIDTH})


def page(commands: dict[str, click.Command]) -> str:
    """Return the whole page."""
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
