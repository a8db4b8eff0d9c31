// QR factorization of each matrix, or of a panel of columns, in place, by Householder's reflections: a workgroup a matrix.
// The prelude has element(i, j) and put(i, j, value), as for LU. Below the diagonal are the reflections' vectors, whose
// first element is a one that is not stored.
var<workgroup> reals: array<R, THREADS>;
var<workgroup> partials: array<T, THREADS>;

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let group = wid.y * nwg.x + wid.x;
  if (group >= P.groups) { return; }
  batch = group;
  let lane = lid % LANES;
  load_tile(lid);
  for (var k = 0u; k < P.steps; k += 1u) {
    let alpha = element(k, k);
    // The norm of what is below, in units of its largest part: squares stay in range.
    var largest = R(0);
    for (var i = k + 1u + lid; i < P.rows; i += THREADS) {
      let part = largest_part(element(i, k));
      if (part > largest) { largest = part; }
    }
    reals[lid] = largest;
    workgroupBarrier();
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
      if (lid < half && reals[lid + half] > reals[lid]) { reals[lid] = reals[lid + half]; }
      workgroupBarrier();
    }
    largest = reals[0];
    workgroupBarrier();
    var sum = R(0);
    let unit = select(largest, R(1), largest == R(0));
    for (var i = k + 1u + lid; i < P.rows; i += THREADS) { sum += square_of(over(element(i, k), unit)); }
    reals[lid] = sum;
    workgroupBarrier();
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
      if (lid < half) { reals[lid] += reals[lid + half]; }
      workgroupBarrier();
    }
    sum = reals[0];
    var tau = from_real(R(0));
    var beta = real_of(alpha);
    var divisor = from_real(R(1));
    if (!(sum == R(0)) || (!is_real(alpha) && largest_part(alpha) > R(0))) {
      let scale = max(largest, largest_part(alpha));
      let ratio = largest / scale;
      let norm = scale * sqrt(square_of(over(alpha, scale)) + sum * ratio * ratio);
      beta = select(-norm, norm, real_of(alpha) < R(0));
      tau = over(from_real(beta) - alpha, beta);
      divisor = alpha - from_real(beta);
      for (var i = k + 1u + lid; i < P.rows; i += THREADS) { put(i, k, quotient(element(i, k), divisor)); }
    }
    // Others have read alpha: there were barriers.
    if (lid == 0u) {
      put(k, k, from_real(beta));
      tau_store(tau_at(batch, P.first + k, 0u), tau);
    }
    barrier();
    for (var first = k + 1u; first < P.columns; first += THREADS / LANES) {
      let j = first + lid / LANES;
      var partial = from_real(R(0));
      if (j < P.columns) {
        if (lane == 0u) { partial = element(k, j); }
        for (var i = k + 1u + lane; i < P.rows; i += LANES) {
          partial += times(conjugate(element(i, k)), element(i, j));
        }
      }
      partials[lid] = partial;
      workgroupBarrier();
      if (j < P.columns) {
        var product = from_real(R(0));
        for (var l = 0u; l < LANES; l += 1u) { product += partials[lid - lane + l]; }
        product = times(conjugate(tau), product);
        if (lane == 0u) { put(k, j, element(k, j) - product); }
        for (var i = k + 1u + lane; i < P.rows; i += LANES) {
          put(i, j, element(i, j) - times(element(i, k), product));
        }
      }
      workgroupBarrier();
    }
    barrier();
  }
  store_tile(lid);
}
