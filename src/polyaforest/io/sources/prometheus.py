"""Series of a Prometheus server: range queries for the past, instant queries for new values."""

from __future__ import annotations

import json
import math
import time as clock
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from polyaforest.io.errors import BadInput
from polyaforest.io.records import Record
from polyaforest.io.sources._lines import Position
from polyaforest.util import schema

__all__ = ["TIME", "PrometheusServer"]

TIME = "time"  # the field with the timestamp
_STEPS = 500  # of a range query
_PAUSE = 5.0  # seconds before the next query to a server that failed
_MOST_BYTES = 256 * 2**20


class PrometheusServer:
    """Results of queries at fixed time steps, one record per step and label value; a `Source`.

    Parameters
    ----------
    url : str
        URL of the server, such as "http://localhost:9090".
    queries : mapping of str to str
        A PromQL expression for each field.
    by : str, optional
        Label whose values separate records. Without it, each query must return a single series.
    step : float
        Seconds between two records.
    past : float
        Seconds before now at which to begin.
    timeout : float
        Seconds to wait for a response.
    token : str, optional
        Bearer token.
    """

    can_replay = True

    def __init__(
        self,
        url: str,
        queries: Mapping[str, str],
        *,
        by: str | None = None,
        step: float = 15.0,
        past: float = 21600.0,
        timeout: float = 10.0,
        token: str | None = None,
    ) -> None:
        if TIME in queries or by == TIME:
            raise BadInput(f"{TIME!r} is reserved for the time of a record: rename the field or label")
        self._url, self._queries, self._by, self._step = url.rstrip("/"), dict(queries), by, step
        self._timeout, self._token = timeout, token
        self.notices: list[str] = []
        self._done = self._aligned(clock.time() - past)  # time of the last step read
        self._ready: list[Record] = []
        self._last = (self._done, "")  # time and label of the last record returned
        self._skipped: tuple[float, str] | None = None  # records up to this one were returned before
        self._retry_at = 0.0
        self._trouble = ""

    def read(self, most: int, wait: float) -> list[Record] | None:
        """Return at most `most` records: [] if none arrived within `wait` seconds."""
        if not self._ready:
            self._fill(wait)
        taken, self._ready = self._ready[:most], self._ready[most:]
        if taken:
            moment, _, key = taken[-1].position.partition("/")
            self._last = float(moment), key
        return taken

    @property
    def position(self) -> Position:
        """Time of the last step returned, and the label of its last record, None if the step is complete."""
        return {"time": self._last[0], "key": self._last[1]} if self._ready else {"time": self._done, "key": None}

    def seek(self, position: Position) -> None:
        """Continue after a `position`."""
        _POSITION(position, "position")
        self._ready, self._done, self._skipped = [], position["time"], None
        if position["key"] is not None:  # the rest of that step is read again
            self._done = self._aligned(position["time"] - self._step / 2)
            self._skipped = position["time"], position["key"]

    def close(self) -> None:
        """Do nothing: connections end with each query."""

    # ---- steps -------------------------------------------------------------------------------------------------------

    def _fill(self, wait: float) -> None:
        """Query the steps that have ended."""
        now = clock.time()
        due = max(self._done + 2 * self._step, self._retry_at)  # a step later, when its values have been scraped
        if now < due:
            clock.sleep(min(wait, due - now))
            return
        last = min(self._aligned(now - self._step), self._done + _STEPS * self._step)
        records = self._query_steps(self._done + self._step, last)
        if records is not None:
            self._ready, self._done, self._skipped = records, last, None

    def _query_steps(self, first: float, last: float) -> list[Record] | None:
        """Return the records of the steps from `first` to `last`; None if the server fails."""
        rows: dict[tuple[float, str], dict[str, Any]] = {}
        try:
            for field, query in self._queries.items():
                for key, moment, value in self._query(query, first, last):
                    row = rows.setdefault(
                        (moment, key), {TIME: moment} if self._by is None else {TIME: moment, self._by: key}
                    )
                    row[field] = value
        except (OSError, HTTPException, ValueError) as problem:
            self._begin_trouble(str(problem))
            return None
        self._end_trouble()
        places = [place for place in sorted(rows) if self._skipped is None or place > self._skipped]
        return [Record(f"{moment:.3f}/{key}", rows[moment, key]) for moment, key in places]

    def _query(self, query: str, first: float, last: float) -> list[tuple[str, float, float | None]]:
        """Return label, time and value of each result of a query."""
        if first == last:
            response = self._fetch("query", {"query": query, "time": f"{first:.3f}"})
        else:
            span = {"start": f"{first:.3f}", "end": f"{last:.3f}", "step": f"{self._step:g}"}
            response = self._fetch("query_range", {"query": query, **span})
        if response["resultType"] == "scalar":
            raise ValueError(f"the query {query!r} returns a scalar: wrap it in vector(...)")
        results = []
        if self._by is None and len(response["result"]) > 1:
            raise ValueError(
                f"the query {query!r} returns {len(response['result'])} series: aggregate them or set `by`"
            )
        for series in response["result"]:
            key = "" if self._by is None else series["metric"].get(self._by, "")
            if self._by is not None and not key:
                raise ValueError(f"the query {query!r} returns a series without the label {self._by!r}")
            for moment, text in series.get("values") or [series["value"]]:
                value = float(text)
                results.append(
                    (key, self._aligned(float(moment) + self._step / 2), value if math.isfinite(value) else None)
                )
        return results

    def _fetch(self, kind: str, parameters: dict[str, str]) -> dict[str, Any]:
        """Return the data of a response."""
        request = Request(f"{self._url}/api/v1/{kind}", urlencode(parameters).encode())
        if self._token is not None:
            request.add_header("Authorization", f"Bearer {self._token}")
        try:
            with urlopen(request, timeout=self._timeout) as response:
                text = response.read(_MOST_BYTES)
        except HTTPError as problem:
            with problem:
                reason = problem.read(1000).decode("utf-8", "replace")
            raise ValueError(f"status {problem.code}: {reason}") from None
        facts: dict[str, Any] = json.loads(text)
        if facts.get("status") != "success":
            raise ValueError(facts.get("error", "it gives no reason"))
        data: dict[str, Any] = facts["data"]
        return data

    def _aligned(self, moment: float) -> float:
        """Round a time down to a whole step, so that steps are the same after a restart."""
        return round(math.floor(moment / self._step) * self._step, 3)

    def _begin_trouble(self, words: str) -> None:
        self._retry_at = clock.time() + _PAUSE
        if words != self._trouble:
            self.notices.append(f"the Prometheus server at {self._url} cannot be read: {words}. Retrying")
        self._trouble = words

    def _end_trouble(self) -> None:
        if self._trouble:
            self.notices.append(f"the Prometheus server at {self._url} is available again")
        self._trouble, self._retry_at = "", 0.0


_POSITION = schema.record({"time": schema.number, "key": schema.either(schema.nothing, schema.text)})
