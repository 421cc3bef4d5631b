// The overview: open events, and the surprise of each key over time.

import { get, softly } from "./api.js";
import { announce, h, throttled, visible } from "./dom.js";
import { ago, asked, count, now, plural } from "./format.js";
import { Lanes, legend } from "./lanes.js";
import { causeList } from "./work.js";
import { eventList, isSevere, severityChoice, streamLink } from "./parts.js";
import { RangeChooser, TimeRange, fitting } from "./range.js";
import { howToSend } from "./sending.js";

const CELL = 8; // pixels of a time bucket
const MOST_LANES = 50;
const NEW = 3000; // milliseconds for which an event is highlighted as new
const MOST_EVENTS = 60;

export class Overview {
  constructor(page) {
    this._page = page;
    this._range = TimeRange.fromQuery(page.query, null);
    this._isFitted = !this._range.isFixed && !this._range.isLive; // until a range is chosen
    if (this._isFitted) this._range = new TimeRange({ last: fitting(page.status.streams) });
    this._known = { start: null, end: null };
    this._events = new Map();
    this._incidents = [];
    this._fresh = new Set(); // events since the screen was opened
    this._limit = MOST_LANES;
    this._turn = this._lanesTurn = 0; // of the latest requests: older responses are ignored
    this._lanes = new Lanes((lane, from, to) => this._open(lane, from, to));
    this._chooser = new RangeChooser(
      this._range,
      () => this._known,
      (range) => this._choose(range),
    );
    this._headline = h("h1", { class: "headline" }, "Loading…");
    this._summary = h("p", { class: "muted summary num" });
    this._attention = h("div", { class: "open-events" });
    this._list = h("div", { class: "event-list" });
    this._more = h("button", { type: "button", hidden: true, onclick: () => this._showMore() });
    this._empty = h("div", {});
    this._lanesPanel = h(
      "section",
      { class: "panel", "aria-labelledby": "lanes-title" },
      h("div", { class: "panel-head" }, h("h2", { id: "lanes-title" }, "Surprise over time"), legend()),
      this._lanes.element,
      this._more,
    );
    this._listTitle = h("h2", { id: "events-title" });
    this._severity = severityChoice(() => softly(this._refresh()));
    this._filters = this._makeFilters();
    this._causes = h("div", {});
    this._causesPanel = h(
      "details",
      { class: "panel about causes-panel", ontoggle: () => softly(this._refreshCauses()) },
      h("summary", {}, "Events by cause"),
      this._causes,
    );
    this._eventsPanel = h(
      "section",
      { class: "panel", "aria-labelledby": "events-title" },
      h("div", { class: "panel-head" }, this._listTitle),
      this._list,
    );
    this.element = h(
      "div",
      { class: "overview" },
      this._headline,
      this._summary,
      this._attention,
      this._empty,
      this._filters,
      this._chooser.element,
      this._lanesPanel,
      this._causesPanel,
      this._eventsPanel,
    );
    this._reload = throttled(() => softly(this._refresh()), 1000);
    this._reloadLanes = throttled(() => softly(this._refreshLanes()), 2000);
    this._drawHead = throttled(() => this._showHead(), 200);
  }

  get title() {
    return "Overview";
  }

  /** Return a search and choices of stream and severity, for all parts of the screen. */
  _makeFilters() {
    const names = this._page.status.streams.map((stream) => stream.name);
    const chosen = this._page.query.get("stream");
    this._stream = h(
      "select",
      { "aria-label": "Stream", hidden: names.length < 2, onchange: () => this._filter() },
      h("option", { value: "" }, "All streams"),
      names.map((one) => h("option", { value: one, selected: one === chosen }, visible(one))),
    );
    this._search = h("input", {
      type: "search",
      "aria-label": "Search keys and events",
      placeholder: "Search keys and events",
      maxlength: "256",
      value: this._page.query.get("search") ?? "",
      oninput: throttled(() => this._filter(), 250),
    });
    return h("div", { class: "filters", role: "search" }, this._search, this._stream, this._severity);
  }

  _filter() {
    this._page.remember(this._toQuery());
    softly(this._refresh());
  }

  _toQuery() {
    const parts = Object.entries(this._filtered).map(([part, value]) => `&${part}=${encodeURIComponent(value)}`);
    return this._range.toQuery() + parts.join("");
  }

  /** The stream and the search, where given. */
  get _filtered() {
    const given = { stream: this._stream.value, search: this._search.value.trim() };
    return Object.fromEntries(Object.entries(given).filter(([, value]) => value));
  }

  /** Whether the filters hide anything. */
  get _isNarrowed() {
    return Object.keys(this._filtered).length > 0 || Number(this._severity.value) > 1;
  }

  /** Whether the filters let an event through. */
  _isWanted(event) {
    const { stream, search = "" } = this._filtered;
    const texts = [event.key, event.summary ?? ""].map((text) => text.toLowerCase());
    const isFound = texts.some((text) => text.includes(search.toLowerCase()));
    return isFound && (!stream || event.stream === stream) && isSevere(event, Number(this._severity.value));
  }

