// One key of a stream: its values with expected ranges, its surprise and its events.

import { get, ofStream, softly } from "./api.js";
import { ChartStack } from "./charts.js";
import { announce, h, name, throttled, visible } from "./dom.js";
import { ago, asked, bytes, count, moment, plural } from "./format.js";
import { drawStrip } from "./lanes.js";
import { eventLink, eventRow, facts, sentence, streamLink } from "./parts.js";
import { RangeChooser, TimeRange, fitting } from "./range.js";
import { howToSend } from "./sending.js";
import { AnnotationPanel, MutePanel } from "./work.js";

const MOST_POINTS = 1000;
const STRIP_CELLS = 150;
const MOST_FIELDS = 8; // charts shown at first
const MOST_SELECT = 200; // keys in a menu; beyond that, a search
const MOST_TAIL = 400; // records of the live tail before the series is fetched again
const REFETCH = 60000; // milliseconds between fetches of a live series
const NEW = 3000; // milliseconds for which an event is highlighted as new
const MOST_EVENTS = 100;
const ROOM = 0.015; // of a live range, right of the newest reading
const TOUCH = 8; // pixels around a flagged span in which a click selects it

export class StreamScreen {
  constructor(page) {
    this._page = page;
    [this._stream, this._key = null] = page.parts;
    this._range = TimeRange.fromQuery(page.query, null);
    this._known = { start: null, end: null };
    this._events = new Map();
    this._incidents = [];
    this._annotations = [];
    this._fresh = new Set();
    this._showsAll = false;
    this._turn = 0; // of the latest fetch: older responses are ignored
    this._stack = new ChartStack({
      events: () => [...this._events.values()],
      annotations: () => this._annotations,
      on: {
        zoom: (from, to) => this._choose(new TimeRange({ from, to })),
        move: (share) => this._choose(this._range.moved(this._known, share)),
        scale: (factor, around) => this._choose(this._range.scaled(this._known, factor, around)),
        reset: () => this._choose(new TimeRange({ last: this._lastLive })),
        pick: (time, perPixel) => this._pick(time, perPixel * TOUCH),
      },
    });
    this._fetch = throttled(() => this._refresh().catch((problem) => this._fail(problem)), 120);
    this._follow = throttled(() => this._showTail(), 250);
    this._tail = [];
    this.element = h("div", { class: "stream" }, h("p", { class: "muted pad" }, "Loading…"));
  }

  get title() {
    return visible(this._key || this._stream);
  }

  async load() {
    const { signal } = this._page;
    const about = this._page.status.streams.find((stream) => stream.name === this._stream);
    if (!about) throw new Error(`The stream ${visible(this._stream)} does not exist.`);
    this._about = about;
    const keys =
      about.by === null
        ? { keys: [""], total: 1 }
        : get(ofStream(this._stream, "keys"), { limit: MOST_SELECT }, signal);
    if (this._key === null) this._key = (await keys).keys[0] ?? "";
    this._known = { start: about.start, end: about.end };
    this._lastLive = this._range.last ?? fitting([about]);
    if (!this._range.isFixed) this._range = new TimeRange({ last: this._lastLive });
    this._build();
    addEventListener("keydown", (event) => this._onKey(event), { signal });
    await Promise.all([this._refresh(), this._showKeys(keys)]);
    softly(this._showStrip());
    this._page.live.follow(
      { stream: this._stream, key: this._key },
      { tail: (tail) => this._onTail(tail), event: (event) => this._onEvent(event), again: () => this._fetch() },
    );
    this._timer = setInterval(() => softly(this._showStrip()), REFETCH);
  }

  close() {
    clearInterval(this._timer);
    this._fetch.cancel();
    this._follow.cancel();
    this._stack.close();
    this._sizes?.disconnect();
  }

  /** Pass keys to the charts wherever the focus is, except where they have another meaning. */
  _onKey(event) {
    const other = "input, select, textarea, details[open], [role=grid]";
    if (!event.defaultPrevented && !event.target.closest?.(other)) this._stack.press(event);
  }

  _fail(problem) {
    if (this._page.signal.aborted) return;
    this._message.textContent = visible(problem.message);
    this._message.hidden = false;
  }

