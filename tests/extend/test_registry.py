"""The registry of operators, kernels, derivatives, functions, methods and dtypes: life cycles, and errors' words."""

from __future__ import annotations

import gc
import inspect
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from torch.webgpu import registry  # isort: skip
from torch_webgpu.aten.dispatch.fallback import fallback_stats

aten = torch.ops.aten


# ---- operators


def test_an_operator_is_described_as_the_dispatcher_knows_it() -> None:
    add = registry.get_op_info("add")
    assert add == registry.get_op_info("aten::add") == registry.get_op_info(aten.add)
    assert (add.name, add.kind, add.way, add.module, add.autograd) == (
        "aten::add", "binary", "native", "arithmetic", "formula",
    )  # fmt: skip
    assert add.overloads["Tensor"] is aten.add.Tensor
    assert "Tensor" in add.native
    assert str(aten.add.Tensor._schema) in add.schemas
    assert registry.op_schema("add.Scalar") is aten.add.Scalar._schema
    assert registry.get_op_schema("softmax.int") is aten.softmax.int._schema


@pytest.mark.parametrize(
    ("name", "kind", "way", "autograd"),
    [
        ("exp", "unary", "native", "formula"),
        ("sum", "reduction", "native", "formula"),
        ("bernoulli_", "random", "native", "formula"),
        ("einsum", "other", "composed", "composed"),
        ("t", "view", "composed", "formula"),
        ("_dirichlet_grad", "other", "CPU", "formula"),
        ("where.self", "elementwise", "native", "formula"),
        ("eq.Tensor", "binary", "native", "formula"),
    ],
)
def test_kind_way_and_derivative(name: str, kind: str, way: str, autograd: str) -> None:
    info = registry.get_op_info(name)
    assert (info.kind, info.way, info.autograd) == (kind, way, autograd)
    assert registry.get_op_kind(name) == kind


def test_the_way_is_what_happens(device: torch.device) -> None:
    """Of what falls back now, the registry says so."""
    x = torch.eye(3, device=device)
    calls = {"_dirichlet_grad": lambda: torch._dirichlet_grad(x, x, x), "exp": x.exp, "trace": x.trace}
    for name, call in calls.items():
        before = sum(fallback_stats().values())
        call()
        ran_on_cpu = sum(fallback_stats().values()) > before
        assert ran_on_cpu == (registry.get_op_info(name).way == "CPU"), name


def test_a_wrong_name_is_a_lookup_error_with_the_nearest() -> None:
    for ask in (registry.get_op_info, registry.get_op_schema, registry.get_op_kind, registry.get_kernel,
                registry.get_autograd, registry.unregister_kernel):  # fmt: skip
        with pytest.raises(LookupError, match=r"no operator 'addd' \(did you mean 'add'\?\)") as caught:
            ask("addd")
        assert isinstance(caught.value, registry.NotRegisteredError)
    with pytest.raises(LookupError, match=r"'aten::add' has no overload 'Tensr' \(did you mean 'Tensor'\?\)"):
        registry.get_op_info("add.Tensr")
    with pytest.raises(LookupError, match=r"no operator 'atn::add' \(did you mean 'aten::add'\?\)"):
        registry.get_op_info("atn::add")
    with pytest.raises(TypeError, match="an operator's name is a string"):
        registry.get_op_info(3)  # type: ignore[arg-type]
    assert not registry.has_op("addd")
    assert registry.has_op("add")


def test_operators_are_listed_by_kind_and_way() -> None:
    binary = registry.list_ops("binary")
    assert {"aten::add", "aten::maximum", "aten::atan2"} <= set(binary)
    assert not {"aten::exp", "aten::add_", "aten::sum"} & set(binary)
    native = registry.list_ops(way="native")
    assert "aten::convolution_overrideable" in native
    assert "aten::_dirichlet_grad" in registry.list_ops(way="CPU")
    with pytest.raises(registry.OpKindError, match=r"no kind of operators 'binry'.*did you mean 'binary'"):
        registry.list_ops("binry")  # type: ignore[arg-type]


# ---- kernels


