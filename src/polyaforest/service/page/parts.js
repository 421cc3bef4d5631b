// Shared parts of screens: events, incidents, chips, code and facts.

import { copy, h, name, visible, visibleLines } from "./dom.js";
import { ago, bits, duration, moment, oneIn, plural, span } from "./format.js";
import { colour } from "./lanes.js";

/** Return the addresses of screens. */
export const eventLink = (event) => `#/event/${encodeURIComponent(event.stream)}/${encodeURIComponent(event.id)}`;
export const streamLink = (stream, key, query = "") =>
  `#/stream/${encodeURIComponent(stream)}/${encodeURIComponent(key)}${query ? `?${query}` : ""}`;

/** Return the stream and key of an event. */
export function place(event) {
  return h(
    "span",
    { class: "place" },
    h("span", { class: "place-stream" }, visible(event.stream)),
    event.key === "" ? null : name(event.key),
  );
}

/** Return the summary of an event; most start with a field name, whose case is kept. */
export function sentence(event) {
  const words = visible(event.summary);
  return event.kind !== "anomaly" ? words.charAt(0).toUpperCase() + words.slice(1) : words;
}

/** Return chips with the state and label of an event. */
export function chips(event) {
  const labels = { incident: "incident", normal: "was normal" };
  return [
    event.is_open ? h("span", { class: "chip open" }, "open") : null,
    event.is_open && event.acknowledged ? h("span", { class: "chip" }, "acknowledged") : null,
    event.label ? h("span", { class: `chip label-${event.label}` }, labels[event.label]) : null,
    event.kind !== "anomaly" ? h("span", { class: "chip" }, visible(event.kind)) : null,
  ];
}

/** Return the severity of an event, with its rarity and bits as a hint. */
export function grade(event) {
  if (!event.severity) return null;
  const hint = [rarity(event), event.bits === null || event.bits === undefined ? "" : `${bits(event.bits)} bits`];
  return h("span", { class: "chip grade", title: hint.filter((words) => words).join("; ") }, `severity ${event.severity}`);
}

/** Return the headings of a wide list of events. */
const headings = () =>
  h(
    "div",
    { class: "event-columns", "aria-hidden": "true" },
    h("span", {}),
    h("span", {}, "Severity"),
    h("span", {}, "What happened"),
    h("span", {}, "Where"),
    h("span", {}, "When"),
  );

/** Return an event as a row of a list. */
export function eventRow(event, { isNew = false, after = null, incident = null } = {}) {
  const isDark = document.documentElement.dataset.theme === "dark";
  const strength = 2 * (event.severity ?? 5);
  return h(
    "li",
    {
      class: `event-row${isNew ? " is-new" : ""}${event.label === "normal" ? " is-normal" : ""}`,
      "data-event": event.id,
    },
    h("span", { class: "severity", style: { background: colour(strength, isDark) }, "aria-hidden": "true" }),
    h("span", { class: "event-grade" }, grade(event)),
    h("a", { class: "event-sentence", href: eventLink(event) }, sentence(event)),
    h(
      "span",
      { class: "event-place" },
      place(event),
      chips(event),
      after ? h("span", { class: "muted" }, after) : null,
      incident ? h("span", { class: "muted" }, othersWords(event, incident)) : null,
    ),
    h(
      "span",
      { class: "event-when num", title: ago(event.start) },
      event.is_open ? `since ${moment(event.start)}` : span(event.start, event.end),
    ),
  );
}

/** Return the number of other keys in the same incident, as text. */
export function othersWords(event, incident) {
  const others = new Set(
    incident.events
      .filter((one) => one.key !== event.key || one.stream !== event.stream)
      .map((one) => `${one.stream}\0${one.key}`),
  );
  return `with ${plural(others.size, "other key")}`;
}

/** Return when an event began, relative to the first of its incident. */
function afterWords(event, { first, start }) {
  if (event.id === first.event) return "first";
  return event.start - start < 0.5 ? "at the same time" : `${duration(event.start - start)} later`;
}

/** Group events by incident, in the order of the events. */
export function grouped(events, incidents) {
  const owner = new Map();
  for (const incident of incidents)
    for (const event of incident.events) owner.set(`${event.stream}/${event.id}`, incident);
  const items = [];
  const seen = new Set();
  for (const event of events) {
    const incident = owner.get(`${event.stream}/${event.id}`);
    if (!incident) items.push({ events: [event], incident: null });
    else if (!seen.has(incident.id)) {
      seen.add(incident.id);
      const known = new Map(events.map((one) => [`${one.stream}/${one.id}`, one]));
      items.push({ incident, events: incident.events.map((one) => known.get(`${one.stream}/${one.id}`) ?? one) });
    }
  }
  return items;
}

