"""A model as ONNX: a graph of standard operators, in double precision.

`TreeEnsemble` finds the leaves. A process needs only the values of its leaves, and the distance from the domain.
A tree with boxes costs a row its distance from each box on the path to its leaf: the graph looks up these boxes by the
number of the leaf, one step of all paths at a time.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polyaforest.export.document import Document
from polyaforest.export.sums import duration, node_values
from polyaforest.kernels.arrays import Array
from polyaforest.util.extras import extra

_OPSETS = {"": 18, "ai.onnx.ml": 5}  # the first with TreeEnsemble
_IR_VERSION = 10  # of the first runtimes with these operators
_SUM, _LEQ = 1, 0  # codes of TreeEnsemble


def as_onnx(model: Document) -> bytes:
    """Return a graph with the input `X`, (n, D), and the outputs `score` and `is_anomaly`, (n,).

    Raises
    ------
    ValueError
        If the graph cannot compute the score of the model exactly.
    """
    with extra("the export of ONNX", "onnx"):
        import onnx  # noqa: F401
    _check_expressible(model)
    graph = _Graph()
    has_boxes = model["trees"][0]["lower"] is not None
    score = _tree_score(graph, model) if has_boxes else _process_score(graph, model)
    if model["margins"] is not None:
        score = graph.op("Sub", score, _margin_cost(graph, model["margins"]))
    gaps = graph.op("ReduceSum", graph.op("Mul", "X", graph.constant(0.0)), graph.constant([1]), keepdims=0)
    graph.op("Add", score, gaps, out="score")  # a missing value makes the score missing
    graph.op("Less", "score", graph.constant(_finite(model["threshold"], -np.inf)), out="is_anomaly")
    return graph.serialised(model)


def _check_expressible(model: Document) -> None:
    """Raise ValueError for models that the graph does not compute."""
    kind, has_boxes = model["score"]["type"], model["trees"][0]["lower"] is not None
    allowed = ("margins", "typicality") if has_boxes else ("typicality", "log_mass", "mass")
    if kind not in allowed:
        raise ValueError(
            f"ONNX cannot express score_type={kind!r} of a {model['detector']}: "
            f"choose {' or '.join(map(repr, allowed))}, or export JSON"
        )
    categories = [column["name"] for column in model["columns"] if column["kind"] == "category"]
    if categories:
        raise ValueError(f"ONNX has no operator for categories such as column {categories[0]!r}: export JSON or SQL")
    if model["replaced"]:
        raise ValueError("some columns had their first value recently, or none: learn more rows before the export")


def _finite(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else float(value)


class _Graph:
    """A graph in the making."""

    def __init__(self) -> None:
        self._nodes: list[Any] = []
        self._constants: list[Any] = []

    def constant(self, values: Any) -> str:
        """Add a constant; return its name."""
        from onnx import numpy_helper

        name = f"c{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def op(self, kind: str, *inputs: str, out: str | None = None, domain: str = "", **attributes: Any) -> str:
        """Add an operator; return the name of its output."""
        from onnx import helper

        out = out or f"v{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, inputs, [out], domain=domain, **attributes))
        return out

    def serialised(self, model: Document) -> bytes:
        """Return the checked graph as bytes."""
        from onnx import TensorProto, checker, helper

        rows = helper.make_tensor_value_info("X", TensorProto.DOUBLE, ["n", len(model["columns"])])
        results = [
            helper.make_tensor_value_info("score", TensorProto.DOUBLE, ["n"]),
            helper.make_tensor_value_info("is_anomaly", TensorProto.BOOL, ["n"]),
        ]
        graph = helper.make_graph(self._nodes, model["detector"], [rows], results, self._constants)
        opsets = [helper.make_opsetid(domain, version) for domain, version in _OPSETS.items()]
        whole = helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION, producer_name="polyaforest")
        helper.set_model_props(whole, {"columns": "\n".join(column["name"] for column in model["columns"])})
        checker.check_model(whole)
        return bytes(whole.SerializeToString())


# ---- trees -----------------------------------------------------------------------------------------------------------


def _ensemble(graph: _Graph, model: Document, weights: list[Array], *, is_summed: bool) -> str:
    """Add the trees, with a weight per leaf in the order of the nodes: their sum, (n, 1), or all of them, (n, T)."""
    from onnx import numpy_helper

    own: dict[str, list[Any]] = {name: [] for name in _NODES}
    roots, leaves, targets = [], list[float](), list[int]()
    for t, (tree, of_leaves) in enumerate(zip(model["trees"], weights, strict=True)):
        is_leaf = tree["left"] < 0
        number = np.where(is_leaf, np.cumsum(is_leaf) - 1 + len(leaves), np.cumsum(~is_leaf) - 1 + len(own["splits"]))
        roots.append(len(own["splits"]))
        for j in np.flatnonzero(~is_leaf).tolist() or [
            0
        ]:  # a tree of one leaf gets a node with this leaf on both sides
            children = (j, j) if is_leaf[j] else (tree["left"][j], tree["right"][j])
            feature, cut = (0, 0.0) if is_leaf[j] else (tree["feature"][j], tree["cut"][j])
            for side, child in zip(("true", "false"), children, strict=True):
                own[f"{side}nodeids"].append(int(number[child]))
                own[f"{side}leafs"].append(int(is_leaf[child]))
            own["featureids"].append(int(feature))
            own["splits"].append(float(cut))
        leaves += of_leaves.tolist()
        targets += [0 if is_summed else t] * len(of_leaves)
    splits = numpy_helper.from_array(np.array(own.pop("splits")))
    modes = numpy_helper.from_array(np.full(len(own["featureids"]), _LEQ, np.uint8))
    attributes: dict[str, Any] = {f"nodes_{name}": values for name, values in own.items()}
    attributes["leaf_weights"] = numpy_helper.from_array(np.array(leaves))
    shape = {"n_targets": 1 if is_summed else len(roots), "leaf_targetids": targets, "tree_roots": roots}
    attributes |= {"nodes_splits": splits, "nodes_modes": modes, "aggregate_function": _SUM, **shape}
    return graph.op("TreeEnsemble", "X", domain="ai.onnx.ml", **attributes)


_NODES = ("truenodeids", "trueleafs", "falsenodeids", "falseleafs", "featureids", "splits")


def _path_totals(tree: Document, values: Array) -> Array:
    """Return for each node the sum of the values on its path; nodes come after their parents."""
    totals = values.copy()
    for j in np.flatnonzero(tree["left"] >= 0).tolist():
        for side in ("left", "right"):
            totals[tree[side][j]] += totals[j]
    return totals


def _excess(graph: _Graph, rows: str, lower: str, upper: str) -> str:
    """Add how far values lie outside [lower, upper]."""
    below, above = graph.op("Sub", lower, rows), graph.op("Sub", rows, upper)
    return graph.op("Max", below, above, graph.constant(0.0))


# ---- processes -------------------------------------------------------------------------------------------------------


def _process_score(graph: _Graph, model: Document) -> str:
    """Add the score of a `BatchMPF`."""
    trees, kind, lifetimes = model["trees"], model["score"]["type"], model["score"]["lifetimes"]
    n, world = len(trees), trees[0]["world"]
    totals = [_path_totals(tree, node_values(tree, lifetimes)[0])[tree["left"] < 0] for tree in trees]
    is_mass = kind == "mass"
    inside = _ensemble(graph, model, [np.exp(own) for own in totals] if is_mass else totals, is_summed=True)
    inside = graph.op("ReduceSum", inside, graph.constant([1]), keepdims=0)
    excess = _excess(graph, "X", graph.constant(world[0]), graph.constant(world[1]))
    if lifetimes is not None:
        costs = sum(duration(tree, lifetimes) * tree["weights"] for tree in trees)
        inside = graph.op("Sub", inside, graph.op("MatMul", excess, graph.constant(costs)))
        return graph.op("Div", inside, graph.constant(float(n * len(lifetimes))))
    reach = graph.op("MatMul", excess, graph.constant(np.stack([tree["weights"] / tree["size"] for tree in trees], 1)))
    fading = graph.op("Log", graph.op("Add", reach, graph.constant(1.0)))
    outside = graph.op("Sub", graph.constant(np.array([float(tree["log_outside"]) for tree in trees])), fading)
    outside = graph.op("Exp", outside) if is_mass else outside
    outside = graph.op("ReduceSum", outside, graph.constant([1]), keepdims=0)
    farthest = graph.op("ReduceMax", excess, graph.constant([1]), keepdims=0)
    is_outside = graph.op("Greater", farthest, graph.constant(0.0))
    return graph.op("Div", graph.op("Where", is_outside, outside, inside), graph.constant(float(n)))


# ---- trees with boxes ------------------------------------------------------------------------------------------------


def _tree_score(graph: _Graph, model: Document) -> str:
    """Add the score of cells of a `StreamingMPF`."""
    values, boxes, paths = _paths(model)
    numbers, first = [], 0
    for tree in model["trees"]:
        n_leaves = int((tree["left"] < 0).sum())
        numbers.append(np.arange(first, first + n_leaves, dtype=float))
        first += n_leaves
    leaf = graph.op("Cast", _ensemble(graph, model, numbers, is_summed=False), to=_int64())
    total = graph.op("ReduceSum", graph.op("Gather", graph.constant(values), leaf), graph.constant([1]), keepdims=0)
    rows = graph.op("Unsqueeze", "X", graph.constant([1]))  # (n, 1, D)
    lower, upper, costs = (graph.constant(part) for part in boxes)
    for step in paths.T:
        box = graph.op("Gather", graph.constant(np.ascontiguousarray(step)), leaf)  # (n, T)
        sides = [graph.op("Gather", part, box) for part in (lower, upper, costs)]  # (n, T, D)
        cost = graph.op("Mul", _excess(graph, rows, *sides[:2]), sides[2])
        total = graph.op("Sub", total, graph.op("ReduceSum", cost, graph.constant([1, 2]), keepdims=0))
    n_parts = len(model["trees"]) * len(model["score"]["lifetimes"])
    return graph.op("Div", total, graph.constant(float(n_parts)))


def _paths(model: Document) -> tuple[Array, tuple[Array, Array, Array], Array]:
    """Return of each leaf the total value; all boxes (lower, upper, costs); and the boxes on each leaf's path.

    Paths are padded with box 0, which costs nothing.
    """
    n_features = len(model["columns"])
    lower, upper, costs = ([np.zeros((1, n_features))] for _ in range(3))
    totals, paths, n_boxes = list[float](), list[list[int]](), 1
    for tree in model["trees"]:
        values, lived = node_values(tree, model["score"]["lifetimes"])
        for name, parts in (("lower", lower), ("upper", upper)):
            parts.append(np.stack([own[tree[name][:, k]] for k, own in enumerate(model["corners"])], axis=1))
        costs.append(lived[:, None] * tree["weights"])
        above = [list[int]() for _ in values]
        for j, (left, right) in enumerate(zip(tree["left"].tolist(), tree["right"].tolist(), strict=True)):
            own = above[j] + ([n_boxes + j] if lived[j] > 0 else [])
            if left < 0:
                paths.append(own)
            else:
                above[left] = above[right] = own
        totals += _path_totals(tree, values)[tree["left"] < 0].tolist()
        n_boxes += len(values)
    longest = max(map(len, paths))
    padded = np.array([path + [0] * (longest - len(path)) for path in paths], np.int64).reshape(len(paths), longest)
    return np.array(totals), (np.concatenate(lower), np.concatenate(upper), np.concatenate(costs)), padded


def _margin_cost(graph: _Graph, margins: Document) -> str:
    """Add the cost of values beyond margins."""
    beyond = [
        graph.op("Cast", graph.op(kind, "X", graph.constant(margins[side])), to=_double())
        for kind, side in (("Less", "low"), ("Greater", "high"))
    ]
    n_beyond = graph.op("ReduceSum", graph.op("Add", *beyond), graph.constant([1]), keepdims=0)
    return graph.op("Mul", n_beyond, graph.constant(float(np.log(2) * margins["bits"])))


def _int64() -> int:
    from onnx import TensorProto

    return int(TensorProto.INT64)


def _double() -> int:
    from onnx import TensorProto

    return int(TensorProto.DOUBLE)
