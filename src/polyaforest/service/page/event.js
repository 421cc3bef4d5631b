// One event: summary, explanation, expected ranges and feedback.

import { get, ofStream, post, remove, softly } from "./api.js";
import { ChartStack, attributedFields } from "./charts.js";
import { announce, h, name, visible, visibleLines } from "./dom.js";
import { ago, bits, count, duration, fullMoment, moment, number, plural, range, span } from "./format.js";
import { chips, eventList, eventRow, facts, grade, place, rarity, sentence, streamLink } from "./parts.js";
import { chartLegend } from "./stream.js";
import { MutePanel, lifePanel } from "./work.js";

const MOST_CHARTS = 3;
const MOST_REASONS = 8;
const MOST_COLUMNS = 8;
const LEAST_RECORDS = 40; // in the charts
const LEAST_MARGIN = 60; // seconds around an event in the charts

export class EventScreen {
  constructor(page) {
    this._page = page;
    [this._stream, this._id] = page.parts;
    this._stack = new ChartStack({ events: () => [this._event], isSmall: true, withSurprise: false });
    this._problem = h("p", { class: "problem", role: "alert" });
    this._note = h("input", { type: "text", id: "note", maxlength: "1000", autocomplete: "off" });
    this._isBusy = false;
    this.element = h("div", { class: "event" }, h("p", { class: "muted pad" }, "Loading…"));
  }

  get title() {
    return this._event ? sentence(this._event).slice(0, 80) : "Event";
  }

  async load() {
    const { signal } = this._page;
    this._event = await get(ofStream(this._stream, "events", this._id), {}, signal);
    const [audit, incidents] = await Promise.all([this._loadAudit(), this._loadIncident()]);
    this._audit = audit;
    this._incident = incidents;
    this._show();
    await this._showCharts();
    this._page.live.follow(
      { stream: this._stream, key: this._event.key },
      { event: (event) => event.id === this._id && softly(this._reload()), again: () => softly(this._reload()) },
    );
  }

  close() {
    this._stack.close();
  }

  async _loadAudit() {
    const { entries } = await get(ofStream(this._stream, "audit"), { limit: 200 }, this._page.signal);
    return entries.filter((entry) => entry.facts?.event === this._id);
  }

  async _loadIncident() {
    const { start, end } = this._event;
    const { incidents } = await get(
      "incidents",
      { start: (start - 1).toFixed(3), end: (end + 1).toFixed(3), limit: 100 },
      this._page.signal,
    );
    return (
      incidents.find((one) => one.events.some((event) => event.id === this._id && event.stream === this._stream)) ??
      null
    );
  }

  async _reload() {
    if (this._isBusy) return;
    const known = () => JSON.stringify([this._event, this._audit, this._incident]);
    const before = known();
    this._event = await get(ofStream(this._stream, "events", this._id), {}, this._page.signal);
    [this._audit, this._incident] = await Promise.all([this._loadAudit(), this._loadIncident()]);
    if (known() === before) return;
    this._show();
    await this._showCharts();
  }

  _show() {
    const event = this._event;
    const hadFocus = this.element.contains(document.activeElement) ? document.activeElement.id : null;
    this.element.replaceChildren(
      this._head(),
      lifePanel(event, this._page.canWrite, (action, said) => this._act(action, said)),
      this._feedback(),
      h(
        "div",
        { class: "columns" },
        h("div", { class: "stack" }, this._reasons(), this._chartsPanel(), this._similarPoints()),
        h(
          "aside",
          { class: "side stack", "aria-label": "Around this event" },
          this._factsPanel(),
          this._incidentPanel(),
          this._similarEvents(),
          this._alerts(),
          this._mutePanel(),
          this._history(),
        ),
      ),
    );
    if (hadFocus) document.getElementById(hadFocus)?.focus();
    this.element.dataset.label = event.label ?? "";
  }

