// Formats of numbers, times and probabilities.

const DAY = 86400;
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });

let isUtc = localStorage.getItem("zone") === "utc";
let offset = 0; // of the server clock from ours, in seconds

/** Whether times are shown in UTC. */
export const usesUtc = () => isUtc;

/** Show times in UTC or local time. */
export function useUtc(value) {
  isUtc = value;
  localStorage.setItem("zone", value ? "utc" : "local");
}

/** Set the clock by the time of the server. */
export function setClock(serverNow) {
  offset = serverNow - Date.now() / 1000;
}

/** Return the time of the server, in seconds since 1970. */
export const now = () => Date.now() / 1000 + offset;

/** Return a number with four significant digits; other values as text. */
export function number(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e7 || size < 1e-3)) return value.toExponential(2).replace("e+", "e");
  return size >= 1e4 ? grouped.format(value) : short.format(value);
}

/** Return a whole number with thousands separators. */
export const count = (value) => grouped.format(value);

/** Return a count with its noun in singular or plural. */
export const plural = (value, noun) => `${count(value)} ${noun}${value === 1 ? "" : "s"}`;

/** Return a range of numbers. */
export function range(pair) {
  if (!pair || (pair[0] === null && pair[1] === null)) return "–";
  if (pair[0] === null) return `up to ${number(pair[1])}`;
  if (pair[1] === null) return `from ${number(pair[0])}`;
  return `${number(pair[0])} – ${number(pair[1])}`;
}

/** Return bits of surprise. */
export const bits = (value) =>
  value === null || value === undefined ? "–" : value.toFixed(Math.abs(value) < 10 ? 1 : 0);

/** Return a probability as "1 in 900". */
export function oneIn(chance) {
  if (chance === null || chance === undefined) return "unknown";
  if (chance <= 0) return "less than 1 in a billion";
  const each = 1 / chance;
  if (each < 1.5) return "nearly all";
  if (each >= 1e9) return "less than 1 in a billion";
  return `1 in ${count(each < 20 ? Math.round(each) : Number(each.toPrecision(2)))}`;
}

function parts(time) {
  const date = new Date(time * 1000);
  return isUtc
    ? [
        date.getUTCFullYear(),
        date.getUTCMonth(),
        date.getUTCDate(),
        date.getUTCHours(),
        date.getUTCMinutes(),
        date.getUTCSeconds(),
      ]
    : [date.getFullYear(), date.getMonth(), date.getDate(), date.getHours(), date.getMinutes(), date.getSeconds()];
}

const two = (value) => String(value).padStart(2, "0");

/** Return a span as times of a request: whole milliseconds that lose no record at its ends. */
export const asked = (start, end) => [(Math.floor(start * 1000) / 1000).toFixed(3), (Math.ceil(end * 1000) / 1000).toFixed(3)];

/** Return the time of day. */
export function clock(time, withSeconds = true) {
  const [, , , hour, minute, second] = parts(time);
  return `${two(hour)}:${two(minute)}${withSeconds ? `:${two(second)}` : ""}`;
}

/** Return a moment: the time, and the day unless it is today. */
export function moment(time, withSeconds = true) {
  if (time === null || time === undefined) return "–";
  const [year, month, day] = parts(time);
  const [thisYear, thisMonth, today] = parts(now());
  if (year === thisYear && month === thisMonth && day === today) return clock(time, withSeconds);
  return `${day} ${MONTHS[month]}${year === thisYear ? "" : ` ${year}`} ${clock(time, withSeconds)}`;
}

/** Return a moment in full, for labels that must not depend on today. */
export function fullMoment(time) {
  const [year, month, day] = parts(time);
  return `${year}-${two(month + 1)}-${two(day)} ${clock(time)}${isUtc ? " UTC" : ""}`;
}

/** Return the day of a moment, with the year unless it is this year. */
export function day(time) {
  const [year, month, date] = parts(time);
  return `${date} ${MONTHS[month]}${year === parts(now())[0] ? "" : ` ${year}`}`;
}

/** Whether two moments are on the same day. */
const isOneDay = (one, other) => parts(one).slice(0, 3).join() === parts(other).slice(0, 3).join();

/** Return a range of time with both days, which do not depend on today. */
export const datedSpan = (start, end) => `${day(start)} ${clock(start)} – ${day(end)} ${clock(end)}`;

/** Return a span from one moment to another: both days, unless they are the same. */
export function span(start, end) {
  if (end === null || end === undefined) return `since ${moment(start)}`;
  if (end - start < 1) return moment(start);
  if (isOneDay(start, end)) return `${moment(start)} – ${clock(end)}`;
  return datedSpan(start, end);
}

const STEPS = [
  ...[1, 2, 5, 10, 15, 30],
  ...[1, 2, 5, 10, 15, 30].map((minutes) => minutes * 60),
  ...[1, 2, 3, 6, 12].map((hours) => hours * 3600),
  ...[1, 2, 7, 14, 28, 56, 112, 224, 448, 896].map((days) => days * DAY),
];

/** Return at most `most` round times in a span, each with its label; a new day is labelled with its date. */
export function roundTimes(start, end, most) {
  const step = STEPS.find((seconds) => (end - start) / seconds <= most) ?? STEPS.at(-1);
  const shift = isUtc ? 0 : new Date(start * 1000).getTimezoneOffset() * 60;
  const times = [];
  for (let time = Math.ceil((start - shift) / step) * step + shift; time <= end; time += step) times.push(time);
  return times.map((time, i) => {
    const isDay = step >= DAY || (i > 0 && !isOneDay(times[i - 1], time));
    return [time, isDay ? day(time) : clock(time, step < 60)];
  });
}

/** Return a duration in its two largest units. */
export function duration(seconds) {
  const rounded = Math.round(seconds);
  if (rounded < 1) return "under 1 s";
  if (rounded < 60) return `${rounded} s`;
  const units = [
    ["d", DAY],
    ["h", 3600],
    ["min", 60],
    ["s", 1],
  ];
  const first = units.findIndex(([, size]) => rounded >= size);
  const [unit, size] = units[first];
  const [nextUnit, nextSize] = units[first + 1];
  const rest = Math.floor((rounded % size) / nextSize);
  return `${Math.floor(rounded / size)} ${unit}${rest && unit !== "min" ? ` ${rest} ${nextUnit}` : ""}`;
}

/** Return how long ago a moment was. */
export function ago(time) {
  const passed = now() - time;
  return passed < 1.5 ? "just now" : `${duration(passed)} ago`;
}

/** Return a size in memory. */
export function bytes(value) {
  if (!value) return "–";
  const steps = Math.min(3, Math.floor(Math.log2(value) / 10));
  return `${short.format(Number((value / 1024 ** steps).toPrecision(3)))} ${["bytes", "kB", "MB", "GB"][steps]}`;
}
