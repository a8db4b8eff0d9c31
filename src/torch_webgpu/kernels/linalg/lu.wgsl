// LU factorization with row interchanges of each matrix, or of a panel of columns, in place: a workgroup a matrix. The
// prelude has element(i, j) and put(i, j, value) of the matrix, in memory of the workgroup's own or where it is.
var<workgroup> sizes: array<R, THREADS>;
var<workgroup> places: array<u32, THREADS>;

// NaN counts as large: it is chosen, and spreads to what depends on it.
fn comparable(a: T) -> R {
  let size = size_of(a);
  return select(R(3.4e38), size, size == size);
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let group = wid.y * nwg.x + wid.x;
  if (group >= P.groups) { return; }
  batch = group;
  let lane = lid % LANES;
  load_tile(lid);
  var singular = info_load(info_at(batch, 0u, 0u));
  for (var k = 0u; k < P.steps; k += 1u) {
    var size = R(-1);
    var place = k;
    if (PIVOT) {
      if (SCANNED) {  // every thread looks at all of a short column: one barrier, and not seven
        for (var i = k; i < P.rows; i += 1u) {
          let found = comparable(element(i, k));
          if (found > size) { size = found; place = i; }
        }
        barrier();
      } else {
        for (var i = k + lid; i < P.rows; i += THREADS) {
          let found = comparable(element(i, k));
          if (found > size) { size = found; place = i; }
        }
        sizes[lid] = size;
        places[lid] = place;
        workgroupBarrier();
        for (var half = THREADS / 2u; half > 0u; half /= 2u) {
          if (lid < half) {
            let other = sizes[lid + half];
            let there = places[lid + half];
            if (other > sizes[lid] || (other == sizes[lid] && there < places[lid])) {
              sizes[lid] = other;
              places[lid] = there;
            }
          }
          workgroupBarrier();
        }
        place = places[0];
      }
      for (var j = lid; place != k && j < P.columns; j += THREADS) {
        let kept = element(k, j);
        put(k, j, element(place, j));
        put(place, j, kept);
      }
      barrier();
    }
    let pivot = element(k, k);
    if (is_zero(pivot)) {
      if (singular == 0) { singular = i32(P.first + k + 1u); }
    } else {
      for (var i = k + 1u + lid; i < P.rows; i += THREADS) { put(i, k, quotient(element(i, k), pivot)); }
    }
    if (lid == 0u) { pivots_store(pivots_at(batch, P.first + k, 0u), i32(P.first + place + 1u)); }
    barrier();
    for (var j = k + 1u + lid / LANES; j < P.columns; j += THREADS / LANES) {
      let factor = element(k, j);
      for (var i = k + 1u + lane; i < P.rows; i += LANES) {
        put(i, j, element(i, j) - times(element(i, k), factor));
      }
    }
    barrier();
  }
  store_tile(lid);
  if (lid == 0u) { info_store(info_at(batch, 0u, 0u), singular); }
}
