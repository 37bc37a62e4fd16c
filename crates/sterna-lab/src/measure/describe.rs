//! From the reports of devices and the link to the values of a sample.

use super::device::Measured;
use super::sample::Sample;
use super::site::SiteReport;
use crate::campaign::{Run, WorkloadKind};
use crate::energy::constants::{BOARD_IDLE_W, BOARDS, radios};
use crate::energy::radio::{Conditions, Sleep};

/// The board whose power is estimated: the second paper's devices are of this kind.
const BOARD: &str = "3b";

/// Sets a metric. A value that is not a number (a mean of nothing) is left out.
pub(super) fn set(sample: &mut Sample, name: &str, value: f64) {
    if value.is_finite() {
        sample.metrics.insert(name.to_owned(), value);
    }
}

pub(super) fn milliseconds(values: impl IntoIterator<Item = u64>) -> Vec<f64> {
    // Whole microseconds are more than a machine is exact to.
    values
        .into_iter()
        .map(|ns| (ns as f64 / 1e3).round() / 1e3)
        .collect()
}

pub(super) fn describe_device(
    run: &Run,
    measured: &Measured,
    arrived: Option<&Measured>,
    sample: &mut Sample,
) -> Result<(), String> {
    let total_s = measured.last_ns.saturating_sub(measured.first_ns) as f64 / 1e9;
    set(sample, "total_s", total_s);
    set(sample, "device_cpu_s", measured.cpu_ns as f64 / 1e9);
    set(sample, "peak_rss_bytes", measured.peak_rss_bytes as f64);
    set(sample, "reconnections", f64::from(measured.reconnections));
    set(sample, "late_p99_ms", measured.late_p99_ns as f64 / 1e6);
    for (name, value) in [
        ("quic_packets_lost", measured.packets_lost),
        ("quic_streams", measured.streams),
        ("datagram_messages", measured.datagram_messages),
        ("migrations", measured.migrations),
        ("allocated_bytes", measured.allocated_bytes),
        ("allocations", measured.allocations),
        (
            "largest_allocation_bytes",
            measured.largest_allocation_bytes,
        ),
        (
            "allocated_besides_bytes",
            measured
                .allocated_bytes
                .zip(measured.largest_allocation_bytes)
                .map(|(all, largest)| all.saturating_sub(largest)),
        ),
    ] {
        if let Some(value) = value {
            set(sample, name, value as f64);
        }
    }
    for (name, rtt_ns) in [
        ("quic_rtt_ms", measured.rtt_ns),
        ("tcp_rtt_ms", measured.tcp_rtt_ns),
        ("tcp_rto_ms", measured.tcp_rto_ns),
        // Each transport's own estimate under one name, for comparisons.
        ("rtt_ms", measured.rtt_ns.or(measured.tcp_rtt_ns)),
    ] {
        if let Some(rtt_ns) = rtt_ns {
            set(sample, name, rtt_ns as f64 / 1e6);
        }
    }
    let mut put = |name: &str, values: Vec<f64>| {
        if !values.is_empty() {
            sample.series.insert(name.to_owned(), values);
        }
    };
    put(
        "startup_ms",
        milliseconds(measured.connect_ns.iter().copied()),
    );
    // The first connection has neither ticket nor cookie.
    let (first, later) = measured
        .sent_after_ns
        .split_at(measured.sent_after_ns.len().min(1));
    for (name, part) in [
        ("sent_after_ms", measured.sent_after_ns.as_slice()),
        ("sent_after_new_ms", first),
        ("sent_after_again_ms", later),
    ] {
        put(name, milliseconds(part.iter().copied()));
    }
    put(
        "round_trip_ms",
        milliseconds(measured.round_trip_ns.iter().copied()),
    );
    if let Some(arrived) = arrived {
        put("delay_ms", delays(arrived));
        put(
            "sent_at_ms",
            milliseconds(
                first_arrivals(arrived)
                    .map(|(_, sent_ns, _)| sent_ns.saturating_sub(measured.first_ns)),
            ),
        );
    }
    if run.workload.kind == WorkloadKind::ConnectReceive {
        // Each connection took the next message of the queue.
        let per_connection = run.workload.messages as usize;
        let firsts = measured.arrivals.iter().step_by(per_connection);
        let after = measured
            .started_ns
            .iter()
            .zip(firsts)
            .map(|(started_ns, (_, _, at_ns))| at_ns.saturating_sub(*started_ns));
        put("first_data_ms", milliseconds(after));
    }
    if let (Some(arrived), WorkloadKind::ConnectPublish) = (arrived, run.workload.kind) {
        // A connection's first message has the connection's number.
        let after: Vec<(u32, u64)> = first_arrivals(arrived)
            .filter_map(|(number, _, arrived_ns)| {
                let connection = number / run.workload.messages;
                let started_ns = measured.started_ns.get(connection as usize)?;
                Some((connection, arrived_ns.saturating_sub(*started_ns)))
            })
            .collect();
        let of = |wanted: fn(u32) -> bool| {
            let chosen = after.iter().filter(|(connection, _)| wanted(*connection));
            milliseconds(chosen.map(|(_, after_ns)| *after_ns))
        };
        put("first_data_ms", of(|_| true));
        put("first_data_new_ms", of(|connection| connection == 0));
        put("first_data_again_ms", of(|connection| connection > 0));
    }
    let asked = f64::from(run.workload.messages * run.workload.connections);
    let answered = match arrived {
        Some(arrived) => first_arrivals(arrived).count(),
        None if run.workload.kind == WorkloadKind::ConnectReceive => {
            first_arrivals(measured).count()
        }
        None => measured.round_trip_ns.len(),
    };
    set(sample, "arrived_ratio", answered as f64 / asked);
    if answered == 0 && !run.transport.is_reliable() {
        return Err("no message arrived".into());
    }
    if let Some(arrived) = arrived.filter(|_| answered > 0) {
        let last_ns = arrived.arrivals.iter().map(|(_, _, at)| *at).max();
        let transfer_ns = last_ns.unwrap_or(0).saturating_sub(measured.first_ns);
        set(sample, "transfer_s", transfer_ns as f64 / 1e9);
        let duplicates = arrived.arrivals.len() - answered;
        set(sample, "duplicates", duplicates as f64);
    }
    if !measured.sent_after_ns.is_empty() && run.workload.messages == 1 {
        // Without the end of a connection.
        let settled_ns: u64 = measured.sent_after_ns.iter().sum();
        set(sample, "settled_s", settled_ns as f64 / 1e9);
    }
    if let Some(startup) = sample.series.get("startup_ms").and_then(|all| all.first()) {
        let startup = *startup;
        set(sample, "startup_first_ms", startup);
    }
    let accepted = measured
        .early_data
        .iter()
        .filter(|state| *state == "accepted")
        .count();
    set(sample, "early_data_accepted", accepted as f64);
    let tried = measured
        .early_data
        .iter()
        .filter(|state| *state != "not tried")
        .count();
    set(sample, "early_data_tried", tried as f64);
    Ok(())
}

