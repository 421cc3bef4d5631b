"""Operators at work on the page, in a real browser: events, mutes, annotations, causes and settings."""

import re
from io import BytesIO

import numpy as np
import pytest
import yaml
from browsers import expect
from PIL import Image
from services import START, WEB, odd, post, rows
from waiting import until

pytestmark = pytest.mark.end_to_end

CONFIG = "# keep me\n" + WEB + "series = false\n"
N = 150
ACCENT = (20, 80, 125)  # of the light theme


@pytest.fixture(scope="module")
def service(make):
    """A service with two hosts, each with an open event. A test leaves both open and changes no setting."""
    made = make(CONFIG)
    for host in ("web-1", "web-2"):
        made.post("web", [*rows(N, host=host), odd(N, host=host)], verdicts="none").raise_for_status()
    return made


def event_of(service, host):
    (event,) = service.get("/events", key=host, open=True)["events"]
    return event


def test_event_is_acknowledged_muted_closed_and_reopened(service, look):
    event = event_of(service, "web-1")
    tab = look(service, f"/event/web/{event['id']}")
    page = tab.page
    page.get_by_label("Your name").first.fill("Ada")
    page.get_by_label("Note", exact=True).fill("on it <b>")
    page.get_by_role("button", name="Acknowledge").click()
    expect(page.locator(".acknowledged")).to_contain_text("Acknowledged by Ada")
    expect(page.locator(".acknowledged")).to_contain_text("“on it <b>”")
    page.get_by_text("Mute …").click()
    assert not tab.faults()
    expect(page.get_by_label("Your name").last).to_have_value("Ada")  # remembered
    page.get_by_label("What", exact=True).select_option("both")
    page.get_by_label("For", exact=True).select_option("3600")
    page.get_by_label("Reason").fill("deploy")
    page.get_by_role("button", name="Mute", exact=True).click()
    page.locator(".mutes li", has_text="cpu of key web-1").wait_for()
    (rule,) = service.get("/streams/web/mutes")["mutes"]
    assert (rule["key"], rule["field"], rule["reason"]) == ("web-1", "cpu", "deploy")
    assert rule["who"].startswith("Ada (")
    page.get_by_role("button", name=re.compile("Remove the rule")).click()
    page.get_by_text("Nothing is muted.").wait_for()
    page.get_by_role("button", name="Close", exact=True).click()
    page.get_by_role("button", name="Reopen").wait_for()
    page.locator(".audit li", has_text="close").first.wait_for()
    page.get_by_role("button", name="Reopen").click()
    page.get_by_text("it stays open until it is closed here", exact=False).wait_for()
    tab.open("/")
    page.locator(".attention .event-row", has_text="web-1").wait_for()


@pytest.mark.slow
def test_mute_form_rejects_a_bad_pattern(service, look):
    tab = look(service, "/stream/web/web-1", size="phone")
    page = tab.page
    page.get_by_text("Mute …").click()
    page.get_by_label("What", exact=True).last.select_option("pattern")
    page.get_by_label("Pattern (regular expression)").fill("(")
    page.get_by_role("button", name="Mute", exact=True).click()
    page.locator(".mute-form .problem", has_text="regular expression").wait_for()
    assert not tab.faults()
    tab.wait_until_it_fits()
    tab.expected.append("422")


def test_deployment_is_marked_on_the_charts(service, look):
    made = {"text": "v2 <i>", "start": START + 60 * N / 2, "stream": "web"}
    service.client.post("/api/v1/annotations", json=made).raise_for_status()
    page = look(service, f"/stream/web/web-1?from={START}&to={START + 60 * N}").page
    page.locator(".annotations li", has_text="v2 <i>").wait_for()
    page.mouse.move(0, 0)
    plot = page.locator(".u-over").last

    def is_marked():
        picture = np.asarray(Image.open(BytesIO(plot.screenshot())).convert("RGB")).astype(int)
        line = (np.abs(picture - ACCENT).sum(axis=2) < 60).sum(axis=0)
        return abs(int(line.argmax()) - picture.shape[1] / 2) <= 2 and line.max() > picture.shape[0] / 4

    until(is_marked)
    page.get_by_role("button", name="Delete the annotation v2 <i>").click()
    page.get_by_text("None in this range.").wait_for()
    page.get_by_text("Mark a deployment now …").click()
    page.get_by_label("What", exact=True).first.fill("v3")
    page.get_by_role("button", name="Mark", exact=True).click()
    until(lambda: [one["text"] for one in service.get("/annotations")["annotations"]] == ["v3"])


