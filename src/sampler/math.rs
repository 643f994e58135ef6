//! Float64 exp and ln in plain IEEE operations: the same bits on every machine, unlike a platform's libm.

/// High and low part of ln 2; `k * LN2_HIGH` is exact for the exponents of a float64.
const LN2_HIGH: f64 = 6.931_471_803_691_238e-1;
const LN2_LOW: f64 = 1.908_214_929_270_587_7e-10;

/// Adding and subtracting it rounds a number below 2^51 to an integer.
const TO_INTEGER: f64 = 6_755_399_441_055_744.0;

/// Below this `exp` is 0: its result would be subnormal.
const EXP_FLOOR: f64 = -708.0;

/// `1 / n!`: the Taylor series of exp over `|r| <= ln(2) / 2`, where the first term left out is below 1e-17.
const EXP_TERMS: [f64; 14] = {
    let mut terms = [1.0; 14];
    let mut n = 1;
    let mut factorial = 1.0;
    while n < terms.len() {
        factorial *= n as f64;
        terms[n] = 1.0 / factorial;
        n += 1;
    }
    terms
};

/// Terms of the series of ln over `|s| <= 0.1716`: the first left out is below 1e-18.
const LN_TERMS: u32 = 11;

/// `e^x` for finite `x` of at most 0 (above it, up to 709), within 2 units in the last place; 0 below -708.
pub fn exp(x: f64) -> f64 {
    if x < EXP_FLOOR {
        return 0.0;
    }
    let k = (x * std::f64::consts::LOG2_E + TO_INTEGER) - TO_INTEGER;
    let r = (x - k * LN2_HIGH) - k * LN2_LOW;
    let sum = EXP_TERMS.iter().rev().fold(0.0, |sum, term| sum * r + term);
    sum * power_of_two(k as i64)
}

/// Natural logarithm of a normal positive `x`, within 2 units in the last place.
pub fn ln(x: f64) -> f64 {
    let bits = x.to_bits();
    let mut exponent = (bits >> 52) as i64 - 1023;
    let mut m = f64::from_bits(bits & 0x000f_ffff_ffff_ffff | 1023 << 52);
    if m > std::f64::consts::SQRT_2 {
        m /= 2.0;
        exponent += 1;
    }
    let s = (m - 1.0) / (m + 1.0);
    let square = s * s;
    let mut sum = 0.0;
    for n in (0..LN_TERMS).rev() {
        sum = sum * square + 1.0 / f64::from(2 * n + 1);
    }
    let k = exponent as f64;
    k * LN2_HIGH + (2.0 * s * sum + k * LN2_LOW)
}

/// `2^k` for `k` from -1022 to 1023.
fn power_of_two(k: i64) -> f64 {
    f64::from_bits(((1023 + k) as u64) << 52)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_and_ln_agree_with_the_platform() {
        for i in 0..200_000 {
            let x = -708.0 + f64::from(i) * 0.003_6;
            let close = (exp(x) / x.exp() - 1.0).abs();
            assert!(close < 6e-16, "exp({x}): off by {close:e}");
            let y = x.exp() + 1e-300;
            let close = (ln(y) - y.ln()).abs() / y.ln().abs().max(1e-3);
            assert!(close < 6e-16, "ln({y}): off by {close:e}");
        }
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-1e300), 0.0);
        assert_eq!(ln(1.0), 0.0);
    }
}
