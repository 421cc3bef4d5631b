// Requests to the API.

/** An error reported by the server. */
export class Problem extends Error {
  constructor(status, words) {
    super(words);
    this.status = status;
  }
}

async function ask(method, path, { query = {}, body, signal } = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null);
  const search = given.length ? `?${new URLSearchParams(given)}` : "";
  const options = { method, signal, headers: {} };
  if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers["content-type"] = "application/json";
  }
  const answer = await fetch(`/api/v1/${path}${search}`, options);
  const facts = await answer.json().catch(() => null);
  if (!answer.ok) {
    const problem = new Problem(answer.status, facts?.detail ?? `The server returned status ${answer.status}.`);
    if (answer.status === 401 && path !== "login") dispatchEvent(new Event("login-needed"));
    throw problem;
  }
  return facts;
}

/** Ignore a failed refresh: the screen stays, and the feed reports when the server is gone. */
export const softly = (promise) =>
  promise.catch((problem) => problem.name === "AbortError" || console.warn(problem.message));

export const get = (path, query, signal) => ask("GET", path, { query, signal });
export const post = (path, body, signal) => ask("POST", path, { body, signal });
export const remove = (path) => ask("DELETE", path);

/** Return a path under a stream. */
export const ofStream = (stream, ...rest) =>
  ["streams", encodeURIComponent(stream), ...rest.map(encodeURIComponent)].join("/");