/// The first arrival of each message, in the order of their numbers.
pub(super) fn first_arrivals(arrived: &Measured) -> impl Iterator<Item = (u32, u64, u64)> {
    let mut all = arrived.arrivals.clone();
    all.sort_by_key(|(number, _, at_ns)| (*number, *at_ns));
    all.dedup_by_key(|(number, _, _)| *number);
    all.into_iter()
}

/// One-way delays: both ends read one clock.
fn delays(arrived: &Measured) -> Vec<f64> {
    milliseconds(first_arrivals(arrived).map(|(_, sent_ns, at_ns)| at_ns.saturating_sub(sent_ns)))
}

pub(super) fn describe_link(
    run: &Run,
    report: &SiteReport,
    measured: &Measured,
    sample: &mut Sample,
) {
    for (name, counters) in [("up", &report.up), ("down", &report.down)] {
        set(
            sample,
            &format!("packets_{name}"),
            counters.offered_packets as f64,
        );
        set(
            sample,
            &format!("bytes_{name}"),
            counters.offered_bytes as f64,
        );
        set(sample, &format!("loss_{name}"), counters.loss_rate());
        let lost = counters.dropped.total() as f64;
        set(sample, &format!("lost_{name}"), lost);
    }
    let packets = report.up.offered_packets + report.down.offered_packets;
    set(sample, "packets", packets as f64);
    set(
        sample,
        "bytes",
        (report.up.offered_bytes + report.down.offered_bytes) as f64,
    );
    let total_s = sample.metrics.get("total_s").copied().unwrap_or(0.0);
    let work = |name: &str| sample.metrics.get(name).copied();
    let (up, down) = (work("work_packets_up"), work("work_packets_down"));
    let (bytes_up, bytes_down) = (work("work_bytes_up"), work("work_bytes_down"));
    if let (Some(up), Some(down)) = (up, down)
        && total_s > 0.0
    {
        set(sample, "packets_per_s", (up + down) / total_s);
        set(sample, "packets_up_per_s", up / total_s);
    }
    if let (Some(up), Some(down)) = (bytes_up, bytes_down)
        && total_s > 0.0
    {
        set(sample, "work_bytes", up + down);
        let messages = f64::from(run.workload.messages * run.workload.connections);
        set(sample, "bytes_per_message", (up + down) / messages);
        set(sample, "throughput_kbit_s", (up + down) * 8e-3 / total_s);
    }
    for (name, value) in [
        ("tcp_retransmissions_up", report.tcp_retransmissions_up),
        ("tcp_retransmissions_down", report.tcp_retransmissions_down),
        ("fast_opens", report.fast_opens),
    ] {
        if let Some(value) = value {
            set(sample, name, value as f64);
        }
    }
    if let Some(unanswered) = report.unanswered {
        set(sample, "unanswered_packets", unanswered as f64);
    }
    if let Some(late) = &report.late {
        set(sample, "link_late_p99_ms", late.p99_us / 1e3);
        set(sample, "link_late_max_ms", late.max_us / 1e3);
    }
    describe_energy(run, report, measured, total_s, sample);
}