  _head() {
    const event = this._event;
    const around = this._around();
    return h(
      "div",
      { class: "event-head" },
      h(
        "nav",
        { class: "crumbs", "aria-label": "Breadcrumb" },
        h("a", { href: "#/" }, "Overview"),
        h("span", { "aria-hidden": "true" }, "/"),
        h(
          "a",
          { href: streamLink(event.stream, event.key, around) },
          visible(event.stream),
          event.key === "" ? "" : " ",
          event.key === "" ? null : name(event.key),
        ),
        h("span", { "aria-hidden": "true" }, "/"),
        h("span", { class: "crumb" }, "event"),
      ),
      h("h1", { class: "sentence", title: sentence(event).slice(0, 500) }, sentence(event)),
      h(
        "p",
        { class: "event-sub" },
        grade(event),
        place(event),
        chips(event),
        h(
          "span",
          { class: "num" },
          event.is_open
            ? `since ${moment(event.start)} (${ago(event.start)})`
            : `${span(event.start, event.end)} (${duration(event.end - event.start)})`,
        ),
        event.n_flagged ? h("span", { class: "num" }, `${plural(event.n_flagged, "record")} flagged`) : null,
      ),
      event.severity ? h("p", { class: "verdict" }, `Severity ${event.severity} of 5${rarityWords(event)}.`) : null,
    );
  }

  _around() {
    const { start, end } = this._event;
    const margin = Math.max(LEAST_MARGIN, (end - start) * 3);
    return `from=${(start - margin).toFixed(3)}&to=${(end + margin).toFixed(3)}`;
  }

  _mutePanel() {
    if (!this._mutes) {
      const { key, cause } = this._event;
      this._mutes = new MutePanel(this._page, this._stream, { key, field: cause?.field ?? null });
      softly(this._mutes.load());
    }
    return this._mutes.element;
  }

  // ---- feedback ----

  _feedback() {
    const event = this._event;
    const words = {
      incident:
        "Labelled as an incident. The model has unlearned its records, so that it never becomes normal.",
      normal: "Labelled as normal. The model has learned it.",
    };
    if (event.label) {
      const undo = this._page.canWrite
        ? h("button", { type: "button", id: "undo", onclick: () => this._undo() }, "Undo")
        : null;
      const latest = (event.feedback ?? []).find((one) => one.state === "applied");
      const cannot = latest && latest.can_undo === false;
      if (cannot && undo) undo.disabled = true;
      const note = latest?.facts?.note;
      return h(
        "section",
        { class: `panel feedback is-${event.label}`, "aria-label": "Feedback" },
        h(
          "div",
          { class: "feedback-words" },
          h("p", {}, words[event.label]),
          note ? h("p", { class: "muted" }, `“${visible(note)}”`) : null,
          cannot
            ? h("p", { class: "muted" }, "Too late to undo: the former model is no longer stored.")
            : null,
        ),
        undo,
        this._problem,
      );
    }
    if (event.kind !== "anomaly") return "";
    if (!this._page.canWrite)
      return h("p", { class: "muted feedback-none" }, "Feedback requires an admin token; yours is read-only.");
    const button = (verdict, label) =>
      h(
        "button",
        {
          type: "button",
          id: `say-${verdict}`,
          "aria-describedby": `about-${verdict}`,
          onclick: () => this._say(verdict),
        },
        label,
      );
    return h(
      "section",
      { class: "panel feedback", "aria-label": "Feedback" },
      h(
        "div",
        { class: "choice" },
        button("normal", "This was normal"),
        h("span", { class: "muted", id: "about-normal" }, "The model learns it and does not flag similar records again."),
      ),
      h(
        "div",
        { class: "choice" },
        button("incident", "This was an incident"),
        h(
          "span",
          { class: "muted", id: "about-incident" },
          "The model unlearns its records, so that it never becomes normal.",
        ),
      ),
      h("div", { class: "choice note" }, h("label", { for: "note" }, "Note (optional)"), this._note),
      this._problem,
    );
  }

  async _act(action, said) {
    this._isBusy = true;
    this._problem.textContent = "";
    for (const button of this.element.querySelectorAll(".feedback button, .life button")) button.disabled = true;
    try {
      this._event = { ...this._event, ...(await action()) };
      this._note.value = "";
      announce(said);
      this._audit = await this._loadAudit();
    } catch (problem) {
      this._problem.textContent = visible(problem.message);
    }
    this._isBusy = false;
    this._show();
  }

  _say(verdict) {
    const body = { verdict, ...(this._note.value ? { note: this._note.value } : {}) };
    return this._act(
      () => post(ofStream(this._stream, "events", this._id, "feedback"), body),
      verdict === "normal" ? "Marked as normal" : "Marked as an incident",
    );
  }

