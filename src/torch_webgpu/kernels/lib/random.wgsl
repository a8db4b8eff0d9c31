// Random numbers by Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
// Element i of an operation takes lane i % 4 of block offset + i / 4 of its generator's stream; samplers that reject
// candidates take a block of their own per element, and for attempt a the block numbered a in the counter's third word.

fn philox(counter: vec4<u32>, key: vec2<u32>) -> vec4<u32> {
  var c = counter;
  var k = key;
  c = philox_round(c, k); k += vec2<u32>(0x9e3779b9u, 0xbb67ae85u);
  c = philox_round(c, k); k += vec2<u32>(0x9e3779b9u, 0xbb67ae85u);
  c = philox_round(c, k); k += vec2<u32>(0x9e3779b9u, 0xbb67ae85u);
  c = philox_round(c, k); k += vec2<u32>(0x9e3779b9u, 0xbb67ae85u);
  c = philox_round(c, k); k += vec2<u32>(0x9e3779b9u, 0xbb67ae85u);
  c = philox_round(c, k); k += vec2<u32>(0x9e3779b9u, 0xbb67ae85u);
  c = philox_round(c, k); k += vec2<u32>(0x9e3779b9u, 0xbb67ae85u);
  c = philox_round(c, k); k += vec2<u32>(0x9e3779b9u, 0xbb67ae85u);
  c = philox_round(c, k); k += vec2<u32>(0x9e3779b9u, 0xbb67ae85u);
  return philox_round(c, k);
}

fn philox_round(c: vec4<u32>, k: vec2<u32>) -> vec4<u32> {
  let a = u32_mul_wide(0xd2511f53u, c.x);
  let b = u32_mul_wide(0xcd9e8d57u, c.z);
  return vec4<u32>(b.y ^ c.y ^ k.x, b.x, a.y ^ c.w ^ k.y, a.x);
}

// The address of a block: the 64-bit sum of offset and block, and the attempt.
fn random_counter(offset_lo: u32, offset_hi: u32, block: u32, attempt: u32) -> vec4<u32> {
  let lo = offset_lo + block;
  return vec4<u32>(lo, offset_hi + select(0u, 1u, lo < block), attempt, 0u);
}

fn random_block(seed_lo: u32, seed_hi: u32, offset_lo: u32, offset_hi: u32, block: u32) -> vec4<u32> {
  return philox(random_counter(offset_lo, offset_hi, block, 0u), vec2<u32>(seed_lo, seed_hi));
}

fn random_lane(block: vec4<u32>, lane: u32) -> u32 {
  let pair = select(block.xy, block.zw, lane >= 2u);
  return select(pair.x, pair.y, (lane & 1u) == 1u);
}

// The block that a thread had last. Neighbouring elements share one, which takes ten rounds to make, and compilers only
// see it where an element's number is plainly four times something: not in a row of a reduction.
var<private> random_place: vec4<u32>;
var<private> random_last: vec4<u32>;
var<private> random_is_known: bool;

fn random_bits(seed_lo: u32, seed_hi: u32, offset_lo: u32, offset_hi: u32, i: u32) -> u32 {
  let place = vec4<u32>(random_counter(offset_lo, offset_hi, i / 4u, 0u).xy, seed_lo, seed_hi);
  if (!random_is_known || any(place != random_place)) {
    random_last = random_block(seed_lo, seed_hi, offset_lo, offset_hi, i / 4u);
    random_place = place;
    random_is_known = true;
  }
  return random_lane(random_last, i % 4u);
}

fn random_bits64(seed_lo: u32, seed_hi: u32, offset_lo: u32, offset_hi: u32, i: u32) -> I64 {
  let block = random_block(seed_lo, seed_hi, offset_lo, offset_hi, i / 2u);
  let pair = select(block.xy, block.zw, (i & 1u) == 1u);
  return i64_make(pair.x, pair.y);
}

// A hash of four words (PCG4D: Jarzynski and Olano, "Hash Functions for GPU Rendering", JCGT 2020), in a tenth of the
// instructions that Philox takes where there is no wide product.
fn pcg4d(words: vec4<u32>) -> vec4<u32> {
  var v = words * 1664525u + 1013904223u;
  v.x += v.y * v.w; v.y += v.z * v.x; v.z += v.x * v.y; v.w += v.y * v.z;
  v ^= v >> vec4<u32>(16u);
  v.x += v.y * v.w; v.y += v.z * v.x; v.z += v.x * v.y; v.w += v.y * v.z;
  return v;
}

