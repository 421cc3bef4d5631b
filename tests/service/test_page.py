"""The page of the service, in a real browser on real processes."""

import json
import re
import shlex
from contextlib import contextmanager
from pathlib import Path

import pytest
from browsers import expect
from matplotlib.testing.compare import compare_images
from services import START, WEB, odd, post, receiver, rows
from waiting import until

pytestmark = pytest.mark.end_to_end

IMAGES = Path(__file__).parents[1] / "images"
MOST_DIFFERENT = 10.0  # root mean square over all pixels, of 255
HOSTS = ("web-1", "web-2", "web-3")
N = 300
ADMIN, READ = "a-token-for-admins-only", "a-token-for-readers-only"
IMAGE = '<img src=x onerror="document.title=1">'
HOSTILE_FIELDS = (IMAGE, "\u202egnp.\u2066exe", "__proto__", "long" * 100, "a\nb\x1b[31m", "</script>{{7*7}}")
HOSTILE_KEYS = (f"{IMAGE}&amp;", "\u202e\u200bweb/../%2e%2e?#", "k" * 500)


@pytest.fixture(scope="module")
def service(make):
    """A service with three hosts, two of them with an open event."""
    made = make()
    for k, host in enumerate(HOSTS):
        records = rows(N, host=host, seed=k)
        for start in range(0, N, 50):  # expected ranges are renewed between batches
            made.post("web", records[start : start + 50], verdicts="none").raise_for_status()
    made.post("web", [odd(N, host="web-2"), odd(N + 1, host="web-3")]).raise_for_status()
    return made


@contextmanager
def without_reload(page):
    """Check that the page is not reloaded."""
    page.evaluate("window.isSame = true")
    yield
    assert page.evaluate("window.isSame")


def event_on(service, host):
    """Return the open event of a host."""
    (event,) = service.get("/events", stream="web", key=host, open=True)["events"]
    return event


def headline(page):
    return page.locator("h1").first


# ---- the demo --------------------------------------------------------------------------------------------------------


def test_demo_updates_live_and_shows_events(make, look):
    demo = make(WEB, "--demo")
    page = look(demo).open()
    page.locator(".lane").nth(7).wait_for()  # four servers and four shops
    page.get_by_text("Live", exact=True).wait_for()
    page.locator(".incident, .event-row").first.wait_for()
    with without_reload(page):
        summary = page.locator(".summary")
        expect(summary).to_contain_text("records scored")
        before = re.search(r"[\d,]+ records scored", summary.text_content())[0]
        expect(summary).not_to_contain_text(before)
    page.locator(".event-sentence").first.click()
    page.locator(".reason").first.wait_for()
    page.locator(".charts canvas").first.wait_for()


# ---- an anomaly, from its arrival to its label -----------------------------------------------------------------------


def test_anomaly_appears_without_reload_and_keeps_its_feedback(make, look):
    service = make()
    service.post("web", rows(N), verdicts="none")
    page = look(service).open()
    headline(page).get_by_text("All normal").wait_for()
    with without_reload(page):
        service.post("web", [odd(N)])
        row = page.locator(".attention .event-row")
        row.wait_for()
        headline(page).get_by_text("1 event open on 1 key").wait_for()
        words = re.compile(r"cpu 99 at 03:13:20, expected about [\d.]+ \([\d.]+–[\d.]+\): too high")
        expect(row).to_contain_text(words)
        page.wait_for_function("document.getElementById('announcer').textContent.includes('cpu')")
        row.get_by_role("link").click()
        reason = page.locator(".reason").first
        expect(reason).to_have_attribute("data-feature", "cpu")
        expect(reason).to_contain_text("too high")
        expect(reason).to_contain_text("usual")
        expect(reason).to_contain_text("would be normal")
        expect(headline(page)).to_contain_text(re.compile("^cpu 99 at 03:13:20, expected about "))
        page.get_by_label("Note (optional)").fill("the <b>fan</b> broke")
        page.get_by_role("button", name="This was an incident").click()
        page.get_by_role("button", name="Undo").wait_for()
    event = service.get("/events", stream="web", label="incident")["events"][0]
    page.reload()
    page.get_by_text("Labelled as an incident", exact=False).first.wait_for()
    page.get_by_text("“the <b>fan</b> broke”").first.wait_for()
    page.get_by_role("button", name="Undo").click()
    page.get_by_role("button", name="This was normal").wait_for()
    until(lambda: service.get(f"/streams/web/events/{event['id']}")["label"] is None)
    page.get_by_role("button", name="This was normal").click()
    page.get_by_role("button", name="Undo").wait_for()
    until(lambda: service.get(f"/streams/web/events/{event['id']}")["label"] == "normal")
    page.locator(".audit li").nth(2).wait_for()  # incident, undone, normal
    page.get_by_role("link", name="Overview").first.click()
    page.locator(".chip", has_text="was normal").first.wait_for()


