// Charts over time: the values of each field with their expected range, and the surprise with its threshold.

import { h, name, visible } from "./dom.js";
import { bits, fullMoment, number, range as rangeWords, usesUtc } from "./format.js";

/* global uPlot */

const VALUES_HEIGHT = 132;
const SURPRISE_HEIGHT = 140;
const SMALL_HEIGHT = 150;
const STILL = 3; // pixels that a click may move
const AXIS = 54; // pixels left of each plot, so that their times are aligned
const RIGHT = 20; // pixels right of each plot, for half of a time label
const LEAST_SHARE = 0.08; // smallest share of the largest attribution for a field to count
const MOST_LETTERS = 30; // of an annotation
const GAP = 5; // times the distance of the neighbours: a gap
const [ABOVE, BELOW] = [0, 2]; // sides of a plot
const PARTS = ["high", "low", "middle", "max", "min", "mean"];
const FONT = '11px system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", Arial, sans-serif';
const STAMPS = [
  [31536000, "{YYYY}", null, null, null, null, null, null, 1],
  [2419200, "{MMM}", "\n{YYYY}", null, null, null, null, null, 1],
  [86400, "{D} {MMM}", "\n{YYYY}", null, null, null, null, null, 1],
  [60, "{HH}:{mm}", "\n{D} {MMM} {YYYY}", null, "\n{D} {MMM}", null, null, null, 1],
  [1, "{HH}:{mm}:{ss}", "\n{D} {MMM} {YYYY}", null, "\n{D} {MMM}", null, null, null, 1],
  [0.001, ":{ss}.{fff}", "\n{D} {MMM} {YYYY} {HH}:{mm}", null, "\n{D} {MMM} {HH}:{mm}", null, "\n{HH}:{mm}", null, 1],
];

/** Return the surprise of a score, in bits: scores are logarithms of a density. */
const surprise = (score) => (score === null ? null : -score / Math.LN2);

const pick = (variable) => () => getComputedStyle(document.documentElement).getPropertyValue(variable).trim();
const inks = {
  line: pick("--series"),
  envelope: pick("--envelope"),
  band: pick("--band"),
  middle: pick("--band-line"),
  flag: pick("--flag"),
  shade: pick("--flag-shade"),
  grid: pick("--line"),
  text: pick("--muted"),
  accent: pick("--accent"),
};

/** Columns of a series, with an empty row at each gap. */
class SeriesColumns {
  constructor(series, fields) {
    this.fields = fields;
    this.names = Object.keys(series.fields);
    this.isRaw = series.is_raw;
    const { time } = series;
    const rows = [];
    for (let i = 0; i < time.length; i++) {
      if (i > 1 && i + 1 < time.length) {
        const step = time[i] - time[i - 1];
        if (step > GAP * Math.max(time[i - 1] - time[i - 2], time[i + 1] - time[i])) rows.push(-1 - i);
      }
      rows.push(i);
    }
    const column = (values) => rows.map((i) => (i < 0 ? null : values[i]));
    this.time = rows.map((i) => (i < 0 ? (time[-1 - i] + time[-2 - i]) / 2 : time[i]));
    this.flagged = column(series.flagged);
    this.n = column(series.n);
    this.surprise = column(series.score.map(surprise));
    this.threshold = column(series.threshold.map(surprise));
    this.parts = Object.fromEntries(
      fields.map((field) => [field, PARTS.map((part) => column(series.fields[field]?.[part] ?? []))]),
    );
  }

  /** Add records of the live tail, whose values are in the order of `names`; drop rows before `from`. */
  add(records, names, from) {
    for (const record of records) {
      if (this.time.length && record.time <= this.time.at(-1)) continue;
      this.time.push(record.time);
      this.flagged.push(record.is_anomaly ? 1 : 0);
      this.n.push(1);
      this.surprise.push(surprise(record.score));
      this.threshold.push(surprise(record.threshold));
      for (const field of this.fields) {
        const at = names.indexOf(field);
        const value = record.values[at] ?? null;
        const expected = (part) => record.expected?.[part]?.[at] ?? null;
        const row = [expected("high"), expected("low"), expected("middle"), value, value, value];
        this.parts[field].forEach((part, k) => part.push(row[k]));
      }
    }
    const old = this.time.findIndex((time) => time >= from);
    if (old > 200) {
      for (const part of [
        this.time,
        this.flagged,
        this.n,
        this.surprise,
        this.threshold,
        ...Object.values(this.parts).flat(),
      ])
        part.splice(0, old);
    }
  }