// Bits for columns 4 * four to 4 * four + 3 of a row, under a key of 128 random bits: for masks that several kernels make
// again, each in its own order.
fn random_four(key: vec4<u32>, row: u32, four: u32) -> vec4<u32> { return pcg4d(key + vec4<u32>(row, four, 0u, 0u)); }

fn random_at(k0: u32, k1: u32, k2: u32, k3: u32, row: u32, column: u32) -> f32 {
  return uniform_from_bits(random_lane(random_four(vec4<u32>(k0, k1, k2, k3), row, column / 4u), column % 4u));
}

// In [0, 1): 24 bits, as many as a float32 holds.
fn uniform_from_bits(bits: u32) -> f32 { return f32(bits >> 8u) * 5.9604644775390625e-8; }

// In (0, 1], for logarithms: all 32 bits, which reach further into the tails.
fn open_uniform_from_bits(bits: u32) -> f32 { return (f32(bits) + 1.0) * 2.3283064365386963e-10; }

fn random_uniform(seed_lo: u32, seed_hi: u32, offset_lo: u32, offset_hi: u32, i: u32) -> f32 {
  return uniform_from_bits(random_bits(seed_lo, seed_hi, offset_lo, offset_hi, i));
}

fn random_open_uniform(seed_lo: u32, seed_hi: u32, offset_lo: u32, offset_hi: u32, i: u32) -> f32 {
  return open_uniform_from_bits(random_bits(seed_lo, seed_hi, offset_lo, offset_hi, i));
}

// Box-Muller: lanes (0, 1) and (2, 3) of a block each make two normal numbers.
fn random_normal(seed_lo: u32, seed_hi: u32, offset_lo: u32, offset_hi: u32, i: u32) -> f32 {
  let block = random_block(seed_lo, seed_hi, offset_lo, offset_hi, i / 4u);
  return normal_from_bits(select(block.xy, block.zw, (i & 2u) == 2u), (i & 1u) == 1u);
}

// A pair's two numbers have everything but the last selection in common.
fn normal_from_bits(pair: vec2<u32>, second: bool) -> f32 {
  let radius = sqrt(-2.0 * log_f(open_uniform_from_bits(pair.x)));
  // The angle in quarter turns: a whole number of them, and the rest in radians.
  let quarters = f32(pair.y >> 8u) * 2.384185791015625e-7;
  let whole = floor(quarters + 0.5);
  let rest = (quarters - whole) * 1.5707963267948966;
  let z = rest * rest;
  let sine = rest + rest * z * ((-1.9515295891e-4 * z + 8.3321608736e-3) * z - 1.6666654611e-1);
  let cosine = 1.0 - 0.5 * z + z * z * ((2.443315711809948e-5 * z - 1.388731625493765e-3) * z + 4.166664568298827e-2);
  let turn = u32(whole) + select(1u, 0u, second);
  let value = select(sine, cosine, (turn & 1u) == 1u);
  return radius * select(value, -value, (turn & 2u) == 2u);
}

// Candidates are accepted with a probability of well over a half; after this many something is not a number.
const RANDOM_ATTEMPTS: u32 = 64u;

// Poisson by Knuth's product of uniform numbers for small rates, and W. Hoermann's PTRS ("The transformed rejection method
// for generating Poisson random variables", 1993) for others. NaN for a rate that is negative or NaN.
fn random_poisson(seed_lo: u32, seed_hi: u32, offset_lo: u32, offset_hi: u32, i: u32, rate: f32) -> f32 {
  if (isnan_f(rate) || rate < 0.0) { return nan_f(); }
  let key = vec2<u32>(seed_lo, seed_hi);
  let counter = random_counter(offset_lo, offset_hi, i, 0u);
  if (rate >= 10.0) { return poisson_by_rejection(counter, key, rate); }
  let limit = exp_f(-rate);
  var product = 1.0;
  var count = 0.0;
  for (var attempt = 1u; attempt < RANDOM_ATTEMPTS; attempt += 1u) {
    let block = philox(vec4<u32>(counter.xy, attempt, 0u), key);
    product *= uniform_from_bits(block.x);
    if (product <= limit) { return count; }
    product *= uniform_from_bits(block.y);
    if (product <= limit) { return count + 1.0; }
    product *= uniform_from_bits(block.z);
    if (product <= limit) { return count + 2.0; }
    product *= uniform_from_bits(block.w);
    if (product <= limit) { return count + 3.0; }
    count += 4.0;
  }
  return count;
}

