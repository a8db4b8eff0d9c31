// One step of an RNN: the activation of its gate.

fn values(row: u32, unit: u32) -> Values {
  let input = input_gates_load(input_gates_at(row, unit));
  return Values(activation(input + hidden_gates_load(hidden_gates_at(row, unit)) + bias(unit)));
}
