//! Energy of the radio for each message of a device, at the periods of a campaign.
//!
//! The run itself has shorter pauses: see [`crate::energy::exchange`].

use super::describe::{first_arrivals, of_set, set};
use super::device::Measured;
use super::sample::Sample;
use super::site::SiteReport;
use crate::campaign::{Run, WorkloadKind};
use crate::energy::constants::radios;
use crate::energy::exchange::{by_connection, by_time, mean_j};
use crate::energy::radio::{Conditions, RadioPacket, Sleep};

/// Ways to sleep, each with the name of its metric: power saving mode, the same with release
/// assistance, and extended DRX.
const WAYS: [(&str, Sleep, bool); 3] = [
    ("message", Sleep::PowerSaving, false),
    ("message_rai", Sleep::PowerSaving, true),
    ("message_edrx", Sleep::Edrx, false),
];

/// Sets what a message costs, in workloads with shortened pauses.
///
/// # Errors
///
/// If the run's packets are not known, or don't have the exchanges that they should.
pub(super) fn describe(
    run: &Run,
    report: &SiteReport,
    arrived: Option<&Measured>,
    sample: &mut Sample,
) -> Result<(), String> {
    if run.workload.shortened_to.is_none() {
        return Ok(());
    }
    let exchanges = exchanges(run, report, arrived)?;
    let count = exchanges.len() as f64;
    let packets = || exchanges.iter().flatten();
    let bytes: u64 = packets().map(|packet| u64::from(packet.bytes)).sum();
    let seconds = exchanges.iter().filter_map(|packets| packets.last());
    set(sample, "message_packets", packets().count() as f64 / count);
    set(sample, "message_bytes", bytes as f64 / count);
    let seconds: f64 = seconds.map(|last| last.at_s).sum();
    set(sample, "message_s", seconds / count);
    let rate = |rate_bps: Option<u64>| rate_bps.map_or(1e9, |rate| rate as f64);
    for (name, sleep, release_assistance) in WAYS {
        let conditions = Conditions {
            up_bps: rate(run.settings.up.rate_bps),
            down_bps: rate(run.settings.down.rate_bps),
            sleep,
            release_assistance,
        };
        for (index, (_, radio)) in radios(&run.link).iter().enumerate() {
            let period_s = run.period_ns as f64 / 1e9;
            let joules = mean_j(radio, &exchanges, period_s, &conditions)?;
            set(sample, &of_set(name, index), joules);
        }
    }
    Ok(())
}

/// The exchanges of a run that repeat. The first one has no ticket, or is beside the start of its
/// connection. Of a connection that is kept, the last one is beside its end.
fn exchanges(
    run: &Run,
    report: &SiteReport,
    arrived: Option<&Measured>,
) -> Result<Vec<Vec<RadioPacket>>, String> {
    let packets = report.packets.as_ref();
    let packets = packets.ok_or("the packets of the run are not known")?;
    let mut exchanges = match run.workload.kind {
        WorkloadKind::ConnectPublish | WorkloadKind::ConnectReceive => by_connection(packets),
        WorkloadKind::OpenLoop | WorkloadKind::StopAndWait => {
            let sent_s = arrived.into_iter().flat_map(first_arrivals);
            let sent_s = sent_s
                .map(|(_, sent_ns, _)| sent_ns.saturating_sub(report.packets_from_ns) as f64 / 1e9);
            by_time(packets, &sent_s.collect::<Vec<_>>())
        }
        WorkloadKind::Fleet => return Err("a fleet's devices share one medium".into()),
    };
    if exchanges.len() < 2 {
        return Err("no exchange but the first".into());
    }
    exchanges.remove(0);
    Ok(exchanges)
}