  _build() {
    this._chooser = new RangeChooser(
      this._range,
      () => this._known,
      (range) => this._choose(range),
    );
    this._state = h("p", { class: "stream-state" });
    this._message = h("p", { class: "problem", role: "alert", hidden: true });
    this._back = h(
      "button",
      {
        type: "button",
        class: "primary",
        hidden: true,
        onclick: () => this._choose(new TimeRange({ last: this._lastLive })),
      },
      "Back to live",
    );
    this._chooser.element.append(this._back);
    this._strip = h("canvas", { class: "strip-canvas", "aria-hidden": "true" });
    this._window = h("div", { class: "brush" });
    this._navigator = h(
      "div",
      { class: "navigator", "aria-hidden": "true", title: "All stored records: drag to move" },
      this._strip,
      this._window,
    );
    this._bindNavigator();
    this._sizes = new ResizeObserver(() => this._drawStrip());
    this._sizes.observe(this._navigator);
    this._notes = h("p", { class: "muted chart-notes" });
    this._allFields = h("button", { type: "button", hidden: true, onclick: () => this._showAllFields() });
    this._list = h("div", { class: "event-list" });
    this._empty = h("div", { hidden: true });
    this._keyChooser = h("span", {});
    this._mutes = new MutePanel(this._page, this._stream, { key: this._key });
    this._marks = new AnnotationPanel(this._page, this._stream, this._key, () => this._fetch());
    softly(this._mutes.load());
    this._charts = h(
      "section",
      { class: "panel charts-panel", "aria-label": "Charts" },
      chartLegend(),
      this._stack.element,
      this._allFields,
      this._notes,
    );
    this.element.replaceChildren(
      h(
        "nav",
        { class: "crumbs", "aria-label": "Breadcrumb" },
        h("a", { href: "#/" }, "Overview"),
        h("span", { "aria-hidden": "true" }, "/"),
        h("span", { class: "crumb" }, visible(this._stream)),
        this._about.by === null ? null : h("span", { "aria-hidden": "true" }, "/"),
        this._keyChooser,
      ),
      h("h1", {}, this._key === "" ? visible(this._stream) : name(this._key)),
      this._state,
      this._message,
      this._chooser.element,
      this._navigator,
      this._empty,
      h(
        "div",
        { class: "columns" },
        this._charts,
        h(
          "aside",
          { class: "side", "aria-label": "Events and facts" },
          h(
            "section",
            { class: "panel" },
            h("div", { class: "panel-head" }, h("h2", {}, "Events in this range")),
            this._list,
          ),
          this._marks.element,
          this._mutes.element,
          this._aboutPanel(),
        ),
      ),
    );
  }

  /** Show a menu of the other keys, or a search if there are many. */
  async _showKeys(promised) {
    const { keys, total } = await promised;
    if (this._about.by !== null) this._keyChooser.replaceChildren(this._makeChooser(keys, total));
  }

  _makeChooser(keys, total) {
    const go = (key) => (location.hash = streamLink(this._stream, key, this._range.toQuery()));
    const label = `Other ${visible([this._about.by].flat().join(" and "))}`;
    if (total <= MOST_SELECT) {
      const option = (key) =>
        h("option", { value: key, selected: key === this._key }, visible(key).slice(0, 80) || "(empty)");
      return h("select", { "aria-label": label, onchange: (event) => go(event.target.value) }, keys.map(option));
    }
    const found = h("datalist", { id: "keys" });
    const search = throttled(async () => {
      const { keys: near } = await get(
        ofStream(this._stream, "keys"),
        { search: field.value, limit: 50 },
        this._page.signal,
      );
      found.replaceChildren(...near.map((key) => h("option", { value: key })));
      if (near.includes(field.value) && field.value !== this._key) go(field.value);
    }, 200);
    const field = h("input", {
      type: "search",
      list: "keys",
      "aria-label": label,
      placeholder: `Search ${plural(total, "key")}`,
      oninput: search,
    });
    return h("span", {}, field, found);
  }

  _aboutPanel() {
    const about = this._about;
    const rejected = h("dd", {}, "–");
    const box = h(
      "details",
      { class: "panel about" },
      h("summary", {}, "About this stream"),
      facts([
        ["Source", visible(about.source)],
        ["State", about.error ? visible(about.error) : about.is_ready ? "running" : "starting"],
        ["Records", count(about.n_records)],
        about.by === null ? null : ["Keys", `${count(about.n_keys)}, by ${visible([about.by].flat().join(" and "))}`],
        ["Fields", count(about.fields.length)],
        Object.keys(about.ignored_fields).length
          ? ["Ignored", visible(Object.entries(about.ignored_fields).map(([field, why]) => `${field} (${why})`).join(", "))]
          : null,
        ["Stored since", moment(about.start)],
        ["Last record", about.end === null ? "–" : ago(about.end)],
        ["Models in memory", bytes(about.model_bytes)],
      ]),
      h("dl", { class: "facts" }, h("dt", {}, "Rejected"), rejected),
    );
    box.addEventListener(
      "toggle",
      async () => {
        const { records } = await get(ofStream(this._stream, "quarantine"), { limit: 5 }, this._page.signal);
        rejected.replaceChildren(
          records.length
            ? h(
                "ul",
                { class: "plain" },
                records.map((one) => h("li", {}, `${moment(one.at)}: ${visible(one.reason)}`)),
              )
            : "none",
        );
      },
      { once: true },
    );
    return box;
  }

