//! Handshakes that have failed: nobody is refused without a line of the log.

use sterna_net::{FailedHandshake, HandshakeFault};

use crate::audit::Login;
use crate::metrics::Meters;
use crate::policy::Policy;
use crate::repeats::left_out;

/// Tells the operator of a handshake that has failed: who it was, where, and the fault. `now_ms` is the shard's time.
pub(super) fn tell_failed(meters: &Meters, policy: &Policy, now_ms: u64, failed: &FailedHandshake) {
    let listener = policy.listener_url(failed.listener);
    let FailedHandshake {
        peer,
        fault,
        detail,
        ..
    } = failed;
    match fault {
        HandshakeFault::ClientCertificate | HandshakeFault::NoClientCertificate => {
            let protocol = policy.protocol_of(failed.listener, &failed.protocol);
            let repeats = (now_ms, policy.repeats);
            Login::certificate_refused((meters, repeats), (protocol, listener), failed);
        }
        // Nobody was refused: a check of health, or the broker stops. A balancer's header has its own line, and so has a
        // limit.
        HandshakeFault::NothingSent
        | HandshakeFault::Shutdown
        | HandshakeFault::ProxyHeader
        | HandshakeFault::Limit => {
            let reason = fault.name();
            tracing::debug!(%peer, listener, reason, detail, "handshake failed");
        }
        _ => {
            // Not by the detail: that is the client's, and each could be another one.
            let line = ("handshake", failed.listener, fault.name());
            let limits = policy.repeats;
            let Some(more) = (meters.repeats).pass(now_ms, limits, Some(peer.ip()), line) else {
                return;
            };
            tracing::info!(
                %peer,
                listener,
                reason = fault.name(),
                detail,
                more = left_out(more),
                "handshake failed"
            );
        }
    }
}
