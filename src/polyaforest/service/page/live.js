// The live feed: one connection for the current screen, reopened when it is lost.

const RETRY = 2000; // milliseconds

/** Follows the feed; calls `onState` with "live", "connecting" or "lost". */
export class Live {
  constructor(onState) {
    this._onState = onState;
    this._source = null;
    this._timer = null;
    this._following = null;
  }

  /**
   * Follow the feed of all streams or of one key. `handlers` are by event name; `again` is called whenever the feed
   * opens, to fetch what happened before.
   */
  follow(query, handlers) {
    this._following = { query, handlers, hadGap: true };
    this._open();
  }

  /** Stop following. */
  stop() {
    clearTimeout(this._timer);
    this._source?.close();
    this._source = null;
    this._following = null;
  }

  _open() {
    clearTimeout(this._timer);
    this._source?.close();
    const following = this._following;
    const source = new EventSource(`/api/v1/feed?${new URLSearchParams(following.query)}`);
    this._source = source;
    source.onopen = () => {
      this._onState("live");
      if (following.hadGap) following.handlers.again?.();
      following.hadGap = false;
    };
    source.onerror = () => {
      following.hadGap = true;
      this._onState("lost");
      if (source.readyState === EventSource.CLOSED && this._source === source) {
        this._timer = setTimeout(() => this._open(), RETRY); // rejected: browsers do not retry then
      }
    };
    for (const [kind, handle] of Object.entries(following.handlers)) {
      if (kind !== "again") source.addEventListener(kind, (message) => handle(JSON.parse(message.data)));
    }
  }
}