fn poisson_by_rejection(counter: vec4<u32>, key: vec2<u32>, rate: f32) -> f32 {
  let b = 0.931 + 2.53 * sqrt(rate);
  let a = -0.059 + 0.02483 * b;
  let inverse_alpha = 1.1239 + 1.1328 / (b - 3.4);
  let accepted_at_once = 0.9277 - 3.6224 / (b - 2.0);
  for (var attempt = 1u; attempt < RANDOM_ATTEMPTS; attempt += 1u) {
    let block = philox(vec4<u32>(counter.xy, attempt, 0u), key);
    let u = uniform_from_bits(block.x) - 0.5;
    let v = open_uniform_from_bits(block.y);
    let us = 0.5 - abs(u);
    let k = floor((2.0 * a / us + b) * u + rate + 0.43);
    if (us >= 0.07 && v <= accepted_at_once) { return k; }
    if (k < 0.0 || (us < 0.013 && v > us)) { continue; }
    if (log_f(v * inverse_alpha / (a / (us * us) + b)) <= poisson_log_probability(k, rate)) { return k; }
  }
  return floor(rate);
}

// log(rate^k exp(-rate) / k!), without the cancellation of its large terms.
fn poisson_log_probability(k: f32, rate: f32) -> f32 {
  if (k < 10.0) { return k * log_f(rate) - rate - lgamma_f(k + 1.0); }
  let d = (k - rate) / rate;
  // (1 + d) log(1 + d) - d, by its series where the terms cancel.
  var divergence = (1.0 + d) * log1p_f(d) - d;
  if (abs(d) < 0.05) { divergence = d * d * (0.5 - d * (0.16666667 - d * (0.083333336 - d * 0.05))); }
  return -rate * divergence - 0.5 * log_f(6.2831855 * k) - stirling_tail(k);
}

// log(k!) less Stirling's formula log(sqrt(2 pi k) (k / e)^k), for k >= 10.
fn stirling_tail(k: f32) -> f32 { return (0.083333336 - 0.0027777778 / (k * k)) / k; }

// Binomial by inversion for few expected successes, and W. Hoermann's BTRS ("The generation of binomial random variates",
// 1993) for others. NaN where count or probability is NaN or out of range.
fn random_binomial(
  seed_lo: u32, seed_hi: u32, offset_lo: u32, offset_hi: u32, i: u32, count: f32, probability: f32
) -> f32 {
  if (!(count >= 0.0 && probability >= 0.0 && probability <= 1.0) || isnan_f(count) || isnan_f(probability)) {
    return nan_f();
  }
  let n = floor(count);
  let p = min(probability, 1.0 - probability);
  let key = vec2<u32>(seed_lo, seed_hi);
  let counter = random_counter(offset_lo, offset_hi, i, 0u);
  var successes = 0.0;
  if (n > 0.0 && p > 0.0) {
    if (n * p >= 10.0) {
      successes = binomial_by_rejection(counter, key, n, p);
    } else {
      successes = binomial_by_inversion(counter, key, n, p);
    }
  }
  return select(successes, n - successes, probability > 0.5);
}

// Counts the geometrically distributed gaps between successes that fit into n trials.
fn binomial_by_inversion(counter: vec4<u32>, key: vec2<u32>, n: f32, p: f32) -> f32 {
  let log_failure = log1p_f(-p);
  var trials = 0.0;
  var successes = 0.0;
  for (var attempt = 1u; attempt < RANDOM_ATTEMPTS; attempt += 1u) {
    let block = philox(vec4<u32>(counter.xy, attempt, 0u), key);
    trials += binomial_gap(block.x, log_failure);
    if (trials > n) { return successes; }
    trials += binomial_gap(block.y, log_failure);
    if (trials > n) { return successes + 1.0; }
    trials += binomial_gap(block.z, log_failure);
    if (trials > n) { return successes + 2.0; }
    trials += binomial_gap(block.w, log_failure);
    if (trials > n) { return successes + 3.0; }
    successes += 4.0;
  }
  return successes;
}

