"""A blocked product as a value: its operands, its sizes, its epilogue, and what decides how it is computed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.kernels.points import Draft
from torch_webgpu.target import Target
from torch_webgpu.wgsl.launch import Launch

from .epilogue import Epilogue
from .matrix_tile import MatrixTile
from .operand import Operand, Run, Sides, Strided, load_texts
from .tile import Tile


@dataclass(frozen=True)
class Problem(ABC):
    """``slices`` products of (m, k) by (k, n), and what becomes of the sums: :mod:`.blocked` lowers it.

    ``sizes``: slices, m, n, k. ``dtype``: the operands', or that of a where they differ. ``operands``: a and b, in the
    order in which a kernel declares them.
    """

    dtype: str
    sizes: tuple[int, int, int, int]
    operands: tuple[Operand, Operand]
    epilogue: Epilogue
    target: Target

    @property
    @abstractmethod
    def name(self) -> str:
        """What its kernels' names begin with."""

    @property
    @abstractmethod
    def tiles(self) -> Sequence[Tile]:
        """Those on registers."""

    @property
    def tile_sizes(self) -> tuple[int, int, int, int]:
        """The sizes that a tile is chosen for: more than its own where others run in the same dispatch."""
        return self.sizes

    @property
    def gathering(self) -> Sequence[MatrixTile]:
        """The tiles on matrices that are better where an operand is gathered from its numbers."""
        return ()

    @property
    def is_of_matrices(self) -> bool:
        """Whether both operands and the sums lie as matrices do, in rows and columns, not as windows of images."""
        return True

    @property
    def halves(self) -> int:
        """Into how many halves of float16 numbers may fall (see :mod:`.halves`); 0: they are multiplied as they are."""
        return 0

    @property
    def reads_ahead(self) -> bool:
        """Whether what the epilogue reads may be asked for ahead."""
        return True

    @abstractmethod
    def kernel(self) -> Draft:
        """A kernel that has bound the operands."""

    @abstractmethod
    def places(self) -> Sequence[str]:
        """The functions ``place`` and ``is_stored`` (see :mod:`.epilogue`)."""

    @abstractmethod
    def widths(self, most: int) -> dict[int, int]:
        """How many neighbours along n of each output are stored at once, up to ``most`` (see
        :meth:`.epilogue.Epilogue.widths`).
        """

    @abstractmethod
    def split_sum(self, splits: int) -> tuple[Launch, int]:
        """The launch that adds up partial sums and stores them, and how many bytes these take."""

    @property
    def kind(self) -> str:
        return BY_NAME[self.dtype].kind

    @property
    def a(self) -> Operand:
        return next(operand for operand in self.operands if operand.x == "a")

    @property
    def b(self) -> Operand:
        return next(operand for operand in self.operands if operand.x == "b")

    @property
    def tensors(self) -> tuple[Strided, Strided] | None:
        """Tensors of the same elements; None where there are none of both."""
        a, b = self.a.tensor, self.b.tensor
        return None if a is None or b is None else (a, b)

    @property
    def partials(self) -> int:
        """The argument that partial sums are: the first temporary."""
        return len(self.epilogue.op.args)

    def sides(self, run: int) -> Sides:
        """How a and b travel, in groups of ``run`` where they lie so."""
        return self.a.side(run), self.b.side(run)

    def loads(self, sides: Sides, run: Run) -> list[str]:
        """The WGSL that loads the operands' elements."""
        return load_texts(self.operands, sides, run)