def test_overview_groups_events_of_several_keys_by_incident(service, look):
    page = look(service).open()
    head = page.locator(".attention .incident-head")
    head.wait_for()
    expect(head).to_contain_text(re.compile(r"2\skeys\sat\sonce.*web-2\swas\sfirst"))
    later = page.locator(".attention .event-row").nth(1)
    expect(later).to_contain_text("web-3")
    expect(later).to_contain_text("1 min later")


def test_event_shows_its_alert_message(make, look):
    with receiver() as hook:
        service = make(f'{WEB}\n[[alerts]]\nname = "ops"\nurl = "{hook.url}"\ngroup_wait = 0\n')
        service.post("web", rows(N), verdicts="none")
        service.post("web", [odd(N)])
        until(lambda: any(message["event"]["key"] == "web-1" and "99" in message["text"] for message in hook.messages))
        tab = look(service)
        page = tab.open(f"/event/web/{event_on(service, 'web-1')['id']}")
        alert = page.locator(".alerts li").first
        expect(alert).to_contain_text("ops")
        (message,) = [one for one in hook.messages if one["event"]["key"] == "web-1" and "99" in one["text"]]
        expect(alert).to_contain_text(message["title"])
        expect(page.locator("tbody th").nth(1)).to_have_text(re.compile(r"^web-1-\d+$"))  # a similar point, by its id
        assert not tab.faults()


def test_overview_shows_events_from_before_the_feed_opened(make, look):
    service = make()
    service.post("web", rows(N), verdicts="none")
    tab = look(service)

    def post_and_continue(route):
        service.post("web", [odd(N)])  # after the screen has fetched events
        route.continue_()

    tab.page.route("**/api/v1/feed**", post_and_continue, times=1)
    tab.open().locator(".attention .event-row").wait_for()


def test_silence_event_has_no_reasons(make, look):
    service = make(WEB.replace("save_every", 'silence = "1s"\nsave_every'))
    service.post("web", rows(5))
    tab = look(service)
    page = tab.open()
    page.locator(".attention .event-row", has_text="silence").first.get_by_role("link").click()
    page.get_by_text("No values arrived for longer than the stream allows.").wait_for()
    expect(headline(page)).to_contain_text(re.compile("^No values from"))
    expect(page.get_by_role("button", name="This was normal")).to_have_count(0)
    assert not tab.faults()
    tab.wait_until_it_fits()


# ---- time ------------------------------------------------------------------------------------------------------------


def test_drift_event_says_where_records_have_changed(make, look):
    config = WEB.replace("save_every", 'series = false\ndrift = "report"\ndrift_reference = 128\nsave_every')
    service = make(config)
    records = [{**one, "cpu": one["cpu"] + 20 * (i >= N)} for i, one in enumerate(rows(N + 80))]
    service.post("web", records, verdicts="none").raise_for_status()
    page = look(service).open()
    page.locator(".attention .event-row", has_text="drift").first.get_by_role("link").click()
    page.get_by_role("heading", name="Why").wait_for()
    expect(page.locator(".event")).to_contain_text("a different distribution than before")
    expect(page.locator(".regions")).to_contain_text("cpu")
    expect(page.locator("#say-normal")).to_have_count(0)
    service.post("web", rows(100, N + 80), verdicts="none").raise_for_status()
    page.get_by_text("back to normal").wait_for()


