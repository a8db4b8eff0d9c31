"""Radix sort of long rows, the least significant digit first: each pass moves a row's items by 8 bits of their keys.

A pass is three launches: digits are counted in each block, the counts of each digit are added up block after block, and
each block's items go where those say. No workgroup waits for another. The last pass stores values as well as places, so
that values need not be gathered.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch_webgpu.dtypes import BY_NAME, KINDS
from torch_webgpu.kernels.points import Draft
from torch_webgpu.kernels.template import render
from torch_webgpu.target import Target
from torch_webgpu.wgsl.kernel import Binding
from torch_webgpu.wgsl.launch import Launch, Lowered, Source, grid_of

DIGIT_BITS = 8
RADIX = 1 << DIGIT_BITS
THREADS = 256
ITEMS = 16
"""Of a thread: it holds them in registers."""
FEWER_THREADS = 128
"""Where the memory of a workgroup has no room for the counters of more."""
COUNTS, TOTALS = 4, 5
"""Temporaries after two pairs of items and places: of digits in each block, and in each row."""

Digit = tuple[str, int, int]
"""The WGSL of a word of an item's key, and which of its bits: the first, and how many."""
Pair = tuple[int, int]
"""Binding indices of items and of their places."""


@dataclass(frozen=True)
class Key:
    """How the keys of a dtype are read: the expression of an item's word, and which bits of its words tell them apart.

    ``words``: for each word, the least significant first, its WGSL and the range of its bits.
    """

    words: tuple[tuple[str, int, int], ...]


def key_of(dtype: str) -> Key:
    """The key of an item: of the bits of a value of four or eight bytes; for smaller values items are keys already."""
    kind, bits = BY_NAME[dtype].kind, BY_NAME[dtype].bits
    if kind in "ld":
        return Key(((f"i64_lo(key_{kind}(item))", 0, 32), (f"(i64_hi(key_{kind}(item)) ^ 0x80000000u)", 0, 32)))
    if bits == 32:
        return Key(((f"key_{kind}(bitcast<{KINDS[kind].wgsl}>(item))", 0, 32),))
    if kind == "f":
        # They are those of float32, of whose mantissa of 23 bits float16 has 10, and bfloat16 7.
        return Key((("item", {"f16": 13, "bf16": 16}.get(dtype, 0), 32),))
    if kind == "i" and not dtype.startswith("u"):
        return Key(((f"(item ^ {1 << (bits - 1)}u)", 0, bits),))
    return Key((("item", 0, 1 if kind == "b" else bits),))