  /** Return spans of neighbouring marked rows, as pairs of indices. */
  flaggedSpans(first, last) {
    const spans = [];
    for (let i = first; i <= last; i++) {
      if (!this.flagged[i]) continue;
      if (spans.length && spans.at(-1)[1] === i - 1) spans.at(-1)[1] = i;
      else spans.push([i, i]);
    }
    return spans;
  }
}

/** Charts with a shared time axis: one per field, and the surprise below. */
export class ChartStack {
  /** `on`: zoom(from, to), move(share), scale(factor, around), reset(), pick(time); `events()`: events to explain; `annotations()`: to mark. */
  constructor({ on = {}, events, annotations = () => [], isSmall = false, withSurprise = true }) {
    this._on = on;
    this._events = events;
    this._annotations = annotations;
    this._isSmall = isSmall;
    this._withSurprise = withSurprise;
    this._charts = [];
    this._columns = null;
    this._range = [0, 1];
    this._sync = uPlot.sync(`stack-${Math.random()}`);
    this._pointers = new Map();
    const hint = "Left and right move, plus and minus zoom, Escape returns to live.";
    this.element = h("div", {
      class: "charts",
      role: "group",
      tabindex: on.move ? "0" : undefined,
      "aria-label": on.move ? `Charts of all fields over time. ${hint}` : "Charts around the event",
    });
    this._sizes = new ResizeObserver(() => this._resize());
    this._sizes.observe(this.element);
  }

  close() {
    this._sizes.disconnect();
    this._clear();
  }

  _clear() {
    for (const chart of this._charts) chart.plot.destroy();
    this._charts = [];
    this.element.replaceChildren();
  }

  /** Show a series: the fields in the given order. */
  show(series, range, fields) {
    const isSame = this._columns && this._columns.fields.join("\0") === fields.join("\0") && this._zone === usesUtc();
    this._columns = new SeriesColumns(series, fields);
    this._range = range;
    this._zone = usesUtc();
    if (!isSame) this._build();
    this._update();
  }

  /** Add records of the live tail, and follow them to a new range. */
  add(records, names, range) {
    if (!this._columns) return;
    this._columns.add(records, names, range[0]);
    this._range = range;
    this._update();
  }

  /** Show another part of the loaded series. */
  move(range) {
    this._range = range;
    const [min, max] = range;
    for (const { plot } of this._charts) plot.setScale("x", { min, max });
  }

  /** Draw with the colours of the current theme. */
  redraw() {
    for (const { plot } of this._charts) plot.redraw(false, true);
  }

  get length() {
    return this._columns ? this._columns.time.length : 0;
  }

  _build() {
    this._clear();
    const { fields } = this._columns;
    fields.forEach((field, i) => {
      const isLast = !this._withSurprise && i === fields.length - 1;
      this._addChart({
        title: name(field),
        label: visible(field),
        height: this._isSmall ? SMALL_HEIGHT : VALUES_HEIGHT,
        options: this._valueOptions(field),
        times: isLast ? BELOW : i === 0 ? ABOVE : null, // on the first and the last chart
        data: () => [this._columns.time, ...this._columns.parts[field]],
        words: (at) => this._valueWords(field, at),
      });
    });
    if (!this._withSurprise) return;
    this._addChart({
      title: h("span", { class: "name" }, "Surprise"),
      label: "Surprise in bits and its threshold",
      height: SURPRISE_HEIGHT,
      options: this._surpriseOptions(),
      times: BELOW,
      data: () => [this._columns.time, this._columns.surprise, this._columns.threshold],
      words: (at) => this._surpriseWords(at),
    });
  }

  _addChart({ title, label, height, options, times, data, words }) {
    const readout = h("span", { class: "readout num" });
    const holder = h("div", { class: "plot", role: "img", "aria-label": label });
    const box = h(
      "section",
      { class: "chart" },
      h("div", { class: "chart-head" }, h("h3", {}, title), readout),
      holder,
    );
    this.element.append(box);
    const chart = { readout, holder, data, words, label };
    const plot = new uPlot(this._options(options, chart, height + (times === null ? 0 : 34), times), data(), holder);
    chart.plot = plot;
    this._charts.push(chart);
    this._bindPointers(plot);
  }

