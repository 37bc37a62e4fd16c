//! Options that describe a link.

use std::fmt::Write as _;

use clap::ValueEnum;
use sterna_lab::link::{
    Down, Jitter, LinkSettings, Loss, LossAt, PipeSettings, Queue, Reorder, Schedule, Trace,
};
use sterna_lab::profile::{Overrides, PROFILES, Profile};
use sterna_lab::quantity::{self, PerDirection, per_direction};

/// The seed, where none is given.
const DEFAULT_SEED: u64 = 1;

/// Options that describe a link.
#[derive(clap::Args, Clone, Debug)]
pub(super) struct LinkArgs {
    /// A named link to start from; `sterna-lab profiles` lists them. Several with commas between them are
    /// hops, that of the command first, which the other options change
    #[arg(
        long,
        value_name = "NAME",
        default_value = "ideal",
        help_heading = "Link"
    )]
    pub(super) profile: String,
    /// Round trip without load, half of it in each direction: 25ms, 2s
    #[arg(long, value_name = "TIME", value_parser = quantity::time_ns, help_heading = "Link")]
    rtt: Option<u64>,
    /// One-way delay
    #[arg(long, value_name = "TIME", value_parser = times, conflicts_with = "rtt", help_heading = "Link")]
    delay: Option<PerDirection<u64>>,
    /// Variation of the delay: 5ms (uniform, plus and minus), normal:5ms, pareto:5ms, none
    #[arg(long, value_name = "TIME", value_parser = jitters, help_heading = "Link")]
    jitter: Option<PerDirection<Jitter>>,
    /// Let jitter reorder packets, as netem does; otherwise it keeps their order
    #[arg(long, help_heading = "Link")]
    jitter_reorders: bool,
    /// Bits per second: 159kbit, 20Mbit, unlimited
    #[arg(long, value_name = "RATE", value_parser = rates, help_heading = "Link")]
    rate: Option<PerDirection<Option<u64>>>,
    /// Delivery trace in Mahimahi's format for the way up, instead of a rate
    #[arg(long, value_name = "FILE", value_parser = trace, conflicts_with = "rate", help_heading = "Link")]
    trace_up: Option<Trace>,
    /// The same for the way down
    #[arg(long, value_name = "FILE", value_parser = trace, conflicts_with = "rate", help_heading = "Link")]
    trace_down: Option<Trace>,
    /// Room for packets that wait for the transmitter: 100p (packets), 64kB, 1bdp (rate times round
    /// trip)
    #[arg(long, value_name = "SIZE", value_parser = queues, help_heading = "Link")]
    queue: Option<PerDirection<Queue>>,
    /// Losses: 2%, burst:0.1%x5, repeat:0001, once:0110 (a pattern, 1 is lost), none, or ge:1%,25%. The
    /// last is Gilbert-Elliott: good to bad, bad to good[, loss in good, in bad]
    #[arg(long, value_name = "LOSS", value_parser = losses, help_heading = "Link")]
    loss: Option<PerDirection<Loss>>,
    /// Lose packets before the queue, as netem does, or behind the transmitter, as on the air
    #[arg(long, value_name = "WHERE", help_heading = "Link")]
    loss_at: Option<Where>,
    /// Probability that a packet arrives twice
    #[arg(long, value_name = "PART", value_parser = parts, help_heading = "Link")]
    duplicate: Option<PerDirection<f64>>,
    /// Probability that a bit of a packet is changed
    #[arg(long, value_name = "PART", value_parser = parts, help_heading = "Link")]
    corrupt: Option<PerDirection<f64>>,
    /// Packets that come later than those behind them: 1%:20ms
    #[arg(long, value_name = "PART:TIME", value_parser = reorders, help_heading = "Link")]
    reorder: Option<PerDirection<Reorder>>,
    /// When the link is down, since its start: 10s-12s,30s-31s, or 10s-12s every 60s
    #[arg(long, value_name = "TIMES", value_parser = quantity::schedule, help_heading = "Link")]
    down: Option<Schedule>,
    /// While the link is down, keep packets in the queue instead of dropping them
    #[arg(long, requires = "down", help_heading = "Link")]
    hold: bool,
    /// Longest packet, in bytes
    #[arg(long, value_name = "BYTES", help_heading = "Link")]
    mtu: Option<u32>,
    /// Bytes of each packet on the link beyond its own
    #[arg(long, value_name = "BYTES", help_heading = "Link")]
    overhead: Option<u32>,
    /// A further hop, in the order from the command to the server; may be repeated. It is a profile, and
    /// options of this section without their dashes: 'satellite loss=2% queue=100p'
    #[arg(long, value_name = "HOP", value_parser = hop, help_heading = "Link")]
    hop: Vec<LinkSettings>,
    /// Where all decisions come from: the same seed, the same losses
    #[arg(long, value_name = "N", default_value_t = DEFAULT_SEED, help_heading = "Link")]
    pub(super) seed: u64,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Where {
    Entry,
    Exit,
}

