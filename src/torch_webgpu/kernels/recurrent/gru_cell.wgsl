// One step of a GRU from its gates before activation: reset, update and new gate side by side.

fn input_gate(row: u32, column: u32) -> f32 {
  return input_gates_load(input_gates_at(row, column)) + input_bias(column);
}

fn hidden_gate(row: u32, column: u32) -> f32 {
  return hidden_gates_load(hidden_gates_at(row, column)) + hidden_bias(column);
}

fn values(row: u32, unit: u32) -> Values {
  let update_column = P.units + unit;
  let new_column = 2u * P.units + unit;
  let hx = hx_load(hx_at(row, unit));
  let reset = sigmoid_f(input_gate(row, unit) + hidden_gate(row, unit));
  let update = sigmoid_f(input_gate(row, update_column) + hidden_gate(row, update_column));
  let hidden_new = hidden_gate(row, new_column);
  let new_gate = tanh_f(input_gate(row, new_column) + reset * hidden_new);
  let at = workspace_at(row, unit);
  workspace_store(at, reset);
  workspace_store(at + P.units, update);
  workspace_store(at + 2u * P.units, new_gate);
  workspace_store(at + 3u * P.units, hx);
  workspace_store(at + 4u * P.units, hidden_new);
  return Values(new_gate + update * (hx - new_gate));
}
