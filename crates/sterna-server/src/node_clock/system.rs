//! The system's clocks.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// A clock that goes on while the machine is suspended.
#[cfg(target_os = "linux")]
const SINCE_BOOT: ClockId = ClockId::Boottime;
#[cfg(not(target_os = "linux"))]
const SINCE_BOOT: ClockId = ClockId::Monotonic;

/// The clocks of a machine at one moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reading {
    /// The wall clock, in milliseconds since the Unix epoch.
    pub wall_ms: u64,
    /// Milliseconds since the machine was booted, those of its suspension included.
    pub boot_ms: u64,
    /// Tells this boot from all others; `None` where the system has no such name.
    pub boot: Option<String>,
}

/// Clocks of a machine.
pub trait Clocks: Send + Sync + fmt::Debug {
    /// Reads them.
    fn read(&self) -> Reading;
}

/// Those of the operating system.
#[derive(Debug)]
pub struct SystemClocks {
    boot: Option<String>,
}

impl Default for SystemClocks {
    fn default() -> Self {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
        Self {
            boot: boot.ok().map(|boot| boot.trim().to_owned()),
        }
    }
}

impl Clocks for SystemClocks {
    fn read(&self) -> Reading {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
        let since_boot = clock_gettime(SINCE_BOOT);
        Reading {
            wall_ms: since_epoch.map_or(0, |since| since.as_millis() as u64),
            boot_ms: since_boot.tv_sec.cast_unsigned() * 1_000
                + since_boot.tv_nsec.cast_unsigned() / 1_000_000,
            boot: self.boot.clone(),
        }
    }
}
