"""Laws of comparisons: rates of false alarms, growth of the evidence, coverage of intervals.

Each case may fail by chance about once in a million runs.
"""

import numpy as np
import pandas as pd
import pytest
from effort import FULL, PROFILE, mostly_slow
from scipy.integrate import trapezoid
from scipy.signal import lfilter
from scipy.stats import binom, norm

from polyaforest.drift import compare

pytestmark = pytest.mark.statistical

CHANCE = 1e-6
N_CHANGES = 10 if PROFILE == FULL else 5  # how often a change is sought
QUICK = {"n_estimators": 8, "n_permutations": 19, "max_depth": 6, "max_regions": 0}


def smooth(rng, n, d):
    return rng.standard_normal((n, d))


def tied(rng, n, d):
    return rng.integers(0, 3, (n, d)).astype(float)


def gappy(rng, n, d):
    rows = np.exp(3 * rng.standard_normal((n, d)))
    rows[rng.random((n, d)) < 0.1] = np.nan
    return rows


def mixed(rng, n, d):
    """Numbers and categories, few and many, common and rare, some missing."""
    columns = {"u": rng.standard_normal(n)}
    for k in range(d - 1):
        n_different = (2, 12, max(n // 3, 3))[k % 3]
        shares = 1 / np.arange(1, n_different + 1)
        codes = rng.choice(n_different, n, p=shares / shares.sum())
        gaps = rng.random(n) < 0.05
        columns[f"c{k}"] = pd.Categorical(np.where(gaps, None, np.char.add("c", codes.astype(str)).astype(object)))
    return pd.DataFrame(columns)


def series(rng, n, d, memory=10):
    """Rows that resemble their neighbours."""
    start = lfilter([1.0], [1.0, -np.exp(-1 / memory)], rng.standard_normal((n + 20 * memory, d)), axis=0)
    return start[20 * memory :]


def p_values(draw, n, d, trials, seed, **options):
    found = []
    for trial in range(trials):
        rng = np.random.default_rng([seed, trial])
        found.append(compare(draw(rng, n, d), draw(rng, n, d), random_state=trial, **QUICK, **options).p_value)
    return np.array(found)


def refute_too_many(p_values, level):
    """Fail if significantly more p-values than a share of `level` are at most `level`."""
    most = binom.ppf(1 - CHANCE, len(p_values), level)
    assert (p_values <= level).sum() <= most


@pytest.mark.parametrize(
    ("draw", "n", "d"),
    mostly_slow(
        [
            (smooth, 50, 1),
            (tied, 60, 2),
            (gappy, 80, 3),
            (mixed, 80, 4),
            (smooth, 100, 50),
            (smooth, 1000, 5),
            (gappy, 5000, 10),
            (mixed, 50, 2),
            (mixed, 200, 25),
            (mixed, 5000, 7),
        ],
        0,
        1,
        2,
        3,
    ),
)
def test_p_values_are_uniform_under_one_distribution(draw, n, d, any_seed):
    found = p_values(draw, n, d, 120, any_seed)
    for level in (0.05, 0.1, 0.25, 0.5):
        refute_too_many(found, level)
    if draw is not tied:  # without ties, p-values are no larger than uniform ones either
        refute_too_many(1 - found, 0.5 - 1e-9)


@pytest.mark.slow
def test_p_values_are_uniform_for_many_rows(any_seed):
    found = p_values(smooth, 50_000, 3, 30, any_seed)
    refute_too_many(found, 0.1)
    refute_too_many(1 - found, 0.5 - 1e-9)


def test_blocks_keep_the_false_alarm_rate_of_dependent_rows(any_seed):
    in_blocks = p_values(series, 1000, 1, 60, any_seed, block_size=100)
    refute_too_many(in_blocks, 0.1)
    alone = p_values(series, 1000, 1, 20, any_seed)
    assert (alone <= 0.1).mean() > 0.3  # the blocks are needed


@pytest.mark.parametrize(
    ("draw", "d"), mostly_slow([(smooth, 2), (mixed, 3), (smooth, 1), (smooth, 20), (mixed, 10)], 0, 1)
)
def test_evidence_for_one_distribution_grows_with_the_rows(draw, d, any_seed):
    means = []
    for n in (50, 500, 5000):
        logs = []
        for trial in range(20):
            rng = np.random.default_rng([any_seed, n, trial])
            options = {**QUICK, "n_permutations": 1}
            found = compare(draw(rng, n, d), draw(rng, n, d), random_state=trial, **options)
            logs.append(found.log_bayes_factor)
        means.append(np.mean(logs))
        assert binom.sf((np.array(logs) >= np.log(10)).sum() - 1, 20, 0.1) > CHANCE  # above 10 at most once in 10
    assert 0 > means[0] > means[1] > means[2]


def test_evidence_for_two_distributions_grows_with_the_rows(any_seed):
    logs = []
    for n in (200, 2000):
        rng = np.random.default_rng([any_seed, n])
        logs.append(compare(smooth(rng, n, 2), smooth(rng, n, 2) + 0.7, random_state=0, **QUICK).log_bayes_factor)
    assert logs[1] > 5 * logs[0] > 0


@pytest.mark.parametrize("shift", mostly_slow([0.5, 0.0, 0.1, 2.0]))
def test_bounds_rarely_exceed_the_true_distance(shift, any_seed):
    truth, trials = 2 * norm.cdf(shift / 2) - 1, 60
    found = []
    for trial in range(trials):
        rng = np.random.default_rng([any_seed, trial])
        a, b = smooth(rng, 400, 2), smooth(rng, 400, 2) + np.array([shift, 0])
        found.append(compare(a, b, random_state=trial, **QUICK))
    n_above = sum(one.total_variation.low > truth for one in found)
    assert binom.sf(n_above - 1, trials, 0.05) > CHANCE
    divergence = jensen_shannon_of(shift)
    n_above = sum(one.jensen_shannon.low > divergence for one in found)
    assert binom.sf(n_above - 1, trials, 0.05) > CHANCE
    if shift >= 0.5:  # the bound is tight
        assert np.mean([one.total_variation.value for one in found]) > 0.6 * truth


def jensen_shannon_of(shift):
    x = np.linspace(-10, 10 + shift, 20_001)
    p, q = norm.pdf(x), norm.pdf(x - shift)
    middle = (p + q) / 2
    terms = [np.where(one > 0, one * np.log2(np.maximum(one, 1e-300) / middle), 0) for one in (p, q)]
    return trapezoid(sum(terms) / 2, x)


def test_intervals_of_regions_cover_the_true_shares(any_seed):
    n_right = n_all = 0
    far = [np.random.default_rng([any_seed, 0, sample]).standard_normal((100_000, 2)) for sample in range(2)]
    far[1][:, 0] += 0.8
    for trial in range(25):
        rng = np.random.default_rng([any_seed, 1, trial])
        a, b = smooth(rng, 300, 2), smooth(rng, 300, 2) + np.array([0.8, 0])
        for region in compare(a, b, random_state=trial, **{**QUICK, "max_regions": 3}, alpha=0.1).regions:
            for share, rows in zip((region.before, region.after), far, strict=True):
                n_right += share.low <= region.holds(rows).mean() <= share.high
                n_all += 1
    assert n_all > 20
    assert binom.sf(n_all - n_right - 1, n_all, 0.08) > CHANCE  # Jeffreys' intervals of 95 % may miss a little more


def test_compare_locates_a_corner_of_two_per_cent():
    n_found = 0
    for trial in range(N_CHANGES):
        rng = np.random.default_rng(trial)
        a, b = smooth(rng, 4000, 5), smooth(rng, 4000, 5)
        moved = rng.random(4000) < 0.02
        b[moved, 1] = 2.5 + 0.3 * rng.standard_normal(moved.sum())
        b[moved, 3] = -2.5 + 0.3 * rng.standard_normal(moved.sum())
        found = compare(a, b, random_state=trial, n_estimators=60, n_permutations=99)
        regions = [{one.name for one in region.conditions} for region in found.regions]
        n_found += found.is_changed and {"x1", "x3"} in regions[:1]
    assert n_found >= 0.7 * N_CHANGES


def requests(rng, n):
    """Three features, of which two are categories: five countries, and forty merchants."""
    countries = rng.choice(["DE", "FR", "US", "IT", "XK"], n, p=[0.5, 0.298, 0.1, 0.1, 0.002])
    merchants = np.char.add("m", rng.integers(0, 40, n).astype(str))
    return pd.DataFrame({"country": countries, "latency": rng.gamma(8.0, 4.0, n), "merchant": merchants})


COMPARED = {"n_estimators": 60, "n_permutations": 99, "categorical_features": ["country", "merchant"]}


def test_compare_names_a_category_that_became_more_common():
    n_found = 0
    for trial in range(N_CHANGES):
        rng = np.random.default_rng(trial)
        before, after = requests(rng, 1500), requests(rng, 1500)
        after.loc[rng.random(1500) < 0.03, "country"] = "XK"
        found = compare(before, after, random_state=trial, **COMPARED)
        places = [region.place for region in found.regions]
        n_found += found.is_changed and places[:1] == ["country = XK"]
    assert n_found >= 0.9 * N_CHANGES


def test_compare_names_one_of_many_categories():
    n_found = 0
    for trial in range(10):
        rng = np.random.default_rng(trial)
        before, after = requests(rng, 2000), requests(rng, 2000)
        after.loc[rng.random(2000) < 0.05, "merchant"] = "m7"
        found = compare(before, after, random_state=trial, **COMPARED)
        places = [region.place for region in found.regions]
        n_found += found.is_changed and places[:1] == ["merchant = m7"]
    assert n_found >= 8


def test_compare_locates_a_number_that_changed_for_one_category():
    n_found = 0
    for trial in range(N_CHANGES):
        rng = np.random.default_rng(trial)
        before, after = requests(rng, 3000), requests(rng, 3000)
        slower = (after["country"] == "US").to_numpy()
        after.loc[slower, "latency"] += 15.0
        found = compare(before, after, random_state=trial, **COMPARED)
        regions = [{one.name: one.categories for one in region.conditions} for region in found.regions]
        n_found += found.is_changed and regions[:1] == [{"country": ("US",), "latency": None}]
    assert n_found >= 0.8 * N_CHANGES
