// What operators do: acknowledge, close and reopen events, mute flags for a while, mark deployments on charts.

import { get, ofStream, post, remove } from "./api.js";
import { announce, h, name, visible } from "./dom.js";
import { duration, moment, now, plural } from "./format.js";
import { streamLink } from "./parts.js";

const SPANS = [3600, 4 * 3600, 86400, 7 * 86400, 30 * 86400]; // seconds
const MOST_CAUSES = 12;

/** Return a field for the name of the operator, remembered in this browser. */
function authorField(id) {
  const field = h("input", {
    type: "text",
    id,
    maxlength: "100",
    autocomplete: "name",
    value: localStorage.getItem("operator") ?? "",
    onchange: () => localStorage.setItem("operator", field.value.trim()),
  });
  return field;
}

const labelled = (label, field, attributes = {}) =>
  h("div", { class: "field", ...attributes }, h("label", { for: field.id }, label), field);

/** Return the panel with the life of an event: who works on it, and buttons to change that. */
export function lifePanel(event, canWrite, onAct) {
  const { acknowledged } = event;
  const words = acknowledged
    ? h(
        "p",
        { class: "acknowledged" },
        `Acknowledged by ${visible(acknowledged.by)} ${moment(acknowledged.at)}`,
        acknowledged.note ? `: “${visible(acknowledged.note)}”` : "",
      )
    : null;
  if (!canWrite) return words ? h("section", { class: "panel life", "aria-label": "Work on this event" }, words) : "";
  const note = h("input", { type: "text", id: "life-note", maxlength: "2000", autocomplete: "off" });
  const by = authorField("life-by");
  const path = (action) => ofStream(event.stream, "events", event.id, action);
  const send = (action) => () => onAct(() => post(path(action), { note: note.value, by: by.value.trim() }), action);
  const button = (id, label, action) => h("button", { type: "button", id, onclick: action }, label);
  const buttons = event.is_open
    ? [
        acknowledged
          ? button("unacknowledge", "Withdraw acknowledgement", () =>
              onAct(() => remove(path("acknowledge")), "withdraw acknowledgement"),
            )
          : button("acknowledge", "Acknowledge", send("acknowledge")),
        button("close", "Close", send("close")),
      ]
    : event.label === "normal"
      ? []
      : [button("reopen", "Reopen", send("reopen"))];
  return h(
    "section",
    { class: "panel life", "aria-label": "Work on this event" },
    words,
    event.held ? h("p", { class: "muted" }, "Reopened: it stays open until it is closed here.") : null,
    h(
      "div",
      { class: "life-row" },
      buttons,
      buttons.length ? [labelled("Note", note), labelled("Your name", by)] : null,
    ),
  );
}

/** Return a form that mutes flags of a key, a field or keys that match a pattern; calls `onDone` with the rule. */
export function muteForm(stream, { key = "", field = null }, onDone) {
  const targets = [
    key === "" ? null : ["key", `the key ${visible(key)}`],
    field === null ? null : ["field", `the field ${visible(field)} of all keys`],
    key === "" || field === null ? null : ["both", `the field ${visible(field)} of this key`],
    ["pattern", "keys that match a pattern"],
  ].filter((target) => target);
  const what = h(
    "select",
    { id: "mute-what", onchange: () => (patternBox.hidden = what.value !== "pattern") },
    targets.map(([value, words]) => h("option", { value }, words.slice(0, 90))),
  );
  const pattern = h("input", { type: "text", id: "mute-pattern", maxlength: "256", placeholder: "web-.*" });
  const patternBox = labelled("Pattern (regular expression)", pattern, { hidden: targets[0][0] !== "pattern" });
  const span = h(
    "select",
    { id: "mute-span" },
    SPANS.map((seconds) => h("option", { value: String(seconds), selected: seconds === SPANS[1] }, duration(seconds))),
  );
  const reason = h("input", { type: "text", id: "mute-reason", maxlength: "2000", autocomplete: "off" });
  const by = authorField("mute-by");
  const problem = h("p", { class: "problem", role: "alert" });
  const send = async (event) => {
    event.preventDefault();
    problem.textContent = "";
    const rule = { seconds: Number(span.value), reason: reason.value, by: by.value.trim() };
    if (["key", "both"].includes(what.value)) rule.key = key;
    if (["field", "both"].includes(what.value)) rule.field = field;
    if (what.value === "pattern") rule.pattern = pattern.value;
    try {
      const made = await post(ofStream(stream, "mutes"), rule);
      announce("Muted");
      reason.value = "";
      box.open = false;
      onDone(made);
    } catch (failure) {
      problem.textContent = visible(failure.message);
    }
  };
  const box = h(
    "details",
    { class: "mute-form", ontoggle: () => (by.value ||= localStorage.getItem("operator") ?? "") },
    h("summary", {}, "Mute …"),
    h(
      "form",
      { onsubmit: send },
      labelled("What", what),
      patternBox,
      labelled("For", span),
      labelled("Reason", reason),
      labelled("Your name", by),
      h("button", { type: "submit", class: "primary" }, "Mute"),
      problem,
    ),
  );
  return box;
}

/** Return what a rule mutes, as text. */
function ruleWords({ key, pattern, field }) {
  const keys = key !== null ? `key ${visible(key)}` : pattern !== null ? `keys ${visible(pattern)}` : "all keys";
  return field === null ? keys : `${visible(field)} of ${keys}`;
}

