"""Explicit SIMD: operations on four floats at once.

The compiler may not reorder a sum of floats, so it would add one number after another. Here a sum runs in four lanes,
number k in lane k mod 4, and the lanes are added at the end, in the same order on any machine. In plain Python these
functions work on arrays of four; compiled code uses vector instructions.
"""

import inspect
import operator

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import lower_builtin, models, register_model, type_callable

LANES = 4

_INDEX, _FLAG, _DOUBLE = ir.IntType(32), ir.IntType(1), ir.DoubleType()
_FLAGS, _DOUBLES = ir.VectorType(_FLAG, LANES), ir.VectorType(_DOUBLE, LANES)
_PLACES = np.arange(LANES)


def within(n_left):
    """Return the live lanes of a row with `n_left` numbers left."""
    return n_left > _PLACES


def spread(value):
    """Broadcast a number to all lanes."""
    return np.full(LANES, value)


def ascending(first):
    """Return `first`, `first + 1` and so on."""
    return first + _PLACES


def load(vector, k, live, filler):
    """Load the numbers from `k` on; `filler` in the lanes that are not `live`."""
    lanes, n = np.full(LANES, filler), count_of(live)
    lanes[:n] = vector[k : k + n]
    return lanes


def load_row(matrix, j, k, live, filler):
    """Load from row `j`, as `load` does."""
    return load(matrix[j], k, live, filler)


def store(vector, k, live, lanes):
    """Write the `live` lanes from `k` on."""
    n = count_of(live)
    vector[k : k + n] = lanes[:n]


def larger(a, b):
    """Return the larger number in each lane."""
    return np.where(a > b, a, b)


def smaller(a, b):
    """Return the smaller number in each lane."""
    return np.where(a < b, a, b)


def pick(flags, a, b):
    """Return `a` in the lanes that are flagged, else `b`."""
    return np.where(flags, a, b)


def count_of(flags):
    """Count the lanes that are flagged."""
    return np.count_nonzero(flags)


def count_bits(word):
    """Count the ones of an integer that is not negative."""
    return int(word).bit_count()


def sum_of(lanes):
    """Return the sum of all lanes."""
    return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3])


def product_of(lanes):
    """Return the product of all lanes."""
    return (lanes[0] * lanes[2]) * (lanes[1] * lanes[3])


# ---- compiled code -------------------------------------------------------------------------------------------------


class Lanes(types.Type):
    """Four floats."""


class Flags(types.Type):
    """Four truth values."""


_LANES, _TRUTHS = Lanes("Lanes"), Flags("Flags")


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, _DOUBLES)


@register_model(Flags)
class _FlagsModel(models.PrimitiveModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, _FLAGS)


def _compiled_by(function, result, *kinds):
    """Compile calls of `function` with arguments of these `kinds` by the decorated function."""

    def typer(*arguments):
        is_meant = len(arguments) == len(kinds) and all(map(isinstance, arguments, kinds))
        is_dense = getattr(arguments[0], "layout", "C") == "C"  # rows are contiguous
        return result if is_meant and is_dense else None

    typer.pysig = inspect.signature(function)

    def decorate(build):
        type_callable(function)(lambda _: typer)
        lower_builtin(function, *kinds)(build)
        return build

    return decorate


def _same(builder, value):
    one = builder.insert_element(ir.Constant(ir.VectorType(value.type, LANES), ir.Undefined), value, _INDEX(0))
    return builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(_INDEX, LANES), [0] * LANES))


@_compiled_by(spread, _LANES, types.Float)
def _spread(context, builder, signature, arguments):
    return _same(builder, arguments[0])


@_compiled_by(ascending, _LANES, types.Float)
def _ascending(context, builder, signature, arguments):
    return builder.fadd(_same(builder, arguments[0]), ir.Constant(_DOUBLES, [float(place) for place in range(LANES)]))


@_compiled_by(within, _TRUTHS, types.Integer)
def _within(context, builder, signature, arguments):
    n_left = context.cast(builder, arguments[0], signature.args[0], types.intp)
    places = ir.Constant(ir.VectorType(n_left.type, LANES), list(range(LANES)))
    return builder.icmp_signed(">", _same(builder, n_left), places)


