//! Elementary functions in plain `mul_add` arithmetic, so that every CPU gives the same bits, and the 16-bit floats.
//!
//! They assume round-to-nearest and no flush-to-zero; see [`crate::backend::cpu::FpGuard`].

/// Largest finite f16.
pub const F16_MAX: f32 = 65504.0;

/// Adding and subtracting it rounds a small f32 to an integer, half to even.
const ROUND_F32: f32 = 12_582_912.0;
/// The same for f64.
const ROUND_F64: f64 = 6_755_399_441_055_744.0;

/// e^x, within 1.1 ulp; 0 and infinity where float32 ends, NaN for NaN.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    let clamped = if x < -104.0 { -104.0 } else { x };
    let clamped = if clamped > 89.0 { 89.0 } else { clamped };
    let shifted = clamped.mul_add(std::f32::consts::LOG2_E, ROUND_F32);
    let n = shifted - ROUND_F32;
    let exponent = (shifted.to_bits() as i32).wrapping_sub(ROUND_F32.to_bits() as i32);
    // ln 2 in two parts; the first has trailing zeros, so that n times it is exact.
    let r = n.mul_add(-0.693_145_75, clamped);
    let r = n.mul_add(-1.428_606_8e-6, r);
    let mut p = 1.987_569_1e-4_f32;
    for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = p.mul_add(r, c);
    }
    let y = p.mul_add(r * r, r) + 1.0;
    // Two factors, so that results below the normal range come out too.
    let half = exponent >> 1;
    y * power_of_two(half) * power_of_two(exponent.wrapping_sub(half))
}

/// 2^n for `-126 <= n <= 127`.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

/// `1 / (1 + e^-x)`, within 2.5 ulp.
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// `x * sigmoid(x)`, within 2.5 ulp.
#[inline(always)]
pub fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

/// Sine and cosine of `angle` radians, right to float32 for `|angle| <= 2^32`; NaN for what is not finite.
#[inline(always)]
pub fn sin_cos(angle: f32) -> (f32, f32) {
    let x = f64::from(angle);
    let shifted = x.mul_add(std::f64::consts::FRAC_2_PI, ROUND_F64);
    let n = shifted - ROUND_F64;
    let quadrant = shifted.to_bits() & 3;
    let r = n.mul_add(-std::f64::consts::FRAC_PI_2, x);
    let r = n.mul_add(-6.123_233_995_736_766e-17, r);
    let z = r * r;
    let mut s = 1.0 / 6_227_020_800.0;
    for c in [-1.0 / 39_916_800.0, 1.0 / 362_880.0, -1.0 / 5_040.0, 1.0 / 120.0, -1.0 / 6.0] {
        s = z.mul_add(s, c);
    }
    let sine = (s * z).mul_add(r, r) as f32;
    let mut c = -1.0 / 87_178_291_200.0;
    for k in [1.0 / 479_001_600.0, -1.0 / 3_628_800.0, 1.0 / 40_320.0, -1.0 / 720.0, 1.0 / 24.0, -0.5, 1.0] {
        c = z.mul_add(c, k);
    }
    let cosine = c as f32;
    match quadrant {
        0 => (sine, cosine),
        1 => (cosine, -sine),
        2 => (-sine, -cosine),
        _ => (-cosine, sine),
    }
}

/// `1 / n!`, the terms of [`exp64`]'s series; the first left out is below 1e-17.
const EXP_TERMS: [f64; 14] = {
    let mut terms = [1.0; 14];
    let (mut n, mut factorial) = (1, 1.0);
    while n < terms.len() {
        factorial *= n as f64;
        terms[n] = 1.0 / factorial;
        n += 1;
    }
    terms
};

/// e^x in float64, within 2 ulp; 0 and infinity where float64 ends.
///
/// Without `mul_add`, which is a call where the compiler may not assume FMA, and this runs once a token of the
/// vocabulary.
#[inline]
pub fn exp64(x: f64) -> f64 {
    let x = x.clamp(-746.0, 710.0);
    let shifted = x * std::f64::consts::LOG2_E + ROUND_F64;
    let n = shifted - ROUND_F64;
    let exponent = (shifted.to_bits() as i64).wrapping_sub(ROUND_F64.to_bits() as i64);
    // The upper part of ln 2 is short enough for its product with n to be exact.
    let r = (x - n * 6.931_471_803_691_238e-1) - n * 1.908_214_929_270_587_7e-10;
    let p = EXP_TERMS.iter().rev().fold(0.0, |p, term| p * r + term);
    let power = |n: i64| f64::from_bits((n.wrapping_add(1023) as u64) << 52);
    let half = exponent >> 1;
    p * power(half) * power(exponent.wrapping_sub(half))
}