  _undo() {
    return this._act(() => remove(ofStream(this._stream, "events", this._id, "feedback")), "Feedback undone");
  }

  // ---- explanation ----

  _reasons() {
    const { reasons = [], kind } = this._event;
    if (kind === "silence") {
      return h(
        "section",
        { class: "panel" },
        h("div", { class: "panel-head" }, h("h2", {}, "Why")),
        h("p", { class: "pad" }, "No values arrived for longer than the stream allows. The next value closes this event."),
      );
    }
    if (kind === "drift") return this._driftPanel();
    if (!reasons.length) return "";
    const shown = reasons.slice(0, MOST_REASONS);
    const most = Math.max(...reasons.map((reason) => reason.bits), 1e-9);
    return h(
      "section",
      { class: "panel", "aria-labelledby": "why" },
      h(
        "div",
        { class: "panel-head" },
        h("h2", { id: "why" }, "Why"),
        h("span", { class: "muted" }, "surprise by field, in bits: each bit halves the probability"),
      ),
      h(
        "ol",
        { class: "reasons" },
        shown.map((reason) => reasonRow(reason, most)),
      ),
      regionWords(this._event.region),
    );
  }

  _driftPanel() {
    const { drift, outcome, is_open: isOpen } = this._event;
    const regions = drift?.regions ?? [];
    const next = isOpen ? "The event closes when the change ends or becomes the new normal." : (outcome ?? "");
    return h(
      "section",
      { class: "panel", "aria-labelledby": "why" },
      h("div", { class: "panel-head" }, h("h2", { id: "why" }, "Why")),
      h("p", { class: "pad" }, "The records of this key have a different distribution than before."),
      regions.length
        ? h(
            "ol",
            { class: "regions" },
            regions.map((region) => h("li", {}, visible(region))),
          )
        : null,
      next ? h("p", { class: "pad" }, visible(next)) : null,
    );
  }

  _chartsPanel() {
    this._chartsBox = h(
      "section",
      { class: "panel charts-panel", "aria-labelledby": "around", hidden: true },
      h(
        "div",
        { class: "panel-head" },
        h("h2", { id: "around" }, "Around the event"),
        h("a", { href: streamLink(this._event.stream, this._event.key, this._around()) }, "All fields"),
      ),
      chartLegend({ withThreshold: false }),
      this._stack.element,
    );
    if (this._hasCharts) this._chartsBox.hidden = false;
    return this._chartsBox;
  }

  async _showCharts() {
    const [series, within] = await this._seriesAround();
    if (!series.time.length) return;
    const known = Object.keys(series.fields);
    const fields = attributedFields(this._event.attributions).filter((field) => known.includes(field));
    this._hasCharts = true;
    this._chartsBox.hidden = false;
    this._stack.show(series, within, (fields.length ? fields : known).slice(0, MOST_CHARTS));
  }

  /** Return the records around the event; widen the range until there are enough. */
  async _seriesAround() {
    const { start, end, key } = this._event;
    for (let margin = Math.max(LEAST_MARGIN, (end - start) * 3), tries = 0; ; margin *= 8, tries++) {
      const within = [start - margin, end + margin];
      const series = await get(
        ofStream(this._stream, "series"),
        { key, start: within[0].toFixed(3), end: within[1].toFixed(3), points: 400 },
        this._page.signal,
      );
      if (series.n_records < LEAST_RECORDS && tries < 3) continue;
      within[1] = Math.min(within[1], Math.max(series.time.at(-1) ?? 0, end + margin / 4)); // little of the future
      return [series, within];
    }
  }

