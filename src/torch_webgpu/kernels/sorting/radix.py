"""Radix sort of long rows, the least significant digit first: each pass moves a row's items by 8 bits of their keys.

A pass is three launches: digits are counted in each block, the counts of each digit are added up block after block, and
each block's items go where those say. No workgroup waits for another. The last pass stores values as well as places, so
that values need not be gathered. Of integers, which bits differ is found first, and a pass over bits that do not is
left out: its launches return at once, as the device alone knows.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch_webgpu.dtypes import BY_NAME, KINDS
from torch_webgpu.kernels.template import render
from torch_webgpu.target import Target
from torch_webgpu.wgsl.kernel import Access, Binding, Kernel, Mode, Param
from torch_webgpu.wgsl.launch import Launch, Lowered, Source, Value, grid_of

DIGIT_BITS = 8
RADIX = 1 << DIGIT_BITS
THREADS = 256
ITEMS = 16
"""Of a thread: it holds them in registers."""
FEWER_THREADS = 128
"""Where the memory of a workgroup has no room for the counters of more."""
SHORT = 1 << 14
"""Items that a workgroup of the launch that finds bits has, at most."""
ITEMS_1, PLACES_1, ITEMS_2, PLACES_2, COUNTS, DIFFERING = range(6)
"""Temporaries: two pairs of items and their places; which bits of keys differ, then how many items of each digit are in
each row, and in each of its blocks; these bits again, which are found before anything else.
"""
HEAD = 2
"""Words of bits that differ."""


@dataclass(frozen=True)
class Key:
    """How items of a dtype are compared: the WGSL of the words of an item's key, the lower one first, and the first of
    the ``bits`` that tell keys apart.
    """

    words: tuple[str, ...]
    start: int
    bits: int

    @property
    def passes(self) -> int:
        return -(-self.bits // DIGIT_BITS)


def key_of(dtype: str) -> Key:
    """Of the bits of a value of four or eight bytes; for smaller values items are keys already."""
    kind, bits = BY_NAME[dtype].kind, BY_NAME[dtype].bits
    if kind in "ld":
        return Key((f"i64_lo(key_{kind}(item))", f"i64_hi(key_{kind}(item)) ^ 0x80000000u"), 0, 64)
    if bits == 32:
        return Key((f"key_{kind}(bitcast<{KINDS[kind].wgsl}>(item))",), 0, 32)
    if kind == "f":
        # They are those of float32, of whose mantissa of 23 bits float16 has 10, and bfloat16 7.
        start = {"f16": 13, "bf16": 16}.get(dtype, 0)
        return Key(("item",), start, 32 - start)
    if kind == "i" and not dtype.startswith("u"):
        return Key((f"item ^ {1 << (bits - 1)}u",), 0, bits)
    return Key(("item",), 0, 1 if kind == "b" else bits)


@dataclass(frozen=True)
class RadixSort:
    """The launches of one sort of a (rows, n) matrix of ``dtype``, whose arguments are values, the first ``k`` values
    of each row in order if ``has_values``, and their places.
    """

    dtype: str
    descending: bool
    rows: int
    n: int
    k: int
    has_values: bool
    target: Target

    @property
    def key(self) -> Key:
        return key_of(self.dtype)

    @property
    def item(self) -> str:
        """The dtype of items: the bits of values of a word or two, of smaller ones their keys."""
        return "i64" if BY_NAME[self.dtype].itemsize == 8 else "u32"

    @property
    def is_small(self) -> bool:
        return BY_NAME[self.dtype].itemsize < 4

    @property
    def finds_bits(self) -> bool:
        """Whether the bits that differ are found first: of integers they are often few."""
        return BY_NAME[self.dtype].kind in "iul" and not self.is_small

    @property
    def threads(self) -> int:
        words = max(2 * THREADS // 32 * RADIX, THREADS * ITEMS) + 2 * RADIX
        enough = self.target.workgroup_bytes >= 4 * words and self.target.workgroup_threads >= THREADS
        return THREADS if enough else FEWER_THREADS

    @property
    def blocks(self) -> int:
        return -(-self.n // (self.threads * ITEMS))

    def lowered(self) -> Lowered:
        count = self.rows * self.n
        sizes = [count * BY_NAME[self.item].itemsize, count * 4] * 2
        sizes += [4 * (HEAD + self.rows * RADIX * (self.blocks + 1)), 4 * HEAD]
        launches = [self.bits()] if self.finds_bits else []
        for number in range(self.key.passes):
            launches += [self.count(number), self.scan(number), self.scatter(number)]
        return Lowered(tuple(launches), tuple(sizes), cleared=(DIFFERING,))

    def bits(self) -> Launch:
        """Finds which bits of keys differ."""
        part = self.part(0)
        self.read(part, temporaries=False)
        part.values["count"] = self.rows * self.n
        part.bindings.append(Binding("differing", "u32", "read_write", type="array<atomic<u32>, 2>"))
        part.order.append(part.n_args + DIFFERING)
        return self.launch("radix_bits", part, -(-self.rows * self.n // SHORT), length=SHORT)

    def count(self, number: int) -> Launch:
        """Of each block's digits in pass ``number``."""
        part = self.part(number)
        part.temporary("differing", "u32", DIFFERING)
        self.read(part)
        part.temporary("counts", "u32", COUNTS, "read_write")
        return self.launch("radix_count", part, self.rows * self.blocks, items=ITEMS)

    def scan(self, number: int) -> Launch:
        part = self.part(number)
        part.temporary("differing", "u32", DIFFERING)
        part.temporary("counts", "u32", COUNTS, "read_write")
        width = min(self.threads, 1 << (self.blocks - 1).bit_length())
        workgroups = -(-self.rows * RADIX // (self.threads // width))
        return self.launch("radix_scan", part, workgroups, width=width, steps=steps(width))

    def scatter(self, number: int) -> Launch:
        part = self.part(number)
        self.read(part, "read_write")
        part.temporary("places1", "u32", PLACES_1, "read_write")
        part.temporary("places2", "u32", PLACES_2, "read_write")
        part.temporary("counts", "u32", COUNTS)
        part.values["k"] = self.k
        stores = []
        if self.has_values:
            part.argument("values", self.item, 1, "read_write")
            stores.append("values_store(P.values_offset + row * P.k + to, item);")
        part.argument("indices", "i64", 1 + self.has_values, "read_write")
        stores.append("indices_store(P.indices_offset + row * P.k + to, i64_from_u32(place));")
        words = 2 if self.item == "i64" else 1
        part.prelude += WORDS[self.item]
        sizes = {"groups": self.threads // 32, "items": ITEMS, "words": words, "steps": steps(RADIX)}
        joined = [", ".join(f"word{w}_{i}" for w in range(words)) for i in range(ITEMS)]
        return self.launch("radix_scatter", part, self.rows * self.blocks, **sizes, joined=joined, stores=stores)

    def part(self, number: int) -> Part:
        """What the launches of pass ``number`` have in common."""
        part = Part(2 + self.has_values)
        start = self.key.start + DIGIT_BITS * number
        bits = min(DIGIT_BITS, self.key.start + self.key.bits - start)
        part.values.update(rows=self.rows, n=self.n, blocks=self.blocks, passes=self.key.passes, number=number)
        part.values.update(word=start // 32, shift=start % 32, mask=(1 << bits) - 1)
        part.values["known"] = 0 if self.finds_bits else 0xFFFFFFFF
        return part

    def read(self, part: Part, access: Access = "read", temporaries: bool = True) -> None:
        """Declares ``Item``, ``x_item(i)``, ``key_words(item)``, ``digit_of(item)``, and temporaries of items."""
        part.argument("x", self.dtype if self.is_small else self.item, 0)
        if temporaries:
            part.temporary("items1", self.item, ITEMS_1, access)
            part.temporary("items2", self.item, ITEMS_2, access)
        value = "x_load(P.x_offset + i)"
        if self.is_small:
            value = f"key_{BY_NAME[self.dtype].kind}({value})"
        low, high = (*self.key.words, "0u")[:2]
        flip = "~" if self.descending else ""
        part.prelude += [
            f"alias Item = {BY_NAME[self.item].compute};",
            f"fn x_item(i: u32) -> Item {{ return {value}; }}",
            f"fn key_words(item: Item) -> vec2<u32> {{ return vec2({low}, {high}); }}",
            "fn digit_of(item: Item) -> u32 {",
            f"  let word = {'key_words(item)[P.word]' if len(self.key.words) > 1 else 'key_words(item).x'};",
            f"  return ({flip}word >> P.shift) & P.mask;",
            "}",
        ]

    def launch(self, name: str, part: Part, workgroups: int, **values: object) -> Launch:
        text = "\n".join([*part.prelude, render(f"sorting/{name}", threads=self.threads, **values)])
        params = tuple(Param(p) for p in part.values)
        size = (self.threads, 1, 1)
        kernel = Kernel(name, text, tuple(part.bindings), params, workgroup_size=size, trusted=True)
        return Launch(kernel, tuple(part.order), tuple(part.values.values()), grid_of(workgroups))


class Part:
    """The bindings, parameters and declarations of a launch under construction, of an operation with ``n_args``."""

    def __init__(self, n_args: int) -> None:
        self.n_args = n_args
        self.bindings: list[Binding] = []
        self.order: list[int] = []
        self.values: dict[str, Value] = {}
        self.prelude: list[str] = []

    def temporary(self, name: str, dtype: str, number: int, access: Access = "read", mode: Mode = "plain") -> None:
        self.bindings.append(Binding(name, dtype, access, mode))
        self.order.append(self.n_args + number)

    def argument(self, name: str, dtype: str, arg: int, access: Access = "read") -> None:
        self.bindings.append(Binding(name, dtype, access))
        self.order.append(arg)
        self.values[f"{name}_offset"] = Source("offset", arg)


def steps(count: int) -> list[int]:
    """Distances of a scan over so many numbers, a power of two."""
    return [1 << k for k in range(count.bit_length() - 1)]


WORDS = {
    "u32": ["fn word0_of(item: Item) -> u32 { return item; }", "fn item_of(word: u32) -> Item { return word; }"],
    "i64": [
        "fn word0_of(item: Item) -> u32 { return i64_lo(item); }",
        "fn word1_of(item: Item) -> u32 { return i64_hi(item); }",
        "fn item_of(low: u32, high: u32) -> Item { return i64_make(low, high); }",
    ],
}
"""The words of an item, and the item that they are."""
