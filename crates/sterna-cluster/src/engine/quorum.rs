//! Whether JetStream can decide: a stream without a leader takes nothing, and tells nothing.

use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::context::{GetStreamError, GetStreamErrorKind};
use async_nats::jetstream::stream::Info;
use futures_util::future::join_all;

use super::Core;

/// How often is looked, while something is wrong.
const LOOK: Duration = Duration::from_secs(1);

/// The leader of a stream, as far as it is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Leader {
    /// There is one, or nobody says that there is none.
    Is,
    None,
    /// JetStream as a whole has none.
    NoneOfAll,
}

impl Core {
    /// Looks for a quorum while this node is not sure of its sessions, or NATS takes nothing.
    pub(super) async fn look_for_quorum(self: Rc<Self>) {
        loop {
            tokio::time::sleep(LOOK).await;
            let status = &self.status;
            let is_sure = status.is_sure.load(Ordering::Acquire);
            let is_well = is_sure && !status.is_stalled.load(Ordering::Acquire);
            if is_well || !status.is_connected() {
                status.conditions.set_quorum(None);
                continue;
            }
            let names: Vec<String> = self.stream_names();
            let leaders = join_all(names.iter().map(|name| self.leader_of(name))).await;
            let lacks = what_lacks(names.iter().zip(leaders));
            self.status.conditions.set_quorum(lacks);
        }
    }

    async fn leader_of(&self, stream: &str) -> Leader {
        let within = Duration::from_millis(self.settings.answer_timeout_ms);
        let asked = tokio::time::timeout(within, self.jetstream.get_stream(stream)).await;
        // The leader of a stream answers for it.
        asked.map_or(Leader::None, |answer| match answer {
            Ok(found) => of_info(found.cached_info()),
            Err(error) => of_error(&error),
        })
    }
}

fn of_info(info: &Info) -> Leader {
    let Some(cluster) = &info.cluster else {
        return Leader::Is;
    };
    match cluster.leader.as_deref() {
        None | Some("") => Leader::None,
        Some(_) => Leader::Is,
    }
}

fn of_error(error: &GetStreamError) -> Leader {
    match error.kind() {
        GetStreamErrorKind::JetStream(answer) => match answer.error_code() {
            ErrorCode::CLUSTER_NOT_AVAILABLE => Leader::NoneOfAll,
            _ => Leader::Is,
        },
        _ => Leader::None,
    }
}

/// A part of a sentence: what has no leader; `None` where all have.
fn what_lacks<'a>(leaders: impl Iterator<Item = (&'a String, Leader)>) -> Option<String> {
    let (mut lacking, mut leads) = (Vec::new(), false);
    let mut is_whole = false;
    for (name, leader) in leaders {
        match leader {
            Leader::Is => leads = true,
            Leader::None => lacking.push(name.as_str()),
            Leader::NoneOfAll => {
                is_whole = true;
                lacking.push(name);
            }
        }
    }
    if lacking.is_empty() {
        return None;
    }
    Some(if is_whole || !leads {
        "JetStream has no leader: most servers of NATS are away, or cannot reach each other"
            .to_owned()
    } else {
        format!("nobody leads {} in NATS", lacking.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_what_has_no_leader() {
        let names = ["A", "B", "C"].map(str::to_owned);
        let lacks = |leaders: [Leader; 3]| what_lacks(names.iter().zip(leaders));
        assert_eq!(lacks([Leader::Is; 3]), None);
        let some = lacks([Leader::None, Leader::Is, Leader::None]);
        assert_eq!(some.as_deref(), Some("nobody leads A, C in NATS"));
        for all in [
            [Leader::None; 3],
            [Leader::Is, Leader::NoneOfAll, Leader::Is],
        ] {
            let lacks = lacks(all).expect("something");
            assert!(lacks.starts_with("JetStream has no leader"), "{lacks}");
        }
    }
}
