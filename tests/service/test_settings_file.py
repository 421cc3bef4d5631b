"""Changes of the configuration file from the page."""

import stat

import pytest
from services import WEB, Service, rows

from polyaforest.io.errors import BadInput
from polyaforest.service.config import StreamConfig, parse_config
from polyaforest.service.settings_file import describe_settings, edited, write_settings

pytestmark = pytest.mark.end_to_end

TEXT = """# top
[streams.web]   # my stream
time = "time"
trees = 20  # few

[streams.web.gates]
direction = "high"

[streams.b]
"""


def test_edits_keep_comments_and_order():
    values = {"trees": None, "silence": "5m", "gates.smallest_absolute": 2.5, "calendar": ["time of day"]}
    text = edited(TEXT, "web", values)
    assert text.startswith('# top\n[streams.web]   # my stream\ntime = "time"\n')
    assert "trees" not in text
    stream = parse_config(text).streams["web"]
    assert (stream.silence, stream.gates.smallest_absolute, stream.gates.direction) == (300.0, 2.5, "high")
    assert parse_config(edited(TEXT, "b", {"gates.direction": "low"})).streams["b"].gates.direction == "low"
    assert edited(TEXT, "b", {"gates.direction": None}) == TEXT


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"by": "x"}, "by cannot be changed here"),
        ({"mute": []}, "no setting 'mute'"),
        ({"trees": "many"}, "trees: must be a whole number"),
        ({"window": "2 parsecs"}, "window"),
    ],
)
def test_invalid_edits_are_rejected(values, words):
    with pytest.raises(BadInput, match=words):
        edited(TEXT, "web", values)


def test_every_setting_is_explained():
    found = {facts["name"]: facts for facts in describe_settings(StreamConfig())}
    assert all(facts["help"] and facts["effect"] for facts in found.values())
    assert found["trees"]["default"] == 100
    assert found["by"]["is_fixed"]
    assert found["gates.direction"]["schema"] == {"enum": ["both", "high", "low"]}


def test_file_keeps_its_permissions(tmp_path):
    path = tmp_path / "polyaforest.toml"
    path.write_text("a")
    path.chmod(0o640)
    write_settings(str(path), "b")
    assert path.read_text() == "b"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.slow
def test_change_that_a_stream_cannot_apply_leaves_the_file(programs, tmp_path):
    service = Service(programs, tmp_path, WEB).start()
    try:
        service.post("web", rows(50), verdicts="none").raise_for_status()
        before = (tmp_path / "polyaforest.toml").read_text()
        path = "/api/v1/streams/web/settings"
        assert service.client.post(path, json={"values": {"by": "shop"}}).status_code == 422
        assert (
            service.client.post(path, json={"values": {"calendar": ["time of day"], "series": False}}).status_code
            == 422
        )
        assert (tmp_path / "polyaforest.toml").read_text() == before
        done = service.client.post(path, json={"values": {"merge": 5}})
        assert done.status_code == 200, done.text
        assert done.json()["applied"] == {"web": {"merge": [None, 5]}}
    finally:
        service.close()
