// The settings, and previews of other settings.

import { get, ofStream, post, softly } from "./api.js";
import { announce, h, name, visible } from "./dom.js";
import { bytes, count, duration, number, oneIn, plural, span } from "./format.js";
import { codeBlock, eventRow, facts, streamLink } from "./parts.js";
import { TimeRange } from "./range.js";
import { settingsForm } from "./settings_form.js";

const MOST_SHOWN = 20; // events of a trial
const MOST_KEYS = 200;
const SECONDS = new Set(["silence", "save_every", "age", "step", "past", "timeout"]); // durations

export class Settings {
  constructor(page) {
    this._page = page;
    this.element = h("div", { class: "settings" }, h("p", { class: "muted pad" }, "Loading…"));
  }

  get title() {
    return "Settings";
  }

  async load() {
    const { signal, status } = this._page;
    const [settings, ...streams] = await Promise.all([
      get("settings", {}, signal),
      ...status.streams.map((stream) => get(ofStream(stream.name), {}, signal)),
    ]);
    this._streams = streams;
    this.element.replaceChildren(
      h("h1", {}, "Settings"),
      h(
        "p",
        { class: "muted summary" },
        "Settings are read from polyaforest.toml. Change those of a stream here, or edit the file and press “Reload settings”.",
      ),
      h(
        "div",
        { class: "columns even" },
        h(
          "div",
          { class: "stack" },
          this._page.canWrite ? this._tryPanel() : null,
          h(
            "section",
            { class: "panel", "aria-labelledby": "toml" },
            h(
              "div",
              { class: "panel-head" },
              h("h2", { id: "toml" }, "polyaforest.toml"),
              h("span", { class: "muted" }, "without secrets"),
            ),
            codeBlock(settings.toml, "Copy as TOML"),
            this._page.canWrite && !status.is_demo ? this._reloadPart() : null,
          ),
        ),
        h(
          "div",
          { class: "stack" },
          streams.map((stream) => this._streamPanel(stream)),
          alertsPanel(settings.alerts),
          serverPanel(settings.server, status),
        ),
      ),
    );
    this._page.live.follow({}, {});
  }

  close() {}

  /** Return what a stream is set to, and a form to change it. */
  _streamPanel(stream) {
    const box = h(
      "details",
      {
        class: "settings-form",
        ontoggle: () => {
          if (!box.open || box.querySelector("form")) return;
          softly(
            settingsForm(this._page, stream.name, () => this.load()).then((form) => box.append(form)),
          );
        },
      },
      h("summary", {}, this._page.canWrite ? "All settings: explain and change" : "All settings"),
    );
    return streamPanel(stream, box);
  }

  // ---- reload ----

  _reloadPart() {
    const result = h("div", { class: "reload-result", "aria-live": "polite" });
    const button = h(
      "button",
      {
        type: "button",
        onclick: async () => {
          button.disabled = true;
          try {
            const done = await post("settings/reload", {}, this._page.signal);
            await this.load();
            this.element.querySelector(".reload-result")?.replaceChildren(...reloadResult(done));
          } catch (problem) {
            if (this._page.signal.aborted) return;
            result.replaceChildren(h("p", { class: "problem", role: "alert" }, visible(problem.message)));
          }
          button.disabled = false;
        },
      },
      "Reload settings",
    );
    return h("div", { class: "reload pad" }, button, result);
  }

  // ---- preview ----

  _tryPanel() {
    const stream = h(
      "select",
      { id: "try-stream" },
      this._streams.map((one) => h("option", { value: one.name }, visible(one.name))),
    );
    const key = h("select", { id: "try-key" });
    const rate = h("input", { id: "try-rate", type: "text", inputmode: "decimal", autocomplete: "off" });
    const window = h("input", { id: "try-window", type: "text", autocomplete: "off" });
    const records = h("input", {
      id: "try-records",
      type: "number",
      min: "100",
      max: "50000",
      step: "100",
      value: "5000",
    });
    const direction = h(
      "select",
      { id: "try-direction" },
      [
        ["", "unchanged"],
        ["both", "both"],
        ["high", "only high"],
        ["low", "only low"],
      ].map(([value, words]) => h("option", { value }, words)),
    );
    this._result = h("div", { class: "try-result", "aria-live": "polite" });
    const button = h("button", { type: "submit", class: "primary" }, "Try on history");
    const fill = async () => {
      const about = this._streams.find((one) => one.name === stream.value);
      rate.placeholder =
        about.settings.false_alarm_rate === null ? "set by the model" : String(about.settings.false_alarm_rate);
      window.placeholder = windowWords(about.settings.window);
      key.replaceChildren(h("option", { value: "" }, "all"));
      key.disabled = about.by === null;
      if (about.by === null) return;
      const { keys } = await get(ofStream(about.name, "keys"), { limit: MOST_KEYS }, this._page.signal);
      key.append(...keys.map((one) => h("option", { value: one }, visible(one).slice(0, 80))));
    };
    stream.addEventListener("change", () => softly(fill()));
    softly(fill());
    const field = (label, input, help) =>
      h(
        "div",
        { class: "field" },
        h("label", { for: input.id }, label),
        input,
        help ? h("span", { class: "muted" }, help) : null,
      );
    return h(
      "section",
      { class: "panel", "aria-labelledby": "try" },
      h(
        "div",
        { class: "panel-head" },
        h("h2", { id: "try" }, "Try other settings on history"),
        h("span", { class: "muted" }, "changes nothing"),
      ),
      h(
        "form",
        {
          class: "try",
          onsubmit: async (event) => {
            event.preventDefault();
            const trial = trialOf({ key, rate, window, records, direction });
            if (trial.false_alarm_rate !== null && !(trial.false_alarm_rate > 0 && trial.false_alarm_rate < 1)) {
              this._result.replaceChildren(
                h(
                  "p",
                  { class: "problem", role: "alert" },
                  "The false-alarm rate must be a number between 0 and 1, such as 0.001.",
                ),
              );
              return;
            }
            button.disabled = true;
            button.textContent = "Scoring…";
            await this._try(stream.value, trial);
            button.disabled = false;
            button.textContent = "Try on history";
          },
        },
        field("Stream", stream),
        field("Key", key),
        field("False-alarm rate", rate, "such as 0.001: one in a thousand ordinary records"),
        field("Window", window, "records such as 2048, or a duration such as 6h"),
        field("Direction", direction),
        field("Latest records", records),
        button,
      ),
      this._result,
    );
  }

