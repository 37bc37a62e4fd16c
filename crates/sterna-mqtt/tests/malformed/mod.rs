//! Malformed and out-of-order packet sequences with what the specification asks of the server, as
//! data: `table.txt` in this folder. Include this module with `#[path]` to replay the table against
//! a running broker.
//!
//! A line of the table is `name | versions | expectation | packets | statements`.
//!
//! * *versions*: `31`, `311`, `5`, separated by commas: one case each.
//! * *expectation*: `connack HH` (a refusing CONNACK with that code, then the end), `disconnect HH`
//!   (5.0: a DISCONNECT with that code, then the end; before 5.0: the end), `close` (the end; no
//!   DISCONNECT and no refusing CONNACK), `alive` (a PINGREQ is answered afterwards). Whatever
//!   earlier packets of the sequence are answered with is ignored.
//! * *packets*: what the client sends, in tokens:
//!   hexadecimal digits are bytes; `61*300` is 300 times that byte; `"x"` is text; `s"x"` is text
//!   with two bytes of length before it; `{ … }` is preceded by its length as a Variable Byte
//!   Integer; `P` is an empty block of properties in 5.0 and nothing before; `CONNECT` is a valid
//!   CONNECT of the version with a clean start (after which a CONNACK with success is to be
//!   expected); `WAIT:30` waits for a packet of the server of that type (upper four bits).
//! * *statements*: ids of normative statements, for people.
//!
//! The table presumes a server that accepts the CONNECT without credentials and offers QoS 2,
//! retained messages, wildcards, shared subscriptions, Subscription Identifiers, Topic Aliases (but
//! fewer than 65,535), and a Maximum Packet Size of at least 1 KiB and below 256 MiB.

/// One sequence.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    /// Unique together with `version`.
    pub(crate) name: String,
    /// Protocol level of the connection: 3, 4 or 5.
    pub(crate) version: u8,
    /// What the client does.
    pub(crate) steps: Vec<Step>,
    /// What the server must do in the end.
    pub(crate) expect: Expect,
    /// Statements of the specification, without brackets.
    pub(crate) statements: Vec<String>,
}

/// One thing that a client does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// Sends bytes.
    Send(Vec<u8>),
    /// Waits for a packet of the server with this first byte (upper four bits).
    Wait(u8),
}

/// What the server must do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Expect {
    /// A refusing CONNACK with this code, then the end.
    ConnAck(u8),
    /// 5.0: a DISCONNECT with this code, then the end. Before: the end.
    Disconnect(u8),
    /// The end, without a packet about it.
    Close,
    /// Nothing: the connection goes on.
    Alive,
}

/// All cases of the table.
///
/// # Panics
///
/// If the table is not in its form.
pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for line in include_str!("table.txt").lines() {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let columns: Vec<_> = line.split('|').map(str::trim).collect();
        let [name, versions, expect, packets, statements] = columns[..] else {
            panic!("not five columns: {line}");
        };
        for version in versions.split(',') {
            let version = match version.trim() {
                "31" => 3,
                "311" => 4,
                "5" => 5,
                other => panic!("version {other}: {line}"),
            };
            cases.push(Case {
                name: name.to_owned(),
                version,
                steps: steps(packets, version),
                expect: expectation(expect),
                statements: statements.split_whitespace().map(str::to_owned).collect(),
            });
        }
    }
    cases
}

/// A valid CONNECT with a clean start.
pub(crate) fn connect(version: u8, client_id: &str) -> Vec<u8> {
    let text = format!(
        "10 {{ s\"{}\" 0{version} 02 0000 P s\"{client_id}\" }}",
        name(version)
    );
    bytes(&text, version)
}

const fn name(version: u8) -> &'static str {
    if version == 3 { "MQIsdp" } else { "MQTT" }
}

fn expectation(text: &str) -> Expect {
    let code = |code: &str| u8::from_str_radix(code, 16).expect("a code of two digits");
    match text.split_once(' ') {
        Some(("connack", digits)) => Expect::ConnAck(code(digits)),
        Some(("disconnect", digits)) => Expect::Disconnect(code(digits)),
        None if text == "close" => Expect::Close,
        None if text == "alive" => Expect::Alive,
        _ => panic!("expectation {text}"),
    }
}

fn steps(packets: &str, version: u8) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut tokens = Vec::new();
    for token in packets.split_whitespace() {
        let Some(waited) = token.strip_prefix("WAIT:") else {
            tokens.push(token);
            continue;
        };
        steps.push(Step::Send(bytes(&tokens.join(" "), version)));
        tokens.clear();
        steps.push(Step::Wait(
            u8::from_str_radix(waited, 16).expect("two digits"),
        ));
    }
    if !tokens.is_empty() {
        steps.push(Step::Send(bytes(&tokens.join(" "), version)));
    }
    steps
}

/// The bytes of a line of tokens.
pub(crate) fn bytes(text: &str, version: u8) -> Vec<u8> {
    // Blocks that are not closed yet; the last is the innermost.
    let mut blocks = vec![Vec::new()];
    for token in text.split_whitespace() {
        let out = blocks.last_mut().expect("one block at least");
        if token == "{" {
            blocks.push(Vec::new());
        } else if token == "}" {
            let block = blocks.pop().expect("a block to close");
            let out = blocks.last_mut().expect("a block around it");
            let mut len = block.len();
            while len >= 0x80 {
                out.push((len % 0x80) as u8 | 0x80);
                len /= 0x80;
            }
            out.push(len as u8);
            out.extend_from_slice(&block);
        } else if token == "P" {
            out.extend_from_slice(if version == 5 { &[0] } else { &[] });
        } else if token == "CONNECT" {
            out.extend_from_slice(&connect(version, "malformed"));
        } else if let Some(text) = token.strip_prefix("s\"") {
            let text = text.strip_suffix('"').expect("a closing quote");
            out.extend_from_slice(&(text.len() as u16).to_be_bytes());
            out.extend_from_slice(text.as_bytes());
        } else if let Some(text) = token.strip_prefix('"') {
            out.extend_from_slice(text.strip_suffix('"').expect("a closing quote").as_bytes());
        } else {
            let (digits, times) = token.split_once('*').unwrap_or((token, "1"));
            let times: usize = times.parse().expect("a number of times");
            let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).expect("hexadecimal");
            let once: Vec<u8> = (0..digits.len()).step_by(2).map(byte).collect();
            out.extend_from_slice(&once.repeat(times));
        }
    }
    assert_eq!(blocks.len(), 1, "a block is not closed: {text}");
    blocks.pop().expect("one block")
}
