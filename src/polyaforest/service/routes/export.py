"""Routes that return the records of the history: in pages, or all as CSV or Parquet."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response
from starlette.responses import StreamingResponse

from polyaforest.service import cursors
from polyaforest.service.routes.answers import AnyKey, Cursor, Moment, Named, answer
from polyaforest.service.rows import csv_parts, pages, parquet_parts, rows_of
from polyaforest.service.stream import ServedStream

__all__ = ["routes"]

routes = APIRouter()


@routes.get("/streams/{stream}/records")
def records(
    stream: Named,
    key: AnyKey = None,
    start: Moment = None,
    end: Moment = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
    cursor: Cursor = None,
) -> Response:
    """List scored records with their values and expected ranges, by key and position.

    `next` is the cursor of the next page, null at the end.
    """
    place = cursors.place_of(cursor, str, int)
    after = None if place is None else (place[0], place[1])
    found = pages(stream.history, _keys(stream, key), _span(start, end), after, limit)
    rows = [row for one, block in found for row in rows_of(one, block, stream.fields)]
    following = cursors.cursor_of(rows[-1]["key"], rows[-1]["position"]) if len(rows) == limit else None
    return answer({"records": rows, "next": following})


@routes.get(
    "/streams/{stream}/export",
    response_class=StreamingResponse,
)
def export(
    request: Request,
    stream: Named,
    format: Annotated[Literal["csv", "parquet"], Query(description="Format of the file.")] = "csv",
    key: AnyKey = None,
    start: Moment = None,
    end: Moment = None,
) -> Response:
    """Download scored records as CSV or Parquet: one row per record, with values, expected ranges and scores."""
    name = f'attachment; filename="{stream.name}.{format}"'
    kind = "text/csv; charset=utf-8" if format == "csv" else "application/vnd.apache.parquet"
    headers = {"content-disposition": name}
    if request.scope.get("is_head"):
        return Response(None, 200, headers, kind)
    found = pages(stream.history, _keys(stream, key), _span(start, end))
    parts = csv_parts if format == "csv" else parquet_parts
    columns = stream.fields, stream.reader.categories, stream.config.weight
    return StreamingResponse(parts(found, *columns), 200, headers, kind)


def _keys(stream: ServedStream, key: str | None) -> list[str]:
    return stream.history.keys if key is None else [key]


def _span(start: float | None, end: float | None) -> tuple[float, float]:
    return -1e300 if start is None else start, 1e300 if end is None else end
