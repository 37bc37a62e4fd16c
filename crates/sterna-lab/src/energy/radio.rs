//! A radio's states over a time line of packets, and the power of each.

use serde::Serialize;

use super::constants::SUPPLY_V;

/// A packet as the device's radio sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RadioPacket {
    /// When it begins, since the start of the time line, in seconds.
    pub at_s: f64,
    /// Bytes from the IP header on.
    pub bytes: u32,
    /// Whether the device sends it.
    pub is_sent: bool,
}

/// State of a radio.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Leaving sleep, and setting a connection up.
    Wake,
    /// Transmitting.
    Tx,
    /// Receiving.
    Rx,
    /// Listening for more after a packet; WiFi: idle.
    Listen,
    /// Connected, listening now and then (connected DRX).
    Connected,
    /// Released, listening for pages.
    Idle,
    /// Asleep: power saving mode, eDRX, or WiFi's sleep.
    Sleep,
}

impl State {
    /// A word for tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Wake => "wake",
            Self::Tx => "transmit",
            Self::Rx => "receive",
            Self::Listen => "listen",
            Self::Connected => "connected",
            Self::Idle => "idle",
            Self::Sleep => "sleep",
        }
    }
}

/// Time in one state.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Segment {
    /// The state.
    pub state: State,
    /// Duration in seconds.
    pub seconds: f64,
    /// Power in watts.
    pub watts: f64,
}

/// WiFi: power of the states at 3 V, and the airtime of 802.11a.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wifi {
    /// Transmitting.
    pub tx_a: f64,
    /// Receiving.
    pub rx_a: f64,
    /// Idle.
    pub idle_a: f64,
    /// Asleep.
    pub sleep_a: f64,
    /// Data bits of an OFDM symbol.
    pub data_bits_per_symbol: u32,
    /// When it goes to sleep after the last packet; never without.
    pub sleeps_after_s: Option<f64>,
}

/// LTE-M and NB-IoT: power of the states, and the timers between them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cellular {
    /// Transmitting.
    pub tx_w: f64,
    /// Receiving.
    pub rx_w: f64,
    /// Between two looks while connected or waiting for pages.
    pub light_sleep_w: f64,
    /// Power saving mode.
    pub deep_sleep_w: f64,
    /// Cost of leaving sleep, if it was measured as a whole; otherwise the set-up's messages.
    pub wake_j: Option<f64>,
    /// Mean while connected, where it was measured; otherwise from DRX.
    pub connected_w: Option<f64>,
    /// Listening after a packet before DRX begins.
    pub inactivity_s: f64,
    /// One look of connected DRX.
    pub drx_on_s: f64,
    /// From one look to the next.
    pub drx_cycle_s: f64,
    /// From the last packet until the network releases the connection.
    pub release_s: f64,
    /// The same when the device says that nothing follows (release assistance indication).
    pub release_assistance_s: f64,
    /// From the release to power saving mode (T3324).
    pub active_timer_s: f64,
    /// Set-up messages that the device sends.
    pub setup_up_bytes: u32,
    /// Set-up messages that it receives.
    pub setup_down_bytes: u32,
    /// The network's time meanwhile.
    pub setup_wait_s: f64,
}

/// A model of a radio.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Radio {
    /// WiFi.
    Wifi(Wifi),
    /// LTE-M and NB-IoT.
    Cellular(Cellular),
}

/// Sleep of a cellular device.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Sleep {
    /// Power saving mode: unreachable until it sends.
    PowerSaving,
    /// Extended discontinuous reception: it listens for pages once in a cycle.
    Edrx,
}

/// From one paging window of eDRX to the next: 81.92 s, one of the cycles of 3GPP TS 24.008, table
/// 10.5.5.32.
const EDRX_CYCLE_S: f64 = 81.92;
/// Length of a paging window, from the same table, and looks in it (DRX of 1.28 s).
const PAGING_WINDOW_S: f64 = 2.56;
const PAGING_LOOKS: f64 = 2.0;

