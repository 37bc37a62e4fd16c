//! The application's setup of TCP sockets that this library opens for it.

use std::fmt;
use std::io;
use std::sync::Arc;

use tokio::net::TcpSocket;

type Setup = dyn Fn(&TcpSocket) -> io::Result<()> + Send + Sync;

/// A function that sees each TCP socket before it connects. It can set options that this library has no
/// setting for: Fast Open, a mark, a device. An error of it is the connection's.
///
/// ```
/// let mut options = sterna_client::Options::new("mqtt://localhost".parse()?);
/// options.socket_setup = Some(sterna_client::SocketSetup::new(|socket| {
///     socket.set_send_buffer_size(64 * 1024)
/// }));
/// # Ok::<(), sterna_client::UrlError>(())
/// ```
#[derive(Clone)]
pub struct SocketSetup(Arc<Setup>);

impl SocketSetup {
    /// Sets sockets up by this function.
    pub fn new(setup: impl Fn(&TcpSocket) -> io::Result<()> + Send + Sync + 'static) -> Self {
        Self(Arc::new(setup))
    }

    pub(crate) fn apply(&self, socket: &TcpSocket) -> io::Result<()> {
        (self.0)(socket)
    }
}

impl fmt::Debug for SocketSetup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SocketSetup")
    }
}
