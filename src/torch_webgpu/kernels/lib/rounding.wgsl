// f32 values rounded to what a half type can hold: between two operations on half tensors.
// To float16: f16_rounding_*.wgsl.

fn round_bf16(v: f32) -> f32 { return bitcast<f32>(bf16_above(v) & 0xffff0000u); }
