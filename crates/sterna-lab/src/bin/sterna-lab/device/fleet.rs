//! Many devices in one process: each has a client, a connection and a socket of its own.
//!
//! They share the process's thread, so its CPU time limits them; the lab looks at it. After each phase the
//! process says `finished`: all have connected; all messages are out; all are back after the broker was away.

#![allow(
    clippy::future_not_send,
    reason = "a device has one thread, and so have all of a fleet"
)]

use std::rc::Rc;
use std::time::Duration;

use sterna_lab::kernel::monotonic_ns;
use sterna_lab::measure::device::{Measured, Task, Word};
use tokio::task::{JoinSet, LocalSet};
use tokio::time::Instant;

use super::roles::Device;
use super::{Meter, Orders, look_at_path, note_lateness, say, text};

/// Interval of looks whether all are connected again.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Longest wait for that.
const RECOVERY_LIMIT: Duration = Duration::from_secs(300);

/// One device.
struct Member<D> {
    number: u32,
    device: D,
    started_ns: u64,
    connect_ns: u64,
    /// Lateness of its messages.
    late_ns: Vec<u64>,
}

/// Executes the task.
pub(super) async fn work<D: Device>(
    task: &Task,
    options: D::Options,
    mut orders: Orders,
) -> Result<Measured, String> {
    say(&Word::Ready)?;
    orders.go().await?;
    let course = course::<D>(Rc::new(task.clone()), options, orders);
    LocalSet::new().run_until(course).await
}

async fn course<D: Device>(
    task: Rc<Task>,
    options: D::Options,
    mut orders: Orders,
) -> Result<Measured, String> {
    let meter = Meter::start();
    let mut measured = Measured {
        first_ns: monotonic_ns(),
        ..Measured::default()
    };
    let start = Instant::now();
    let mut joining = JoinSet::new();
    for number in 0..task.connections {
        let due = start + share(task.spread_ns, number, task.connections);
        joining.spawn_local(connect::<D>(number, due, options.clone()));
    }
    let members = all(joining).await?;
    for member in &members {
        measured.started_ns.push(member.started_ns);
        measured.connect_ns.push(member.connect_ns);
    }
    say(&Word::Finished)?;
    orders.go().await?;

    let start = Instant::now();
    let mut joining = JoinSet::new();
    for member in members {
        joining.spawn_local(publish(Rc::clone(&task), start, member));
    }
    let mut members = all(joining).await?;
    measured.last_ns = monotonic_ns();
    meter.read(&mut measured);
    let late_ns = members
        .iter_mut()
        .flat_map(|member| std::mem::take(&mut member.late_ns));
    note_lateness(late_ns.collect(), &mut measured);
    let mut is_first = true;
    for member in &mut members {
        let path = member.device.path().await;
        // The kernel's connections are all alike, and looking at one takes a look at all.
        if is_first || path.is_some() {
            look_at_path(path, &mut measured);
        }
        is_first = false;
    }
    say(&Word::Finished)?;

    if orders.go().await.is_ok() {
        recover(&members, monotonic_ns(), &mut measured).await?;
        say(&Word::Finished)?;
        orders.end().await;
    }
    measured.reconnections = members
        .iter_mut()
        .map(|member| member.device.reconnections())
        .sum();
    // The broker ends, too; the end of these connections is not measured.
    Ok(measured)
}

/// Part of a time: the share of one of several that have turns in it.
fn share(time_ns: u64, number: u32, of: u32) -> Duration {
    Duration::from_nanos(time_ns) * number / of.max(1)
}

async fn connect<D: Device>(
    number: u32,
    due: Instant,
    options: D::Options,
) -> Result<Member<D>, String> {
    let failed = |error: String| format!("device {number}: {error}");
    tokio::time::sleep_until(due).await;
    let started_ns = monotonic_ns();
    let mut device = D::start(options).map_err(failed)?;
    device.connected().await.map_err(failed)?;
    let connect_ns = monotonic_ns() - started_ns;
    device.only_send();
    Ok(Member {
        number,
        device,
        started_ns,
        connect_ns,
        late_ns: Vec::new(),
    })
}

/// Publishes one device's messages. Devices have their turns in each interval.
async fn publish<D: Device>(
    task: Rc<Task>,
    start: Instant,
    mut member: Member<D>,
) -> Result<Member<D>, String> {
    let place = member.number;
    let failed = |error: String| format!("device {place}: {error}");
    let first = start + share(task.interval_ns, place, task.connections);
    let interval = Duration::from_nanos(task.interval_ns);
    let mut under_way = Vec::with_capacity(task.messages as usize);
    for index in 0..task.messages {
        let due = first + interval * index;
        tokio::time::sleep_until(due).await;
        if task.interval_ns > 0 {
            member.late_ns.push(due.elapsed().as_nanos() as u64);
        }
        let number = place * task.messages + index;
        let (sending, _) = member.device.send(&task, number).await.map_err(failed)?;
        under_way.push((number, sending));
    }
    for (number, sending) in under_way {
        D::settle(number, sending).await.map_err(failed)?;
    }
    Ok(member)
}

/// Waits until all have connected again since a moment.
async fn recover<D: Device>(
    members: &[Member<D>],
    since_ns: u64,
    measured: &mut Measured,
) -> Result<(), String> {
    let began = Instant::now();
    loop {
        measured.reconnected_ns = members
            .iter()
            .map(|member| member.device.last_connected_ns())
            .filter(|moment| *moment > since_ns)
            .collect();
        let missing = members.len() - measured.reconnected_ns.len();
        if missing == 0 {
            return Ok(());
        }
        if began.elapsed() > RECOVERY_LIMIT {
            return Err(format!(
                "{missing} of {} devices were not connected again after {} s",
                members.len(),
                RECOVERY_LIMIT.as_secs()
            ));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// The results of all, by their numbers.
async fn all<D: Device>(
    mut joining: JoinSet<Result<Member<D>, String>>,
) -> Result<Vec<Member<D>>, String> {
    let mut members = Vec::with_capacity(joining.len());
    while let Some(joined) = joining.join_next().await {
        members.push(joined.map_err(text)??);
    }
    members.sort_by_key(|member| member.number);
    Ok(members)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_fill_a_time_evenly() {
        let turns: Vec<u128> = (0..4).map(|n| share(1_000, n, 4).as_nanos()).collect();
        assert_eq!(turns, [0, 250, 500, 750]);
        assert_eq!(share(0, 3, 4), Duration::ZERO);
    }
}
