"""THE op table: each per-element operation's WGSL per compute kind, and the dtype of its result.

Row names are those of Inductor's ``OpsHandler``. Everything else derives from these rows: the eager kernels, the
fuser, the tests and the docs. :class:`Ops` builds expressions over the table.

Templates use ``{0}``, ``{1}``, … for operands. Functions that are not WGSL built-ins (``exp_f``, ``i64_add``, …)
live in ``kernels/lib`` and are linked in when their name occurs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch_webgpu import dtypes

from .expr import Expr, Operand


@dataclass(frozen=True)
class Row:
    """``wgsl[kind]`` is the template for operands of that kind.

    ``result``: "same" as the first operand's dtype, or a dtype name.
    ``wraps``: on 8- and 16-bit integers the result must be wrapped to the type's range.
    """

    name: str
    wgsl: Mapping[str, str]
    result: str = "same"
    wraps: bool = False

    @property
    def arity(self) -> int:
        return 1 + max(int(text[i + 1]) for text in self.wgsl.values() for i, ch in enumerate(text) if ch == "{")


TABLE: dict[str, Row] = {}


def row(name: str, wgsl: Mapping[str, str], result: str = "same", wraps: bool = False) -> None:
    """Adds a row; a key of several letters ("fd") stands for each of its kinds."""
    spread = {kind: template for kinds, template in wgsl.items() for kind in kinds}
    assert name not in TABLE, f"row {name} is there already"
    TABLE[name] = Row(name, spread, result, wraps)


def _float(*names: str) -> None:
    """Rows that are a library function of f32, ``exp`` → ``exp_f``, and perhaps one of f64, ``exp_d``."""
    for name in names:
        operands = "{0}, {1}" if name in BINARY_FLOAT else "{0}"
        kinds = "fd" if name in DOUBLE else "f"
        row(name, {kind: f"{name}_{kind}({operands})" for kind in kinds})


BINARY_FLOAT = frozenset(
    "atan2 hypot copysign nextafter zeta igamma igammac polygamma standard_gamma_grad "
    "chebyshev_polynomial_t chebyshev_polynomial_u chebyshev_polynomial_v chebyshev_polynomial_w "
    "hermite_polynomial_h hermite_polynomial_he laguerre_polynomial_l legendre_polynomial_p "
    "shifted_chebyshev_polynomial_t shifted_chebyshev_polynomial_u shifted_chebyshev_polynomial_v "
    "shifted_chebyshev_polynomial_w".split()
)

DOUBLE = frozenset(
    "atan2 hypot copysign nextafter sinc erf erfc erfinv erfcx ndtr ndtri log_ndtr lgamma digamma polygamma "
    "zeta".split()
)
"""Of the names that :func:`_float` takes, those that are functions of f64, too."""

# fmt: off
# Arithmetic. Integer division by zero, which CPU PyTorch refuses, gives 0.
row("add", {"fdciu": "({0} + {1})", "l": "i64_add({0}, {1})", "b": "({0} || {1})"}, wraps=True)
row("sub", {"fdciu": "({0} - {1})", "l": "i64_sub({0}, {1})"}, wraps=True)
row("mul", {"fdiu": "({0} * {1})", "l": "i64_mul({0}, {1})", "b": "({0} && {1})", "c": "c_mul({0}, {1})"}, wraps=True)
row("truediv", {"f": "div_f({0}, {1})", "d": "({0} / {1})", "c": "c_div({0}, {1})"})
row("neg", {"fdci": "(-{0})", "u": "(0u - {0})", "l": "i64_neg({0})"}, wraps=True)
row("abs", {"fdi": "abs({0})", "u": "{0}", "l": "i64_abs({0})"}, wraps=True)
row("abs_complex", {"c": "c_abs({0})"}, result="f32")
row("sign", {
    "f": "(select(0.0, 1.0, {0} > 0.0) - select(0.0, 1.0, {0} < 0.0))", "d": "sign_d({0})", "i": "sign({0})",
    "u": "min({0}, 1u)", "l": "i64_sign({0})", "b": "{0}", "c": "c_sgn({0})",
})
row("reciprocal", {"f": "div_f(1.0, {0})", "d": "(1.0lf / {0})", "c": "c_reciprocal({0})"})
row("floordiv", {
    "f": "floor_divide_f({0}, {1})", "d": "floor_divide_d({0}, {1})", "i": "i32_floordiv({0}, {1})",
    "u": "u32_div({0}, {1})", "l": "i64_floordiv({0}, {1})",
}, wraps=True)
row("truncdiv", {
    "f": "trunc_divide_f({0}, {1})", "i": "i32_div({0}, {1})", "u": "u32_div({0}, {1})", "l": "i64_div({0}, {1})",
}, wraps=True)
row("fmod", {
    "f": "fmod_f({0}, {1})", "d": "fmod_d({0}, {1})", "i": "i32_rem({0}, {1})", "u": "u32_rem({0}, {1})",
    "l": "i64_rem({0}, {1})",
})
row("remainder", {
    "f": "remainder_f({0}, {1})", "d": "remainder_d({0}, {1})", "i": "i32_mod({0}, {1})", "u": "u32_rem({0}, {1})",
    "l": "i64_mod({0}, {1})",
})
row("pow", {
    "f": "pow_f({0}, {1})", "d": "pow_d({0}, {1})", "i": "i32_pow({0}, {1})", "l": "i64_pow({0}, {1})",
    "c": "c_pow({0}, {1})",
}, wraps=True)
row("gcd", {"i": "i32_gcd({0}, {1})", "l": "i64_gcd({0}, {1})"}, wraps=True)
row("lcm", {"i": "i32_lcm({0}, {1})", "l": "i64_lcm({0}, {1})"}, wraps=True)
row("fma", {"fd": "fma({0}, {1}, {2})"})

# Comparison and selection. naga compiles != on floats to a comparison that is false for NaN, hence the negations.
for _name, _sign in (("eq", "=="), ("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">=")):
    row(_name, {
        "fdiu": f"({{0}} {_sign} {{1}})", "l": f"i64_{_name}({{0}}, {{1}})", "b": f"(u32({{0}}) {_sign} u32({{1}}))",
    } | ({"c": "all({0} == {1})"} if _name == "eq" else {}), result="bool")
row("ne", {
    "fd": "(!({0} == {1}))", "iub": "({0} != {1})", "l": "i64_ne({0}, {1})", "c": "(!all({0} == {1}))",
}, result="bool")
row("where", {"b": "select({2}, {1}, {0})"}, result="second")
row("maximum", {"f": "max_f({0}, {1})", "d": "max_d({0}, {1})", "iu": "max({0}, {1})", "l": "i64_max({0}, {1})",
                "b": "({0} || {1})"})
row("minimum", {"f": "min_f({0}, {1})", "d": "min_d({0}, {1})", "iu": "min({0}, {1})", "l": "i64_min({0}, {1})",
                "b": "({0} && {1})"})
# The cheapest maximum: either operand where one is NaN.
row("larger", {"f": "max({0}, {1})", "d": "max_d({0}, {1})"})
row("fmax", {"f": "fmax_f({0}, {1})", "d": "fmax_d({0}, {1})", "iu": "max({0}, {1})", "l": "i64_max({0}, {1})",
             "b": "({0} || {1})"})
row("fmin", {"f": "fmin_f({0}, {1})", "d": "fmin_d({0}, {1})", "iu": "min({0}, {1})", "l": "i64_min({0}, {1})",
             "b": "({0} && {1})"})
row("isnan", {
    "f": "isnan_f({0})", "d": "(!({0} == {0}))", "c": "(isnan_f({0}.x) || isnan_f({0}.y))", "iulb": "false",
}, result="bool")
row("isinf", {
    "f": "isinf_f({0})", "d": "isinf_d({0})", "c": "(isinf_f({0}.x) || isinf_f({0}.y))", "iulb": "false",
}, result="bool")
row("signbit", {
    "f": "signbit_f({0})", "d": "signbit_d({0})", "i": "({0} < 0)", "ub": "false", "l": "i64_lt({0}, i64_from_i32(0))",
}, result="bool")

# Logic and bits
row("logical_not", {"b": "(!{0})"})
row("logical_and", {"b": "({0} && {1})"})
row("logical_or", {"b": "({0} || {1})"})
row("logical_xor", {"b": "({0} != {1})"})
row("bitwise_not", {"iu": "(~{0})", "l": "i64_not({0})", "b": "(!{0})"}, wraps=True)
row("bitwise_and", {"iu": "({0} & {1})", "l": "i64_and({0}, {1})", "b": "({0} && {1})"})
row("bitwise_or", {"iu": "({0} | {1})", "l": "i64_or({0}, {1})", "b": "({0} || {1})"})
row("bitwise_xor", {"iu": "({0} ^ {1})", "l": "i64_xor({0}, {1})", "b": "({0} != {1})"})
row("bitwise_left_shift", {"i": "i32_shl({0}, {1})", "l": "i64_shl({0}, {1})"}, wraps=True)
row("bitwise_right_shift", {"i": "i32_shr({0}, {1})", "l": "i64_shr({0}, {1})"})

# Rounding
row("floor", {"fd": "floor({0})"})
row("ceil", {"fd": "ceil({0})"})
row("trunc", {"f": "trunc({0})", "d": "trunc_d({0})"})
row("round", {"f": "round_half_even_f({0})", "d": "round_d({0})"})

# Floating-point functions
row("sqrt", {"fd": "sqrt({0})", "c": "c_sqrt({0})"})
row("rsqrt", {"f": "(1.0 / sqrt({0}))", "d": "(1.0lf / sqrt({0}))", "c": "c_reciprocal(c_sqrt({0}))"})
for _name in (
    "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh sigmoid".split()
):
    row(_name, {"f": f"{_name}_f({{0}})", "d": f"{_name}_d({{0}})", "c": f"c_{_name}({{0}})"})
_float("erf", "erfc", "erfinv", "erfcx", "lgamma", "digamma", "sinc", "i0", "i0e", "i1", "i1e")
_float("ndtr", "ndtri", "log_ndtr")
_float("bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "modified_bessel_i0", "modified_bessel_i1")
_float("modified_bessel_k0", "modified_bessel_k1", "scaled_modified_bessel_k0", "scaled_modified_bessel_k1")
_float("spherical_bessel_j0", "airy_ai", *sorted(BINARY_FLOAT))
row("ldexp", {"f": "ldexp_f({0}, {1})", "d": "ldexp_d({0}, {1})"})
row("frexp_mantissa", {"f": "frexp_mantissa_f({0})", "d": "frexp_mantissa_d({0})"})
row("frexp_exponent", {"f": "frexp_exponent_f({0})", "d": "frexp_exponent_d({0})"}, result="i32")
row("nextafter_bf16", {"f": "nextafter_bf16({0}, {1})"})
row("nextafter_f16", {"f": "nextafter_f16({0}, {1})"})

# 8-bit floats, whose codes are loaded and stored as uint8
for _name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"):
    row(f"f32_from_{_name}", {"i": f"f32_from_{_name}({{0}})"}, result="f32")
    row(f"{_name}_from_f32", {"f": f"{_name}_from_f32({{0}})"}, result="u8")

# Complex
row("complex", {"f": "vec2<f32>({0}, {1})"}, result="c64")
row("polar", {"f": "vec2<f32>({0} * cos_f({1}), {0} * sin_f({1}))"}, result="c64")
row("real", {"c": "{0}.x"}, result="f32")
row("imag", {"c": "{0}.y"}, result="f32")
row("conj", {"c": "vec2<f32>({0}.x, -{0}.y)"})
row("angle", {"c": "c_angle({0})"}, result="f32")

# Randomness: operands are the seed's and the stream offset's two halves, and the element's number
row("random_uniform", {"u": "random_uniform({0}, {1}, {2}, {3}, {4})"}, result="f32")
row("random_normal", {"u": "random_normal({0}, {1}, {2}, {3}, {4})"}, result="f32")
row("random_bits", {"u": "random_bits({0}, {1}, {2}, {3}, {4})"}, result="u32")
row("random_bits64", {"u": "random_bits64({0}, {1}, {2}, {3}, {4})"}, result="i64")
row("random_open_uniform", {"u": "random_open_uniform({0}, {1}, {2}, {3}, {4})"}, result="f32")
row("random_poisson", {"u": "random_poisson({0}, {1}, {2}, {3}, {4}, {5})"}, result="f32")
row("random_binomial", {"u": "random_binomial({0}, {1}, {2}, {3}, {4}, {5}, {6})"}, result="f32")
row("random_at", {"u": "random_at({0}, {1}, {2}, {3}, {4}, {5})"}, result="f32")  # a key's words, row, column
row("random_gamma", {"u": "random_gamma({0}, {1}, {2}, {3}, {4}, {5})"}, result="f32")
# fmt: on


def result_dtype(op: Row, operands: tuple[Expr, ...]) -> str:
    if op.result == "same":
        return operands[0].dtype
    return operands[1].dtype if op.result == "second" else op.result


class Ops:
    """Builds expressions: ``ops.add(a, b)`` for every row, and the leaves and casts below.

    Operands must have one dtype (``where`` takes a bool first); nothing converts implicitly, but a Python number
    becomes a constant of the others' dtype. The operators of :class:`Expr` are these rows, too.
    """

    def load(self, k: int, dtype: str) -> Expr:
        return Expr("load", (k,), dtype)

    def param(self, k: int, dtype: str) -> Expr:
        return Expr("param", (k,), dtype)

    def acc(self, k: int, dtype: str) -> Expr:
        return Expr("acc", (k,), dtype)

    def index(self, dim: int) -> Expr:
        """This point's coordinate along ``dim``, int32."""
        return Expr("index", (dim,), "i32")

    def linear(self) -> Expr:
        """This point's row-major number, uint32."""
        return Expr("linear", (), "u32")

    def constant(self, value: float | int | bool | complex, dtype: str) -> Expr:
        kind = dtypes.BY_NAME[dtype].kind
        typed: Any = {"b": bool, "f": float, "d": float, "c": complex}.get(kind, int)(value)
        return Expr("const", (repr(typed),), dtype)

    def to_dtype(self, x: Expr, dtype: str) -> Expr:
        """PyTorch's conversion (``x.to(dtype)``); rounds to half types and wraps to small integers."""
        return x if x.dtype == dtype else Expr("to_dtype", (x,), dtype)

    def like(self, x: Expr, value: float | int | bool) -> Expr:
        """``value`` as a constant of ``x``'s dtype."""
        return self.constant(value, x.dtype)

    def __getattr__(self, name: str) -> Callable[..., Expr]:
        try:
            op = TABLE[name]
        except KeyError:
            raise AttributeError(f"no row {name!r} in the op table") from None

        def build(*operands: Operand) -> Expr:
            lifted = self.lift(op, operands)
            if dtypes.BY_NAME[lifted[0].dtype].kind not in op.wgsl:
                raise MissingKindError(name, lifted[0].dtype)
            return Expr(name, lifted, result_dtype(op, lifted))

        build.__name__ = name
        setattr(self, name, build)
        return build

    def lift(self, op: Row, operands: Sequence[Operand]) -> tuple[Expr, ...]:
        """``operands`` with the numbers among them made constants. TypeError unless they are of one dtype."""
        first = 1 if op.result == "second" else 0
        dtype = next(x.dtype for x in operands[first:] if isinstance(x, Expr))
        lifted = tuple([x if isinstance(x, Expr) else self.constant(x, dtype) for x in operands])
        if any(x.dtype != dtype for x in lifted[first:]):
            raise TypeError(f"{op.name} of operands of several dtypes: {', '.join(x.dtype for x in lifted)}")
        return lifted


class MissingKindError(NotImplementedError):
    """The table has no template of this op for this dtype; the caller falls back."""

    def __init__(self, op: str, dtype: str) -> None:
        super().__init__(op, dtype)  # what a copy is made from

    def __str__(self) -> str:
        op, dtype = self.args
        return f"no kernel computes {op} in {str(dtypes.BY_NAME[dtype].torch).removeprefix('torch.')}"


ops = Ops()
Expr.rows = ops
