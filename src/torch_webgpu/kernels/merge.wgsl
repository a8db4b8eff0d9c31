// Merges neighbouring sorted runs of P.run elements, equal keys of the first run first. A workgroup writes 1024 elements: two
// binary searches find which parts of the two runs they are (the merge path), then each thread ranks its elements in
// the other part, in workgroup memory.
//
// The prelude declares Key, before() and store_pair(element, key, place).

const BLOCK = 1024u;
const THREADS = 256u;

var<workgroup> keys: array<Key, BLOCK>;
var<workgroup> places: array<u32, BLOCK>;
var<workgroup> splits: array<u32, 2>;

// How many of the first `diagonal` elements of the merge come from the run at `a`; the run at `b` gives the rest.
fn split(a: u32, length_a: u32, b: u32, length_b: u32, diagonal: u32) -> u32 {
  var low = diagonal - min(diagonal, length_b);
  var high = min(diagonal, length_a);
  while (low < high) {
    let middle = (low + high) / 2u;
    if (before(keys_in_load(b + diagonal - 1u - middle), keys_in_load(a + middle))) { high = middle; } else { low = middle + 1u; }
  }
  return low;
}

// The place among keys[first, last) where `key` belongs: before its equals, or after them.
fn rank(key: Key, first: u32, last: u32, after_equals: bool) -> u32 {
  var low = first;
  var high = last;
  while (low < high) {
    let middle = (low + high) / 2u;
    let belongs_after = select(before(keys[middle], key), !before(key, keys[middle]), after_equals);
    if (belongs_after) { low = middle + 1u; } else { high = middle; }
  }
  return low - first;
}

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
  if (lid < 2u) {
    splits[lid] = split(a, middle - begin, b, end - middle, select(from_diagonal, to_diagonal, lid == 1u));
  }
  workgroupBarrier();
  let first_a = splits[0];
  let count_a = splits[1] - first_a;
  let first_b = from_diagonal - first_a;
  let count = to_diagonal - from_diagonal;
  for (var e = lid; e < count; e += THREADS) {
    let element = select(b + first_b + e - count_a, a + first_a + e, e < count_a);
    keys[e] = keys_in_load(element);
    places[e] = places_in_load(element);
  }
  workgroupBarrier();
  for (var e = lid; e < count; e += THREADS) {
    let key = keys[e];
    let from_a = e < count_a;
    let others = rank(key, select(0u, count_a, from_a), select(count_a, count, from_a), !from_a);
    let place = first + select(e - count_a, e, from_a) + others;
    if (place < P.width) { store_pair(row * P.width + place, key, places[e]); }
  }
}
