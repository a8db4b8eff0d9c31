// Complex matrices.
alias T = vec2<f32>;
alias R = f32;

fn from_real(r: R) -> T { return T(r, 0.0); }
fn real_of(a: T) -> R { return a.x; }
fn times(a: T, b: T) -> T { return T(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x); }
fn conjugate(a: T) -> T { return T(a.x, -a.y); }
fn quotient(a: T, b: T) -> T { return c_div(a, b); }
fn over(a: T, r: R) -> T { return T(a.x / r, a.y / r); }
fn scaled(r: R, a: T) -> T { return r * a; }
fn square_of(a: T) -> R { return a.x * a.x + a.y * a.y; }
fn is_zero(a: T) -> bool { return a.x == 0.0 && a.y == 0.0; }
// The largest of the parts' magnitudes.
fn largest_part(a: T) -> R { return max(abs(a.x), abs(a.y)); }
// What LAPACK compares elements by.
fn size_of(a: T) -> R { return abs(a.x) + abs(a.y); }
fn is_real(a: T) -> bool { return a.y == 0.0; }
