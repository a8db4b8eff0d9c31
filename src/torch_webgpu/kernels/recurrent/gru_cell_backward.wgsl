// The gradient of gru_cell.wgsl at the gates before activation and at the old state.

fn values(row: u32, unit: u32) -> Values {
  let at = workspace_at(row, unit);
  let reset = workspace_load(at);
  let update = workspace_load(at + units());
  let new_gate = workspace_load(at + 2u * units());
  let hx = workspace_load(at + 3u * units());
  let hidden_new = workspace_load(at + 4u * units());
  let grad = grad_hy(row, unit) + grad_out(row, unit) + grad_next(row, unit);
  let grad_update = grad * (hx - new_gate) * (1.0 - update) * update;
  let grad_new = grad * (1.0 - update) * (1.0 - new_gate * new_gate);
  let grad_reset = grad_new * hidden_new * (1.0 - reset) * reset;
  let to_input = grad_input_gates_at(row, unit);
  grad_input_gates_store(to_input, grad_reset);
  grad_input_gates_store(to_input + units(), grad_update);
  grad_input_gates_store(to_input + 2u * units(), grad_new);
  let to_hidden = grad_hidden_gates_at(row, unit);
  grad_hidden_gates_store(to_hidden, grad_reset);
  grad_hidden_gates_store(to_hidden + units(), grad_update);
  grad_hidden_gates_store(to_hidden + 2u * units(), grad_new * reset);
  return Values(grad * update);
}
