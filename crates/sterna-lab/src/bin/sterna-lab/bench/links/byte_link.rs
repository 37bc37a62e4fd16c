//! One connection on TCP: in the clear, in TLS, in WebSocket frames, or both.

use std::io::{self, BufRead as _, ErrorKind, Read as _, Write as _};
use std::time::Instant;

use mio::event::Event;
use mio::net::TcpStream;
use mio::{Interest, Registry, Token};
use rustls::ClientConnection;

use super::LinkEvent;
use super::target::{Scheme, Target};

/// The longest answer to a WebSocket upgrade that is read.
const MAX_UPGRADE_BYTES: usize = 8 * 1024;
/// `Sec-WebSocket-Key`: any 16 bytes in base64; a load needs no protection from proxies' caches.
const WEBSOCKET_KEY: &str = "c3Rlcm5hLWJlbmNoLTAwMQ==";

enum State {
    Connecting,
    Securing,
    Upgrading(Vec<u8>),
    Open,
}

/// Reading side of WebSocket: where in the current frame the stream stands.
#[derive(Default)]
struct FrameReader {
    /// Header bytes collected so far.
    header: Vec<u8>,
    /// Bytes of the current frame's body still to come.
    body_left_bytes: u64,
    opcode: u8,
    control: Vec<u8>,
}

pub(super) struct ByteLink {
    socket: TcpStream,
    tls: Option<ClientConnection>,
    frames: Option<FrameReader>,
    /// A pong or the upgrade request, which leave before the outbox.
    urgent: Vec<u8>,
    upgrade: Option<String>,
    state: State,
}

/// Appends one binary frame with everything of `packet` in it.
pub(super) fn frame(packet: &[u8], mask: [u8; 4], out: &mut Vec<u8>) {
    frame_with(0x2, packet, mask, out);
}

