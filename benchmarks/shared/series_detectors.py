"""The detectors that the benchmark `series` compares: functions of values (n, channels) that return scores (n,).

Higher scores are more anomalous. A causal detector scores each step before it learns it and sees nothing later; it
returns NaN for a step without a complete window. The others get the whole series at once. Settings are each library's
defaults or, for methods on subsequences, the defaults of TSB-AD (Liu and Paparrizos, 2024), reimplemented from their
definitions. A method on subsequences of one channel runs on every channel that is not constant; the score of a step is
the mean over channels. Libraries are imported on first use, so that a detector runs even if another's library is
missing.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.signal import argrelextrema
from scipy.spatial.distance import cdist
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.ensemble import IsolationForest
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import scale

from benchmarks.nab import Setting, running_mean, score_then_learn, shingles
from benchmarks.nab import half_space_trees as nab_half_space_trees
from polyaforest import SeriesMPF, StreamingMPF

Array = NDArray[Any]

PEERS = ("krcf", "rcf3", "river", "stumpy")
SEED = 0
SHINGLE = 8  # of the forests that others wrote for streams
LEFT_WINDOW = 100  # of the causal matrix profile, as in TSB-AD: to find the period is to look ahead
LENGTHS = (10, 300)  # the shortest and the longest subsequence
UNKNOWN_LENGTH = 125  # without a period
PERIOD_STEPS, PERIOD_LAGS, FIRST_LAG = 20_000, 400, 3  # where a period is looked for
CLUSTERS, NEIGHBOURS, POWER = 20, 10, 3
FITTED_WINDOWS, REFERENCE_WINDOWS = 5000, 2000  # most subsequences to cluster, and to search for neighbours


# ---- subsequences ----------------------------------------------------------------------------------------------------


def subsequence_length(values: Array) -> int:
    """Return the dominant period of the first channel: the lag of the highest local maximum of its autocorrelation."""
    reading = values[:PERIOD_STEPS, 0] - values[:PERIOD_STEPS, 0].mean()
    spectrum = np.fft.rfft(reading, 2 * len(reading))
    correlation = np.fft.irfft(np.abs(spectrum) ** 2)[FIRST_LAG : min(PERIOD_LAGS + 1, len(reading))]
    peaks = argrelextrema(correlation, np.greater)[0]
    peak = peaks[np.argmax(correlation[peaks])] if len(peaks) else 0
    length = peak + FIRST_LAG if 3 <= peak <= 300 else UNKNOWN_LENGTH
    return int(np.clip(length, *LENGTHS))


def subsequences(channel: Array, length: int) -> Array:
    """Return rows of `length` values from each step on."""
    return np.lib.stride_tricks.sliding_window_view(channel, length)


def normalised(windows: Array) -> Array:
    """Return windows with zero mean and unit variance, or all zeros if they are constant."""
    is_constant = np.ptp(windows, axis=1) == 0
    deviation = np.where(is_constant, 1.0, windows.std(axis=1))
    return (windows - windows.mean(axis=1, keepdims=True)) * ~is_constant[:, None] / deviation[:, None]


def centred(scores: Array, length: int) -> Array:
    """Give each window's score to the step in its middle, and the first and last score to the steps around."""
    return np.pad(scores, (length // 2, (length - 1) // 2), mode="edge")


def some(n_rows: int, most: int) -> Array:
    """Return a sorted random sample of row numbers of limited size."""
    return np.sort(np.random.default_rng(SEED).permutation(n_rows)[:most])


def by_channel(score: Callable[[Array, int], Array]) -> Callable[[Array], Array]:
    """Make a detector of a function of (channel, length of subsequences): the mean over channels that vary."""

    def detector(values: Array) -> Array:
        length = min(subsequence_length(values), len(values) // 4)
        channels = [channel for channel in values.T if np.ptp(channel) > 0]
        if not channels:
            return np.zeros(len(values))
        return np.mean([score(np.ascontiguousarray(channel), length) for channel in channels], axis=0)

    return detector


# ---- causal ----------------------------------------------------------------------------------------------------------


def polyaforest(values: Array, **parameters: Any) -> Array:
    """Return surprises by `SeriesMPF`."""
    return -SeriesMPF(StreamingMPF(random_state=SEED), **parameters).score_then_learn(values)


def novelty(values: Array) -> Array:
    """Return how far each reading lies outside all before it, by `SeriesMPF`."""
    return SeriesMPF(StreamingMPF(random_state=SEED)).detect_then_learn(values).novelty


def krcf(values: Array) -> Array:
    """Run the Rust port of Amazon's random cut forest, which makes shingles by itself."""
    shape = {"dimensions": values.shape[1], "shingle_size": SHINGLE, "internal_shingling": True}
    forest = import_module("krcf").RandomCutForest({**shape, "random_seed": SEED})
    return score_then_learn(values.tolist(), forest.score, forest.update)


def rcf3(values: Array) -> Array:
    """Run another random cut forest in Rust, which makes shingles by itself."""
    forest = import_module("rcf3").Forest(input_dim=values.shape[1], shingle_size=SHINGLE, seed=SEED)
    return score_then_learn(values.tolist(), forest.score, forest.update)


def half_space_trees(values: Array) -> Array:
    """Run Half-Space Trees of river on shingles behind a running min-max scaling, with river's defaults."""
    rows = np.hstack([shingles(channel, SHINGLE) for channel in values.T])
    scores = nab_half_space_trees(rows, Setting("", "height 8", window=250, trees=10, seed=SEED))
    scores[: SHINGLE - 1] = np.nan
    return scores


def left_matrix_profile(values: Array) -> Array:
    """Return the distance of the window that ends at each step to its nearest neighbour before; mean over channels."""

    def left(channel: Array, _: int) -> Array:
        length = min(LEFT_WINDOW, len(channel) // 4)
        nearest = import_module("stumpy").stump(channel, length).left_I_.astype(int)
        windows = normalised(subsequences(channel, length))
        distance = np.linalg.norm(windows - windows[nearest], axis=1)
        return np.concatenate([np.full(length - 1, np.nan), np.where(nearest < 0, np.nan, distance)])

    return by_channel(left)(values)


def differences(values: Array) -> Array:
    """Return the sum over channels of absolute differences from the step before."""
    return np.abs(np.diff(values, axis=0, prepend=values[:1])).sum(axis=1)


def chance(values: Array) -> Array:
    """Return random numbers."""
    return np.random.default_rng([SEED, zlib.crc32(values.tobytes())]).random(len(values))


# ---- given the whole series ------------------------------------------------------------------------------------------


def isolation_forest(values: Array) -> Array:
    """Score single readings of all channels by an isolation forest."""
    return -IsolationForest(random_state=SEED).fit(values).score_samples(values)


@by_channel
def sub_isolation_forest(channel: Array, length: int) -> Array:
    """Score subsequences by an isolation forest."""
    windows = subsequences(channel, length)
    return centred(-IsolationForest(random_state=SEED).fit(windows).score_samples(windows), length)


@by_channel
def sub_pca(channel: Array, length: int) -> Array:
    """Return distances from principal components, each divided by its share of the variance; in units of the mean."""
    windows = scale(subsequences(channel, length))
    found = PCA(random_state=SEED).fit(windows)
    shares = np.maximum(found.explained_variance_ratio_, np.finfo(float).eps)
    scores = (cdist(windows, found.components_) / shares).sum(axis=1)
    return centred(scores / scores.mean(), length)


@by_channel
def matrix_profile(channel: Array, length: int) -> Array:
    """Return the z-normalised distance of each window to its nearest neighbour; the lowest where there is no window."""
    profile = import_module("stumpy").stump(channel, length).P_.astype(float)
    return np.pad(profile, (length // 2, (length - 1) // 2), constant_values=profile.min())


@by_channel
def polynomials(channel: Array, length: int) -> Array:
    """Compare windows, side by side, with polynomials fitted to ten times their length around them without them.

    All steps of a window get the root mean square of its deviations; the first steps, a tenth of the series or 500,
    get none. Channels are standardised.
    """
    channel, n_steps = scale(channel), len(channel)
    size = min(max(10 * length, 100), n_steps)
    scores = np.zeros(n_steps)
    for begin in range(-(-min(500, n_steps // 10) // length) * length, n_steps, length):
        inside = np.arange(begin, min(begin + length, n_steps))
        first = int(np.clip(begin - size // 2, 0, n_steps - size))
        around = np.setdiff1d(np.arange(first, first + size), inside)
        fitted = np.polynomial.Polynomial.fit(around, channel[around], POWER)
        scores[inside] = np.sqrt(np.mean((channel[inside] - fitted(inside)) ** 2))
    return scores


@by_channel
def k_means(channel: Array, length: int) -> Array:
    """Return distances of z-normalised windows to the nearest of 20 centres; a step gets the mean over its windows.

    Centres are fitted to at most 5,000 windows, drawn at random.
    """
    windows = normalised(subsequences(channel, length))
    centres = KMeans(CLUSTERS, random_state=SEED).fit(windows[some(len(windows), FITTED_WINDOWS)]).cluster_centers_
    distance = cdist(windows, centres).min(axis=1)
    n_windows = running_mean(np.pad(np.ones(len(distance)), (0, length - 1)), length)
    return running_mean(np.pad(distance, (0, length - 1)), length) / n_windows


@by_channel
def nearest_neighbours(channel: Array, length: int) -> Array:
    """Return the distance of each z-normalised window to its tenth neighbour of 2,000 windows drawn at random."""
    windows = normalised(subsequences(channel, length))
    chosen = some(len(windows), REFERENCE_WINDOWS)
    index = NearestNeighbors(n_neighbors=NEIGHBOURS + 1, algorithm="brute").fit(windows[chosen])
    distance, neighbour = index.kneighbors(windows)
    has_itself = (chosen[neighbour] == np.arange(len(windows))[:, None]).any(axis=1)
    return centred(np.where(has_itself, distance[:, NEIGHBOURS], distance[:, NEIGHBOURS - 1]), length)


class Detector(NamedTuple):
    """A detector; higher scores are more anomalous."""

    run: Callable[[Array], Array]
    is_causal: bool


OURS = "polyaforest"
NOVELTY = "polyaforest, novelty"
DETECTORS = {
    OURS: Detector(polyaforest, True),
    NOVELTY: Detector(novelty, True),
    "polyaforest, raw shingle of 10": Detector(partial(polyaforest, shingle=10), True),
    "krcf": Detector(krcf, True),
    "rcf3": Detector(rcf3, True),
    "river HalfSpaceTrees": Detector(half_space_trees, True),
    "left matrix profile": Detector(left_matrix_profile, True),
    "differences": Detector(differences, True),
    "random numbers": Detector(chance, True),
    "matrix profile": Detector(matrix_profile, False),
    "Sub-PCA": Detector(sub_pca, False),
    "Sub-KNN": Detector(nearest_neighbours, False),
    "KMeansAD": Detector(k_means, False),
    "POLY": Detector(polynomials, False),
    "Sub-IForest": Detector(sub_isolation_forest, False),
    "IForest": Detector(isolation_forest, False),
}