/// Natural logarithm in float64, within 2 ulp; minus infinity for 0, NaN below.
pub fn ln64(x: f64) -> f64 {
    if x.is_nan() || x < 0.0 {
        return f64::NAN;
    }
    if x == 0.0 || x.is_infinite() {
        return if x == 0.0 { f64::NEG_INFINITY } else { x };
    }
    // Subnormal numbers are scaled into the normal range first.
    let (x, offset) = if x < f64::MIN_POSITIVE { (x * 18_014_398_509_481_984.0, -54.0) } else { (x, 0.0) };
    let bits = x.to_bits();
    let mut exponent = (bits >> 52) as i64 - 1023;
    let mut m = f64::from_bits((bits & 0x000f_ffff_ffff_ffff) | 0x3ff0_0000_0000_0000);
    if m > std::f64::consts::SQRT_2 {
        m *= 0.5;
        exponent += 1;
    }
    let f = m - 1.0;
    let s = f / (2.0 + f);
    let z = s * s;
    let mut p = 1.0 / 25.0;
    for k in (1..=11).rev() {
        p = z.mul_add(p, 1.0 / f64::from(2 * k + 1));
    }
    let n = exponent as f64 + offset;
    // f - s*(f - 2*z*p) is 2*(s + s*z*p) without losing the bits of s.
    let small = s.mul_add(f - 2.0 * z * p, n * -1.908_214_929_270_587_7e-10);
    n.mul_add(6.931_471_803_691_238e-1, f - small)
}

/// Natural logarithm in float32.
pub fn ln(x: f32) -> f32 {
    ln64(f64::from(x)) as f32
}

/// Rounds to f16, half to even; beyond the largest finite value it saturates, NaN stays NaN.
#[inline(always)]
pub fn f32_to_f16(x: f32) -> u16 {
    let bits = x.to_bits();
    let sign = (bits >> 16) & 0x8000;
    let a = bits & 0x7fff_ffff;
    let clamped = if a > 0x477f_e000 { 0x477f_e000 } else { a };
    let normal = (clamped + 0xfff + ((clamped >> 13) & 1)).wrapping_sub(112 << 23) >> 13;
    // Below 2^-14, adding a half leaves the multiples of 2^-24 in the low bits.
    let subnormal = (f32::from_bits(clamped) + 0.5).to_bits().wrapping_sub(0.5_f32.to_bits());
    let half = if clamped < 0x3880_0000 { subnormal } else { normal };
    let half = if a > 0x7f80_0000 { 0x7e00 } else { half };
    (sign | half) as u16
}

/// The value of an f16, exactly.
#[inline(always)]
pub fn f16_to_f32(h: u16) -> f32 {
    let h = u32::from(h);
    let shifted = (h & 0x7fff) << 13;
    let exponent = h & 0x7c00;
    let normal = shifted + (112 << 23);
    let special = shifted + (224 << 23);
    let subnormal = (f32::from_bits(shifted + (113 << 23)) - f32::from_bits(113 << 23)).to_bits();
    let bits = if exponent == 0 { subnormal } else { normal };
    let bits = if exponent == 0x7c00 { special } else { bits };
    f32::from_bits(bits | ((h & 0x8000) << 16))
}

/// The value of a bfloat16, exactly.
#[inline(always)]
pub fn bf16_to_f32(h: u16) -> f32 {
    f32::from_bits(u32::from(h) << 16)
}

/// `x / 2 * (1 + erf(x / sqrt(2)))`, computed in float64.
#[inline(always)]
pub fn gelu(x: f32) -> f32 {
    let x = f64::from(x);
    (0.5 * x * (1.0 + erf64(x * std::f64::consts::FRAC_1_SQRT_2))) as f32
}

