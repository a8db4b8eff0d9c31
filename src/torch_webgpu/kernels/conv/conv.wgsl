// What every convolution kernel shares: y (N, O, D, H, W) = conv(x (N, C, D, H, W), w (O, C / groups, kernel)).
// Positions of x and y and (channel, tap) pairs are numbered; taps run slower than channels if TAPS_OUTSIDE.

const TAPS = KD * KH * KW;

struct Position { image: u32, d: u32, h: u32, w: u32 }

struct Tap { channel: u32, d: u32, h: u32, w: u32 }

// An element's base in memory and, per dimension, how far it is from the origin of the window or the image.
struct Window { base: u32, d: i32, h: i32, w: i32 }

// The number of an element that a window finds, if it is inside.
struct Element { inside: bool, number: u32 }

fn tap(k: u32) -> Tap {
  let channel = select(k / TAPS, k % P.depth, TAPS_OUTSIDE);
  let t = select(k % TAPS, k / P.depth, TAPS_OUTSIDE);
  return Tap(channel, t / (KH * KW), t / KW % KH, t % KW);
}

fn tap_number(channel: u32, d: u32, h: u32, w: u32) -> u32 {
  let t = (d * KH + h) * KW + w;
  return select(channel * TAPS + t, t * P.depth + channel, TAPS_OUTSIDE);
}

fn y_position(n: u32) -> Position {
  let row = n / y_w();
  let plane = row / y_h();
  return Position(plane / y_d(), plane % y_d(), row % y_h(), n % y_w());
}

fn tap_offset(base: u32, t: Tap) -> Window { return Window(base, i32(t.d * DD), i32(t.h * DH), i32(t.w * DW)); }
