// The Airy function Ai: Cephes' rational approximations (S. Moshier) of the asymptotic forms, the power series between.

fn airy_ai_f(x: f32) -> f32 {
  if (!isfinite_f(x)) { return nan_f(); }
  if (x > 103.892) { return 0.0; }
  let root = sqrt(abs(x));
  let zeta = abs(x) * root * 0.666666666666666667;
  let z = 1.0 / zeta;
  if (x < -2.09) {
    let w = z * z;
    let p = 1.0 + w * airy_f_numerator(w) / airy_f_denominator(w);
    let q = z * airy_g_numerator(w) / airy_g_denominator(w);
    // sin and cos of zeta + pi/4, times the square root of 2
    let s = sin_f(zeta);
    let c = cos_f(zeta);
    return 0.398942280401432678 / sqrt(root) * ((s + c) * p - (c - s) * q);
  }
  if (x >= 2.09) {
    return 0.282094791773878143 * airy_numerator(z) / airy_denominator(z) / sqrt(root) * exp_f(-zeta);
  }
  // f and g of DLMF 9.4, as polynomials of x^3.
  let cube = x * x * x;
  return 0.355028053887817239 * airy_series_f(cube) - 0.258819403792806798 * x * airy_series_g(cube);
}

fn airy_numerator(z: f32) -> f32 {
  var p = 0.346538102;
  p = p * z + 12.0075953;
  p = p * z + 76.2796054;
  p = p * z + 168.089225;
  p = p * z + 159.756391;
  p = p * z + 70.5360907;
  p = p * z + 14.0264691;
  p = p * z + 1.0;
  return p;
}

fn airy_denominator(z: f32) -> f32 {
  var p = 0.567594533;
  p = p * z + 14.7562563;
  p = p * z + 84.513897;
  p = p * z + 177.318088;
  p = p * z + 164.234693;
  p = p * z + 71.4778401;
  p = p * z + 14.0959136;
  p = p * z + 1.0;
  return p;
}

fn airy_f_numerator(z: f32) -> f32 {
  var p = -0.131696323;
  p = p * z - 0.626456544;
  p = p * z - 0.693158036;
  p = p * z - 0.279779982;
  p = p * z - 0.0491900133;
  p = p * z - 0.00406265924;
  p = p * z - 0.000159276496;
  p = p * z - 2.77649108e-6;
  p = p * z - 1.67787698e-8;
  return p;
}

fn airy_f_denominator(z: f32) -> f32 {
  var p = z + 13.3560421;
  p = p * z + 32.6825033;
  p = p * z + 26.7367041;
  p = p * z + 9.18707403;
  p = p * z + 1.47529147;
  p = p * z + 0.115687174;
  p = p * z + 0.00440291642;
  p = p * z + 7.54720348e-5;
  p = p * z + 4.51850093e-7;
  return p;
}

fn airy_g_numerator(z: f32) -> f32 {
  var p = 0.0197339932;
  p = p * z + 0.39110303;
  p = p * z + 1.06579898;
  p = p * z + 0.93916923;
  p = p * z + 0.351465656;
  p = p * z + 0.063388892;
  p = p * z + 0.00585804113;
  p = p * z + 0.000282851601;
  p = p * z + 6.9879367e-6;
  p = p * z + 8.1178924e-8;
  p = p * z + 3.41551785e-10;
  return p;
}

fn airy_g_denominator(z: f32) -> f32 {
  var p = z + 9.30892908;
  p = p * z + 19.8352929;
  p = p * z + 15.5646629;
  p = p * z + 5.47686069;
  p = p * z + 0.954293612;
  p = p * z + 0.0864580826;
  p = p * z + 0.00412656524;
  p = p * z + 0.000101259085;
  p = p * z + 1.17166733e-6;
  p = p * z + 4.9183457e-9;
  return p;
}

fn airy_series_f(z: f32) -> f32 {
  var p = 3.92366552e-17;
  p = p * z + 2.16586337e-14;
  p = p * z + 9.09662614e-12;
  p = p * z + 2.7835676e-9;
  p = p * z + 5.84549196e-7;
  p = p * z + 7.71604938e-5;
  p = p * z + 0.00555555556;
  p = p * z + 0.166666667;
  p = p * z + 1.0;
  return p;
}

fn airy_series_g(z: f32) -> f32 {
  var p = 6.21114663e-18;
  p = p * z + 3.72668798e-15;
  p = p * z + 1.72172985e-12;
  p = p * z + 5.88831607e-10;
  p = p * z + 1.41319586e-7;
  p = p * z + 2.20458554e-5;
  p = p * z + 0.00198412698;
  p = p * z + 0.0833333333;
  p = p * z + 1.0;
  return p;
}
