// The gradient of rnn_cell.wgsl at the gate before activation, from the result.

fn values(row: u32, unit: u32) -> Values {
  return Values((grad_hy(row, unit) + grad_out(row, unit)) * slope(hy_load(hy_at(row, unit))));
}
