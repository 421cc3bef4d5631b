"""In-memory source of records, for tests of `watch`."""

from polyaforest.io.records import Record


class ListSource:
    """Return records in batches of given sizes, then of `at_once`, from any position."""

    def __init__(self, records, sizes=(), *, at_once=1000, can_replay=True):
        self._records, self._sizes, self._at_once = records, list(sizes), at_once
        self.can_replay, self.notices, self.position = can_replay, [], 0

    def read(self, most, wait):
        if self.position == len(self._records):
            return None
        size = min(most, self._sizes.pop(0) if self._sizes else self._at_once)
        taken = self._records[self.position : self.position + size]
        self.position += len(taken)
        return [Record(str(self.position - len(taken) + i), data) for i, data in enumerate(taken)]

    def seek(self, position):
        if type(position) is not int or not 0 <= position <= len(self._records):
            raise ValueError(f"position {position!r} is not one of these records")
        self.position = position

    def close(self):
        pass
