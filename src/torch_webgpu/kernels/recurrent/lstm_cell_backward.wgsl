// The gradient of lstm_cell.wgsl at the gates before activation and at the old cell; the workspace holds the gates.

fn values(row: u32, unit: u32) -> Values {
  let at = workspace_at(row, unit);
  let i = workspace_load(at);
  let f = workspace_load(at + units());
  let g = workspace_load(at + 2u * units());
  let o = workspace_load(at + 3u * units());
  let cell = tanh_f(new_cell(row, unit));
  let hidden = grad_hy(row, unit) + grad_out(row, unit);
  let grad_cell = hidden * o * (1.0 - cell * cell) + grad_cy(row, unit);
  let to = grad_gates_at(row, unit);
  grad_gates_store(to, grad_cell * g * i * (1.0 - i));
  grad_gates_store(to + units(), grad_cell * cx_load(cx_at(row, unit)) * f * (1.0 - f));
  grad_gates_store(to + 2u * units(), grad_cell * i * (1.0 - g * g));
  grad_gates_store(to + 3u * units(), hidden * cell * o * (1.0 - o));
  return Values(grad_cell * f);
}
