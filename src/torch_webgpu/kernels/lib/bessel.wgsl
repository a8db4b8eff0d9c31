// Bessel functions of order 0 and 1: rational approximations of Cephes (S. Moshier) up to 5, and beyond that its
// approximations of modulus and phase, with the phase shift of pi/4 taken out of the trigonometric functions.

fn bessel_j0_f(x: f32) -> f32 {
  if (isnan_f(x)) { return x; }
  let a = abs(x);
  if (isinf_f(x)) { return 0.0; }
  if (a > 5.0) {
    let wave = order0_wave(a);
    return wave.x;
  }
  if (a < 1e-5) { return 1.0 - 0.25 * a * a; }
  let z = a * a;
  return (z - 5.78318596294678452118) * (z - 30.4712623436620863991) * j0_numerator(z) / j0_denominator(z);
}

fn bessel_j1_f(x: f32) -> f32 {
  if (isnan_f(x)) { return x; }
  let a = abs(x);
  if (isinf_f(x)) { return 0.0; }
  if (a > 5.0) {
    let wave = order1_wave(a);
    return select(wave.x, -wave.x, x < 0.0);
  }
  let z = a * a;
  let ratio = j1_numerator(z) / j1_denominator(z);
  return ratio * x * (z - 14.6819706421238932572) * (z - 49.2184563216946036703);
}

fn bessel_y0_f(x: f32) -> f32 {
  if (isnan_f(x) || x < 0.0) { return nan_f(); }
  if (x == 0.0) { return -inf_f(); }
  if (isinf_f(x)) { return 0.0; }
  if (x > 5.0) {
    let wave = order0_wave(x);
    return wave.y;
  }
  let z = x * x;
  return y0_numerator(z) / y0_denominator(z) + 0.636619772367581343 * log_f(x) * bessel_j0_f(x);
}

fn bessel_y1_f(x: f32) -> f32 {
  if (isnan_f(x) || x < 0.0) { return nan_f(); }
  if (x == 0.0) { return -inf_f(); }
  if (isinf_f(x)) { return 0.0; }
  if (x > 5.0) {
    let wave = order1_wave(x);
    return wave.y;
  }
  let z = x * x;
  let regular = x * (y1_numerator(z) / y1_denominator(z));
  return regular + 0.636619772367581343 * (bessel_j1_f(x) * log_f(x) - 1.0 / x);
}

// (J0, Y0) for finite a > 5.
fn order0_wave(a: f32) -> vec2<f32> {
  let w = 5.0 / a;
  let z = w * w;
  let p = j0_p_numerator(z) / j0_p_denominator(z);
  let q = w * j0_q_numerator(z) / j0_q_denominator(z);
  // cos and sin of a - pi/4, times the square root of 2
  let s = sin_f(a);
  let c = cos_f(a);
  let amplitude = 0.564189583547756287 / sqrt(a);
  return amplitude * vec2<f32>(p * (c + s) - q * (s - c), p * (s - c) + q * (c + s));
}

// (J1, Y1) for finite a > 5: the phase is 3 pi/4.
fn order1_wave(a: f32) -> vec2<f32> {
  let w = 5.0 / a;
  let z = w * w;
  let p = j1_p_numerator(z) / j1_p_denominator(z);
  let q = w * j1_q_numerator(z) / j1_q_denominator(z);
  let s = sin_f(a);
  let c = cos_f(a);
  let amplitude = 0.564189583547756287 / sqrt(a);
  return amplitude * vec2<f32>(p * (s - c) + q * (s + c), q * (s - c) - p * (s + c));
}

fn spherical_bessel_j0_f(x: f32) -> f32 {
  if (isinf_f(x)) { return 0.0; }
  if (abs(x) < 0.5) {
    let z = x * x;
    return 1.0 + z * (z * (z * (z * 2.75573192e-6 - 1.98412698e-4) + 8.33333333e-3) - 1.66666667e-1);
  }
  return sin_f(x) / x;
}

fn j0_numerator(z: f32) -> f32 {
  var p = -4.79443221e9;
  p = p * z + 1.95617492e12;
  p = p * z - 2.49248344e14;
  p = p * z + 9.70862251e15;
  return p;
}

fn j0_denominator(z: f32) -> f32 {
  var p = z + 499.563147;
  p = p * z + 173785.402;
  p = p * z + 48440965.8;
  p = p * z + 1.11855537e10;
  p = p * z + 2.1127752e12;
  p = p * z + 3.1051823e14;
  p = p * z + 3.18121956e16;
  p = p * z + 1.71086294e18;
  return p;
}