  async load() {
    await this._refresh(this._page.status);
    this._timer = setInterval(() => this._tick(), 1000);
    this._page.live.follow(
      {},
      {
        event: (event) => this._onEvent(event),
        records: (records) => this._onRecords(records),
        again: () => this._reload(),
      },
    );
  }

  close() {
    clearInterval(this._timer);
    for (const later of [this._reload, this._reloadLanes, this._drawHead]) later.cancel();
    this._lanes.close();
  }

  _learnSpan(status) {
    this._status = status;
    const spans = status.streams.filter((stream) => stream.end !== null);
    this._known.start = spans.length ? Math.min(...spans.map((stream) => stream.start)) : null;
    this._known.end = spans.length
      ? Math.max(this._known.end ?? -Infinity, ...spans.map((stream) => stream.end))
      : null;
    this._latest = this._known.end;
  }

  async _refresh(known = null) {
    const turn = ++this._turn;
    const status = known ?? (await get("status", {}, this._page.signal));
    this._learnSpan(status);
    if (this._isFitted) this._range = new TimeRange({ last: fitting(status.streams) });
    this._chooser.show(this._range);
    this._page.onStatus(status);
    const [start, end] = asked(...this._range.resolve(this._known));
    const severe = { min_severity: this._severity.value, ...this._filtered };
    const within = { start, end: this._range.isLive ? undefined : end, ...severe };
    const [, events, open, incidents] = await Promise.all([
      this._refreshLanes(),
      get("events", { ...within, limit: MOST_EVENTS }, this._page.signal),
      get("events", { open: true, ...severe, limit: MOST_EVENTS }, this._page.signal),
      get("incidents", { start: within.start, end: within.end, limit: 50 }, this._page.signal),
    ]);
    if (turn !== this._turn) return;
    this._events = new Map([...events.events, ...open.events].map((event) => [`${event.stream}/${event.id}`, event]));
    this._incidents = incidents.incidents;
    this._showEvents();
    softly(this._refreshCauses());
    await this._showEmpty();
  }

  /** List the causes of the events of the range, if they are shown. */
  async _refreshCauses() {
    if (!this._causesPanel.open) return;
    const [start, end] = asked(...this._range.resolve(this._known));
    const { stream } = this._filtered;
    const within = { start, end: this._range.isLive ? undefined : end };
    const { causes } = await get(
      "causes",
      { ...within, stream, min_severity: this._severity.value },
      this._page.signal,
    );
    this._causes.replaceChildren(
      ...(causes.length ? causeList(causes) : [h("p", { class: "muted pad" }, "No events in this range.")]),
    );
  }

  async _refreshLanes() {
    const [start, end] = asked(...this._range.resolve(this._known));
    const width = this._lanes.element.clientWidth || 800;
    const buckets = Math.max(40, Math.min(180, Math.round((width - (width < 600 ? 20 : 280)) / CELL)));
    this._lanesAt = performance.now();
    const turn = ++this._lanesTurn;
    const data = await get(
      "overview",
      { start, end, buckets, limit: this._limit, ...this._filtered },
      this._page.signal,
    );
    if (turn !== this._lanesTurn) return;
    this._lanes.show(data);
    this._chooser.tick();
    this._more.hidden = data.total <= data.lanes.length;
    this._more.textContent = `Show more of ${plural(data.total, "key")}`;
  }

  _showMore() {
    this._limit = Math.min(1000, this._limit * 4);
    this._reloadLanes();
  }

  /** Advance the time axis cell by cell, not with each record. */
  _tick() {
    this._drawHead();
    const data = this._lanes.data;
    if (!this._range.isLive || !data || document.hidden) return;
    const cell = (data.end - data.start) / data.buckets;
    const wait = Math.min(30, Math.max(2, cell)) * 1000;
    if (performance.now() - this._lanesAt > wait && this._known.end > data.end + cell / 2) this._reloadLanes();
  }

  _onRecords({ stream, keys }) {
    const last = Math.max(...keys.map((one) => one.time));
    this._known.end = Math.max(this._known.end ?? last, last);
    this._latest = Math.max(this._latest ?? last, last);
    const one = this._status.streams.find(({ name }) => name === stream);
    if (one) one.n_records += keys.reduce((sum, { n }) => sum + n, 0);
    if (this._range.isLive) {
      const isKnown = this._lanes.add(stream, keys);
      if (!isKnown) this._reloadLanes();
    }
    if (this._emptyNames?.has(stream)) this._reload();
  }

  _onEvent(event) {
    if (!this._isWanted(event)) return this._reload(); // the headline counts it
    const id = `${event.stream}/${event.id}`;
    const before = this._events.get(id);
    this._events.set(id, event);
    if (!before && event.is_open) {
      this._fresh.add(event.id);
      setTimeout(() => this._fresh.delete(event.id), NEW);
      announce(`New event on ${event.stream} ${event.key}: ${event.summary}`);
    }
    this._showEvents();
    this._reload();
  }

