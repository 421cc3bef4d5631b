"""The charts and the overview of the page, in a real browser: what is drawn, and where."""

import re
from io import BytesIO

import numpy as np
import pytest
from browsers import expect
from PIL import Image
from services import START, WEB, odd, rows
from waiting import until

pytestmark = pytest.mark.end_to_end

LINE, FLAG, MARK, OPEN = (29, 58, 82), (194, 65, 12), (43, 18, 6), (179, 18, 43)  # of the light theme
N = 74
LONG = "eu-central-1/production/checkout-service/pod-7f9c"


@pytest.fixture(scope="module")
def service(make):
    """A service with a young host, a host with many records and an open event, and a silent one with an open event."""
    made = make(WEB + "series = false\n")
    assert made.post("web", rows(N, host="young"), verdicts="none").status_code == 200
    busy = rows(3000, 1500, host=LONG, step=1.0)
    assert made.post("web", [*busy, odd(4500, host=LONG, step=1.0)], verdicts="none").status_code == 200
    return made


@pytest.fixture
def show(look, service):
    """Open a screen in a tab; return the tab."""
    return lambda route, **options: look(service, route, **options)


def pixels(locator, colour, tolerance=40):
    """Return which pixels of an element have a colour."""
    picture = np.asarray(Image.open(BytesIO(locator.screenshot())).convert("RGB")).astype(int)
    return np.abs(picture - colour).sum(axis=2) <= tolerance


def open_stream(show, key, query="", **options):
    tab = show(f"/stream/web/{key.replace('/', '%2F')}{query}", **options)
    tab.page.locator(".chart").nth(3).wait_for()
    tab.page.mouse.move(0, 0)
    return tab


@pytest.mark.parametrize("size", ["desktop", pytest.param("phone", marks=pytest.mark.slow)])
def test_newest_reading_is_drawn_inside_the_chart(show, size):
    page = open_stream(show, "young", size=size).page
    expect(page.get_by_role("button", name="All", exact=True)).to_have_attribute("aria-pressed", "true")

    def right(element):
        box = element.bounding_box()
        return box["x"] + box["width"]

    until(lambda: max(map(right, page.locator(".u-wrap").all())) <= right(page.locator(".charts-panel")))
    plot = page.locator(".u-over").first

    def ends():
        """Columns of the first and the last pixel of the line, and the width."""
        columns = np.flatnonzero(pixels(plot, LINE).any(axis=0))
        return [*columns[[0, -1]], plot.bounding_box()["width"]] if len(columns) else [np.inf, np.inf, 0.0]

    def is_whole():
        first, last, width = ends()
        return first < 6 and abs(last - width * 4380 / 4500 / 1.015) <= 4  # a live range has room on the right

    until(is_whole)


def test_mark_of_a_flagged_newest_reading_is_drawn_whole(show):
    plot = open_stream(show, LONG, "?last=300s").page.locator(".u-over").first

    def is_whole():
        columns = np.flatnonzero(pixels(plot, FLAG).any(axis=0))
        return len(columns) and np.ptp(columns) >= 4 and columns[-1] < plot.bounding_box()["width"] - 1

    until(is_whole)


def test_flagged_and_open_is_marked_among_many_records(show):
    """3,001 records in one cell of a week, one of them flagged."""
    page = show("/?last=7d").page
    page.locator(".lane.is-open").wait_for()
    page.mouse.move(0, 0)
    strip = page.locator(".lane.is-open .strip")
    until(lambda: pixels(strip, MARK).any() and pixels(strip, OPEN).any())
    expect(page.locator(".lane.is-open .chip.open")).to_be_visible()


def test_open_event_outside_the_range_has_a_lane(show):
    page = show(f"/?from={START - 7200}&to={START - 3600}").page
    expect(page.locator(".lane.is-open")).to_contain_text(LONG)


def test_names_are_shown_in_full_where_there_is_room(show):
    name = show("/").page.locator(".lane .name", has_text=LONG)
    name.wait_for()
    until(lambda: name.evaluate("element => element.scrollWidth <= element.clientWidth"))


