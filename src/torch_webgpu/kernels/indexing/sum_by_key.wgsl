// Adds rows that are ordered by key to the rows of a target that their keys number, without atomics. A thread does one
// lane (a float, or four) of one chunk: P.length rows that lie after each other in that order.
//
// A run of equal keys that lies within a chunk is added to its row of the target. Of one that does not, each chunk keeps
// its part for the next launch, which adds those parts just so: the part of a run that began before chunk c is kept in
// slot 2c - 1, that of a run which begins in it in slot 2c, so that parts of a run lie in order, in neighbouring slots.
// A chunk in the middle of a run fills the first of its slots and names the second ABSENT, for the parts to be neighbours
// all the same. A slot with key 0, and a row with key 0, counts for nothing.
//
// The prelude declares V (f32 or vec4<f32>), point_at(i), a key and a place, row_at(point, lane), add_to(row, lane, sum),
// keep(slot, lane, sum) and name_slot(slot, key), which are empty in the last launch: that has one chunk.

const ABSENT = 0x80000000u;

// Stores the sum of a run: the whole of it, or the last part of one that is open, which began before the chunk.
fn finish(run: u32, open: bool, chunk: u32, lane: u32, sum: V) {
  if (run == 0u) { return; }
  if (open) { keep(2u * chunk - 1u, lane, sum); } else { add_to(run - 1u, lane, sum); }
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let t = (wid.y * nwg.x + wid.x) * 256u + lid;
  let chunk = t / P.lanes;
  let lane = t % P.lanes;
  if (chunk >= P.chunks) { return; }
  let first = chunk * P.length;
  let end = min(first + P.length, P.n);
  let first_run = point_at(first).x & ~ABSENT;
  let is_open = chunk > 0u && (point_at(max(first, 1u) - 1u).x & ~ABSENT) == first_run;
  var run = first_run;
  var open = is_open;
  var sum = V();
  var i = first;
  // Loads that wait for nothing but their place: so many are under way at once.
  for (; i + UNROLLEDu <= end; i += UNROLLEDu) {
LOADS
STEPS
  }
  for (; i < end; i += 1u) {
    let point = point_at(i);
    let value = row_at(point, lane);
    if ((point.x & ~ABSENT) != run) {
      finish(run, open, chunk, lane, sum);
      run = point.x & ~ABSENT;
      open = false;
      sum = V();
    }
    sum += value;
  }
  let goes_on = end < P.n && (point_at(min(end, P.n - 1u)).x & ~ABSENT) == run;
  if (goes_on && !open && run != 0u) {
    keep(2u * chunk, lane, sum);
  } else {
    finish(run, open, chunk, lane, sum);
  }
  if (lane == 0u) {
    if (chunk > 0u) { name_slot(2u * chunk - 1u, select(0u, first_run, is_open)); }
    name_slot(2u * chunk, select(0u, run | select(0u, ABSENT, open), goes_on));
  }
}
