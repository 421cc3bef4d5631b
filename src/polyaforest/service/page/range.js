// The time range of a screen: live (the last hours) or fixed.

import { h } from "./dom.js";
import { datedSpan, duration, now, usesUtc } from "./format.js";

const PRESETS = { "1h": 3600, "6h": 21600, "24h": 86400, "7d": 604800, "30d": 2592000, all: null };
const SHORTEST = 1; // seconds
const LONGEST = 20 * 365 * 86400;
const LEAST_IN_VIEW = 0.1; // of a moved range that still has records
const ENOUGH = 100; // records of a key that a default range should show

/** Return the length of a live range in seconds, null for all records. */
const lengthOf = (last) => (Object.hasOwn(PRESETS, last) ? PRESETS[last] : Number(last.slice(0, -1)));

/** Return a live range of a length: a preset if there is one. */
function ofLength(seconds) {
  const preset = Object.keys(PRESETS).find((name) => PRESETS[name] !== null && Math.abs(PRESETS[name] - seconds) < 1);
  return new TimeRange({ last: preset ?? `${Number(seconds.toFixed(3))}s` });
}

/** Return the default range: the shortest with enough records of a key, all if there are few or young ones. */
export function fitting(streams) {
  const known = streams.filter(({ start, end }) => start !== null && end !== null);
  if (!known.length) return "24h";
  const total = Math.max(...known.map(({ end }) => end)) - Math.min(...known.map(({ start }) => start));
  if (total <= 1.2 * PRESETS["24h"]) return "all";
  const n = Math.max(...known.map((stream) => stream.n_records / Math.max(1, stream.n_keys)));
  return ["24h", "7d", "30d"].find((name) => (n * PRESETS[name]) / total >= ENOUGH) ?? "all";
}

/** A time range, stored in the address of the page. */
export class TimeRange {
  constructor({ last = null, from = null, to = null }) {
    Object.assign(this, { last, from, to });
  }

  static fromQuery(query, fallback = "24h") {
    const [from, to] = [query.get("from"), query.get("to")].map((text) => (text === null ? NaN : Number(text)));
    if (Number.isFinite(from) && Number.isFinite(to) && from < to) return new TimeRange({ from, to });
    const last = query.get("last");
    const isKnown = last !== null && (Object.hasOwn(PRESETS, last) || isDuration(last));
    return new TimeRange({ last: isKnown ? last : fallback });
  }

  toQuery() {
    return this.last === null ? `from=${this.from.toFixed(3)}&to=${this.to.toFixed(3)}` : `last=${this.last}`;
  }

  /** Whether the range follows new records. */
  get isLive() {
    return this.last !== null;
  }

  /** Whether the range is one of the buttons. */
  get isPreset() {
    return this.isLive && Object.hasOwn(PRESETS, this.last);
  }

  /** Whether the range is between two given times. */
  get isFixed() {
    return this.from !== null;
  }

  /** Return [from, to], given the span of the stored records. */
  resolve(known) {
    if (!this.isLive) return [this.from, this.to];
    const to = Math.min(known.end ?? now(), now()); // records dated in the future do not move it
    const length = lengthOf(this.last) ?? Math.max(60, to - (known.start ?? to - 86400));
    return [to - length, to];
  }

  /**
   * Return the range scaled by `factor` around a point, given as a share of its length.
   *
   * Without a point, a live range stays live, and a fixed one keeps the newest records in view if they are.
   */
  scaled(known, factor, around = null) {
    const [from, to] = this.resolve(known);
    const length = Math.min(LONGEST, Math.max(SHORTEST, (to - from) * factor));
    if (this.isLive && around === null) return ofLength(length);
    const newest = known.end !== null && from <= known.end && known.end <= to ? (known.end - from) / (to - from) : 0.5;
    const share = around ?? newest;
    const fixed = from + (to - from) * share;
    return new TimeRange({ from: fixed - length * share, to: fixed + length * (1 - share) });
  }

