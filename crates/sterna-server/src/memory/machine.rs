//! The system's figures of memory: the limit of this process, and the memory that it has.

use std::fs;

use crate::config::MemoryCeiling;

/// Where the system says how much this process has.
const OWN_PAGES: &str = "/proc/self/statm";

/// The ceiling of memory in bytes, as a setting asks for it. `None` where it asks for a share and the system tells no
/// limit.
pub(crate) fn ceiling_bytes(setting: MemoryCeiling) -> Option<u64> {
    match setting {
        MemoryCeiling::Bytes(bytes) => Some(bytes),
        MemoryCeiling::Percent(percent) => {
            let limit = limit_bytes()?;
            u64::try_from(u128::from(limit) * u128::from(percent) / 100).ok()
        }
    }
}

/// The memory that this process may have, in bytes: the least limit of its control groups, its address space and the
/// machine.
fn limit_bytes() -> Option<u64> {
    let text = |path: &str| fs::read_to_string(path).ok();
    let machine = text("/proc/meminfo").and_then(|text| of_machine(&text));
    let addresses = text("/proc/self/limits").and_then(|text| of_limits(&text));
    let groups = text("/proc/self/cgroup").unwrap_or_default();
    let of_groups = group_files(&groups)
        .into_iter()
        .filter_map(|path| text(&path)?.trim().parse::<u64>().ok())
        // Version 1 says "no limit" by a number near the greatest.
        .filter(|bytes| *bytes > 0 && *bytes < 1 << 62);
    of_groups.chain(machine).chain(addresses).min()
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

/// The memory of this process that is resident, in bytes; `None` where the system does not tell.
pub(crate) fn resident_bytes() -> Option<u64> {
    let text = fs::read_to_string(OWN_PAGES).ok()?;
    let pages: u64 = text.split_whitespace().nth(1)?.parse().ok()?;
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
        let limit = limit_bytes().expect("the system tells");
        assert!(
            resident > 100_000 && resident < limit,
            "{resident} of {limit}"
        );
        assert_eq!(ceiling_bytes(MemoryCeiling::Bytes(7)), Some(7));
        assert_eq!(ceiling_bytes(MemoryCeiling::Percent(50)), Some(limit / 2));
    }
}
