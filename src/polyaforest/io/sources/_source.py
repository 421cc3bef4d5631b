"""What every source of live records can do."""

from __future__ import annotations

from typing import Any, Protocol

from polyaforest.io.records import Record

__all__ = ["Position", "Source"]

Position = Any  # whatever JSON can hold


class Source(Protocol):
    """A stream of records that is pulled, and that knows where it is.

    Attributes
    ----------
    can_replay : bool
        Whether records can be read again from a position; otherwise what was read is gone.
    notices : list of str
        What a person should know: records that were lost, a server that went away. Whoever shows them takes them out.
    """

    can_replay: bool
    notices: list[str]

    def read(self, most: int, wait: float) -> list[Record] | None:
        """At most `most` records: [] if none came within `wait` seconds, None after the last."""
        ...

    @property
    def position(self) -> Position:
        """Where the stream is after the last record handed out, as a value that JSON can hold."""
        ...

    def seek(self, position: Position) -> None:
        """Go on after the record whose `position` this was."""
        ...

    def close(self) -> None:
        """Let go of files and connections; a second time does nothing."""
        ...
