"""Detectors for tests, by flat parameters: those of single trees are put together as their `Tree`; and samples."""

from polyaforest import Tree
from polyaforest.forest import learn

TREE = ("max_depth", "lifetime", "feature_weights", "prior_strength", "domain")


def made(detector, *, tree=None, **parameters):
    """The detector of a class with these parameters, which may include those of its trees."""
    own = {name: parameters.pop(name) for name in TREE if name in parameters}
    given = {} if tree is None else tree.get_params()
    return detector(tree=Tree(**given | own) if own or given else None, **parameters)


def every_point(forest):
    """Samples for trees that all take every point."""
    return learn.every_point(len(forest.left))