def test_overview_filters_events_by_severity(make, look):
    service = make(WEB.replace("save_every", "false_alarm_rate = 0.05\nsave_every"))
    service.post("web", [*rows(N), odd(N, cpu=1e6), *rows(30, N + 1)], verdicts="none").raise_for_status()
    events = service.get("/events", limit=1000)["events"]
    severe = [event["id"] for event in events if event["severity"] >= 3]
    assert 0 < len(severe) < len(events)
    assert [event["id"] for event in service.get("/events", min_severity=3, limit=1000)["events"]] == severe
    tab = look(service)
    page = tab.open("/?last=all")
    choice = page.get_by_label("Least severity of events")
    choice.wait_for()
    found = page.locator(".event-row")
    expect(found).to_have_count(len(events))
    choice.select_option("3")
    expect(found).to_have_count(len(severe))
    expect(found.first).to_contain_text("severity")
    page.reload()  # it is remembered
    expect(found).to_have_count(len(severe))
    assert not tab.faults()


def test_charts_leave_out_categories(make, look):
    service = make('[streams.web]\ntime = "time"\ncategories = ["country"]\n')
    moments = [START + 0.0007 + 60 * i for i in range(100)]  # the ends of "All" are not whole milliseconds
    records = [{"time": at, "amount": i % 7, "country": "DE" if i % 3 else "FR"} for i, at in enumerate(moments)]
    service.post("web", records, verdicts="none").raise_for_status()
    assert list(service.get("/streams/web/series")["fields"]) == ["amount"]
    page = look(service).open("/stream/web/?last=all")
    page.locator(".chart").nth(1).wait_for()
    expect(page.locator(".chart-notes")).to_contain_text("100 records, all shown")
    expect(page.locator(".chart h3").first).to_have_text("amount")
    expect(page.locator(".chart", has_text="country")).to_have_count(0)


def test_key_screen_zooms_moves_and_follows(make, look):
    service = make()
    service.post("web", [*rows(N), odd(N), *rows(20, N + 1)], verdicts="none")
    page = look(service).open("/stream/web/web-1?last=6h")
    page.locator(".chart").nth(3).wait_for()  # three fields and the surprise
    expect(page.locator(".chart h3").first).to_have_text("cpu")  # the field with the largest attribution comes first
    box = page.locator(".u-over").first.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 30)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + 30, steps=4)
    with page.expect_request(re.compile("/series.*start=.*end=")):  # zooming in fetches more detail
        page.mouse.up()
    page.wait_for_url(re.compile("from="))
    shown = page.url
    page.locator(".charts").focus()
    page.keyboard.press("ArrowLeft")
    page.wait_for_function("before => location.href !== before", arg=shown)
    page.reload()  # the range is in the address
    page.get_by_role("button", name="Back to live").click()
    page.wait_for_url(re.compile("last="))
    readout = page.locator(".chart", has_text="cpu").locator(".readout")
    with without_reload(page):
        service.post("web", [{**odd(N + 30), "cpu": 51.25}])
        expect(readout).to_contain_text("51.25")
    page.get_by_role("button", name="7d").click()
    page.wait_for_url(re.compile("last=7d"))


def test_lanes_support_the_keyboard(service, look):
    page = look(service).open("/?last=6h")
    page.locator(".lane").nth(2).wait_for()
    until(lambda: set(page.locator(".lane .name").all_text_contents()[:2]) == {"web-2", "web-3"})  # worst first
    names = page.locator(".lane .name").all_text_contents()
    page.locator(".strip").first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    for _ in range(3):
        page.keyboard.press("ArrowLeft")
    page.keyboard.press("End")
    expect(page.locator("#announcer")).to_contain_text("flagged")
    page.keyboard.press("Escape")
    page.locator(".tip").wait_for(state="hidden")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(rf"#/stream/web/{names[1]}\?from="))
    headline(page).get_by_text(names[1]).wait_for()


