//! Received messages on standard output.

use std::fs::File;
use std::io::{self, Write as _};

use sterna_client::{Message, Property};

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
        let payload = message.payload_bytes();
        if let Some(format) = &self.format {
            format.write(&fields(message), &LocalTime::now(), self.pretty, out)?;
        } else if self.verbose {
            out.extend_from_slice(message.topic().as_bytes());
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

fn fields(message: &Message) -> Fields<'_> {
    let properties = message.properties();
    Fields {
        topic: message.topic(),
        payload: message.payload_bytes(),
        qos: message.qos() as u8,
        retain: message.retain(),
        packet_id: message.packet_id(),
        topic_alias: properties.topic_alias(),
        content_type: properties.content_type(),
        correlation_data: properties.correlation_data(),
        expiry_s: properties.message_expiry_s(),
        payload_format: properties.all().find(|property| match property {
            Property::PayloadFormatIndicator(is_text) => Some(u8::from(is_text)),
            _ => None,
        }),
        response_topic: properties.response_topic(),
        user_properties: properties.user_properties().collect(),
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
