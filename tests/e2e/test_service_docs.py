"""The page about the service: its configuration is valid, its examples answer what is printed."""

import re
import subprocess
from pathlib import Path

from services import Service

from polyaforest.service.config import StreamConfig, parse_config

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "serve.md").read_text("utf-8")
BLOCK = re.compile(r"^```(?P<kind>toml|console)\n(?P<text>.*?)^```$", re.M | re.S)
FOUND = [(found["kind"], found["text"]) for found in BLOCK.finditer(PAGE)]


def test_the_configuration_of_the_page_is_valid():
    (text,) = [text for kind, text in FOUND if kind == "toml"]
    config = parse_config(text)
    assert list(config.streams) == ["web", "sensor", "cluster"]
    named = set(re.findall(r"^\| (`.*?`) \|", PAGE, re.M))
    documented = {name.partition(".")[0] for cell in named for name in re.findall(r"`([\w.]+)`", cell)}
    tables = {"gates", "mute", "calendars", "prometheus"}  # explained by the example
    assert documented == set(StreamConfig.model_fields) - tables


def test_the_examples_answer_what_is_printed(programs, tmp_path):
    service = Service(programs, tmp_path, '[streams.web]\ntime = "time"\nby = "host"\nid = "id"\n').start()
    n_run = 0
    try:
        for text in [text for kind, text in FOUND if kind == "console" and "curl" in text]:
            for example in re.split(r"^\$ ", text, flags=re.M)[1:]:
                command, _, printed = example.partition("\n")
                asked = command.replace("localhost:8420", service.url.removeprefix("http://"))
                answer = subprocess.run(asked, shell=True, capture_output=True, text=True, check=True).stdout
                pattern = ".*?".join(map(re.escape, printed.strip().split("…")))
                assert re.fullmatch(pattern, answer), (command, answer)
                n_run += 1
    finally:
        service.close()
    assert n_run == 4


def test_the_error_of_the_page_is_that_of_the_program(programs, tmp_path):
    (printed,) = [text.partition("\n")[2] for kind, text in FOUND if kind == "console" and "--check" in text]
    (tmp_path / "polyaforest.toml").write_text('[streams.web]\ntime = "time"\nwindwo = 512\n')
    checked = programs.run("serve", "--check", cwd=tmp_path)
    assert checked.stderr.decode() == printed
