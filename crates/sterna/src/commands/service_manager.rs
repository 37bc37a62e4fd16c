//! Messages to the service manager (systemd) about the state of the broker.
//!
//! The protocol is that of `sd_notify`: datagrams of `NAME=value` lines to the socket that `NOTIFY_SOCKET`
//! names.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The state of the broker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// Everything listens, at first or again after a reload.
    Ready {
        /// Number of listeners.
        listeners: usize,
    },
    /// It reads its configuration again.
    Reloading,
    /// It ends.
    Stopping,
}

impl State {
    fn message(self) -> String {
        match self {
            Self::Ready { listeners } => {
                format!("READY=1\nSTATUS=serving on {listeners} listeners\n")
            }
            Self::Reloading => "RELOADING=1\nSTATUS=reading the configuration\n".to_owned(),
            Self::Stopping => "STOPPING=1\nSTATUS=telling clients goodbye\n".to_owned(),
        }
    }
}

/// Tells the service manager, if there is one. A failure is only logged: the broker serves without it.
pub(super) fn tell(state: &State) {
    if let Some(socket) = std::env::var_os("NOTIFY_SOCKET")
        && let Err(error) = send(&socket, &state.message())
    {
        tracing::warn!(%error, ?state, "cannot tell the service manager");
    }
}

/// Sends a message to a socket: a path, or an abstract name behind `@`.
fn send(socket: &OsStr, message: &str) -> io::Result<()> {
    let bytes = socket.as_bytes();
    let address = match bytes.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(message.as_bytes(), &address)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(socket: &UnixDatagram) -> String {
        let mut buffer = [0; 256];
        let length = socket.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    }

    #[test]
    fn paths_and_abstract_names_are_reached() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        send(path.as_os_str(), &State::Reloading.message()).unwrap();
        assert!(told(&socket).starts_with("RELOADING=1\n"));

        let name = format!("sterna-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let socket = UnixDatagram::bind_addr(&address).unwrap();
        let ready = State::Ready { listeners: 3 }.message();
        send(OsStr::new(&format!("@{name}")), &ready).unwrap();
        assert_eq!(told(&socket), "READY=1\nSTATUS=serving on 3 listeners\n");
    }

    #[test]
    fn nobody_at_the_socket_is_an_error_and_no_panic() {
        for socket in ["/nowhere/notify", "", "relative"] {
            assert!(send(OsStr::new(socket), "READY=1\n").is_err(), "{socket}");
        }
    }
}
