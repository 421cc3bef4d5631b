// Lanes: one row per key, time from left to right, colour by surprise, marks on flagged records.

import { announce, h, name, visible } from "./dom.js";
import { count, duration, moment, oneIn, plural, roundTimes } from "./format.js";
import { ofCell } from "./surprise.js";

const HEIGHT = 22; // of a strip, in CSS pixels
const MOST = 10; // bits of the strongest colour: 1 in 1,000
const LEAST = 2; // bits up to which a cell is pale
const TICK = 90; // pixels of a time label
const NAMES = [110, 0.34]; // least pixels, and largest share of the width, of the column of names

/** Return the colour of a surprise: one hue, perceptually even lightness. */
export function colour(surprise, isDark) {
  const share = Math.min(1, Math.max(0, (surprise - LEAST) / (MOST - LEAST)));
  const [lightness, chroma] = isDark
    ? [0.3 + 0.48 * share, 0.012 + 0.15 * share]
    : [0.945 - 0.42 * share, 0.008 + 0.165 * share];
  return `oklch(${lightness.toFixed(3)} ${chroma.toFixed(3)} ${isDark ? 48 : 42})`;
}

/** Draw the cells of a lane onto a canvas; `open` is the share of the width at which an open event began, or null. */
export function drawStrip(canvas, lane, { cursor = null, open = null } = {}) {
  const ratio = devicePixelRatio || 1;
  const width = canvas.clientWidth;
  const height = canvas.clientHeight;
  if (!width || !height) return;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const isDark = document.documentElement.dataset.theme === "dark";
  const style = getComputedStyle(canvas);
  const pen = canvas.getContext("2d");
  const n = lane.surprise.length;
  const edge = (i) => Math.round((i * canvas.width) / n);
  const gap = canvas.width / n > 4 * ratio ? Math.round(ratio) : 0;
  pen.clearRect(0, 0, canvas.width, canvas.height);
  const marked = [];
  for (let i = 0; i < n; i++) {
    const bits = ofCell(lane.surprise[i], lane.flagged[i], lane.n[i]);
    if (bits === null) continue;
    pen.fillStyle = colour(bits, isDark);
    pen.fillRect(edge(i), 0, edge(i + 1) - edge(i) - gap, canvas.height);
    if (lane.flagged[i]) marked.push(i);
  }
  pen.fillStyle = style.getPropertyValue("--mark");
  const size = 3.5 * ratio;
  for (const i of marked) {
    const middle = (edge(i) + edge(i + 1) - gap) / 2;
    pen.beginPath();
    pen.moveTo(middle - size, canvas.height);
    pen.lineTo(middle + size, canvas.height);
    pen.lineTo(middle, canvas.height - 1.7 * size);
    pen.fill();
  }
  if (open !== null) {
    pen.fillStyle = style.getPropertyValue("--open");
    const from = Math.min(Math.max(0, open) * canvas.width, canvas.width - 8 * ratio);
    pen.fillRect(from, 0, canvas.width - from, 3 * ratio);
  }
  if (cursor !== null) {
    pen.strokeStyle = style.getPropertyValue("--text");
    pen.lineWidth = 2 * ratio;
    pen.strokeRect(
      edge(cursor) + ratio,
      ratio,
      Math.max(4 * ratio, edge(cursor + 1) - edge(cursor)) - 2 * ratio,
      canvas.height - 2 * ratio,
    );
  }
}

/** The lanes of the overview; calls `onOpen(lane, from, to)` when one is selected. */
export class Lanes {
  constructor(onOpen) {
    this._onOpen = onOpen;
    this._rows = new Map(); // by stream and key
    this._data = null;
    this._active = null; // the row in the tab order
    this._cursor = null; // the cell selected by the arrow keys
    this._isHeld = false; // rows keep their order while a pointer is on them
    this._tip = h("div", { class: "tip", hidden: true, "aria-hidden": "true" });
    this._axis = h("div", { class: "lane-axis num" });
    this._columns = h(
      "div",
      { class: "lane-columns", "aria-hidden": "true" },
      h("div", {}, "Key"),
      this._axis,
      h("div", {}, "Flagged"),
    );
    this._body = h("div", {
      class: "lanes",
      role: "grid",
      "aria-label": "Surprise of each key over time, most unusual first. Arrow keys move, Enter opens.",
      onkeydown: (event) => this._onKey(event),
      onpointerenter: () => (this._isHeld = true),
      onpointerleave: () => {
        this._isHeld = false;
        this._tip.hidden = true;
      },
    });
    this.element = h("div", { class: "lanes-box" }, this._columns, this._body, this._tip);
    this._sizes = new ResizeObserver(() => this._data && this._fit());
    this._sizes.observe(this.element);
  }

  close() {
    this._sizes.disconnect();
  }

  /** The response of /overview. */
  get data() {
    return this._data;
  }

