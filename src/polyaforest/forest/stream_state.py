"""The state of a stream in files."""

from __future__ import annotations

import numpy as np

from polyaforest.forest import compact
from polyaforest.forest.calibration import RunningCalibration
from polyaforest.forest.columns import LateColumns
from polyaforest.forest.integrity import Layout, check_layout
from polyaforest.forest.json_parameters import decode, encode
from polyaforest.forest.margins import Margins
from polyaforest.forest.pairs import Bins, Pairs
from polyaforest.forest.penalties import Penalties
from polyaforest.forest.point_store import PointStore
from polyaforest.forest.retention import Window
from polyaforest.forest.score_types import Score
from polyaforest.forest.spec import Plan, unmeasured
from polyaforest.forest.stream import MOST_BEYOND, WARM_UP, Rules, Stream
from polyaforest.forest.stream_checks import check_stream
from polyaforest.kernels.arrays import NONE, Array, Forest, Points, Prior
from polyaforest.kernels.sampling import NO_CUTOFF, TreeSamples
from polyaforest.storage.modelfile import Arrays, Header
from polyaforest.storage.state import pack_keys, packed, unpack_keys, unpacked
from polyaforest.tables.validation import read_weights
from polyaforest.util import schema

_STATE = schema.record(
    {
        "policy": schema.policy,
        "score": schema.one_of(*Score),
        "max_depth": schema.either(schema.nothing, schema.whole(0, None)),
        "n_seen": schema.whole(),
        "next_birth": schema.whole(0, WARM_UP),
        "has_fixed_weights": schema.flag,
        "n_judges": schema.whole(1, None),
        "is_seeded": schema.flag,
        "origin": schema.whole(),
        "n_beyond": schema.whole(1, MOST_BEYOND - 1),
        "max_features": schema.whole(1, None),
    },
    optional=["origin", "n_beyond", "max_features"],  # absent if they are 0, or if trees cut all features
)
_LAYOUT: Layout = {  # T trees, D features, P slots for points, L times of the score, J scores; W weights, K bytes
    "lifetime": (np.float64, ""),
    "grid": (np.float64, "L"),
    "rng": (np.uint64, "4"),
    "clock": (np.float64, ""),
    "floor": (np.float64, ""),
    "arrivals": (np.int64, "P"),
    "ranks": (np.float64, "P"),
    "times": (np.float64, "P"),
    "keys": (np.uint8, "K"),
    "fixed": (np.float64, "W"),
    "sizes": (np.int64, "T"),
    "seeds": (np.uint64, "T"),
    "judges": (np.int64, "J"),
    "judging": (np.float64, "J"),
    "damping": (np.float64, "D"),
    "margins": (np.float64, "2D"),
    "bits_beyond": (np.float64, ""),
    "pairs_columns": (np.int64, "B"),  # absent without rare pairs, as are the next ones
    "pairs_sizes": (np.int64, "B"),
    "pairs_values": (np.float64, "V"),
    "pairs_cells": (np.int64, "C"),
    "pairs_steps": (np.float64, "C"),
    "pairs_own_steps": (np.float64, "C"),
    "pairs_bits_per_step": (np.float64, ""),
    "since": (np.int64, "D"),  # absent if all columns are known
}


def state_of(stream: Stream, *, is_compact: bool = False) -> tuple[Header, Arrays]:
    """Return the state of the stream without its forest; a compact state includes the forest."""
    rules, plan, store = stream.rules, stream.rules.plan, stream.store
    header = {
        "policy": encode(rules.policy),
        "score": rules.score,
        "max_depth": None if plan.max_depth is None else int(plan.max_depth),
        "n_seen": store.n_seen,
        "next_birth": stream.next_rebuild,
        "has_fixed_weights": plan.weighting.fixed is not None,
        "n_judges": rules.n_calibration,
        "is_seeded": stream.calibration.is_seeded,
    }
    if plan.max_features is not None:
        header["max_features"] = int(plan.max_features)
    if stream.origin:
        header["origin"] = stream.origin
    if stream.n_beyond:
        header["n_beyond"] = stream.n_beyond
    arrays = {
        "lifetime": np.array(plan.lifetime),
        "grid": rules.grid,
        "rng": stream.rng,
        "clock": np.array(store.clock),
        "floor": np.array(store.floor),
        "fixed": np.empty(0) if plan.weighting.fixed is None else plan.weighting.fixed,
        "judging": stream.calibration.scores,
    }
    if rules.damping is not None:
        arrays["damping"] = rules.damping
    if not stream.columns.are_known:
        arrays["since"] = stream.columns.since
    margins, pairs = stream.penalties
    if margins is not None:
        arrays |= {"margins": margins.limit, "bits_beyond": np.array(margins.bits)}
    if pairs is not None:
        arrays |= _state_of_pairs(pairs)
    if is_compact:
        held = compact.shrunk(stream.forest, stream.points, store, stream._samples, stream.calibration.arrivals)
    else:
        held = packed("points", stream.points)
        arrays |= {
            "arrivals": store.arrivals,
            "ranks": store.ranks,
            "times": store.times,
            "keys": pack_keys(store.held_keys),
            "sizes": rules.sizes,
            "seeds": stream.seeds,
            "judges": stream.calibration.arrivals,
        }
    return header, {**held, **{f"stream/{name}": part for name, part in arrays.items()}}


