// How to send data to a stream that has no records yet: a command, or the configuration of the sender.

import { get, ofStream, softly } from "./api.js";
import { h, visible } from "./dom.js";
import { count, plural } from "./format.js";
import { codeBlock, howToPost } from "./parts.js";

const REFETCH = 3000; // milliseconds between looks at the metrics that have arrived
const MOST_NAMES = 20; // metrics listed
const METRIC = /^\s*(?:(?:value|rate)\()?\s*([A-Za-z_][\w.:/-]*)/; // the name in the notation of a configuration

/** Return what to do to send the first records of a stream, for the screen of `page`. */
export async function howToSend(stream, page) {
  const path = ofStream(stream.name);
  const { settings } = await get(path, {}, page.signal);
  const needsToken = page.status.needs_token;
  if (stream.accepts_records) {
    return h(
      "div",
      {},
      h("p", {}, "Send the first record; it appears here at once. The model needs a few hundred records to learn what is usual."),
      howToPost(stream, settings, needsToken),
    );
  }
  const senders = { otlp: openTelemetry, "remote-write": prometheus }[stream.source];
  if (!senders || !settings.metrics)
    return h("p", {}, `This stream reads from ${visible(stream.source)}. Records appear here as they arrive.`);
  const arrived = h("div", { role: "status" });
  const box = h("div", {}, fieldsOf(settings.metrics), ...senders(settings.metrics, needsToken), arrived);
  const look = async () => arrived.replaceChildren(...whatArrived((await get(path, {}, page.signal)).metrics));
  const timer = setInterval(() => (box.isConnected ? softly(look()) : clearInterval(timer)), REFETCH);
  page.signal.addEventListener("abort", () => clearInterval(timer));
  softly(look());
  return box;
}

/** Say which metrics become fields, and what makes the key. */
function fieldsOf({ fields, by }) {
  const key = by.length ? ` Each ${by.map(visible).join(" / ")} has its own model.` : "";
  return h(
    "div",
    {},
    h("p", {}, `This stream waits for these metrics.${key}`),
    h(
      "dl",
      { class: "facts" },
      Object.entries(fields).flatMap(([field, metric]) => [h("dt", {}, visible(field)), h("dd", {}, visible(metric))]),
    ),
  );
}

function openTelemetry(_, needsToken) {
  const variables = [
    "export OTEL_EXPORTER_OTLP_METRICS_PROTOCOL=http/protobuf",
    `export OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=${location.origin}/v1/metrics`,
    ...(needsToken ? ['export OTEL_EXPORTER_OTLP_METRICS_HEADERS="Authorization=Bearer%20$TOKEN"'] : []),
  ];
  const collector = [
    "exporters:",
    "  otlphttp/polyaforest:",
    `    endpoint: ${location.origin}`,
    ...(needsToken ? ["    headers:", "      authorization: Bearer ${env:TOKEN}"] : []),
    "service:",
    "  pipelines:",
    "    metrics:",
    "      receivers: [otlp]",
    "      exporters: [otlphttp/polyaforest]",
  ];
  return [
    h("h3", {}, "From a collector"),
    codeBlock(collector.join("\n"), "Copy for the collector"),
    h("h3", {}, "From an SDK"),
    codeBlock(variables.join("\n"), "Copy for the SDK"),
  ];
}

function prometheus({ fields }, needsToken) {
  const names = new Set(Object.values(fields).map((metric) => METRIC.exec(metric)?.[1]));
  const lines = [
    "remote_write:",
    `  - url: ${location.origin}/api/v1/write`,
    ...(needsToken ? ["    authorization:", "      credentials_file: write-token"] : []),
    "    write_relabel_configs:",
    "      - source_labels: [__name__]",
    `        regex: ${[...names].join("|")}`,
    "        action: keep",
  ];
  return [h("p", {}, "Add this to prometheus.yml, and reload Prometheus."), codeBlock(lines.join("\n"), "Copy for Prometheus")];
}

/** Say what has arrived so far: metrics may have other names than those of the fields. */
function whatArrived(metrics) {
  const { used = 0, late = 0, rejected = 0, without_field: others = [] } = metrics ?? {};
  if (!used && !rejected && !others.length) return [h("p", { class: "muted" }, "Nothing has arrived yet.")];
  const parts = [h("p", {}, `${plural(used, "sample")} arrived for these fields. The first record follows shortly.`)];
  if (!used) parts[0] = h("p", {}, "Metrics arrive, but none for these fields.");
  if (rejected > late) parts.push(h("p", {}, `${plural(rejected - late, "sample")} could not be used.`));
  if (others.length) {
    const names = others.slice(0, MOST_NAMES).map(({ name }) => visible(name));
    const more = others.length > MOST_NAMES ? ` and ${count(others.length - MOST_NAMES)} more` : "";
    parts.push(h("p", { class: "other-metrics" }, `No field uses: ${names.join(", ")}${more}.`));
  }
  return parts;
}
