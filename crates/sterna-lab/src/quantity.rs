//! Rates, times, sizes and losses as people write them.
//!
//! | what | examples |
//! |---|---|
//! | rate | `8kbit`, `1.5Mbit`, `1G`, `unlimited` |
//! | time | `25ms`, `2s`, `500us`, `10min`, `0` |
//! | probability | `2%`, `0.02` |
//! | bytes | `1500`, `62.5kB`, `64KiB` |
//! | queue | `1000p` packets, `62.5kB` bytes, `1bdp` times rate and round trip |
//! | jitter | `5ms` or `uniform:5ms`, `normal:5ms`, `pareto:5ms`, `none` |
//! | loss | `2%`, `ge:1%,25%` or `ge:1%,25%,0%,100%`, `burst:0.1%x5`, `repeat:0001`, `once:0110`, `none` |
//! | reordering | `1%:20ms` |
//! | down | `10s-12s,30s-31s`, `10s-12s every 60s` |
//! | both directions | `VALUE`, or `UP/DOWN` |

use crate::link::{Interval, Jitter, Loss, Queue, Reorder, Schedule};

/// A value for each direction.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PerDirection<T> {
    /// Client to server.
    pub up: T,
    /// Server to client.
    pub down: T,
}

/// Reads `VALUE` or `UP/DOWN`.
///
/// # Errors
///
/// A text for people.
pub fn per_direction<T: Clone>(
    text: &str,
    read: impl Fn(&str) -> Result<T, String>,
) -> Result<PerDirection<T>, String> {
    match text.split_once('/') {
        Some((up, down)) => Ok(PerDirection {
            up: read(up.trim())?,
            down: read(down.trim())?,
        }),
        None => read(text.trim()).map(|value| PerDirection {
            up: value.clone(),
            down: value,
        }),
    }
}

/// A number that is not negative, and the rest of the text.
fn number(text: &str) -> Result<(f64, &str), String> {
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let value = text[..end]
        .parse()
        .map_err(|_| format!("`{text}` does not begin with a number"))?;
    Ok((value, text[end..].trim()))
}

#[allow(
    clippy::cast_sign_loss,
    reason = "numbers are read without a sign, and the cast saturates"
)]
fn rounded(value: f64) -> u64 {
    value.round() as u64
}

/// Reads a rate in bits per second; nothing for `unlimited`.
///
/// # Errors
///
/// A text for people.
pub fn rate_bps(text: &str) -> Result<Option<u64>, String> {
    if matches!(text, "unlimited" | "none") {
        return Ok(None);
    }
    let (value, unit) = number(text)?;
    let lower = unit.to_ascii_lowercase();
    let factor = match lower.trim_end_matches("bit").trim_end_matches("bps") {
        "" => 1.0,
        "k" => 1e3,
        "m" => 1e6,
        "g" => 1e9,
        _ => {
            return Err(format!(
                "`{unit}` is not a unit of a rate: bit, kbit, Mbit, Gbit"
            ));
        }
    };
    Ok(Some(rounded(value * factor)))
}

/// Reads a time, in nanoseconds.
///
/// # Errors
///
/// A text for people.
pub fn time_ns(text: &str) -> Result<u64, String> {
    let (value, unit) = number(text)?;
    let factor = match unit {
        "" if value == 0.0 => 0.0,
        "" => return Err(format!("`{text}` has no unit: us, ms, s, min, h")),
        "ns" => 1.0,
        "us" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        "min" => 60e9,
        "h" => 3600e9,
        "d" => 86_400e9,
        _ => {
            return Err(format!(
                "`{unit}` is not a unit of time: us, ms, s, min, h, d"
            ));
        }
    };
    Ok(rounded(value * factor))
}

/// Reads a probability.
///
/// # Errors
///
/// A text for people.
pub fn probability(text: &str) -> Result<f64, String> {
    let (value, unit) = number(text)?;
    let value = match unit {
        "" => value,
        "%" => value / 100.0,
        _ => return Err(format!("`{text}` is not a probability: 2% or 0.02")),
    };
    if (0.0..=1.0).contains(&value) {
        Ok(value)
    } else {
        Err(format!("`{text}` is more than certain"))
    }
}

/// Reads a number of bytes.
///
/// # Errors
///
/// A text for people.
pub fn bytes(text: &str) -> Result<u64, String> {
    let (value, unit) = number(text)?;
    let factor = match unit {
        "" | "B" => 1.0,
        "kB" | "k" => 1e3,
        "MB" | "M" => 1e6,
        "KiB" => 1024.0,
        "MiB" => 1_048_576.0,
        _ => {
            return Err(format!(
                "`{unit}` is not a unit of bytes: B, kB, MB, KiB, MiB"
            ));
        }
    };
    Ok(rounded(value * factor))
}

