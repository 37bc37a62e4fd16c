//! Named links, each with where its numbers come from.
//!
//! The four papers that the lab repeats do not mean the same by a delay:
//!
//! | paper | "delay" | where |
//! |---|---|---|
//! | Iqbal and others 2023, AMQP | one-way, what is set per link in ns-3 | the station's link |
//! | Jeddou and others 2022, MQTT | one-way, publisher to broker only; the way back is a cable | `tc netem` on the publisher's egress |
//! | Saif and Matrawy 2022, HTTP/3 | half of the round trip, on either side | `tc netem` on both egresses |
//! | Fernández and others 2020, MQTT | round trip, half of it each way | an ns-3 point-to-point link |

use crate::link::{Jitter, LinkSettings, Loss, LossAt, PipeSettings, Queue, Reorder, Schedule};
use crate::quantity::PerDirection;

const MS: u64 = 1_000_000;
/// Ethernet's header, which netem counts on a device that has one.
const ETHERNET_BYTES: u32 = 14;
/// The header of ns-3's point-to-point device.
const PPP_BYTES: u32 = 2;

/// A named link.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    /// Its name on the command line.
    pub name: &'static str,
    /// Its meaning.
    pub title: &'static str,
    /// The source of the numbers, and the meaning of the delay.
    pub source: &'static str,
    build: fn() -> LinkSettings,
}

impl Profile {
    /// The profile of this name.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Self> {
        PROFILES.iter().find(|profile| profile.name == name)
    }

    /// The link of a profile's name, or of several with commas between them: hops, the client's first.
    ///
    /// # Errors
    ///
    /// A name that no profile has, and too many hops.
    pub fn link(names: &str) -> Result<LinkSettings, String> {
        let mut hops = names.split(',').map(|name| {
            let profile = Self::find(name).ok_or_else(|| {
                let all: Vec<&str> = PROFILES.iter().map(|profile| profile.name).collect();
                let all = all.join(", ");
                format!("no profile is called `{name}`; there are: {all}")
            })?;
            Ok::<_, String>(profile.settings())
        });
        // There is one part at least.
        let mut link = hops.next().unwrap_or_else(|| Ok(LinkSettings::default()))?;
        for hop in hops {
            link = link.followed_by(hop?);
        }
        link.validate().map_err(|error| error.to_string())?;
        Ok(link)
    }

    /// The link's settings.
    #[must_use]
    pub fn settings(&self) -> LinkSettings {
        (self.build)()
    }
}