def test_kernels_are_those_of_the_dispatcher(device: torch.device) -> None:
    kernel = registry.get_kernel("add.Tensor")
    assert (kernel.name, kernel.device, kernel.origin, kernel.kind) == (
        "aten::add.Tensor", "webgpu", "arithmetic", "binary",
    )  # fmt: skip
    x = torch.arange(3.0).to(device)
    if device.type == "webgpu":
        assert kernel(x, x).tolist() == [0, 2, 4]
    on_cpu = registry.get_kernel("add.Tensor", device="cpu")
    assert "RegisterCPU" in on_cpu.origin
    assert on_cpu(torch.ones(2), torch.ones(2)).tolist() == [2, 2]
    assert registry.has_kernel("add.Tensor")
    assert not registry.has_kernel("einsum")
    assert not registry.has_kernel("addd")
    with pytest.raises(LookupError, match="aten::einsum has no kernel for webgpu"):
        registry.get_kernel("einsum")
    with pytest.raises(ValueError, match="'wbgpu' is no type of device"):
        registry.has_kernel("add", device="wbgpu")


def test_kernels_are_found_by_a_predicate() -> None:
    found = registry.find_kernel(lambda kernel: kernel.origin == "conv" and "backward" in kernel.name)
    assert found is not None
    assert found.name == "aten::convolution_backward_overrideable"
    assert registry.find_kernel(lambda kernel: False) is None
    names = registry.list_kernels(namespace="aten")
    assert {"aten::add.Tensor", "aten::exp"} <= set(names)
    assert not any(name.startswith("aten::einsum") for name in names)


def test_scalar_kernels() -> None:
    assert registry.has_scalar_kernel("add")
    assert registry.get_scalar_kernel("add").name == "aten::add.Scalar"
    assert not registry.has_scalar_kernel("exp")
    with pytest.raises(registry.OpKindError, match="aten::exp is unary, and has no overload with a number") as caught:
        registry.get_scalar_kernel("exp")
    assert isinstance(caught.value, TypeError)


def test_a_kernel_takes_the_place_of_another_until_it_is_unregistered(device: torch.device) -> None:
    x = torch.arange(3.0).to(device)
    before = x.sinc().tolist()
    calls: list[Any] = []

    def sinc(self: Tensor) -> Tensor:
        calls.append(self)
        return self * 100

    with pytest.raises(registry.AlreadyRegisteredError, match="aten::sinc has a kernel for webgpu already"):
        registry.register_kernel("sinc", sinc)
    with registry.register_kernel("sinc", sinc, replace=True) as handle:
        assert x.sinc().tolist() == [0, 100, 200]
        assert registry.get_kernel("sinc").origin == "registered"
    assert len(calls) == 1
    assert not handle.is_registered
    assert x.sinc().tolist() == before
    assert registry.get_kernel("sinc").origin != "registered"
    with pytest.raises(LookupError, match="this program registered no kernel for aten::sinc on webgpu"):
        registry.unregister_kernel("sinc")


def test_kernels_of_a_program_lie_on_each_other(device: torch.device) -> None:
    x = torch.ones(1).to(device)
    before = x.sinc()
    first = registry.register_kernel("sinc", lambda self: self * 5, replace=True)
    second = registry.register_kernel("sinc", lambda self: self * 7, replace=True)
    assert x.sinc() == 7
    second.unregister()
    assert x.sinc() == 5
    third = registry.register_kernel("sinc", lambda self: self * 9, replace=True)
    first.unregister()
    assert x.sinc() == 9
    third.unregister()
    assert x.sinc() == before


def test_an_operator_stays_when_its_handle_is_dropped(device: torch.device) -> None:
    def twice(x: Tensor) -> Tensor:
        return x * 2

    registry.register_forward("stays::twice", twice)
    gc.collect()
    assert torch.ops.stays.twice(torch.ones(1).to(device)) == 2
    with pytest.raises(ValueError, match="stays::twice"):
        registry.register_forward("stays::twice", twice)


@pytest.mark.parametrize(
    ("kernel", "says"),
    [
        (lambda: None, "too many positional arguments"),
        (lambda self, other: None, "alpha"),
        (3, "has to be a function, not 3"),
    ],
)
def test_a_kernel_of_another_signature_is_refused(kernel: Any, says: str) -> None:
    with pytest.raises(registry.KernelSignatureError, match=says) as caught:
        registry.register_kernel("add.Tensor", kernel, replace=True)
    assert isinstance(caught.value, TypeError)
    assert "aten::add.Tensor" in str(caught.value)


