//! Received messages on standard output.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, IsTerminal as _, Write as _};

use sterna_client::{Message, Property};

use super::admin::table::harmless;
use super::clock::LocalTime;
use super::exit::Failure;
use super::format::{Fields, Format};

/// A file that was to be made. The error for one that exists says what to do.
pub(super) fn made(file: io::Result<File>) -> io::Result<File> {
    file.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => {
            io::Error::new(error.kind(), "the file exists: remove it, or name another")
        }
        _ => error,
    })
}

/// Options of how messages are printed.
#[derive(clap::Args, Clone, Debug)]
pub(super) struct Output {
    /// Print the topic before the payload
    #[arg(short = 'v', long, help_heading = "Output")]
    verbose: bool,
    /// Print each message in this form; see "Formats" below
    #[arg(
        short = 'F',
        long = "format",
        value_name = "FORMAT",
        help_heading = "Output"
    )]
    format: Option<Format>,
    /// With %j and %J: spread JSON over several lines
    #[arg(long, help_heading = "Output")]
    pretty: bool,
    /// Do not end messages with a line end
    #[arg(short = 'N', help_heading = "Output")]
    no_line_end: bool,
}

/// The text about `-F` after the options of `--help`.
pub(super) const FORMATS: &str = "\
Formats (-F):
  %t topic       %p payload      %x %X payload in hexadecimal     %l its length in bytes
  %q QoS         %r retained     %m packet identifier             %% a percent sign
  %j the message as one line of JSON       %J the same, with a payload that is JSON itself
  %I date and time (ISO 8601)    %U seconds since 1970            @X strftime's %X, @N nanoseconds
  MQTT 5: %C content type  %D correlation data  %E expiry  %F payload format  %P user properties
          %R response topic  %S subscription identifiers
  Widths as in printf: %10t %-10t %05l %.8p     Escapes: \\\\ \\0 \\a \\e \\n \\r \\t \\v";

impl Output {
    /// Appends a message as the options want it.
    ///
    /// Errors of a single message, such as a payload that is not JSON, are for standard error.
    pub(super) fn write(&self, message: &Message, out: &mut Vec<u8>) -> Result<(), String> {
        self.write_for(message, io::stdout().is_terminal(), out)
    }

    fn write_for(
        &self,
        message: &Message,
        is_terminal: bool,
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        let payload = message.payload_bytes();
        if let Some(format) = &self.format {
            let texts = Texts::of(message, is_terminal);
            let fields = fields(message, &texts);
            format.write(&fields, &LocalTime::now(), self.pretty, out)?;
        } else if self.verbose {
            out.extend_from_slice(shown(message.topic(), is_terminal).as_bytes());
            out.push(b' ');
            out.extend_from_slice(if payload.is_empty() {
                b"(null)"
            } else {
                payload
            });
        } else if payload.is_empty() {
            // As mosquitto_sub does: an empty payload is not an empty line.
            return Ok(());
        } else {
            out.extend_from_slice(payload);
        }
        if !self.no_line_end {
            out.push(b'\n');
        }
        Ok(())
    }
}

/// A text of a publisher's. A terminal would obey its control characters. The payload stays as it is.
fn shown(text: &str, is_terminal: bool) -> Cow<'_, str> {
    if is_terminal {
        harmless(text).into()
    } else {
        text.into()
    }
}

/// The texts of a message, as they are shown.
struct Texts<'a> {
    topic: Cow<'a, str>,
    content_type: Option<Cow<'a, str>>,
    response_topic: Option<Cow<'a, str>>,
    user_properties: Vec<(Cow<'a, str>, Cow<'a, str>)>,
    correlation_data: Option<Cow<'a, [u8]>>,
}

impl<'a> Texts<'a> {
    fn of(message: &'a Message, is_terminal: bool) -> Self {
        let properties = message.properties();
        let shown = |text| shown(text, is_terminal);
        Self {
            topic: shown(message.topic()),
            content_type: properties.content_type().map(shown),
            response_topic: properties.response_topic().map(shown),
            user_properties: properties
                .user_properties()
                .map(|(name, value)| (shown(name), shown(value)))
                .collect(),
            correlation_data: properties.correlation_data().map(|data| {
                if is_terminal {
                    harmless(&String::from_utf8_lossy(data)).into_bytes().into()
                } else {
                    data.into()
                }
            }),
        }
    }
}

fn fields<'a>(message: &'a Message, texts: &'a Texts<'_>) -> Fields<'a> {
    let properties = message.properties();
    Fields {
        topic: &texts.topic,
        payload: message.payload_bytes(),
        qos: message.qos() as u8,
        retain: message.retain(),
        packet_id: message.packet_id(),
        topic_alias: properties.topic_alias(),
        content_type: texts.content_type.as_deref(),
        correlation_data: texts.correlation_data.as_deref(),
        expiry_s: properties.message_expiry_s(),
        payload_format: properties.all().find(|property| match property {
            Property::PayloadFormatIndicator(is_text) => Some(u8::from(is_text)),
            _ => None,
        }),
        response_topic: texts.response_topic.as_deref(),
        user_properties: texts
            .user_properties
            .iter()
            .map(|(name, value)| (&**name, &**value))
            .collect(),
        subscription_ids: properties.subscription_identifiers().collect(),
    }
}

/// Writes bytes to standard output at once.
pub(super) fn print(bytes: &[u8]) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    stdout
        .write_all(bytes)
        .and_then(|()| stdout.flush())
        .map_err(|error| match error.kind() {
            // `sterna sub … | head` has seen enough.
            io::ErrorKind::BrokenPipe => Failure::quiet(),
            _ => Failure::local(format_args!("standard output: {error}")),
        })
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use sterna_client::http::{Frame, Frames};

    use super::*;

    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        output: Output,
    }

    #[test]
    fn a_topic_gives_a_terminal_no_orders() {
        let mut frames = Frames::new(100);
        frames.push(b"\x0c\x01\x01\x04a\x1b[m\x00\x1b[2J");
        let Some(Frame::Message { message, .. }) = frames.next_frame().unwrap() else {
            panic!("no message")
        };
        for flags in [&["-v"][..], &["-F", "%t %p"][..]] {
            let output = Cli::parse_from(std::iter::once(&"sub").chain(flags)).output;
            for (is_terminal, expected) in
                [(true, "a\\u{1b}[m \x1b[2J\n"), (false, "a\x1b[m \x1b[2J\n")]
            {
                let mut out = Vec::new();
                output.write_for(&message, is_terminal, &mut out).unwrap();
                assert_eq!(String::from_utf8(out).unwrap(), expected);
            }
        }
    }
}
