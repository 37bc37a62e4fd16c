//! Other brokers on the links of a campaign, beside this project's.

use super::{Authentication, Campaign, Transport};

/// Between a transport's name and that of its broker or device, where these are others.
pub(super) const AT: char = '@';

/// A broker that is not this project's.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Foreign {
    /// Eclipse Mosquitto, which the lab starts.
    Mosquitto,
    /// RMQTT, which the lab starts.
    Rmqttd,
    /// One that runs already.
    Running {
        /// Its URL's scheme.
        scheme: String,
        /// Its name or address.
        host: String,
        /// Its port.
        port: u16,
        /// The file with the certificate of who signed its own; the system's authorities without one.
        authority: Option<String>,
    },
}

impl Foreign {
    /// Reads `mosquitto`, `rmqttd`, or `SCHEME://HOST:PORT`, `SCHEME://HOST:PORT?ca=FILE`.
    ///
    /// # Errors
    ///
    /// If it is not one of these.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text {
            "mosquitto" => return Ok(Self::Mosquitto),
            "rmqttd" => return Ok(Self::Rmqttd),
            _ => {}
        }
        let wrong = || {
            format!(
                "broker `{text}`: mosquitto, rmqttd, or the URL of one that runs, \
                 SCHEME://HOST:PORT or SCHEME://HOST:PORT?ca=FILE"
            )
        };
        let (scheme, rest) = text.split_once("://").ok_or_else(wrong)?;
        let (place, query) = match rest.split_once('?') {
            Some((place, query)) => (place, Some(query)),
            None => (rest, None),
        };
        let (host, port) = place.rsplit_once(':').ok_or_else(wrong)?;
        let authority = query
            .map(|query| {
                query
                    .strip_prefix("ca=")
                    .map(str::to_owned)
                    .ok_or_else(wrong)
            })
            .transpose()?;
        if host.is_empty() {
            return Err(wrong());
        }
        Ok(Self::Running {
            scheme: scheme.to_owned(),
            host: host.to_owned(),
            port: port.parse().map_err(|_| wrong())?,
            authority,
        })
    }

    /// Its name in results.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Mosquitto => "mosquitto".to_owned(),
            Self::Rmqttd => "rmqttd".to_owned(),
            Self::Running { host, port, .. } => format!("{host}:{port}"),
        }
    }

    /// The schemes that it serves.
    #[must_use]
    pub fn schemes(&self) -> Vec<&str> {
        match self {
            Self::Mosquitto => vec!["mqtt", "mqtts"],
            Self::Rmqttd => vec!["mqtt", "mqtts", "mqtt+quic"],
            Self::Running { scheme, .. } => vec![scheme],
        }
    }

    /// Whether it serves this transport. RMQTT reads only the first stream of a connection. The
    /// features of a running broker beyond its scheme are not known. Devices' credentials are made
    /// for this project's broker alone.
    fn serves(&self, transport: &Transport) -> bool {
        let plain = transport.streams.is_none() && !transport.datagrams;
        self.schemes().contains(&transport.scheme.as_str())
            && (plain || *self != Self::Rmqttd)
            && transport.authentication == Authentication::None
            // The gateway stands in front of this project's broker.
            && !transport.needs_gateway()
    }
}

/// Whether a transport of this name has a foreign broker or device: only claims that name it are about it.
#[must_use]
pub fn is_foreign(transport: &str) -> bool {
    transport.contains(AT)
}

impl Campaign {
    /// Measures a further transport wherever this one is measured. Returns the number of grids.
    pub(super) fn add_twin(&mut self, name: &str, twin: Transport) -> usize {
        let mut count = 0;
        for grid in &mut self.grids {
            let has = |wanted: &str| grid.transports.iter().any(|name| name == wanted);
            // The protocol of devices has no fleets.
            let is_beyond = twin.device.is_some() && grid.workload.fleet.is_some();
            if has(name) && !has(&twin.name) && !is_beyond {
                grid.transports.push(twin.name.clone());
                count += 1;
            }
        }
        if self.transport(&twin.name).is_none() {
            self.transports.push(twin);
        }
        count
    }

