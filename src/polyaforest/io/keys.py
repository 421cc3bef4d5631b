"""Names that several rows may share, made into keys that a forest holds only once.

The first row of a name has the name itself for a key, the others the name, a sign that no text contains, and a number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from polyaforest.forest.point_store import Key

__all__ = ["keys_named", "point_keys"]

_AGAIN = "\x1f"  # the unit separator of ASCII


def point_keys(
    names: Iterable[str], is_taken: Callable[[str], bool] = lambda key: False, *, n_before: int = 0
) -> list[str]:
    r"""Return a key for each row of these names: the name itself, or with the number of its arrival if that is taken.

    Parameters
    ----------
    names : iterable of str
    is_taken : callable
        Tells whether a row of a key is held already.
    n_before : int
        Rows that came before these.

    Examples
    --------
    >>> point_keys(["ann", "bob", "ann"], is_taken={"bob"}.__contains__, n_before=7)
    ['ann', 'bob\x1f9', 'ann\x1f10']
    """
    keys: dict[str, None] = {}  # in order
    for number, name in enumerate(names, n_before + 1):
        if _AGAIN in name:
            raise ValueError(f"the name {name!r} contains the control character {_AGAIN!r}: take it out of the file")
        keys[f"{name}{_AGAIN}{number}" if name in keys or is_taken(name) else name] = None
    return list(keys)


def keys_named(name: str, keys: Iterable[Key]) -> list[Key]:
    r"""Those of the `keys` that rows of this name have; a row without a name goes by its number.

    Examples
    --------
    >>> keys_named("ann", ["ann", "anna", 3, "ann\x1f2"])
    ['ann', 'ann\x1f2']
    >>> keys_named("3", ["ann", 3])
    [3]
    """
    return [key for key in keys if (_parts(key)[0] if isinstance(key, str) else str(key)) == name]


def _parts(key: str) -> tuple[str, int]:
    """The name in a key, and which of its rows this is."""
    name, _, number = key.partition(_AGAIN)
    return name, int(number) if number.isdecimal() else 1
