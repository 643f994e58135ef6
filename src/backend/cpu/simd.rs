//! The few vector operations the compiler does not find by itself, in plain Rust and for AVX2, and the macro that
//! compiles every kernel for each.

use crate::math;

/// Eight lanes of 32 bits, each also seen as two of 16 bits.
pub trait Simd {
    /// The lanes.
    type Lanes: Copy;
    /// Lanes of zero.
    fn zero() -> Self::Lanes;
    /// Little-endian lanes from bytes.
    fn load(bytes: &[u8; 32]) -> Self::Lanes;
    /// The same value in each lane.
    fn splat(value: i32) -> Self::Lanes;
    /// `(v >> SHIFT) & mask`, lane by lane, without sign.
    fn right<const SHIFT: i32>(v: Self::Lanes, mask: u32) -> Self::Lanes;
    /// `(v << SHIFT) & mask`.
    fn left<const SHIFT: i32>(v: Self::Lanes, mask: u32) -> Self::Lanes;
    /// `a | b`.
    fn or(a: Self::Lanes, b: Self::Lanes) -> Self::Lanes;
    /// `sum + w.low * x.low + w.high * x.high`, the halves of each lane as i16.
    fn add_dot(sum: Self::Lanes, w: Self::Lanes, x: Self::Lanes) -> Self::Lanes;
    /// The lanes as integers.
    fn to_i32(v: Self::Lanes) -> [i32; 8];
    /// Eight f16 as f32.
    fn widen_f16(h: &[u16; 8]) -> [f32; 8];