/// Conditions outside of the model.
#[derive(Clone, Copy, Debug)]
pub struct Conditions {
    /// Rate of the uplink, in bits per second. WiFi has its own.
    pub up_bps: f64,
    /// Rate of the downlink.
    pub down_bps: f64,
    /// Sleep of a cellular device.
    pub sleep: Sleep,
    /// Whether it says with the last packet that nothing follows, so that it is released early.
    pub release_assistance: bool,
}

/// 802.11a: preamble and signal field, in seconds.
const PREAMBLE_S: f64 = 20e-6;
/// One OFDM symbol.
const SYMBOL_S: f64 = 4e-6;
/// Service and tail bits of a frame.
const SERVICE_BITS: u32 = 22;
/// MAC header, LLC header and checksum, in bytes.
const MAC_BYTES: u32 = 36;
/// The pause before an acknowledgement, and the acknowledgement itself at 24 Mbit/s.
const SIFS_S: f64 = 16e-6;
const ACK_S: f64 = 28e-6;

impl Wifi {
    /// Time on the air of a frame with this packet.
    #[must_use]
    pub fn airtime_s(&self, bytes: u32) -> f64 {
        let bits = SERVICE_BITS + 8 * (bytes + MAC_BYTES);
        f64::from(bits.div_ceil(self.data_bits_per_symbol)).mul_add(SYMBOL_S, PREAMBLE_S)
    }
}

impl Radio {
    /// The radio's states in a period that repeats for ever. Packets must be in order and within
    /// it. The segments fill the period, unless the packets take longer than it lasts.
    #[must_use]
    pub fn cycle(
        &self,
        packets: &[RadioPacket],
        period_s: f64,
        conditions: &Conditions,
    ) -> Vec<Segment> {
        let mut segments = Vec::new();
        if packets.is_empty() {
            segments.push(Segment {
                state: State::Sleep,
                seconds: period_s,
                watts: self.asleep_w(conditions),
            });
            return segments;
        }
        // The period repeats, so lateness at its end is lateness at its start.
        let late_s = self.course(packets, period_s, conditions, 0.0, &mut segments);
        if late_s > 0.0 {
            segments.clear();
            self.course(packets, period_s, conditions, late_s, &mut segments);
        }
        segments
    }

    /// One period that begins late by some seconds: packets and waking up take their time from the pauses
    /// behind them. Returns how late it ends.
    fn course(
        &self,
        packets: &[RadioPacket],
        period_s: f64,
        conditions: &Conditions,
        mut late_s: f64,
        out: &mut Vec<Segment>,
    ) -> f64 {
        for (index, packet) in packets.iter().enumerate() {
            let begin = out.len();
            self.transfer(packet, conditions, out);
            let taken_s: f64 = out[begin..].iter().map(|s| s.seconds).sum();
            let next_s = packets
                .get(index + 1)
                .map_or(packets[0].at_s + period_s, |next| next.at_s);
            let gap_s = next_s - packet.at_s - taken_s - late_s;
            let begin = out.len();
            // Only with the last packet may it say that nothing follows.
            let is_released_early = conditions.release_assistance && index + 1 == packets.len();
            self.wait(gap_s.max(0.0), conditions, is_released_early, out);
            let waited_s: f64 = out[begin..].iter().map(|s| s.seconds).sum();
            late_s = (waited_s - gap_s).max(0.0);
        }
        late_s
    }

    /// One packet on the air.
    fn transfer(&self, packet: &RadioPacket, conditions: &Conditions, out: &mut Vec<Segment>) {
        let mut add = |state, seconds, watts| {
            out.push(Segment {
                state,
                seconds,
                watts,
            });
        };
        match self {
            Self::Wifi(wifi) => {
                let frame_s = wifi.airtime_s(packet.bytes);
                let (tx_w, rx_w) = (wifi.tx_a * SUPPLY_V, wifi.rx_a * SUPPLY_V);
                let (tx_s, rx_s) = if packet.is_sent {
                    (frame_s, ACK_S)
                } else {
                    (ACK_S, frame_s)
                };
                add(State::Tx, tx_s, tx_w);
                add(State::Rx, rx_s, rx_w);
                add(State::Listen, SIFS_S, wifi.idle_a * SUPPLY_V);
            }
            Self::Cellular(cellular) => {
                let bits = f64::from(packet.bytes) * 8.0;
                if packet.is_sent {
                    add(State::Tx, bits / conditions.up_bps, cellular.tx_w);
                } else {
                    add(State::Rx, bits / conditions.down_bps, cellular.rx_w);
                }
            }
        }
    }