# ---- settings --------------------------------------------------------------------------------------------------------


def test_settings_screen_copies_settings_and_previews_others(service, look):
    page = look(service).open("/settings")
    page.get_by_role("button", name="Copy as TOML").first.click()
    page.get_by_role("button", name="Copied").wait_for()
    toml = page.evaluate("navigator.clipboard.readText()")
    assert "[streams.web]" in toml
    assert "trees = 20" in toml
    page.get_by_label("False-alarm rate").fill("0.05")
    page.get_by_label("Window").fill("256")
    page.get_by_role("button", name="Try on history").click()
    page.locator(".compare").wait_for()
    expect(page.locator(".try-result pre")).to_contain_text("false_alarm_rate = 0.05")
    expect(page.locator(".try-result pre")).to_contain_text("window = 256")
    page.locator(".try-result .event-row").first.wait_for()  # a high rate flags more
    page.get_by_label("False-alarm rate").fill("two")
    page.get_by_role("button", name="Try on history").click()
    page.locator(".try-result .problem").wait_for()


def test_settings_of_a_preview_can_be_applied(make, look):
    service = make()
    service.post("web", rows(N), verdicts="none").raise_for_status()
    tab = look(service)
    page = tab.open("/settings")
    page.get_by_label("False-alarm rate").fill("0.05")
    page.get_by_label("Window").fill("256")
    page.get_by_role("button", name="Try on history").click()
    page.get_by_text("Applied without a restart: false_alarm_rate.").wait_for()
    page.get_by_text(f"Because of window, the stream will relearn from its history ({N} records).").wait_for()
    file = service.folder / "polyaforest.toml"
    file.write_text(WEB + "false_alarm_rate = 0.05\nwindow = 256\n")
    with without_reload(page):
        page.get_by_role("button", name="Reload settings").click()
        page.get_by_text("Applied without a restart: web (false_alarm_rate).").wait_for()
        page.get_by_text("Relearning from the history: web (window).").wait_for()
        until(lambda: service.get("/streams/web")["relearning"] is None)
        file.write_text(WEB.replace('"host"', '"shop"'))
        page.get_by_role("button", name="Reload settings").click()
        page.get_by_text("another name").wait_for()
        file.write_text(WEB + "trees = 0\n")
        page.get_by_role("button", name="Reload settings").click()
        page.get_by_text("settings are unchanged").wait_for()
    tab.expected.append("422")  # rejected reloads
    until(lambda: service.get("/streams/web")["settings"]["window"] == 256)
    assert service.post("web", rows(1, N)).status_code == 200


# ---- who may look ----------------------------------------------------------------------------------------------------


def test_page_asks_for_a_token_and_hides_buttons_from_readers(make, look):
    service = make(WEB, POLYAFOREST_ADMIN_TOKEN=ADMIN, POLYAFOREST_READ_TOKEN=READ)
    service.client.headers["authorization"] = f"Bearer {ADMIN}"
    service.post("web", [*rows(N), odd(N)], verdicts="none")
    event = event_on(service, "web-1")
    for token, is_admin in ((READ, False), (ADMIN, True)):
        tab = look(service)
        page = tab.open(f"/event/web/{event['id']}")
        page.get_by_label("Token").fill("wrong-token-wrong-token")
        page.get_by_role("button", name="Log in").click()
        page.get_by_text("invalid").wait_for()
        page.get_by_label("Token").fill(token)
        page.keyboard.press("Enter")
        page.locator(".reason").first.wait_for()
        expect(page.get_by_role("button", name="This was normal")).to_be_visible(visible=is_admin)
        assert token not in page.content()
        tab.open("/settings")
        page.get_by_text("polyaforest.toml", exact=True).first.wait_for()
        expect(page.get_by_role("button", name="Try on history")).to_be_visible(visible=is_admin)
        expect(page.get_by_role("button", name="Reload settings")).to_be_visible(visible=is_admin)
        assert ADMIN not in page.content()
        page.get_by_role("button", name="Log out").click()
        page.get_by_label("Token").wait_for()
        tab.expected.append("401")  # logged by the console