# ---- forward and backward


@pytest.fixture
def scale() -> Iterator[registry.RegistrationHandle]:
    """An operator of this program: ``registry_test::scale``, for webgpu, with a derivative."""

    def forward(x: Tensor, by: float) -> Tensor:
        return x * by

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.by = inputs[1]

    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad * ctx.by, None

    handle = registry.register_forward("registry_test::scale", forward, fake=lambda x, by: torch.empty_like(x))
    registry.register_backward("registry_test::scale", backward, setup_context=setup_context)
    yield handle
    handle.unregister()


def test_an_operator_is_registered_used_and_unregistered(
    scale: registry.RegistrationHandle, device: torch.device
) -> None:
    x = torch.arange(3.0).to(device).requires_grad_()
    y = torch.ops.registry_test.scale(x, 3.0)
    y.sum().backward()
    assert y.tolist() == [0, 3, 6]
    assert x.grad is not None
    assert x.grad.tolist() == [3, 3, 3]
    assert str(registry.get_op_schema("registry_test::scale")) == "registry_test::scale(Tensor x, float by) -> Tensor"
    assert registry.has_autograd("registry_test::scale")
    assert callable(registry.get_autograd("registry_test::scale"))
    assert "registry_test::scale" in registry.list_ops(namespace="registry_test")
    info = registry.get_op_info("registry_test::scale")
    assert (info.way, info.autograd) == ("native", "formula")
    torch.library.opcheck(torch.ops.registry_test.scale.default, (x.detach(), 2.0))
    scale.unregister()
    assert not registry.has_op("registry_test::scale")
    with pytest.raises(LookupError, match="there is no operator 'registry_test::scale'"):
        registry.get_op_info("registry_test::scale")
    with pytest.raises((AttributeError, RuntimeError, NotImplementedError)):
        torch.ops.registry_test.scale(x, 3.0)


def test_a_kernel_for_another_device_joins_an_operator(scale: registry.RegistrationHandle) -> None:
    with pytest.raises(NotImplementedError):
        torch.ops.registry_test.scale(torch.ones(2), 3.0)
    with registry.register_forward("registry_test::scale", lambda x, by: x * by, device="cpu"):
        assert torch.ops.registry_test.scale(torch.ones(2), 3.0).tolist() == [3, 3]
        assert registry.has_kernel("registry_test::scale", device="cpu")
    assert not registry.has_kernel("registry_test::scale", device="cpu")


def test_a_derivative_is_registered_once_and_taken_back(scale: registry.RegistrationHandle) -> None:
    with pytest.raises(registry.AlreadyRegisteredError, match="has a derivative already: it is one that the program"):
        registry.register_autograd("registry_test::scale", lambda ctx, grad: (grad, None))
    registry.unregister_autograd("registry_test::scale")
    assert not registry.has_autograd("registry_test::scale")
    with pytest.raises(LookupError, match="has no derivative: register_autograd gives it one"):
        registry.get_autograd("registry_test::scale")
    with pytest.raises(LookupError, match="registered no derivative of registry_test::scale"):
        registry.unregister_autograd("registry_test::scale")


def test_pytorchs_derivatives_are_pytorchs() -> None:
    assert registry.get_autograd("exp") == "PyTorch's (derivatives.yaml)"
    assert registry.get_autograd("einsum") == "composed of those of the operators that it calls"
    with pytest.raises(registry.AlreadyRegisteredError, match="aten::exp has a derivative already"):
        registry.register_backward("exp", lambda ctx, grad: grad)


def test_what_cannot_be_an_operator() -> None:
    with pytest.raises(registry.InvalidConfigError, match="registry_test::bad has no schema"):
        registry.register_forward("registry_test::bad", lambda x: x)
    with pytest.raises(registry.InvalidConfigError, match="registry_test::bad has no schema"):
        registry.register_forward("registry_test::bad", lambda x: x, schema="(Tensr x) -> Tensor")
    with pytest.raises(ValueError, match="exists, with the schema"):
        registry.register_forward("exp", lambda x: x, schema="(Tensor x) -> Tensor")
    with pytest.raises(LookupError, match="did you mean 'exp'"):
        registry.register_forward("expp", lambda x: x)
    assert not registry.has_op("registry_test::bad")


