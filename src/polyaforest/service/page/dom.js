// Elements from text only: names and values are untrusted, so no HTML is parsed.

/** Return an element with attributes (`on…` are listeners, `style` an object) and children (elements or text). */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(element.style, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

// Invisible characters and those that affect the text around them; some languages need joiners.
const ACTING = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Zl}\p{Zp}]/gu;
const JOINERS = "\u200c\u200d";
const SHORT = { "\t": "\\t", "\n": "\\n", "\r": "\\r" };

/** Return untrusted text with invisible characters escaped, as in reports. */
export function visible(text) {
  return String(text).replace(ACTING, (found) => (JOINERS.includes(found) ? found : (SHORT[found] ?? escaped(found))));
}

function escaped(character) {
  const code = character.codePointAt(0);
  const [letter, digits] = code < 0x100 ? ["x", 2] : code < 0x10000 ? ["u", 4] : ["U", 8];
  return `\\${letter}${code.toString(16).padStart(digits, "0")}`;
}

/** Escape text of several lines. */
export const visibleLines = (text) => String(text).split("\n").map(visible).join("\n");

/** Return a name from the data, isolated from the text direction around it. */
export function name(text, attributes = {}) {
  const shown = visible(text);
  return h("bdi", { class: "name", title: shown.slice(0, 500), ...attributes }, shown === "" ? "(empty)" : shown);
}

/** Announce a message to screen readers. */
export function announce(words) {
  document.getElementById("announcer").textContent = visible(words);
}

/** Return a function that runs at most once in `milliseconds`, and always after the last call. */
export function throttled(action, milliseconds) {
  let timer = null;
  let last = -Infinity;
  const later = () => {
    timer = null;
    last = performance.now();
    action();
  };
  const ask = () => {
    timer ??= setTimeout(later, Math.max(0, last + milliseconds - performance.now()));
  };
  ask.cancel = () => clearTimeout(timer);
  return ask;
}

/** Copy text, and confirm it on the button. */
export async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    copyBySelection(text); // without https, the clipboard is not available
  }
  const before = button.textContent;
  button.textContent = "Copied";
  announce("Copied");
  setTimeout(() => (button.textContent = before), 1500);
}

function copyBySelection(text) {
  const field = h("textarea", { class: "unseen", "aria-hidden": "true" });
  field.value = text;
  document.body.append(field);
  field.select();
  document.execCommand("copy");
  field.remove();
}