/// All profiles.
pub const PROFILES: [Profile; 14] = [
    Profile {
        name: "ideal",
        title: "no delay, no limit, no loss",
        source: "a cable between two programs; what is measured is the programs",
        build: LinkSettings::default,
    },
    Profile {
        name: "wifi",
        title: "WiFi: 20 Mbit/s, round trip 25 ms",
        source: "Fernández 2020, Table I: round trip, a buffer of one bandwidth-delay product, \
                 errors on the air; no loss unless set (the paper: 0 to 5 %)",
        build: || ns3(20_000_000, 25),
    },
    Profile {
        name: "lte",
        title: "4G: 10 Mbit/s, round trip 100 ms",
        source: "Fernández 2020, Table I, as wifi",
        build: || ns3(10_000_000, 100),
    },
    Profile {
        name: "satellite",
        title: "geostationary satellite: 1.5 Mbit/s, round trip 600 ms",
        source: "Fernández 2020, Table I, as wifi",
        build: || ns3(1_500_000, 600),
    },
    Profile {
        name: "wifi-up",
        title: "WiFi: 20 Mbit/s and 25 ms up, a cable down",
        source: "Jeddou 2022, Table 2: one-way delay, netem on the publisher's egress only, so the \
                 round trip is 25 ms too and acknowledgements are never lost",
        build: || netem_up(20_000_000, 25),
    },
    Profile {
        name: "lte-up",
        title: "cellular: 10 Mbit/s and 100 ms up, a cable down",
        source: "Jeddou 2022, Table 2, as wifi-up",
        build: || netem_up(10_000_000, 100),
    },
    Profile {
        name: "satellite-up",
        title: "satellite: 1.5 Mbit/s and 600 ms up, a cable down",
        source: "Jeddou 2022, Table 2, as wifi-up",
        build: || netem_up(1_500_000, 600),
    },
    Profile {
        name: "wifi-a",
        title: "802.11a station to station: 12 Mbit/s shared, round trip 1.15 ms",
        source: "what ns-3 3.37 gives for Iqbal 2023's scenario (three stations, one access point, \
                 channel 36, 54 Mbit/s with rate control): TCP 11 to 12 Mbit/s, round trip 1.15 ms",
        build: || {
            LinkSettings::symmetric(PipeSettings {
                rate_bps: Some(12_000_000),
                delay_ns: 575_000,
                ..PipeSettings::default()
            })
        },
    },
    Profile {
        name: "wifi-a-54",
        title: "wifi-a without rate control: 54 Mbit/s from the first frame",
        source: "as wifi-a, which is the same link once rate control has found 54 Mbit/s; with \
                 `--emulator ns3` it begins there",
        build: || {
            LinkSettings::symmetric(PipeSettings {
                rate_bps: Some(12_000_000),
                delay_ns: 575_000,
                ..PipeSettings::default()
            })
        },
    },
    Profile {
        name: "nb-iot",
        title: "NB-IoT Cat NB2: 159 kbit/s up, 127 kbit/s down, round trip 2 s",
        source: "Saif 2022, Table VI (peak rates of 3GPP Release 14): 1 s on either egress, netem, \
                 frame bytes with Ethernet's header",
        build: || netem(159_000, 127_000, 1000),
    },
    Profile {
        name: "nb-iot-near",
        title: "the rates of nb-iot without its delay: round trip 12.24 ms",
        source: "Saif 2022, sections VI and VIII-B: what is left without netem's delay is the WiFi below, \
                 a ping of 12.24 ms",
        build: || {
            let mut settings = netem(159_000, 127_000, 0);
            settings.up.delay_ns = 6_120_000;
            settings.down.delay_ns = 6_120_000;
            settings
        },
    },
    Profile {
        name: "lte-m",
        title: "LTE-M Cat M1, half duplex: 375 kbit/s up, 300 kbit/s down, round trip 150 ms",
        source: "peak rates of 3GPP Release 13 in half duplex; the round trip is this project's \
                 choice for a device in connected mode with normal coverage",
        build: || netem(375_000, 300_000, 75),
    },
    Profile {
        name: "leo",
        title: "low orbit: 15 Mbit/s up, 100 Mbit/s down, round trip 45 ms with jitter, seldom bursts",
        source: "this project's choice, in the range that measurements of Starlink since 2022 report",
        build: || {
            let pipe = |rate_bps| PipeSettings {
                rate_bps: Some(rate_bps),
                delay_ns: 22_500_000,
                jitter: Jitter::Normal {
                    deviation_ns: 3 * MS,
                },
                queue: Queue::Bdp(2.0),
                loss: Loss::GilbertElliott {
                    to_bad: 0.000_5,
                    to_good: 0.2,
                    loss_good: 0.0,
                    loss_bad: 1.0,
                },
                loss_at: LossAt::Exit,
                ..PipeSettings::default()
            };
            LinkSettings {
                up: pipe(15_000_000),
                down: pipe(100_000_000),
                ..LinkSettings::default()
            }
        },
    },
    Profile {
        name: "lossy-lan",
        title: "a bad local network: 100 Mbit/s, round trip 2 ms, 1 % lost in short runs",
        source: "this project's choice: Gilbert-Elliott with runs of 2.5 packets on average",
        build: || {
            LinkSettings::symmetric(PipeSettings {
                rate_bps: Some(100_000_000),
                delay_ns: MS,
                loss: Loss::GilbertElliott {
                    to_bad: 0.004,
                    to_good: 0.4,
                    loss_good: 0.0,
                    loss_bad: 1.0,
                },
                loss_at: LossAt::Exit,
                ..PipeSettings::default()
            })
        },
    },
];