  /** Show a response of /overview. */
  show(data) {
    this._data = data;
    const seen = new Set();
    for (const lane of data.lanes) {
      const id = `${lane.stream}\0${lane.key}`;
      seen.add(id);
      const row = this._rows.get(id) ?? this._makeRow(id, lane);
      row.lane = lane;
      this._describe(row);
    }
    for (const [id, row] of this._rows) {
      if (seen.has(id)) continue;
      row.element.remove();
      this._rows.delete(id);
    }
    const isHeld = this._isHeld || this._body.contains(document.activeElement);
    if (!isHeld || this._body.children.length !== data.lanes.length) {
      data.lanes.forEach((lane, i) => {
        const wanted = this._rows.get(`${lane.stream}\0${lane.key}`).element;
        if (this._body.children[i] !== wanted) this._body.insertBefore(wanted, this._body.children[i] ?? null);
      });
    }
    if (!this._rows.has(this._active)) this._activate(this._idAt(0));
    this._fit();
  }

  /** Give names the room they need, as far as there is any; then draw. */
  _fit() {
    const widthOf = ({ link }) => [...link.children].reduce((sum, part) => sum + part.scrollWidth + 6, 0); // and gaps
    const wanted = Math.max(...[...this._rows.values()].map(widthOf), NAMES[0]);
    const room = Math.min(wanted + 2, Math.max(NAMES[0], NAMES[1] * this.element.clientWidth));
    this.element.style.setProperty("--names", `${Math.ceil(room)}px`);
    for (const row of this._rows.values()) {
      row.element.classList.toggle("is-whole", widthOf(row) <= row.link.clientWidth + 6);
    }
    this._labelTimes();
    this.redraw();
  }

  /** Add new records to the last cells until the next response of /overview; return whether all keys are shown. */
  add(stream, keys) {
    if (!this._data) return true;
    let isKnown = true;
    const { start, end, buckets } = this._data;
    for (const { key, time, p_value: chance, n, n_flagged: flagged } of keys) {
      const row = this._rows.get(`${stream}\0${key}`);
      if (!row) {
        isKnown &&= this._data.total > this._data.lanes.length; // otherwise it is one of the omitted keys
        continue;
      }
      const bucket = Math.floor(((time - start) / (end - start)) * buckets);
      if (bucket < 0) continue;
      const at = Math.min(buckets - 1, bucket); // newer records go to the last cell
      const bits = chance === null ? null : chance > 0 ? -Math.log2(chance) : 64;
      const { lane } = row;
      if (bits !== null) lane.surprise[at] = Math.max(lane.surprise[at] ?? 0, bits);
      lane.n[at] += n;
      lane.flagged[at] += flagged;
      lane.n_flagged += flagged;
      if (flagged) this._describe(row);
      this._draw(row);
    }
    return isKnown;
  }

  redraw() {
    for (const row of this._rows.values()) this._draw(row);
  }

  _draw(row) {
    const at =
      this._cursor !== null && this._active === row.id && row.strip === document.activeElement ? this._cursor : null;
    drawStrip(row.canvas, row.lane, { cursor: at, open: this._openShare(row.lane) });
  }

  /** Return where the earliest open event of a lane began, as a share of the time axis. */
  _openShare({ open_since: since }) {
    const { start, end } = this._data;
    return since === null || since === undefined || since > end ? null : (since - start) / (end - start);
  }

  _makeRow(id, lane) {
    const row = { id, lane };
    row.canvas = h("canvas", { class: "strip-canvas", height: HEIGHT, "aria-hidden": "true" });
    row.strip = h(
      "div",
      {
        class: "strip",
        role: "gridcell",
        tabindex: "-1",
        onpointermove: (event) => this._point(row, event),
        onclick: (event) => this._open(row, this._cellAt(row, event)),
        onfocus: () => {
          this._activate(id);
          this._draw(row);
        },
        onblur: () => {
          this._tip.hidden = true;
          this._draw(row);
        },
      },
      row.canvas,
    );
    row.link = h(
      "a",
      { class: "lane-name", tabindex: "-1", onclick: (event) => this._openWhole(row, event) },
      h("span", { class: "lane-stream", title: visible(lane.stream).slice(0, 500) }, visible(lane.stream)),
      lane.key === "" ? null : name(lane.key),
    );
    row.facts = h("div", { class: "lane-facts num", role: "gridcell" });
    row.element = h(
      "div",
      { class: "lane", role: "row" },
      h("div", { class: "lane-head", role: "rowheader" }, row.link),
      row.strip,
      row.facts,
    );
    this._rows.set(id, row);
    this._body.append(row.element);
    return row;
  }

  _describe(row) {
    const { lane } = row;
    const isOpen = lane.open_events.length > 0;
    row.element.classList.toggle("is-open", isOpen);
    row.link.href = `#/stream/${encodeURIComponent(lane.stream)}/${encodeURIComponent(lane.key)}`;
    row.facts.replaceChildren(
      isOpen ? h("span", { class: "chip open" }, "open") : "",
      h(
        "span",
        { class: lane.n_flagged ? "flag-count" : "muted" },
        lane.n_flagged ? `▲ ${count(lane.n_flagged)}` : "–",
      ),
    );
    const words = lane.n_flagged ? plural(lane.n_flagged, "flagged record") : "nothing flagged";
    row.strip.setAttribute(
      "aria-label",
      visible(`${lane.stream} ${lane.key}: ${words}${isOpen ? ", an event is open" : ""}`),
    );
  }

