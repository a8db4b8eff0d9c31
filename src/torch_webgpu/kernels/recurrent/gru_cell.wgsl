// One step of a GRU from its gates before activation: reset, update and new gate side by side.

fn input_gate(row: u32, column: u32) -> f32 {
  return input_gates_load(input_gates_at(row, column)) + input_bias(column);
}

fn hidden_gate(row: u32, column: u32) -> f32 {
  return hidden_gates_load(hidden_gates_at(row, column)) + hidden_bias(column);
}

fn values(row: u32, unit: u32) -> Values {
  let update_column = units() + unit;
  let new_column = 2u * units() + unit;
  let hx = hx_load(hx_at(row, unit));
  let reset = sigmoid_f(input_gate(row, unit) + hidden_gate(row, unit));
  let update = sigmoid_f(input_gate(row, update_column) + hidden_gate(row, update_column));
  let hidden_new = hidden_gate(row, new_column);
  let new_gate = tanh_f(input_gate(row, new_column) + reset * hidden_new);
  keep(row, unit, reset);
  keep(row, update_column, update);
  keep(row, new_column, new_gate);
  keep(row, 3u * units() + unit, hx);
  keep(row, 4u * units() + unit, hidden_new);
  return state(new_gate + update * (hx - new_gate));
}
