"""The configuration of the service: every error names its line and key."""

import pytest

from polyaforest.service.config import parse_config, public, to_toml
from polyaforest.settings.stream import Gates
from polyaforest.settings.values import Table

GOOD = """
[server]
port = 0
[streams.web]
by = "host"
time = "time"
window = "6h"
silence = "5m"
[streams.web.gates]
direction = "high"
valid = {cpu = [0, 100]}
[[streams.web.mute]]
key = "web-1"
until = 2026-03-01T00:00:00Z
[[streams.web.maintenance]]
name = "nights"
mode = "judge-only"
from = 02:00:00
to = 04:00:00
timezone = "Europe/Berlin"
[streams.prod]
source = "prometheus"
[streams.prod.prometheus]
url = "http://user:geheim@localhost:9090"
queries = {load = "sum(load)"}
[[alerts]]
name = "ops"
url = "json://user:geheim@localhost/"
streams = ["web"]
"""


@pytest.mark.parametrize(
    ("text", "line", "key", "words"),
    [
        ("[streams.web]\ntrees = 0\n", 2, "streams.web.trees", "greater than or equal to 1"),
        ("[streams.web]\n\n# no\nwindwo = 3\n", 4, "streams.web.windwo", "unknown key"),
        ("[server]\nport = 'x'\n[streams.web]\n", 2, "server.port", "valid integer"),
        ("[streams.web]\nwindow = '6 parsecs'\n", 2, "streams.web.window", "'6 parsecs' is not a duration"),
        ("[streams.web]\nwindow = '9999999999999999d'\n", 2, "streams.web.window", "duration"),
        (f"[streams.web]\nwindow = {2**63 - 1}0\n", 2, "streams.web.window", "number of records"),
        ("[streams.web]\ngates.valid = {a = [0, nan]}\n", 2, "streams.web.gates.valid", "two numbers"),
        ("[streams.web]\n[server]\npublic_url = 'http://['\n", 3, "server.public_url", "https://host"),
        ("[streams.web]\n[server]\ntrusted_proxies = ['x']\n", 3, "server.trusted_proxies", "address or network"),
        ("[streams.web]\nwindow = true\n", 2, "streams.web.window", "number of records"),
        (
            "[streams.web]\n[[streams.web.mute]]\nkey='a'\n[[streams.web.mute]]\n",
            4,
            "streams.web.mute.1",
            "the rule has none",
        ),
        ("[streams.web.gates]\ndirection = 'up'\n", 2, "streams.web.gates.direction", "'both', 'high' or 'low'"),
        ("[streams.web]\ngates.valid = {a = [2, 1]}\n", 2, "streams.web.gates.valid", "empty"),
        ("[streams.'../x']\n", 1, "streams.../x", "letters, digits"),
        ("[streams.a]\n[streams.A]\n", 2, "streams.A", "upper and lower case"),
        ("[streams.a]\nseries = true\nshingle = 3\n", 1, "streams.a", "omit `shingle`"),
        ("[streams.a]\nwindow = '6h'\n", 1, "streams.a", "needs `time`"),
        ("[streams.a]\n[[alerts]]\nname = 'x'\n", 2, "alerts.0", "exactly one"),
        ("[streams.a]\n[[alerts]]\nname='x'\nurl='y'\nstreams=['b']\n", 5, "alerts.0.streams", "no stream 'b'"),
        ("[streams.a]\n" + 2 * "[[alerts]]\nurl='y'\nname='x'\n", 7, "alerts.1.name", "another alert"),
        ("[streams.a]\nsource = 'redis://[::/0'\n", 2, "streams.a.source", "invalid address"),
        ("[streams.a]\nsource = 'ftp://host/x'\n", 2, "streams.a.source", "not supported"),
        ("[streams.a]\nwindow = '99999999999999d'\n", 2, "streams.a.window", "longer than"),
        ("[streams.a]\nseed = 4294967296\n", 2, "streams.a.seed", "less than 4294967296"),
        ("[streams.a]\nshingle = 100000000\n", 2, "streams.a.shingle", "less than or equal to 1048576"),
        ("[streams.a]\ntime='t'\ncalendar = ['time of day', 'time of day']\n", 3, "streams.a.calendar", "twice"),
        ("[streams.a]\ncolumns = ['x', 'x']\n", 2, "streams.a.columns", "twice"),
        ("[server]\npublic_url = 'http://['\n[streams.a]\n", 2, "server.public_url", "http://host:port"),
        (
            "[[streams.a.maintenance]]\nname='c'\nmode='judge-only'\ndays=['mon']\ntimezone = 'Europe'\n",
            5,
            "streams.a.maintenance.0.timezone",
            "unknown timezone",
        ),
        ("[streams.a.prometheus]\nurl = 'ftp://x'\nqueries = {a = 'b'}\n", 2, "streams.a.prometheus.url", "http://"),
        ("[[streams.a.maintenance]]\nname='c'\nmode='judge-only'\n", 1, "streams.a.maintenance.0", "no time given"),
        ("[streams.a]\nseasons = ['time of day']\n", 2, "streams.a.seasons", "unknown key, use `calendar` instead"),
        ("[[streams.a.calendars]]\nname='c'\n", 1, "streams.a.calendars", "unknown key, use `maintenance` instead"),
        ("x = 1\n[streams.a]\n", 1, "x", "unknown key"),
        ("", 1, "streams", "is missing"),
    ],
)
def test_errors_name_line_and_key(text, line, key, words):
    with pytest.raises(ValueError, match=r"x\.toml") as problem:
        parse_config(text, "x.toml")
    assert f"x.toml, line {line}: {key}: " in str(problem.value)
    assert words in str(problem.value)


