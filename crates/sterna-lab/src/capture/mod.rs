//! Packet captures of a link, one pcapng file per side, as a capture on that side would have it.
//!
//! Packets that the link dropped are in the sender's file, with a comment that has the reason. The
//! file also has the secrets of TLS and QUIC connections, if the programs wrote them to
//! `SSLKEYLOGFILE`. Wireshark then decrypts the connections.

mod pcapng;

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::emulator::{Captured, Event};
use crate::kernel;
use crate::netns::Side;

pub use pcapng::{PacketRecord, read_packets};

/// Copies that may wait for the disk; more are dropped and counted.
const QUEUED_PACKETS: usize = 16_384;
/// Largest file of secrets that is taken into a capture, in bytes.
const MAX_SECRETS_BYTES: u64 = 64 << 20;

/// The files of one capture.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CaptureFiles {
    /// The client's side.
    pub client: PathBuf,
    /// The server's side.
    pub server: PathBuf,
    /// Where the programs write their secrets meanwhile. It is gone afterwards.
    pub secrets: PathBuf,
}

impl CaptureFiles {
    /// `x.pcapng` makes `x.client.pcapng` and `x.server.pcapng`.
    #[must_use]
    pub fn beside(path: &Path) -> Self {
        let stem = match path.extension() {
            Some(extension) if extension == "pcapng" => path.with_extension(""),
            _ => path.to_owned(),
        };
        let with = |ending: &str| {
            let mut name = stem.clone().into_os_string();
            name.push(ending);
            PathBuf::from(name)
        };
        Self {
            client: with(".client.pcapng"),
            server: with(".server.pcapng"),
            secrets: with(".secrets"),
        }
    }

    /// The file of a side.
    #[must_use]
    pub fn of(&self, side: Side) -> &Path {
        match side {
            Side::Client => &self.client,
            Side::Server => &self.server,
        }
    }

    /// Where the blocks of packets go until the secrets, which come before them, are known.
    fn blocks(&self, side: Side) -> PathBuf {
        let mut name = self.of(side).as_os_str().to_owned();
        name.push(".part");
        PathBuf::from(name)
    }
}

/// A capture that is being written.
#[derive(Debug)]
pub struct Recorder {
    files: CaptureFiles,
    thread: Option<JoinHandle<io::Result<u64>>>,
}

impl Recorder {
    /// Makes the files and starts the thread that writes them. Packets sent to the channel are
    /// recorded until all its senders are dropped.
    ///
    /// # Errors
    ///
    /// If the files cannot be made.
    pub fn start(path: &Path) -> io::Result<(Self, SyncSender<Captured>)> {
        // Programs may change their folder before they write their secrets.
        let files = CaptureFiles::beside(&std::path::absolute(path)?);
        // Programs append; the secrets of an earlier run would only make the file long.
        OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&files.secrets)?;
        let open = |side| File::create(files.blocks(side)).map(BufWriter::new);
        let (client, server) = (open(Side::Client)?, open(Side::Server)?);
        let (sender, captured) = sync_channel(QUEUED_PACKETS);
        let thread = thread::Builder::new()
            .name("capture".into())
            .spawn(move || write_blocks(client, server, &captured))?;
        let recorder = Self {
            files,
            thread: Some(thread),
        };
        Ok((recorder, sender))
    }

    /// Where everything is.
    #[must_use]
    pub const fn files(&self) -> &CaptureFiles {
        &self.files
    }

    /// Completes the files; returns the number of packets in both. All senders must have been
    /// dropped.
    ///
    /// # Errors
    ///
    /// If the files cannot be written.
    pub fn finish(mut self) -> io::Result<u64> {
        let Some(thread) = self.thread.take() else {
            return Ok(0);
        };
        let packets = match thread.join() {
            Ok(result) => result?,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        let secrets = read_secrets(&self.files.secrets)?;
        for side in Side::BOTH {
            let mut out = BufWriter::new(File::create(self.files.of(side))?);
            pcapng::write_header(&mut out, side.name(), &secrets)?;
            let blocks = self.files.blocks(side);
            io::copy(&mut BufReader::new(File::open(&blocks)?), &mut out)?;
            out.flush()?;
            fs::remove_file(&blocks)?;
        }
        fs::remove_file(&self.files.secrets)?;
        Ok(packets)
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        // After `finish` none of them is there; after a failure they stay incomplete.
        for side in Side::BOTH {
            let _ = fs::remove_file(self.files.blocks(side));
        }
        let _ = fs::remove_file(&self.files.secrets);
    }
}

