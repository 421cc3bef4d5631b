"""Valid models of all kinds, and models with valid checksums but altered contents."""

import copy
from pathlib import Path

import numpy as np
from forests import made

from polyaforest import BatchMPF, Reservoir, SeriesMPF, StreamingMPF, Tree, Window
from polyaforest.storage.codec import unpack
from polyaforest.storage.modelfile import read_model

TESTS = Path(__file__).parent
ROWS = np.random.default_rng(8).normal(size=(60, 2)) * 2 + 4
SMALL = {"n_estimators": 3, "random_state": 5}
TIMES = np.arange(60.0) + 1e9
LONG = np.sin(np.arange(560) / 4)[:, None] + np.random.default_rng(9).normal(size=(560, 2)) / 9  # with a rhythm

MODELS = {
    "table": lambda: made(StreamingMPF, **SMALL).fit(ROWS),
    "closed": lambda: made(
        StreamingMPF, **SMALL, tree=Tree(domain="data", max_depth=4), score_type="mass", window=20
    ).partial_fit(ROWS),
    "batch": lambda: made(BatchMPF, **SMALL, tree=Tree(max_depth=3, domain=[[-4] * 2, [12] * 2])).fit(ROWS),
    "window": lambda: judged(made(StreamingMPF, **SMALL, window=20, tree=Tree(domain=[[-9] * 2, [19] * 2])), ROWS),
    "in time": lambda: judged(made(StreamingMPF, **SMALL, window=Window(30, duration=25.0)), ROWS, times=TIMES),
    "reservoir": lambda: judged(made(StreamingMPF, **SMALL, window=Reservoir(9, half_life=20.0)), ROWS),
    "young": lambda: judged(
        made(StreamingMPF, **SMALL, tree=Tree(feature_weights=[1.0, 0.0])), ROWS[:5], keys=list("abcde")
    ),
    "summary": lambda: made(StreamingMPF, **SMALL, window=None, tree=Tree(max_depth=3)).fit(ROWS),
    "young summary": lambda: made(StreamingMPF, **SMALL, window=None, tree=Tree(max_depth=3)).partial_fit(ROWS),
    "empty": lambda: made(StreamingMPF, **SMALL, window=9).partial_fit(ROWS[:3]).delete([0, 1, 2]),
    "series": lambda: judged(
        SeriesMPF(made(StreamingMPF, **SMALL, window=20), shingle=3), ROWS, times=with_gaps(TIMES)
    ),
    "named series": lambda: judged(
        SeriesMPF(made(StreamingMPF, **SMALL, window=9), shingle=2, difference=True),
        ROWS,
        keys=[f"r{i}" for i in range(60)],
    ),
    "young series": lambda: judged(
        SeriesMPF(made(StreamingMPF, **SMALL, window=9), shingle=10, calendar=["time of day"]),
        ROWS[:4],
        times=TIMES[:4],
    ),
    "contexts": lambda: judged(SeriesMPF(made(StreamingMPF, **SMALL, window=40)), LONG, times=1e9 + np.arange(560.0)),
    "contexts of a table": lambda: judged(SeriesMPF(made(StreamingMPF, **SMALL, window=40)).fit(LONG), ROWS[:9]),
    "young contexts": lambda: judged(
        SeriesMPF(made(StreamingMPF, **SMALL, window=9), calendar=["time of day"]), ROWS[:4], times=TIMES[:4]
    ),
}
GOLDEN = {path.stem: path for path in sorted((TESTS / "golden").glob("*.mpf"))}


def judged(model, rows, **labels):
    model.detect_then_learn(rows, **labels)
    return model


def good_models(folder):
    """Headers and arrays of valid models by name: all current kinds, and all earlier versions."""
    for name, make in MODELS.items():
        make().save(folder / name, notes={"columns": ["a", "b"], "line": -3.0})
    places = [*GOLDEN.items(), *((name, folder / name) for name in MODELS)]
    return Good({name: read_model(path) for name, path in places})


def good_blocks():
    """Headers and arrays of compact states by name: all kinds of detectors that keep points."""
    kept = set(MODELS) - {"batch", "summary", "young summary"}
    return Good({name: unpack(MODELS[name]().to_bytes({"rows": 3})) for name in sorted(kept)})


def with_gaps(times):
    return times + 2.0 * (np.arange(len(times)) > 30) + 50.0 * (np.arange(len(times)) > 40)


class Good(dict):
    """Valid models by name; Hypothesis does not print them in full."""

    def __repr__(self):
        return "good"


def placed(header, place, value):
    """Return the header with another value at a place, such as "a.0.b"."""
    header = copy.deepcopy(header)
    *above, last = place.split(".")
    part = header
    for key in above:
        part = part[int(key)] if isinstance(part, list) else part[key]
    part[int(last) if isinstance(part, list) else last] = value
    return header


INTEGERS = [0, 1, -1, 2, 3, 255, 256, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**62, 2**63 - 1, -(2**63)]
FLOATS = [0.0, -0.0, 1.0, -1.0, 0.5, 5e-324, 1e-300, 1e-150, 1e150, 1e300, 1.7e308, -1e308, np.inf, -np.inf, np.nan]
TEXTS = ["", "auto", "mass", "\x1b[2J"]
PARTS = [[], {}, {"float": "inf"}, {"array": [[0.0], [1.0]]}]
VALUES = [None, True, False, *INTEGERS, *filter(np.isfinite, FLOATS), *TEXTS, *PARTS]


def places(header, above=""):
    """Return all places of a header."""
    found = []
    for key, part in header.items() if isinstance(header, dict) else enumerate(header):
        place = f"{above}{key}"
        found.append(place)
        if isinstance(part, dict | list):
            found += places(part, f"{place}.")
    return found


def changed(header, arrays, rng):
    """Return a header and arrays with one random change."""
    arrays = {name: array.copy() for name, array in arrays.items()}
    for _ in range(rng.choice([1, 1, 2])):
        if rng.random() < 0.5:
            header = placed(header, rng.choice(places(header)), rng.choice(VALUES))
        else:
            name = rng.choice(sorted(arrays))
            arrays[name] = other_array(arrays[name], rng)
    return header, arrays


def other_array(array, rng):
    """Return an array with other values, another type or another shape."""
    how = rng.choice(["value", "value", "value", "values", "type", "shape", "swap"])
    values = FLOATS if array.dtype.kind == "f" else INTEGERS
    flat = array.reshape(-1)  # a view
    if how == "type":
        with np.errstate(all="ignore"):
            return array.astype(rng.choice(["f4", "f8", "i8", "i4", "u8", "?"]))
    if how == "shape":
        return rng.choice([array[:0], array[None], flat, array[1:]]) if array.ndim else array[None]
    if how == "values":
        flat[:] = cast(rng.choice(values), array.dtype)
    elif how == "value" and flat.size:
        flat[rng.randrange(flat.size)] = cast(rng.choice(values), array.dtype)
    elif flat.size:
        one, other = rng.randrange(flat.size), rng.randrange(flat.size)
        flat[[one, other]] = flat[[other, one]]
    return array


def cast(value, dtype):
    """Cast a value to a type, with loss."""
    with np.errstate(all="ignore"):
        return np.array(int(value) % 2**64, np.uint64).astype(dtype) if dtype.kind in "iu" else np.array(value, dtype)