def test_a_scalar_forward(device: torch.device) -> None:
    x = torch.arange(3.0).to(device)
    with registry.register_scalar_forward("fmod", lambda self, other: self * 7, replace=True):
        assert torch.fmod(x, 2.0).tolist() == [0, 7, 14]
    assert torch.fmod(x, 2.0).tolist() == [0, 1, 0]
    with pytest.raises(registry.OpKindError):
        registry.register_scalar_forward("exp", lambda self: self)


EXPRESSION, REDUCTION = "x / (1.0 + exp(-x))", torch.webgpu.Reduction("x * x", "sum")
KERNEL = torch.webgpu.Kernel("""
    @group(0) @binding(0) var<storage, read> x: array<f32>;
    @group(0) @binding(1) var<storage, read_write> out: array<f32>;
    @compute @workgroup_size(64) fn negated(@builtin(global_invocation_id) g: vec3<u32>) {
      if (g.x < arrayLength(&out)) { out[g.x] = -x[g.x]; }
    }
""")


@pytest.mark.parametrize(
    ("computed", "made_of", "kind"),
    [(EXPRESSION, "expression", "unary"), (REDUCTION, "reduction", "reduction"), (KERNEL, "kernel", "other")],
    ids=["expression", "reduction", "kernel"],
)
def test_operators_made_of_wgsl_are_listed_with_their_definition(
    device: torch.device, computed: Any, made_of: str, kind: str
) -> None:
    def function(x: Tensor) -> Any:
        return computed

    name = "registry_test::of_wgsl"
    overload = torch.webgpu.op(name)(function)
    info = registry.get_op_info(name)
    assert info.definition is not None
    assert (info.definition.kind, info.kind, info.way) == (made_of, kind, "native")
    assert info.overloads["default"] is overload
    assert name in registry.list_ops(namespace="registry_test")
    assert name in {one.name for one in registry.coverage_report(dtypes=[]).operators}
    (row,) = registry.coverage_report([name], dtypes=[torch.float32]).operators
    assert row.dtypes == {"float32": "native"}
    assert overload(torch.ones(3, device=device)) is not None
    registry.unregister_op(name)
    assert not registry.has_op(name)
    with pytest.raises(registry.NotRegisteredError):
        registry.unregister_op(name)


def test_a_shader_is_the_kernel_of_an_operator_that_writes(device: torch.device) -> None:
    library = torch.webgpu.compile_shader("""
        @group(0) @binding(0) var<storage, read_write> y: array<f32>;
        @group(0) @binding(1) var<storage, read> x: array<f32>;
        @compute @workgroup_size(64) fn double_into(@builtin(global_invocation_id) g: vec3<u32>) {
          if (g.x < arrayLength(&y)) { y[g.x] = 2.0 * x[g.x]; }
        }
    """)
    with registry.register_forward(
        "registry_test::double_into", library.double_into, schema="(Tensor(a!) y, Tensor x) -> ()"
    ):
        x, y = torch.arange(5.0).to(device), torch.zeros(5, device=device)
        torch.ops.registry_test.double_into(y, x)
        assert y.tolist() == [0, 2, 4, 6, 8]
        assert registry.get_kernel("registry_test::double_into").origin == "registered"
    with pytest.raises(registry.KernelSignatureError, match="'double_into' takes 2 arguments and returns nothing"):
        registry.register_forward("registry_test::other", library.double_into, schema="(Tensor x) -> Tensor")
    assert not registry.has_op("registry_test::other")


# ---- functions and methods


