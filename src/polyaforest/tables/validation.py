"""Validation of input: messages name the row, the column and the remedy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from numbers import Integral, Real
from typing import Any, NamedTuple, NoReturn

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_array, validate_data

from polyaforest.kernels.arrays import Array
from polyaforest.kernels.boxes import distances
from polyaforest.tables.categories import Categories, Codes, Texts, encode, read_categorical
from polyaforest.util.schema import MOST_COPIES, MOST_COUNTED

# Values in this range keep weights, times, distances, their products and quotients finite: all lengths are 0 or between
# 1e-116 (one unit in the last place of the smallest value) and 2e100.
LARGEST = 1e100
SMALLEST = 1e-100  # smaller values count as 0
_VALUES_AT_ONCE = 2**18  # values checked together, so that a large table is never copied as a whole
_EXACT_INTEGER = 2**53
_SMALLEST_OF, _LARGEST_OF = np.minimum.reduce, np.maximum.reduce  # cheaper than `min` and `max` for a single row


class NamedRows:
    """A matrix whose columns have names, cheaper to pass than a frame.

    Parameters
    ----------
    values : array of float64, shape (n_rows, n_features)
    names : sequence of str
    categories : Categories, optional
        Which columns hold codes of categories, and their texts; by default, all columns are numeric.
    """

    def __init__(self, values: Array, names: Sequence[str] | Array, categories: Categories | None = None) -> None:
        self.values = np.require(values, np.float64, ["C", "W"])
        self.names = names if isinstance(names, np.ndarray) else np.array([str(name) for name in names], dtype=object)
        self.categories = categories
        if self.values.ndim != 2 or self.values.shape[1] != len(self.names):
            raise ValueError(f"got {len(self.names)} names for values of shape {self.values.shape}")

    @property
    def columns(self) -> Array:
        """The names, as frames call them."""
        return self.names

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of rows and columns."""
        return self.values.shape

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, part: slice | Array) -> NamedRows:
        return NamedRows(self.values[part], self.names, self.categories)


class CodedRows(NamedTuple):
    """Rows with the numeric columns first, then the codes of categories; and the texts of these codes."""

    rows: Array
    texts: Texts


@contextmanager
def all_or_nothing(thing: object) -> Iterator[None]:
    """Restore the attributes of `thing` if the block raises; the block must replace parts, not write to them."""
    before = dict(vars(thing))
    try:
        yield
    except BaseException:
        thing.__dict__ = before  # atomic, so that no thread sees a mixture
        raise


def read_rows(
    estimator: BaseEstimator, X: Any, *, reset: bool, at_least: int = 1, allow_missing: bool = False
) -> Array:
    """Validate `X` and return it as a C-contiguous, writable float64 matrix of finite values.

    With `allow_missing`, missing values are NaN. Columns of categories come last, as codes.
    """
    return read_coded(estimator, X, reset=reset, at_least=at_least, allow_missing=allow_missing).rows


def read_coded(
    estimator: BaseEstimator, X: Any, *, reset: bool, at_least: int = 1, allow_missing: bool = False
) -> CodedRows:
    """Return `X` as `read_rows` does, with the texts of its categories; `reset` decides which columns these are."""
    if not reset and _is_plain(estimator, X):
        return CodedRows(_measurable(estimator, X, allow_missing), {})
    if not isinstance(X, NamedRows):
        X = _as_known_table(X)
    known = None if reset else getattr(estimator, "encoding_", None)
    columns = _categorical_columns(estimator, X) if reset else () if known is None else known.columns
    texts: dict[float, str] = {}
    if isinstance(X, NamedRows):
        _check_names(estimator, X, reset, at_least)
        rows = _encode_named(estimator, X, columns, texts)
    elif columns and not isinstance(estimator.categorical_features, Codes):
        rows = _read_mixed(estimator, X, columns, reset, at_least, texts)
    else:
        rows = _read_numeric(estimator, X, reset, at_least)
    if reset and (columns or getattr(estimator, "encoding_", None) is not None):
        estimator.encoding_ = Categories(columns, rows.shape[1], texts) if columns else None
    return CodedRows(_measurable(estimator, rows, allow_missing), texts)


