"""Write docs/reference/settings.md, the settings of a stream in `watch` and `serve`; part of ``make figures``."""

from __future__ import annotations

from pathlib import Path

from polyaforest.service.config import StreamConfig
from polyaforest.settings.stream import Effect, StreamSettings, flat_settings, option_of, part_of
from polyaforest.settings.values import Flag, Setting

PAGE = Path(__file__).resolve().parent / "reference" / "settings.md"
INTRODUCTION = """\
# Settings of a stream

[`watch`](../how-to/watch.md) and [`serve`](../how-to/serve.md) score a stream by the same settings. Each is an option
of `watch` and a key of `[streams.NAME]` in `polyaforest.toml`: `--save-every 1m` is `save_every = "1m"`.

If models exist, a changed setting is *applied* at once, makes the models *relearn*, or needs a *new stream*. `serve`
relearns from its history, `watch` from the records that its models hold. Models of a time series hold none: there,
`watch` rejects the change.
"""
EFFECTS = {Effect.APPLIED: "applied", Effect.RELEARNED: "relearned", Effect.NEW_STREAM: "new stream"}
# why the other side does not have them
ONLY_SERVE = {
    "source": '`"http"`, a path, `redis://…`, `kafka://…`, `"prometheus"`, `"otlp"` or `"remote-write"`. `watch` has '
    "FILE, `--from`, `--follow`.",
    "metrics": "A table: which metrics of OpenTelemetry or Prometheus remote write make the fields and the key.",
    "prometheus": "A table: queries to a Prometheus server. `watch` reads files, Redis and Kafka.",
    "band": "`watch` writes verdicts, not expected ranges.",
    "silence": "`watch` runs when records arrive; a silence has none.",
    "close_after": "Events of `watch` end by records.",
    "max_wait": "Records of `watch` do not wait: it reads them when it is ready.",
    "max_ahead": "`watch` also reads recorded files, whose times may be in the future.",
    "retention": "A table: `records` (default 2000000) and `age` (400d). `watch` has no history.",
}
ONLY_WATCH = {
    "--model": "The service names files after the stream, in its data folder.",
    "--start-from": "The service relearns from its history, which lacks the records of a fitted model.",
    "--skip-seen": "For pipes that start over.",
    "--out, --quarantine, --only-anomalies, --events": "The service stores all verdicts, events and rejected records.",
    "--fail-on-anomaly, --quiet": "For scripts.",
}


def default_of(name: str, setting: Setting, table: object) -> str:
    """Return the default of a setting."""
    value = setting.plain(part_of(table, name))
    if setting.default:
        return setting.default
    return "none" if value is None else f"`{str(value).lower() if isinstance(value, bool) else value}`"


def row(name: str, setting: Setting) -> str:
    """Return the row of a setting of both sides."""
    is_choice = isinstance(setting.values, Flag) and part_of(StreamSettings(), name) is None
    option = f"`{option_of(name)}`" + (f", `{option_of(name, False)}`" if is_choice else "")
    cells = [f"`{name}`", option, default_of(name, setting, StreamSettings()), setting.values.allowed, setting.help]
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} | {EFFECTS[Effect(setting.effect)]} |"


def page() -> str:
    """Return the whole page."""
    shared = flat_settings(StreamSettings)
    own = {name: one for name, one in flat_settings(StreamConfig).items() if name not in shared}
    lines = ["| key | option | default | values | meaning | a change is |", "|---|---|---|---|---|---|"]
    lines += [row(name, setting) for name, setting in shared.items()]
    lines += ["", "## Only in serve", "", "| key | default | meaning |", "|---|---|---|"]
    for name, reason in ONLY_SERVE.items():
        known = own.get(name)
        default = "" if known is None else default_of(name, known, StreamConfig())
        lines.append(f"| `{name}` | {default} | {'' if known is None else f'{known.help} '}{reason} |")
    lines += ["", "The table `[server]` configures the process, `[[alerts]]` where alerts go: `watch` has neither."]
    lines += ["", "## Only in watch", "", "| option | why |", "|---|---|"]
    lines += [f"| `{'`, `'.join(name.split(', '))}` | {reason} |" for name, reason in ONLY_WATCH.items()]
    return "\n".join([INTRODUCTION, *lines, ""])


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), "utf-8")
    print(PAGE)


if __name__ == "__main__":
    main()
