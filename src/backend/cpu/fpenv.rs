//! Floating-point control: hosts change it, and the bits of results hang on it.

/// While it lives, this thread rounds to nearest, keeps subnormal numbers and masks exceptions; dropped, it puts
/// back what the host had.
#[derive(Debug)]
pub struct FpGuard {
    host: u64,
    /// The control word belongs to the thread that read it.
    not_send: std::marker::PhantomData<*const ()>,
}

impl FpGuard {
    /// Saves the thread's floating-point control and sets ours.
    #[must_use]
    pub fn new() -> FpGuard {
        let host = read();
        write(OURS);
        FpGuard { host, not_send: std::marker::PhantomData }
    }
}

impl Default for FpGuard {
    fn default() -> Self {
        FpGuard::new()
    }
}

impl Drop for FpGuard {
    fn drop(&mut self) {
        write(self.host);
    }
}

/// MXCSR: every exception masked, round to nearest, neither FTZ nor DAZ.
#[cfg(target_arch = "x86_64")]
const OURS: u64 = 0x1f80;

#[cfg(target_arch = "x86_64")]
fn read() -> u64 {
    let mut word = 0_u32;
    // SAFETY: stmxcsr stores four bytes at the address of `word`.
    unsafe { std::arch::asm!("stmxcsr [{}]", in(reg) &mut word, options(nostack, preserves_flags)) };
    u64::from(word)
}

#[cfg(target_arch = "x86_64")]
fn write(word: u64) {
    let word = word as u32;
    // SAFETY: ldmxcsr loads four bytes from `word`, which holds ours or what stmxcsr gave: no reserved bit is set.
    unsafe { std::arch::asm!("ldmxcsr [{}]", in(reg) &word, options(nostack, preserves_flags)) };
}

/// FPCR: round to nearest, no flush-to-zero, no traps.
#[cfg(target_arch = "aarch64")]
const OURS: u64 = 0;

#[cfg(target_arch = "aarch64")]
fn read() -> u64 {
    let word: u64;
    // SAFETY: reading FPCR has no effect.
    unsafe { std::arch::asm!("mrs {}, fpcr", out(reg) word, options(nostack, preserves_flags)) };
    word
}

#[cfg(target_arch = "aarch64")]
fn write(word: u64) {
    // SAFETY: sets floating-point control only, to ours or to what was read.
    unsafe { std::arch::asm!("msr fpcr, {}", in(reg) word, options(nostack, preserves_flags)) };
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const OURS: u64 = 0;

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn read() -> u64 {
    0
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn write(_word: u64) {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hint::black_box;

    /// Flush-to-zero, denormals-are-zero and rounding down.
    #[cfg(target_arch = "x86_64")]
    const ODD: u64 = 0x1f80 | 0x8000 | 0x0040 | 0x2000;
    #[cfg(target_arch = "aarch64")]
    const ODD: u64 = (1 << 24) | (2 << 22);

    #[test]
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    fn the_guard_sets_ours_and_restores_the_hosts() {
        let before = read();
        write(ODD);
        let tiny = || black_box(f32::MIN_POSITIVE) * black_box(0.5);
        let flushed = tiny();
        let guard = FpGuard::new();
        let kept = tiny();
        let third = black_box(-1.0_f32) / black_box(3.0);
        drop(guard);
        let restored = read() & 0xffff_ffc0;
        write(before);
        assert_eq!(flushed, 0.0);
        assert_eq!(kept.to_bits(), 0x0040_0000);
        assert_eq!(third, -1.0 / 3.0);
        assert_eq!(restored, ODD & 0xffff_ffc0);
    }
}
