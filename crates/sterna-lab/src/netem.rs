//! The kernel's own emulator of links, where it has one.
//!
//! netem has fewer features than the [model](crate::link). It has no patterns, no schedule, and no queue
//! of its own beside the packets on their way, and reorders with jitter. A missing feature is an error,
//! not replaced by a similar one.

use std::fmt::Write as _;
use std::io;
use std::process::{Command, Output};

use crate::kernel;
use crate::link::{Jitter, LinkSettings, Loss, LossAt, PipeSettings, Schedule};
use crate::netns::{DEVICE, Namespace, NamespaceSettings, Side};

/// Ethernet's header, which netem counts by itself.
const ETHERNET_BYTES: i64 = 14;

/// Whether this machine has netem.
///
/// # Errors
///
/// The missing part, in a sentence.
pub fn check() -> Result<(), String> {
    let namespace = Namespace::new().map_err(|error| format!("no network namespace: {error}"))?;
    match tc(&namespace, &["qdisc", "add", "dev", "lo", "root", "netem"]) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err("the program `tc` (package iproute2) is not installed".into())
        }
        Err(error) => Err(format!("tc: {error}")),
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!(
            "this kernel has no netem (CONFIG_NET_SCH_NETEM); tc says: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )),
    }
}

/// Joins the namespaces by devices that netem delays.
///
/// # Errors
///
/// The feature that netem lacks, or the system's reason to refuse.
pub(crate) fn join(
    client: &Namespace,
    server: &Namespace,
    settings: &LinkSettings,
    namespace: &NamespaceSettings,
) -> Result<(), String> {
    if !settings.behind.is_empty() {
        return Err("netem has one hop; `--emulator tun` can have several".into());
    }
    let up = arguments(&settings.up, settings.rtt_ns())?;
    let down = arguments(&settings.down, settings.rtt_ns())?;
    check()?;
    Namespace::join(client, server, namespace).map_err(|error| error.to_string())?;
    for (side, arguments) in [(client, up), (server, down)] {
        side.run(|| kernel::switch_offloads_off(DEVICE))
            .map_err(|error| format!("cannot switch offloads off: {error}"))?;
        let mut line = vec!["qdisc", "add", "dev", DEVICE, "root", "netem"];
        line.extend(arguments.split_ascii_whitespace());
        let output = tc(side, &line).map_err(|error| format!("tc: {error}"))?;
        if !output.status.success() {
            return Err(format!(
                "tc {}: {}",
                line.join(" "),
                String::from_utf8_lossy(&output.stderr).trim()
            ));
        }
    }
    Ok(())
}

/// Packets that a side has sent into netem and netem has dropped, as the kernel counts them.
pub(crate) fn statistics(namespace: &Namespace, side: Side) -> String {
    let Ok(output) = tc(namespace, &["-s", "qdisc", "show", "dev", DEVICE]) else {
        return String::new();
    };
    let text = String::from_utf8_lossy(&output.stdout);
    let sent = text
        .lines()
        .find(|line| line.trim_start().starts_with("Sent"))
        .unwrap_or("no figures");
    format!("{}: {}", side.name(), sent.trim())
}

fn tc(namespace: &Namespace, arguments: &[&str]) -> io::Result<Output> {
    let mut command = Command::new("tc");
    command.args(arguments);
    namespace.adopt(&mut command);
    command.output()
}

