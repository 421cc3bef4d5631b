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
  return event.kind === "silence" ? words.charAt(0).toUpperCase() + words.slice(1) : words;
}

/** Return chips with the state and label of an event. */
export function chips(event) {
  const labels = { incident: "incident", normal: "was normal" };
  return [
    event.is_open ? h("span", { class: "chip open" }, "open") : null,
    event.label ? h("span", { class: `chip label-${event.label}` }, labels[event.label]) : null,
    event.kind === "silence" ? h("span", { class: "chip" }, "silence") : null,
  ];
}

/** Return an event as a row of a list. */
export function eventRow(event, { isNew = false, after = null, incident = null } = {}) {
  const isDark = document.documentElement.dataset.theme === "dark";
  const strength = event.kind === "silence" ? 10 : 4 + Math.min(6, event.bits / 10);
  return h(
    "li",
    {
      class: `event-row${isNew ? " is-new" : ""}${event.label === "normal" ? " is-normal" : ""}`,
      "data-event": event.id,
    },
    h("span", { class: "severity", style: { background: colour(strength, isDark) }, "aria-hidden": "true" }),
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
    h(
      "span",
      { class: "event-bits num", title: "Bits of surprise above usual; each bit halves the probability" },
      event.kind === "silence" ? "" : `${bits(event.bits)} bits`,
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
  return h("ul", { class: "events", "aria-label": label }, items);
}

/** Describe a p-value. */
export function rarity(chance) {
  if (chance === null || chance === undefined) return "unknown";
  const exact = chance < 1e-4 ? chance.toExponential(1) : Number(chance.toPrecision(2));
  return `${oneIn(chance)} ordinary records is this unusual (p = ${exact})`;
}

/** Return a command that posts the first record of a stream. */
export function howToPost(stream, settings, needsToken) {
  const record = {};
  if (settings?.time) record[settings.time] = Math.round(Date.now() / 1000);
  if (settings?.by) record[settings.by] = "web-1";
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