/** Return whether an event has at least this severity, or none at all, as silence. */
export const isSevere = (event, least) => (event.severity ?? least) >= least;

/** Return a choice of the least severity of events to show, remembered in this browser; calls `onChange`. */
export function severityChoice(onChange) {
  const words = (least) => (least === 1 ? "All severities" : least === 5 ? "Severity 5" : `Severity ${least} or more`);
  const choice = h(
    "select",
    {
      class: "severity-choice",
      "aria-label": "Least severity of events",
      onchange: () => {
        localStorage.setItem("severity", choice.value);
        onChange();
      },
    },
    [1, 2, 3, 4, 5].map((least) => h("option", { value: String(least) }, words(least))),
  );
  choice.value = localStorage.getItem("severity") ?? "1";
  if (!choice.value) choice.value = "1"; // not one of the options
  return choice;
}

const MOST_OF_INCIDENT = 6;

/** Return a list of events; events of an incident are under a heading with the key that was first. */
export function eventList(events, incidents, { fresh = new Set(), label } = {}) {
  const items = grouped(events, incidents).map(({ incident, events: parts }) => {
    if (!incident) return eventRow(parts[0], { isNew: fresh.has(parts[0].id) });
    const { first } = incident;
    const shown = parts.slice(0, MOST_OF_INCIDENT);
    return h(
      "li",
      { class: "incident", "data-incident": incident.id },
      h(
        "div",
        { class: "incident-head" },
        h("strong", {}, `${plural(new Set(parts.map((one) => `${one.stream}\0${one.key}`)).size, "key")} at once`),
        " – ",
        place({ stream: first.stream, key: first.key }),
        " was first, ",
        h(
          "span",
          { class: "num" },
          incident.is_open ? `since ${moment(incident.start)}` : span(incident.start, incident.end),
        ),
      ),
      h(
        "ul",
        { class: "events" },
        shown.map((event) => eventRow(event, { isNew: fresh.has(event.id), after: afterWords(event, incident) })),
      ),
      parts.length > shown.length
        ? h("p", { class: "muted more" }, `and ${plural(parts.length - shown.length, "more event")}`)
        : null,
    );
  });
  return [headings(), h("ul", { class: "events", "aria-label": label }, items)];
}

/** Say how rare records like the worst of an event are; "" if it is unknown, as for events of earlier releases. */
export function rarity({ tail_bits: halvings }) {
  return typeof halvings === "number" ? `${oneIn(2 ** -halvings)} normal records is this unusual` : "";
}

/** Return a command that posts the first record of a stream. */
export function howToPost(stream, settings, needsToken) {
  const record = {};
  if (settings?.time) record[settings.time] = Math.round(Date.now() / 1000);
  for (const field of [settings?.by ?? []].flat()) record[field] = "web-1";
  if (settings?.id) record[settings.id] = "a-1";
  for (const [i, field] of (settings?.columns ?? ["cpu", "latency_ms"]).entries()) record[field] ??= [41.5, 87][i] ?? 1;
  const quoted = JSON.stringify(record).replaceAll("'", "'\\''");
  const lines = [
    `curl ${location.origin}/api/v1/streams/${encodeURIComponent(stream.name)}/records`,
    ...(needsToken ? ['-H "Authorization: Bearer $TOKEN"'] : []),
    "-H 'Content-Type: application/json'",
    `-d '${quoted}'`,
  ];
  return codeBlock(lines.join(" \\\n  "), "Copy the command");
}

/** Return text with a copy button. */
export function codeBlock(text, label) {
  const button = h("button", { type: "button", onclick: () => copy(text, button) }, label);
  return h("div", { class: "code" }, h("pre", { tabindex: "0", "aria-label": "Code" }, visibleLines(text)), button);
}

/** Return a panel with an error message. */
export function problemPanel(problem) {
  return h(
    "div",
    { class: "panel problem-panel", role: "alert" },
    h("h1", {}, "Something went wrong"),
    h("p", {}, visible(problem.message)),
    h("p", {}, h("a", { href: "#/" }, "Back to the overview")),
  );
}

/** Return a list of terms and their values. */
export function facts(pairs) {
  return h(
    "dl",
    { class: "facts" },
    pairs.filter((pair) => pair).flatMap(([term, value]) => [h("dt", {}, term), h("dd", {}, value)]),
  );
}
