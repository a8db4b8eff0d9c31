// Merges neighbouring sorted runs of P.run elements. A workgroup writes 1024 elements: which parts of the two runs they are
// is searched for by all its threads, half of them for the beginning and half for the end.
//
// The prelude declares Key, before(), store_pair(row, element, key, place), and all of merge_path.wgsl.

const PROBES = 128u;

var<workgroup> lows: array<atomic<u32>, 2>;
var<workgroup> highs: array<atomic<u32>, 2>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let block = wid.y * nwg.x + wid.x;
  let row = block / P.tiles;
  if (row >= P.rows) { return; }
  let first = (block % P.tiles) * BLOCK;
  let begin = first - first % (2u * P.run);
  let middle = min(begin + P.run, P.n);
  let end = min(middle + P.run, P.n);
  let a = row * P.n + begin;
  let b = row * P.n + middle;
  let from_diagonal = first - begin;
  let to_diagonal = min(from_diagonal + BLOCK, end - begin);

  // The merge path crosses each diagonal at one place: the elements of the first run that come before it are a prefix.
  let which = lid / PROBES;
  let diagonal = select(from_diagonal, to_diagonal, which == 1u);
  if (lid % PROBES == 0u) {
    atomicStore(&lows[which], diagonal - min(diagonal, end - middle));
    atomicStore(&highs[which], min(diagonal, middle - begin));
  }
  for (var round = 0u; round < P.rounds; round += 1u) {
    workgroupBarrier();
    let low = atomicLoad(&lows[which]);
    let high = atomicLoad(&highs[which]);
    workgroupBarrier();
    let probe = low + (lid % PROBES) * ((high - low) / PROBES + 1u);
    if (probe < high) {
      if (before(keys_in_load(b + diagonal - 1u - probe), keys_in_load(a + probe))) {
        atomicMin(&highs[which], probe);
      } else {
        atomicMax(&lows[which], probe + 1u);
      }
    }
  }
  workgroupBarrier();
  let first_a = atomicLoad(&lows[0]);
  let count_a = atomicLoad(&lows[1]) - first_a;
  let first_b = from_diagonal - first_a;
  let count = to_diagonal - from_diagonal;
  for (var e = lid; e < count; e += THREADS) {
    let element = select(b + first_b + e - count_a, a + first_a + e, e < count_a);
    keys[e] = keys_in_load(element);
    places[e] = places_in_load(element);
  }
  workgroupBarrier();
  merge_four(lid, 0u, count_a, count_a, count - count_a, min(4u * lid, count));
  for (var e = lid; e < count; e += THREADS) {
    if (first + e < P.width) { store_pair(row, row * P.width + first + e, keys[e], places[e]); }
  }
}
