//! Rivals of MQTT: devices of other protocols, and the gateways that hand their messages to the broker.

use std::path::Path;

use super::{Campaign, ForeignDevice, Transport};

/// Schemes that a program beside this project serves, as device and as gateway.
const SCHEMES: [&str; 2] = ["coap", "coaps"];
/// Scheme by which the gateway of a rival connects to the broker, on the broker's host.
const BEHIND: &str = "mqtt";

impl Transport {
    /// Whether it is another protocol than the broker's.
    #[must_use]
    pub fn is_rival(&self) -> bool {
        SCHEMES.contains(&self.scheme.as_str())
    }

    /// Whether it is TCP, whose congestion control the kernel has.
    #[must_use]
    pub fn is_tcp(&self) -> bool {
        !self.is_quic() && !self.is_rival()
    }

    /// Whether it goes to a gateway: early data over TCP, and other protocols than the broker's.
    #[must_use]
    pub fn needs_gateway(&self) -> bool {
        self.is_rival() || (self.early_data && !self.is_quic())
    }

    /// The scheme without TLS of the listener behind a gateway.
    #[must_use]
    pub fn scheme_behind(&self) -> &str {
        if self.is_rival() {
            return BEHIND;
        }
        self.scheme.strip_suffix('s').unwrap_or(&self.scheme)
    }

    /// Checks that a rival has no settings but resumption, QoS and its device.
    pub(super) fn check_rival(&self) -> Result<(), String> {
        if !self.is_rival() {
            return Ok(());
        }
        let plain = Self {
            name: self.name.clone(),
            label: self.label.clone(),
            scheme: self.scheme.clone(),
            resumption: self.resumption,
            qos: self.qos,
            device: self.device.clone(),
            ..Self::default()
        };
        if *self == plain {
            return Ok(());
        }
        Err(format!(
            "{} has no settings but resumption and qos: its program is not this one",
            self.scheme
        ))
    }
}

impl Campaign {
    /// The same campaign with the program that is device and gateway of rivals. Without one their runs
    /// are left out.
    #[must_use]
    pub fn with_rival(mut self, program: Option<&Path>) -> Self {
        for transport in &mut self.transports {
            if transport.is_rival() {
                transport.device = program.map(|program| ForeignDevice {
                    scheme: transport.scheme.clone(),
                    program: program.to_owned(),
                });
            }
        }
        self
    }

    /// Text about transports that are not measured for want of a rival's program.
    #[must_use]
    pub fn without_rival(&self) -> Option<String> {
        let missing = self.transports.iter();
        let missing = missing.filter(|it| it.is_rival() && it.device.is_none());
        let names: Vec<&str> = missing.map(|transport| transport.name.as_str()).collect();
        (!names.is_empty())
            .then(|| format!("{}: not measured without --rival PROGRAM", names.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::campaign::{Authentication, Plan};

    #[test]
    fn rivals_are_measured_with_their_program_alone() {
        let find = || Campaign::find("rivals").unwrap().0;
        let names = |campaign: &Campaign| {
            let plan = Plan::new(campaign, true, 1, &[]).unwrap();
            let mut names: Vec<String> = plan
                .runs
                .into_iter()
                .map(|run| run.transport.name)
                .filter(|name| name.starts_with("coap"))
                .collect();
            names.sort_unstable();
            names.dedup();
            names
        };
        let without = find();
        assert!(names(&without).is_empty());
        let said = without.without_rival().unwrap();
        assert!(
            said.contains("coap, coaps") || said.contains("coaps, coap"),
            "{said}"
        );
        let with = find().with_rival(Some(Path::new("/opt/rivals")));
        assert_eq!(names(&with), ["coap", "coaps"]);
        assert_eq!(with.without_rival(), None);
        let transport = with.transport("coaps").unwrap();
        assert!(transport.needs_gateway() && !transport.is_tcp() && !transport.is_quic());
        assert_eq!(transport.scheme_behind(), "mqtt");
        assert_eq!(transport.scheme_beside(), "mqtts");
        // No broker of another project has such a gateway.
        let with = with.with_brokers(&["mosquitto".into()]).unwrap();
        assert!(with.transport("coap@mosquitto").is_none());
    }

    #[test]
    fn a_rival_has_no_settings_of_tcp_and_quic() {
        let rival = |change: fn(&mut Transport)| {
            let mut transport = Transport {
                name: "coaps".into(),
                scheme: "coaps".into(),
                resumption: true,
                ..Transport::default()
            };
            change(&mut transport);
            transport.check_rival()
        };
        assert_eq!(rival(|_| {}), Ok(()));
        for change in [
            (|it| it.early_data = true) as fn(&mut Transport),
            |it| it.fast_open = true,
            |it| it.tls = Some("1.3".into()),
            |it| it.congestion = Some("cubic".into()),
            |it| it.authentication = Authentication::Password,
        ] {
            assert!(rival(change).unwrap_err().contains("coaps has no settings"));
        }
    }
}