fn j0_p_numerator(z: f32) -> f32 {
  var p = 0.000796936729;
  p = p * z + 0.0828352392;
  p = p * z + 1.23953372;
  p = p * z + 5.44725003;
  p = p * z + 8.747165;
  p = p * z + 5.30324038;
  p = p * z + 1.0;
  return p;
}

fn j0_p_denominator(z: f32) -> f32 {
  var p = 0.000924408811;
  p = p * z + 0.0856288474;
  p = p * z + 1.25352744;
  p = p * z + 5.4709774;
  p = p * z + 8.76190883;
  p = p * z + 5.30605288;
  p = p * z + 1.0;
  return p;
}

fn j0_q_numerator(z: f32) -> f32 {
  var p = -0.0113663839;
  p = p * z - 1.28252719;
  p = p * z - 19.5539544;
  p = p * z - 93.2060152;
  p = p * z - 177.681168;
  p = p * z - 147.077505;
  p = p * z - 51.4105327;
  p = p * z - 6.05014351;
  return p;
}

fn j0_q_denominator(z: f32) -> f32 {
  var p = z + 64.3178256;
  p = p * z + 856.430026;
  p = p * z + 3882.40184;
  p = p * z + 7240.46774;
  p = p * z + 5930.72701;
  p = p * z + 2062.09332;
  p = p * z + 242.00574;
  return p;
}

fn j1_numerator(z: f32) -> f32 {
  var p = -899971226.0;
  p = p * z + 4.52228298e11;
  p = p * z - 7.27494245e13;
  p = p * z + 3.68295733e15;
  return p;
}

fn j1_denominator(z: f32) -> f32 {
  var p = z + 620.836478;
  p = p * z + 256987.257;
  p = p * z + 83514679.1;
  p = p * z + 2.21511595e10;
  p = p * z + 4.74914122e12;
  p = p * z + 7.84369608e14;
  p = p * z + 8.95222336e16;
  p = p * z + 5.3227862e18;
  return p;
}

fn j1_p_numerator(z: f32) -> f32 {
  var p = 0.000762125616;
  p = p * z + 0.0731397057;
  p = p * z + 1.12719608;
  p = p * z + 5.11207951;
  p = p * z + 8.4240459;
  p = p * z + 5.21451599;
  p = p * z + 1.0;
  return p;
}

fn j1_p_denominator(z: f32) -> f32 {
  var p = 0.000571323128;
  p = p * z + 0.0688455909;
  p = p * z + 1.10514233;
  p = p * z + 5.07386386;
  p = p * z + 8.39985554;
  p = p * z + 5.20982849;
  p = p * z + 1.0;
  return p;
}

fn j1_q_numerator(z: f32) -> f32 {
  var p = 0.0510862595;
  p = p * z + 4.98213873;
  p = p * z + 75.8238284;
  p = p * z + 366.779609;
  p = p * z + 710.856305;
  p = p * z + 597.489612;
  p = p * z + 211.688757;
  p = p * z + 25.2070206;
  return p;
}

fn j1_q_denominator(z: f32) -> f32 {
  var p = z + 74.2373277;
  p = p * z + 1056.44886;
  p = p * z + 4986.41058;
  p = p * z + 9562.31892;
  p = p * z + 7997.0416;
  p = p * z + 2826.19279;
  p = p * z + 336.093608;
  return p;
}

fn y0_numerator(z: f32) -> f32 {
  var p = 15592.4368;
  p = p * z - 14663929.6;
  p = p * z + 5.43526477e9;
  p = p * z - 9.82136066e11;
  p = p * z + 8.75906394e13;
  p = p * z - 3.46628303e15;
  p = p * z + 4.42733269e16;
  p = p * z - 1.849508e16;
  return p;
}

fn y0_denominator(z: f32) -> f32 {
  var p = z + 1041.28354;
  p = p * z + 626107.33;
  p = p * z + 268919633.0;
  p = p * z + 8.64002487e10;
  p = p * z + 2.02979613e13;
  p = p * z + 3.17157753e15;
  p = p * z + 2.50596256e17;
  return p;
}

fn y1_numerator(z: f32) -> f32 {
  var p = 1.26320475e9;
  p = p * z - 6.47355876e11;
  p = p * z + 1.14509512e14;
  p = p * z - 8.12770256e15;
  p = p * z + 2.02439476e17;
  p = p * z - 7.78877196e17;
  return p;
}

fn y1_denominator(z: f32) -> f32 {
  var p = z + 594.301592;
  p = p * z + 235564.093;
  p = p * z + 73481194.4;
  p = p * z + 1.87601316e10;
  p = p * z + 3.88231277e12;
  p = p * z + 6.20557727e14;
  p = p * z + 6.87141087e16;
  p = p * z + 3.97270608e18;
  return p;
}