def _read_numeric(estimator: BaseEstimator, X: Any, reset: bool, at_least: int) -> Array:
    """Return a table of numbers as a matrix."""
    _check_measurable(X)
    try:
        rows = validate_data(
            estimator,
            X,
            reset=reset,
            dtype=np.float64,
            order="C",
            ensure_all_finite=False,
            ensure_min_samples=at_least,
        )
    except (TypeError, ValueError) as problem:
        _name_unreadable_cell(estimator, X, problem)
        raise
    return np.require(np.asarray(rows), np.float64, ["C", "W"])


# ---- categories ------------------------------------------------------------------------------------------------------


def categorical_columns(estimator: BaseEstimator, X: Any) -> tuple[int, ...]:
    """Return the columns that are categories according to the estimator's parameter `categorical_features`."""
    return _categorical_columns(estimator, X if isinstance(X, NamedRows) else _as_known_table(X))


def _categorical_columns(estimator: BaseEstimator, X: Any) -> tuple[int, ...]:
    """Return the columns that are categories in a table to fit."""
    given = getattr(estimator, "categorical_features", None)
    if isinstance(X, NamedRows):
        own = () if X.categories is None else X.categories.columns
        columns = read_categorical(given, X.names.tolist(), len(X.names), lambda: own)
        numeric = sorted(set(own) - set(columns))
        if numeric:
            raise ValueError(_not_numeric(estimator, f"column {str(X.names[numeric[0]])!r} holds categories"))
        return columns
    if given is None or (isinstance(given, str) and given == "from_dtype" and not hasattr(X, "columns")):
        return ()
    frame = _frame(X)
    if frame is not None:
        names = [str(name) for name in frame.columns]
        return read_categorical(given, names, len(names), lambda: _of_categorical_type(frame))
    n_dimensions = np.ndim(np.asarray(X, dtype=object))
    if n_dimensions != 2:
        raise ValueError(f"Expected 2D array, got {n_dimensions}D array instead: X must have rows and columns")
    return read_categorical(given, None, np.shape(X)[1], lambda: ())


def _frame(X: Any) -> Any:
    """Return a frame of any library that narwhals supports as a narwhals frame; None for other tables."""
    if not hasattr(X, "columns"):
        return None
    import narwhals.stable.v1 as nw

    _names_of(X)
    frame = nw.from_native(X, eager_only=True, pass_through=True)
    return frame if isinstance(frame, nw.DataFrame) else None


def _of_categorical_type(frame: Any) -> list[int]:
    """Return the columns of categorical type; text columns are not."""
    import narwhals.stable.v1 as nw

    return [k for k, kind in enumerate(frame.schema.values()) if isinstance(kind, nw.Categorical | nw.Enum)]


def _read_mixed(
    estimator: BaseEstimator,
    X: Any,
    columns: tuple[int, ...],
    reset: bool,
    at_least: int,
    texts: dict[float, str],
) -> Array:
    """Return a table with columns of categories as a matrix; add their texts to `texts`."""
    frame = _frame(X)
    table = X if frame is not None else np.asarray(X, dtype=object if isinstance(X, list | tuple) else None)
    if len(table.shape) != 2:
        raise ValueError(f"Expected 2D array, got {len(table.shape)}D array instead: X must have rows and columns")
    validate_data(estimator, X if frame is not None else table, reset=reset, skip_check_array=True)
    if len(table) < at_least:
        raise ValueError(f"Found array with {len(table)} sample(s) while a minimum of {at_least} is required.")
    n_features = table.shape[1]
    numeric = [k for k in range(n_features) if k not in columns]
    rows = np.empty((len(table), n_features))
    if numeric and len(table):
        part = table[:, numeric] if frame is None else frame[:, numeric].to_native()
        rows[:, : len(numeric)] = _numbers_of(estimator, part, numeric)
    for place, k in enumerate(columns, len(numeric)):
        cells = table[:, k] if frame is None else frame[:, k].to_list()
        rows[:, place], own = _codes_of(estimator, cells, k)
        texts |= own
    return rows


def _numbers_of(estimator: BaseEstimator, part: Any, places: list[int]) -> Array:
    """Return numeric columns as a matrix; `places` are their positions in the whole table."""
    _check_measurable(part)
    try:
        return np.asarray(check_array(part, dtype=np.float64, ensure_all_finite=False))
    except (TypeError, ValueError) as problem:
        _name_unreadable_cell(estimator, part, problem, places)
        raise


