"""Detectors for tests, by flat parameters: those of single trees are put together as their `Tree`; and samples."""

from polyaforest import Tree
from polyaforest.core.categories import Codes
from polyaforest.forest import learn

TREE = ("max_depth", "lifetime", "feature_weights", "prior_strength", "domain")


def made(detector, *, tree=None, n_categories=0, **parameters):
    """The detector of a class with these parameters, which may include those of its trees.

    The last features of its rows are the codes of categories, if there are any.
    """
    own = {name: parameters.pop(name) for name in TREE if name in parameters}
    given = {} if tree is None else tree.get_params()
    made = detector(tree=Tree(**given | own) if own or given else None, **parameters)
    return made.set_params(categorical_features=Codes(n_categories)) if n_categories else made


def every_point(forest):
    """Samples for trees that all take every point."""
    return learn.every_point(len(forest.left))