fn binomial_gap(bits: u32, log_failure: f32) -> f32 {
  return max(ceil(log_f(open_uniform_from_bits(bits)) / log_failure), 1.0);
}

fn binomial_by_rejection(counter: vec4<u32>, key: vec2<u32>, n: f32, p: f32) -> f32 {
  let deviation = sqrt(n * p * (1.0 - p));
  let b = 1.15 + 2.53 * deviation;
  let a = -0.0873 + 0.0248 * b + 0.01 * p;
  let accepted_at_once = 0.92 - 4.2 / b;
  let odds = p / (1.0 - p);
  let alpha = (2.83 + 5.1 / b) * deviation;
  let mode = floor((n + 1.0) * p);
  for (var attempt = 1u; attempt < RANDOM_ATTEMPTS; attempt += 1u) {
    let block = philox(vec4<u32>(counter.xy, attempt, 0u), key);
    let u = uniform_from_bits(block.x) - 0.5;
    let v = open_uniform_from_bits(block.y);
    let us = 0.5 - abs(u);
    let k = floor((2.0 * a / us + b) * u + n * p + 0.5);
    if (us >= 0.07 && v <= accepted_at_once) { return k; }
    if (k < 0.0 || k > n) { continue; }
    let bound = (mode + 0.5) * log_f((mode + 1.0) / (odds * (n - mode + 1.0)))
      + (n + 1.0) * log_f((n - mode + 1.0) / (n - k + 1.0))
      + (k + 0.5) * log_f(odds * (n - k + 1.0) / (k + 1.0))
      + factorial_tail(mode) + factorial_tail(n - mode) - factorial_tail(k) - factorial_tail(n - k);
    if (log_f(v * alpha / (a / (us * us) + b)) <= bound) { return k; }
  }
  return mode;
}

// log(k!) less log(sqrt(2 pi) (k + 1)^(k + 1/2) exp(-k - 1)).
fn factorial_tail(k: f32) -> f32 {
  let x = k + 1.0;
  if (k < 10.0) { return lgamma_f(x) - 0.9189385 - (k + 0.5) * log_f(x) + x; }
  return (0.083333336 - (0.0027777778 - 0.0007936508 / (x * x)) / (x * x)) / x;
}

// Gamma of the given shape and scale 1: G. Marsaglia and W. Tsang, "A simple method for generating gamma variables" (2000).
// NaN for a shape that is negative or NaN; at least the smallest normal number otherwise.
fn random_gamma(seed_lo: u32, seed_hi: u32, offset_lo: u32, offset_hi: u32, i: u32, shape: f32) -> f32 {
  if (isnan_f(shape) || shape < 0.0) { return nan_f(); }
  if (shape == 0.0) { return 0.0; }
  let key = vec2<u32>(seed_lo, seed_hi);
  let counter = random_counter(offset_lo, offset_hi, i, 0u);
  var log_scale = 0.0;
  var alpha = shape;
  if (shape < 1.0) {
    // A shape below 1 is one higher, times a power of a uniform number (in logarithms, since the power may be tiny).
    log_scale = log_f(open_uniform_from_bits(philox(vec4<u32>(counter.xy, 0u, 1u), key).x)) / shape;
    alpha += 1.0;
  }
  let d = alpha - 0.33333334;
  let c = 1.0 / sqrt(9.0 * d);
  var result = d;
  for (var attempt = 1u; attempt < RANDOM_ATTEMPTS; attempt += 1u) {
    let block = philox(vec4<u32>(counter.xy, attempt, 0u), key);
    let x = normal_from_bits(block.xy, false);
    let y = 1.0 + c * x;
    if (y <= 0.0) { continue; }
    let v = y * y * y;
    if (log_f(open_uniform_from_bits(block.z)) < 0.5 * x * x + d * (1.0 - v + 3.0 * log_f(y))) {
      result = d * v;
      break;
    }
  }
  return max(result * exp_f(log_scale), 1.1754944e-38);
}
