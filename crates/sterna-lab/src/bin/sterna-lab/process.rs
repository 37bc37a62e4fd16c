//! A process's use of resources, and the processor of this one. Linux.
#![allow(unsafe_code)] // CPU clocks of other processes, affinity and limits have no safe wrapper in std

use std::time::Duration;
use std::{fs, io, mem};

/// Pins this process to one core.
pub(crate) fn pin(cpu: usize) -> io::Result<()> {
    if cpu >= 8 * size_of::<libc::cpu_set_t>() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: a `cpu_set_t` is an array of integers, so all zeros is a value of it. CPU_SET writes
    // within it because `cpu` was checked. The kernel only reads it.
    let result = unsafe {
        let mut set: libc::cpu_set_t = mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set)
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Raises the limit of open files to the system's maximum; returns it.
pub(crate) fn raise_open_files() -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: both calls get a valid pointer to a `rlimit` that outlives them.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) != 0 {
            return 0;
        }
        let before = limit.rlim_cur;
        limit.rlim_cur = limit.rlim_max;
        if libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) != 0 {
            return before;
        }
    }
    limit.rlim_cur
}

/// CPU time of all threads of a process, those that ended included, to the nanosecond.
fn cpu_time(clock: libc::clockid_t) -> io::Result<Duration> {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is valid for the call.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Duration::new(
        time.tv_sec.unsigned_abs(),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    ))
}

/// CPU time of this process so far.
pub(crate) fn own_cpu() -> Duration {
    cpu_time(libc::CLOCK_PROCESS_CPUTIME_ID).unwrap_or_default()
}

/// A process under measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process {
    pid: libc::pid_t,
    clock: libc::clockid_t,
}

/// A process's use of resources up to a moment.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Usage {
    /// CPU time, user and system.
    pub(crate) cpu: Duration,
    /// Of that, time in the kernel, as far as the kernel's accounting tells (ticks of 10 ms).
    pub(crate) system: Duration,
    /// Number of times that a thread of it went to sleep.
    pub(crate) sleeps: u64,
    /// Resident memory.
    pub(crate) resident_bytes: u64,
    /// Bytes that it caused to be written to disks, in whole pages of the kernel's cache.
    pub(crate) written_bytes: u64,
    /// CPU time of the load generator itself.
    pub(crate) own_cpu: Duration,
}

impl Process {
    pub(crate) fn find(pid: u32) -> Result<Self, String> {
        let pid = libc::pid_t::try_from(pid).map_err(|_| format!("{pid} is not a process"))?;
        let mut clock = 0;
        // SAFETY: the pointer is valid for the call.
        let error = unsafe { libc::clock_getcpuclockid(pid, &raw mut clock) };
        if error != 0 {
            return Err(format!(
                "process {pid}: {}",
                io::Error::from_raw_os_error(error)
            ));
        }
        Ok(Self { pid, clock })
    }

    /// Reads all meters; unreadable ones are zero.
    pub(crate) fn usage(self) -> Usage {
        let read = |file: &str| {
            fs::read_to_string(format!("/proc/{}/{file}", self.pid)).unwrap_or_default()
        };
        // utime is field 14, stime field 15; counted from behind the name, which may hold blanks.
        let stat = read("stat");
        let ticks = |field: usize| {
            let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
            fields
                .split_ascii_whitespace()
                .nth(field - 3)
                .and_then(|f| f.parse().ok())
                .unwrap_or(0)
        };
        let system_ticks: u64 = ticks(15);
        let mut sleeps = 0;
        for task in fs::read_dir(format!("/proc/{}/task", self.pid))
            .into_iter()
            .flatten()
            .flatten()
        {
            let status = fs::read_to_string(task.path().join("status")).unwrap_or_default();
            sleeps += number_after(&status, "voluntary_ctxt_switches:");
        }
        Usage {
            cpu: cpu_time(self.clock).unwrap_or_default(),
            system: Duration::from_millis(system_ticks * 10),
            sleeps,
            resident_bytes: number_after(&read("status"), "VmRSS:") * 1024,
            written_bytes: number_after(&read("io"), "write_bytes:"),
            own_cpu: own_cpu(),
        }
    }
}

/// The number in the line that starts with `label`.
fn number_after(text: &str, label: &str) -> u64 {
    text.lines()
        .find_map(|line| line.strip_prefix(label))
        .and_then(|rest| rest.split_ascii_whitespace().next())
        .and_then(|number| number.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_usage_grows_with_work() {
        let process = Process::find(std::process::id()).unwrap();
        let before = process.usage();
        let mut sum = 0_u64;
        while own_cpu() < before.own_cpu + Duration::from_millis(5) {
            sum = sum.wrapping_mul(31).wrapping_add(1);
        }
        let after = process.usage();
        assert_ne!(sum, 1);
        assert!(after.cpu >= before.cpu + Duration::from_millis(5));
        assert!(after.resident_bytes > 100_000);
    }

    #[test]
    fn numbers_are_found_in_status_files() {
        assert_eq!(
            number_after("Name:\tx\nVmRSS:\t  4096 kB\n", "VmRSS:"),
            4096
        );
        assert_eq!(number_after("", "VmRSS:"), 0);
    }
}