def test_reports_all_errors_at_once():
    with pytest.raises(ValueError, match="line 2") as problem:
        parse_config("[streams.a]\ntrees = 0\nseed = -1\nfoo = 1\n")
    assert str(problem.value).count("line") == 3


def test_invalid_toml_names_the_line():
    with pytest.raises(ValueError, match="line 2"):
        parse_config("[streams.a]\ntrees = = 3\n")


def test_public_settings_have_no_secrets_and_round_trip():
    config = parse_config(GOOD)
    shown = to_toml(public(config))
    assert "geheim" not in shown
    again = parse_config(shown + '\nurl = "json://localhost/"\n')  # of the alert, the last table
    assert again.streams["web"] == config.streams["web"]
    assert again.server == config.server


def test_check_command_validates_the_file(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = cli("serve", "--check")
    assert code == 3
    assert "polyaforest.toml does not exist" in err
    (tmp_path / "polyaforest.toml").write_text("[streams.web]\nby = 3\n")
    code, _, err = cli("serve", "--check")
    assert code == 3
    assert "polyaforest.toml, line 2: streams.web.by" in err
    (tmp_path / "polyaforest.toml").write_text(GOOD)
    code, _, err = cli("serve", "--check")
    assert (code, err) == (0, "polyaforest.toml is valid: web, prod.\n")
    code, _, err = cli("serve", "--demo", "polyaforest.toml")
    assert code == 2


@pytest.mark.parametrize(
    ("text", "line", "key", "words"),
    [
        ("[streams.a]\nsource = 'redis://h/0'\n", 2, "streams.a.source", "no stream"),
        ("[streams.a]\nsource = 'redis://h/0?stream=x&bogus=1'\n", 2, "streams.a.source", "bogus"),
        ("[streams.a]\nsource = 'kafka://h'\n", 2, "streams.a.source", "kafka://host:port/topic"),
        ("[streams.a]\nsource = '.'\n", 2, "streams.a.source", "is a directory"),
        ("[streams.a]\n[[alerts]]\nname = 'x'\nurl = 'nothing://y'\n", 4, "alerts.0.url", "apprise"),
        ("[streams.a]\n[[alerts]]\nname = 'x'\nurl = 'http://'\n", 4, "alerts.0.url", "http://host:port"),
        ("[streams.a]\n[[alerts]]\nname = 'x'\nurl_file = 'gone'\n", 4, "alerts.0.url_file", "gone: No such file"),
        ("[streams.a]\n[[alerts]]\nname = 'x'\nurl_env = 'GONE'\n", 4, "alerts.0.url_env", "GONE is not set"),
        ("[server]\nadmin_token_file = 'gone'\n[streams.a]\n", 2, "server.admin_token_file", "gone: No such file"),
        ("[server]\nadmin_token_file = 'short'\n[streams.a]\n", 2, "server.admin_token_file", "at least 16"),
        ("[server]\nhost = '0.0.0.0'\n[streams.a]\n", 2, "server.host", "other machines can reach"),
        ("[server]\nadmin_token_file = 'long'\nhost = '192.0.2.1'\n[streams.a]\n", 3, "server.host", "assign"),
        ("[server]\ndata = 'short'\n[streams.a]\n", 2, "server.data", "not a folder"),
        (
            "[streams.a]\nsource = 'prometheus'\n[streams.a.prometheus]\nurl = 'http://h'\nqueries = {x = 'y'}\n"
            "token_file = 'gone'\n",
            6,
            "streams.a.prometheus.token_file",
            "gone: No such file",
        ),
    ],
)
def test_check_finds_what_a_start_would_fail_at(cli, tmp_path, monkeypatch, text, line, key, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short").write_text("too-short")
    (tmp_path / "long").write_text("a-token-of-twenty-chars")
    (tmp_path / "polyaforest.toml").write_text(text)
    for options in (["--check"], ["--port", "0", "--quiet"]):
        code, _, err = cli("serve", *options)
        assert code == 3
        assert f"polyaforest.toml, line {line}: {key}: " in err
        assert words in err


def test_stream_with_all_defaults_round_trips():
    config = parse_config("[streams.a]\n[streams.b]\ntrees = 3\n")
    assert parse_config(to_toml(public(config))).streams == config.streams


def test_shown_settings_are_valid_toml_for_any_text_and_infinite_bounds():
    config = parse_config('[streams.a]\ncolumns = ["😀", "\\u007f"]\ngates.valid = {"😀" = [0, inf]}\n')
    assert parse_config(to_toml(public(config))).streams == config.streams


def test_windows_of_many_days_are_shown_exactly():
    config = parse_config('[streams.a]\ntime = "t"\nwindow = "30 days"\n')
    assert 'window = "2592000s"' in to_toml(public(config))
    assert parse_config(to_toml(public(config))).streams == config.streams
    stream = config.streams["a"]
    assert stream.with_settings({"window": stream.settings["window"]}) == stream


def test_ranges_of_fields_that_are_not_unicode_are_rejected():
    with pytest.raises(ValueError, match=r"the field name '\\ud800' is not valid Unicode"):
        Table(Gates).check({"valid": {"\ud800": [0, 1]}})