# ---- empty streams and lost connections ------------------------------------------------------------------------------


def test_empty_stream_shows_how_to_post_the_first_record(make, look):
    service = make()
    page = look(service).open()
    headline(page).get_by_text("Waiting for the first record").wait_for()
    words = shlex.split(page.locator("pre").text_content().replace("\\\n", " "))
    assert words[0] == "curl"
    body = words[words.index("-d") + 1]
    assert set(json.loads(body)) >= {"time", "host", "id"}
    with without_reload(page):
        answer = post(words[1], content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 200, answer.text
        headline(page).get_by_text("All normal").wait_for()
        page.locator(".lane").wait_for()


def test_page_reports_a_lost_connection_and_reconnects(make, look):
    service = make()
    service.post("web", rows(N), verdicts="none")
    tab = look(service)
    page = tab.open()
    page.get_by_text("Live", exact=True).wait_for()
    with without_reload(page):
        service.stop()
        page.get_by_text("Connection lost").wait_for()
        service.start("--port", service.url.rpartition(":")[2])
        service.post("web", [odd(N)])
        page.locator(".attention .event-row").wait_for()
        page.get_by_text("Live", exact=True).wait_for()
        page.locator("#banner").wait_for(state="hidden")
    tab.expected.append("ERR_")  # failed requests


@pytest.mark.parametrize("route", ["/event/web/none", "/stream/none/x", "/nowhere", "/stream/%E0%A4%A/%", "/event/web"])
def test_unknown_address_shows_an_error(service, look, route):
    tab = look(service)
    page = tab.open(route)
    page.get_by_role("link", name="Back to the overview").click()
    page.locator(".lane").first.wait_for()
    tab.expected.append("404")


# ---- hostile input ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hostile(make):
    """A service with hostile names of fields and keys."""
    service = make(WEB.replace('id = "id"\n', ""))
    for k, key in enumerate(HOSTILE_KEYS):
        records = []
        for i, row in enumerate([*rows(N, seed=k), odd(N)]):
            values = row["cpu"], row["load"], row["requests"], i % 7, i % 5, i % 3
            records.append({"time": row["time"], "host": key, **dict(zip(HOSTILE_FIELDS, values, strict=True))})
        answer = service.post("web", records, verdicts="none")
        assert answer.status_code == 200, answer.text
        assert answer.json()["judged"] == N + 1, answer.text
    return service


@pytest.mark.parametrize("size", [pytest.param("desktop", marks=pytest.mark.slow), "narrow"])
def test_hostile_names_are_shown_as_text(hostile, look, size):
    tab = look(hostile, size=size)
    page = tab.open()
    page.locator(".lane").nth(2).wait_for()
    expect(page.locator("main")).to_contain_text(IMAGE)
    expect(page.locator("main")).to_contain_text("\\u202e\\u200bweb/../%2e%2e?#")
    said = page.locator("main").text_content()
    assert not set("\u202e\u200b\u2066\x1b") & set(said)
    tab.wait_until_it_fits()
    for event in hostile.get("/events", open=True)["events"]:
        tab.open(f"/event/web/{event['id']}")
        page.locator(".reason").first.wait_for()
        page.locator(".charts canvas").first.wait_for()
        assert not set("\u202e\u200b\u2066\x1b") & set(page.locator("main").text_content())
        tab.wait_until_it_fits()
        page.locator(".crumbs a").nth(1).click()
        page.locator(".chart").nth(len(HOSTILE_FIELDS)).wait_for()
        expect(page.locator("main img, main script, main b")).to_have_count(0)
        tab.wait_until_it_fits()
    tab.open("/settings")
    page.locator(".tag").nth(len(HOSTILE_FIELDS) - 1).wait_for()
    tab.wait_until_it_fits()
    expect(page).to_have_title(re.compile("polyaforest$"))  # no handler of an image has run


# ---- for everyone ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("theme", "size"),
    [("light", "desktop"), ("dark", "phone"), pytest.param("dark", "desktop", marks=pytest.mark.slow)],
)
def test_every_screen_is_accessible(service, hostile, look, theme, size):
    tab = look(service, theme=theme, size=size)
    faults = {}

    def check(screen, route, ready):
        tab.open(route)
        tab.page.locator(ready).first.wait_for()
        tab.page.wait_for_load_state("load")
        expect(tab.page.locator("html")).to_have_attribute("data-theme", theme)
        tab.wait_until_it_fits()
        if found := tab.faults():
            faults[screen] = found

    check("overview", "/", ".attention")
    check("stream", "/stream/web/web-2?last=6h", ".chart")
    check("event", f"/event/web/{event_on(service, 'web-2')['id']}", ".charts canvas")
    check("settings", "/settings", "pre")
    tab.page.get_by_label("False-alarm rate").fill("0.05")
    tab.page.get_by_role("button", name="Try on history").click()
    check("preview", "/settings", ".compare")
    tab.url = hostile.url
    check("hostile overview", "/", ".attention")
    check("hostile event", f"/event/web/{hostile.get('/events')['events'][0]['id']}", ".charts canvas")
    assert not faults


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_lanes_and_charts_match_their_pictures(service, look, theme, tmp_path):
    """Text is left out, because fonts differ. A missing picture is taken, to be reviewed and committed."""
    page = look(service, theme=theme).open(f"/?from={START}&to={START + 60 * (N + 20)}")
    page.locator(".lane").nth(2).wait_for()
    check_picture(page.locator(".strip").first, "lane", theme, tmp_path / "lane.png")
    page.goto(f"{service.url}/#/stream/web/web-2?from={START + 60 * (N - 60)}&to={START + 60 * (N + 5)}")
    page.locator(".chart").nth(3).wait_for()
    check_picture(page.locator(".u-over").first, "chart", theme, tmp_path / "chart.png")


