//! A connection of any version of HTTP.

use std::sync::Arc;

use sterna_net::{Chunk, ConnectionId, Network, StreamEnd, StreamId};

use crate::date::{self, Date};
use crate::exchange::{Application, Responses};
use crate::limits::Limits;
use crate::{http3, tcp};

/// Settings of a connection.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Limits of the client's demands; one value for all connections.
    pub limits: Arc<Limits>,
    /// Whether the listener takes unreliable datagrams (RFC 9221), without which there is no
    /// WebTransport.
    pub takes_datagrams: bool,
    /// The UDP port at which the same server speaks HTTP/3, for `Alt-Svc` (RFC 7838); `None` to
    /// announce none.
    pub http3_port: Option<u16>,
}

/// A connection that carries requests and responses. A step consists of [`begin`](Self::begin), one
/// or more events, [`settle`](Self::settle) and [`flush`](Self::flush).
#[derive(Debug)]
pub struct Carrier {
    id: ConnectionId,
    version: Version,
}

#[derive(Debug)]
enum Version {
    Http3(Box<http3::Carrier>),
    Tcp(Box<tcp::Carrier>),
}

/// The beginning of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) now_ms: u64,
    pub(crate) date: [u8; date::BYTES],
    /// Bytes queued towards the client.
    pub(crate) unsent_bytes: usize,
}

/// Calls the carrier of the connection's version.
macro_rules! of_version {
    ($version:expr, $carrier:ident => $call:expr) => {
        match $version {
            Version::Http3($carrier) => $call,
            Version::Tcp($carrier) => $call,
        }
    };
}

impl Carrier {
    /// A connection on which nothing was said; `None` if it is closed. With `h3` as the negotiated
    /// protocol it speaks HTTP/3. Where nothing was negotiated, the first bytes tell HTTP/2 from
    /// HTTP/1.1.
    pub fn new(net: &mut dyn Network, id: ConnectionId, settings: Settings) -> Option<Self> {
        let has_datagrams = net.datagram_bytes(id) > 0;
        let now_ms = net.now_ms();
        let protocol = &*net.info(id)?.protocol;
        let version = if protocol == b"h3" {
            let carrier = http3::Carrier::new(id, settings, now_ms, has_datagrams);
            Version::Http3(Box::new(carrier))
        } else {
            let carrier = tcp::Carrier::new(id, settings, protocol, now_ms);
            Version::Tcp(Box::new(carrier))
        };
        Some(Self { id, version })
    }

    /// Begins a step. `date` is the server's, for the field of that name.
    pub fn begin(&mut self, net: &mut dyn Network, date: &mut Date) {
        let now_ms = net.now_ms();
        let moment = Moment {
            now_ms,
            date: date.at(now_ms),
            unsent_bytes: net.unsent_bytes(self.id),
        };
        match &mut self.version {
            Version::Http3(carrier) => carrier.begin(net, moment),
            Version::Tcp(carrier) => carrier.begin(moment),
        }
    }

    /// Bytes arrived.
    pub fn received(&mut self, app: &mut dyn Application, chunk: &Chunk<'_>) {
        match &mut self.version {
            Version::Http3(carrier) => carrier.received(app, chunk),
            Version::Tcp(carrier) => carrier.received(app, chunk.bytes),
        }
    }

    /// A datagram arrived. HTTP/2 and HTTP/1.1 have none.
    pub fn datagram(&mut self, app: &mut dyn Application, bytes: &[u8]) {
        if let Version::Http3(carrier) = &mut self.version {
            carrier.datagram(app, bytes);
        }
    }

    /// Early data can no longer be a replay. Requests that the application holds back for that reason
    /// are its own.
    pub fn confirmed(&mut self) {
        if let Version::Http3(carrier) = &mut self.version {
            carrier.confirmed();
        }
    }

    /// The client has ended one side of a stream.
    pub fn stream_ended(&mut self, app: &mut dyn Application, stream: StreamId, end: StreamEnd) {
        match (&mut self.version, end) {
            (Version::Http3(carrier), StreamEnd::Finished) => carrier.finished(app, stream),
            (Version::Http3(carrier), StreamEnd::Aborted(code)) => {
                carrier.peer_reset(app, stream, code);
            }
            (Version::Http3(carrier), StreamEnd::Stopped(code)) => {
                carrier.peer_stopped(app, stream, code);
            }
            (Version::Tcp(carrier), _) => carrier.finished(app),
        }
    }

    /// The transport has taken over the queued bytes.
    pub fn writable(&mut self, app: &mut dyn Application) {
        of_version!(&mut self.version, carrier => carrier.writable(app));
    }

    /// Time at which [`timeout`](Self::timeout) is to be called, in milliseconds since the Unix
    /// epoch. `None` for never.
    #[must_use]
    pub fn deadline_ms(&self) -> Option<u64> {
        of_version!(&self.version, carrier => carrier.deadline_ms())
    }

    /// Ends requests that come too slowly, and a connection without any.
    pub fn timeout(&mut self, app: &mut dyn Application) {
        of_version!(&mut self.version, carrier => carrier.timeout(app));
    }

    /// Has the application end open exchanges, and ends the connection.
    pub fn stop(&mut self, app: &mut dyn Application) {
        of_version!(&mut self.version, carrier => carrier.stop(app));
    }

    /// The responses, for an application that answers requests of earlier steps.
    pub fn responses(&mut self) -> &mut dyn Responses {
        match &mut self.version {
            Version::Http3(carrier) => &mut **carrier,
            Version::Tcp(carrier) => &mut **carrier,
        }
    }

    /// Lets the carrier and the application work until neither has anything left to do.
    pub fn settle(&mut self, app: &mut dyn Application) {
        of_version!(&mut self.version, carrier => carrier.settle(app));
    }

    /// Hands the bytes that the step has written over to the transport. Returns their number.
    ///
    /// A client that `is_paced` is not read.
    pub fn flush(&mut self, net: &mut dyn Network, is_paced: bool) -> u64 {
        match &mut self.version {
            Version::Http3(carrier) => carrier.flush(net, is_paced),
            Version::Tcp(carrier) => carrier.flush(net, is_paced),
        }
    }

    /// Bytes of contents of requests of which parts have arrived.
    #[must_use]
    pub fn partial_bytes(&self) -> usize {
        of_version!(&self.version, carrier => carrier.partial_bytes())
    }

    /// The application error code to close the connection with, once it is over.
    #[must_use]
    pub fn close_code(&self) -> Option<u64> {
        of_version!(&self.version, carrier => carrier.close_code())
    }
}