fn describe_energy(
    run: &Run,
    report: &SiteReport,
    measured: &Measured,
    total_s: f64,
    sample: &mut Sample,
) {
    let joules_per_s = BOARDS
        .iter()
        .find(|(name, _, _)| *name == BOARD)
        .map_or(0.0, |(_, joules, _)| *joules);
    let cpu_j = measured.cpu_ns as f64 / 1e9 * joules_per_s;
    set(sample, "cpu_j", cpu_j);
    if total_s > 0.0 {
        set(sample, "board_w", BOARD_IDLE_W + cpu_j / total_s);
    }
    let Some(packets) = &report.packets else {
        return;
    };
    let packets: Vec<_> = packets.iter().map(|it| it.packet).collect();
    let Some(last) = packets.last() else {
        return;
    };
    let conditions = Conditions {
        // The radio is on the client's hop.
        up_bps: run.settings.up.rate_bps.map_or(1e9, |rate| rate as f64),
        down_bps: run.settings.down.rate_bps.map_or(1e9, |rate| rate as f64),
        sleep: Sleep::PowerSaving,
        release_assistance: false,
    };
    for (index, (_, radio)) in radios(run.link.split(',').next().unwrap_or_default())
        .into_iter()
        .enumerate()
    {
        let period_s = last.at_s.max(total_s) + 1e-3;
        let period = crate::energy::period(&radio, &packets, period_s, &conditions, 0.0);
        set(sample, &of_set("radio", index), period.joules);
    }
}

/// The name of an energy by a set of constants: the reference first, then the others; never one alone.
pub(super) fn of_set(name: &str, index: usize) -> String {
    match index {
        0 => format!("{name}_j"),
        1 => format!("{name}_other_j"),
        _ => format!("{name}_measured_j"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_counts_once_and_with_its_first_arrival() {
        let arrived = Measured {
            arrivals: vec![(1, 5_000, 9_000), (0, 1_000, 3_000), (1, 5_000, 8_000)],
            ..Measured::default()
        };
        assert_eq!(delays(&arrived), [0.002, 0.003]);
    }
}