  _options({ series, bands = [], flags }, chart, height, times) {
    const axis = { stroke: inks.text, font: FONT, grid: { stroke: inks.grid, width: 1 }, ticks: { show: false } };
    return {
      width: this._width,
      height,
      padding: [times === ABOVE ? 0 : 8, RIGHT, times === BELOW ? 0 : 6, 0],
      legend: { show: false },
      tzDate: usesUtc() ? (time) => uPlot.tzDate(new Date(time * 1000), "Etc/UTC") : undefined,
      cursor: {
        sync: { key: this._sync.key, setSeries: false },
        drag: { x: Boolean(this._on.zoom), y: false, setScale: false },
        points: { show: false },
        y: false,
        bind: {
          mousedown: (plot, target, handle) => (event) =>
            event.shiftKey ? this._startPan(plot, event) : handle(event),
          dblclick: () => () => this._on.reset?.(),
        },
      },
      scales: {
        x: { time: true, auto: false, range: () => this._range },
        y: { range: (plot, low, high) => padded(low, high) },
      },
      axes: [
        {
          ...axis,
          side: times ?? BELOW,
          size: times === null ? 0 : 40,
          gap: times === ABOVE ? 19 : 5,
          values: times === null ? () => [] : STAMPS,
        },
        { ...axis, size: AXIS, space: 28, values: (plot, splits) => splits.map((split) => tick(split, splits)) },
      ],
      series: [{}, ...series],
      bands,
      hooks: {
        drawClear: [(plot) => this._shadeFlags(plot)],
        draw: [flags, (plot) => this._markAnnotations(plot, times === ABOVE)],
        setCursor: [(plot) => this._read(chart, plot.cursor.idx)],
        setSelect: [(plot) => this._select(plot)],
      },
    };
  }

  _valueOptions(field) {
    const hidden = { stroke: () => "transparent", width: 0, points: { show: false } };
    const edge = { ...hidden, stroke: inks.envelope, width: 1 };
    return {
      series: [
        hidden,
        hidden,
        { stroke: inks.middle, width: 1, dash: [2, 4], points: { show: false } },
        edge,
        edge,
        {
          stroke: inks.line,
          width: 1.5,
          points: { show: (plot) => this._visible(plot) < 80, size: 4, fill: inks.line },
        },
      ],
      bands: [
        { series: [1, 2], fill: inks.band },
        { series: [4, 5], fill: inks.envelope },
      ],
      flags: (plot) => this._markValues(plot, field),
    };
  }

  _surpriseOptions() {
    return {
      series: [
        { stroke: inks.line, width: 1.5, points: { show: false } },
        { stroke: inks.flag, width: 1.5, dash: [6, 4], points: { show: false } },
      ],
      flags: (plot) => {
        const { time, surprise: heights } = this._columns;
        this._eachFlag(plot, (i) => mark(plot, time[i], heights[i], true));
      },
    };
  }

  _visible(plot) {
    const [first, last] = plot.series[0].idxs ?? [0, 0];
    return last - first;
  }

  _eachFlag(plot, draw) {
    const [first, last] = plot.series[0].idxs ?? [0, -1];
    plot.ctx.save();
    plot.ctx.fillStyle = inks.flag();
    for (let i = first; i <= last; i++) if (this._columns.flagged[i]) draw(i);
    plot.ctx.restore();
  }

  _markValues(plot, field) {
    const [high, low, , most, least] = this._columns.parts[field];
    const { time, isRaw } = this._columns;
    const events = this._events();
    const margin = isRaw ? 0 : (this._range[1] - this._range[0]) / Math.max(1, time.length);
    this._eachFlag(plot, (i) => {
      const event = events.find(({ start, end }) => start - margin <= time[i] && time[i] <= end + margin);
      if (event ? !attributedFields(event.attributions).includes(field) : !isRaw) return; // unusual for another reason, or unknown
      const above = high[i] === null ? 0 : most[i] - high[i];
      const below = low[i] === null || least[i] === null ? 0 : low[i] - least[i];
      if (Math.max(above, below) > 0) mark(plot, time[i], above >= below ? most[i] : least[i], above >= below);
    });
  }

  _shadeFlags(plot) {
    if (!this._columns) return;
    const { time } = this._columns;
    const [first, last] = plot.series[0].idxs ?? [0, -1];
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.fillStyle = inks.shade();
    const least = 3 * devicePixelRatio;
    for (const [start, end] of this._columns.flaggedSpans(
      Math.max(0, first - 1),
      Math.min(time.length - 1, last + 1),
    )) {
      const before = start > 0 ? (time[start] - time[start - 1]) / 2 : 0;
      const after = end + 1 < time.length ? (time[end + 1] - time[end]) / 2 : 0;
      const margin = Math.min(before || after, after || before);
      const left = plot.valToPos(time[start] - margin, "x", true);
      const right = plot.valToPos(time[end] + margin, "x", true);
      const [from, to] = [Math.max(bbox.left, left), Math.min(bbox.left + bbox.width, Math.max(right, left + least))];
      if (to > from) ctx.fillRect(from, bbox.top, to - from, bbox.height);
    }
    ctx.restore();
  }