/// Reads the limit of a queue.
///
/// # Errors
///
/// A text for people.
pub fn queue(text: &str) -> Result<Queue, String> {
    if text == "bdp" {
        return Ok(Queue::Bdp(1.0));
    }
    match number(text)? {
        (value, "bdp") => Ok(Queue::Bdp(value)),
        (value, "p" | "packets") => Ok(Queue::Packets(rounded(value))),
        _ => bytes(text).map(Queue::Bytes),
    }
}

/// Reads a jitter; a time alone is a uniform one.
///
/// # Errors
///
/// A text for people.
pub fn jitter(text: &str) -> Result<Jitter, String> {
    match text.split_once(':') {
        None if text == "none" => Ok(Jitter::None),
        None => time_ns(text).map(|plus_minus_ns| Jitter::Uniform { plus_minus_ns }),
        Some(("uniform", time)) => {
            time_ns(time).map(|plus_minus_ns| Jitter::Uniform { plus_minus_ns })
        }
        Some(("normal", time)) => time_ns(time).map(|deviation_ns| Jitter::Normal { deviation_ns }),
        Some(("pareto", time)) => time_ns(time).map(|mean_ns| Jitter::Pareto { mean_ns }),
        Some((kind, _)) => Err(format!(
            "`{kind}` is not a kind of jitter: uniform, normal, pareto"
        )),
    }
}

/// Reads a loss.
///
/// # Errors
///
/// A text for people.
pub fn loss(text: &str) -> Result<Loss, String> {
    let Some((kind, rest)) = text.split_once(':') else {
        return if text == "none" {
            Ok(Loss::None)
        } else {
            probability(text).map(independent)
        };
    };
    match kind {
        "ge" => {
            let values = rest
                .split(',')
                .map(|value| probability(value.trim()))
                .collect::<Result<Vec<f64>, _>>()?;
            let (to_bad, to_good, loss_good, loss_bad) = match values[..] {
                [to_bad, to_good] => (to_bad, to_good, 0.0, 1.0),
                [to_bad, to_good, loss_good, loss_bad] => (to_bad, to_good, loss_good, loss_bad),
                _ => return Err("ge: takes good->bad,bad->good[,loss in good,loss in bad]".into()),
            };
            Ok(Loss::GilbertElliott {
                to_bad,
                to_good,
                loss_good,
                loss_bad,
            })
        }
        "burst" => {
            let (start, packets) = rest
                .split_once('x')
                .ok_or("burst: takes PROBABILITYxPACKETS, for example 0.1%x5")?;
            Ok(Loss::Burst {
                probability: probability(start)?,
                packets: packets
                    .parse()
                    .map_err(|_| format!("`{packets}` is not a number of packets"))?,
            })
        }
        "repeat" | "once" => {
            let lost = rest
                .chars()
                .map(|c| match c {
                    '0' => Ok(false),
                    '1' => Ok(true),
                    _ => Err(format!("`{c}` in a pattern: 0 passes, 1 is lost")),
                })
                .collect::<Result<_, _>>()?;
            Ok(Loss::Pattern {
                lost,
                repeat: kind == "repeat",
            })
        }
        _ => Err(format!(
            "`{kind}` is not a kind of loss: ge, burst, repeat, once, or a probability"
        )),
    }
}

fn independent(probability: f64) -> Loss {
    if probability > 0.0 {
        Loss::Independent { probability }
    } else {
        Loss::None
    }
}

/// Reads a reordering: `PROBABILITY:TIME`.
///
/// # Errors
///
/// A text for people.
pub fn reorder(text: &str) -> Result<Reorder, String> {
    let (part, extra) = text
        .split_once(':')
        .ok_or("a reordering is PROBABILITY:TIME, for example 1%:20ms")?;
    Ok(Reorder {
        probability: probability(part)?,
        extra_ns: time_ns(extra)?,
    })
}

/// Reads when a link is down.
///
/// # Errors
///
/// A text for people.
pub fn schedule(text: &str) -> Result<Schedule, String> {
    let (intervals, period) = match text.split_once("every") {
        Some((intervals, period)) => (intervals, time_ns(period.trim())?),
        None => (text, 0),
    };
    let down = intervals
        .split(',')
        .map(|interval| {
            let (from, to) = interval
                .split_once('-')
                .ok_or("a time when the link is down is FROM-TO, for example 10s-12s")?;
            Ok(Interval {
                from_ns: time_ns(from.trim())?,
                to_ns: time_ns(to.trim())?,
            })
        })
        .collect::<Result<_, String>>()?;
    Ok(Schedule {
        down,
        period_ns: period,
        ..Schedule::default()
    })
}