def test_zoom_keeps_the_newest_reading_and_the_keyboard(show):
    tab = open_stream(show, "young")
    page = tab.page

    def span():
        return [float(part) for part in re.findall(r"(?:from|to)=([\d.]+)", tab.address)]

    for _ in range(4):
        page.keyboard.press("+")  # wherever the focus is
    page.wait_for_url(re.compile(r"last=\d"))
    expect(page.locator(".chart-notes")).to_contain_text(re.compile("^[345] records"))  # the newest ones
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


def test_charts_without_records_keep_the_focus(show):
    page = open_stream(show, "young").page
    page.locator(".charts").focus()
    page.keyboard.press("-")
    for _ in range(8):
        page.keyboard.press("+")  # 32 s between readings of 60 s
    for _ in range(2):
        page.keyboard.press("ArrowLeft")
    page.get_by_text("No records in this range").wait_for()
    expect(page.locator(".charts-panel")).to_be_visible()
    expect(page.locator(".charts")).to_be_focused()
    page.keyboard.press("Escape")
    page.wait_for_url(re.compile("last=all"))


def test_times_are_round_and_ranges_have_both_dates(show):
    page = show(f"/?from={START - 86400}&to={START + 4440}").page
    page.locator(".lane").first.wait_for()
    words = page.locator(".range-words")
    expect(words).to_have_text("13 Nov 2023 22:13:20 – 14 Nov 2023 23:27:20 (1 d 1 h)")
    page.locator(".lane-axis span").nth(3).wait_for()
    labels = page.locator(".lane-axis span").all_text_contents()
    assert all(re.fullmatch(r"\d\d:00|14 Nov 2023", label) for label in labels)
    expect(page.locator(".lane-columns")).to_have_text(re.compile("^Key"))
    show_day = f"#/?from={START}&to={START + 3600}"
    page.goto(page.url.split("#")[0] + show_day)
    expect(words).to_have_text("14 Nov 2023 22:13:20 – 14 Nov 2023 23:13:20 (1 h)")


def test_overview_searches_keys_and_events_and_filters_streams(show):
    page = show("/").page
    page.locator(".lane .lane-name").nth(1).wait_for()
    page.get_by_label("Search keys and events").fill("YOUNG")
    expect(page.locator(".lane .lane-name")).to_have_count(1)
    expect(page.locator(".attention .event-row")).to_have_count(0)
    page.wait_for_url(re.compile("search=YOUNG"))
    expect(page.locator("h1").first).to_have_text("1 event open, hidden by the filters")
    page.reload()  # it is in the address
    expect(page.locator(".lane .lane-name")).to_have_count(1)
    page.get_by_label("Search keys and events").fill("cpu 99")
    page.locator(".attention .event-row", has_text="cpu 99").wait_for()


def test_long_name_of_a_stream_is_cut_only_beside_a_long_key(show):
    page = show("/").page
    names = page.locator(".lane .lane-stream")
    expect(names).to_have_count(2)
    assert {one.get_attribute("title") for one in names.all()} == {"web"}
    names.evaluate_all("all => all.forEach(one => (one.textContent = 'w'.repeat(25)))")  # as if it had this name
    page.set_viewport_size({"width": 1270, "height": 800})
    expect(page.locator(".lane.is-whole")).to_have_count(1)
    for key, expected in {LONG: True, "young": False}.items():
        name = page.locator(".lane", has_text=key).locator(".lane-stream")
        assert name.evaluate("one => one.scrollWidth > one.clientWidth") == expected


def test_list_and_event_give_one_rarity(show, service):
    (event,) = service.get("/events", key=LONG, open=True)["events"]
    rarity = float(f"{2 ** event['tail_bits']:.2g}")
    words = f"1 in {rarity:,.0f} normal records is this unusual"
    chip = show("/").page.locator(".attention .grade")
    expect(chip).to_have_attribute("title", re.compile(f"^{re.escape(words)}"))
    page = show(f"/event/web/{event['id']}").page
    page.locator(".reason").first.wait_for()
    expect(page.locator(".verdict")).to_contain_text(f"Severity {event['severity']} of 5: {words}")
    said = page.locator("main").inner_text()
    assert "million times" not in said
    assert "points fall here" not in said
    assert f"p = {event['p_value']:.3g}" not in said
    assert set(re.findall(r"1 in [\d,]+", said)) == {words.split(" normal", maxsplit=1)[0]}