  async _try(stream, trial) {
    this._result.replaceChildren(h("p", { class: "muted" }, "Scoring the records again…"));
    try {
      const done = await post(ofStream(stream, "preview"), trial, this._page.signal);
      const past = await this._pastOf(stream, done);
      this._result.replaceChildren(...trialResult(stream, done, past));
      announce(`Now ${plural(done.now.n_events, "event")}, then ${plural(done.then.n_events, "event")}`);
    } catch (problem) {
      if (this._page.signal.aborted) return;
      this._result.replaceChildren(h("p", { class: "problem", role: "alert" }, visible(problem.message)));
    }
  }

  /** Return the events that would disappear. */
  async _pastOf(stream, { gone }) {
    if (!gone.length) return [];
    const { events } = await get("events", { stream, limit: 1000 }, this._page.signal);
    return events.filter((event) => gone.includes(event.id));
  }
}

/** Return the settings of the form, null where empty. */
function trialOf({ key, rate, window, records, direction }) {
  const width = window.value.trim();
  return {
    key: key.selectedIndex === 0 ? null : key.value,
    records: Number(records.value),
    false_alarm_rate: rate.value.trim() ? Number(rate.value) : null,
    window: width ? (/^\d+$/.test(width) ? Number(width) : width) : null,
    gates: direction.value ? { direction: direction.value } : null,
  };
}

function trialResult(stream, done, past) {
  const bar = (words, side, most) =>
    h(
      "div",
      { class: "compare-row" },
      h("span", {}, words),
      h(
        "div",
        { class: "bar-track", "aria-hidden": "true" },
        h("div", { class: "bar", style: { width: `${(100 * side.n_events) / most}%` } }),
      ),
      h("span", { class: "num" }, `${plural(side.n_events, "event")}, ${count(side.n_flagged)} flagged`),
    );
  const most = Math.max(1, done.now.n_events, done.then.n_events);
  const fresh = done.new.map((i) => done.events[i]);
  const part = (title, items) =>
    items.length
      ? [
          h("h3", {}, title),
          h("ul", { class: "events" }, items.slice(0, MOST_SHOWN)),
          items.length > MOST_SHOWN ? h("p", { class: "muted" }, `and ${count(items.length - MOST_SHOWN)} more`) : null,
        ]
      : [];
  return [
    h(
      "p",
      {},
      `${plural(done.n_records, "record")} of ${plural(done.keys.length, "key")} scored again${done.is_truncated ? "; not all keys" : ""}:`,
    ),
    h("div", { class: "compare" }, bar("now", done.now, most), bar("then", done.then, most)),
    done.now.n_events && !done.then.n_events
      ? h("p", {}, "Nothing would be flagged: a window of this size has no p-values as low as this rate.")
      : null,
    !fresh.length && !done.gone.length ? h("p", {}, "The events would be the same.") : null,
    ...part(
      `${plural(done.gone.length, "event")} would disappear`,
      past.map((event) => eventRow(event)),
    ),
    ...part(
      `${plural(fresh.length, "event")} would be new`,
      fresh.map((event) => trialRow(stream, event)),
    ),
    h("h3", {}, "To apply"),
    codeBlock(done.toml, "Copy as TOML"),
    h("p", {}, "Add these lines to polyaforest.toml, then press “Reload settings” or send SIGHUP to the server."),
    ...effects(done.effect),
  ].filter((item) => item !== null);
}