    /// Eight float32.
    type Floats: Copy;
    /// Floats from memory.
    fn floats(values: &[f32; 8]) -> Self::Floats;
    /// The same float in each lane.
    fn splat_float(value: f32) -> Self::Floats;
    /// `a * b + sum`, rounded once.
    fn fma(a: Self::Floats, b: Self::Floats, sum: Self::Floats) -> Self::Floats;
    /// `a + b`.
    fn add(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a * b`.
    fn multiply(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// The floats.
    fn to_floats(v: Self::Floats) -> [f32; 8];
}

/// Plain Rust.
pub struct Plain;

impl Simd for Plain {
    type Lanes = [u32; 8];

    #[inline(always)]
    fn zero() -> [u32; 8] {
        [0; 8]
    }

    #[inline(always)]
    fn load(bytes: &[u8; 32]) -> [u32; 8] {
        let mut v = [0; 8];
        for (lane, four) in v.iter_mut().zip(bytes.as_chunks::<4>().0) {
            *lane = u32::from_le_bytes(*four);
        }
        v
    }

    #[inline(always)]
    fn splat(value: i32) -> [u32; 8] {
        [value as u32; 8]
    }

    #[inline(always)]
    fn right<const SHIFT: i32>(mut v: [u32; 8], mask: u32) -> [u32; 8] {
        for lane in &mut v {
            *lane = (*lane >> SHIFT) & mask;
        }
        v
    }

    #[inline(always)]
    fn left<const SHIFT: i32>(mut v: [u32; 8], mask: u32) -> [u32; 8] {
        for lane in &mut v {
            *lane = (*lane << SHIFT) & mask;
        }
        v
    }

    #[inline(always)]
    fn or(mut a: [u32; 8], b: [u32; 8]) -> [u32; 8] {
        for (a, b) in a.iter_mut().zip(b) {
            *a |= b;
        }
        a
    }

    #[inline(always)]
    fn add_dot(mut sum: [u32; 8], w: [u32; 8], x: [u32; 8]) -> [u32; 8] {
        for i in 0..8 {
            let low = i32::from(w[i] as i16) * i32::from(x[i] as i16);
            let high = ((w[i] as i32) >> 16) * ((x[i] as i32) >> 16);
            sum[i] = sum[i].wrapping_add(low.wrapping_add(high) as u32);
        }
        sum
    }

    #[inline(always)]
    fn to_i32(v: [u32; 8]) -> [i32; 8] {
        v.map(|lane| lane as i32)
    }

    #[inline(always)]
    fn widen_f16(h: &[u16; 8]) -> [f32; 8] {
        let mut out = [0.0; 8];
        for (out, h) in out.iter_mut().zip(h) {
            *out = math::f16_to_f32(*h);
        }
        out
    }

    type Floats = [f32; 8];

    #[inline(always)]
    fn floats(values: &[f32; 8]) -> [f32; 8] {
        *values
    }

    #[inline(always)]
    fn splat_float(value: f32) -> [f32; 8] {
        [value; 8]
    }

    #[inline(always)]
    fn fma(a: [f32; 8], b: [f32; 8], mut sum: [f32; 8]) -> [f32; 8] {
        for i in 0..8 {
            sum[i] = a[i].mul_add(b[i], sum[i]);
        }
        sum
    }

    #[inline(always)]
    fn add(mut a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        for (a, b) in a.iter_mut().zip(b) {
            *a += b;
        }
        a
    }

    #[inline(always)]
    fn multiply(mut a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        for (a, b) in a.iter_mut().zip(b) {
            *a *= b;
        }
        a
    }

    #[inline(always)]
    fn to_floats(v: [f32; 8]) -> [f32; 8] {
        v
    }
}

/// AVX2, FMA and F16C. Its functions may run only where the CPU has them: kernels reach them through `kernel!` alone.
#[cfg(target_arch = "x86_64")]
pub struct Avx2;

#[cfg(target_arch = "x86_64")]
impl Simd for Avx2 {
    type Lanes = std::arch::x86_64::__m256i;

    #[inline(always)]
    fn zero() -> Self::Lanes {
        // SAFETY: kernels run on CPUs with AVX2 only.
        unsafe { std::arch::x86_64::_mm256_setzero_si256() }
    }

    #[inline(always)]
    fn load(bytes: &[u8; 32]) -> Self::Lanes {
        // SAFETY: kernels run on CPUs with AVX2 only; 32 bytes are read without alignment.
        unsafe { std::arch::x86_64::_mm256_loadu_si256(bytes.as_ptr().cast()) }
    }

    #[inline(always)]
    fn splat(value: i32) -> Self::Lanes {
        // SAFETY: kernels run on CPUs with AVX2 only.
        unsafe { std::arch::x86_64::_mm256_set1_epi32(value) }
    }

    #[inline(always)]
    fn right<const SHIFT: i32>(v: Self::Lanes, mask: u32) -> Self::Lanes {
        use std::arch::x86_64::{_mm256_and_si256, _mm256_set1_epi32, _mm256_srli_epi32};
        // SAFETY: kernels run on CPUs with AVX2 only.
        unsafe { _mm256_and_si256(_mm256_srli_epi32::<SHIFT>(v), _mm256_set1_epi32(mask as i32)) }
    }

    #[inline(always)]
    fn left<const SHIFT: i32>(v: Self::Lanes, mask: u32) -> Self::Lanes {
        use std::arch::x86_64::{_mm256_and_si256, _mm256_set1_epi32, _mm256_slli_epi32};
        // SAFETY: kernels run on CPUs with AVX2 only.
        unsafe { _mm256_and_si256(_mm256_slli_epi32::<SHIFT>(v), _mm256_set1_epi32(mask as i32)) }
    }

    #[inline(always)]
    fn or(a: Self::Lanes, b: Self::Lanes) -> Self::Lanes {
        // SAFETY: kernels run on CPUs with AVX2 only.
        unsafe { std::arch::x86_64::_mm256_or_si256(a, b) }
    }

    #[inline(always)]
    fn add_dot(sum: Self::Lanes, w: Self::Lanes, x: Self::Lanes) -> Self::Lanes {
        use std::arch::x86_64::{_mm256_add_epi32, _mm256_madd_epi16};
        // SAFETY: kernels run on CPUs with AVX2 only.
        unsafe { _mm256_add_epi32(sum, _mm256_madd_epi16(w, x)) }
    }

    #[inline(always)]
    fn to_i32(v: Self::Lanes) -> [i32; 8] {
        let mut out = [0; 8];
        // SAFETY: kernels run on CPUs with AVX2 only; 32 bytes are written without alignment.
        unsafe { std::arch::x86_64::_mm256_storeu_si256(out.as_mut_ptr().cast(), v) };
        out
    }

    #[inline(always)]
    fn widen_f16(h: &[u16; 8]) -> [f32; 8] {
        use std::arch::x86_64::{_mm_loadu_si128, _mm256_cvtph_ps, _mm256_storeu_ps};
        let mut out = [0.0; 8];
        // SAFETY: kernels run on CPUs with F16C only; 16 bytes are read and 32 written without alignment.
        unsafe { _mm256_storeu_ps(out.as_mut_ptr(), _mm256_cvtph_ps(_mm_loadu_si128(h.as_ptr().cast()))) };
        out
    }

    type Floats = std::arch::x86_64::__m256;

    #[inline(always)]
    fn floats(values: &[f32; 8]) -> Self::Floats {
        // SAFETY: both are eight floats, lane after lane, and any bits are some floats.
        unsafe { std::mem::transmute::<[f32; 8], Self::Floats>(*values) }
    }

    #[inline(always)]
    fn splat_float(value: f32) -> Self::Floats {
        // SAFETY: kernels run on CPUs with AVX2 only.
        unsafe { std::arch::x86_64::_mm256_set1_ps(value) }
    }

    #[inline(always)]
    fn fma(a: Self::Floats, b: Self::Floats, sum: Self::Floats) -> Self::Floats {
        // SAFETY: kernels run on CPUs with FMA only.
        unsafe { std::arch::x86_64::_mm256_fmadd_ps(a, b, sum) }
    }

    #[inline(always)]
    fn add(a: Self::Floats, b: Self::Floats) -> Self::Floats {
        // SAFETY: kernels run on CPUs with AVX2 only.
        unsafe { std::arch::x86_64::_mm256_add_ps(a, b) }
    }

    #[inline(always)]
    fn multiply(a: Self::Floats, b: Self::Floats) -> Self::Floats {
        // SAFETY: kernels run on CPUs with AVX2 only.
        unsafe { std::arch::x86_64::_mm256_mul_ps(a, b) }
    }

    #[inline(always)]
    fn to_floats(v: Self::Floats) -> [f32; 8] {
        // SAFETY: both are eight floats, lane after lane, and any bits are some floats.
        unsafe { std::mem::transmute::<Self::Floats, [f32; 8]>(v) }
    }
}

/// Declares `fn name(isa, args…)` that runs `imp` compiled for `isa`: `= simd imp` for one generic over [`Simd`],
/// `= plain imp` for one the compiler vectorizes by itself.
macro_rules! kernel {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = simd $imp:ident) => {
        kernel!(@ [$(#[$meta])*] [$vis] $name ($($arg: $ty),*) [$($ret)?] [$imp::<$crate::backend::cpu::simd::Plain>]
            [$imp::<$crate::backend::cpu::simd::Avx2>]);
    };
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = plain $imp:ident) => {
        kernel!(@ [$(#[$meta])*] [$vis] $name ($($arg: $ty),*) [$($ret)?] [$imp] [$imp]);
    };
    (@ [$(#[$meta:meta])*] [$vis:vis] $name:ident ($($arg:ident: $ty:ty),*) [$($ret:ty)?]
        [$($plain:tt)*] [$($avx2:tt)*]) => {
        $(#[$meta])*
        $vis fn $name(isa: $crate::backend::cpu::Isa, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            fn avx2($($arg: $ty),*) $(-> $ret)? {
                $($avx2)*($($arg),*)
            }
            match isa {
                #[cfg(target_arch = "x86_64")]
                // SAFETY: `CpuBackend::new` lets an instruction set through only where the CPU has it.
                $crate::backend::cpu::Isa::Avx2 => unsafe { avx2($($arg),*) },
                _ => $($plain)*($($arg),*),
            }
        }
    };
}
pub(super) use kernel;

#[cfg(test)]
#[cfg(target_arch = "x86_64")]
mod tests {
    use super::*;
    use crate::backend::cpu::Isa;

    fn lanes<S: Simd>(bytes: &[u8; 32], other: &[u8; 32], x: i32) -> [[i32; 8]; 7] {
        let (v, w) = (S::load(bytes), S::load(other));
        [
            S::to_i32(S::zero()),
            S::to_i32(S::splat(x)),
            S::to_i32(S::right::<12>(v, 0x000f_000f)),
            S::to_i32(S::left::<4>(v, 0x3030_3030)),
            S::to_i32(S::or(v, w)),
            S::to_i32(S::add_dot(w, v, S::splat(x))),
            S::to_i32(S::add_dot(S::zero(), v, w)),
        ]
    }
    kernel!(fn lanes_of(bytes: &[u8; 32], other: &[u8; 32], x: i32) -> [[i32; 8]; 7] = simd lanes);

    fn widen<S: Simd>(h: &[u16; 8]) -> [f32; 8] {
        S::widen_f16(h)
    }
    kernel!(fn widen_of(h: &[u16; 8]) -> [f32; 8] = simd widen);

    fn float_lanes<S: Simd>(a: &[f32; 8], b: &[f32; 8], x: f32) -> [[f32; 8]; 5] {
        let (a, b, x) = (S::floats(a), S::floats(b), S::splat_float(x));
        [
            S::to_floats(a),
            S::to_floats(x),
            S::to_floats(S::fma(a, x, b)),
            S::to_floats(S::add(a, b)),
            S::to_floats(S::multiply(a, b)),
        ]
    }
    kernel!(fn float_lanes_of(a: &[f32; 8], b: &[f32; 8], x: f32) -> [[f32; 8]; 5] = simd float_lanes);

    #[test]
    fn avx2_operations_equal_plain_ones() {
        if !Isa::Avx2.available() {
            return;
        }
        let mut seed = 1_u64;
        let mut next = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as u32
        };
        for _ in 0..1_000 {
            let bytes: [u8; 32] = std::array::from_fn(|_| next() as u8);
            let other: [u8; 32] = std::array::from_fn(|_| next() as u8);
            let x = next().wrapping_mul(3) as i32;
            assert_eq!(lanes_of(Isa::Avx2, &bytes, &other, x), lanes_of(Isa::Portable, &bytes, &other, x));
            let mut float = || (next() as i32 - (1 << 30)) as f32 * 1e-9;
            let (a, b, x) = (std::array::from_fn(|_| float()), std::array::from_fn(|_| float()), float());
            let bits = |isa| float_lanes_of(isa, &a, &b, x).map(|lanes| lanes.map(f32::to_bits));
            assert_eq!(bits(Isa::Avx2), bits(Isa::Portable));
        }
        for base in (0..0x7c00_u16).step_by(8) {
            let h: [u16; 8] = std::array::from_fn(|i| base + i as u16);
            assert_eq!(widen_of(Isa::Avx2, &h).map(f32::to_bits), widen_of(Isa::Portable, &h).map(f32::to_bits));
        }
    }
}
