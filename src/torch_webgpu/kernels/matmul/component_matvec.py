"""One row times a matrix that is described (:mod:`.component_loads`), as in decoding: the packed weights are read once,
and their groups' scales once a run.
"""

from __future__ import annotations

from torch_webgpu.ir.operation import Spec
from torch_webgpu.kernels.points import Draft, constant
from torch_webgpu.kernels.template import render
from torch_webgpu.target import Target
from torch_webgpu.wgsl.launch import Lowered, grid_for

from .component_loads import LANES, Elements, Loads, bind_components
from .epilogue import Epilogue
from .matmul import MATVEC_THREADS, PLACE, ROW_LANES, STORED
from .operand import COORDINATES, in_groups
from .store_sums import store_sums
from .tile import UNITS

RUNS = (8, 4, 2, 1)
"""Neighbours along the sum that a lane loads at once: four words of a row, or a word of eight numbers."""
ROWS = (4, 2, 1)
"""Outputs that a lane computes: what it has of the row serves all of them."""
UNDERWAY = 4
"""Loads of a lane that memory answers at once."""


def lower_row(a: Spec, elements: Elements, specs: tuple[Spec, ...], epilogue: Epilogue, target: Target) -> Lowered:
    """a (1, k) and the components, arguments from 0 on → (1, n)."""
    (_, k), n = a.shape, epilogue.op.outputs[0].shape[1]
    run = next(r for r in RUNS if k % r == 0 and elements.comes_in_runs(r))
    outputs = MATVEC_THREADS // ROW_LANES
    rows = next(r for r in ROWS if n >= r * outputs * UNITS or r == 1)
    kernel = Draft(COORDINATES, frozenset({"slice", "m"}))
    kernel.add("alias T = f32;")
    for name, value in (("OUTPUTS", outputs), ("LANES", ROW_LANES), ("RUN", run)):
        kernel.add(constant(name, value))
    kernel.input("a", 0, a._replace(shape=(1, 1, k), strides=(0, 0, a.strides[1])), ("n",))
    bind_components(kernel, elements, specs, k)
    store_sums(kernel, epilogue, "f", len(epilogue.op.args), (PLACE, STORED))
    groups = -(-n // (outputs * rows))
    for name, value in (("n", n), ("k", k), ("groups", groups)):
        kernel.param(name, value)
    text = row_text(Loads(elements, specs, run), in_groups(a, 1, min(run, 4)), rows)
    launch = kernel.build("component_matvec", [text], MATVEC_THREADS, grid_for(groups * MATVEC_THREADS))
    return Lowered((launch,))


def row_text(loads: Loads, together: bool, rows: int) -> str:
    """The kernel of ``rows`` outputs a lane; ``together``: four numbers of the row are loaded at once."""
    elements, run = loads.elements, loads.run
    # A scale of a whole row is for the finished sum; a zero needs the sum of what it was multiplied with.
    finished = elements.of_rows() and elements.zero is None
    affine, scale, zero = loads.affine()
    early = elements.used(elements.number, *(() if finished else (elements.scale, elements.zero)))
    codes, numbers = loads.numbers()
    fours = together and run >= 4
    x = [f"x.x{e // 4}.{LANES[e % 4]}" if fours else f"x.x{e}" for e in range(run)]
    product = " + ".join(f"{number} * {at}" for number, at in zip(numbers, x, strict=True))
    value = f"({product}) * {scale}" if scale and not finished else product
    unrolled = max(1, UNDERWAY // rows)
    return render(
        "matmul/component_matvec",
        rows=rows,
        unrolled=unrolled,
        type="vec4<f32>" if fours else "f32",
        x=[
            f"a_load4((P.a_offset + step) / 4u + {e // 4}u)" if fours else f"a_load(a_at(0u, 0u, step + {e}u))"
            for e in range(0, run, 4 if fours else 1)
        ],
        arguments=", ".join(dict.fromkeys(at.split(".")[1] for at in x)),
        total=" + ".join(x).replace("x.", "") if zero else "0.0",
        term=[*loads.loads(early), *codes, *([] if finished else affine)],
        value=f"{value} + x.total * {zero}" if zero else value,
        terms=[", ".join(f"term(x{u}, row{r}, {step_at(u)})" for r in range(rows)) for u in range(unrolled)],
        finished=[*loads.loads(elements.used(elements.scale)), *affine] if finished and scale else [],
        factor=scale if finished and scale else "1.0",
    )


def step_at(u: int) -> str:
    return f"step + {u}u * RUN * LANES"
