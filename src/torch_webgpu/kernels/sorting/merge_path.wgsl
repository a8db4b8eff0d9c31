// What sorting kernels share: a block of (key, place) pairs in workgroup memory, and the merge of two sorted runs in it,
// four elements a thread. Elements of the first run come before equal ones of the second: merges are stable.

const BLOCK = 1024u;
const THREADS = 256u;

var<workgroup> keys: array<Key, BLOCK>;
var<workgroup> places: array<u32, BLOCK>;

// How many of the first `diagonal` elements of the merge come from keys[a, a + length_a); keys[b, b + length_b) gives the rest.
fn split_block(a: u32, length_a: u32, b: u32, length_b: u32, diagonal: u32) -> u32 {
  var low = diagonal - min(diagonal, length_b);
  var high = min(diagonal, length_a);
  while (low < high) {
    let middle = (low + high) / 2u;
    if (before(keys[b + diagonal - 1u - middle], keys[a + middle])) { high = middle; } else { low = middle + 1u; }
  }
  return low;
}

// The next element of the merge of keys[c.x, c.y) and keys[c.z, c.w), which c moves past.
fn next_of(c: ptr<function, vec4<u32>>) -> u32 {
  let now = *c;
  let from_a = now.z >= now.w || (now.x < now.y && !before(keys[now.z], keys[now.x]));
  if (from_a) { (*c).x = now.x + 1u; } else { (*c).z = now.z + 1u; }
  return min(select(now.z, now.x, from_a), BLOCK - 1u);
}

// Elements 4 lid … 4 lid + 3 of the block become those from `diagonal` on of the merge of the two runs. All threads call it.
fn merge_four(lid: u32, a: u32, length_a: u32, b: u32, length_b: u32, diagonal: u32) {
  let from_a = split_block(a, length_a, b, length_b, diagonal);
  var c = vec4<u32>(a + from_a, a + length_a, b + diagonal - from_a, b + length_b);
  let e0 = next_of(&c);
  let e1 = next_of(&c);
  let e2 = next_of(&c);
  let e3 = next_of(&c);
  let k0 = keys[e0];
  let k1 = keys[e1];
  let k2 = keys[e2];
  let k3 = keys[e3];
  let p = vec4<u32>(places[e0], places[e1], places[e2], places[e3]);
  workgroupBarrier();
  let first = 4u * lid;
  keys[first] = k0;
  keys[first + 1u] = k1;
  keys[first + 2u] = k2;
  keys[first + 3u] = k3;
  places[first] = p.x;
  places[first + 1u] = p.y;
  places[first + 2u] = p.z;
  places[first + 3u] = p.w;
  workgroupBarrier();
}
