"""Kernel + host capabilities → WGSL source: the one place that knows the dialects and the storage layouts.

A kernel's body speaks of bindings, parameters and library functions by name (see :mod:`torch_webgpu.wgsl.kernel`).
:func:`link` declares those names for one host. Everything it can declare (accessors of the bindings, the functions of
``kernels/lib``) is a table from name to text; what the body mentions is taken, with what that mentions in turn, and
nothing else, so that sources stay small for the driver's compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from torch_webgpu.dtypes import BY_NAME, DType
from torch_webgpu.errors import BindingError
from torch_webgpu.target import Target

from .bounds import bounded
from .kernel import Binding, Kernel
from .module import Declaration, Module, reachable
from .tokens import is_name, tokens
from .workgroup_memory import type_bytes
from .zeroed import zeroed


@dataclass(frozen=True)
class LinkedKernel:
    """WGSL that a host compiles as it is.

    Group 0 holds the storage buffers in the order of ``Kernel.bindings`` (each once, or once per window), then, unless
    ``uses_immediates``, a uniform buffer of ``param_bytes`` when that is not 0.
    """

    source: str
    uses_immediates: bool
    param_bytes: int


def link(kernel: Kernel, target: Target, windows: tuple[int, ...] = ()) -> LinkedKernel:
    """The complete WGSL source of ``kernel`` for a target.

    ``windows[k]`` is how many times binding ``k`` is bound, each time ``target.window_bytes`` further on; an empty
    tuple means once each. Raises BindingError for a binding that does not exist or that the target cannot hold.
    """
    windows = windows or (1,) * len(kernel.bindings)
    if len(windows) != len(kernel.bindings):
        raise BindingError(f"kernel {kernel.name}: {len(windows)} window counts for {len(kernel.bindings)} bindings")

    module = kernel.module
    mentioned = module.names
    # Dawn's devices are opened without its bounds checks: see runtime/dawn.py.
    clamped = target.dialect == "tint" and not kernel.trusted and not target.checks_bounds
    buffers: list[_Buffer | _Variable] = [
        _Variable.of(binding, target, count) if binding.type else _Buffer.of(binding, target, count, mentioned, clamped)
        for binding, count in zip(kernel.bindings, windows, strict=True)
    ]
    body = bounded(kernel) if clamped and kernel.variables else kernel.body
    if kernel.variables and not kernel.trusted and not target.checks_bounds:  # as browsers do, too
        body = zeroed(kernel, body)
    if target.subgroup_size and not target.subgroup_sizes:  # all subgroups have it, and none can be asked for
        body = body.replace(f"@subgroup_size({target.subgroup_size})", "")
    table = dict(library(target))
    for buffer in buffers:
        if isinstance(buffer, _Buffer):
            table |= _accessors(buffer)
    reached = reachable(module.mentions_of(table.keys()), table)
    declared_buffers, next_binding = [], 0
    for buffer in buffers:
        declared_buffers += buffer.declarations(next_binding)
        next_binding += buffer.windows

    param_bytes = 4 * len(kernel.params)
    uses_immediates = 0 < param_bytes <= target.immediates_bytes
    variables = _library(target.int64, target.rounds_f16).variables
    texts = [declaration.text + variables.get(declaration.name, "") for declaration in reached]
    declared = [*_params(kernel, uses_immediates, next_binding), *declared_buffers]
    directives = _directives(
        [module.attributes, mentioned, *[b.names for b in buffers], *[d.names for d in reached]], target
    )
    source = "\n".join([*directives, *declared, *texts, body]) + "\n"
    return LinkedKernel(source, uses_immediates, param_bytes)


def _params(kernel: Kernel, uses_immediates: bool, binding: int) -> list[str]:
    if not kernel.params:
        return []
    members = "".join(f"  {param.name}: {param.type},\n" for param in kernel.params)
    variable = (
        "var<immediate> P: Params;" if uses_immediates else f"@group(0) @binding({binding}) var<uniform> P: Params;"
    )
    return [f"struct Params {{\n{members}}}", variable]


def _directives(parts: Sequence[frozenset[str]], target: Target) -> list[str]:
    """`enable` lines: Tint wants one for each extension in use, naga refuses the one for subgroups."""
    directives = ["enable f16;"] if any("f16" in names for names in parts) else []
    if target.dialect == "tint":
        names = frozenset().union(*parts)
        directives += [f"enable {name};" for name, marks in _TINT_EXTENSIONS.items() if any(map(marks, names))]
        if any(map(_TINT_EXTENSIONS[_MATRICES], names)):
            # Dawn cannot see that a subgroup's number is the same for all of it.
            directives.append("diagnostic(off, chromium.subgroup_matrix_uniformity);")
    return directives


_MATRICES = "chromium_experimental_subgroup_matrix"


# Extension → whether an identifier needs it.
_TINT_EXTENSIONS: dict[str, Callable[[str], bool]] = {
    "subgroups": lambda name: name.startswith("subgroup"),
    "subgroup_size_control": lambda name: name == "subgroup_size",
    _MATRICES: lambda name: name.startswith("subgroup_matrix"),
}


# The library

_VARIANTS = {True: "native", False: "emulated"}


@dataclass(frozen=True)
class _Library:
    """The declarations of ``kernels/lib`` by name, and the text of the variables that come with some of them."""

    table: dict[str, Declaration]
    variables: dict[str, str]


@cache
def _library(int64: bool, rounds_f16: bool) -> _Library:
    folder = files("torch_webgpu") / "kernels" / "lib"
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".wgsl"))
    names.remove(f"i64_{_VARIANTS[not int64]}.wgsl")
    names.remove(f"f16_rounding_{_VARIANTS[not rounds_f16]}.wgsl")
    result = _Library({}, {})
    owner = ""
    for name in names:
        module = Module.parse((folder / name).read_text("utf-8")).without_comments()
        for gap, declaration in zip(module.gaps, module.declarations):
            if declaration.kind == "var":
                result.variables[owner] = result.variables.get(owner, "") + gap + declaration.text
            else:
                owner = declaration.name
                result.table[owner] = declaration
    return result


def library(target: Target) -> dict[str, Declaration]:
    """Every declaration of ``kernels/lib`` for a target, by name. Variables come with the declaration before them."""
    return _library(target.int64, target.rounds_f16).table


def library_function(name: str) -> str | None:
    """The body of a library function, for targets with 64-bit integers; None where there is none of this name."""
    found = _library(True, False)
    declaration = found.table.get(name)
    body = None if declaration is None else declaration.body
    return None if body is None else body + found.variables.get(name, "")


# Storage buffers


@dataclass(frozen=True)
class _Variable:
    """A binding that the body uses as a variable, which only a whole buffer can be."""

    name: str
    type: str
    access: str
    windows: int = 1

    @classmethod
    def of(cls, binding: Binding, target: Target, windows: int) -> _Variable:
        if windows > 1:
            raise BindingError(
                f"binding {binding.name}: its storage takes more than the {target.max_binding_bytes} bytes that one "
                "binding of this adapter covers, and a kernel that indexes it by itself needs all of it in one. Pass a "
                "tensor with a smaller storage of its own, such as a part of it that was cloned"
            )
        return cls(binding.name, binding.type, binding.access)

    def declarations(self, first_binding: int) -> list[str]:
        return [f"@group(0) @binding({first_binding}) var<storage, {self.access}> {self.name}: {self.type};"]

    @property
    def names(self) -> frozenset[str]:
        """What its declaration mentions."""
        return frozenset(filter(is_name, tokens(self.type)))


@dataclass(frozen=True)
class _Buffer:
    """How one binding is declared on one host: an array of ``element`` (atomic or not), bound ``windows`` times.

    Where the body asks for groups of four, the array is one of vectors of ``lanes`` elements, which GPUs load at once.
    ``clamped``: accesses beyond the end are of the last element, or vector.
    """

    name: str
    dtype: DType
    access: str
    element: str
    lanes: int
    atomic: bool
    windows: int
    window_bytes: int
    clamped: bool

    @classmethod
    def of(cls, binding: Binding, target: Target, windows: int, mentioned: frozenset[str], clamped: bool) -> _Buffer:
        try:
            dtype = BY_NAME[binding.dtype]
        except KeyError:
            raise BindingError(f"binding {binding.name}: no such dtype: {binding.dtype}") from None
        if dtype.name == "f64" and (not target.float64 or binding.mode == "atomic"):
            raise BindingError(f"binding {binding.name}: this host has no {binding.mode} float64 buffers")
        if binding.mode == "atomic" and binding.access == "read":
            raise BindingError(f"binding {binding.name}: an atomic buffer must be read_write")
        raw = f"{binding.name}_load_words4" in mentioned
        native_half = dtype.name == "f16" and target.float16 and binding.mode == "plain" and not raw
        packed = dtype.is_subword and not native_half
        # Two threads may store into the same word: an element-wise store into a packed buffer has to be atomic.
        atomic = binding.mode == "atomic" or (packed and f"{binding.name}_store" in mentioned)
        if packed:
            element = "u32"
        elif atomic:
            element = _atomic_element(binding.name, dtype, target, mentioned)
        elif dtype.name == "i64":
            element = dtype.element if target.int64 else "vec2<u32>"
        else:
            element = dtype.element
        lanes = 1
        if {f"{binding.name}_load4", f"{binding.name}_store4"} & mentioned:
            if atomic or dtype.itemsize > 4:
                raise BindingError(
                    f"binding {binding.name}: no groups of four of {dtype} in an atomic or 64-bit buffer"
                )
            lanes = dtype.itemsize if packed else 4
        if raw:
            if not packed:
                raise BindingError(f"binding {binding.name}: {dtype} does not lie packed in words")
            lanes = 4
        return cls(binding.name, dtype, binding.access, element, lanes, atomic, windows, target.window_bytes, clamped)

    @property
    def packed(self) -> bool:
        return self.dtype.is_subword and self.element == "u32"

    @property
    def compute(self) -> str:
        return self.dtype.compute

    @property
    def grouped(self) -> bool:
        """Whether four elements are one element of the array: vectors, or bytes in a word."""
        return self.lanes > 1 or (self.dtype.itemsize == 1 and not self.atomic)

    @property
    def vector(self) -> str:
        return f"vec{self.lanes}<{self.element}>" if self.lanes > 1 else self.element

    @property
    def variables(self) -> list[str]:
        return [f"{self.name}_w{k}" for k in range(self.windows)] if self.windows > 1 else [f"{self.name}_buf"]

    def declarations(self, first_binding: int) -> list[str]:
        element = f"atomic<{self.element}>" if self.atomic else self.vector
        return [
            f"@group(0) @binding({first_binding + k}) var<storage, {self.access}> {variable}: array<{element}>;"
            for k, variable in enumerate(self.variables)
        ]

    @property
    def names(self) -> frozenset[str]:
        """What its declaration mentions."""
        return frozenset({self.element})

    def accessors(self) -> dict[str, str]:
        """Every accessor this buffer can have, by name. ``x_raw_*`` count ``element``s, ``x_raw_*_vector`` vectors."""
        x, e = self.name, self.element
        table: dict[str, str] = {}
        read, write = ("atomicLoad(&{})", "atomicStore(&{}, v)") if self.atomic else ("{}", "{} = v")
        table[f"{x}_raw_get"] = self._on_element(f"{x}_raw_get(k: u32) -> {e}", f"return {read};")
        load, store = self._conversions()
        table[f"{x}_load"] = f"fn {x}_load(i: u32) -> {self.compute} {{ {load} }}"
        if self.packed:
            table[f"{x}_load_word"] = f"fn {x}_load_word(w: u32) -> u32 {{ return {x}_raw_get(w); }}"
        if self.lanes == 4 and self.packed:
            get = self._on_element(f"{x}_raw_get_vector(k: u32) -> {self.vector}", "return {};", whole=True)
            table[f"{x}_raw_get_vector"] = get
            table[f"{x}_load_words4"] = f"fn {x}_load_words4(g: u32) -> vec4<u32> {{ return {x}_raw_get_vector(g); }}"
        if self.access == "read_write":
            table[f"{x}_raw_set"] = self._on_element(f"{x}_raw_set(k: u32, v: {e})", f"{write};")
            table[f"{x}_store"] = f"fn {x}_store(i: u32, v: {self.compute}) {{ {store} }}"
            if self.packed:
                table[f"{x}_store_word"] = f"fn {x}_store_word(w: u32, v: u32) {{ {x}_raw_set(w, v); }}"
            if self.atomic:
                table |= self._atomics()
        return table | self._groups_of_four() if self.grouped else table

    def _groups_of_four(self) -> dict[str, str]:
        """``x_load4`` and ``x_store4``: elements 4g to 4g + 3 as a vector of the compute type."""
        x, d, t = self.name, self.dtype.name, f"vec4<{self.compute}>"
        words = self.dtype.itemsize if self.packed else self.lanes
        load, stored = f"{t}(w)", ["v"]
        if self.packed:
            names = ["w"] if words == 1 else ["w.x", "w.y"]
            places = [(name, f"{k}u") for name in names for k in range(4 // words)]
            load = f"{t}({', '.join(f'{d}_unpack({word}, {k})' for word, k in places)})"
            stored = [self._packed_word("xyzw"[4 * k // words : 4 * (k + 1) // words]) for k in range(words)]
        get = self._on_element(f"{x}_raw_get_vector(k: u32) -> {self.vector}", "return {};", whole=True)
        read = f"let w = {x}_raw_get_vector(g);"
        write = f"{x}_raw_set_vector(g, {self.vector}({', '.join(stored)}));"
        if self.lanes > words:  # The kernel mentions x_load_words4, too: a vector is two or four groups of elements.
            at, w = ("g / 4u", "r[g % 4u]") if words == 1 else ("g / 2u", "select(r.xy, r.zw, g % 2u == 1u)")
            read = f"let r = {x}_raw_get_vector({at}); let w = {w};"
            write = " ".join(f"{x}_raw_set({words}u * g + {k}u, {word});" for k, word in enumerate(stored))
        table = {
            f"{x}_raw_get_vector": get,
            f"{x}_load4": f"fn {x}_load4(g: u32) -> {t} {{ {read} return {load}; }}",
        }
        if self.access == "read_write":
            put = self._on_element(f"{x}_raw_set_vector(k: u32, v: {self.vector})", "{} = v;", whole=True)
            table[f"{x}_raw_set_vector"] = put
            table[f"{x}_store4"] = f"fn {x}_store4(g: u32, v: {t}) {{ {write} }}"
        return table

    def _packed_word(self, lanes: str) -> str:
        """The word of these elements of the vector ``v``."""
        d = self.dtype.name
        if d == "bf16":
            return f"bf16_pair(v.{lanes[0]}, v.{lanes[1]})"
        word = "0u"
        for k, lane in enumerate(lanes):
            word = f"{d}_pack({word}, {k}u, v.{lane})"
        return word

    def _on_element(self, signature: str, statement: str, whole: bool = False) -> str:
        """A function on element ``k``, which ``statement`` writes ``{}``: picks the window that holds it.

        With ``whole``, ``k`` counts the array's vectors.
        """
        step = 1 if whole else self.lanes
        outer, inner = ("{1}", "") if step == 1 else (f"{{1}} / {step}u", f"[{{1}} % {step}u]")
        place = f"{{0}}[{f'min({outer}, arrayLength(&{{0}}) - 1u)' if self.clamped else outer}]{inner}"
        if self.windows == 1:
            return f"fn {signature} {{ {statement.format(place.format(self.variables[0], 'k'))} }}"
        size = self.window_bytes // type_bytes(self.element) // (self.lanes if whole else 1)
        *others, last = [statement.format(place.format(variable, "r")) for variable in self.variables]
        # The last window is the default, outside the switch: every path of a function must be seen to return.
        ends = "" if statement.startswith("return") else " return;"
        cases = "".join(f"    case {k}u: {{ {text}{ends} }}\n" for k, text in enumerate(others))
        choose = f"  switch k / {size}u {{\n{cases}    default: {{}}\n  }}\n"
        return f"fn {signature} {{\n  let r = k % {size}u;\n{choose}  {last}\n}}"

    def _conversions(self) -> tuple[str, str]:
        """Statements of ``x_load`` and ``x_store``: between the array's element and the compute type."""
        x, d = self.name, self.dtype.name
        if self.packed:
            word, k = _packed_index(self.dtype)
            bits = self.dtype.bits
            clear = f"{x}_raw_and({word}, ~({(1 << bits) - 1:#x}u << ({bits}u * ({k}))));"
            store = f"{clear} {x}_raw_or({word}, {d}_pack(0u, {k}, v));"
            return f"return {d}_unpack({x}_raw_get({word}), {k});", store
        if self.atomic and (halves := self.dtype.halves) is not None:
            load = halves.join.format(f"{x}_raw_get(2u * i)", f"{x}_raw_get(2u * i + 1u)")
            return f"return {load};", f"{x}_raw_set(2u * i, {halves.low}); {x}_raw_set(2u * i + 1u, {halves.high});"
        if self.element == self.compute or d == "i64":
            return f"return {x}_raw_get(i);", f"{x}_raw_set(i, v);"
        convert = "bitcast<{}>" if self.atomic else "{}"
        load, store = convert.format(self.compute), convert.format(self.element)
        return f"return {load}({x}_raw_get(i));", f"{x}_raw_set(i, {store}(v));"

    def _atomics(self) -> dict[str, str]:
        """``x_atomic_add/min/max``. 64-bit types have an add without a result: its two halves are not one operation."""
        x, e, t = self.name, self.element, self.compute
        table = {
            f"{x}_raw_{op}": self._on_element(
                f"{x}_raw_{op}(k: u32, v: {e}) -> {e}", f"return atomic{op.title()}(&{{}}, v);"
            )
            for op in ("add", "min", "max", "and", "or")
        }
        exchange = "return atomicCompareExchangeWeak(&{}, old, new_value).exchanged;"
        table[f"{x}_raw_exchange"] = self._on_element(
            f"{x}_raw_exchange(k: u32, old: {e}, new_value: {e}) -> bool", exchange
        )
        if self.dtype.name == "i64":
            table[f"{x}_atomic_add"] = _ADD_I64.format(x=x)
        elif self.dtype.name == "c64":
            table |= {f"{x}_add_part": _ADD_PART.format(x=x), f"{x}_atomic_add": _ADD_C64.format(x=x)}
        else:
            table |= self._compare_exchange_loops()
        if self.element == self.compute:
            for op in ("add", "min", "max"):
                name = f"{x}_atomic_{op}"
                table[name] = f"fn {name}(i: u32, v: {t}) -> {t} {{ return {x}_raw_{op}(i, v); }}"
        return table

    def _compare_exchange_loops(self) -> dict[str, str]:
        x, t, d = self.name, self.compute, self.dtype.name
        word, k = _packed_index(self.dtype) if self.packed else ("i", "0u")
        decode = f"{d}_unpack(old, {k})" if self.packed else f"bitcast<{t}>(old)"
        encode = f"{d}_pack(old, {k}, new_value)" if self.packed else f"bitcast<{self.element}>(new_value)"
        table = {}
        for op, combine in {**_COMBINE[t], "set": "v"}.items():
            table[f"{x}_atomic_{op}"] = _EXCHANGE_LOOP.format(
                x=x, op=op, t=t, word=word, decode=decode, encode=encode, combine=combine
            )
        return table