  _showEvents() {
    const [from] = this._range.resolve(this._known);
    const events = [...this._events.values()].sort((a, b) => b.start - a.start);
    const open = events.filter((event) => event.is_open);
    const openIncidents = this._incidents.filter((incident) => incident.is_open);
    const above = new Set(openIncidents.flatMap((incident) => incident.events.map((event) => event.id)));
    const inRange = events.filter((event) => event.end >= from && !event.is_open && !above.has(event.id));
    this._listTitle.textContent = open.length ? "Earlier in this range" : "Events in this range";
    this._attention.replaceChildren(
      open.length
        ? h(
            "section",
            { class: "panel attention", "aria-label": "Open now" },
            eventList(open, openIncidents, { fresh: this._fresh, label: "Open events" }),
          )
        : "",
    );
    this._list.replaceChildren(
      ...(inRange.length
        ? eventList(inRange, this._incidents, { fresh: this._fresh, label: "Events" })
        : [h(
            "p",
            { class: "muted pad" },
            this._isNarrowed
              ? "No events in this range match."
              : open.length
                ? "No other events in this range."
                : "No events in this range.",
          )]),
    );
    this._showHead();
  }

  _showHead() {
    const open = [...this._events.values()].filter((event) => event.is_open);
    const nOpen = this._status.streams.reduce((sum, { n_open_events: n }) => sum + n, 0);
    const nHidden = this._isNarrowed ? nOpen - open.length : 0;
    const keys = new Set(open.filter(({ what }) => what !== "stream").map((event) => `${event.stream}\0${event.key}`))
      .size;
    const where = keys ? ` on ${plural(keys, "key")}` : "";
    const nRecords = this._status.streams.reduce((sum, { n_records: n }) => sum + n, 0);
    const broken = this._status.streams.filter(({ error }) => error);
    this.element.classList.toggle("is-alarmed", open.length > 0 || nHidden > 0);
    if (broken.length)
      this._headline.textContent = `${visible(broken[0].name)} is not running: ${visible(broken[0].error)}`;
    else if (!nRecords) this._headline.textContent = "Waiting for the first record";
    else if (open.length >= MOST_EVENTS) this._headline.textContent = `${count(open.length)} events or more are open`;
    else if (open.length && nHidden > 0)
      this._headline.textContent = `${plural(open.length, "event")} open${where}, ${count(nHidden)} more hidden by the filters`;
    else if (open.length) this._headline.textContent = `${plural(open.length, "event")} open${where}`;
    else if (nHidden > 0) this._headline.textContent = `${plural(nHidden, "event")} open, hidden by the filters`;
    else this._headline.textContent = "All normal";
    const nKeys = this._status.streams.reduce((sum, { n_keys: n }) => sum + n, 0);
    const latest =
      this._latest === null || this._latest === undefined
        ? ""
        : now() - this._latest < 10
          ? ", latest just now"
          : `, latest ${ago(this._latest)}`;
    const ended = open.length ? -Infinity : Math.max(...[...this._events.values()].map((event) => event.end));
    const before = Number.isFinite(ended) ? ` The last event ended ${ago(ended)}.` : "";
    const size = `${plural(this._status.streams.length, "stream")}, ${plural(nKeys, "key")}`;
    this._summary.textContent = `${size}, ${count(nRecords)} records scored${latest}.${before}`;
  }

  async _showEmpty() {
    const empty = this._status.streams.filter(({ n_records: n }) => !n);
    const isAll = empty.length === this._status.streams.length;
    for (const part of [this._filters, this._chooser.element, this._lanesPanel, this._causesPanel, this._eventsPanel]) part.hidden = isAll;
    const names = new Set(empty.map(({ name }) => name));
    if (this._emptyNames && [...names].join() === [...this._emptyNames].join()) return;
    this._emptyNames = names;
    const panels = await Promise.all(empty.map((stream) => this._emptyPanel(stream, isAll)));
    this._empty.replaceChildren(...panels);
  }

  /** Return what to do about a stream without records; folded if others have some. */
  async _emptyPanel(stream, isAll) {
    const title = h("h2", {}, "No records in ", h("bdi", {}, visible(stream.name)), " yet");
    if (!isAll) {
      const box = h("details", { class: "panel empty" }, h("summary", {}, title, " – how to send them"));
      const fill = async () => box.append(await howToSend(stream, this._page));
      box.addEventListener("toggle", () => softly(fill()), { once: true });
      return box;
    }
    return h("section", { class: "panel empty" }, title, await howToSend(stream, this._page));
  }

  _choose(range) {
    this._range = range;
    this._isFitted = false;
    this._page.remember(this._toQuery());
    this._reload();
  }

  _open(lane, from, to) {
    const query = from === null ? this._range.toQuery() : new TimeRange({ from, to }).toQuery();
    location.hash = streamLink(lane.stream, lane.key, query);
  }
}
