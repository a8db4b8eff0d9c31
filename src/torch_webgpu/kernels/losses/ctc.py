"""Connectionist temporal classification: the probabilities of paths through a target, and the gradient they give.

Log-probabilities are float32 (T, N, C); lengths int32 (N, 3): steps, labels, and where a sequence's labels begin; what
paths come to (N, T, 2 S + 1), S the longest target.
"""

from __future__ import annotations

from torch_webgpu.ir.operation import Operation, Spec
from torch_webgpu.kernels.points import Draft, PointKernel, wgsl_source
from torch_webgpu.target import Target
from torch_webgpu.wgsl.kernel import Binding
from torch_webgpu.wgsl.launch import Lowered, ParamList, Source, grid_for

THREADS = 256
COORDINATES = ("t", "n", "c")

_LABELS = {
    "i32": "fn label_of(i: u32) -> u32 { return u32(targets_load(i)); }",
    "i64": "fn label_of(i: u32) -> u32 { return i64_lo(targets_load(i)); }",
}
_IGNORE = "fn finish(n: u32, steps: u32, last: u32, base: f32) {}"
_LOSS = """fn finish(n: u32, steps: u32, last: u32, base: f32) {
  var total = select(0.0, -inf_f(), last > 0u);
  if (steps > 0u) {
    let row = row_of(n, steps - 1u);
    var ends = vec3(rows_load(row + last), -inf_f(), -inf_f());
    if (last > 0u) { ends.y = rows_load(row + last - 1u); }
    total = log_sum(ends, 0.0) + base;
  }
  loss_store(P.loss_offset + n, -total);
}"""
_ROW = "fn row_of(n: u32, i: u32) -> u32 { return (2u * n + i % 2u) * P.states; }"


def lower_paths(
    op: Operation, alias: tuple[int, ...], target: Target, blank: int, target_step: int, reverse: bool
) -> Lowered:
    """Arguments: log_probs, targets, lengths, paths and, unless ``reverse``, the loss (N,). A workgroup a sequence."""
    log_probs, targets, _, paths = op.args[:4]
    kernel = Draft(COORDINATES)
    _target_params(kernel.params, log_probs, blank, target_step)
    for arg, (name, spec) in enumerate(zip(("log_probs", "targets", "lengths", "paths"), op.args)):
        kernel.binding(Binding(name, spec.dtype, "read_write" if name == "paths" else "read"), arg)
    kernel.binding(Binding("rows", "f32", "read_write"), len(op.args))
    for name, stride in zip(("s_t", "s_n", "s_c"), log_probs.strides):
        kernel.param(f"log_probs_{name}", stride)
    kernel.param("log_probs_offset", Source("offset", 0))
    kernel.param("paths_s_n", paths.strides[0])
    kernel.param("paths_s_t", paths.strides[1])
    kernel.param("batch", log_probs.shape[1])
    kernel.param("reverse", int(reverse))
    kernel.param("states", paths.shape[2])
    if not reverse:
        kernel.binding(Binding("loss", "f32", "read_write"), 4)
        kernel.param("loss_offset", Source("offset", 4))
    text = [
        _LABELS[targets.dtype],
        wgsl_source("losses/ctc_states"),
        _ROW,
        _IGNORE if reverse else _LOSS,
        wgsl_source("losses/ctc_paths"),
    ]
    batch = log_probs.shape[1]
    launch = kernel.build(op.name, text, THREADS, grid_for(batch * THREADS))
    return Lowered((launch,), (batch * 2 * paths.shape[2] * 4,))


def lower_gradient(
    op: Operation, alias: tuple[int, ...], target: Target, blank: int, target_step: int, zero_infinity: bool
) -> Lowered:
    """Arguments: log_probs, targets, lengths, grad (N,), the loss (N,), paths forwards and backwards, the result."""
    log_probs, targets, _, grad, loss, forwards, backwards, out = op.args
    kernel = PointKernel(op.name, target, COORDINATES)
    kernel.input("log_probs", 0, log_probs)
    kernel.binding(Binding("targets", targets.dtype), 1)
    kernel.binding(Binding("lengths", "i32"), 2)
    for arg, (name, spec) in enumerate({"grad": grad, "neg_log_likelihood": loss}.items(), 3):
        kernel.binding(Binding(name, "f32"), arg)
        kernel.param(f"{name}_offset", Source("offset", arg))
        kernel.param(f"{name}_s_n", spec.strides[0])
    for arg, (name, spec) in enumerate({"log_alpha": forwards, "log_beta": backwards}.items(), 5):
        kernel.binding(Binding(name, "f32"), arg)
        kernel.param(f"{name}_offset", Source("offset", arg))
        kernel.param(f"{name}_s_n", spec.strides[0])
        kernel.param(f"{name}_s_t", spec.strides[1])
    _target_params(kernel.params, log_probs, blank, target_step)
    kernel.param("zero_infinity", int(zero_infinity))
    kernel.output("out", 7, out)
    kernel.add(_LABELS[targets.dtype], wgsl_source("losses/ctc_states"))
    return Lowered((kernel.launch(wgsl_source("losses/ctc_gradient")),))


def _target_params(params: ParamList, log_probs: Spec, blank: int, target_step: int) -> None:
    """What ctc_states.wgsl asks for, beside its buffers."""
    params.add("classes", log_probs.shape[2])
    params.add("blank", blank)
    params.add("targets_offset", Source("offset", 1))
    params.add("targets_step", target_step)
    params.add("lengths_offset", Source("offset", 2))