/// The error function, by W. J. Cody's rational approximations (1969).
#[inline(always)]
pub fn erf64(x: f64) -> f64 {
    let size = x.abs();
    if size <= 0.468_75 {
        return x * ratio(
            size * size,
            &[
                1.857_777_061_846_031_5e-1,
                3.161_123_743_870_565_6,
                1.138_641_541_510_501_6e2,
                3.774_852_376_853_02e2,
                3.209_377_589_138_469_5e3,
            ],
            &[
                1.0,
                2.360_129_095_234_412_1e1,
                2.440_246_379_344_441_7e2,
                1.282_616_526_077_372_3e3,
                2.844_236_833_439_171e3,
            ],
        );
    }
    // Behind 6 the rest is below half a last bit of 1.
    if size > 6.0 {
        return if x.is_nan() { x } else { x.signum() };
    }
    let rest = if size <= 4.0 {
        ratio(
            size,
            &[
                2.153_115_354_744_038_5e-8,
                5.641_884_969_886_701e-1,
                8.883_149_794_388_376,
                6.611_919_063_714_163e1,
                2.986_351_381_974_001e2,
                8.819_522_212_417_69e2,
                1.712_047_612_634_070_6e3,
                2.051_078_377_826_071_5e3,
                1.230_339_354_797_997_2e3,
            ],
            &[
                1.0,
                1.574_492_611_070_983_5e1,
                1.176_939_508_913_125e2,
                5.371_811_018_620_099e2,
                1.621_389_574_566_690_2e3,
                3.290_799_235_733_459_6e3,
                4.362_619_090_143_247e3,
                3.439_367_674_143_721_6e3,
                1.230_339_354_803_749_4e3,
            ],
        )
    } else {
        let inverse = 1.0 / (size * size);
        let part = ratio(
            inverse,
            &[
                1.631_538_713_730_209_8e-2,
                3.053_266_349_612_323_4e-1,
                3.603_448_999_498_044_4e-1,
                1.257_817_261_112_292_5e-1,
                1.608_378_514_874_228e-2,
                6.587_491_615_298_378e-4,
            ],
            &[
                1.0,
                2.568_520_192_289_822,
                1.872_952_849_923_460_5,
                5.279_051_029_514_284e-1,
                6.051_834_131_244_132e-2,
                2.335_204_976_268_691_8e-3,
            ],
        );
        (std::f64::consts::FRAC_2_SQRT_PI / 2.0 - inverse * part) / size
    };
    x.signum() * (1.0 - exp64(-size * size) * rest)
}