  /** Draw a line at each annotation, or a span, with its text on the first chart. */
  _markAnnotations(plot, isFirst) {
    const { ctx, bbox } = plot;
    const [from, to] = this._range;
    ctx.save();
    ctx.strokeStyle = ctx.fillStyle = inks.accent();
    ctx.textAlign = "left";
    ctx.textBaseline = "alphabetic";
    ctx.lineWidth = 2 * devicePixelRatio;
    ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
    ctx.font = FONT.replace("11px", `${11 * devicePixelRatio}px`);
    for (const { start, end, text } of this._annotations()) {
      if (end < from || start > to) continue;
      const x = plot.valToPos(Math.max(start, from), "x", true);
      ctx.beginPath();
      for (const time of end > start && end <= to ? [start, end] : [start]) {
        if (time < from) continue;
        const at = Math.round(plot.valToPos(time, "x", true)); // whole pixels are sharp
        ctx.moveTo(at, bbox.top);
        ctx.lineTo(at, bbox.top + bbox.height);
      }
      ctx.stroke();
      if (!isFirst) continue;
      const words = visible(text).slice(0, MOST_LETTERS);
      const room = bbox.left + bbox.width - ctx.measureText(words).width;
      ctx.fillText(words, Math.max(bbox.left, Math.min(x + 4 * devicePixelRatio, room)), bbox.top + 11 * devicePixelRatio);
    }
    ctx.restore();
  }

  _valueWords(field, at) {
    const [high, low, , most, least, mean] = this._columns.parts[field].map((part) => part[at] ?? null);
    if (mean === null && most === null) return ["no value"];
    const value =
      most !== null && least !== null && most !== least ? `${number(least)} to ${number(most)}` : number(mean);
    return [h("strong", {}, value), low === null ? "" : ` usual ${rangeWords([low, high])}`];
  }

  _surpriseWords(at) {
    const { surprise: heights, threshold, flagged } = this._columns;
    if (heights[at] === null || heights[at] === undefined) return ["not scored"];
    const limit = threshold[at] === null ? "" : ` flagged above ${bits(threshold[at])}`;
    return [
      h("strong", {}, `${bits(heights[at])} bits`),
      limit,
      flagged[at] ? h("strong", { class: "flag-words" }, " ▲ flagged") : "",
    ];
  }

  _read(chart, at) {
    const last = this._columns.time.length - 1;
    if (last < 0) return chart.readout.replaceChildren("no records");
    const index = at ?? last;
    const when =
      at === null || at === undefined ? "" : h("span", { class: "muted" }, `${fullMoment(this._columns.time[index])} `);
    chart.readout.replaceChildren(when, ...chart.words(index));
  }

  _update() {
    const [min, max] = this._range;
    for (const chart of this._charts) {
      chart.plot.setData(chart.data(), false);
      chart.plot.setScale("x", { min, max });
      this._read(chart, chart.plot.cursor.idx);
      if (this._columns.time.length)
        chart.holder.setAttribute(
          "aria-label",
          `${chart.label}: ${chart
            .words(this._columns.time.length - 1)
            .map((part) => part.textContent ?? part)
            .join("")}`,
        );
    }
  }

  /** Width of a chart: the room inside the padding of the element. */
  get _width() {
    const { paddingLeft, paddingRight } = getComputedStyle(this.element);
    return Math.max(200, Math.floor(this.element.clientWidth - parseFloat(paddingLeft) - parseFloat(paddingRight)));
  }

  _resize() {
    const width = this._width;
    for (const { plot } of this._charts) if (plot.width !== width) plot.setSize({ width, height: plot.height });
  }

  _select(plot) {
    const { left, width } = plot.select;
    if (plot.select.width < 4) {
      if (width > 0) plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
      return;
    }
    const [from, to] = [plot.posToVal(left, "x"), plot.posToVal(left + width, "x")];
    plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    this._on.zoom?.(from, to);
  }

