"""Detectors from flat parameters, which include those of `Tree`; and samples."""

import pickle

from polyaforest import StreamingMPF, Tree
from polyaforest.forest import learn
from polyaforest.tables.categories import Codes

TREE = ("max_depth", "lifetime", "feature_weights", "prior_strength", "domain")


def made(detector, *, tree=None, n_categories=0, **parameters):
    """Return a detector with these parameters, which may include those of `Tree`.

    The last features of its rows are the codes of categories, if there are any.
    """
    own = {name: parameters.pop(name) for name in TREE if name in parameters}
    given = {} if tree is None else tree.get_params()
    made = detector(tree=Tree(**given | own) if own or given else None, **parameters)
    return made.set_params(categorical_features=Codes(n_categories)) if n_categories else made


def every_point(forest):
    """Samples that contain all points, for each tree."""
    return learn.every_point(len(forest.left))


def without_derived(detector):
    """Return a detector that has dropped what it derived from its trees."""
    detector._model = pickle.loads(pickle.dumps(detector._model))
    if isinstance(detector, StreamingMPF):
        detector._model.offset = None
    return detector


def with_trees(detector, trees, lifetimes=None):
    """Return a detector with other trees, of its own or another detector."""
    model = detector._model
    if isinstance(detector, StreamingMPF):
        model.stream.forest = trees
        model.stream.lifetimes = model.stream.lifetimes if lifetimes is None else lifetimes
    model.forest, model.lifetimes = trees, model.lifetimes if lifetimes is None else lifetimes
    return without_derived(detector)


def some_trees(trees, places):
    """Return some of the trees of a forest."""
    shared = ("domain", "n_categories")
    return type(trees)(*(part if name in shared else part[places] for name, part in trees._asdict().items()))
