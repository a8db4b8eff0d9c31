"""What to do about shapes that PyTorch refuses, told by its messages: products and einsum."""

from __future__ import annotations

import re

_PRODUCT = re.compile(r"mat1 and mat2 shapes cannot be multiplied \((\d+)x(\d+) and (\d+)x(\d+)\)")
_SUBSCRIPTS = re.compile(
    r"einsum\(\): the number of subscripts in the equation \((\d+)\) (?:does not match the number of dimensions"
    r"|is more than the number of dimensions) \((\d+)\) for operand (\d+)"
)


def shape_hint(message: str) -> str:
    """What probably helps against PyTorch's error ``message``, if it is about the shapes of operands; else nothing."""
    if found := _PRODUCT.search(message):
        return _of_product(*map(int, found.groups()))
    if found := _SUBSCRIPTS.search(message):
        subscripts, dims, operand = found.groups()
        missing = ", or ... for those without a name" if int(subscripts) < int(dims) else ""
        return f"operand {operand} has {dims} dimensions: its part of the equation needs {dims} subscripts{missing}"
    return ""


def _of_product(m: int, k: int, other_k: int, n: int) -> str:
    if k == n:
        return f"mat1 @ mat2.t() fits: {m}x{k} and {n}x{other_k}"
    if m == other_k:
        return f"mat1.t() @ mat2 fits: {k}x{m} and {other_k}x{n}"
    return f"the second size of mat1, {k}, and the first of mat2, {other_k}, have to be equal"