  /** Move or zoom by a key; return whether it is one of the charts' keys. */
  press(event) {
    const actions = {
      ArrowLeft: () => this._on.move(-0.25),
      ArrowRight: () => this._on.move(0.25),
      "+": () => this._on.scale(0.5),
      "=": () => this._on.scale(0.5),
      "-": () => this._on.scale(2),
      "−": () => this._on.scale(2),
      Escape: () => this._on.reset(),
    };
    if (event.ctrlKey || event.metaKey || event.altKey || !Object.hasOwn(actions, event.key)) return false;
    event.preventDefault();
    actions[event.key]();
    return true;
  }

  _bindPointers(plot) {
    const { over } = plot;
    if (this._on.pick) {
      let downAt = null;
      over.addEventListener("pointerdown", (event) => (downAt = event.clientX));
      over.addEventListener("click", (event) => {
        if (Math.abs(event.clientX - downAt) > STILL) return; // the end of a drag
        this._on.pick(plot.posToVal(event.offsetX, "x"), (this._range[1] - this._range[0]) / over.clientWidth);
      });
    }
    if (!this._on.move) return;
    over.addEventListener(
      "wheel",
      (event) => {
        const isZoom = event.ctrlKey || event.metaKey;
        const sideways = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
        if (!isZoom && !event.shiftKey && Math.abs(event.deltaX) <= Math.abs(event.deltaY)) return; // the page scrolls
        event.preventDefault();
        if (isZoom) this._on.scale(event.deltaY > 0 ? 1.25 : 0.8, event.offsetX / over.clientWidth);
        else this._on.move(sideways / over.clientWidth);
      },
      { passive: false },
    );
    const pointers = this._pointers;
    over.addEventListener("pointerdown", (event) => {
      if (event.pointerType === "touch") pointers.set(event.pointerId, event.clientX);
    });
    over.addEventListener("pointermove", (event) => {
      if (!pointers.has(event.pointerId)) return;
      const before = [...pointers.values()];
      pointers.set(event.pointerId, event.clientX);
      const after = [...pointers.values()];
      const width = over.clientWidth;
      if (after.length === 1) this._on.move((before[0] - after[0]) / width);
      else if (after.length === 2) {
        const [was, is] = [Math.abs(before[0] - before[1]), Math.abs(after[0] - after[1])];
        const middle = (after[0] + after[1]) / 2 - over.getBoundingClientRect().left;
        if (is > 10 && was > 10) this._on.scale(was / is, middle / width);
      }
    });
    for (const kind of ["pointerup", "pointercancel", "pointerleave"])
      over.addEventListener(kind, (event) => pointers.delete(event.pointerId));
  }

  _startPan(plot, event) {
    event.preventDefault();
    let last = event.clientX;
    const width = plot.over.clientWidth;
    const move = (next) => {
      this._on.move?.((last - next.clientX) / width);
      last = next.clientX;
    };
    document.addEventListener("mousemove", move);
    document.addEventListener("mouseup", () => document.removeEventListener("mousemove", move), { once: true });
  }
}

/** Return the fields with the largest attributions, largest first. */
export function attributedFields(attributions) {
  const all = Object.entries(attributions ?? {}).sort((a, b) => b[1] - a[1]);
  return all.filter(([, amount], i) => i === 0 || amount > LEAST_SHARE * all[0][1]).map(([field]) => field);
}

/** Return the limits of an axis, with a margin. */
function padded(low, high) {
  if (low === null || high === null) return [0, 1];
  const room = (high - low) * 0.08 || Math.abs(high) * 0.1 || 1;
  return [low - room, high + room];
}

/** Return a short tick label. */
function tick(value, all) {
  const size = Math.max(...all.map(Math.abs));
  if (size >= 1e6 || (size > 0 && size < 1e-3)) return value === 0 ? "0" : value.toExponential(1).replace("e+", "e");
  if (size >= 1e4) return `${Number((value / 1000).toPrecision(4))}k`;
  return String(Number(value.toPrecision(6)));
}

/** Mark a flagged value with a triangle that points away from the usual range. */
function mark(plot, time, value, isUp) {
  if (value === null) return;
  const { ctx } = plot;
  const [x, y] = [plot.valToPos(time, "x", true), plot.valToPos(value, "y", true)];
  const size = 3.5 * devicePixelRatio * (isUp ? 1 : -1);
  ctx.beginPath();
  ctx.moveTo(x - size, y + size);
  ctx.lineTo(x + size, y + size);
  ctx.lineTo(x, y - size);
  ctx.fill();
}
