"""Edit the settings of a stream in the configuration file, keeping its comments and order."""

from __future__ import annotations

import os
import shutil
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from polyaforest.io.errors import BadInput
from polyaforest.service.config import StreamConfig
from polyaforest.settings.stream import Effect, flat_settings, part_of
from polyaforest.settings.values import Ranges, Tables, default_of

__all__ = ["describe_settings", "edited", "write_settings"]


def describe_settings(config: StreamConfig) -> list[dict[str, Any]]:
    """Return the settings of a stream with what a form needs: value, default, kind, help and effect."""
    found = []
    for name, setting in flat_settings(StreamConfig).items():
        if isinstance(setting.values, Tables | Ranges):
            continue  # edited in the file
        value, default = setting.plain(part_of(config, name)), setting.plain(_default(name))
        found.append(
            {
                "name": name,
                "help": setting.help,
                "value": value,
                "default": default,
                "default_words": setting.default,
                "is_default": value == default,
                "effect": str(setting.effect),
                "is_fixed": setting.effect == Effect.NEW_STREAM,
                "allowed": setting.values.allowed,
                "schema": setting.values.schema(),
            }
        )
    return found


def _default(name: str) -> Any:
    """Return the default of a setting."""
    table, _, key = name.rpartition(".")
    return default_of(type(getattr(StreamConfig(), table)), key) if table else default_of(StreamConfig, key)


def edited(text: str, stream: str, values: Mapping[str, Any]) -> str:
    """Return a configuration with other settings of a stream; None removes a setting, which restores its default.

    Raises `BadInput` if a setting is unknown, cannot be changed, or has an invalid value.
    """
    known = {facts["name"]: facts for facts in describe_settings(StreamConfig())}
    settings = flat_settings(StreamConfig)
    for name, value in values.items():
        if name not in known or known[name]["is_fixed"]:
            raise BadInput(f"{name} cannot be changed here" if name in known else f"there is no setting {name!r}")
        try:
            settings[name].check(value)
        except (ValueError, TypeError) as problem:
            raise BadInput(f"{name}: {problem}") from None
    try:
        document = tomlkit.parse(text)
        table: Any = document["streams"][stream]
        for name, value in values.items():
            _edit(table, name.split("."), value)
        changed = tomlkit.dumps(document)
        after = tomllib.loads(changed)["streams"][stream]
    except (TOMLKitError, tomllib.TOMLDecodeError, KeyError, TypeError) as problem:
        raise BadInput(f"the file cannot be edited ({problem}): change it by hand") from None
    for name, value in values.items():
        if _found(after, name.split(".")) != value:
            raise BadInput(f"{name} cannot be changed in this file: change it by hand")
    return changed


def _edit(table: Any, path: list[str], value: Any) -> None:
    for part in path[:-1]:
        if part not in table:
            if value is None:
                return
            table[part] = tomlkit.table()
        table = table[part]
    if value is None:
        table.pop(path[-1], None)
    else:
        table[path[-1]] = value


def _found(table: Any, path: list[str]) -> Any:
    for part in path:
        if not isinstance(table, dict) or part not in table:
            return None
        table = table[part]
    return table


def write_settings(path: str, text: str) -> None:
    """Replace a file atomically, keeping its permissions; raise OSError if that is impossible."""
    real = Path(os.path.realpath(path))
    number, name = tempfile.mkstemp(dir=real.parent, prefix=f".{real.name}-")
    try:
        with os.fdopen(number, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        shutil.copymode(real, name)
        os.replace(name, real)
    except BaseException:
        os.unlink(name)
        raise
