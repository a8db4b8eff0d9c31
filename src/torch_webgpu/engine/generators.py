"""Random state: one Philox 4×32-10 stream per generator, a seed and an offset into it.

Every random operation takes the next stretch of its generator's stream: element ``i`` of an operation at offset ``o``
is block ``o + i`` of the stream, whatever the adapter. Same seed, same numbers, everywhere.
"""

from __future__ import annotations

import itertools
import secrets
import threading
import weakref
from typing import ClassVar

import torch

from torch_webgpu.plan import STREAM_MASK, Random

from .current import current_device

STATE_BYTES = 16
NUMBERS_PER_BLOCK = 4
"""32-bit numbers in a block of the stream: what the offset in a state counts, as that of CUDA's generators."""


class RandomWord(int):
    """A parameter of a random kernel that is captured or traced: its number is only known at each run.

    ``source``: what it is in a run whose stretch of the stream of ``state`` is known.
    """

    state: RandomState
    source: Random


def random_words(state: RandomState, ahead: int) -> list[RandomWord]:
    """The four parameters of a stream (seed, offset), ``ahead`` blocks after where a run starts in it."""
    words = []
    for part in range(4):
        word = RandomWord()
        word.state, word.source = state, Random(part, ahead)
        words.append(word)
    return words


_NUMBERS = itertools.count(1)
"""Never the same twice, whichever threads ask: ``+= 1`` could count two draws as one, or go back."""


