"""Load model files and blocks and use all their methods, in a separate process that may hang or crash.

Reads paths from standard input, a line each, and answers each with a line of JSON, [how it ended, why]. A file
is either "refused" by a ModelFileError, or "works"; anything else is "broken".
"""

import json
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

import numpy as np

import polyaforest
from polyaforest import ModelFileError, SeriesMPF
from polyaforest.detectors import loads
from polyaforest.storage.codec import is_packed
from polyaforest.tables.validation import NamedRows

N_ROWS = 12


def use(model, folder):
    """Score, explain, learn, delete, save and load; raise AssertionError for an invalid number."""
    rows = np.random.default_rng(0).normal(size=(N_ROWS, model.n_features_in_)) * 3 + 4  # inside and outside of boxes
    rows[1] = rows[0]
    if hasattr(model, "feature_names_in_"):
        rows = NamedRows(rows, model.feature_names_in_)
    times = times_for(model)
    look(model, rows, times)
    if hasattr(model, "detect_then_learn") and not is_frozen(model):
        learn(model, rows, times)
        look(model, rows, times)
        model.save(folder / "more")
        polyaforest.load(folder / "more")
        forget(model)
        look(model, rows, times)
    elif hasattr(model, "merge"):
        willing(model.partial_fit, rows)
    model.save(folder / "again")
    polyaforest.load(folder / "again")
    loads(model.to_bytes())


def is_frozen(model):
    """Return whether the model is a table of an earlier version, which holds no points."""
    return not isinstance(model, SeriesMPF) and model._stream.is_frozen


def has_room_beyond(model):
    """Return whether rows outside the data have a positive probability, hence a finite score."""
    forest = next(iter(model.estimators_.values())) if isinstance(model, SeriesMPF) else model
    return forest.prior_.is_open if hasattr(forest, "forest_") else not forest._parameters.is_closed


def times_for(model):
    """Return the next times, for models with time-based windows."""
    if isinstance(model, SeriesMPF):
        if not model._model.history.is_timed:
            return None
        return np.nan_to_num(model._model.history.track.latest) + 1.0 + np.arange(float(N_ROWS))
    stream = getattr(model, "_stream", None)
    if stream is None or stream.rules.policy is None or not stream.rules.policy.needs_times:
        return None
    return max(stream.store.clock, 0.0) + 1.0 + np.arange(float(N_ROWS))


def look(model, rows, times):
    """Call all methods that only read."""
    at = {"times": times} if isinstance(model, SeriesMPF) else {}
    is_open = has_room_beyond(model)
    scores = willing(model.score_samples, rows, **at)
    judged = willing(model.detect, rows, **at)
    for found in (scores, None if judged is None else judged.scores):
        check_numbers(found, is_open, may_be_silent=isinstance(model, SeriesMPF))
    if judged is not None:
        assert not np.isnan(judged.thresholds[~np.isnan(judged.scores)]).any()
    if isinstance(model, SeriesMPF):
        silent = scores is None or np.isnan(scores)
        if scores is not None and not silent.all():
            said = willing(model.explain, rows, rows=[int(np.flatnonzero(~silent)[-1])], **at)
            check_words(said)
    else:
        check_words(willing(model.explain, rows[:2]))
        check_numbers(willing(model.mass, rows), True)


def check_words(said):
    for explanation in said or ():
        assert str(explanation)
        assert not np.isnan(explanation.parts).any() or np.isinf(explanation.surprise)


def learn(model, rows, times):
    n_seen = model.n_seen_
    judged = willing(model.detect_then_learn, rows, times=times)
    if judged is not None:
        assert model.n_seen_ == n_seen + len(rows)
        check_numbers(judged.scores, has_room_beyond(model), isinstance(model, SeriesMPF))


def forget(model):
    if isinstance(model, SeriesMPF) or model._stream.keeps_points:
        for key in model.keys_[:2]:
            if key in model.keys_:  # deleting a value of a series deletes several shingles
                willing(model.delete, key)


def willing(call, *args, **options):
    """Return the result of a call, or None if it raises an error meant for the caller."""
    try:
        return call(*args, **options)
    except (ValueError, KeyError) as problem:
        if isinstance(problem, ModelFileError | np.linalg.LinAlgError) or type(problem) not in (ValueError, KeyError):
            raise
        if not any(words in str(problem) for words in WORDS):
            raise
        return None


WORDS = (  # allowed error messages
    "outside the domain",
    "can learn at most",
    "key ",
    "sort the rows by time",
    "not a date",
    "lies on the edge",
    "needs at least",
    "scores to compare with",
    "whose scores could be compared",
    "contamination",
    "nothing to explain",
)


def check_numbers(scores, is_open, may_be_silent=False):
    if scores is not None:
        known = scores[~np.isnan(scores)] if may_be_silent else scores
        assert (known <= 2).all(), known
        assert (known > -np.inf).all() or not is_open, known


def verdict(path):
    try:
        block = Path(path).read_bytes()
        model = loads(block) if is_packed(block) else polyaforest.load(path)
    except ModelFileError as problem:
        return "refused", str(problem)
    with tempfile.TemporaryDirectory() as folder:
        use(model, Path(folder))
    return "works", type(model).__name__


def main():
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        try:
            answer = verdict(line.rstrip("\n"))
        except BaseException:
            answer = "broken", traceback.format_exc()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
