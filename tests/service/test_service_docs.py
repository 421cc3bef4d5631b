"""The guide to serve: its configuration is valid, its examples return the printed output."""

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from services import Service, rows

from polyaforest.cli import main as program
from polyaforest.service.changes import KINDS
from polyaforest.service.config import ServerConfig, StreamConfig, parse_config
from polyaforest.settings.stream import Effect

pytestmark = pytest.mark.end_to_end

GUIDES = Path(__file__).parents[2] / "docs" / "how-to"
PAGE, API = ((GUIDES / name).read_text("utf-8") for name in ("serve.md", "api.md"))
BLOCK = re.compile(r"^```(?P<kind>toml|console)\n(?P<text>.*?)^```$", re.M | re.S)
_spec = importlib.util.spec_from_file_location("make_settings", Path(__file__).parents[2] / "docs" / "make_settings.py")
make_settings = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(make_settings)
FOUND = [(found["kind"], found["text"]) for found in BLOCK.finditer(PAGE)]


def test_configuration_in_the_guide_is_valid():
    (text,) = [text for kind, text in FOUND if kind == "toml"]
    config = parse_config(text)
    assert list(config.streams) == ["web", "sensor", "cluster"]
    listed = set(re.findall(r"^\| `([\w.]+)` \|", make_settings.page(), re.M))
    tables = {"gates", "mute", "maintenance"}  # explained by the example
    assert listed == set(StreamConfig.model_fields) - tables
    in_text = {"host", "port", "data", "admin_token_file", "read_token_file", "key_labels"}
    assert keys_in_table("key of `[server]`") == set(ServerConfig.model_fields) - in_text
    assert all(name in PAGE for name in in_text)


def test_page_of_settings_is_that_of_the_schema():
    assert make_settings.PAGE.read_text("utf-8") == make_settings.page(), "run: python docs/make_settings.py"
    command = program.get_command(None, "watch")
    listed = set(re.findall(r"`(--[a-z-]+)`", make_settings.page())) | {"--from", "--follow", "--help"}
    assert {option for parameter in command.params for option in parameter.opts if option.startswith("--")} <= listed


def keys_in_table(title):
    """Return the keys in the first column of a table of the guide."""
    rows = PAGE.partition(f"| {title} |")[2].partition("\n\n")[0]
    cells = re.findall(r"^\| (`.*?`) \|", rows, re.M)
    return {name.partition(".")[0] for cell in cells for name in re.findall(r"`([\w.]+)`", cell)}


def test_examples_in_the_guide_return_the_printed_output(programs, tmp_path):
    service = Service(programs, tmp_path, '[streams.web]\ntime = "time"\nby = "host"\nid = "id"\n').start()
    n_run = 0
    api = [(found["kind"], found["text"]) for found in BLOCK.finditer(API)]
    try:
        for text in [text for kind, text in [*FOUND, *api] if kind == "console" and "curl" in text]:
            for example in re.split(r"^\$ ", text, flags=re.M)[1:]:
                command, _, printed = example.partition("\n")
                asked = command.replace("localhost:8420", service.url.removeprefix("http://"))
                answer = subprocess.run(asked, shell=True, cwd=tmp_path, capture_output=True, text=True, check=True)
                pattern = ".*?".join(map(re.escape, printed.strip().split("…")))
                assert re.fullmatch(pattern, answer.stdout), (command, answer.stdout)
                n_run += 1
    finally:
        service.close()
    assert n_run == 7
    assert (tmp_path / "web.csv").read_text().startswith("time,key,position,")


def test_other_guides_configure_the_service(tmp_path):
    for page in ("api.md", "metrics.md"):
        found = [
            found["text"] for found in BLOCK.finditer((GUIDES / page).read_text("utf-8")) if found["kind"] == "toml"
        ]
        for text in found:
            needed = "" if "[streams." in text else "[streams.web]\n"
            assert parse_config(needed + text).streams
        assert len(found) == {"api.md": 1, "metrics.md": 3}[page]


def test_prometheus_accepts_the_configuration_in_the_guide(tmp_path):
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    text = (GUIDES / "metrics.md").read_text("utf-8")
    blocks = re.findall(r"^```yaml\n(remote_write:.*?)^```", text, re.M | re.S)
    assert len(blocks) == 2
    (tmp_path / "write-token").write_text("secret")
    for block in blocks:
        (tmp_path / "prometheus.yml").write_text(block)
        subprocess.run([program, "check", "config", "prometheus.yml"], cwd=tmp_path, check=True, capture_output=True)


def test_guide_shows_the_output_of_check(programs, tmp_path):
    error, changes = [text.partition("\n")[2] for kind, text in FOUND if kind == "console" and "--check" in text]
    file = tmp_path / "polyaforest.toml"
    file.write_text('[streams.web]\ntime = "time"\nwindwo = 512\n')
    assert programs.run("serve", "--check", cwd=tmp_path).stderr.decode() == error
    file.write_text('[streams.web]\ntime = "time"\nby = "host"\n')
    service = Service(programs, tmp_path, file.read_text()).start()
    try:
        service.post("web", rows(500), verdicts="none").raise_for_status()
        assert service.stop() == 0
    finally:
        service.close()
    file.write_text(file.read_text() + "false_alarm_rate = 0.001\ntrees = 50\n")
    assert programs.run("serve", "--check", "polyaforest.toml", cwd=tmp_path).stderr.decode() == changes


def test_guide_lists_the_effect_of_every_setting():
    """Each row of the table lists the settings of one kind."""
    section = PAGE.partition("## Change settings")[2].partition("```console")[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    tables = ("gates", "retention")
    for kind, cell in zip((Effect.APPLIED, Effect.RELEARNED, Effect.NEW_STREAM), cells, strict=False):
        named = set(re.findall(r"`(\w+)`", cell)) - {"prometheus", "queries", "metrics", "fields", "tokens"}
        own = {name.partition(".")[0] if name.startswith(tables) else name for name in KINDS if KINDS[name] is kind}
        others = ("prometheus.", "metrics.", "alerts", "streams", "server.tokens")  # named in words
        own = {name for name in own if not name.startswith(others)}
        assert named - ({"by"} if kind is Effect.APPLIED else set()) == own, kind
    assert cells[3].strip() == "`[server]`"
