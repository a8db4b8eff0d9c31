// Sampling at points: where a coordinate lies in the image, which pixels it takes, and how much of each.
// MODE: 0 linear, 1 nearest, 2 cubic. PADDING: 0 zeros, 1 border, 2 reflection.

const KEYS = -0.75;
const TAPS = select(select(1, 2, MODE == 0), 4, MODE == 2);

// A position in pixels, and its derivative by the coordinate.
struct Place { x: f32, slope: f32 }

fn unnormalized(coordinate: f32, size: i32) -> Place {
  if (ALIGN_CORNERS) { return Place((coordinate + 1.0) / 2.0 * f32(size - 1), f32(size - 1) / 2.0); }
  return Place(((coordinate + 1.0) * f32(size) - 1.0) / 2.0, f32(size) / 2.0);
}

fn reflected(x: f32, size: i32) -> Place {
  let low = select(-0.5, 0.0, ALIGN_CORNERS);
  let span = f32(size) - select(0.0, 1.0, ALIGN_CORNERS);
  if (span <= 0.0) { return Place(0.0, 0.0); }
  let distance = abs(x - low);
  let flips = floor(distance / span);
  let rest = distance - flips * span;
  let sign = select(1.0, -1.0, x < low);
  if (flips - 2.0 * floor(flips / 2.0) == 0.0) { return Place(rest + low, sign); }
  return Place(span - rest + low, -sign);
}

fn padded(x: f32, size: i32) -> Place {
  if (PADDING == 0) { return Place(x, 1.0); }
  var place = Place(x, 1.0);
  if (PADDING == 2) { place = reflected(x, size); }
  let last = f32(size - 1);
  let inside = place.x > 0.0 && place.x < last;
  return Place(clamp(place.x, 0.0, last), select(0.0, place.slope, inside));
}

// Cubic sampling pads each pixel it takes, the others the position.
fn place_of(coordinate: f32, size: i32) -> Place {
  let place = unnormalized(coordinate, size);
  if (MODE == 2) { return place; }
  let moved = padded(place.x, size);
  return Place(moved.x, place.slope * moved.slope);
}

// The pixel of tap t, or one outside of the image.
fn pixel(x: f32, t: i32, size: i32) -> i32 {
  if (MODE == 1) { return i32(round(x)); }
  let i = i32(floor(x)) + t - (TAPS / 2 - 1);
  if (MODE == 2 && PADDING != 0) { return i32(padded(f32(i), size).x); }
  return i;
}

fn pixel_weight(x: f32, t: i32) -> f32 {
  let rest = x - floor(x);
  if (MODE == 1) { return 1.0; }
  if (MODE == 0) { return select(rest, 1.0 - rest, t == 0); }
  let d = abs(rest + 1.0 - f32(t));
  if (t == 1 || t == 2) { return ((KEYS + 2.0) * d - (KEYS + 3.0)) * d * d + 1.0; }
  return ((KEYS * d - 5.0 * KEYS) * d + 8.0 * KEYS) * d - 4.0 * KEYS;
}

// The derivative of pixel_weight by x.
fn pixel_slope(x: f32, t: i32) -> f32 {
  if (MODE == 1) { return 0.0; }
  if (MODE == 0) { return select(1.0, -1.0, t == 0); }
  let signed_distance = x - floor(x) + 1.0 - f32(t);
  let d = abs(signed_distance);
  let sign = select(1.0, -1.0, signed_distance < 0.0);
  if (t == 1 || t == 2) { return sign * (3.0 * (KEYS + 2.0) * d - 2.0 * (KEYS + 3.0)) * d; }
  return sign * ((3.0 * KEYS * d - 10.0 * KEYS) * d + 8.0 * KEYS);
}

// One dimension of a sample: position, derivative, size; a made-up one has a single pixel.
struct Side { x: f32, slope: f32, size: i32, taps: i32 }

fn side_of(n: u32, d: u32, h: u32, w: u32, k: u32, size: i32) -> Side {
  let place = place_of(grid_load(grid_at(n, d, h, w, k)), size);
  return Side(place.x, place.slope, size, TAPS);
}

fn side_pixel(s: Side, t: i32) -> i32 { return select(pixel(s.x, t, s.size), 0, s.taps == 0); }

fn side_weight(s: Side, t: i32) -> f32 { return select(pixel_weight(s.x, t), 1.0, s.taps == 0); }

fn side_count(s: Side) -> i32 { return max(s.taps, 1); }

fn outside(i: i32, s: Side) -> bool { return i < 0 || i >= s.size; }