def _codes_of(estimator: BaseEstimator, cells: Any, k: int) -> tuple[Array, dict[float, str]]:
    """Return the codes and texts of column `k` of a table."""
    try:
        return encode(cells)
    except ValueError as problem:
        names = getattr(estimator, "feature_names_in_", None)
        raise ValueError(f"column {k if names is None else repr(str(names[k]))}: {problem}") from problem


def _check_names(estimator: BaseEstimator, rows: NamedRows, reset: bool, at_least: int) -> None:
    """Raise if there are too few rows, or their names differ from those of the fit."""
    if len(rows) < at_least:
        raise ValueError(f"Found array with {len(rows)} sample(s) while a minimum of {at_least} is required.")
    if reset:
        estimator.n_features_in_, estimator.feature_names_in_ = len(rows.names), rows.names
    known = getattr(estimator, "feature_names_in_", None)
    if known is not rows.names and (known is None or known.tolist() != rows.names.tolist()):
        fitted = "columns without names" if known is None else str(known.tolist())
        raise ValueError(f"the columns are {rows.names.tolist()}, but the forest was fitted on {fitted}")


def _encode_named(estimator: BaseEstimator, X: NamedRows, columns: tuple[int, ...], texts: dict[float, str]) -> Array:
    """Return named rows with the columns of categories last, as codes; add their texts to `texts`."""
    own = () if X.categories is None else X.categories.columns
    numeric = sorted(set(own) - set(columns))
    if numeric:
        raise ValueError(_not_numeric(estimator, f"column {str(X.names[numeric[0]])!r} holds categories"))
    if not columns:
        return X.values
    order = Categories(columns, len(X.names)).order
    rows = np.ascontiguousarray(X.values[:, order])
    texts |= {} if X.categories is None else X.categories.texts
    for place, k in enumerate(order.tolist()):
        if k in columns and k not in own:
            rows[:, place], new = encode(X.values[:, k])
            texts |= new
    return rows


def _not_numeric(estimator: BaseEstimator, what: str) -> str:
    """Return the message for a column that is not numeric: what is wrong and what to do."""
    if not hasattr(estimator, "categorical_features"):
        return f"{what}, but this detector accepts only numbers: leave the column out"
    fitting = " and fit" if hasattr(estimator, "fit") else ""
    return f"{what}: to use the column as categories, name it in categorical_features{fitting}; or leave it out"


def _is_plain(estimator: BaseEstimator, X: Any) -> bool:
    """Return whether `X` already has the type and layout that kernels need: then reading single rows is cheap."""
    return (
        type(X) is np.ndarray
        and X.dtype == np.float64
        and X.ndim == 2
        and X.shape[0] > 0
        and X.shape[1] == estimator.n_features_in_
        and X.flags.c_contiguous
        and X.flags.writeable
        and not hasattr(estimator, "feature_names_in_")
        and getattr(estimator, "encoding_", None) is None
    )


def as_plain_row(estimator: BaseEstimator, X: Any) -> Array | None:
    """Return a single row of numbers that needs no conversion, (1, D), with its values unchecked; None for others."""
    if type(X) is NamedRows:
        is_known = X.names is getattr(estimator, "feature_names_in_", None) and X.categories is None
        is_plain = is_known and getattr(estimator, "encoding_", None) is None
        return X.values if is_plain and len(X.values) == 1 else None
    return X if type(X) is np.ndarray and X.shape[:1] == (1,) and _is_plain(estimator, X) else None


def _as_known_table(X: Any) -> Any:
    """Convert tables that NumPy would misread; raise TypeError for lazy tables."""
    for method in ("collect", "compute"):  # of polars and dask
        if callable(getattr(X, method, None)) and not hasattr(X, "__array__"):
            raise TypeError(f"X is a {type(X).__name__}, whose rows are not computed yet: pass X.{method}()")
    if isinstance(X, np.ma.MaskedArray):
        return _with_nan_for_masked(X)
    if isinstance(X, list | tuple) and any(isinstance(row, np.ma.MaskedArray) for row in X):
        return _with_nan_for_masked(np.ma.array(X))
    if hasattr(X, "__arrow_c_stream__") and not hasattr(X, "iloc"):  # pandas frames are read with their index
        import polars as pl

        return X if isinstance(X, pl.DataFrame | pl.Series) else pl.DataFrame(X)
    return X