class RandomState:
    """A seed and how many blocks of its stream are used up."""

    draws: ClassVar[int] = 0
    """Another number whenever some were drawn, from whichever generator and thread: who compares can tell."""
    settings: ClassVar[int] = 0
    """Another number whenever a generator was put to a place of a stream; ``set_at``: that of the last time it was this
    one."""

    def __init__(self, seed: int = 0) -> None:
        self._lock = threading.Lock()
        self.captured = False  # a capture underway draws from it, and does not know its place yet
        self.move_to(seed)

    def move_to(self, seed: int, offset: int = 0) -> None:
        """Goes on with block ``offset`` of a seed's stream."""
        self.check_known("set")
        with self._lock:
            self.seed, self.offset = seed & STREAM_MASK, offset & STREAM_MASK
            self.set_at = RandomState.settings = next(_NUMBERS)

    @staticmethod
    def count_draw() -> None:
        """Changes ``draws``."""
        RandomState.draws = next(_NUMBERS)

    def check_known(self, verb: str) -> None:
        """RuntimeError if a capture draws from it."""
        if self.captured:
            raise RuntimeError(
                f"a random generator cannot be {verb} while a captured graph draws from it: where its numbers start is "
                "only known at each replay"
            )

    def reserve(self, blocks: int) -> tuple[int, int]:
        """(seed, offset) of the next ``blocks`` blocks, which are then used up."""
        self.count_draw()
        with self._lock:
            offset = self.offset
            self.offset = (offset + blocks) & STREAM_MASK
            return self.seed, offset

    def give_back(self, reserved: tuple[int, int], blocks: int) -> None:
        """Undoes a :meth:`reserve` of so many blocks that nobody has used, unless something happened since."""
        seed, offset = reserved
        with self._lock:
            if (self.seed, self.offset) == (seed, (offset + blocks) & STREAM_MASK):
                self.offset = offset

    def to_tensor(self) -> torch.Tensor:
        """The state as a uint8 CPU tensor of 16 bytes: seed, and offset in numbers.

        DTensor moves the offset by elements, so that a rank draws what one process would have drawn for its shard.
        """
        self.check_known("read")
        numbers = self.offset * NUMBERS_PER_BLOCK
        if numbers > STREAM_MASK:
            raise RuntimeError(f"an offset of {self.offset} blocks is too large for a state")
        return torch.tensor(
            list(self.seed.to_bytes(8, "little") + numbers.to_bytes(8, "little")), dtype=torch.uint8, device="cpu"
        )

    def from_tensor(self, state: torch.Tensor) -> None:
        """Restores what :meth:`to_tensor` gave. TypeError or RuntimeError for anything else, as torch.cuda."""
        if not isinstance(state, torch.Tensor) or state.dtype != torch.uint8:
            raise TypeError("expected a torch.ByteTensor, but got " + type(state).__name__)
        data = bytes(state.cpu().tolist())
        if len(data) != STATE_BYTES:
            raise RuntimeError(f"RNG state is wrong size: {len(data)} bytes, expected {STATE_BYTES}")
        numbers = int.from_bytes(data[8:], "little")
        if numbers % NUMBERS_PER_BLOCK:
            raise RuntimeError(f"offset must be a multiple of {NUMBERS_PER_BLOCK}, but got {numbers}")
        self.move_to(int.from_bytes(data[:8], "little"), numbers // NUMBERS_PER_BLOCK)


_states: dict[int, RandomState] = {}
_initial: int | None = None


def default_state(device: int) -> RandomState:
    """The adapter's own generator state; seeded like PyTorch's default generators until a program seeds it."""
    state = _states.get(device)
    if state is None:
        state = _states[device] = RandomState(torch.initial_seed() if _initial is None else _initial)
    return state


def seed_all(seed: int) -> None:
    """Seeds every adapter's generator, also those not used yet."""
    global _initial
    _initial = seed & STREAM_MASK
    for state in _states.values():
        state.move_to(seed)


def fresh_seed() -> int:
    return secrets.randbits(64)


_by_address: weakref.WeakValueDictionary[int, WebGPUGenerator] = weakref.WeakValueDictionary()


def _address(generator: torch.Generator) -> int:
    return generator._cdata  # type: ignore[attr-defined]


class WebGPUGenerator(torch.Generator):
    """What ``torch.Generator(device="webgpu")`` makes: PyTorch has no hook for a Python backend's generators.

    The C++ part is a CPU generator, which is what PyTorch's argument parser wants to see. Operations on CPU tensors
    take it for one instead of refusing it; it is seeded alike, so that at least their numbers can be repeated.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = torch.device("webgpu", current_device() if device.index is None else device.index)
        self.state = RandomState(torch.default_generator.initial_seed())
        _by_address[_address(self)] = self

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self._device

    def manual_seed(self, seed: int) -> WebGPUGenerator:
        self.state.move_to(int(seed))
        super().manual_seed(int(seed))
        return self

    def seed(self) -> int:
        self.state.move_to(fresh_seed())
        return self.state.seed

    def initial_seed(self) -> int:
        return self.state.seed

    def get_state(self) -> torch.Tensor:
        return self.state.to_tensor()

    def set_state(self, new_state: torch.Tensor) -> WebGPUGenerator:
        self.state.from_tensor(new_state)
        return self

    def get_offset(self) -> int:
        self.state.check_known("read")
        return self.state.offset

    def set_offset(self, offset: int) -> None:  # type: ignore[override]
        self.state.move_to(self.state.seed, offset)

    def clone_state(self) -> WebGPUGenerator:
        clone = new_generator(self._device)
        clone.set_state(self.get_state())
        return clone

    def __reduce__(self) -> tuple[object, ...]:  # type: ignore[override]
        return _restore_generator, (str(self._device), self.get_state())


def new_generator(device: torch.device) -> WebGPUGenerator:
    generator = WebGPUGenerator.__new__(WebGPUGenerator)
    generator.__init__(device)  # type: ignore[misc]
    return generator


def _restore_generator(device: str, state: torch.Tensor) -> WebGPUGenerator:
    return new_generator(torch.device(device)).set_state(state)


def state_of(generator: torch.Generator | None, device: int) -> RandomState:
    """The stream a random operation on ``device`` draws from. RuntimeError for a generator of another device."""
    if generator is None:
        return default_state(device)
    # The dispatcher hands over a new Python object around the same C++ generator.
    ours = _by_address.get(_address(generator))
    if ours is None:
        raise RuntimeError(f"Expected a 'webgpu' device type for generator but found '{generator.device.type}'")
    return ours.state
