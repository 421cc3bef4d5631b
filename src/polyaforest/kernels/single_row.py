"""Check a single row: its validity and its margins, in one pass."""

from polyaforest.kernels.jit import jit_borrowing

ORDINARY = 0
BEYOND = 1  # a feature lies beyond its margins
UNUSABLE = 2  # a value is missing, infinite or too large


@jit_borrowing
def take_row(X, smallest, largest, limit, row):
    """Copy the only row of `X` to `row`, (1, D), with tiny values as 0; return ORDINARY, BEYOND or UNUSABLE.

    `limit`, (2, D), holds the margins: of the low sides, negated, and of the high sides.
    """
    kind = ORDINARY
    for k in range(X.shape[1]):
        x = X[0, k]
        size = abs(x)
        if not size <= largest:
            return UNUSABLE
        if size < smallest:
            x = 0.0
        row[0, k] = x
        if x < -limit[0, k] or x > limit[1, k]:
            kind = BEYOND
    return kind