  _similarPoints() {
    const { similar = [], values, reasons = [] } = this._event;
    if (!similar.length || !values) return "";
    const first = reasons.map(({ feature }) => feature);
    const known = Object.keys(similar[0].values);
    const columns = [...new Set([...first.filter((feature) => known.includes(feature)), ...known])].slice(
      0,
      MOST_COLUMNS,
    );
    const mine = Object.fromEntries(reasons.map((reason) => [reason.feature, reason.value]));
    const cells = (row) => columns.map((column) => h("td", {}, visible(number(row[column]))));
    return h(
      "section",
      { class: "panel", "aria-labelledby": "similar" },
      h("div", { class: "panel-head" }, h("h2", { id: "similar" }, "Most similar normal points")),
      h(
        "div",
        { class: "scroll", tabindex: "0", role: "region", "aria-labelledby": "similar" },
        h(
          "table",
          { class: "num" },
          h(
            "thead",
            {},
            h(
              "tr",
              {},
              h("th", { scope: "col" }, ""),
              columns.map((column) => h("th", { scope: "col" }, name(column))),
            ),
          ),
          h(
            "tbody",
            {},
            h("tr", { class: "this-event" }, h("th", { scope: "row" }, "this event"), cells({ ...values, ...mine })),
            similar.map((one) =>
              h(
                "tr",
                {},
                h(
                  "th",
                  { scope: "row" },
                  typeof one.point === "number" ? `record ${count(one.point)}` : name(one.point),
                ),
                cells(one.values),
              ),
            ),
          ),
        ),
      ),
    );
  }

  // ---- context ----

  _factsPanel() {
    const event = this._event;
    const silence = event.kind === "silence";
    return h(
      "section",
      { class: "panel", "aria-labelledby": "facts" },
      h("div", { class: "panel-head" }, h("h2", { id: "facts" }, "Facts")),
      facts([
        event.severity ? ["Severity", `${event.severity} of 5`] : null,
        rarity(event) ? ["Rarity", rarity(event)] : null,
        event.kind !== "anomaly" || event.bits === null ? null : ["Surprise", `${bits(event.bits)} bits above usual`],
        silence
          ? [
              "Silent",
              [visible(event.what ?? ""), event.field ? " " : "", event.field ? name(event.field) : ""],
            ]
          : null,
        typeof event.departure?.expected === "number" ? ["Expected", departureWords(event.departure)] : null,
        ["Began", fullMoment(event.start)],
        event.drift ? ["Change", visible(event.drift.kind)] : null,
        event.kind === "anomaly" ? ["Worst", fullMoment(event.peak)] : null,
        ["Ended", event.is_open ? "still open" : fullMoment(event.end)],
        event.first === null || event.first === undefined
          ? null
          : [
              "Records",
              event.first === event.last ? count(event.first) : `${count(event.first)} – ${count(event.last)}`,
            ],
        event.record === null || event.record === undefined ? null : ["Record id", name(event.record)],
      ]),
    );
  }

  _incidentPanel() {
    if (!this._incident) return "";
    return h(
      "section",
      { class: "panel", "aria-labelledby": "incident" },
      h("div", { class: "panel-head" }, h("h2", { id: "incident" }, "At the same time")),
      eventList(this._incident.events, [this._incident]),
    );
  }

  _similarEvents() {
    const shown = new Set((this._incident?.events ?? []).map((event) => event.id));
    const events = (this._event.similar_events ?? []).filter((event) => !shown.has(event.id));
    if (!events.length) return "";
    return h(
      "section",
      { class: "panel", "aria-labelledby": "before" },
      h("div", { class: "panel-head" }, h("h2", { id: "before" }, "Similar events")),
      h(
        "ul",
        { class: "events" },
        events.map((event) => eventRow(event)),
      ),
    );
  }

  _alerts() {
    const { alerts = [] } = this._event;
    const kinds = { open: "opened", worse: "worsened", closing: "closed" };
    const item = (alert) =>
      h(
        "li",
        {},
        h(
          "p",
          {},
          h("strong", {}, visible(alert.destination)),
          ` ${kinds[alert.kind] ?? ""}, `,
          h("span", { class: `alert-${alert.state}` }, alert.state),
          ` ${moment(alert.at)}`,
          alert.attempts > 1 ? `, ${plural(alert.attempts, "attempt")}` : "",
        ),
        alert.error ? h("p", { class: "problem" }, visible(alert.error)) : null,
        alert.message
          ? h(
              "blockquote",
              {},
              h("strong", {}, visible(alert.message.title ?? "")),
              h("pre", {}, visibleLines(alert.message.text ?? "")),
            )
          : null,
      );
    return h(
      "section",
      { class: "panel", "aria-labelledby": "alerts" },
      h("div", { class: "panel-head" }, h("h2", { id: "alerts" }, "Alerts")),
      alerts.length
        ? h("ul", { class: "plain alerts" }, alerts.map(item))
        : h("p", { class: "muted pad" }, "No alerts were sent."),
    );
  }

