"""Operations over lists of tensors, recorded in the same lane as any others, and the new lists that they make."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from torch_webgpu.ir.operation import Operation

from .interrupt import Uninterrupted
from .recorded_lists import Intermediate, ListGeometry, RecordedList, bury, orphans
from .tensor import LARGE_BYTES, Allocation, Image

if TYPE_CHECKING:
    from .record import Engine


def record_list(
    engine: Engine, op: Operation, lists: tuple[RecordedList, ...], params: tuple[int | float, ...]
) -> bool:
    """Records ``op`` on these lists, its arguments; False, and nothing is recorded, if one that it writes and another
    one have tensors in common.
    """
    for target in lists[op.n_inputs :]:
        for other in lists:
            if other is not target and not target.is_apart(other):
                return False
    with engine.lock:
        engine.append(lists[-1].device, op, lists, params)
    return True


def make_lists(
    engine: Engine, geometry: ListGeometry, dtype: torch.dtype, device: int
) -> tuple[list[torch.Tensor], RecordedList]:
    """New uninitialised tensors of these shapes."""
    tensors, allocations = make_tensors(engine, _image(engine, geometry, dtype, device))
    return tensors, RecordedList(geometry, dtype, device, allocations, [0] * len(tensors))


def make_tensors(engine: Engine, image: Image) -> tuple[list[torch.Tensor], list[Allocation]]:
    """New uninitialised tensors, and what they lie in."""
    with Uninterrupted(), engine.lock:
        _check(engine, image)
        allocations = engine.mailbox.new_allocations(image, engine.mailbox.take_numbers(len(image.sizes)))
        return _make_tensors(engine, image, allocations), allocations


def make_intermediate(engine: Engine, geometry: ListGeometry, dtype: torch.dtype, device: int) -> Intermediate:
    """What :func:`make_lists` makes, without tensors."""
    image = _image(engine, geometry, dtype, device)
    with Uninterrupted(), engine.lock:
        _check(engine, image)
        return Intermediate(geometry, dtype, image, engine.mailbox.take_numbers(len(image.sizes)))


def make_seen(engine: Engine, tensor_list: Intermediate) -> list[torch.Tensor]:
    """The tensors of an intermediate list, which is an ordinary one from now on."""
    with Uninterrupted(), engine.lock:
        tensor_list.settle(engine.mailbox)
        tensors = _make_tensors(engine, tensor_list.image, tensor_list.allocations)
        tensor_list.held = False
        return tensors


def forget_dropped(engine: Engine) -> None:
    """Returns the memory of intermediate lists that nobody wants any more."""
    if orphans:
        with Uninterrupted(), engine.lock:
            bury(engine.dying)
            engine.sweep()


def _image(engine: Engine, geometry: ListGeometry, dtype: torch.dtype, device: int) -> Image:
    image = geometry.images.get((dtype, device))
    if image is None:
        image = Image([engine.template(s, dtype, device, t) for s, t in zip(geometry.shapes, geometry.strides)])
        geometry.images[dtype, device] = image
    return image


def _check(engine: Engine, image: Image) -> None:
    """Raises what making these tensors would raise."""
    engine.check_process()
    if image.largest_bytes > LARGE_BYTES:
        engine.check_size(image.largest_bytes, image.device)


def _make_tensors(engine: Engine, image: Image, allocations: Sequence[Allocation]) -> list[torch.Tensor]:
    """Tensors over new allocations, counted. The caller holds the lock."""
    if engine.mailbox.free_slots < len(allocations):
        engine.reclaim()
    tensors = engine.mailbox.make_many(image, allocations)
    device = image.device
    engine.live_bytes[device] += image.size_bytes
    # As for single tensors: those that died since the last flush still count.
    if image.largest_bytes > LARGE_BYTES and engine.live_bytes[device] > engine.peak_bytes[device]:
        engine.collect()
    return tensors