def _address(context, builder, signature, arguments):
    """Return the address of an element of an array as a pointer to lanes."""
    array = context.make_array(signature.args[0])(context, builder, arguments[0])
    places = range(1, 1 + signature.args[0].ndim)
    where = [context.cast(builder, arguments[p], signature.args[p], types.uintp) for p in places]
    first = cgutils.get_item_pointer(context, builder, signature.args[0], array, where)
    return builder.bitcast(first, _DOUBLES.as_pointer())


_ALIGNMENT = _INDEX(8)  # bytes: that of a single number


@_compiled_by(load, _LANES, types.Array, types.Integer, Flags, types.Float)
@_compiled_by(load_row, _LANES, types.Array, types.Integer, types.Integer, Flags, types.Float)
def _load(context, builder, signature, arguments):
    address, live, filler = _address(context, builder, signature, arguments), arguments[-2], arguments[-1]
    kind = ir.FunctionType(_DOUBLES, [address.type, _INDEX, _FLAGS, _DOUBLES])
    masked = cgutils.get_or_insert_function(builder.module, kind, "llvm.masked.load.v4f64.p0v4f64")
    return builder.call(masked, [address, _ALIGNMENT, live, _same(builder, filler)])


@_compiled_by(store, types.void, types.Array, types.Integer, Flags, Lanes)
def _store(context, builder, signature, arguments):
    address, live, lanes = _address(context, builder, signature, arguments), arguments[-2], arguments[-1]
    kind = ir.FunctionType(ir.VoidType(), [_DOUBLES, address.type, _INDEX, _FLAGS])
    masked = cgutils.get_or_insert_function(builder.module, kind, "llvm.masked.store.v4f64.p0v4f64")
    builder.call(masked, [lanes, address, _ALIGNMENT, live])
    return context.get_dummy_value()


@_compiled_by(larger, _LANES, Lanes, Lanes)
def _larger(context, builder, signature, arguments):
    return builder.select(builder.fcmp_ordered(">", *arguments), *arguments)


@_compiled_by(smaller, _LANES, Lanes, Lanes)
def _smaller(context, builder, signature, arguments):
    return builder.select(builder.fcmp_ordered("<", *arguments), *arguments)


@_compiled_by(pick, _LANES, Flags, Lanes, Lanes)
def _pick(context, builder, signature, arguments):
    return builder.select(*arguments)


@_compiled_by(count_of, types.int64, Flags)
def _count_of(context, builder, signature, arguments):
    bits = builder.zext(builder.bitcast(arguments[0], ir.IntType(LANES)), ir.IntType(64))
    return builder.ctpop(bits)


@_compiled_by(count_bits, types.int64, types.Integer)
def _count_bits(context, builder, signature, arguments):
    return builder.ctpop(context.cast(builder, arguments[0], signature.args[0], types.int64))


def _folded(fold):
    """Return the code that folds all lanes by an operation on two numbers."""

    def build(context, builder, signature, arguments):
        a, b, c, d = (builder.extract_element(arguments[0], _INDEX(lane)) for lane in range(LANES))
        combine = getattr(builder, fold)
        return combine(combine(a, c), combine(b, d))

    return build


_compiled_by(sum_of, types.float64, Lanes)(_folded("fadd"))
_compiled_by(product_of, types.float64, Lanes)(_folded("fmul"))


def _define_operators():
    """Define the arithmetic and comparison operators of lanes in compiled code."""
    for name, instruction in {"add": "fadd", "sub": "fsub", "mul": "fmul", "truediv": "fdiv"}.items():

        def calculate(context, builder, signature, arguments, instruction=instruction):
            return getattr(builder, instruction)(*arguments)

        for function in (getattr(operator, name), getattr(operator, f"i{name}")):
            _compiled_by(function, _LANES, Lanes, Lanes)(calculate)
    for name, sign in {"le": "<=", "eq": "=="}.items():

        def compare(context, builder, signature, arguments, sign=sign):
            return builder.fcmp_ordered(sign, *arguments)

        _compiled_by(getattr(operator, name), _TRUTHS, Lanes, Lanes)(compare)


_define_operators()