/// netem's arguments for one direction.
fn arguments(pipe: &PipeSettings, rtt_ns: u64) -> Result<String, String> {
    let cannot = |what: &str| Err(format!("netem cannot do {what}; `--emulator tun` can"));
    if pipe.schedule != Schedule::default() {
        return cannot("a link that goes down at set times");
    }
    if pipe.trace.is_some() {
        return cannot("delivery traces");
    }
    if pipe.loss_at == LossAt::Exit && pipe.loss != Loss::None {
        return cannot("losses behind the transmitter (--loss-at exit)");
    }
    if pipe.reorder.probability > 0.0 {
        return cannot("packets that are late by a set time");
    }
    if pipe.jitter != Jitter::None && !pipe.jitter_reorders {
        return cannot("jitter that keeps the order (see --jitter-reorders)");
    }
    let mut text = String::new();
    // netem's limit counts waiting packets and those on their way.
    let packet_bits = (u64::from(pipe.mtu_bytes) + u64::from(pipe.overhead_bytes)) * 8;
    let travelling = pipe.rate_bps.map_or(100_000, |rate| {
        rate * pipe.delay_ns.div_ceil(1_000_000_000).max(1) / packet_bits + 1
    });
    let (waiting_bytes, waiting_packets) = pipe.queue_limits(rtt_ns);
    let waiting = waiting_packets.min((waiting_bytes / packet_bits).saturating_mul(8).max(2));
    let mut add = |part: std::fmt::Arguments<'_>| {
        // Writing to a String does not fail.
        let _ = write!(text, "{part} ");
    };
    add(format_args!("limit {}", waiting + travelling));
    let delay_us = pipe.delay_ns / 1000;
    match pipe.jitter {
        Jitter::None => add(format_args!("delay {delay_us}us")),
        jitter => {
            let width_us = jitter.width_ns() / 1000;
            add(format_args!("delay {delay_us}us {width_us}us"));
            match jitter {
                Jitter::Normal { .. } => add(format_args!("distribution normal")),
                Jitter::Pareto { .. } => add(format_args!("distribution pareto")),
                _ => {}
            }
        }
    }
    let percent = |part: f64| part * 100.0;
    match &pipe.loss {
        Loss::None => {}
        Loss::Independent { probability } => {
            add(format_args!("loss random {}%", percent(*probability)));
        }
        Loss::GilbertElliott {
            to_bad,
            to_good,
            loss_good,
            loss_bad,
        } => add(format_args!(
            "loss gemodel {}% {}% {}% {}%",
            percent(*to_bad),
            percent(*to_good),
            percent(*loss_bad),
            percent(*loss_good)
        )),
        Loss::Burst { .. } | Loss::Pattern { .. } => {
            return Err("netem cannot lose bursts or patterns; `--emulator tun` can".into());
        }
    }
    if pipe.duplicate > 0.0 {
        add(format_args!("duplicate {}%", percent(pipe.duplicate)));
    }
    if pipe.corrupt > 0.0 {
        add(format_args!("corrupt {}%", percent(pipe.corrupt)));
    }
    if let Some(rate) = pipe.rate_bps {
        let overhead = i64::from(pipe.overhead_bytes) - ETHERNET_BYTES;
        add(format_args!("rate {rate}bit {overhead}"));
    }
    Ok(text.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::Family;
    use crate::profile::Profile;

    #[test]
    fn settings_become_arguments() {
        let settings = Profile::find("nb-iot").unwrap().settings();
        assert_eq!(
            arguments(&settings.up, settings.rtt_ns()).unwrap(),
            "limit 1014 delay 1000000us rate 159000bit 0"
        );
        let pipe = PipeSettings {
            loss: Loss::GilbertElliott {
                to_bad: 0.01,
                to_good: 0.25,
                loss_good: 0.0,
                loss_bad: 1.0,
            },
            jitter: Jitter::Normal {
                deviation_ns: 5_000_000,
            },
            jitter_reorders: true,
            corrupt: 0.5,
            ..PipeSettings::default()
        };
        assert_eq!(
            arguments(&pipe, 0).unwrap(),
            "limit 101000 delay 0us 5000us distribution normal loss gemodel 1% 25% 100% 0% \
             corrupt 50%"
        );
    }

    #[test]
    fn what_netem_cannot_do_is_said() {
        let burst = PipeSettings {
            loss: Loss::Burst {
                probability: 0.1,
                packets: 2,
            },
            ..PipeSettings::default()
        };
        let ordered = PipeSettings {
            jitter: Jitter::Uniform { plus_minus_ns: 1 },
            ..PipeSettings::default()
        };
        for pipe in [burst, ordered] {
            assert!(arguments(&pipe, 0).unwrap_err().contains("--emulator tun"));
        }
    }

    #[test]
    fn namespaces_are_joined_by_virtual_ethernet() {
        if let Err(why) = crate::session::check_rights() {
            eprintln!("left out: {why}");
            return;
        }
        for family in [Family::V4, Family::V6] {
            let (Ok(client), Ok(server)) = (Namespace::new(), Namespace::new()) else {
                eprintln!("left out: no network namespaces");
                return;
            };
            let settings = NamespaceSettings {
                family,
                ..NamespaceSettings::default()
            };
            if let Err(error) = Namespace::join(&client, &server, &settings) {
                eprintln!("left out: no virtual Ethernet: {error}");
                return;
            }
            client.run(|| kernel::switch_offloads_off(DEVICE)).unwrap();
            let at_server = (Side::Server.address(family), 9);
            let socket = server.run(|| std::net::UdpSocket::bind(at_server)).unwrap();
            socket
                .set_read_timeout(Some(std::time::Duration::from_secs(1)))
                .unwrap();
            let sender = client
                .run(|| std::net::UdpSocket::bind((Side::Client.address(family), 9)))
                .unwrap();
            // A busy kernel may drop one.
            let comes = (0..20).any(|_| {
                sender.send_to(b"x", at_server).unwrap();
                socket
                    .recv_from(&mut [0; 9])
                    .is_ok_and(|(bytes, _)| bytes == 1)
            });
            assert!(comes, "{family:?}");
        }
    }
}