    /// A time without packets, up to the next one, and the wake-up for that one.
    fn wait(
        &self,
        gap_s: f64,
        conditions: &Conditions,
        is_released_early: bool,
        out: &mut Vec<Segment>,
    ) {
        let mut left_s = gap_s;
        let mut spend = |state, limit_s: f64, watts, out: &mut Vec<Segment>| {
            let seconds = left_s.min(limit_s);
            if seconds > 0.0 {
                out.push(Segment {
                    state,
                    seconds,
                    watts,
                });
            }
            left_s -= seconds;
            left_s > 0.0
        };
        match self {
            Self::Wifi(wifi) => {
                let awake_s = wifi.sleeps_after_s.unwrap_or(f64::INFINITY);
                if spend(State::Listen, awake_s, wifi.idle_a * SUPPLY_V, out) {
                    spend(State::Sleep, f64::INFINITY, wifi.sleep_a * SUPPLY_V, out);
                }
            }
            Self::Cellular(cellular) => {
                let release_s = if is_released_early {
                    cellular.release_assistance_s
                } else {
                    cellular.release_s
                };
                let listen_s = cellular.inactivity_s.min(release_s);
                let listen_w = cellular.connected_w.unwrap_or(cellular.rx_w);
                let drx_w = cellular.connected_w.unwrap_or_else(|| cellular.drx_w());
                if spend(State::Listen, listen_s, listen_w, out)
                    && spend(State::Connected, release_s - listen_s, drx_w, out)
                {
                    // Setting the connection up begins before the next packet is due.
                    let wake = cellular.wake(conditions);
                    let idle_s = (gap_s - release_s - wake.seconds).max(0.0);
                    let active_s = cellular.active_timer_s.min(idle_s);
                    spend(State::Idle, active_s, cellular.drx_w(), out);
                    let watts = self.asleep_w(conditions);
                    spend(State::Sleep, idle_s - active_s, watts, out);
                    out.push(wake);
                }
            }
        }
    }

    fn asleep_w(&self, conditions: &Conditions) -> f64 {
        match self {
            Self::Wifi(wifi) => match wifi.sleeps_after_s {
                Some(_) => wifi.sleep_a * SUPPLY_V,
                None => wifi.idle_a * SUPPLY_V,
            },
            Self::Cellular(cellular) => match conditions.sleep {
                Sleep::PowerSaving => cellular.deep_sleep_w,
                Sleep::Edrx => {
                    let looks_j = PAGING_LOOKS * cellular.drx_on_s * cellular.rx_w;
                    let window_j = PAGING_WINDOW_S.mul_add(cellular.light_sleep_w, looks_j);
                    cellular.deep_sleep_w + window_j / EDRX_CYCLE_S
                }
            },
        }
    }
}

impl Cellular {
    /// The mean of looking now and then.
    fn drx_w(&self) -> f64 {
        self.rx_w
            .mul_add(self.drx_on_s / self.drx_cycle_s, self.light_sleep_w)
    }

    /// Setting a connection up.
    fn wake(&self, conditions: &Conditions) -> Segment {
        let up_s = f64::from(self.setup_up_bytes) * 8.0 / conditions.up_bps;
        let down_s = f64::from(self.setup_down_bytes) * 8.0 / conditions.down_bps;
        let seconds = up_s + down_s + self.setup_wait_s;
        let energy_j = self
            .wake_j
            .unwrap_or_else(|| up_s.mul_add(self.tx_w, (down_s + self.setup_wait_s) * self.rx_w));
        Segment {
            state: State::Wake,
            seconds,
            watts: energy_j / seconds,
        }
    }
}