/// A rate for people.
#[must_use]
pub fn show_rate(rate_bps: Option<u64>) -> String {
    let Some(rate) = rate_bps else {
        return "unlimited".into();
    };
    let rate = rate as f64;
    if rate >= 1e9 {
        format!("{} Gbit/s", short(rate / 1e9))
    } else if rate >= 1e6 {
        format!("{} Mbit/s", short(rate / 1e6))
    } else if rate >= 1e3 {
        format!("{} kbit/s", short(rate / 1e3))
    } else {
        format!("{} bit/s", short(rate))
    }
}

/// A time for people.
#[must_use]
pub fn show_time_ns(time_ns: u64) -> String {
    let time = time_ns as f64;
    if time_ns >= 1_000_000_000 {
        format!("{} s", short(time / 1e9))
    } else if time_ns >= 1_000_000 {
        format!("{} ms", short(time / 1e6))
    } else if time_ns >= 1_000 {
        format!("{} us", short(time / 1e3))
    } else {
        format!("{time_ns} ns")
    }
}

/// Three decimals at the most, and no zeros behind them.
fn short(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_write_is_understood() {
        for (text, wanted) in [
            ("8kbit", Some(8_000)),
            ("1.5Mbit", Some(1_500_000)),
            ("1G", Some(1_000_000_000)),
            ("159 kbps", Some(159_000)),
            ("9600", Some(9_600)),
            ("unlimited", None),
        ] {
            assert_eq!(rate_bps(text), Ok(wanted), "{text}");
        }
        for (text, wanted) in [
            ("0", 0),
            ("12.5ms", 12_500_000),
            ("2 s", 2_000_000_000),
            ("500us", 500_000),
            ("10min", 600_000_000_000),
        ] {
            assert_eq!(time_ns(text), Ok(wanted), "{text}");
        }
        assert_eq!(probability("2%"), Ok(0.02));
        assert_eq!(probability("0.5"), Ok(0.5));
        assert_eq!(queue("62.5kB"), Ok(Queue::Bytes(62_500)));
        assert_eq!(queue("1000p"), Ok(Queue::Packets(1000)));
        assert_eq!(queue("0.5bdp"), Ok(Queue::Bdp(0.5)));
        assert_eq!(
            jitter("5ms"),
            Ok(Jitter::Uniform {
                plus_minus_ns: 5_000_000
            })
        );
        assert_eq!(
            jitter("pareto:1ms"),
            Ok(Jitter::Pareto { mean_ns: 1_000_000 })
        );
        assert_eq!(loss("0%"), Ok(Loss::None));
        assert_eq!(
            loss("ge:1%,25%"),
            Ok(Loss::GilbertElliott {
                to_bad: 0.01,
                to_good: 0.25,
                loss_good: 0.0,
                loss_bad: 1.0
            })
        );
        assert_eq!(
            loss("burst:0.1%x5"),
            Ok(Loss::Burst {
                probability: 0.001,
                packets: 5
            })
        );
        assert_eq!(
            loss("once:01"),
            Ok(Loss::Pattern {
                lost: vec![false, true],
                repeat: false
            })
        );
        assert_eq!(reorder("1%:20ms").unwrap().extra_ns, 20_000_000);
        let schedule = schedule("10s-12s, 30s-31s every 60s").unwrap();
        assert_eq!(schedule.down.len(), 2);
        assert_eq!(schedule.period_ns, 60_000_000_000);
        assert_eq!(
            per_direction("159k/127k", rate_bps),
            Ok(PerDirection {
                up: Some(159_000),
                down: Some(127_000)
            })
        );
        assert_eq!(per_direction("1s", time_ns).unwrap().down, 1_000_000_000);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        assert!(rate_bps("fast").is_err());
        assert!(rate_bps("3 miles").is_err());
        assert!(time_ns("25").unwrap_err().contains("unit"));
        assert!(time_ns("-1s").is_err());
        assert!(probability("120%").is_err());
        assert!(bytes("1.2.3").is_err());
        assert!(queue("").is_err());
        assert!(jitter("gauss:1ms").is_err());
        assert!(loss("ge:1%").is_err());
        assert!(loss("once:012").is_err());
        assert!(loss("burst:1%").is_err());
        assert!(reorder("1%").is_err());
        assert!(schedule("10s").is_err());
    }

    #[test]
    fn what_people_read_is_short() {
        assert_eq!(show_rate(Some(1_500_000)), "1.5 Mbit/s");
        assert_eq!(show_rate(Some(159_000)), "159 kbit/s");
        assert_eq!(show_rate(None), "unlimited");
        assert_eq!(show_time_ns(12_500_000), "12.5 ms");
        assert_eq!(show_time_ns(0), "0 ns");
        assert_eq!(show_time_ns(2_000_000_000), "2 s");
    }
}