fn frame_with(opcode: u8, body: &[u8], mask: [u8; 4], out: &mut Vec<u8>) {
    out.push(0x80 | opcode);
    match body.len() {
        short @ 0..=125 => out.push(0x80 | short as u8),
        middle @ 126..=0xffff => {
            out.push(0xfe);
            out.extend_from_slice(&(middle as u16).to_be_bytes());
        }
        long => {
            out.push(0xff);
            out.extend_from_slice(&(long as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(&mask);
    let start = out.len();
    out.extend_from_slice(body);
    let wide = u64::from(u32::from_ne_bytes(mask));
    let wide = (wide | wide << 32).to_ne_bytes();
    for chunk in out[start..].chunks_mut(8) {
        for (byte, key) in chunk.iter_mut().zip(wide) {
            *byte ^= key;
        }
    }
}

type Sink<'a> = dyn FnMut(LinkEvent<'_>, Instant) + 'a;

impl ByteLink {
    pub(super) fn connect(
        target: &Target,
        tls: Option<ClientConnection>,
        registry: &Registry,
        token: Token,
    ) -> io::Result<Self> {
        let mut socket = TcpStream::connect(target.address)?;
        registry.register(&mut socket, token, Interest::READABLE | Interest::WRITABLE)?;
        let is_websocket = matches!(target.scheme, Scheme::WebSocket | Scheme::SecureWebSocket);
        Ok(Self {
            socket,
            tls,
            frames: is_websocket.then(FrameReader::default),
            urgent: Vec::new(),
            upgrade: is_websocket.then(|| {
                format!(
                    "GET {} HTTP/1.1\r\nHost: {}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                     Sec-WebSocket-Key: {WEBSOCKET_KEY}\r\nSec-WebSocket-Version: 13\r\n\
                     Sec-WebSocket-Protocol: mqtt\r\n\r\n",
                    target.path, target.authority
                )
            }),
            state: State::Connecting,
        })
    }

    /// The key that masks this connection's frames, on WebSocket.
    pub(super) fn mask(&self) -> Option<[u8; 4]> {
        self.frames.as_ref().map(|_| [0x37, 0xfa, 0x21, 0x3d])
    }

    /// Reads all there is. Returns whether the connection became ready for MQTT just now.
    pub(super) fn ready(
        &mut self,
        event: &Event,
        buffer: &mut [u8],
        sink: &mut Sink<'_>,
    ) -> Result<bool, String> {
        let was_open = matches!(self.state, State::Open);
        if matches!(self.state, State::Connecting) {
            if let Some(error) = self.socket.take_error().map_err(|e| e.to_string())? {
                return Err(error.to_string());
            }
            if !event.is_writable() {
                return Ok(false);
            }
            self.socket.set_nodelay(true).map_err(|e| e.to_string())?;
            self.state = State::Securing;
            self.advance()?;
        }
        if event.is_readable() {
            self.read_all(buffer, sink)?;
        }
        if !self.urgent.is_empty() || self.tls.as_ref().is_some_and(|tls| tls.wants_write()) {
            self.flush(&mut Vec::new())?;
        }
        Ok(!was_open && matches!(self.state, State::Open))
    }

    /// Moves on from the handshake once it is done.
    fn advance(&mut self) -> Result<(), String> {
        if matches!(self.state, State::Securing)
            && !self.tls.as_ref().is_some_and(|tls| tls.is_handshaking())
        {
            if let Some(request) = self.upgrade.take() {
                self.urgent.extend_from_slice(request.as_bytes());
                self.state = State::Upgrading(Vec::new());
                self.flush(&mut Vec::new())?;
            } else {
                self.state = State::Open;
            }
        }
        Ok(())
    }

    fn read_all(&mut self, buffer: &mut [u8], sink: &mut Sink<'_>) -> Result<(), String> {
        loop {
            let count = match self.socket.read(buffer) {
                Ok(0) => return Err("closed by the broker".to_owned()),
                Ok(count) => count,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => return Err(e.to_string()),
            };
            let now = Instant::now();
            let bytes = &buffer[..count];
            if self.tls.is_some() {
                self.decrypt(bytes, now, sink)?;
            } else {
                self.plain(bytes, now, sink)?;
            }
            // A short read has emptied the socket; later bytes raise a new edge (epoll(7)).
            if count < buffer.len() {
                return Ok(());
            }
        }
    }

    fn decrypt(
        &mut self,
        mut bytes: &[u8],
        now: Instant,
        sink: &mut Sink<'_>,
    ) -> Result<(), String> {
        let mut plain = Vec::new();
        while !bytes.is_empty() {
            let Some(tls) = &mut self.tls else { break };
            tls.read_tls(&mut bytes).map_err(|e| e.to_string())?;
            let state = tls.process_new_packets().map_err(|e| e.to_string())?;
            let mut left = state.plaintext_bytes_to_read();
            if matches!(self.state, State::Securing) {
                self.advance()?;
            }
            while left > 0 {
                let Some(tls) = &mut self.tls else { break };
                let mut reader = tls.reader();
                let chunk = reader.fill_buf().map_err(|e| e.to_string())?;
                let count = chunk.len();
                if matches!(self.state, State::Open) && self.frames.is_none() {
                    sink(LinkEvent::Bytes(chunk), now);
                } else {
                    plain.extend_from_slice(chunk);
                }
                reader.consume(count);
                left = left.saturating_sub(count.max(1));
            }
            if !plain.is_empty() {
                self.plain(&plain, now, sink)?;
                plain.clear();
            }
        }
        Ok(())
    }

    fn plain(&mut self, bytes: &[u8], now: Instant, sink: &mut Sink<'_>) -> Result<(), String> {
        let rest;
        let bytes = match &mut self.state {
            State::Upgrading(head) => {
                head.extend_from_slice(bytes);
                let Some(end) = head.windows(4).position(|w| w == b"\r\n\r\n") else {
                    if head.len() > MAX_UPGRADE_BYTES {
                        return Err("endless answer to the WebSocket upgrade".to_owned());
                    }
                    return Ok(());
                };
                if head.get(..12) != Some(b"HTTP/1.1 101") {
                    let line = head.split(|b| *b == b'\r').next().unwrap_or_default();
                    return Err(format!("no WebSocket: {}", String::from_utf8_lossy(line)));
                }
                rest = head.split_off(end + 4);
                self.state = State::Open;
                &rest[..]
            }
            _ => bytes,
        };
        let Some(frames) = &mut self.frames else {
            sink(LinkEvent::Bytes(bytes), now);
            return Ok(());
        };
        frames.read(bytes, &mut self.urgent, &mut |chunk| {
            sink(LinkEvent::Bytes(chunk), now);
        })
    }

    /// Writes as much as the socket takes; keeps the rest in `out`.
    pub(super) fn flush(&mut self, out: &mut Vec<u8>) -> Result<(), String> {
        if matches!(self.state, State::Connecting) {
            return Ok(());
        }
        if !self.urgent.is_empty() {
            let mut urgent = std::mem::take(&mut self.urgent);
            self.write(&mut urgent)?;
            self.urgent = urgent;
            if !self.urgent.is_empty() {
                return Ok(());
            }
        }
        self.write(out)
    }

    fn write(&mut self, out: &mut Vec<u8>) -> Result<(), String> {
        if let Some(tls) = &mut self.tls {
            if !out.is_empty() && !tls.is_handshaking() {
                tls.writer().write_all(out).map_err(|e| e.to_string())?;
                out.clear();
            }
            while tls.wants_write() {
                match tls.write_tls(&mut self.socket) {
                    Ok(_) => {}
                    Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                    Err(e) if e.kind() == ErrorKind::Interrupted => {}
                    Err(e) => return Err(e.to_string()),
                }
            }
            return Ok(());
        }
        let mut written = 0;
        while written < out.len() {
            match self.socket.write(&out[written..]) {
                Ok(count) => written += count,
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e.to_string()),
            }
        }
        out.drain(..written);
        Ok(())
    }

    pub(super) fn close(&mut self, out: &mut Vec<u8>, registry: &Registry) {
        if let Some(mask) = self.mask() {
            frame_with(0x8, &1000_u16.to_be_bytes(), mask, out);
        }
        // A failure to say good-bye is no failure of the run.
        let _ = self.flush(out);
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
            let _ = tls.write_tls(&mut self.socket);
        }
        let _ = registry.deregister(&mut self.socket);
    }
}

impl FrameReader {
    fn read(
        &mut self,
        mut bytes: &[u8],
        urgent: &mut Vec<u8>,
        sink: &mut dyn FnMut(&[u8]),
    ) -> Result<(), String> {
        while !bytes.is_empty() {
            if self.body_left_bytes == 0 {
                // Header: as many bytes as it says of itself.
                self.header.push(bytes[0]);
                bytes = &bytes[1..];
                let Some(&length) = self.header.get(1) else {
                    continue;
                };
                let length_bytes = match length & 0x7f {
                    126 => 2,
                    127 => 8,
                    _ => 0,
                };
                if self.header.len() < 2 + length_bytes {
                    continue;
                }
                self.body_left_bytes = if length_bytes == 0 {
                    u64::from(length & 0x7f)
                } else {
                    self.header[2..]
                        .iter()
                        .fold(0, |sum, b| sum << 8 | u64::from(*b))
                };
                self.opcode = self.header[0] & 0xf;
                self.header.clear();
                if self.body_left_bytes > 0 {
                    continue;
                }
            }
            let take = usize::try_from(self.body_left_bytes)
                .map_or(bytes.len(), |left| left.min(bytes.len()));
            let (body, rest) = bytes.split_at(take);
            bytes = rest;
            self.body_left_bytes -= take as u64;
            match self.opcode {
                0x0..=0x2 => sink(body),
                0x8 => return Err("closed by the broker".to_owned()),
                0x9 => {
                    self.control.extend_from_slice(body);
                    if self.body_left_bytes == 0 {
                        frame_with(0xa, &self.control, [0; 4], urgent);
                        self.control.clear();
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_at_any_split() {
        let mut wire = Vec::new();
        for size in [0_usize, 1, 125, 126, 300, 70_000] {
            // A server's frame: not masked.
            wire.push(0x82);
            match size {
                0..=125 => wire.push(size as u8),
                126..=0xffff => {
                    wire.push(126);
                    wire.extend_from_slice(&(size as u16).to_be_bytes());
                }
                _ => {
                    wire.push(127);
                    wire.extend_from_slice(&(size as u64).to_be_bytes());
                }
            }
            wire.extend(std::iter::repeat_n(size as u8, size));
        }
        for step in [1, 2, 3, 7, 1000, wire.len()] {
            let (mut reader, mut got) = (FrameReader::default(), Vec::new());
            for part in wire.chunks(step) {
                reader
                    .read(part, &mut Vec::new(), &mut |bytes| {
                        got.extend_from_slice(bytes);
                    })
                    .unwrap();
            }
            assert_eq!(got.len(), 1 + 125 + 126 + 300 + 70_000, "step {step}");
        }
    }

    #[test]
    fn a_ping_is_answered() {
        let mut urgent = Vec::new();
        let mut reader = FrameReader::default();
        reader
            .read(&[0x89, 2, b'h', b'i'], &mut urgent, &mut |_| {})
            .unwrap();
        assert_eq!(urgent, [0x8a, 0x82, 0, 0, 0, 0, b'h', b'i']);
    }

    #[test]
    fn masked_frames_unmask() {
        let (mut out, mask) = (Vec::new(), [1, 2, 3, 4]);
        frame(b"sterna-sterna", mask, &mut out);
        assert_eq!(out[..2], [0x82, 0x8d]);
        let body: Vec<u8> = out[6..]
            .iter()
            .zip(mask.iter().cycle())
            .map(|(b, m)| b ^ m)
            .collect();
        assert_eq!(body, b"sterna-sterna");
    }
}