def _with_nan_for_masked(values: np.ma.MaskedArray[Any, Any]) -> Array:
    """Return the values with NaN in place of masked ones; integers stay integers, to check their size later."""
    kept: Any = values.astype(object) if values.dtype.kind in "iub" else values
    filled: Array = kept.filled(np.nan) if kept.dtype.kind in "fO" else kept.filled()
    return filled


def read_keys(keys: Any, n_rows: int) -> list[int | str | None]:
    """Validate and return one key per row; None means the arrival number of the row."""
    if keys is None:
        return [None] * n_rows
    if isinstance(keys, str | bytes) or not isinstance(keys, Iterable):
        kind = "text" if isinstance(keys, str) else "value"
        raise ValueError(f"keys must hold one key for each of the {n_rows} rows, not the single {kind} {keys!r}")
    given = [None if key is None else read_key(key) for key in keys]
    if len(given) != n_rows:
        raise ValueError(f"got {len(given)} keys for {n_rows} rows: pass one key per row")
    return given


def read_one_or_more_keys(keys: Any) -> list[int | str]:
    """Validate one key or several and return them as a list."""
    is_many = np.ndim(keys) > 0 if isinstance(keys, np.ndarray) else isinstance(keys, Iterable)
    return [read_key(key) for key in (keys if is_many and not isinstance(keys, str | bytes) else [keys])]


def read_key(key: Any) -> int | str:
    """Validate and return a key."""
    if isinstance(key, str):
        return str(key)
    if isinstance(key, Integral) and not isinstance(key, bool | np.bool_):
        return int(key)
    raise ValueError(f"a key must be an integer or a string; got {key!r}")


def read_stamps(times: Any, n_rows: int, *, needed: bool) -> Array:
    """Validate and return the time of each row, in seconds or the caller's own unit; NaN if `times` is None."""
    if times is None:
        if needed:
            raise ValueError("this window spans a duration: pass times, one per row (time for a single row)")
        return np.full(n_rows, np.nan)
    stamps = _as_seconds(times)
    if stamps.shape != (n_rows,):
        raise ValueError(f"times must hold one time for each of the {n_rows} rows; got shape {stamps.shape}")
    bad = np.flatnonzero(~np.isfinite(stamps))
    if bad.size:
        raise ValueError(f"the time of row {bad[0]} is {stamps[bad[0]]}: times must be finite")
    return stamps


def _as_seconds(times: Any) -> Array:
    """Return numbers unchanged, and dates as seconds since 1970, in UTC unless they name a time zone."""
    if not hasattr(times, "__array__") and isinstance(times, Iterable):
        times = [_date_as_seconds(time) for time in times]
    values = np.asarray(times)
    if values.dtype.kind in "mUS":
        kind = "strings" if values.dtype.kind in "US" else "durations"
        raise ValueError(f"times must be numbers or dates; got {kind}")
    if values.dtype.kind == "M":
        seconds: Array = (values - np.datetime64(0, "s")) / np.timedelta64(1, "s")
        return seconds
    if values.dtype.kind == "O":
        values = np.array([_date_as_seconds(time) for time in values])
    return _as_floats("times", values)


def _date_as_seconds(time: Any) -> Any:
    if time != time:  # noqa: PLR0124 -- NaN or NaT
        return np.nan
    if not isinstance(time, datetime):
        return time
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def read_flags(name: str, flags: Any, n_rows: int) -> Array:
    """Validate and return one bool per row."""
    values = np.asarray(flags)
    if values.shape != (n_rows,) or values.dtype != np.bool_:
        raise ValueError(
            f"{name} must be True or False for each of the {n_rows} rows; got {values.dtype} of shape {values.shape}"
        )
    return values


def read_domain(domain: Any, n_features: int) -> Array:
    """Validate `domain` and return its lower and upper bounds, (2, D)."""
    bounds = _as_floats("domain", domain)
    if bounds.shape != (2, n_features):
        raise ValueError(
            f"domain must have shape (2, {n_features}), the lower bounds and then the upper bounds of the "
            f"{n_features} features; got shape {bounds.shape}"
        )
    bad = ~(np.isfinite(bounds).all(axis=0) & (np.abs(bounds) <= LARGEST).all(axis=0) & (bounds[0] <= bounds[1]))
    if bad.any():
        k = int(np.flatnonzero(bad)[0])
        raise ValueError(
            f"domain of feature {k} is [{bounds[0, k]:g}, {bounds[1, k]:g}]: bounds must be finite, at most "
            f"{LARGEST:g} in size, and the lower no larger than the upper"
        )
    bounds[np.abs(bounds) < SMALLEST] = 0.0
    return bounds


