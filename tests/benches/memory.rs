//! What this process holds in memory.

/// The most it ever held.
pub const PEAK: &str = "VmHWM:";

/// A count of bytes by its name in /proc/self/status; 0 where the system has none.
pub fn resident(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix(name));
    line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok()).map_or(0, |kib| kib * 1024)
}