  _labelTimes() {
    const { start, end } = this._data;
    const most = Math.max(2, Math.floor(this._axis.clientWidth / TICK));
    this._axis.replaceChildren(
      ...roundTimes(start, end, most).map(([time, words]) => {
        const share = (100 * (time - start)) / (end - start);
        const side = share < 4 ? "at-start" : share > 96 ? "at-end" : "";
        return h("span", { class: side, style: { left: `${share}%` } }, words);
      }),
    );
  }

  _idAt(place) {
    const element = this._body.children[place];
    for (const row of this._rows.values()) if (row.element === element) return row.id;
    return null;
  }

  _activate(id) {
    const before = this._rows.get(this._active);
    if (before) before.strip.tabIndex = -1;
    this._active = id;
    const row = this._rows.get(id);
    if (row) row.strip.tabIndex = 0;
  }

  _cellAt(row, event) {
    const box = row.strip.getBoundingClientRect();
    const n = row.lane.surprise.length;
    return Math.min(n - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * n)));
  }

  _cellSpan(cell) {
    const { start, end, buckets } = this._data;
    const width = (end - start) / buckets;
    return [start + cell * width, start + (cell + 1) * width];
  }

  _words(row, cell) {
    const { lane } = row;
    const [from, to] = this._cellSpan(cell);
    const when = `${moment(from, to - from < 60)}, ${duration(to - from)}`;
    if (!lane.n[cell]) return [when, "no records"];
    if (lane.flagged[cell]) return [when, `${count(lane.flagged[cell])} of ${plural(lane.n[cell], "record")} flagged`];
    return [when, plural(lane.n[cell], "record"), `rarest: ${oneIn(2 ** -lane.surprise[cell])}`];
  }

  _point(row, event) {
    this._showTip(row, this._cellAt(row, event));
  }

  _showTip(row, cell) {
    this._tip.replaceChildren(...this._words(row, cell).map((line) => h("div", {}, line)));
    this._tip.hidden = false;
    const box = this.element.getBoundingClientRect();
    const strip = row.strip.getBoundingClientRect();
    const middle = strip.left - box.left + ((cell + 0.5) * strip.width) / row.lane.surprise.length;
    const left = Math.min(box.width - this._tip.offsetWidth - 4, Math.max(4, middle - this._tip.offsetWidth / 2));
    this._tip.style.left = `${left}px`;
    const above = strip.top - box.top - this._tip.offsetHeight - 6;
    this._tip.style.top = `${above > -40 ? above : strip.bottom - box.top + 6}px`;
  }

  _onKey(event) {
    const row = this._rows.get(this._active);
    if (!row || event.target !== row.strip) return;
    const n = row.lane.surprise.length;
    const at = this._cursor ?? n - 1;
    const cells = {
      ArrowLeft: Math.max(0, this._cursor === null ? at : at - 1),
      ArrowRight: Math.min(n - 1, at + 1),
      Home: 0,
      End: n - 1,
    };
    const rows = { ArrowUp: -1, ArrowDown: 1 };
    if (event.key in cells) this._cursor = cells[event.key];
    else if (event.key in rows) {
      const place = [...this._body.children].indexOf(row.element) + rows[event.key];
      const next = this._rows.get(this._idAt(place));
      if (!next) return;
      next.strip.focus();
    } else if (event.key === "Enter" || event.key === " ") {
      if (this._cursor === null) this._openWhole(row, event);
      else this._open(row, this._cursor);
    } else if (event.key === "Escape") this._cursor = null;
    else return;
    event.preventDefault();
    const active = this._rows.get(this._active);
    this._draw(active);
    this._tip.hidden = this._cursor === null;
    if (this._cursor !== null) {
      this._showTip(active, this._cursor);
      announce(this._words(active, this._cursor).join(", "));
    }
  }

  _open(row, cell) {
    const [from, to] = this._cellSpan(cell);
    const margin = (to - from) * 6;
    this._onOpen(row.lane, from - margin, to + margin);
  }

  _openWhole(row, event) {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return; // opens a new tab, as for links
    event.preventDefault();
    this._onOpen(row.lane, null, null);
  }
}

/** Return the legend of colours and marks. */
export function legend() {
  const isDark = document.documentElement.dataset.theme === "dark";
  const steps = [2, 4, 6, 8, 10].map((bits) =>
    h("span", { class: "legend-cell", style: { background: colour(bits, isDark) } }),
  );
  return h(
    "div",
    { class: "legend" },
    h("span", {}, "usual"),
    h("span", { class: "legend-ramp", "aria-hidden": "true" }, steps),
    h("span", {}, "1 in 1,000 or rarer"),
    h("span", { class: "legend-mark" }, "▲ flagged"),
    h("span", { class: "legend-open" }, "▔ event open"),
  );
}
