//! Devices of other QUIC and TLS stacks on the links of a campaign, beside this program's.

use std::path::{Path, PathBuf};

use super::foreign::AT;
use super::{Authentication, Campaign};

/// The scheme of a device of which none is named.
const SCHEME: &str = "mqtt+quic";

/// A program that keeps to the protocol of devices.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ForeignDevice {
    /// The scheme of the transports that it is to be measured with.
    pub scheme: String,
    /// Where it is. In a report, which starts nothing, its name alone.
    pub program: PathBuf,
}

impl ForeignDevice {
    /// Reads `PROGRAM` or `SCHEME=PROGRAM`.
    ///
    /// # Errors
    ///
    /// If the program has no name that results could have.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (scheme, program) = text.split_once('=').unwrap_or((SCHEME, text));
        let device = Self {
            scheme: scheme.to_owned(),
            program: PathBuf::from(program),
        };
        if scheme.is_empty() || device.name().is_empty() || device.name().contains([AT, '/']) {
            return Err(format!("device `{text}`: PROGRAM or SCHEME=PROGRAM"));
        }
        Ok(device)
    }

    /// Its name in results: that of its file, without an ending.
    #[must_use]
    pub fn name(&self) -> String {
        let stem = self.program.file_stem().unwrap_or_default();
        stem.to_string_lossy().into_owned()
    }

    /// The same without its place: what results keep of it.
    #[must_use]
    pub fn placeless(&self) -> String {
        format!("{}={}", self.scheme, self.name())
    }

    /// The same with the absolute path of an existing file.
    ///
    /// # Errors
    ///
    /// If there is no such file.
    pub fn placed(&self) -> Result<String, String> {
        let path = self
            .program
            .canonicalize()
            .map_err(|error| format!("device {}: {error}", self.program.display()))?;
        Ok(format!("{}={}", self.scheme, path.display()))
    }

    /// Its program.
    #[must_use]
    pub fn program(&self) -> &Path {
        &self.program
    }
}

impl Campaign {
    /// The same campaign with further transports. Each transport with a device's scheme is measured with
    /// that device, too, on the same links with the same losses. Transports with authentication, many
    /// streams, datagrams or a foreign broker remain with this program's device.
    ///
    /// # Errors
    ///
    /// If a device has none of the campaign's transports.
    pub fn with_devices(mut self, devices: &[String]) -> Result<Self, String> {
        let own = self.transports.clone();
        for text in devices {
            let device = ForeignDevice::parse(text)?;
            let mut count = 0;
            for transport in &own {
                if transport.scheme != device.scheme
                    || transport.authentication != Authentication::None
                    || transport.streams.is_some()
                    || transport.datagrams
                    || transport.foreign.is_some()
                {
                    continue;
                }
                let mut twin = transport.clone();
                twin.name = format!("{}{AT}{}", transport.name, device.name());
                twin.label = format!("{}, {}", transport.label, device.name());
                twin.device = Some(device.clone());
                count += self.add_twin(&transport.name, twin);
            }
            if count == 0 {
                return Err(format!(
                    "device `{text}`: {} has no plain transport over {}",
                    self.name, device.scheme
                ));
            }
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_a_program_with_a_scheme() {
        let device = ForeignDevice::parse("mqtts=/opt/devices/paho.py").unwrap();
        assert_eq!((device.scheme.as_str(), &*device.name()), ("mqtts", "paho"));
        assert_eq!(device.placeless(), "mqtts=paho");
        assert_eq!(ForeignDevice::parse("./x").unwrap().scheme, SCHEME);
        for wrong in ["", "=x", "mqtts=", "a@b"] {
            assert!(ForeignDevice::parse(wrong).is_err(), "{wrong}");
        }
        let error = ForeignDevice::parse("/no/such").unwrap().placed();
        assert!(error.unwrap_err().contains("/no/such"));
    }

    #[test]
    fn a_foreign_device_has_the_transports_of_its_scheme() {
        let find = || Campaign::find("mqtt-fernandez-2020").unwrap().0;
        let campaign = find().with_devices(&["/opt/quic-go".into()]).unwrap();
        let grid = campaign.grid("stop-and-wait").unwrap();
        assert_eq!(grid.transports, ["tls", "quic", "tls-rto", "quic@quic-go"]);
        let twin = campaign.transport("quic@quic-go").unwrap();
        assert_eq!(
            twin.device.as_ref().unwrap().program(),
            Path::new("/opt/quic-go")
        );
        // The name alone, as reports write it, gives the same transports.
        let again = find().with_devices(&["mqtt+quic=quic-go".into()]).unwrap();
        assert_eq!(again.grid("connect"), campaign.grid("connect"));
        let error = find().with_devices(&["amqps=x".into()]).unwrap_err();
        assert!(error.contains("amqps"), "{error}");
        let beyond = Campaign::find("beyond-mqtt").unwrap().0;
        let beyond = beyond.with_devices(&["x".into()]).unwrap();
        assert!(beyond.transport("quic-datagrams@x").is_none());
    }
}