def check_picture(element, name, theme, taken):
    """Wait until an element looks as stored for its theme; it differs from the picture of the other theme."""
    stored = {key: IMAGES / f"page-{name}-{key}.png" for key in ("light", "dark")}
    element.page.mouse.move(0, 0)
    if not stored[theme].exists():
        element.screenshot(path=stored[theme])
        pytest.fail(f"{stored[theme]} was missing: review it")

    def is_like(path):
        element.screenshot(path=taken)
        return compare_images(path, taken, tol=MOST_DIFFERENT) is None

    until(lambda: is_like(stored[theme]))
    assert not is_like(stored["light" if theme == "dark" else "dark"])


def test_axe_finds_a_fault(service, look):
    tab = look(service)
    tab.open().locator(".lane").first.wait_for()
    tab.page.evaluate("document.getElementById('theme').replaceChildren()")
    tab.page.evaluate("document.getElementById('theme').removeAttribute('aria-label')")
    assert any("button-name" in fault for fault in tab.faults())


def test_page_remembers_theme_and_time_zone(service, look):
    page = look(service, theme="dark").open()
    page.locator(".lane").first.wait_for()
    page.get_by_role("button", name="Switch between light and dark").click()
    page.reload()
    page.locator(".lane").first.wait_for()
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    page.get_by_role("button", name="Local").click()
    page.get_by_role("button", name="UTC").wait_for()


def test_page_loads_no_external_resources(service, look):
    tab = look(service)
    page = tab.open()
    page.locator(".lane").first.wait_for()
    assert all(url.startswith(service.url) for url in tab.requests)
    answer = service.client.get("/")
    assert "unsafe" not in answer.headers["content-security-policy"]