def stream_of_state(
    header: Header,
    arrays: Arrays,
    forest: Forest | None,
    prior: Prior,
    lifetimes: Array,
    n_categories: int = 0,
) -> Stream:
    """Restore a stream from a state; `forest` is None for a compact state, which includes it."""
    part = {name.removeprefix("stream/"): array for name, array in arrays.items() if name.startswith("stream/")}
    _STATE(header, "stream")
    of_trees = forest or compact.Trees.of_state(arrays)
    n_trees, n_features = of_trees.weights.shape
    n_fixed = n_features if header["has_fixed_weights"] else 0
    check_layout(part, _LAYOUT, {"T": n_trees, "D": n_features, "L": len(lifetimes), "W": n_fixed})
    plan = Plan(
        n_trees,
        float(part["lifetime"]),
        header["max_depth"],
        unmeasured(n_features, read_weights(part["fixed"], n_features) if n_fixed else None),
        of_trees.domain,
        np.random.SeedSequence(),  # no longer needed: the forest has its generators
        None,
        n_categories,
        header.get("max_features"),
    )
    policy, n_seen = decode(header["policy"]), header["n_seen"]
    if forest is None:
        held = compact.expanded(arrays, plan, policy or Window(WARM_UP), n_seen)
    else:
        held = _contents_of_state(arrays, part, forest)
    stream = Stream.__new__(Stream)
    n_calibration = header["n_judges"]
    score = Score(header["score"])
    damping = part.get("damping")
    if damping is not None and not ((damping >= 1) & (damping < np.inf)).all():
        raise ValueError("array damping: factors must be finite and at least 1")
    stream.rules = Rules(plan, policy, prior, part["grid"], score, held.samples.sizes, n_calibration, damping)
    stream.forest, stream.points, stream.seeds = held.forest, held.points, held.samples.seeds
    stream.lifetimes, stream.rng, stream.next_rebuild = lifetimes, part["rng"], header["next_birth"]
    stream.origin, stream.columns = header.get("origin", 0), LateColumns(of_trees.domain)
    stream.columns.since = part.get("since", stream.columns.since)
    stream.is_dirty = stream.is_frozen = False
    stream.calibration = RunningCalibration.of_state(
        n_calibration, held.judges, part["judging"], is_seeded=header["is_seeded"]
    )
    stream.store = PointStore(policy or Window(WARM_UP))
    stream.store.n_seen = n_seen
    stream.store.clock, stream.store.floor = float(part["clock"]), float(part["floor"])
    stream.store.restore(held.samples.numbers, held.ranks, held.times, held.keys)
    stream.numbers = held.samples.numbers.copy()
    margins = Margins.of_state(part["bits_beyond"], part["margins"]) if "margins" in part else None
    stream.penalties = Penalties(margins, _pairs_of_state(part, n_features, n_features - n_categories))
    stream.n_beyond = header.get("n_beyond", 0)
    check_stream(stream, is_derived=forest is None)
    stream.cutoffs = stream.current_cutoffs() if forest is not None else held.samples.cutoffs
    return stream


def _state_of_pairs(pairs: Pairs) -> Arrays:
    bins = pairs.bins
    return {
        "pairs_columns": bins.columns,
        "pairs_sizes": bins.sizes,
        "pairs_values": bins.values,
        "pairs_cells": pairs.cells,
        "pairs_steps": pairs.steps,
        "pairs_own_steps": pairs.own_steps,
        "pairs_bits_per_step": np.array(pairs.bits_per_step),
    }


def _pairs_of_state(part: Arrays, n_features: int, n_numbers: int) -> Pairs | None:
    """Read the rare pairs of a state; raise ValueError if they are invalid."""
    names = [name for name in _LAYOUT if name.startswith("pairs_")]
    missing = [name for name in names if name not in part]
    if len(missing) == len(names):
        return None
    if missing:
        raise ValueError(f"array {missing[0]}: is missing")
    columns, sizes, values, *costs = (part[name] for name in names)
    return Pairs.of_state(Bins.of_state(columns, values, sizes, n_numbers, n_features), *costs)


def frozen_stream(rules: Rules, forest: Forest, lifetimes: Array, calibration: Array) -> Stream:
    """Return a stream that only scores: trees of earlier formats, saved without their points."""
    stream = Stream(rules)
    stream.is_frozen, stream.forest, stream.lifetimes, stream.next_rebuild = True, forest, lifetimes, 0
    stream._forget_points()
    if len(calibration):
        stream.calibration.seed(calibration, np.arange(len(calibration)))
    check_stream(stream)
    return stream


def _contents_of_state(arrays: Arrays, part: Arrays, forest: Forest) -> compact.StreamContents:
    """Read the contents of a stream from a state that is not compact; cutoffs are derived later."""
    n_trees, numbers = len(forest.left), part["arrivals"]
    samples = TreeSamples(part["sizes"], part["seeds"], np.full(n_trees, NO_CUTOFF), numbers, numbers != NONE)
    points, keys = unpacked("points", arrays, Points), unpack_keys(part["keys"])
    return compact.StreamContents(forest, points, samples, part["ranks"], part["times"], keys, part["judges"])
