// Operand X of a product on subgroup matrices (matrix_tile.py) whose lines consist of eight 16-bit numbers at a time.

fn X_start(slice: u32, row: u32, column: u32) -> u32 { return X_at(slice, row, column); }

fn X_stride() -> u32 { return P.X_s_ALONG; }

fn X_octet(e: u32) -> vec4<u32> { return X_load_words4(e / 8u); }
