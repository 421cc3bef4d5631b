// The time range of a screen: live (the last hours) or fixed.

import { h } from "./dom.js";
import { duration, now, span, usesUtc } from "./format.js";

const PRESETS = { "1h": 3600, "6h": 21600, "24h": 86400, "7d": 604800, "30d": 2592000, all: null };
const SHORTEST = 1; // seconds

/** A time range, stored in the address of the page. */
export class TimeRange {
  constructor({ last = null, from = null, to = null }) {
    Object.assign(this, { last, from, to });
  }

  static fromQuery(query, fallback = "24h") {
    const [from, to] = [query.get("from"), query.get("to")].map((text) => (text === null ? NaN : Number(text)));
    if (Number.isFinite(from) && Number.isFinite(to) && from < to) return new TimeRange({ from, to });
    const last = query.get("last");
    return new TimeRange({ last: last !== null && Object.hasOwn(PRESETS, last) ? last : fallback });
  }

  toQuery() {
    return this.last === null ? `from=${this.from.toFixed(3)}&to=${this.to.toFixed(3)}` : `last=${this.last}`;
  }

  /** Whether the range follows new records. */
  get isLive() {
    return this.last !== null;
  }

  /** Return [from, to], given the span of the stored records. */
  resolve(known) {
    if (!this.isLive) return [this.from, this.to];
    const to = Math.min(known.end ?? now(), now()); // records dated in the future do not move it
    const length = PRESETS[this.last] ?? Math.max(60, to - (known.start ?? to - 86400));
    return [to - length, to];
  }

  /** Return the range scaled by `factor` around a point, given as a share of its length. */
  scaled(known, factor, around = 0.5) {
    const [from, to] = this.resolve(known);
    const length = Math.max(SHORTEST, (to - from) * factor);
    const middle = from + (to - from) * around;
    return new TimeRange({ from: middle - length * around, to: middle + length * (1 - around) });
  }

  /** Return this range moved by a share of its length. */
  moved(known, share) {
    const [from, to] = this.resolve(known);
    const step = (to - from) * share;
    return new TimeRange({ from: from + step, to: to + step });
  }
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
    this._words.textContent = `${span(from, to)} (${duration(to - from)})`;
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
