// One step of an LSTM from its gates before activation: input, forget, cell and output gate side by side.

fn gate(row: u32, unit: u32, k: u32) -> f32 {
  let column = k * units() + unit;
  return input_gates_load(input_gates_at(row, column)) + hidden_gates_load(hidden_gates_at(row, column)) + bias(column);
}

fn values(row: u32, unit: u32) -> Values {
  let i = sigmoid_f(gate(row, unit, 0u));
  let f = sigmoid_f(gate(row, unit, 1u));
  let g = tanh_f(gate(row, unit, 2u));
  let o = sigmoid_f(gate(row, unit, 3u));
  let cell = f * cx_load(cx_at(row, unit)) + i * g;
  keep(row, unit, i);
  keep(row, units() + unit, f);
  keep(row, 2u * units() + unit, g);
  keep(row, 3u * units() + unit, o);
  keep_cell(row, 4u * units() + unit, cell);
  return Values(o * tanh_f(cell), cell);
}
