//! A configuration with all of operation on. Beside it are an issuer's secret and a token, a webhook,
//! and the requests of a scraper.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::json;

use crate::Failure;
use crate::command::output;
use crate::workspace::write;

/// Listeners of both brokers.
pub(super) const LISTENERS: &str = "\
[[listener]]
url = \"mqtt://127.0.0.1:0\"

[[listener]]
url = \"mqtts://127.0.0.1:0\"

[[listener]]
url = \"mqtt+quic://127.0.0.1:0\"

[[listener]]
url = \"admin://127.0.0.1:0\"
";

/// All that is on beside them. Nothing of it refuses the load.
const ALL: &str = "\
[authentication.jwt]
key_files = [\"KEYS\"]
algorithms = [\"HS256\"]
issuer = \"bench\"
audiences = [\"sterna\"]
groups_claim = \"groups\"
client_ids_claim = \"ids\"

[webhook]
authorization_url = \"http://127.0.0.1:PORT/\"

[authorization]
default_allow = false

[[authorization.group]]
name = \"load\"

[[authorization.limit]]
groups = [\"load\"]
connections = 1000000
sessions = 1000000
subscriptions = 1000
messages_per_s = 4000000000
bytes_per_s = 4000000000

[[authorization.rule]]
effect = \"deny\"
addresses = [\"203.0.113.0/24\"]
topics = [\"#\"]

[[authorization.rule]]
effect = \"deny\"
actions = [\"publish\"]
qos = [2]
topics = [\"bench/never/#\"]

[[authorization.rule]]
effect = \"ask\"
groups = [\"load\"]
topics = [\"bench/#\"]

[bans]
flapping_logins = 1000000
guessing_failures = 1000

[admin]
operators = [\"anonymous\"]

[log]
format = \"json\"
audit = \"debug\"
";

/// How long the token holds.
const TOKEN: Duration = Duration::from_secs(24 * 3600);
const PATIENCE: Duration = Duration::from_secs(10);

/// See the module.
#[derive(Debug)]
pub(super) struct Everything {
    keys: PathBuf,
    token: String,
    port: u16,
    questions: Arc<AtomicU64>,
}

impl Everything {
    /// Makes a secret and a token in the folder, and starts a webhook, which ends with the process.
    pub(super) fn prepare(folder: &Path) -> Result<Self, Failure> {
        let mut secret = [0; 32];
        fs::File::open("/dev/urandom")?.read_exact(&mut secret)?;
        let file = folder.join("part");
        let keys = folder.join("keys.json");
        let jwk = json!({"kty": "oct", "alg": "HS256", "k": base64(&file, &secret)?});
        write(&keys, &jwk.to_string())?;
        let ends = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            + TOKEN;
        let head = json!({"alg": "HS256", "typ": "JWT"}).to_string();
        let claims = json!({
            "iss": "bench", "aud": "sterna", "sub": "bench", "exp": ends.as_secs(),
            "groups": ["load"], "ids": ["bench*"],
        });
        let signed = [head, claims.to_string()].map(|part| base64(&file, part.as_bytes()));
        let [head, claims] = signed;
        let signed = format!("{}.{}", head?, claims?);
        write(&file, &signed)?;
        let mut hex = String::new();
        for byte in secret {
            let _ = write!(hex, "{byte:02x}");
        }
        let signature = folder.join("signature");
        output(
            Command::new("openssl")
                .args(["dgst", "-sha256", "-mac", "HMAC", "-binary", "-macopt"])
                .arg(format!("hexkey:{hex}"))
                .arg("-out")
                .arg(&signature)
                .arg(&file),
        )?;
        let token = format!("{signed}.{}", base64(&file, &fs::read(&signature)?)?);
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let port = listener.local_addr()?.port();
        let questions = Arc::new(AtomicU64::new(0));
        let asked = Arc::clone(&questions);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let asked = Arc::clone(&asked);
                // A connection that fails is the broker's to notice.
                std::thread::spawn(move || answer(&stream, &asked));
            }
        });
        Ok(Self {
            keys,
            token,
            port,
            questions,
        })
    }

    /// The configuration of a broker with everything.
    pub(super) fn configuration(&self) -> String {
        let all = ALL
            .replace("KEYS", &self.keys.display().to_string())
            .replace("PORT", &self.port.to_string());
        format!("{LISTENERS}\n{all}")
    }

    /// Arguments of `sterna-lab bench` for the login.
    pub(super) fn login(&self) -> [&str; 4] {
        ["-u", "bench", "-P", &self.token]
    }

    /// Questions that the webhook was asked.
    pub(super) fn questions(&self) -> u64 {
        self.questions.load(Ordering::Relaxed)
    }
}

/// Bans addresses that nobody has, so that bans are looked at.
pub(super) fn ban_somebody(operators: &str) -> Result<(), Failure> {
    let ban = json!({"address": "198.51.100.0/24"}).to_string();
    request(operators, "POST /admin/v1/bans", &ban).map(drop)
}

/// Reads the metrics.
pub(super) fn scrape(operators: &str) -> Result<(), Failure> {
    let page = request(operators, "GET /metrics", "")?;
    if page.contains("# EOF") {
        Ok(())
    } else {
        Err(Failure(format!("the metrics have no end: {page}")))
    }
}

/// Text in base64url, by way of a file.
fn base64(file: &Path, bytes: &[u8]) -> Result<String, Failure> {
    fs::write(file, bytes)?;
    let text = output(
        Command::new("openssl")
            .args(["base64", "-A", "-in"])
            .arg(file),
    )?;
    Ok(text
        .trim()
        .trim_end_matches('=')
        .replace('+', "-")
        .replace('/', "_"))
}

/// Asks the listener of operators at `HOST:PORT`, and waits for the whole answer.
fn request(operators: &str, what: &str, content: &str) -> Result<String, Failure> {
    let mut stream = TcpStream::connect(operators)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(
        stream,
        "{what} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{content}",
        content.len()
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    if answer.starts_with("HTTP/1.1 2") {
        Ok(answer)
    } else {
        Err(Failure(format!("{what}: {answer}")))
    }
}

/// Allows whatever is asked on a connection.
fn answer(stream: &TcpStream, asked: &AtomicU64) -> Result<(), Failure> {
    const ALLOWED: &str = r#"{"result": "allow"}"#;
    let mut reader = BufReader::new(stream);
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            let line = line.trim().to_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap_or(0);
            }
        }
        let mut question = vec![0; length];
        reader.read_exact(&mut question)?;
        asked.fetch_add(1, Ordering::Relaxed);
        let mut stream = stream;
        write!(
            stream,
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{ALLOWED}",
            ALLOWED.len()
        )?;
    }
}
