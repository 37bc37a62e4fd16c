//! The system's figures of memory: the limit of this process, and the memory that it has.

use std::fs;
use std::sync::OnceLock;

use crate::config::{LEAST_CEILING_BYTES, MemoryCeiling};

/// Where the system says how much this process has.
const OWN_PAGES: &str = "/proc/self/statm";

/// Bytes that a thread maps: its stack, and what the allocator keeps for it.
const THREAD_BYTES: u64 = 6 << 20;
/// Threads beside the shards and those that check passwords.
const THREADS: u64 = 16;
/// Share of what limits leave that a larger ceiling is lowered to, in percent.
const LOWERED_PERCENT: u8 = 80;

/// Memory that this process may have, in bytes; `None` where the system does not say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Room {
    /// Bytes that limits on this process and its control groups leave.
    limits_bytes: Option<u64>,
    machine_bytes: Option<u64>,
}

/// The ceiling of memory in bytes, as a setting asks for it. `None` where it asks for a share and the system tells no
/// limit. `threads` are those of shards and of password checks.
///
/// # Errors
/// Where limits leave too little for the program, in words.
pub(crate) fn ceiling_bytes(setting: MemoryCeiling, threads: u64) -> Result<Option<u64>, String> {
    // A broker that begins anew in the same process has mapped more, which is not in its way.
    static ROOM: OnceLock<Room> = OnceLock::new();
    ceiling_within(*ROOM.get_or_init(|| room(THREADS + threads)), setting)
}

fn ceiling_within(room: Room, setting: MemoryCeiling) -> Result<Option<u64>, String> {
    let part = |bytes: u64, percent: u8| {
        u64::try_from(u128::from(bytes) * u128::from(percent) / 100).unwrap_or(u64::MAX)
    };
    let ceiling_bytes = match (setting, room.limits_bytes) {
        (MemoryCeiling::Bytes(bytes), Some(limit)) if bytes > limit => {
            let ceiling_bytes = part(limit, LOWERED_PERCENT);
            tracing::warn!(
                memory_ceiling = bytes,
                ceiling_bytes,
                "broker.memory_ceiling is more than the limits of the system leave, and is lowered"
            );
            Some(ceiling_bytes)
        }
        (MemoryCeiling::Bytes(bytes), _) => Some(bytes),
        (MemoryCeiling::Percent(percent), limits_bytes) => {
            let bytes = limits_bytes.into_iter().chain(room.machine_bytes).min();
            bytes.map(|bytes| part(bytes, percent))
        }
    };
    if let Some(bytes) = ceiling_bytes
        && bytes < LEAST_CEILING_BYTES
    {
        return Err(format!(
            "the limits of the system leave {} MiB of memory beside what the program maps, and the broker needs {} MiB: \
             raise the limit on addresses (`ulimit -v`, LimitAS=), that of the control group (MemoryMax=), or \
             broker.memory_ceiling",
            bytes >> 20,
            LEAST_CEILING_BYTES >> 20
        ));
    }
    Ok(ceiling_bytes)
}

/// The memory that this process may have: what is resident now, and what its limit on addresses leaves beside what is
/// mapped, and what so many threads will map. Control groups count what is resident.
fn room(threads: u64) -> Room {
    let text = |path: &str| fs::read_to_string(path).ok();
    let machine_bytes = text("/proc/meminfo").and_then(|text| of_machine(&text));
    let addresses = text("/proc/self/limits").and_then(|text| of_limits(&text));
    let addresses = addresses.map(|limit| {
        let pages = |field| own_pages(field).unwrap_or_default();
        let mapped_bytes = pages(MAPPED) + threads * THREAD_BYTES;
        limit.saturating_sub(mapped_bytes) + pages(RESIDENT)
    });
    let groups = text("/proc/self/cgroup").unwrap_or_default();
    let of_groups = group_files(&groups)
        .into_iter()
        .filter_map(|path| text(&path)?.trim().parse::<u64>().ok())
        // Version 1 says "no limit" by a number near the greatest.
        .filter(|bytes| *bytes > 0 && *bytes < 1 << 62);
    Room {
        limits_bytes: of_groups.chain(addresses).min(),
        machine_bytes,
    }
}