/// A quotient of two polynomials, highest power first.
#[inline(always)]
fn ratio<const N: usize>(x: f64, above: &[f64; N], below: &[f64; N]) -> f64 {
    let value = |coefficients: &[f64; N]| coefficients.iter().fold(0.0_f64, |sum, c| sum.mul_add(x, *c));
    value(above) / value(below)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Distance in units of the exact value's last float32 place.
    fn ulps(got: f32, exact: f64) -> f64 {
        let near = exact as f32;
        if got == near {
            return 0.0;
        }
        let place = f64::from(f32::from_bits(near.abs().to_bits() + 1)) - f64::from(near.abs());
        (f64::from(got) - exact).abs() / place
    }

    #[test]
    fn exp_is_accurate_and_ends_right() {
        let mut worst = 0.0_f64;
        for i in -103_000..88_700 {
            let x = i as f32 * 0.001;
            worst = worst.max(ulps(exp(x), f64::from(x).exp()));
        }
        assert!(worst <= 1.1, "{worst} ulp");
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert!(exp(f32::NAN).is_nan());
    }

    /// One place of the divisor may be two of the quotient, so that exp's 1.1 and two roundings may come to 2.5.
    #[test]
    fn sigmoid_and_silu_are_accurate() {
        for i in -30_000..30_000 {
            let x = i as f32 * 0.002;
            let exact = 1.0 / (1.0 + (-f64::from(x)).exp());
            assert!(ulps(sigmoid(x), exact) <= 2.5, "sigmoid({x})");
            assert!(ulps(silu(x), exact * f64::from(x)) <= 2.5, "silu({x})");
        }
        assert_eq!(silu(-200.0), 0.0);
        assert_eq!(silu(200.0), 200.0);
    }

    #[test]
    fn sin_and_cos_are_right_at_large_angles() {
        for base in [0_u32, 1_000, 200_000, 262_143, 4_000_000, 4_294_967_000] {
            for i in 0..3_000 {
                let angle = base as f32 + i as f32 * 0.37;
                let (s, c) = sin_cos(angle);
                let (es, ec) = f64::from(angle).sin_cos();
                assert!(ulps(s, es) <= 0.51 && ulps(c, ec) <= 0.51, "{angle}: {s} {es} {c} {ec}");
                let (ms, mc) = sin_cos(-angle);
                assert_eq!((ms, mc), (-s, c));
            }
        }
    }

    #[test]
    fn exp64_and_ln64_are_near_exact() {
        for i in -7_000..7_000 {
            let x = f64::from(i) * 0.1007;
            let (got, exact) = (exp64(x), x.exp());
            assert!((got - exact).abs() <= 4.5e-16 * exact, "exp64({x}): {got} {exact}");
            let y = x.exp();
            let (got, exact) = (ln64(y), y.ln());
            assert!((got - exact).abs() <= 4.5e-16 * exact.abs().max(1e-300), "ln64({y}): {got} {exact}");
        }
        assert_eq!((exp64(-800.0), exp64(f64::INFINITY)), (0.0, f64::INFINITY));
        assert!(exp64(f64::NAN).is_nan() && ln64(-1.0).is_nan());
        assert_eq!((ln64(0.0), ln64(1.0)), (f64::NEG_INFINITY, 0.0));
        assert!((ln64(5e-324) - 5e-324_f64.ln()).abs() < 1e-12);
        assert_eq!(ln(1.0), 0.0);
    }

    #[test]
    fn f16_round_trips_and_rounds_half_to_even() {
        for h in 0..=u16::MAX {
            let (ours, theirs) = (f16_to_f32(h), half::f16::from_bits(h).to_f32());
            assert!(ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan()), "{h:#x}");
            if theirs.is_finite() {
                assert_eq!(f32_to_f16(theirs), h);
                let next = half::f16::from_bits((h & 0x7fff) + 1).to_f32();
                for x in [(theirs.abs() + next) / 2.0, theirs.abs() * 1.000_3] {
                    let want = half::f16::from_f32(x).to_f32().min(F16_MAX);
                    assert_eq!(f16_to_f32(f32_to_f16(x)), want, "{x}");
                    assert_eq!(f16_to_f32(f32_to_f16(-x)), -want, "{x}");
                }
            }
        }
        for x in [65_520.0, 1e30, f32::INFINITY] {
            assert_eq!(f16_to_f32(f32_to_f16(x)), F16_MAX);
            assert_eq!(f16_to_f32(f32_to_f16(-x)), -F16_MAX);
        }
        assert!(f16_to_f32(f32_to_f16(f32::NAN)).is_nan());
        assert_eq!(f32_to_f16(1e-30), 0);
        assert_eq!(bf16_to_f32(0x3fc0), 1.5);
    }

    /// Values of a table (Abramowitz and Stegun, 7.1), and a dense range against the series.
    #[test]
    fn erf_is_within_a_few_last_bits() {
        for (x, want) in
            [(0.1, 0.112_462_916_0), (0.5, 0.520_499_877_8), (1.0, 0.842_700_792_9), (2.0, 0.995_322_265_0)]
        {
            assert!((erf64(x) - want).abs() < 6e-11 && (erf64(-x) + want).abs() < 6e-11, "{x}");
        }
        let series = |x: f64| {
            let (mut term, mut sum, mut n) = (x, x, 0.0);
            while f64::abs(term) > 1e-18 * f64::abs(sum) {
                n += 1.0;
                term *= 2.0 * x * x / (2.0 * n + 1.0);
                sum += term;
            }
            std::f64::consts::FRAC_2_SQRT_PI * (-x * x).exp() * sum
        };
        for i in -6500..6500 {
            let x = f64::from(i) / 1000.0;
            // The series' own rounding grows with the exponent of its factor.
            assert!((erf64(x) - series(x)).abs() <= 2e-15 * (1.0 + x * x / 8.0) * series(x).abs(), "{x}");
            let want = x / 2.0 * (1.0 + series(x * std::f64::consts::FRAC_1_SQRT_2));
            assert!((f64::from(gelu(x as f32)) - want).abs() <= 1e-7 * want.abs() + 1e-12 + 1e-7 * x.abs(), "{x}");
        }
        assert!(erf64(f64::NAN).is_nan() && erf64(f64::INFINITY) == 1.0);
    }
}