def check_rows_inside(estimator: BaseEstimator, rows: Array, domain: Array) -> None:
    """Raise if a row to learn lies outside the fixed `domain`."""
    n_categories = getattr(estimator, "_n_categories", 0)
    outside = distances(domain, rows, n_categories) > 0
    if outside.any():
        i, k = (int(place) for place in np.argwhere(outside)[0])
        if k >= rows.shape[1] - n_categories:
            raise ValueError(
                f"row {i}, column {column_name(estimator, k)} is a category that the domain does not contain: fit "
                "again with this category, or omit the row"
            )
        raise ValueError(
            f"row {i}, column {column_name(estimator, k)} is {rows[i, k]:g}, outside the domain "
            f"[{domain[0, k]:g}, {domain[1, k]:g}]: widen the domain or omit the row"
        )


def check_box_inside(estimator: BaseEstimator, box: Array, domain: Array) -> None:
    """Raise if the bounding box, (2, D), of rows to learn is not within the fixed `domain`."""
    outside = np.flatnonzero((box[0] < domain[0]) | (box[1] > domain[1]))
    if outside.size:
        k = int(outside[0])
        raise ValueError(
            f"column {column_name(estimator, k)} ranges from {box[0, k]:g} to {box[1, k]:g}, beyond the domain "
            f"[{domain[0, k]:g}, {domain[1, k]:g}]: widen the domain or omit the rows outside"
        )


def check_countable(n_seen: int, n_coming: int) -> None:
    """Raise if the number of rows would exceed what can be counted."""
    if n_seen + n_coming > MOST_COUNTED:
        raise ValueError(
            f"a forest can learn at most {MOST_COUNTED:,} rows and has learned {n_seen:,}: fit a new forest"
        )


def read_weights(weights: Any, n_features: int) -> Array:
    """Validate and return the feature weights, (D,); None means all ones."""
    values = np.ones(n_features) if weights is None else _as_floats("feature_weights", weights)
    if values.shape != (n_features,):
        raise ValueError(
            f"feature_weights must hold one weight for each of the {n_features} features; got shape {values.shape}"
        )
    bad = ~((values == 0) | ((values >= SMALLEST) & (values <= LARGEST)))
    if bad.any():
        k = int(np.flatnonzero(bad)[0])
        raise ValueError(
            f"feature_weights[{k}] is {values[k]:g}: each weight must be 0 or a number from {SMALLEST:g} to {LARGEST:g}"
        )
    if not values.any():
        raise ValueError("feature_weights are all zero: at least one must be positive")
    return values


def read_sample_weight(sample_weight: Any, n_rows: int) -> Array | None:
    """Validate and return the weights of rows, float64 (n,); None if each row counts once."""
    if sample_weight is None:
        return None
    try:
        weights = np.array(sample_weight, np.float64)
    except (TypeError, ValueError) as problem:
        raise ValueError(f"sample_weight must be numbers; got {sample_weight!r} ({problem})") from problem
    if weights.shape != (n_rows,):
        raise ValueError(f"sample_weight must hold one weight for each of the {n_rows} rows; got shape {weights.shape}")
    bad = np.flatnonzero(~((weights >= 0) & (weights <= MOST_COPIES)))  # catches NaN
    if bad.size:
        raise ValueError(
            f"the weight of row {bad[0]} is {weights[bad[0]]:g}: weights must be numbers from 0 to {MOST_COPIES:,}"
        )
    if weights.sum() > MOST_COPIES:
        raise ValueError(f"the weights add up to {weights.sum():.3g}, more than {MOST_COPIES:,}: scale them down")
    return None if (weights == 1).all() else weights


