"""The charts and the overview of the page, in a real browser: what is drawn, and where."""

import re
from io import BytesIO

import numpy as np
import pytest
from browsers import Tab, browser
from PIL import Image
from services import START, WEB, Service, odd, rows
from waiting import until

pytestmark = pytest.mark.end_to_end

LINE, FLAG, MARK, OPEN = (29, 58, 82), (194, 65, 12), (43, 18, 6), (179, 18, 43)  # of the light theme
N = 74
LONG = "eu-central-1/production/checkout-service/pod-7f9c"


@pytest.fixture(scope="module")
def chromium():
    with browser() as started:
        yield started


@pytest.fixture(scope="module")
def service(programs, tmp_path_factory):
    """A service with a young host, a host with many records and an open event, and a silent one with an open event."""
    made = Service(programs, tmp_path_factory.mktemp("service"), WEB + "series = false\n").start()
    assert made.post("web", rows(N, host="young"), verdicts="none").status_code == 200
    busy = rows(3000, 1500, host=LONG, step=1.0)
    assert made.post("web", [*busy, odd(4500, host=LONG, step=1.0)], verdicts="none").status_code == 200
    yield made
    made.close()


@pytest.fixture
def look(chromium, service):
    """Open a tab; check at the end that it reported no problem."""
    tabs = []

    def begin(route, **options):
        tabs.append(Tab(chromium, service.url, **options))
        return tabs[-1].open(route)

    yield begin
    problems = [problem for tab in tabs for problem in tab.problems]
    for tab in tabs:
        tab.close()
    assert not problems


def pixels(locator, colour, tolerance=40):
    """Return which pixels of an element have a colour."""
    picture = np.asarray(Image.open(BytesIO(locator.screenshot())).convert("RGB")).astype(int)
    return np.abs(picture - colour).sum(axis=2) <= tolerance


def open_stream(look, key, query="", **options):
    page = look(f"/stream/web/{key.replace('/', '%2F')}{query}", **options)
    page.locator(".chart").nth(3).wait_for()
    page.mouse.move(0, 0)
    return page


@pytest.mark.parametrize("size", ["desktop", pytest.param("phone", marks=pytest.mark.slow)])
def test_newest_reading_is_drawn_inside_the_chart(look, size):
    page = open_stream(look, "young", size=size)
    assert page.get_by_role("button", name="All", exact=True).get_attribute("aria-pressed") == "true"
    for chart in page.locator(".u-wrap").all():
        panel, box = page.locator(".charts-panel").bounding_box(), chart.bounding_box()
        assert box["x"] + box["width"] <= panel["x"] + panel["width"]
    plot = page.locator(".u-over").first
    columns = np.flatnonzero(pixels(plot, LINE).any(axis=0))
    width = plot.bounding_box()["width"]
    assert columns[-1] == pytest.approx(width * 4380 / 4500 / 1.015, abs=4)  # a live range has room on the right
    assert columns[0] < 6


def test_mark_of_a_flagged_newest_reading_is_drawn_whole(look, service):
    page = open_stream(look, LONG, "?last=300s")
    plot = page.locator(".u-over").first
    marks = np.argwhere(pixels(plot, FLAG))
    assert marks[:, 1].max() < plot.bounding_box()["width"] - 1
    assert np.ptp(marks[:, 1]) >= 4


def test_flagged_and_open_is_marked_among_many_records(look):
    """3,001 records in one cell of a week, one of them flagged."""
    page = look("/?last=7d")
    page.locator(".lane.is-open").wait_for()
    page.mouse.move(0, 0)
    strip = page.locator(".lane.is-open .strip")
    assert pixels(strip, MARK).any()
    assert pixels(strip, OPEN).any()
    assert page.locator(".lane.is-open .chip.open").is_visible()


def test_open_event_outside_the_range_has_a_lane(look):
    page = look(f"/?from={START - 7200}&to={START - 3600}")
    lane = page.locator(".lane.is-open")
    lane.wait_for()
    assert LONG in lane.text_content()


