// Sorts tiles of 4 to 1024 elements in workgroup memory: each thread its four, then merges of ever longer runs. A workgroup
// sorts 1024 / P.tile tiles, each of one row, and stores the first P.keep elements of each.
//
// The prelude declares Key, before(), last_key(), load_pair(element, place), store_pair(row, element, key, place), and all
// of merge_path.wgsl.

fn put_in_order(i: u32) {
  let a = keys[i];
  let b = keys[i + 1u];
  if (before(b, a)) {
    keys[i] = b;
    keys[i + 1u] = a;
    let place = places[i];
    places[i] = places[i + 1u];
    places[i + 1u] = place;
  }
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let first_tile = (wid.y * nwg.x + wid.x) * (BLOCK / P.tile);
  for (var e = lid; e < BLOCK; e += THREADS) {
    let tile = first_tile + e / P.tile;
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
  let own = 4u * lid;
  for (var pass_ = 0u; pass_ < 2u; pass_ += 1u) {
    put_in_order(own);
    put_in_order(own + 2u);
    put_in_order(own + 1u);
  }
  workgroupBarrier();
  for (var run = 4u; run < P.tile; run = run << 1u) {
    let a = own - own % (2u * run);
    merge_four(lid, a, run, a + run, run, own - a);
  }
  for (var e = lid; e < BLOCK; e += THREADS) {
    let tile = first_tile + e / P.tile;
    let row = tile / P.tiles;
    let place = (tile % P.tiles) * P.keep + e % P.tile;
    if (row < P.rows && e % P.tile < P.keep && place < P.width) {
      store_pair(row, row * P.width + place, keys[e], places[e]);
    }
  }
}
