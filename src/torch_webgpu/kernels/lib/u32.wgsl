// Unsigned division, by zero 0 (CPU PyTorch raises).

fn u32_div(a: u32, b: u32) -> u32 { return select(a / max(b, 1u), 0u, b == 0u); }

fn u32_rem(a: u32, b: u32) -> u32 { return select(a % max(b, 1u), 0u, b == 0u); }