def test_names_are_shown_in_full_where_there_is_room(look):
    page = look("/")
    name = page.locator(".lane .name", has_text=LONG)
    name.wait_for()
    assert name.evaluate("element => element.scrollWidth <= element.clientWidth")


def test_zoom_keeps_the_newest_reading_and_the_keyboard(look):
    page = open_stream(look, "young")

    def span():
        return [float(part) for part in re.findall(r"(?:from|to)=([\d.]+)", page.url)]

    for _ in range(4):
        page.keyboard.press("+")  # wherever the focus is
    page.wait_for_url(re.compile(r"last=\d"))
    notes = page.locator(".chart-notes")
    until(lambda: re.match("[345] records", notes.text_content()))  # the newest ones
    for _ in range(6):
        page.keyboard.press("ArrowLeft")
    page.wait_for_url(re.compile("from="))
    before = span()
    page.keyboard.press("-")
    until(lambda: span() != before)
    assert span()[1] - span()[0] == pytest.approx(2 * (before[1] - before[0]), rel=0.01)
    page.keyboard.press("Escape")
    page.wait_for_url(re.compile("last=all"))
    page.goto(page.url.split("#")[0] + f"#/stream/web/young?from={START + 90000}&to={START + 93600}")
    page.get_by_text("No records in this range").wait_for()
    page.keyboard.press("Escape")
    page.wait_for_url(re.compile("last=all"))
    page.locator(".chart").nth(3).wait_for()


def test_charts_without_records_keep_the_focus(look):
    page = open_stream(look, "young")
    page.locator(".charts").focus()
    page.keyboard.press("-")
    for _ in range(8):
        page.keyboard.press("+")  # 32 s between readings of 60 s
    for _ in range(2):
        page.keyboard.press("ArrowLeft")
    page.get_by_text("No records in this range").wait_for()
    assert page.locator(".charts-panel").is_visible()
    assert page.evaluate("document.activeElement.className") == "charts"
    page.keyboard.press("Escape")
    page.wait_for_url(re.compile("last=all"))


def test_times_are_round_and_ranges_have_both_dates(look):
    page = look(f"/?from={START - 86400}&to={START + 4440}")
    page.locator(".lane").first.wait_for()
    words = page.locator(".range-words").text_content()
    assert words == "13 Nov 2023 22:13:20 – 14 Nov 2023 23:27:20 (1 d 1 h)"
    labels = page.locator(".lane-axis span").all_text_contents()
    assert len(labels) > 3
    assert all(re.fullmatch(r"\d\d:00|14 Nov 2023", label) for label in labels)
    assert page.locator(".lane-columns").inner_text().startswith("Key")


def test_overview_searches_keys_and_events_and_filters_streams(look):
    page = look("/")
    page.locator(".lane .lane-name").nth(1).wait_for()
    page.get_by_label("Search keys and events").fill("YOUNG")
    until(lambda: page.locator(".lane .lane-name").count() == 1)
    until(lambda: page.locator(".attention .event-row").count() == 0)
    page.wait_for_url(re.compile("search=YOUNG"))
    page.reload()  # it is in the address
    until(lambda: page.locator(".lane .lane-name").count() == 1)
    page.get_by_label("Search keys and events").fill("cpu 99")
    page.locator(".attention .event-row", has_text="cpu 99").wait_for()


def test_list_and_event_give_one_rarity(look, service):
    (event,) = service.get("/events", key=LONG, open=True)["events"]
    rarity = float(f"{2 ** event['tail_bits']:.2g}")
    words = f"1 in {rarity:,.0f} normal records is this unusual"
    page = look("/")
    chip = page.locator(".attention .grade")
    chip.wait_for()
    assert chip.get_attribute("title").startswith(words)
    page = look(f"/event/web/{event['id']}")
    page.locator(".reason").first.wait_for()
    assert f"Severity {event['severity']} of 5: {words}" in page.locator(".verdict").text_content()
    said = page.locator("main").inner_text()
    assert "million times" not in said
    assert "points fall here" not in said
    assert f"p = {event['p_value']:.3g}" not in said
    assert set(re.findall(r"1 in [\d,]+", said)) == {words.split(" normal", maxsplit=1)[0]}