def read_copies(sample_weight: Any, n_rows: int) -> Array:
    """Validate and return how many copies of each row to delete, int64 (n,): one by default.

    Fractions are rejected: a fractional weight was rounded at random when the row was learned, and the outcome is not
    stored.
    """
    weights = read_sample_weight(sample_weight, n_rows)
    if weights is None:
        return np.ones(n_rows, np.int64)
    bad = np.flatnonzero(weights % 1)
    if bad.size:
        raise ValueError(
            f"the weight of row {bad[0]} is {weights[bad[0]]:g}: to delete rows, use whole numbers as weights. Nothing "
            "was deleted"
        )
    return weights.astype(np.int64)


def _as_floats(name: str, values: Any) -> Array:
    """Return a new float array of the values of a parameter."""
    try:
        return np.array(values, np.float64)
    except (TypeError, ValueError) as problem:
        raise ValueError(f"{name} must be an array of numbers; got {values!r} ({problem})") from problem


def read_seed(random_state: Any) -> np.random.SeedSequence:
    """Return the seed for a `random_state`."""
    if random_state is None:
        return np.random.SeedSequence()
    if isinstance(random_state, Integral):
        return np.random.SeedSequence(int(random_state))
    return np.random.SeedSequence(check_random_state(random_state).randint(2**31, size=4).tolist())


def read_share(name: str, value: Any) -> float:
    """Validate and return a number from 0 to 1."""
    if not isinstance(value, Real) or not 0 <= float(value) <= 1:
        raise ValueError(f"{name} must be a number from 0 to 1; got {value!r}")
    return float(value)


def read_rate(name: str, value: Any) -> float:
    """Validate and return a number strictly between 0 and 1."""
    if not isinstance(value, Real) or not 0 < float(value) < 1:
        raise ValueError(f"{name} must be a number between 0 and 1, both excluded; got {value!r}")
    return float(value)


def read_times(name: str, value: Any, latest: float) -> Array:
    """Validate one or more times from 0 to `latest` and return them as a vector."""
    times = np.atleast_1d(_as_floats(name, value))
    if times.ndim != 1 or times.size == 0 or not ((times >= 0) & (times <= latest)).all():
        raise ValueError(f"{name} must be one or more times from 0 to {latest}; got {value!r}")
    return times


def feature_names(estimator: BaseEstimator) -> list[str]:
    """Return the names of the columns that an estimator was fitted on; x0, x1, ... if they have none."""
    names = getattr(estimator, "feature_names_in_", None)
    return [f"x{k}" for k in range(estimator.n_features_in_)] if names is None else [str(name) for name in names]


def column_name(estimator: BaseEstimator, k: int) -> str:
    """Return the name of column `k` of rows for messages."""
    names, categories = getattr(estimator, "feature_names_in_", None), getattr(estimator, "encoding_", None)
    place = k if categories is None else int(categories.order[k])
    return str(place) if names is None else repr(str(names[place]))


