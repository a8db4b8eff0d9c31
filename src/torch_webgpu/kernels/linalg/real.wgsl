// Real matrices; REAL is f32 or f64.
alias T = REAL;
alias R = REAL;

fn from_real(r: R) -> T { return r; }
fn real_of(a: T) -> R { return a; }
fn times(a: T, b: T) -> T { return a * b; }
fn conjugate(a: T) -> T { return a; }
fn quotient(a: T, b: T) -> T { return a / b; }
fn over(a: T, r: R) -> T { return a / r; }
fn scaled(r: R, a: T) -> T { return r * a; }
fn square_of(a: T) -> R { return a * a; }
fn is_zero(a: T) -> bool { return a == T(0); }
// The largest of the parts' magnitudes.
fn largest_part(a: T) -> R { return abs(a); }
// What LAPACK compares elements by.
fn size_of(a: T) -> R { return abs(a); }
fn is_real(a: T) -> bool { return true; }