  /** Return this range moved by a share of its length, not past the records; at the newest one it is live. */
  moved(known, share) {
    const [from, to] = this.resolve(known);
    const length = to - from;
    if (known.end === null || (this.isLive && share > 0)) return this;
    const start = Math.max(from + length * share, known.start - length * (1 - LEAST_IN_VIEW));
    if (share > 0 && start + length >= Math.min(known.end, now())) return ofLength(length);
    return new TimeRange({ from: start, to: start + length });
  }
}

/** Whether a text is a duration in seconds, such as "5400s". */
function isDuration(text) {
  const seconds = /^\d{1,9}(\.\d+)?s$/.test(text) ? Number(text.slice(0, -1)) : 0;
  return seconds >= SHORTEST && seconds <= LONGEST;
}

/** Buttons to choose a range; calls `onChange` with the new range. */
export class RangeChooser {
  constructor(range, known, onChange) {
    this._range = range;
    this._known = known;
    const set = (next) => {
      this.show(next);
      onChange(next);
    };
    this._presets = Object.keys(PRESETS).map((last) =>
      h("button", { type: "button", onclick: () => set(new TimeRange({ last })) }, last === "all" ? "All" : last),
    );
    const step = (sign, label, title) =>
      h(
        "button",
        { type: "button", title, "aria-label": title, onclick: () => set(this._range.moved(this._known(), sign)) },
        label,
      );
    const zoom = (factor, label, title) =>
      h(
        "button",
        { type: "button", title, "aria-label": title, onclick: () => set(this._range.scaled(this._known(), factor)) },
        label,
      );
    this._words = h("span", { class: "range-words num" });
    this._custom = this._makeCustom(set);
    this.element = h(
      "div",
      { class: "range", role: "group", "aria-label": "Time range" },
      h("div", { class: "segments" }, this._presets),
      h(
        "div",
        { class: "segments" },
        step(-0.5, "◀", "Earlier"),
        zoom(2, "−", "Zoom out"),
        zoom(0.5, "+", "Zoom in"),
        step(0.5, "▶", "Later"),
      ),
      this._custom,
      this._words,
    );
    this.show(range);
  }

  _makeCustom(set) {
    const field = (label) => h("input", { type: "datetime-local", step: "1", required: true, "aria-label": label });
    this._from = field("From");
    this._to = field("To");
    const problem = h("span", { class: "problem", role: "alert" });
    const box = h("details", { class: "custom" }, h("summary", {}, "Custom"));
    const form = h(
      "form",
      {
        onsubmit: (event) => {
          event.preventDefault();
          const [from, to] = [read(this._from.value), read(this._to.value)];
          problem.textContent = from < to ? "" : "The start must be before the end.";
          if (!(from < to)) return;
          box.open = false;
          set(new TimeRange({ from, to }));
        },
      },
      h("label", {}, "From ", this._from),
      h("label", {}, "To ", this._to),
      h("button", { type: "submit", class: "primary" }, "Show"),
      problem,
    );
    box.append(form);
    box.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      box.open = false;
      box.querySelector("summary").focus();
      event.stopPropagation();
    });
    return box;
  }

  /** Show the chosen range. */
  show(range) {
    this._range = range;
    Object.keys(PRESETS).forEach((last, i) =>
      this._presets[i].setAttribute("aria-pressed", String(last === range.last)),
    );
    this.tick();
  }

  /** Update the displayed times of a live range. */
  tick() {
    const [from, to] = this._range.resolve(this._known());
    this._words.textContent = `${datedSpan(from, to)} (${duration(to - from)})`;
    if (!this._custom.open) {
      this._from.value = written(from);
      this._to.value = written(to);
    }
  }
}

function read(text) {
  return new Date(usesUtc() ? `${text}Z` : text).getTime() / 1000;
}

function written(time) {
  const shift = usesUtc() ? 0 : new Date(time * 1000).getTimezoneOffset() * 60;
  return new Date((time - shift) * 1000).toISOString().slice(0, 19);
}