def _measurable(estimator: BaseEstimator, rows: Array, allow_missing: bool) -> Array:
    """Return `rows` with tiny values replaced by 0; raise for values that are too large.

    NaN also raises, unless `allow_missing`. The given array is never modified.
    """
    given, n_rows = rows, max(_VALUES_AT_ONCE // max(rows.shape[1], 1), 1)
    for start in range(0, len(given), n_rows):
        sizes = np.abs(given[start : start + n_rows])
        largest = _LARGEST_OF(sizes, axis=None, initial=0.0)
        if _SMALLEST_OF(sizes, axis=None, initial=1.0) >= SMALLEST and largest <= LARGEST:
            continue
        if not largest <= LARGEST and (not allow_missing or (sizes > LARGEST).any()):  # `largest` may be NaN
            _check_extreme(estimator, given, allow_missing)
        is_tiny = (sizes < SMALLEST) & ((sizes > 0) | np.signbit(given[start : start + n_rows]))  # -0.0 is 0.0
        if is_tiny.any():
            rows = given.copy() if rows is given else rows
            rows[start : start + n_rows][is_tiny] = 0.0
    return rows


def check_complete(estimator: BaseEstimator, rows: Array) -> None:
    """Raise ValueError if a value is missing, naming the first."""
    if np.isnan(rows).any():
        _check_extreme(estimator, rows, allow_missing=False)


def _check_extreme(estimator: BaseEstimator, rows: Array, allow_missing: bool) -> NoReturn:
    """Raise ValueError, naming the first value that is NaN (unless allowed), infinite or too large."""
    sizes = np.abs(rows)
    bad = sizes > LARGEST if allow_missing else ~(sizes <= LARGEST)
    i, k = (int(place) for place in np.argwhere(bad)[0])
    value, n_bad = rows[i, k], int(bad.sum())
    place = f"row {i}, column {column_name(estimator, k)}"
    more = f" ({n_bad:,} such values in all)" if n_bad > 1 else ""
    if np.isnan(value):
        remedy = "this method needs complete rows: drop such rows, or fill them in with impute(X)"
        if getattr(estimator, "missing", "error") == "error":
            remedy = 'drop such rows, fill them in first, or set missing="impute"'
        raise ValueError(f"Input X contains NaN: {place} is missing{more}; {remedy}")
    if np.isinf(value):
        raise ValueError(f"Input X contains infinity: {place} is {value}{more}; drop such rows or cap the values first")
    raise ValueError(f"{place} is {value:g}{more}: values must not exceed {LARGEST:g} in size; rescale the column")


def _check_measurable(X: Any) -> None:
    """Raise if a column holds dates, or integers that a float cannot represent exactly.

    NumPy would convert both to numbers. Such integers are usually identifiers or nanosecond timestamps.
    """
    for name, values in _columns(X):
        if values.dtype.kind in "mM":
            raise ValueError(
                f"column {name or 0} holds dates or durations: convert them to numbers, such as the hour of day"
            )
        if values.dtype.kind not in "iuO":
            continue
        too_large = np.frompyfunc(_is_inexact, 1, 1)(values) if values.dtype.kind == "O" else _is_inexact(values)
        if np.any(too_large):
            place = tuple(int(p) for p in np.argwhere(too_large)[0])
            raise ValueError(
                f"row {place[0]}, column {name or place[-1]} is the integer {values[place]}, which exceeds "
                f"{_EXACT_INTEGER}, the largest that floats represent exactly: leave the column out if it is an "
                "identifier, or subtract an offset first"
            )


def _is_inexact(values: Any) -> Any:
    """Return which integers are too large for a float to hold exactly."""
    if isinstance(values, Integral):
        return abs(int(values)) > _EXACT_INTEGER
    if isinstance(values, np.ndarray):
        return (values > _EXACT_INTEGER) | (values < -_EXACT_INTEGER)
    return False


def _columns(X: Any) -> list[tuple[str | None, Array]]:
    """Return the columns of a frame with their names; for other tables, one nameless entry with all values."""
    if hasattr(X, "columns") and hasattr(X, "shape"):
        names = _names_of(X)
        columns = (X.iloc[:, k] if hasattr(X, "iloc") else X[:, k] for k in range(len(names)))
        return [(repr(name), np.asarray(column)) for name, column in zip(names, columns, strict=True)]
    try:
        values = np.asarray(X, dtype=object if isinstance(X, list | tuple) else None)  # a list may mix ints and floats
    except ValueError:  # ragged: reading it raises later
        return []
    return [(None, values)] if values.ndim == 2 else []


def _names_of(frame: Any) -> list[str]:
    """Return the column names of a frame; raise if there are none or if one occurs twice."""
    names = [str(name) for name in frame.columns]
    if not names:
        raise ValueError("the frame has no columns: at least one is required")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"column {twice!r} occurs more than once: column names must be unique")
    return names


def _name_unreadable_cell(
    estimator: BaseEstimator, X: Any, problem: Exception, places: Sequence[int] | None = None
) -> None:
    """If a cell of `X` is not a number, raise the same type of error naming the first one.

    `places` are the positions of the columns in the whole table.
    """
    try:
        cells = np.asarray(X, dtype=object)
    except (TypeError, ValueError):
        return
    if cells.ndim != 2:
        return
    for (i, k), value in np.ndenumerate(cells):
        try:
            float(value)
        except (TypeError, ValueError):
            names = getattr(X, "columns", None)
            column = str(k if places is None else places[k]) if names is None else repr(str(names[k]))
            what = f"row {i}, column {column} is {shown_value(value)}, which is not a number"
            raise type(problem)(f"{_not_numeric(estimator, what)} ({problem})") from problem


def shown_value(value: Any) -> str:
    """Return the repr of a value for a message, truncated if long."""
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:60]}..."
