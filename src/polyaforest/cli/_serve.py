"""`polyaforest serve`: a service that scores streams, with history, alerts, an API and a dashboard."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

import click

from polyaforest.cli import _options as options

if TYPE_CHECKING:
    from polyaforest.service.config import Config

_DEFAULT = "polyaforest.toml"

_HELP = """Serve a live dashboard and an API for streams.

CONFIG is a TOML file (polyaforest.toml) that defines streams: records posted by HTTP, lines appended to a file,
messages from Redis or Kafka, or series of a Prometheus server. Records are scored as by `watch`; history, events and
feedback are saved beside the models. After a crash, the service resumes where it was.

\b
Examples:
  polyaforest serve --demo
  polyaforest serve --check polyaforest.toml
  polyaforest serve polyaforest.toml --port 8080
  polyaforest serve --import "history-*.csv" --stream web
"""


@click.command("serve", help=_HELP)
@click.argument("config", metavar="[CONFIG]", required=False, type=click.Path(dir_okay=False))
@click.option(
    "--check", is_flag=True, help="Check the configuration, print what a start would do to existing data, and exit."
)
@click.option("--test-alert", is_flag=True, help="Send a test message to each alert destination, and exit.")
@click.option("--demo", is_flag=True, help="Serve generated streams with planted incidents; nothing is saved.")
@click.option("--host", metavar="ADDRESS", help="Address to listen on, instead of the configured one.")
@click.option("--port", metavar="PORT", type=click.IntRange(0, 65535), help="Port to listen on; 0 for any free port.")
@click.option("--data", metavar="FOLDER", type=click.Path(file_okay=False), help="Folder for models and history.")
@click.option(
    "--import",
    "imported",
    metavar="FILE",
    multiple=True,
    help="Score and learn the rows of a file or database, as `detect` reads them, and exit; may be repeated.",
)
@click.option("--stream", metavar="NAME", help="Stream for --import, if there are several.")
@options.quiet
def command(
    config: str | None,
    check: bool,
    test_alert: bool,
    demo: bool,
    host: str | None,
    port: int | None,
    data: str | None,
    imported: tuple[str, ...],
    stream: str | None,
    quiet: bool,
) -> None:
    """Run `polyaforest serve`."""
    from polyaforest.cli._warmup import compile_first

    if imported and (check or demo):
        raise click.UsageError("--import cannot be combined with --check or --demo.")
    if stream is not None and not imported:
        raise click.UsageError("--stream names the stream of --import: add --import FILE.")
    if demo and config is not None:
        raise click.UsageError("--demo has its own configuration: omit CONFIG.")
    check_extra()
    from polyaforest.service.demo import DemoFeeder, demo_config
    from polyaforest.service.server import serve

    def read() -> Config:
        return _read(config or _DEFAULT).at(host=host, port=port, data=data)

    with ExitStack() as stack:
        if demo:
            folder = data or stack.enter_context(tempfile.TemporaryDirectory(prefix="polyaforest-"))
            settings = demo_config().at(host=host, port=port, data=folder)
        else:
            settings = read()
        if check:
            _check(settings, "the demo" if demo else config or _DEFAULT)
            return
        if test_alert:
            _test_alerts(settings)
            return
        compile_first("stream", quiet)
        say = partial(options.echo, quiet=quiet)
        if imported:
            _import(settings, imported, stream, say)
            return
        file = None if demo else config or _DEFAULT
        serve(settings, say, DemoFeeder() if demo else None, None if demo else read, file)


def _import(config: Config, paths: Sequence[str], name: str | None, say: Callable[[str], None]) -> None:
    """Import tables into a stream, without serving."""
    import time

    from polyaforest.io.errors import BadInput
    from polyaforest.service.app import Service
    from polyaforest.service.check import check_config
    from polyaforest.service.importing import import_tables

    if name is None and len(config.streams) > 1:
        raise click.UsageError(f"Choose a stream with --stream: {', '.join(config.streams)}.")
    name = name or next(iter(config.streams))
    if name not in config.streams:
        raise BadInput(f"there is no stream {name!r}: choose one of {', '.join(config.streams)}")
    only = config.model_copy(update={"streams": {name: config.streams[name]}, "alerts": []})
    check_config(only)
    service = Service(only)
    service.start()
    try:
        stream = service.streams[name]
        while not stream.is_ready:
            if stream.error is not None:
                raise BadInput(f"the stream {name} does not run: {stream.error}")
            time.sleep(0.05)
        done = import_tables(stream, paths, lambda n: None)
    finally:
        service.stop()
    words = f"Imported {done.n_records:,} records into {name}: {done.n_flagged:,} flagged, {done.n_rejected:,} rejected"
    say(f"{words}{f' (the first: {done.first_reason})' if done.first_reason else ''}.")


def check_extra() -> None:
    """Raise if a library of the service is missing."""
    from importlib.util import find_spec

    from polyaforest.io.errors import BadInput

    needed = ("apprise", "fastapi", "prometheus_client", "re2", "tomli_w", "tomlkit", "uvicorn")
    if any(find_spec(name) is None for name in needed):
        raise BadInput('the service needs an extra: pip install "polyaforest[service]"')


def _read(path: str) -> Config:
    from polyaforest.io.errors import BadInput
    from polyaforest.service.config import read_config

    if not os.path.exists(path):
        raise BadInput(f"{path} does not exist: write it, or try --demo")
    return read_config(path)


def _check(config: Config, name: str) -> None:
    """Check a configuration without starting, and print what a start would do to existing data."""
    from polyaforest.io.errors import BadInput
    from polyaforest.service.changes import stored_plan
    from polyaforest.service.check import check_config

    check_config(config)
    options.echo(f"{name} is valid: {', '.join(config.streams)}.")
    problems = []
    for stream, settings in config.streams.items():
        plan, n_records = stored_plan(config.server.data, stream, settings)
        for words in plan.words(n_records):
            options.echo(f"{stream}: a start {words}.")
        refused = zip(plan.refused, plan.problems(), strict=True)
        problems += [config.words_at(("streams", stream, *one.split(".")), words) for one, words in refused]
    if problems:
        raise BadInput("; ".join(problems))


def _test_alerts(config: Config) -> None:
    """Send a test message to each destination; exit with code 1 if one cannot be delivered."""
    from polyaforest.io.errors import BadInput
    from polyaforest.service.alerts import Destination, test_message

    if not config.alerts:
        raise BadInput("no alerts are configured: add [[alerts]] to the configuration")
    problems = [Destination(alert).try_to_send(test_message()) for alert in config.alerts]
    for alert, problem in zip(config.alerts, problems, strict=True):
        options.echo(f"{alert.name}: {problem or 'sent'}")
    if any(problems):
        raise SystemExit(1)
