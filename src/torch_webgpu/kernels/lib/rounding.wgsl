// f32 values rounded to what a half type can hold: between two operations on half tensors.

fn round_f16(v: f32) -> f32 { return f16_to_f32(f16_from_f32(v)); }

fn round_bf16(v: f32) -> f32 { return bitcast<f32>(bf16_from_f32(v) << 16u); }