@pytest.mark.parametrize("what", ["function", "method"])
def test_functions_and_methods_come_and_go(what: str) -> None:
    register, unregister, has, get, names = (
        getattr(registry, name.format(what))
        for name in ("register_{}", "unregister_{}", "has_{}", "get_{}", "list_{}s")
    )

    def thrice(x: Tensor) -> Tensor:
        return x * 3

    with register("thrice", thrice):
        assert has("thrice")
        assert get("thrice") is thrice
        assert names() == ["thrice"]
        with pytest.raises(ValueError, match="is registered already"):
            register("thrice", thrice)
        with pytest.raises(LookupError, match=r"'thrise' is registered \(did you mean 'thrice'\?\)"):
            get("thrise")
        x = torch.ones(2)
        tripled = torch.webgpu.functional.thrice(x) if what == "function" else x.webgpu.thrice()
        assert tripled.tolist() == [3, 3]
    assert not has("thrice")
    with pytest.raises(registry.NotRegisteredError):
        unregister("thrice")
    for where in (torch.webgpu.functional, x.webgpu):
        with pytest.raises(AttributeError):
            where.thrice  # noqa: B018


def test_a_handle_leaves_what_took_its_place() -> None:
    old = registry.register_function("thrice", lambda x: x * 3)
    new = registry.register_function("thrice", lambda x: x + x + x, replace=True)
    old.unregister()
    assert registry.has_function("thrice")
    new.unregister()
    assert not registry.has_function("thrice")


# ---- dtypes


def test_dtypes_of_pytorch_and_of_the_program(examples: Any) -> None:
    assert registry.get_dtype("float16") is torch.float16
    half = registry.get_dtype_info(torch.float16)
    assert (half.name, half.bits, half.wgsl, half.is_floating_point, half.is_custom) == (
        "float16",
        16,
        "f32",
        True,
        False,
    )
    assert {"float32", "int64", "bool", "float8_e4m3fn"} <= set(registry.list_dtypes())
    assert "int4x2" in registry.list_custom_dtypes()
    packed = registry.get_dtype_info("int4x2")
    assert packed.is_custom
    assert packed.config is registry.get_dtype("int4x2").config
    assert packed.bits == 5  # a scale of 32 bits for each 32 numbers of 4 bits
    assert not registry.has_dtype("float17")
    with pytest.raises(LookupError, match=r"no dtype 'float61' \(did you mean 'float64|float16'"):
        registry.get_dtype("float61")


def test_a_dtype_is_registered_and_unregistered() -> None:
    config = registry.DTypeConfig("registry_test_dtype", {"value": torch.float32}, load=lambda value: value,
                                  store=lambda x: {"value": x})  # fmt: skip
    dtype = registry.register_dtype(config)
    assert registry.get_dtype("registry_test_dtype").config is config
    assert dtype(torch.ones(2)).shape == (2,)
    with pytest.raises(registry.AlreadyRegisteredError):
        registry.register_dtype(config)
    assert registry.unregister_dtype("registry_test_dtype") is config
    with pytest.raises(registry.NotRegisteredError):
        registry.unregister_dtype("registry_test_dtype")


# ---- threads, names


def test_threads_that_register_one_operator_do_it_once() -> None:
    outcomes: list[Any] = []
    barrier = threading.Barrier(6)

    def register() -> None:
        barrier.wait()
        try:
            outcomes.append(registry.register_kernel("registry_test::shared", lambda x: x * 2))
        except registry.AlreadyRegisteredError:
            outcomes.append(None)

    library = torch.library.Library("registry_test", "FRAGMENT")
    library.define("shared(Tensor x) -> Tensor")
    threads = [threading.Thread(target=register) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    handles = [one for one in outcomes if one is not None]
    assert len(outcomes) == 6
    assert len(handles) == 1
    handles[0].unregister()
    assert not registry.has_kernel("registry_test::shared")
    library._destroy()


def test_every_public_name_has_a_docstring() -> None:
    for name in registry.__all__:
        value = getattr(registry, name)
        if inspect.isfunction(value) or inspect.isclass(value):
            assert inspect.getdoc(value), name


def test_errors_are_what_python_calls_them() -> None:
    bases = {
        "AlreadyRegisteredError": ValueError,
        "NotRegisteredError": LookupError,
        "KernelSignatureError": TypeError,
        "OpKindError": TypeError,
        "DTypeNotSupportedError": TypeError,
        "RegistrationFailedError": RuntimeError,
        "InvalidConfigError": ValueError,
        "DTypeNotFoundError": LookupError,
    }
    for name, base in bases.items():
        assert issubclass(getattr(registry, name), (base,))
        assert issubclass(getattr(registry, name), registry.RegistryError)
