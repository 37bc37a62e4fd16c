//! Datagrams that came to the wrong shard, on their way to the one that owns the connection.
//!
//! The kernel steers by the first datagram of a joined group. If it has joined datagrams of several
//! connections from one address (GRO; proxies send these), the others come to that shard, too. If
//! it cannot steer at all, all datagrams rely on this.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::BytesMut;

use crate::mailbox::Nudge;
use crate::quic::{EcnCodepoint, ServerId, shard_of};

/// Most datagrams that wait for one shard; more are dropped, as a full socket would.
const MOST_STRAYS: usize = 4_096;

/// A datagram with the socket's knowledge of it.
#[derive(Debug)]
pub(crate) struct Stray {
    pub(crate) local_ip: Option<IpAddr>,
    pub(crate) remote: SocketAddr,
    pub(crate) ecn: Option<EcnCodepoint>,
    pub(crate) bytes: BytesMut,
}

struct Inbox {
    strays: Mutex<Vec<Stray>>,
    waiting: AtomicUsize,
    nudge: Nudge,
}

/// One listener's sockets on all shards, as one of them sees them.
#[derive(Clone)]
pub(crate) struct Siblings {
    shard: u16,
    server_id: Option<ServerId>,
    inboxes: Arc<[Inbox]>,
}

impl fmt::Debug for Siblings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Siblings")
            .field("shard", &self.shard)
            .finish_non_exhaustive()
    }
}

impl Siblings {
    /// The views of all shards, which are woken by `nudges`. Identifiers are those of a node with this name.
    pub(crate) fn new(nudges: &[Nudge], server_id: Option<ServerId>) -> Vec<Self> {
        let inbox = |nudge: &Nudge| Inbox {
            strays: Mutex::default(),
            waiting: AtomicUsize::new(0),
            nudge: nudge.clone(),
        };
        let inboxes: Arc<[Inbox]> = nudges.iter().map(inbox).collect();
        (0..nudges.len())
            .map(|shard| Self {
                shard: shard as u16,
                server_id,
                inboxes: Arc::clone(&inboxes),
            })
            .collect()
    }

    /// The other shard that a datagram belongs to, if it does.
    pub(crate) fn owner(&self, datagram: &[u8]) -> Option<usize> {
        shard_of(datagram, self.inboxes.len() as u16, self.server_id.as_ref())
            .filter(|owner| *owner != self.shard)
            .map(usize::from)
    }

    /// Hands a datagram to its owner.
    pub(crate) fn forward(&self, owner: usize, stray: Stray) {
        let inbox = &self.inboxes[owner];
        let mut strays = inbox.strays.lock().unwrap_or_else(PoisonError::into_inner);
        if strays.len() == MOST_STRAYS {
            return;
        }
        strays.push(stray);
        inbox.waiting.store(strays.len(), Ordering::Release);
        let first = strays.len() == 1;
        drop(strays);
        if first {
            inbox.nudge.give();
        }
    }

    /// Takes the datagrams that others have forwarded to this shard.
    pub(crate) fn take(&self) -> Vec<Stray> {
        let inbox = &self.inboxes[usize::from(self.shard)];
        if inbox.waiting.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        let mut strays = inbox.strays.lock().unwrap_or_else(PoisonError::into_inner);
        inbox.waiting.store(0, Ordering::Release);
        std::mem::take(&mut strays)
    }
}
