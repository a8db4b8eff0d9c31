// The target of CTC with a blank around every label: states 0 to 2 * its length, of which the odd ones are labels.
//
// lengths holds three numbers a sequence: the steps of its input, the labels of its target, and where these begin.

fn steps_of(n: u32) -> u32 { return u32(lengths_load(P.lengths_offset + 3u * n)); }

fn last_state(n: u32) -> u32 { return 2u * u32(lengths_load(P.lengths_offset + 3u * n + 1u)); }

fn class_at(n: u32, state: u32) -> u32 {
  if (state % 2u == 0u) { return P.blank; }
  let first = u32(lengths_load(P.lengths_offset + 3u * n + 2u));
  return min(label_of(P.targets_offset + first + state / 2u * P.targets_step), P.classes - 1u);
}

// log(exp(x) + exp(y) + exp(z)) + more: NaN if one is, and infinities never meet in a difference.
fn log_sum(v: vec3<f32>, more: f32) -> f32 {
  let top = max_f(max_f(v.x, v.y), v.z);
  if (isinf_f(top)) { return top + more; }
  let rest = max(v - top, vec3(-100.0));
  return top + (log_f(exp_f(rest.x) + exp_f(rest.y) + exp_f(rest.z)) + more);
}
