// Starts the page: screens by address, login state, connection state.

import { get, post } from "./api.js";
import { h } from "./dom.js";
import { EventScreen } from "./event.js";
import { clock, now, setClock, useUtc, usesUtc } from "./format.js";
import { Live } from "./live.js";
import { Login } from "./login.js";
import { Overview } from "./overview.js";
import { problemPanel } from "./parts.js";
import { Settings } from "./settings.js";
import { StreamScreen } from "./stream.js";

const SCREENS = { "": Overview, stream: StreamScreen, event: EventScreen, settings: Settings };
const STATUS_EVERY = 20000; // milliseconds
const WORDS = { live: "Live", connecting: "Connecting", lost: "Reconnecting" };

const main = document.getElementById("main");
const banner = document.getElementById("banner");

let status = null;
let screen = null;
let leaving = new AbortController();
let lostAt = null;
let bannerTimer = null;

const live = new Live((state) => {
  document.getElementById("state").dataset.state = state;
  document.getElementById("state-words").textContent = WORDS[state];
  if (state === "lost" && lostAt === null) {
    lostAt = now();
    clearTimeout(bannerTimer);
    bannerTimer = setTimeout(
      () => showBanner(`Connection lost. Showing data from ${clock(lostAt)}. Reconnecting…`, "lost"),
      800,
    );
    get("status").catch(() => {}); // an invalid token closes the feed too: this asks for a new one
  } else if (state === "live" && lostAt !== null) {
    lostAt = null;
    clearTimeout(bannerTimer);
    if (banner.hidden) return;
    showBanner("Reconnected.", "back");
    bannerTimer = setTimeout(() => (banner.hidden = true), 3000);
  }
});

function showBanner(words, state) {
  banner.textContent = words;
  banner.dataset.state = state;
  banner.hidden = false;
}

/** Return the screen, path and query of an address. */
function parse(hash) {
  const [path, search = ""] = hash.replace(/^#?\/?/, "").split("?");
  const parts = path.split("/").map((part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part; // a lone percent sign
    }
  });
  return { kind: parts[0], parts: parts.slice(1), query: new URLSearchParams(search) };
}

function leave() {
  leaving.abort();
  leaving = new AbortController();
  live.stop();
  screen?.close();
  screen = null;
}

async function show(make) {
  leave();
  const { signal } = leaving;
  const { kind, parts, query } = parse(location.hash);
  const remember = (search) =>
    history.replaceState(null, "", `#/${location.hash.replace(/^#?\/?/, "").split("?")[0]}?${search}`);
  const page = { status, parts, query, live, signal, remember, onStatus, restart, canWrite: status?.role === "admin" };
  try {
    if (!make && !Object.hasOwn(SCREENS, kind)) throw new Error("This screen does not exist.");
    screen = make ? new make(page) : new SCREENS[kind](page);
    main.replaceChildren(screen.element);
    setTitle();
    await screen.load();
    setTitle();
  } catch (problem) {
    if (signal.aborted || problem.status === 401) return;
    screen?.close();
    screen = null;
    main.replaceChildren(problemPanel(problem));
  }
  for (const link of document.querySelectorAll(".nav a")) {
    const isHere = link.dataset.screen === (kind === "settings" ? "settings" : kind === "" ? "overview" : "");
    if (isHere) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

function onStatus(next) {
  status = next;
  setClock(status.now);
  document.getElementById("demo").hidden = !status.is_demo;
  document.getElementById("logout").hidden = !status.needs_token;
  setTitle();
}

function setTitle() {
  const nOpen = status?.streams.reduce((sum, stream) => sum + stream.n_open_events, 0) ?? 0;
  document.title = `${nOpen ? `(${nOpen}) ` : ""}${screen ? `${screen.title} · ` : ""}polyaforest`;
}

/** Fetch the status, then show the screen of the address. */
async function restart() {
  try {
    onStatus(await get("status"));
  } catch (problem) {
    if (problem.status === 401) return; // the login screen is shown
    showBanner(`The server does not respond: ${problem.message}. Retrying…`, "lost");
    setTimeout(restart, 2000);
    return;
  }
  banner.hidden = true;
  await show();
}

function showTheme() {
  const isDark = document.documentElement.dataset.theme === "dark";
  document
    .getElementById("theme")
    .replaceChildren(
      h("span", { "aria-hidden": "true" }, isDark ? "☾" : "☀"),
      h("span", { class: "wide" }, isDark ? " Dark" : " Light"),
    );
  document.getElementById("zone").textContent = usesUtc() ? "UTC" : "Local";
}

document.getElementById("theme").addEventListener("click", () => {
  const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  localStorage.setItem("theme", next);
  showTheme();
  if (screen && status) show();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (change) => {
  if (localStorage.getItem("theme") !== null) return; // chosen by the user
  document.documentElement.dataset.theme = change.matches ? "dark" : "light";
  showTheme();
  if (screen && status) show();
});
document.getElementById("zone").addEventListener("click", () => {
  useUtc(!usesUtc());
  showTheme();
  if (screen && status) show();
});
document.getElementById("logout").addEventListener("click", async () => {
  await post("logout", {});
  status = null;
  await show(Login);
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address names the screen
  main.focus();
});
addEventListener("login-needed", () => {
  if (screen instanceof Login) return;
  status = null;
  show(Login);
});
addEventListener("hashchange", async () => {
  if (!status) return;
  await show();
  scrollTo(0, 0);
  main.focus({ preventScroll: true });
});
setInterval(async () => {
  if (!status || document.hidden) return;
  try {
    onStatus(await get("status"));
  } catch {
    // the feed reports whether the server is reachable
  }
}, STATUS_EVERY);

showTheme();
restart();