    /// Text about transports that other brokers serve, and are not measured with.
    ///
    /// # Errors
    ///
    /// If a broker is unknown.
    pub fn unserved(&self, brokers: &[String]) -> Result<Option<String>, String> {
        let mut names = Vec::new();
        for text in brokers {
            let foreign = Foreign::parse(text)?;
            for transport in &self.transports {
                if foreign.schemes().contains(&transport.scheme.as_str())
                    && transport.authentication != Authentication::None
                    && !names.contains(&transport.name.as_str())
                {
                    names.push(&transport.name);
                }
            }
        }
        Ok((!names.is_empty()).then(|| {
            format!(
                "devices of {} authenticate, which the lab sets up for Sterna alone: not measured \
                 with other brokers",
                names.join(", ")
            )
        }))
    }

    /// The same campaign with further transports. Each transport that a foreign broker serves is
    /// measured there, too, on the same links with the same losses.
    ///
    /// # Errors
    ///
    /// If a broker is unknown, or serves none of the campaign's transports.
    pub fn with_brokers(mut self, brokers: &[String]) -> Result<Self, String> {
        let own = self.transports.clone();
        for text in brokers {
            let foreign = Foreign::parse(text)?;
            let mut count = 0;
            for transport in &own {
                if !foreign.serves(transport) {
                    continue;
                }
                let mut twin = transport.clone();
                twin.name = format!("{}{AT}{}", transport.name, foreign.name());
                twin.label = format!("{}, {}", transport.label, foreign.name());
                // Those are settings of this project's broker.
                twin.broker.clear();
                twin.foreign = Some(foreign.clone());
                count += self.add_twin(&transport.name, twin);
            }
            if count == 0 {
                return Err(format!(
                    "broker `{text}` serves {}, and {} has no such transport without authentication",
                    foreign.schemes().join(", "),
                    self.name
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
    fn brokers_are_known_by_name_or_by_url() {
        assert_eq!(Foreign::parse("mosquitto").unwrap(), Foreign::Mosquitto);
        let running = Foreign::parse("mqtts://broker.lan:8883?ca=/etc/ca.pem").unwrap();
        assert_eq!(running.name(), "broker.lan:8883");
        assert!(matches!(
            running,
            Foreign::Running { authority: Some(file), .. } if file == "/etc/ca.pem"
        ));
        for wrong in [
            "emqx",
            "mqtts://h",
            "mqtts://:1",
            "mqtts://h:1?x=1",
            "mqtt://h:p",
        ] {
            assert!(Foreign::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_foreign_broker_has_the_transports_that_it_serves() {
        let find = || Campaign::find("mqtt-fernandez-2020").unwrap().0;
        let campaign = find().with_brokers(&["mosquitto".into()]).unwrap();
        let grid = campaign.grid("stop-and-wait").unwrap();
        assert_eq!(
            grid.transports,
            [
                "tls",
                "quic",
                "tls-rto",
                "tls@mosquitto",
                "tls-rto@mosquitto"
            ]
        );
        // Early data over TCP is taken by what stands in front of this project's broker.
        let grid = campaign.grid("connect").unwrap();
        assert!(grid.transports.contains(&"tls13-tfo@mosquitto".to_owned()));
        assert!(!grid.transports.contains(&"tls13-best@mosquitto".to_owned()));
        let twin = campaign.transport("tls@mosquitto").unwrap();
        assert_eq!(twin.foreign, Some(Foreign::Mosquitto));
        assert!(is_foreign(&twin.name) && !is_foreign("tls"));
        let beyond = Campaign::find("beyond-mqtt").unwrap().0;
        let beyond = beyond.with_brokers(&["rmqttd".into()]).unwrap();
        assert!(beyond.transport("quic@rmqttd").is_some());
        assert!(beyond.transport("quic-topics@rmqttd").is_none());
        assert!(beyond.transport("quic-datagrams@rmqttd").is_none());
        let error = find().with_brokers(&["amqps://h:5671".into()]).unwrap_err();
        assert!(error.contains("amqps"), "{error}");
        assert_eq!(find().unserved(&["mosquitto".into()]), Ok(None));
    }

    #[test]
    fn transports_with_authentication_stay_with_this_projects_broker() {
        let find = || Campaign::find("http3-saif-2022").unwrap().0;
        let brokers = ["rmqttd".to_owned()];
        let said = find().unserved(&brokers).unwrap().unwrap();
        assert!(
            said.contains("mq-password") && !said.contains("h3"),
            "{said}"
        );
        let campaign = find().with_brokers(&brokers).unwrap();
        assert!(campaign.transport("mq-ad@rmqttd").is_some());
        assert!(campaign.transport("mq-password@rmqttd").is_none());
    }
}
