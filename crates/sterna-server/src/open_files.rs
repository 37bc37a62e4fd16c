//! Open files of this process. A connection over TCP takes one, and without any the store cannot begin a segment of
//! its log. So connections leave some to it.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::config::Network;

/// Raises the number of files that this process may have open as far as the system lets it.
fn raise() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "the limit of open files cannot be raised");
    }
}

/// The connections over TCP that each of N shards may have: `network.maximum_connections`, or as many as the limit of
/// open files leaves. That limit is raised first.
pub(crate) fn connections_per_shard(network: &Network, shards: usize) -> usize {
    raise();
    let wanted = network.maximum_connections as usize;
    let Some(files) = getrlimit(Resource::Nofile).current else {
        return wanted;
    };
    let connections = wanted.min(left_for_connections(files, network.reserved_files, shards));
    if connections < wanted {
        tracing::info!(
            files,
            connections,
            "the limit of open files is that of connections over TCP on each shard"
        );
    }
    connections
}

fn left_for_connections(files: u64, reserved: u32, shards: usize) -> usize {
    // A limit that is smaller than the reserve is shared.
    let reserved = u64::from(reserved).min(files / 2);
    let each = (files - reserved) / (shards.max(1) as u64);
    usize::try_from(each).unwrap_or(usize::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_files_to_the_store() {
        assert_eq!(left_for_connections(1_024, 256, 1), 768);
        assert_eq!(left_for_connections(1_024, 256, 3), 256);
        assert_eq!(left_for_connections(1_048_576, 256, 2), 524_160);
        assert_eq!(left_for_connections(256, 256, 1), 128, "half of few");
        assert_eq!(left_for_connections(1, 256, 8), 1);
    }
}