  /** Fetch the records and events of the range. */
  async _refresh() {
    const turn = ++this._turn;
    const { signal } = this._page;
    const [start, end] = asked(...this._range.resolve(this._known));
    const width = this._stack.element.clientWidth || 800;
    const points = Math.max(200, Math.min(MOST_POINTS, Math.round(width)));
    const place = { key: this._key, start, end: this._range.isLive ? undefined : end };
    const incidents = get("incidents", { start: place.start, end: place.end, limit: 50 }, signal);
    softly(incidents.then((found) => turn === this._turn && this._showIncidents(found.incidents)));
    const [series, events, marks] = await Promise.all([
      get(ofStream(this._stream, "series"), { ...place, points }, signal),
      get("events", { stream: this._stream, ...place, limit: MOST_EVENTS }, signal),
      get("annotations", { stream: this._stream, ...place }, signal),
    ]);
    if (turn !== this._turn) return;
    this._message.hidden = true;
    this._events = new Map(events.events.map((event) => [event.id, event]));
    this._annotations = marks.annotations;
    this._marks.show(marks.annotations);
    this._series = series;
    this._fetchedAt = performance.now();
    this._nTail = 0;
    this._showCharts();
    this._showEvents();
  }

  _showCharts() {
    const { _series: series } = this;
    const hasRecords = series.time.length > 0;
    this._chooser.show(this._range);
    this._back.hidden = this._range.isLive;
    this._showBrush();
    this._showEmpty(hasRecords);
    if (!hasRecords && !this._order) return;
    const all = hasRecords ? this._orderedFields(Object.keys(series.fields)) : this._order;
    const shown = this._showsAll ? all : all.slice(0, MOST_FIELDS);
    this._allFields.hidden = shown.length === all.length;
    this._allFields.textContent = `Show all ${count(all.length)} fields`;
    this._stack.show(series, this._span(), shown);
    const n = plural(series.n_records, "record");
    const how = "Drag to zoom, Shift-drag to move.";
    this._notes.textContent = series.is_raw
      ? `${n}, all shown. ${how}`
      : `${n} in ${count(series.time.length)} steps: the line is the mean, the shaded area the minimum and maximum. ${how}`;
  }

  /** Sort fields by their attributions in the events of the range, once. */
  _orderedFields(fields) {
    if (!this._order || this._order.length !== fields.length) {
      const attributions = new Map(fields.map((field) => [field, 0]));
      for (const event of this._events.values()) {
        for (const [field, amount] of Object.entries(event.attributions ?? {}))
          if (attributions.has(field)) attributions.set(field, attributions.get(field) + Math.max(0, amount));
      }
      this._order = [...fields].sort((a, b) => attributions.get(b) - attributions.get(a));
    }
    return this._order;
  }

  _showAllFields() {
    this._showsAll = true;
    this._showCharts();
  }

  _showEmpty(hasRecords) {
    this._charts.hidden = !hasRecords && !this._order; // shown charts stay, empty, and keep the focus
    this._empty.hidden = hasRecords;
    if (hasRecords) return;
    const isNew = this._known.end === null;
    this._empty.replaceChildren(
      h(
        "section",
        { class: "panel empty" },
        h("h2", {}, isNew ? "No records yet" : "No records in this range"),
        isNew
          ? this._howToSend()
          : h(
              "p",
              {},
              `Records exist from ${moment(this._known.start)} to ${moment(this._known.end)}. `,
              h("button", { type: "button", onclick: () => this._choose(new TimeRange({ last: "all" })) }, "Show all"),
            ),
      ),
    );
  }

  _howToSend() {
    const box = h("div", {});
    howToSend(this._about, this._page).then((how) => box.append(how), (problem) => this._fail(problem));
    return box;
  }

  _showIncidents(incidents) {
    this._incidents = incidents;
    this._showEvents();
  }

  _showEvents() {
    const events = [...this._events.values()].sort((a, b) => b.start - a.start);
    const others = this._incidents.filter((incident) => incident.events.some((event) => this._events.has(event.id)));
    const open = events.find((event) => event.is_open);
    this._state.replaceChildren(
      open ? h("span", { class: "chip open" }, "open") : h("span", { class: "chip good" }, "normal"),
      " ",
      open
        ? h("a", { href: eventLink(open) }, sentence(open))
        : `No open events${events.length ? `; ${plural(events.length, "event")}${events.length < MOST_EVENTS ? "" : " or more"} in this range` : ""}.`,
    );
    const notes = new Map(others.flatMap((incident) => incident.events.map((event) => [event.id, incident])));
    this._list.replaceChildren(
      events.length
        ? h(
            "ul",
            { class: "events" },
            events.map((event) => eventRow(event, { isNew: this._fresh.has(event.id), incident: notes.get(event.id) })),
          )
        : h("p", { class: "muted pad" }, "No events in this range."),
    );
  }