@pytest.mark.slow
def test_overview_lists_events_by_cause(service, look):
    tab = look(service, "/")
    tab.page.get_by_text("Events by cause").click()
    cause = tab.page.locator(".cause", has_text="cpu too high")
    expect(cause).to_contain_text("2 open")
    assert not tab.faults()


def test_settings_form_explains_checks_and_applies(start, look):
    service = start(CONFIG)
    service.post("web", rows(N), verdicts="none").raise_for_status()
    tab = look(service, "/settings")
    page = tab.page
    page.get_by_text("All settings: explain and change").click()
    page.get_by_label("false alarm rate", exact=True).wait_for()
    assert not tab.faults()
    tab.wait_until_it_fits()
    page.get_by_label("trees", exact=True).fill("30")
    page.get_by_label("gates: direction").select_option("high")
    page.get_by_label("silence", exact=True).fill("10 parsecs")
    page.get_by_role("button", name="Check", exact=True).click()
    page.locator(".settings-form .problem", has_text="is not a duration").wait_for()
    page.get_by_label("silence", exact=True).fill("10m")
    page.get_by_role("button", name="Check", exact=True).click()
    page.get_by_text("Relearns from the history because of trees.").wait_for()
    assert "trees = 20" in (service.folder / "polyaforest.toml").read_text()
    page.get_by_role("button", name="Apply", exact=True).click()
    until(lambda: service.get("/streams/web")["settings"]["silence"] == 600.0)
    text = (service.folder / "polyaforest.toml").read_text()
    assert text.startswith("# keep me\n")
    assert all(line in text for line in ("trees = 30", 'silence = "10m"', "[streams.web.gates]", 'direction = "high"'))
    tab.expected.append("422")


METRICS = """
[streams.shop]
source = "otlp"
[streams.shop.metrics]
fields = {queue = "queue.length", rate = "rate(orders)"}
by = ["service.name"]
wait = "0.2s"
[streams.nodes]
source = "remote-write"
[streams.nodes.metrics]
fields = {load = "node_load1", user = 'rate(node_cpu_seconds_total{mode="user"})'}
[streams.file]
source = "missing.jsonl"
"""


def otlp(name, number=0):
    """Return a request with one sample."""
    point = {"timeUnixNano": str(int(START + number) * 10**9), "asDouble": 7.0}
    attributes = [{"key": "service.name", "value": {"stringValue": "checkout"}}]
    metrics = [{"name": name, "gauge": {"dataPoints": [point]}}]
    return {"resourceMetrics": [{"resource": {"attributes": attributes}, "scopeMetrics": [{"metrics": metrics}]}]}


def test_empty_streams_show_how_to_send_metrics(start, look):
    service = start(METRICS)
    tab = look(service, "/")
    page = tab.page
    shop, nodes, file = (page.locator(".panel.empty", has_text=f"No records in {name} yet") for name in
                         ("shop", "nodes", "file"))  # fmt: skip
    expect(shop).to_contain_text("Nothing has arrived yet.")
    expect(file).to_contain_text(re.compile(r"This stream reads from .*missing\.jsonl"))
    collector = yaml.safe_load(shop.locator("pre").first.text_content())
    assert collector["exporters"]["otlphttp/polyaforest"] == {"endpoint": service.url}
    expect(shop.locator("pre").last).to_contain_text(f"METRICS_ENDPOINT={service.url}/v1/metrics")
    (write,) = yaml.safe_load(nodes.locator("pre").text_content())["remote_write"]
    assert write["url"] == f"{service.url}/api/v1/write"
    assert write["write_relabel_configs"][0]["regex"] == "node_load1|node_cpu_seconds_total"
    assert not tab.faults()
    tab.wait_until_it_fits()
    place = collector["exporters"]["otlphttp/polyaforest"]["endpoint"] + "/v1/metrics"
    post(place, json=otlp("queue.size")).raise_for_status()
    expect(shop).to_contain_text("Metrics arrive, but none for these fields.")
    expect(shop).to_contain_text("No field uses: queue.size.")
    post(place, json=otlp("queue.length", 60)).raise_for_status()
    page.locator(".lane", has_text="checkout").wait_for()
    expect(shop).to_have_count(0)