fn times(text: &str) -> Result<PerDirection<u64>, String> {
    per_direction(text, quantity::time_ns)
}

fn jitters(text: &str) -> Result<PerDirection<Jitter>, String> {
    per_direction(text, quantity::jitter)
}

fn rates(text: &str) -> Result<PerDirection<Option<u64>>, String> {
    per_direction(text, quantity::rate_bps)
}

fn trace(path: &str) -> Result<Trace, String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    Trace::parse(&text)
}

fn queues(text: &str) -> Result<PerDirection<Queue>, String> {
    per_direction(text, quantity::queue)
}

fn losses(text: &str) -> Result<PerDirection<Loss>, String> {
    per_direction(text, quantity::loss)
}

fn parts(text: &str) -> Result<PerDirection<f64>, String> {
    per_direction(text, quantity::probability)
}

fn reorders(text: &str) -> Result<PerDirection<Reorder>, String> {
    per_direction(text, quantity::reorder)
}

/// A hop, in the words of the options that describe a link.
fn hop(text: &str) -> Result<LinkSettings, String> {
    #[derive(clap::Parser)]
    #[command(no_binary_name = true, disable_help_flag = true)]
    struct Line {
        #[command(flatten)]
        link: LinkArgs,
    }
    let mut words = text.split_ascii_whitespace();
    let profile = words.next().ok_or("a hop has a profile")?;
    let options = words.map(|word| format!("--{word}"));
    let line = std::iter::once(format!("--profile={profile}")).chain(options);
    let line = <Line as clap::Parser>::try_parse_from(line).map_err(|error| {
        let text = error.render().to_string();
        let first = text.lines().next().unwrap_or_default();
        first.trim_start_matches("error: ").to_owned()
    })?;
    if line.link.seed != DEFAULT_SEED {
        return Err("the seed is that of the whole link".into());
    }
    line.link.settings()
}

impl LinkArgs {
    /// Whether anything describes a link.
    pub(super) fn is_given(&self) -> bool {
        self.settings()
            .is_ok_and(|settings| settings != LinkSettings::default())
    }

    /// The link that is meant.
    pub(super) fn settings(&self) -> Result<LinkSettings, String> {
        let mut settings = Profile::link(&self.profile)?;
        let overrides = Overrides {
            rtt_ns: self.rtt,
            delay_ns: self.delay,
            rate_bps: self.rate,
            loss: self.loss.clone(),
            loss_at: self.loss_at.map(|place| match place {
                Where::Entry => LossAt::Entry,
                Where::Exit => LossAt::Exit,
            }),
            jitter: self.jitter,
            jitter_reorders: self.jitter_reorders.then_some(true),
            queue: self.queue,
            duplicate: self.duplicate,
            corrupt: self.corrupt,
            reorder: self.reorder,
            mtu_bytes: self.mtu,
            overhead_bytes: self.overhead,
            schedule: self.down.clone().map(|schedule| Schedule {
                when_down: if self.hold { Down::Hold } else { Down::Drop },
                ..schedule
            }),
        };
        overrides.apply(&mut settings);
        for (pipe, trace) in [
            (&mut settings.up, &self.trace_up),
            (&mut settings.down, &self.trace_down),
        ] {
            if let Some(trace) = trace {
                pipe.rate_bps = None;
                pipe.trace = Some(trace.clone());
            }
        }
        for hop in &self.hop {
            settings = settings.followed_by(hop.clone());
        }
        settings.validate().map_err(|error| error.to_string())?;
        Ok(settings)
    }
}

/// A line for each direction of each hop.
pub(super) fn describe_link(link: &LinkSettings) -> String {
    let mut text = String::new();
    let hops = link.hops().enumerate();
    for (number, hop) in hops {
        let name = if link.behind.is_empty() {
            String::new()
        } else {
            format!("hop {} ", number + 1)
        };
        // Writing to a String does not fail.
        let _ = write!(
            text,
            "  {name}up    {}\n  {name}down  {}\n",
            describe(&hop.up),
            describe(&hop.down)
        );
    }
    text
}

/// One direction in a few words.
pub(super) fn describe(pipe: &PipeSettings) -> String {
    let mut text = format!(
        "{}, {}",
        pipe.trace.as_ref().map_or_else(
            || quantity::show_rate(pipe.rate_bps),
            |trace| format!(
                "trace of {} in the mean",
                quantity::show_rate(Some(trace.mean_bps()))
            )
        ),
        quantity::show_time_ns(pipe.delay_ns)
    );
    let width = quantity::show_time_ns(pipe.jitter.width_ns());
    // Writing to a String does not fail.
    let _ = match pipe.jitter {
        Jitter::None => Ok(()),
        Jitter::Uniform { .. } => write!(text, " +-{width}"),
        Jitter::Normal { .. } => write!(text, ", jitter normal {width}"),
        Jitter::Pareto { .. } => write!(text, ", jitter pareto {width}"),
    };
    if pipe.loss != Loss::None {
        let _ = write!(text, ", loss {:.2} %", pipe.loss.expected() * 100.0);
    }
    if pipe.rate_bps.is_some() || pipe.trace.is_some() {
        let _ = match pipe.queue {
            Queue::Bytes(bytes) => write!(text, ", queue {bytes} bytes"),
            Queue::Packets(packets) => write!(text, ", queue {packets} packets"),
            Queue::Bdp(multiple) => write!(text, ", queue {multiple} BDP"),
        };
    }
    text
}