  /** Return the shown span: a live one has room for the mark of the newest reading. */
  _span() {
    const [from, to] = this._range.resolve(this._known);
    return [from, this._range.isLive ? to + ROOM * (to - from) : to];
  }

  _choose(range) {
    this._range = range;
    if (range.isPreset) this._lastLive = range.last; // Escape returns to it
    this._page.remember(range.toQuery());
    this._chooser.show(range);
    this._back.hidden = range.isLive;
    this._stack.move(this._span());
    this._showBrush();
    this._fetch();
  }

  _pick(time, tolerance) {
    const hit = [...this._events.values()].find(
      (event) => event.start - tolerance <= time && time <= event.end + tolerance,
    );
    if (hit) location.hash = eventLink(hit);
  }

  // ---- live ----

  _onTail({ records }) {
    this._tail.push(...records);
    this._follow();
  }

  _showTail() {
    const records = this._tail.splice(0);
    if (!records.length) return;
    const last = records.at(-1).time;
    const isFirst = this._known.end === null;
    this._known.end = Math.max(this._known.end ?? last, last);
    this._known.start ??= records[0].time;
    if (!this._range.isLive) return;
    this._nTail += records.length;
    const isLate = this._nTail > MOST_TAIL || performance.now() - this._fetchedAt > REFETCH;
    if (isFirst || isLate || !this._stack.length) this._fetch();
    else {
      this._stack.add(records, this._about.fields, this._span());
      this._chooser.tick();
    }
  }

  _onEvent(event) {
    if (!this._events.has(event.id) && event.is_open) {
      this._fresh.add(event.id);
      setTimeout(() => this._fresh.delete(event.id), NEW);
      announce(`New event: ${event.summary}`);
    }
    const [from, to] = this._span();
    if (this._range.isLive || (event.end >= from && event.start <= to)) this._events.set(event.id, event);
    this._showEvents();
  }

  // ---- strip of all stored records ----

  async _showStrip() {
    const { start, end } = this._known;
    if (start === null || end <= start) return;
    const series = await get(
      ofStream(this._stream, "series"),
      { key: this._key, start: asked(start, end)[0], end: asked(start, end + 0.001)[1], points: STRIP_CELLS },
      this._page.signal,
    );
    const lane = {
      surprise: Array(STRIP_CELLS).fill(null),
      flagged: Array(STRIP_CELLS).fill(0),
      n: Array(STRIP_CELLS).fill(0),
    };
    series.time.forEach((time, i) => {
      const at = Math.min(STRIP_CELLS - 1, Math.max(0, Math.floor(((time - start) / (end - start)) * STRIP_CELLS)));
      const chance = series.p_value[i];
      lane.n[at] += series.n[i];
      lane.flagged[at] += series.flagged[i];
      if (chance !== null) lane.surprise[at] = Math.max(lane.surprise[at] ?? 0, chance > 0 ? -Math.log2(chance) : 64);
    });
    this._lane = lane;
    this._laneSpan = [start, end];
    this._drawStrip();
  }

  _drawStrip() {
    if (this._lane) drawStrip(this._strip, this._lane);
    this._showBrush();
  }

  _showBrush() {
    if (!this._laneSpan) return;
    const [start, end] = this._laneSpan;
    const [from, to] = this._span();
    const share = (time) => Math.min(1, Math.max(0, (time - start) / (end - start)));
    this._window.style.left = `${100 * share(from)}%`;
    this._window.style.width = `${Math.max(0.4, 100 * (share(to) - share(from)))}%`;
  }

  _bindNavigator() {
    const moveTo = (event) => {
      if (!this._laneSpan) return;
      const box = this._navigator.getBoundingClientRect();
      const [start, end] = this._laneSpan;
      const middle = start + ((event.clientX - box.left) / box.width) * (end - start);
      const [from, to] = this._span();
      const length = Math.min(to - from, (end - start) / 4);
      this._choose(new TimeRange({ from: middle - length / 2, to: middle + length / 2 }));
    };
    this._navigator.addEventListener("pointerdown", (event) => {
      this._navigator.setPointerCapture(event.pointerId);
      moveTo(event);
    });
    this._navigator.addEventListener("pointermove", (event) => {
      if (this._navigator.hasPointerCapture(event.pointerId)) moveTo(event);
    });
  }
}

/** Return the legend of lines and shades. */
export function chartLegend({ withThreshold = true } = {}) {
  const item = (kind, words) =>
    h("span", { class: "legend-item" }, h("span", { class: `swatch ${kind}`, "aria-hidden": "true" }), words);
  return h(
    "div",
    { class: "legend chart-legend" },
    item("line", "value"),
    item("band", "usual range"),
    item("shade", "flagged"),
    item("mark", "main cause"),
    withThreshold ? item("dash", "threshold") : null,
  );
}
