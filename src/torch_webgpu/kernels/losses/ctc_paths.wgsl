// For every step and state, the logarithm of the probability of all paths that lead there from the beginning (P.reverse: from
// there to the end), the step's own included (Graves et al., 2006, "Connectionist Temporal Classification"). A workgroup
// follows a sequence; each step of it waits for the one before. The other direction is the same recurrence with steps and
// states counted from the end.
//
// The logarithms fall by a few units a step, and would be rounded ever more coarsely. So rows, of two steps, keeps them
// relative to a whole number, base, the whole part of the largest so far.
//
// The prelude declares finish(n, steps, last, base), which may take the sequence's loss, and all of ctc_states.wgsl.

const NONE = -2147483647;

var<workgroup> tops: array<atomic<i32>, 3>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let n = wid.y * nwg.x + wid.x;
  if (n >= P.batch) { return; }
  let steps = steps_of(n);
  let last = last_state(n);
  var base = 0;
  var shift = 0;
  if (lid == 0u) { atomicStore(&tops[0], NONE); }
  workgroupBarrier();
  for (var i = 0u; i < steps; i += 1u) {
    if (lid == 0u) { atomicStore(&tops[(i + 1u) % 3u], NONE); }
    let t = select(i, steps - 1u - i, P.reverse != 0u);
    let previous = row_of(n, i + 1u);
    var top = NONE;
    for (var s = lid; s <= last; s += 256u) {
      let state = select(s, last - s, P.reverse != 0u);
      let class_ = class_at(n, state);
      let own = log_probs_load(P.log_probs_offset + t * P.log_probs_s_t + n * P.log_probs_s_n + class_ * P.log_probs_s_c);
      var value = select(-inf_f(), own, s < 2u);
      if (i > 0u) {
        var before = vec3(rows_load(previous + s), -inf_f(), -inf_f());
        if (s > 0u) { before.y = rows_load(previous + s - 1u); }
        if (s > 1u && class_at(n, select(state - 2u, state + 2u, P.reverse != 0u)) != class_) {
          before.z = rows_load(previous + s - 2u);
        }
        value = log_sum(before - f32(shift), own);
      }
      rows_store(row_of(n, i) + s, value);
      paths_store(n * P.paths_s_n + t * P.paths_s_t + state, value + f32(base));
      if (magnitude_bits(value) < 0x7f800000u) { top = max(top, i32(clamp(floor(value), -1e9, 1e9))); }
    }
    atomicMax(&tops[i % 3u], top);
    storageBarrier();
    workgroupBarrier();
    let highest = atomicLoad(&tops[i % 3u]);
    shift = select(highest, 0, highest == NONE);
    base += shift;
  }
  if (lid == 0u) { finish(n, steps, last, f32(base - shift)); }
}
