//! `sterna-lab gateway`: TLS on TCP with early data, in front of a listener without TLS.
//!
//! The broker takes early data over QUIC alone. Campaigns put this in front of the broker's plain
//! listener, on the same host, so that TCP is compared at its best. It is rustls as in the broker. Its
//! tickets work once, since early data may be recorded and sent again (RFC 8446 section 8.1).
//!
//! It prints its port when it listens, and counts of early data at the end of its input.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::ServerSessionMemoryCache;
use rustls::{ServerConfig, ServerConnection};
use sterna_lab::measure::device::EarlyConnections;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::console;

/// Most early data of a connection, in bytes: what the broker takes over QUIC by default.
const MAX_EARLY_BYTES: u32 = 16 * 1024;
/// Sessions that can be resumed.
const MAX_SESSIONS: usize = 1_024;
/// Bytes that are under way to either side before the other is not read any more.
const MAX_PENDING_BYTES: usize = 64 * 1024;
/// Bytes that are read at once.
const READ_BYTES: usize = 16 * 1024;

/// Where to listen, and what stands behind.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Where to take TLS
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: SocketAddr,
    /// The listener without TLS
    #[arg(long, value_name = "ADDRESS:PORT")]
    to: SocketAddr,
    /// The certificate, with its authorities, in PEM form
    #[arg(long, value_name = "FILE")]
    certificate: PathBuf,
    /// Its key
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
}

/// Serves until the input ends.
pub(super) fn run(args: &Args) -> ExitCode {
    let result = configuration(args).and_then(|config| {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .and_then(|runtime| runtime.block_on(serve(args, Arc::new(config))))
            .map_err(|error| error.to_string())
    });
    console::answer(result)
}

fn configuration(args: &Args) -> Result<ServerConfig, String> {
    let failed =
        |path: &PathBuf, error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let chain = CertificateDer::pem_file_iter(&args.certificate)
        .and_then(Iterator::collect::<Result<Vec<CertificateDer<'static>>, _>>)
        .map_err(|error| failed(&args.certificate, &error))?;
    let key = PrivateKeyDer::from_pem_file(&args.key).map_err(|error| failed(&args.key, &error))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| error.to_string())?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(|error| failed(&args.certificate, &error))?;
    config.max_early_data_size = MAX_EARLY_BYTES;
    config.session_storage = ServerSessionMemoryCache::new(MAX_SESSIONS);
    config.send_tls13_tickets = 1;
    // The broker's answer to early data leaves beside the handshake, as it does over QUIC.
    config.send_half_rtt_data = true;
    Ok(config)
}

/// Counts of connections.
#[derive(Default)]
struct Counts {
    all: AtomicU32,
    early: AtomicU32,
}

async fn serve(args: &Args, config: Arc<ServerConfig>) -> io::Result<String> {
    let listener = TcpListener::bind(args.listen).await?;
    tell(listener.local_addr()?.port())?;
    let counts = Arc::new(Counts::default());
    let (ended, mut end) = tokio::sync::oneshot::channel::<()>();
    std::thread::spawn(move || {
        // Only the end of the input matters.
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        let _ = ended.send(());
    });
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (client, _) = accepted?;
                let (config, counts, to) = (Arc::clone(&config), Arc::clone(&counts), args.to);
                tokio::spawn(async move {
                    if let Err(error) = connection(client, to, config, &counts).await {
                        eprintln!("gateway: {error}");
                    }
                });
            }
            _ = &mut end => break,
        }
    }
    let early = EarlyConnections {
        all: counts.all.load(Ordering::Relaxed),
        early: counts.early.load(Ordering::Relaxed),
    };
    serde_json::to_string(&early).map_err(io::Error::other)
}

fn tell(port: u16) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{port}")?;
    out.flush()
}

/// A socket for a library that reads and writes without waiting.
struct Ready<'a>(&'a TcpStream);

impl Read for Ready<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.try_read(buffer)
    }
}

impl Write for Ready<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Passes bytes on in both directions until both sides have ended.
async fn connection(
    client: TcpStream,
    to: SocketAddr,
    config: Arc<ServerConfig>,
    counts: &Counts,
) -> io::Result<()> {
    counts.all.fetch_add(1, Ordering::Relaxed);
    client.set_nodelay(true)?;
    let mut tls = ServerConnection::new(config).map_err(io::Error::other)?;
    let broker = TcpStream::connect(to).await?;
    broker.set_nodelay(true)?;
    let (mut broker_reader, mut broker_writer) = broker.into_split();
    let mut to_broker: Vec<u8> = Vec::new();
    let mut from_broker = vec![0; READ_BYTES];
    let (mut client_ended, mut broker_ended) = (false, false);
    let (mut was_early, mut was_shut) = (false, false);
    loop {
        if take_plaintext(&mut tls, &mut to_broker, &mut client_ended)? && !was_early {
            was_early = true;
            counts.early.fetch_add(1, Ordering::Relaxed);
        }
        while tls.wants_write() {
            match tls.write_tls(&mut Ready(&client)) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        if !to_broker.is_empty() {
            match broker_writer.try_write(&to_broker) {
                Ok(count) => drop(to_broker.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        if broker_ended && !tls.wants_write() {
            return Ok(());
        }
        if client_ended && to_broker.is_empty() && !was_shut {
            was_shut = true;
            broker_writer.shutdown().await?;
        }
        tokio::select! {
            ready = client.readable(), if !client_ended && to_broker.len() < MAX_PENDING_BYTES => {
                ready?;
                match tls.read_tls(&mut Ready(&client)) {
                    Ok(0) => client_ended = true,
                    Ok(_) => {
                        if let Err(error) = tls.process_new_packets() {
                            // The alert that says why.
                            let _ = tls.write_tls(&mut Ready(&client));
                            return Err(io::Error::other(error));
                        }
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error),
                }
            }
            ready = client.writable(), if tls.wants_write() => ready?,
            ready = broker_writer.writable(), if !to_broker.is_empty() => ready?,
            count = broker_reader.read(&mut from_broker), if !broker_ended && !tls.wants_write() => {
                match count? {
                    0 => {
                        broker_ended = true;
                        tls.send_close_notify();
                    }
                    count => tls.writer().write_all(&from_broker[..count])?,
                }
            }
        }
    }
}

/// Takes over what was decrypted; says whether some of it was early data.
fn take_plaintext(
    tls: &mut ServerConnection,
    to_broker: &mut Vec<u8>,
    client_ended: &mut bool,
) -> io::Result<bool> {
    let early = match tls.early_data() {
        Some(mut early) => early.read_to_end(to_broker)?,
        None => 0,
    };
    let mut reader = tls.reader();
    let mut buffer = [0; READ_BYTES];
    loop {
        match reader.read(&mut buffer) {
            Ok(0) => {
                *client_ended = true;
                break;
            }
            Ok(count) => to_broker.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            // The client is gone without a word.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                *client_ended = true;
                break;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(early > 0)
}