fn ns3(rate_bps: u64, rtt_ms: u64) -> LinkSettings {
    LinkSettings::symmetric(PipeSettings {
        rate_bps: Some(rate_bps),
        delay_ns: rtt_ms * MS / 2,
        queue: Queue::Bdp(1.0),
        overhead_bytes: PPP_BYTES,
        loss_at: LossAt::Exit,
        ..PipeSettings::default()
    })
}

fn netem(up_bps: u64, down_bps: u64, delay_ms: u64) -> LinkSettings {
    let pipe = |rate_bps| PipeSettings {
        rate_bps: Some(rate_bps),
        delay_ns: delay_ms * MS,
        queue: Queue::Packets(1000),
        overhead_bytes: ETHERNET_BYTES,
        ..PipeSettings::default()
    };
    LinkSettings {
        up: pipe(up_bps),
        down: pipe(down_bps),
        ..LinkSettings::default()
    }
}

fn netem_up(rate_bps: u64, delay_ms: u64) -> LinkSettings {
    LinkSettings {
        down: PipeSettings::default(),
        ..netem(rate_bps, rate_bps, delay_ms)
    }
}

/// A person's changes of a profile. Other settings stay.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// Round trip, half of it in each direction.
    pub rtt_ns: Option<u64>,
    /// One-way delays; before `rtt_ns`.
    pub delay_ns: Option<PerDirection<u64>>,
    /// Rates.
    pub rate_bps: Option<PerDirection<Option<u64>>>,
    /// Losses.
    pub loss: Option<PerDirection<Loss>>,
    /// Where packets are lost.
    pub loss_at: Option<LossAt>,
    /// Jitters.
    pub jitter: Option<PerDirection<Jitter>>,
    /// Whether jitter may reorder.
    pub jitter_reorders: Option<bool>,
    /// Queues.
    pub queue: Option<PerDirection<Queue>>,
    /// Probabilities of duplicates.
    pub duplicate: Option<PerDirection<f64>>,
    /// Probabilities of changed bits.
    pub corrupt: Option<PerDirection<f64>>,
    /// Reorderings.
    pub reorder: Option<PerDirection<Reorder>>,
    /// Longest packets.
    pub mtu_bytes: Option<u32>,
    /// Bytes a packet takes beyond its own.
    pub overhead_bytes: Option<u32>,
    /// When both directions are down.
    pub schedule: Option<Schedule>,
}