/** A list of the rules in force of a stream, with a form to add one. */
export class MutePanel {
  constructor(page, stream, about) {
    this._page = page;
    this._stream = stream;
    this._list = h("div", { "aria-live": "polite" });
    const form = page.canWrite ? muteForm(stream, about, () => this.load()) : null;
    this.element = h(
      "section",
      { class: "panel mutes", "aria-label": "Muted" },
      h("div", { class: "panel-head" }, h("h2", {}, "Muted")),
      this._list,
      form,
    );
  }

  async load() {
    const { mutes } = await get(ofStream(this._stream, "mutes"), {}, this._page.signal);
    const item = (rule) =>
      h(
        "li",
        {},
        h("span", {}, `${ruleWords(rule)} until ${moment(rule.until, false)}`),
        h("span", { class: "muted" }, ` by ${visible(rule.who)}${rule.reason ? `: “${visible(rule.reason)}”` : ""} `),
        this._page.canWrite
          ? h(
              "button",
              {
                type: "button",
                "aria-label": `Remove the rule for ${ruleWords(rule)}`,
                onclick: () => remove(ofStream(this._stream, "mutes", String(rule.id))).then(() => this.load()),
              },
              "Remove",
            )
          : null,
      );
    this._list.replaceChildren(
      mutes.length ? h("ul", { class: "plain" }, mutes.map(item)) : h("p", { class: "muted pad" }, "Nothing is muted."),
    );
  }
}

/** A list of the annotations of a range, with a form to add one; `onChange` is called after a change. */
export class AnnotationPanel {
  constructor(page, stream, key, onChange) {
    this._page = page;
    this._onChange = onChange;
    this._list = h("div", {});
    const text = h("input", { type: "text", id: "mark-text", maxlength: "500", required: true, autocomplete: "off" });
    const by = authorField("mark-by");
    const where = h(
      "select",
      { id: "mark-where" },
      h("option", { value: "all" }, "all streams"),
      h("option", { value: "stream" }, visible(stream).slice(0, 60)),
      key === "" ? null : h("option", { value: "key" }, visible(key).slice(0, 60)),
    );
    const problem = h("p", { class: "problem", role: "alert" });
    const send = async (event) => {
      event.preventDefault();
      const place = { all: {}, stream: { stream }, key: { stream, key } }[where.value];
      try {
        await post("annotations", { text: text.value, start: now(), by: by.value.trim(), ...place });
        text.value = "";
        box.open = false;
        problem.textContent = "";
        announce("Marked");
        onChange();
      } catch (failure) {
        problem.textContent = visible(failure.message);
      }
    };
    const box = h(
      "details",
      { class: "mute-form", ontoggle: () => (by.value ||= localStorage.getItem("operator") ?? "") },
      h("summary", {}, "Mark a deployment now …"),
      h(
        "form",
        { onsubmit: send },
        labelled("What", text),
        labelled("Where", where),
        labelled("Your name", by),
        h("button", { type: "submit", class: "primary" }, "Mark"),
        problem,
      ),
    );
    this.element = h(
      "section",
      { class: "panel annotations", "aria-label": "Annotations" },
      h("div", { class: "panel-head" }, h("h2", {}, "Annotations")),
      this._list,
      page.canWrite ? box : null,
    );
  }

  show(annotations) {
    const item = (one) =>
      h(
        "li",
        {},
        h("span", { class: "num muted" }, moment(one.start)),
        ` ${visible(one.kind)}: ${visible(one.text)} `,
        this._page.canWrite
          ? h(
              "button",
              {
                type: "button",
                "aria-label": `Delete the annotation ${visible(one.text)}`,
                onclick: () => remove(`annotations/${encodeURIComponent(one.id)}`).then(this._onChange),
              },
              "Delete",
            )
          : null,
      );
    this._list.replaceChildren(
      annotations.length
        ? h("ul", { class: "plain" }, annotations.map(item))
        : h("p", { class: "muted pad" }, "None in this range."),
    );
  }
}

/** Return a list of causes of events: how many events each has, and on which keys. */
export function causeList(causes) {
  const words = ({ kind, field, side }) =>
    kind === "silence"
      ? "no values"
      : kind !== "anomaly" || field === null
        ? visible(kind)
        : [name(field), side === "high" || side === "low" ? ` too ${side}` : side ? ` ${visible(side)}` : ""];
  const item = (cause) =>
    h(
      "li",
      { class: "cause" },
      h("strong", {}, words(cause)),
      h("span", { class: "muted" }, ` ${visible(cause.stream)}: ${plural(cause.n_events, "event")} on `),
      cause.keys.slice(0, 3).map((key, i) => [
        i ? ", " : "",
        h("a", { href: streamLink(cause.stream, key) }, key === "" ? visible(cause.stream) : name(key)),
      ]),
      cause.n_keys > 3 ? h("span", { class: "muted" }, ` and ${plural(cause.n_keys - 3, "more key")}`) : null,
      cause.n_open ? [" ", h("span", { class: "chip open" }, `${cause.n_open} open`)] : null,
      cause.severity ? [" ", h("span", { class: "chip grade" }, `severity ${cause.severity}`)] : null,
    );
  const rest = causes.length - MOST_CAUSES;
  return [
    h("ul", { class: "plain causes" }, causes.slice(0, MOST_CAUSES).map(item)),
    rest > 0 ? h("p", { class: "muted pad" }, `and ${plural(rest, "more cause")}`) : null,
  ].filter((part) => part);
}