  _history() {
    if (!this._audit.length) return "";
    const item = (entry) =>
      h(
        "li",
        {},
        h("span", { class: "num muted" }, moment(entry.at)),
        ` ${visible(entry.who ?? "")}: ${visible(entry.action)}`,
        entry.facts?.verdict ? ` (${visible(entry.facts.verdict)})` : "",
        entry.facts?.note ? ` “${visible(entry.facts.note)}”` : "",
      );
    return h(
      "section",
      { class: "panel", "aria-labelledby": "audit" },
      h("div", { class: "panel-head" }, h("h2", { id: "audit" }, "Audit")),
      h("ul", { class: "plain audit" }, this._audit.map(item)),
    );
  }
}

/** Say which records are rare, from a region such as "cpu > 93 (usual 2–61): about 3 in 1,000 points fall here [1–5]". */
function regionWords(region) {
  const [, conditions] = /^(.*): about .+ points fall here \[.*\]$/s.exec(region ?? "") ?? [];
  return conditions ? h("p", { class: "region" }, `Few records have ${visible(conditions)}.`) : null;
}

/** Return the rarity of an event after a colon. */
function rarityWords(event) {
  const words = rarity(event);
  return words ? `: ${words}` : "";
}

/** Describe the expected value. */
function departureWords({ field, value, expected, low, high }) {
  const isBand = typeof low === "number" && typeof high === "number" && low !== high;
  return [name(field), ` about ${number(expected)}${isBand ? ` (${range([low, high])})` : ""}; was ${number(value)}`];
}

/** Return a reason: its bits as a bar, and its value against the usual range and what would be normal. */
function reasonRow(reason, most) {
  const sides = { high: "high", low: "low" };
  const isNumber = typeof reason.value === "number";
  return h(
    "li",
    { class: "reason", "data-feature": reason.feature },
    h(
      "div",
      { class: "reason-name" },
      name(reason.feature),
      h("span", { class: "reason-value num" }, visible(number(reason.value))),
      isNumber && sides[reason.side] ? h("span", { class: "muted" }, `too ${sides[reason.side]}`) : null,
    ),
    h(
      "div",
      { class: "reason-bits" },
      h(
        "div",
        { class: "bar-track", "aria-hidden": "true" },
        h("div", { class: "bar", style: { width: `${Math.max(0.5, (100 * Math.max(0, reason.bits)) / most)}%` } }),
      ),
      h("span", { class: "num" }, `${bits(reason.bits)} bits`),
    ),
    h(
      "div",
      { class: "reason-ranges num" },
      h(
        "span",
        {},
        h("span", { class: "swatch usual", "aria-hidden": "true" }),
        "usual ",
        h("strong", {}, range(reason.usual)),
      ),
      reason.expected
        ? h(
            "span",
            {},
            h("span", { class: "swatch expected", "aria-hidden": "true" }),
            "would be normal ",
            h("strong", {}, range(reason.expected)),
          )
        : null,
    ),
    isNumber ? gauge(reason) : null,
  );
}

/** Return a scale with the usual range, the range that would be normal, and the value. */
function gauge({ value, usual, expected }) {
  const all = [value, ...(usual ?? []), ...(expected ?? [])].filter((end) => typeof end === "number");
  const [least, most] = [Math.min(...all), Math.max(...all)];
  const room = (most - least) * 0.06 || 1;
  const share = (end) => `${(100 * (end - least + room)) / (most - least + 2 * room)}%`;
  const block = (kind, pair) => {
    if (!pair) return null;
    const [low, high] = [pair[0] ?? least - room, pair[1] ?? most + room];
    return h("div", {
      class: kind,
      style: { left: share(low), width: `${Math.max(0.4, (100 * (high - low)) / (most - least + 2 * room))}%` },
    });
  };
  return h(
    "div",
    { class: "gauge", "aria-hidden": "true" },
    block("gauge-expected", expected),
    block("gauge-usual", usual),
    h("div", { class: "gauge-value", style: { left: share(value) } }),
  );
}
