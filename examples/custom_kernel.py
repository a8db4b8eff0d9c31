"""Three kernels of one's own in WGSL, each checked against PyTorch: docs/custom-kernels.md has the rest.

An in-place SAXPY, a blur over the pixels of an image, and the running sums of segments, which a workgroup computes
together in memory that its threads share.

    python examples/custom_kernel.py
"""

from __future__ import annotations

import torch

import torch_webgpu  # noqa: F401  where PyTorch has an accelerator of its own, `import torch` alone does not load it

SAXPY = """
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<uniform> alpha: f32;

@compute @workgroup_size(64)
fn saxpy(@builtin(global_invocation_id) id: vec3<u32>) {
    y[id.x] += alpha * x[id.x];
}
"""

BLUR = """
@group(0) @binding(0) var<storage, read> image: array<f32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;

// By sizes and strides, so that a transposed image needs no copy.
fn pixel(row: i32, column: i32) -> f32 {
    let r = clamp(row, 0, i32(image_size_0) - 1);
    let c = clamp(column, 0, i32(image_size_1) - 1);
    return image[u32(r) * image_stride_0 + u32(c) * image_stride_1];
}

@compute @workgroup_size(8, 8)
fn blur(@builtin(global_invocation_id) id: vec3<u32>) {
    var sum = 0.0;
    for (var dy = -1; dy <= 1; dy++) {
        for (var dx = -1; dx <= 1; dx++) {
            sum += pixel(i32(id.y) + dy, i32(id.x) + dx);
        }
    }
    out[id.y * image_size_1 + id.x] = sum / 9.0;
}
"""

SEGMENTED_SCAN = """
override block: u32 = 128;

// Within each block: the sums of x up to each element, begun anew where a segment starts. (Blelloch, 1990.)
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> starts: array<i32>;
@group(0) @binding(2) var<storage, read_write> sums: array<f32>;

var<workgroup> value: array<f32, block>;
var<workgroup> flag: array<i32, block>;

@compute @workgroup_size(block)
fn segmented_scan(@builtin(local_invocation_index) l: u32, @builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.x;
    let inside = i < num_threads.x;
    value[l] = select(0.0, x[i], inside);
    flag[l] = select(1, starts[i], inside);
    workgroupBarrier();
    for (var step = 1u; step < block; step *= 2u) {
        var v = value[l];
        var f = flag[l];
        if (l >= step) {
            v += select(value[l - step], 0.0, f != 0);
            f |= flag[l - step];
        }
        workgroupBarrier();
        value[l] = v;
        flag[l] = f;
        workgroupBarrier();
    }
    if (inside) { sums[i] = value[l]; }
}
"""


def blurred(image: torch.Tensor) -> torch.Tensor:
    """The same in PyTorch's operators: the means over 3×3 pixels of an (H, W) image, its edge repeated."""
    padded = torch.nn.functional.pad(image[None, None], (1, 1, 1, 1), mode="replicate")
    return torch.nn.functional.avg_pool2d(padded, 3, 1)[0, 0]


def scanned(x: torch.Tensor, starts: torch.Tensor, block: int = 128) -> torch.Tensor:
    """The same in PyTorch's operators: running sums of (n,) numbers, minus what came before their segments."""
    begins = starts.bool() | (torch.arange(len(x), device=x.device) % block == 0)
    sums = x.cumsum(0)
    before = (sums - x)[begins]
    return sums - before[begins.cumsum(0) - 1]


def main() -> None:
    x, y = torch.randn(1000), torch.randn(1000)
    on_device = y.to("webgpu")
    torch.webgpu.compile_shader(SAXPY).saxpy(x.to("webgpu"), on_device, 0.5)
    torch.testing.assert_close(on_device.cpu(), y + 0.5 * x)
    print(f"saxpy: {on_device[:3].tolist()} …")

    image = torch.rand(240, 320)
    out = torch.empty(240, 320, device="webgpu")
    torch.webgpu.compile_shader(BLUR).blur(image.to("webgpu"), out, threads=(320, 240))
    torch.testing.assert_close(out.cpu(), blurred(image))
    print(f"blur: from {image.std():.3f} to {out.std().item():.3f} standard deviations")

    numbers, starts = torch.randint(0, 10, (1000,)).float(), (torch.rand(1000) < 0.05).int()
    sums = torch.empty(1000, device="webgpu")
    torch.webgpu.compile_shader(SEGMENTED_SCAN).segmented_scan(numbers.to("webgpu"), starts.to("webgpu"), sums)
    torch.testing.assert_close(sums.cpu(), scanned(numbers, starts))
    print(f"segmented scan: {int(starts.sum())} segments, the largest sum is {sums.max().item():.0f}")


if __name__ == "__main__":
    main()
