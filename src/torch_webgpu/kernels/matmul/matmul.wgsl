// Operands of a blocked product (register_tile.py, matrix_tile.py) that are matrices: an element's number is linear in
// its row and its column.

alias ARow = u32;
alias AStep = u32;
alias BRow = u32;
alias BStep = u32;

fn a_row(slice: u32, m: u32) -> ARow { return a_at(slice, m, 0u); }

fn a_step(slice: u32, k: u32) -> AStep { return a_delta(0u, 0u, k); }

fn b_row(slice: u32, n: u32) -> BRow { return b_at(slice, 0u, n); }

fn b_step(slice: u32, k: u32) -> BStep { return b_delta(0u, k, 0u); }