impl Overrides {
    /// Applies the changes.
    pub fn apply(&self, settings: &mut LinkSettings) {
        fn set<T: Clone>(
            settings: &mut LinkSettings,
            value: Option<&PerDirection<T>>,
            field: impl Fn(&mut PipeSettings) -> &mut T,
        ) {
            if let Some(value) = value {
                *field(&mut settings.up) = value.up.clone();
                *field(&mut settings.down) = value.down.clone();
            }
        }
        fn both<T: Clone>(value: &T) -> PerDirection<T> {
            PerDirection {
                up: value.clone(),
                down: value.clone(),
            }
        }
        let rtt = self.rtt_ns.map(|rtt_ns| PerDirection {
            up: rtt_ns / 2,
            down: rtt_ns - rtt_ns / 2,
        });
        set(settings, rtt.as_ref(), |pipe| &mut pipe.delay_ns);
        set(settings, self.delay_ns.as_ref(), |pipe| &mut pipe.delay_ns);
        set(settings, self.rate_bps.as_ref(), |pipe| &mut pipe.rate_bps);
        set(settings, self.loss.as_ref(), |pipe| &mut pipe.loss);
        set(settings, self.loss_at.as_ref().map(both).as_ref(), |pipe| {
            &mut pipe.loss_at
        });
        set(settings, self.jitter.as_ref(), |pipe| &mut pipe.jitter);
        set(
            settings,
            self.jitter_reorders.as_ref().map(both).as_ref(),
            |pipe| &mut pipe.jitter_reorders,
        );
        set(settings, self.queue.as_ref(), |pipe| &mut pipe.queue);
        set(settings, self.duplicate.as_ref(), |pipe| {
            &mut pipe.duplicate
        });
        set(settings, self.corrupt.as_ref(), |pipe| &mut pipe.corrupt);
        set(settings, self.reorder.as_ref(), |pipe| &mut pipe.reorder);
        set(
            settings,
            self.mtu_bytes.as_ref().map(both).as_ref(),
            |pipe| &mut pipe.mtu_bytes,
        );
        set(
            settings,
            self.overhead_bytes.as_ref().map(both).as_ref(),
            |pipe| &mut pipe.overhead_bytes,
        );
        set(
            settings,
            self.schedule.as_ref().map(both).as_ref(),
            |pipe| &mut pipe.schedule,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::Direction;

    #[test]
    fn profiles_are_valid_and_have_names_of_their_own() {
        for (index, profile) in PROFILES.iter().enumerate() {
            profile.settings().validate().unwrap();
            assert!(PROFILES[..index].iter().all(|p| p.name != profile.name));
            assert!(!profile.source.is_empty());
        }
        assert!(Profile::find("carrier-pigeon").is_none());
    }

    #[test]
    fn profiles_behind_each_other_are_hops() {
        let link = Profile::link("wifi,satellite").unwrap();
        assert_eq!(link.rtt_ns(), 625 * MS);
        assert_eq!(link.behind.len(), 1);
        assert_eq!(link.up.rate_bps, Some(20_000_000));
        assert_eq!(link.rate_bps(Direction::Down), Some(1_500_000));
        assert!(Profile::link("wifi,moon").unwrap_err().contains("`moon`"));
        assert!(Profile::link("").unwrap_err().contains("nb-iot"));
        assert!(
            Profile::link(&["wifi"; 9].join(","))
                .unwrap_err()
                .contains("8 hops")
        );
    }

    #[test]
    fn the_papers_numbers_are_in_the_profiles() {
        let of = |name: &str| {
            let settings = Profile::find(name).unwrap().settings();
            (
                settings.up.rate_bps,
                settings.down.rate_bps,
                settings.rtt_ns() / MS,
            )
        };
        let same = |rate| (Some(rate), Some(rate));
        for (name, (up, down), rtt_ms) in [
            ("wifi", same(20_000_000), 25),
            ("lte", same(10_000_000), 100),
            ("satellite", same(1_500_000), 600),
            ("wifi-up", (Some(20_000_000), None), 25),
            ("satellite-up", (Some(1_500_000), None), 600),
            ("nb-iot", (Some(159_000), Some(127_000)), 2000),
        ] {
            assert_eq!(of(name), (up, down, rtt_ms), "{name}");
        }
    }

    #[test]
    fn overrides_change_what_they_name_and_no_more() {
        let mut settings = Profile::find("nb-iot").unwrap().settings();
        let before = settings.clone();
        Overrides::default().apply(&mut settings);
        assert_eq!(settings, before);
        let overrides = Overrides {
            rtt_ns: Some(501 * MS),
            loss: Some(PerDirection {
                up: Loss::Independent { probability: 0.02 },
                down: Loss::None,
            }),
            mtu_bytes: Some(1280),
            ..Overrides::default()
        };
        overrides.apply(&mut settings);
        assert_eq!(settings.rtt_ns(), 501 * MS);
        assert_eq!(settings.up.loss, Loss::Independent { probability: 0.02 });
        assert_eq!(settings.down.loss, Loss::None);
        assert_eq!(settings.down.mtu_bytes, 1280);
        assert_eq!(settings.up.rate_bps, before.up.rate_bps);
    }
}