/** Describe the effect of applying settings. */
function effects({ applied, relearned, n_records }) {
  return [
    applied.length ? h("p", {}, `Applied without a restart: ${applied.map(visible).join(", ")}.`) : null,
    relearned.length
      ? h(
          "p",
          {},
          `Because of ${relearned.map(visible).join(", ")}, the stream will relearn from its history (${plural(n_records, "record")}). The current models stay in use until then.`,
        )
      : null,
  ];
}

/** Describe the result of a reload. */
function reloadResult(done) {
  const byStream = (changes) =>
    Object.entries(changes).map(
      ([stream, settings]) => `${visible(stream)} (${Object.keys(settings).map(visible).join(", ")})`,
    );
  const part = (words, items) => (items.length ? h("p", {}, `${words}: ${items.map(visible).join(", ")}.`) : null);
  const found = [
    part("Applied without a restart", [...byStream(done.applied), ...(done.alerts ? ["alerts"] : [])]),
    part("Relearning from the history", byStream(done.relearned)),
    part("Started", done.started),
    part("Stopped; their files are kept", done.stopped),
    part("Applied at the next start of the server", done.at_next_start),
  ].filter((item) => item !== null);
  return found.length ? found : [h("p", {}, "The file has not changed.")];
}

function trialRow(stream, event) {
  const margin = Math.max(60, 3 * (event.end - event.start));
  const query = new TimeRange({ from: event.start - margin, to: event.end + margin }).toQuery();
  const [field] = Object.entries(event.attributions ?? {}).sort((a, b) => b[1] - a[1])[0] ?? [];
  return h(
    "li",
    { class: "event-row" },
    h("span", { class: "severity", "aria-hidden": "true" }),
    h(
      "a",
      { class: "event-sentence", href: streamLink(stream, event.key, query) },
      event.key === "" ? visible(stream) : name(event.key),
      field ? [", mostly ", name(field)] : "",
    ),
    h("span", { class: "event-place muted" }, plural(event.n_flagged, "record")),
    h("span", { class: "event-when num" }, span(event.start, event.end)),
    h("span", { class: "event-grade num" }, oneIn(event.p_value)),
  );
}

// ---- current settings ----

function windowWords(window) {
  return typeof window === "number" ? count(window) : visible(window ?? "");
}

/** Return a setting as text, lists as JSON. */
function shown(value, key = "") {
  if (SECONDS.has(key)) return duration(value);
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "number") return key === "port" ? String(value) : number(value);
  return visible(typeof value === "object" ? JSON.stringify(value) : value);
}

/** Return the non-empty settings, those of tables as "table.name". */
function flat(settings, before = "") {
  return Object.entries(settings).flatMap(([key, value]) => {
    if (value === null || value === false || value?.length === 0) return [];
    if (typeof value === "object" && !Array.isArray(value)) return flat(value, `${before}${key}.`);
    return [[`${before}${visible(key)}`, shown(value, key)]];
  });
}

/** Return the progress of relearning, or the outcome of the last change. */
function progress({ relearning, notice }) {
  if (relearning)
    return h(
      "p",
      { class: "pad", role: "status" },
      `Relearning from its history because of ${relearning.settings.map(visible).join(", ")}: ${count(relearning.n_learned)} of ${plural(relearning.n_records, "record")}. The current models stay in use until then.`,
    );
  return notice ? h("p", { class: "pad muted", role: "status" }, `Last change: this stream ${visible(notice)}.`) : null;
}

function streamPanel(stream, form) {
  return h(
    "section",
    { class: "panel", "aria-label": `Settings of ${visible(stream.name)}` },
    h(
      "div",
      { class: "panel-head" },
      h("h2", {}, visible(stream.name)),
      h("span", { class: "muted" }, `${count(stream.n_records)} records, ${bytes(stream.model_bytes)}`),
    ),
    progress(stream),
    facts([
      ["fields", stream.fields.map((field) => h("span", { class: "tag" }, name(field)))],
      ...["time", "by", "id"].filter((role) => stream.settings[role]).map((role) => [role, name([stream.settings[role]].flat().join(", "))]),
      ["source", visible(stream.source)],
      ["mute", stream.settings.mute?.length ? visible(JSON.stringify(stream.settings.mute)) : "none"],
      ["maintenance", stream.settings.maintenance?.length ? visible(JSON.stringify(stream.settings.maintenance)) : "none"],
    ]),
    form,
  );
}

function alertsPanel(alerts) {
  const body = alerts?.length
    ? facts(alerts.map((alert) => [name(alert.name ?? "alert"), shown(alert)]))
    : h("p", { class: "muted pad" }, "No alerts are configured. Add [[alerts]] to polyaforest.toml.");
  return h(
    "section",
    { class: "panel", "aria-label": "Alerts" },
    h("div", { class: "panel-head" }, h("h2", {}, "Alerts")),
    body,
  );
}

function serverPanel(server, status) {
  return h(
    "section",
    { class: "panel", "aria-label": "Server" },
    h("div", { class: "panel-head" }, h("h2", {}, "Server")),
    facts([
      ["version", visible(status.version)],
      ["role", status.role === "admin" ? "admin" : "read-only"],
      ...flat(server ?? {}),
    ]),
  );
}
