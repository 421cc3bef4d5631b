"""The page of the command line is up to date, and explains every command and option."""

import importlib.util
from pathlib import Path

import click
import pytest

from polyaforest.cli import COMMANDS

pytestmark = pytest.mark.end_to_end

DOCS = Path(__file__).parents[2] / "docs"
_spec = importlib.util.spec_from_file_location("make_cli", DOCS / "make_cli.py")
make_cli = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(make_cli)


def unsaid(name: str, command: click.Command) -> list[str]:
    """Return what a command does not explain: itself, an option without help, an argument missing in its help."""
    words = command.help or ""
    silent = [] if words.strip() else [name]
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            if not (parameter.help or "").strip() or parameter.hidden:
                silent.append(f"{name} {parameter.opts[-1]}")
        elif (parameter.metavar or parameter.name.upper()).strip("[].") not in words:
            silent.append(f"{name} {parameter.name}")
    return silent


def missing_from(page: str, commands: dict[str, click.Command]) -> list[str]:
    """Return commands without a section, and options missing in the section of their command."""
    sections = {part.partition("\n")[0]: part for part in page.split("\n## ")}
    missing = [name for name in commands if name not in sections]
    for name in commands.keys() & sections.keys():
        options = [parameter for parameter in commands[name].params if isinstance(parameter, click.Option)]
        missing += [f"{name} {word}" for option in options for word in option.opts if f" {word}" not in sections[name]]
    return missing


def test_page_is_up_to_date():
    page = make_cli.PAGE.read_text("utf-8")
    assert page == make_cli.page(make_cli.commands()), "run: python docs/make_cli.py"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_argument_and_option_is_explained(name):
    assert unsaid(name, make_cli.commands()[name]) == []


def test_every_command_and_option_is_on_the_page():
    assert missing_from(make_cli.PAGE.read_text("utf-8"), make_cli.commands()) == []


# ---- the checks themselves can fail ----------------------------------------------------------------------------------


@click.command()
@click.argument("file")
@click.option("-q", "--quiet", is_flag=True)
@click.option("--loud", is_flag=True, help="Say more.", hidden=True)
@click.option("--fine", help="As it should be.")
def silent(**_):
    pass


def test_check_finds_unexplained_options():
    assert unsaid("silent", silent) == ["silent", "silent file", "silent --quiet", "silent --loud"]


def test_check_finds_options_missing_from_the_page():
    commands = {**make_cli.commands(), "silent": silent}
    page = make_cli.page(make_cli.commands())
    assert missing_from(page, commands) == ["silent"]
    shorter = make_cli.page(commands).replace("--fine", "--else")
    assert missing_from(shorter, commands) == ["silent --loud", "silent --fine"]
    assert make_cli.page(commands) != page