/// All profiles for people.
pub(super) fn list_profiles() -> String {
    let mut text = String::new();
    for profile in &PROFILES {
        let settings = profile.settings();
        let _ = write!(
            text,
            "{}\n    {}\n    up    {}\n    down  {}\n    from  {}\n",
            profile.name,
            profile.title,
            describe(&settings.up),
            describe(&settings.down),
            profile.source
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        link: LinkArgs,
    }

    fn settings(line: &str) -> Result<LinkSettings, String> {
        let words = std::iter::once("x").chain(line.split_ascii_whitespace());
        Line::try_parse_from(words)
            .map_err(|error| error.to_string())?
            .link
            .settings()
    }

    #[test]
    fn options_change_a_profile() {
        let link = settings("--profile nb-iot --loss 2%/none --rtt 500ms --queue 10p").unwrap();
        assert_eq!(link.up.loss, Loss::Independent { probability: 0.02 });
        assert_eq!(link.down.loss, Loss::None);
        assert_eq!(link.rtt_ns(), 500_000_000);
        assert_eq!(
            describe(&link.up),
            "159 kbit/s, 250 ms, loss 2.00 %, queue 10 packets"
        );
        let link = settings("--down 1s-2s --hold").unwrap();
        assert_eq!(link.up.schedule.when_down, Down::Hold);
        assert_eq!(link.down.schedule.down.len(), 1);
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "10\n20\n").unwrap();
        let path = file.path().display();
        let link = settings(&format!("--profile wifi --trace-up {path}")).unwrap();
        assert!(link.up.trace.is_some() && link.up.rate_bps.is_none());
        assert!(link.down.trace.is_none() && link.down.rate_bps.is_some());
        assert!(
            describe(&link.up).starts_with("trace of 1.2"),
            "{}",
            describe(&link.up)
        );
        std::fs::write(file.path(), "20\n10\n").unwrap();
        let error = settings(&format!("--trace-down {path}")).unwrap_err();
        assert!(error.contains("line 2"), "{error}");
        let link = settings("--rate 1M/unlimited --jitter normal:1ms --delay 5ms/0").unwrap();
        assert_eq!(link.up.rate_bps, Some(1_000_000));
        assert_eq!(describe(&link.down), "unlimited, 0 ns, jitter normal 1 ms");
    }

    #[test]
    fn hops_follow_in_the_order_of_the_options() {
        let settings_of = |arguments: &[&str]| {
            let words = std::iter::once(&"x").chain(arguments);
            Line::try_parse_from(words)
                .map_err(|error| error.to_string())?
                .link
                .settings()
        };
        let link = settings_of(&[
            "--profile=wifi,lte",
            "--loss=2%/none",
            "--hop",
            "satellite loss=1% rtt=300ms queue=10p",
        ])
        .unwrap();
        let losses: Vec<f64> = link.hops().map(|hop| hop.up.loss.expected()).collect();
        assert_eq!(losses, [0.02, 0.0, 0.01]);
        assert_eq!(link.rtt_ns(), 425_000_000);
        let text = describe_link(&link);
        assert!(text.contains("hop 3 down  1.5 Mbit/s, 150 ms, loss 1.00 %, queue 10 packets"));
        assert_eq!(text.lines().count(), 6);
        for (hop, word) in [
            ("moon", "moon"),
            ("", "profile"),
            ("wifi warp=9", "--warp"),
            ("wifi seed=2", "seed"),
            ("wifi loss=200%", "certain"),
        ] {
            let error = settings_of(&["--hop", hop]).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
        assert!(
            settings_of(&["--hop=wifi"; 8])
                .unwrap_err()
                .contains("8 hops")
        );
    }

    #[test]
    fn nonsense_is_explained() {
        assert!(settings("--profile x").unwrap_err().contains("nb-iot"));
        assert!(settings("--rate 5").unwrap_err().contains("1 kbit/s"));
        assert!(settings("--loss 200%").unwrap_err().contains("certain"));
        assert!(settings("--rtt 1s --delay 1s").is_err());
    }

    #[test]
    fn every_profile_is_listed_with_its_source() {
        let list = list_profiles();
        for profile in &PROFILES {
            assert!(list.contains(profile.name));
            assert!(list.contains(profile.source));
        }
    }
}