def _accessors(buffer: _Buffer) -> dict[str, Declaration]:
    """Every accessor that a buffer can have, by name. Their text, which kernels share, is parsed once."""
    return Module.parse("\n".join(buffer.accessors().values())).by_name


def _atomic_element(name: str, dtype: DType, target: Target, mentioned: frozenset[str]) -> str:
    """i32 has atomics of its own; f32 where the adapter has them and only sums are wanted (there is nothing else)."""
    if dtype.name == "i32":
        return "i32"
    only_sums = not {f"{name}_atomic_{op}" for op in ("min", "max", "mul", "set")} & mentioned
    return "f32" if dtype.name == "f32" and target.float32_atomics and only_sums else "u32"


def _packed_index(dtype: DType) -> tuple[str, str]:
    """WGSL for the word that holds element ``i`` and the element's place in that word."""
    return f"i / {dtype.per_word}u", f"i % {dtype.per_word}u"


# What an atomic operation does to the value `current` of a compute type; NaN wins a float's min and max, as in torch.
# `set` is for packed types: a plain store clears and fills in two steps, between which another thread's may come.
_COMBINE = {
    "f32": {"add": "current + v", "mul": "current * v", "min": "min_f(current, v)", "max": "max_f(current, v)"},
    "i32": {"add": "current + v", "mul": "current * v", "min": "min(current, v)", "max": "max(current, v)"},
    "u32": {"add": "current + v", "mul": "current * v", "min": "min(current, v)", "max": "max(current, v)"},
    "bool": {"add": "current || v", "mul": "current && v", "min": "current && v", "max": "current || v"},
}

_EXCHANGE_LOOP = """fn {x}_atomic_{op}(i: u32, v: {t}) -> {t} {{
  var current: {t};
  loop {{
    let old = {x}_raw_get({word});
    current = {decode};
    let new_value = {combine};
    if ({x}_raw_exchange({word}, old, {encode})) {{ break; }}
  }}
  return current;
}}"""

# The carry follows from the old low word, so the sum of any number of concurrent additions is exact.
_ADD_I64 = """fn {x}_atomic_add(i: u32, v: I64) {{
  let low = i64_lo(v);
  let old = {x}_raw_add(2u * i, low);
  {x}_raw_add(2u * i + 1u, i64_hi(v) + select(0u, 1u, old > 0xffffffffu - low));
}}"""

_ADD_PART = """fn {x}_add_part(k: u32, v: f32) {{
  loop {{
    let old = {x}_raw_get(k);
    if ({x}_raw_exchange(k, old, bitcast<u32>(bitcast<f32>(old) + v))) {{ return; }}
  }}
}}"""

_ADD_C64 = (
    """fn {x}_atomic_add(i: u32, v: vec2<f32>) {{ {x}_add_part(2u * i, v.x); {x}_add_part(2u * i + 1u, v.y); }}"""
)
