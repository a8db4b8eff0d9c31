// Sorts tiles of up to 1024 elements in workgroup memory: a bitonic network over (key, place) pairs, which no two elements
// share, so that the order is that of a stable sort. A workgroup sorts 1024 / P.tile tiles, each of one row.
//
// The prelude declares Key, before(), last_key(), load_pair(element, place) and store_pair(element, key, place).

const BLOCK = 1024u;
const THREADS = 256u;

var<workgroup> keys: array<Key, BLOCK>;
var<workgroup> places: array<u32, BLOCK>;

fn exchange(i: u32, j: u32, upwards: bool) {
  let a = keys[i];
  let b = keys[j];
  let p = places[i];
  let q = places[j];
  let out_of_order = before(b, a) || (!before(a, b) && q < p);
  if (out_of_order == upwards) {
    keys[i] = b;
    keys[j] = a;
    places[i] = q;
    places[j] = p;
  }
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let first = (wid.y * nwg.x + wid.x) * (BLOCK / P.tile);
  for (var e = lid; e < BLOCK; e += THREADS) {
    let tile = first + e / P.tile;
    let row = tile / P.tiles;
    let place = (tile % P.tiles) * P.tile + e % P.tile;
    keys[e] = last_key();
    places[e] = 0xffffffffu;
    if (row < P.rows && place < P.n) {
      let loaded = load_pair(row * P.n + place, place);
      keys[e] = loaded.key;
      places[e] = loaded.place;
    }
  }
  workgroupBarrier();
  for (var size = 2u; size <= P.tile; size = size << 1u) {
    for (var step = size >> 1u; step > 0u; step = step >> 1u) {
      for (var k = lid; k < BLOCK / 2u; k += THREADS) {
        let low = k & (step - 1u);
        let i = ((k - low) << 1u) | low;
        exchange(i, i + step, (i & (P.tile - 1u) & size) == 0u);
      }
      workgroupBarrier();
    }
  }
  for (var e = lid; e < BLOCK; e += THREADS) {
    let tile = first + e / P.tile;
    let row = tile / P.tiles;
    let place = (tile % P.tiles) * P.keep + e % P.tile;
    if (row < P.rows && e % P.tile < P.keep && place < P.width) {
      store_pair(row * P.width + place, keys[e], places[e]);
    }
  }
}
