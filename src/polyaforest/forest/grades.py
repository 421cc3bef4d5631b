"""Grades of severity: functions of the tail bits alone, so that they mean the same in every stream (see `severity`)."""

from __future__ import annotations

from math import isnan, log2

__all__ = ["GRADES", "severity"]

GRADES = (1, 2, 3, 4, 5)
_BITS = tuple(log2(rows) for rows in (1e3, 1e4, 1e5, 1e6))  # least tail bits of grades 2 to 5


def severity(bits: float) -> int | None:
    """Return the grade of a flagged row, from 1 to 5, given its tail bits; None if they are NaN.

    The grade never falls as the bits rise.

    Examples
    --------
    >>> [severity(bits) for bits in (8.0, 10.0, 14.0, 17.0, 1400.0)]
    [1, 2, 3, 4, 5]
    """
    return None if isnan(bits) else 1 + sum(bits >= least for least in _BITS)