def passes(dtype: str) -> int:
    """Of a radix sort."""
    return sum(-(-(end - start) // DIGIT_BITS) for _, start, end in key_of(dtype).words)


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
    def item(self) -> str:
        """The dtype of items: the bits of values of a word or two, of smaller ones their keys."""
        return "i64" if BY_NAME[self.dtype].itemsize == 8 else "u32"

    @property
    def threads(self) -> int:
        words = max(2 * THREADS // 32 * RADIX, THREADS * ITEMS) + 2 * RADIX
        enough = self.target.workgroup_bytes >= 4 * words and self.target.workgroup_threads >= THREADS
        return THREADS if enough else FEWER_THREADS

    @property
    def blocks(self) -> int:
        return -(-self.n // (self.threads * ITEMS))

    def lowered(self) -> Lowered:
        item_bytes, place_bytes = self.rows * self.n * BY_NAME[self.item].itemsize, self.rows * self.n * 4
        counts_bytes = self.rows * RADIX * self.blocks * 4
        first = 2 + self.has_values
        source, sink = None, (first, first + 1)
        other = (first + 2, first + 3)
        digits = [
            (word, shift, min(DIGIT_BITS, end - shift))
            for word, start, end in key_of(self.dtype).words
            for shift in range(start, end, DIGIT_BITS)
        ]
        launches = []
        for number, digit in enumerate(digits):
            is_last = number + 1 == len(digits)
            launches += [
                self.count(digit, source, first),
                self.scan(first),
                self.scatter(digit, source, None if is_last else sink, first),
            ]
            source, sink, other = sink, other, sink
        pairs = (item_bytes, place_bytes) * 2
        return Lowered(tuple(launches), (*pairs, counts_bytes, self.rows * RADIX * 4))

    def count(self, digit: Digit, source: Pair | None, first: int) -> Launch:
        """Of each block's digits; ``first``: the binding index of the first temporary."""
        part = Draft(())
        self.read(part, digit, source)
        part.binding(Binding("counts", "u32", "read_write"), first + COUNTS)
        return self.launch("radix_count", part, self.rows * self.blocks, items=ITEMS)

    def scan(self, first: int) -> Launch:
        part = Draft(())
        part.binding(Binding("counts", "u32", "read_write"), first + COUNTS)
        part.binding(Binding("totals", "u32", "read_write"), first + TOTALS)
        part.param("digits", self.rows * RADIX)
        part.param("blocks", self.blocks)
        width = min(self.threads, 1 << (self.blocks - 1).bit_length())
        workgroups = -(-self.rows * RADIX // (self.threads // width))
        return self.launch("radix_scan", part, workgroups, width=width)

    def scatter(self, digit: Digit, source: Pair | None, sink: Pair | None, first: int) -> Launch:
        part = Draft(())
        self.read(part, digit, source)
        if source is None:
            part.add("fn place_at(i: u32, place: u32) -> u32 { return place; }")
        else:
            part.binding(Binding("places_in", "u32"), source[1])
            part.add("fn place_at(i: u32, place: u32) -> u32 { return places_in_load(i); }")
        part.binding(Binding("counts", "u32"), first + COUNTS)
        part.binding(Binding("totals", "u32"), first + TOTALS)
        self.write(part, sink)
        words = 2 if self.item == "i64" else 1
        part.add(*WORDS[self.item])
        joined = [", ".join(f"word{w}_{i}" for w in range(words)) for i in range(ITEMS)]
        sizes = {"groups": self.threads // 32, "items": ITEMS, "words": words}
        return self.launch("radix_scatter", part, self.rows * self.blocks, **sizes, joined=joined)

    def read(self, part: Draft, digit: Digit, source: Pair | None) -> None:
        """Declares ``Item``, ``item_at`` and ``digit_of``."""
        part.add(f"alias Item = {BY_NAME[self.item].compute};")
        if source is None:
            is_small = BY_NAME[self.dtype].itemsize < 4
            part.binding(Binding("x", self.dtype if is_small else self.item), 0)
            part.param("x_offset", Source("offset", 0))
            value = "x_load(P.x_offset + i)"
            if is_small:
                value = f"key_{BY_NAME[self.dtype].kind}({value})"
        else:
            part.binding(Binding("items_in", self.item), source[0])
            value = "items_in_load(i)"
        word, shift, bits = digit
        for name, size in (("rows", self.rows), ("n", self.n), ("blocks", self.blocks)):
            part.param(name, size)
        part.param("shift", shift)
        part.param("mask", (1 << bits) - 1)
        flip = "~" if self.descending else ""
        part.add(
            f"fn item_at(i: u32) -> Item {{ return {value}; }}",
            f"fn digit_of(item: Item) -> u32 {{ return ({flip}{word} >> P.shift) & P.mask; }}",
        )

    def write(self, part: Draft, sink: Pair | None) -> None:
        """Declares ``store_item``: into temporaries, or the operation's results."""
        if sink is not None:
            part.binding(Binding("items_out", self.item, "read_write"), sink[0])
            part.binding(Binding("places_out", "u32", "read_write"), sink[1])
            stores = ["items_out_store(row * P.n + to, item);", "places_out_store(row * P.n + to, place);"]
        else:
            stores = []
            part.param("k", self.k)
            if self.has_values:
                part.binding(Binding("values", self.item, "read_write"), 1)
                part.param("values_offset", Source("offset", 1))
                stores.append("if (to < P.k) { values_store(P.values_offset + row * P.k + to, item); }")
            part.binding(Binding("indices", "i64", "read_write"), 1 + self.has_values)
            part.param("indices_offset", Source("offset", 1 + self.has_values))
            stores.append("if (to < P.k) { indices_store(P.indices_offset + row * P.k + to, i64_from_u32(place)); }")
        part.add(f"fn store_item(row: u32, to: u32, item: Item, place: u32) {{ {' '.join(stores)} }}")

    def launch(self, name: str, part: Draft, workgroups: int, **values: object) -> Launch:
        text = render(f"sorting/{name}", threads=self.threads, **values)
        return part.build(name, [text], self.threads, grid_of(workgroups))


WORDS = {
    "u32": ["fn word0_of(item: Item) -> u32 { return item; }", "fn item_of(word: u32) -> Item { return word; }"],
    "i64": [
        "fn word0_of(item: Item) -> u32 { return i64_lo(item); }",
        "fn word1_of(item: Item) -> u32 { return i64_hi(item); }",
        "fn item_of(low: u32, high: u32) -> Item { return i64_make(low, high); }",
    ],
}
"""The words of an item, and the item that they are."""