/// Total memory of the machine in bytes.
fn of_machine(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// The soft limit on addresses in bytes; `None` where there is none.
fn of_limits(limits: &str) -> Option<u64> {
    let line = (limits.lines()).find_map(|line| line.strip_prefix("Max address space"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The files that have the limits of the control groups of a process, those of outer groups as well, of both
/// versions.
fn group_files(groups: &str) -> Vec<String> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (fields.next(), fields.next()) else {
            continue;
        };
        let (root, name) = if controllers.is_empty() {
            ("/sys/fs/cgroup", "memory.max")
        } else if controllers.split(',').any(|one| one == "memory") {
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
        } else {
            continue;
        };
        let mut group = group.trim_end_matches('/');
        loop {
            files.push(format!("{root}{group}/{name}"));
            let Some((outer, _)) = group.rsplit_once('/') else {
                break;
            };
            group = outer;
        }
    }
    files
}

/// Places of numbers of pages in [`OWN_PAGES`].
const MAPPED: usize = 0;
const RESIDENT: usize = 1;

/// The memory of this process that is resident, in bytes; `None` where the system does not tell.
pub(crate) fn resident_bytes() -> Option<u64> {
    own_pages(RESIDENT)
}

/// A number of pages of this process, in bytes.
fn own_pages(field: usize) -> Option<u64> {
    let text = fs::read_to_string(OWN_PAGES).ok()?;
    let pages: u64 = text.split_whitespace().nth(field)?.parse().ok()?;
    pages.checked_mul(super::allocator::page_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_as_the_system_writes_them() {
        let meminfo = "MemTotal:       16304280 kB\nMemFree:         1 kB\n";
        assert_eq!(of_machine(meminfo), Some(16_304_280 * 1024));
        let limits = "Limit                     Soft Limit           Hard Limit           Units     \n\
                      Max address space         4096000000           unlimited            bytes     \n";
        assert_eq!(of_limits(limits), Some(4_096_000_000));
        assert_eq!(of_limits(&limits.replace("4096000000", "unlimited")), None);
    }

    #[test]
    fn outer_groups_limit_as_well() {
        assert_eq!(
            group_files("0::/system.slice/sterna.service\n"),
            [
                "/sys/fs/cgroup/system.slice/sterna.service/memory.max",
                "/sys/fs/cgroup/system.slice/memory.max",
                "/sys/fs/cgroup/memory.max",
            ]
        );
        assert_eq!(
            group_files("5:cpu,cpuacct:/a\n3:memory:/docker/1\n1:name=systemd:/b\n"),
            [
                "/sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/docker/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            ]
        );
        assert_eq!(group_files("0::/\n"), ["/sys/fs/cgroup/memory.max"]);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_has_memory_and_a_limit() {
        let resident = resident_bytes().expect("the system tells");
        let room = room(1);
        let machine = room.machine_bytes.expect("the system tells");
        assert!(
            resident > 100_000 && resident < machine,
            "{resident} of {machine}"
        );
    }

    #[test]
    fn the_ceiling_is_what_limits_leave_or_the_start_is_refused() {
        const MIB: u64 = 1 << 20;
        let limited = |limit: u64| Room {
            limits_bytes: Some(limit * MIB),
            machine_bytes: Some(1_000 * MIB),
        };
        let free = Room {
            limits_bytes: None,
            ..limited(0)
        };
        let bytes = |mib: u64| MemoryCeiling::Bytes(mib * MIB);
        for (room, setting, ceiling) in [
            (free, bytes(5_000), Some(5_000)),
            (free, MemoryCeiling::Percent(50), Some(500)),
            (limited(400), MemoryCeiling::Percent(50), Some(200)),
            (limited(4_000), MemoryCeiling::Percent(50), Some(500)),
            (limited(400), bytes(300), Some(300)),
            (limited(400), bytes(5_000), Some(320)),
            (limited(79), MemoryCeiling::Percent(80), None),
            (limited(79), bytes(100), None),
        ] {
            let found = ceiling_within(room, setting);
            match ceiling {
                Some(ceiling) => assert_eq!(found, Ok(Some(ceiling * MIB)), "{setting}"),
                None => assert!(found.is_err_and(|why| why.contains("63 MiB")), "{setting}"),
            }
        }
        let unknown = Room {
            limits_bytes: None,
            machine_bytes: None,
        };
        assert_eq!(
            ceiling_within(unknown, MemoryCeiling::Percent(80)),
            Ok(None)
        );
    }
}
