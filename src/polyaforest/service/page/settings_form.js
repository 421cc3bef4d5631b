// A form that explains the settings of a stream and changes them.

import { get, ofStream, post } from "./api.js";
import { announce, h, visible } from "./dom.js";
import { duration } from "./format.js";

const EFFECTS = {
  applied: "applied at once",
  relearned: "relearns from the history; the current models stay in use until then",
  "new stream": "fixed: start a new stream to change it",
  "at the next start": "applied at the next start",
};
const SPANS = new Set(["silence", "close_after", "max_wait", "max_ahead", "save_every"]); // in seconds

/** Return a value as the text of a field. */
function written(name, value) {
  if (value === null || value === undefined) return "";
  if (Array.isArray(value)) return value.join(", ");
  if (SPANS.has(name)) return value % 1 || value < 1 ? `${value}s` : span(value);
  return String(value);
}

/** Return seconds as a duration that can be read back, such as "90s" or "5m". */
function span(seconds) {
  const [unit, size] = [
    ["d", 86400],
    ["h", 3600],
    ["m", 60],
    ["s", 1],
  ].find(([, each]) => seconds % each === 0);
  return `${seconds / size}${unit}`;
}

/** Return the default in words. */
function defaultWords({ name, default: value, default_words: words }) {
  if (words) return visible(words);
  if (value === null) return "none";
  if (typeof value === "boolean") return value ? "yes" : "no";
  return SPANS.has(name) ? duration(value) : visible(written(name, value) || "none");
}

/** Return the field of a setting, and a function that returns its value: null for the default. */
function fieldOf(setting, id) {
  const { schema, name, value, is_default: isDefault } = setting;
  const options = schema.enum ?? (schema.type === "boolean" ? ["yes", "no"] : null);
  const attributes = { id, disabled: setting.is_fixed, "aria-describedby": `${id}-help` };
  if (options) {
    const shown = typeof value === "boolean" ? (value ? "yes" : "no") : value;
    const field = h(
      "select",
      attributes,
      h("option", { value: "" }, `default (${defaultWords(setting)})`),
      options.map((one) => h("option", { value: one, selected: !isDefault && one === shown }, one)),
    );
    const read = () => (field.value === "" ? null : schema.type === "boolean" ? field.value === "yes" : field.value);
    return [field, read];
  }
  const field = h("input", {
    ...attributes,
    type: "text",
    autocomplete: "off",
    placeholder: `default: ${defaultWords(setting)}`,
    value: isDefault ? "" : written(name, value),
  });
  const isList = Array.isArray(setting.value) || Array.isArray(setting.default);
  const read = () => {
    const text = field.value.trim();
    if (text === "") return null;
    if (isList) return text.split(",").map((part) => part.trim());
    return schema.type !== "string" && /^-?\d+(\.\d+)?(e-?\d+)?$/i.test(text) ? Number(text) : text;
  };
  return [field, read];
}

/** Return the form for a stream; `onApplied` is called after a change. */
export async function settingsForm(page, stream, onApplied) {
  const { settings, can_change: canChange } = await get(ofStream(stream, "settings"), {}, page.signal);
  const isEditable = page.canWrite && canChange;
  const result = h("div", { "aria-live": "polite" });
  const parts = settings.map((setting) => {
    const id = `set-${stream}-${setting.name}`;
    const [field, read] = fieldOf(setting, id);
    if (!isEditable) field.disabled = true;
    const box = h(
      "div",
      { class: "setting" },
      h("label", { for: id }, setting.name.replaceAll("_", " ").replace(".", ": ")),
      field,
      h("span", { class: "muted", id: `${id}-help` }, `${visible(setting.help)} Changes are ${EFFECTS[setting.effect]}.`),
    );
    const before = JSON.stringify(read());
    const isChanged = () => JSON.stringify(read()) !== before;
    field.addEventListener("input", () => box.classList.toggle("is-changed", isChanged()));
    return { setting, read, box, isChanged };
  });
  const send = async (isTrial) => {
    const changed = parts.filter((part) => part.isChanged());
    if (!changed.length) return result.replaceChildren(h("p", { class: "muted" }, "Nothing is changed."));
    const values = Object.fromEntries(changed.map(({ setting, read }) => [setting.name, read()]));
    try {
      const done = await post(ofStream(stream, "settings"), { values, check_only: isTrial }, page.signal);
      if (isTrial) return result.replaceChildren(...outcome(done));
      announce("Applied");
      return onApplied();
    } catch (problem) {
      return result.replaceChildren(h("p", { class: "problem", role: "alert" }, visible(problem.message)));
    }
  };
  const form = h(
    "form",
    {
      onsubmit: (event) => {
        event.preventDefault();
        send(false);
      },
    },
    parts.map(({ box }) => box),
    isEditable
      ? h(
          "div",
          { class: "form-buttons" },
          h("button", { type: "button", onclick: () => send(true) }, "Check"),
          h("button", { type: "submit", class: "primary" }, "Apply"),
          result,
        )
      : h("p", { class: "muted" }, canChange ? "Changes need an admin token." : "This service has no file to change."),
  );
  return form;
}

/** Describe what a change would do. */
function outcome({ applied, relearned }) {
  const words = (changes) => Object.keys(changes).map(visible).join(", ");
  const lines = [
    Object.keys(applied).length ? `Applied at once: ${words(applied)}.` : "",
    Object.keys(relearned).length ? `Relearns from the history because of ${words(relearned)}.` : "",
  ].filter((line) => line);
  return lines.length ? lines.map((line) => h("p", {}, line)) : [h("p", {}, "Valid; nothing would change.")];
}