/// The secrets that programs have written, as far as they are not too many.
fn read_secrets(path: &Path) -> io::Result<Vec<u8>> {
    let mut secrets = Vec::new();
    match File::open(path) {
        Ok(file) => {
            io::Read::read_to_end(&mut io::Read::take(file, MAX_SECRETS_BYTES), &mut secrets)?;
            Ok(secrets)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(secrets),
        Err(error) => Err(error),
    }
}

fn write_blocks(
    mut client: BufWriter<File>,
    mut server: BufWriter<File>,
    captured: &Receiver<Captured>,
) -> io::Result<u64> {
    let wall_ns = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_nanos();
    let offset_ns = u64::try_from(wall_ns)
        .unwrap_or(0)
        .saturating_sub(kernel::monotonic_ns());
    let mut packets = 0;
    let mut failed = None;
    for copy in captured {
        let out = match copy.side {
            Side::Client => &mut client,
            Side::Server => &mut server,
        };
        let (is_outbound, comment) = match copy.event {
            Event::Sent(cause) => (true, cause.map(crate::link::Cause::name)),
            Event::SentToOldAddress => (true, Some("sent to an earlier address")),
            Event::Received => (false, None),
        };
        let at_ns = copy.at_ns + offset_ns;
        packets += 1;
        if failed.is_none() {
            failed = pcapng::write_packet(out, at_ns, &copy.packet, is_outbound, comment).err();
        }
    }
    client.flush()?;
    server.flush()?;
    failed.map_or(Ok(packets), Err)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::Cause;

    #[test]
    fn both_sides_get_a_file_with_their_packets_and_the_secrets() {
        let folder = tempfile::tempdir().unwrap();
        let (recorder, sender) = Recorder::start(&folder.path().join("run.pcapng")).unwrap();
        let files = recorder.files().clone();
        assert_eq!(files.client, folder.path().join("run.client.pcapng"));
        fs::write(&files.secrets, "CLIENT_RANDOM 00 11\n").unwrap();
        let copy = |side, event, first| Captured {
            side,
            event,
            at_ns: kernel::monotonic_ns(),
            packet: vec![first; 21],
        };
        for copy in [
            copy(Side::Client, Event::Sent(None), 1),
            copy(Side::Client, Event::Sent(Some(Cause::Queue)), 2),
            copy(Side::Server, Event::Received, 1),
        ] {
            sender.send(copy).unwrap();
        }
        drop(sender);
        assert_eq!(recorder.finish().unwrap(), 3);
        let read = |side| pcapng::tests::read(&fs::read(files.of(side)).unwrap());
        let client = read(Side::Client);
        assert_eq!(client.secrets, b"CLIENT_RANDOM 00 11\n");
        assert_eq!(client.interface, "client");
        assert_eq!(client.packets.len(), 2);
        assert_eq!(client.packets[0].bytes, [1; 21]);
        assert!(client.packets[0].is_outbound);
        assert_eq!(client.packets[0].comment, None);
        assert_eq!(client.packets[1].comment.as_deref(), Some("queue full"));
        let now_ns = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_nanos();
        let at_ns = u128::from(client.packets[0].at_ns);
        assert!(now_ns - at_ns < 60_000_000_000);
        let server = read(Side::Server);
        assert_eq!(server.packets.len(), 1);
        assert!(!server.packets[0].is_outbound);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_capture_that_is_not_finished_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let (recorder, sender) = Recorder::start(&folder.path().join("run")).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
        drop(recorder);
        drop(sender);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn any_name_of_a_capture_will_do() {
        let files = CaptureFiles::beside(Path::new("trace.v2"));
        assert_eq!(files.server, Path::new("trace.v2.server.pcapng"));
    }
}
