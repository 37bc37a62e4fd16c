//! The measurements and their goals.

/// Transport of the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Transport {
    Tcp,
    Tls,
    Quic,
    WebSocket,
}

impl Transport {
    pub(super) const ALL: [Self; 4] = [Self::Tcp, Self::Tls, Self::Quic, Self::WebSocket];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Tls => "TLS",
            Self::Quic => "QUIC",
            Self::WebSocket => "WS",
        }
    }

    /// The transport that a URL names.
    pub(super) fn of(url: &str) -> Option<Self> {
        match url.split_once("://")?.0 {
            "mqtt" | "tcp" => Some(Self::Tcp),
            "mqtts" | "tls" | "ssl" => Some(Self::Tls),
            "mqtt+quic" | "quic" => Some(Self::Quic),
            "ws" | "mqtt+ws" => Some(Self::WebSocket),
            _ => None,
        }
    }

    const fn index(self) -> usize {
        match self {
            Self::Tcp => 0,
            Self::Tls => 1,
            Self::Quic => 2,
            Self::WebSocket => 3,
        }
    }
}

/// A figure of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Figure {
    /// Broker CPU, microseconds for each delivery or connect.
    Cpu,
    /// Broker memory, bytes for each connection.
    Bytes,
}

impl Figure {
    /// Where `sterna-lab bench --json` says it.
    pub(super) const fn key(self) -> &'static str {
        match self {
            Self::Cpu => "broker_cpu_us",
            Self::Bytes => "bytes_held",
        }
    }

    pub(super) const fn unit(self) -> &'static str {
        match self {
            Self::Cpu => "us",
            Self::Bytes => "B",
        }
    }
}

/// One line of the table, on every transport.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cell {
    pub(super) name: &'static str,
    /// Subcommand and options of `sterna-lab bench`.
    pub(super) arguments: &'static [&'static str],
    pub(super) figure: Figure,
    /// Whether the length of the run can be chosen.
    pub(super) timed: bool,
    /// Transports on which the cell is measured in `quick`: TCP, TLS, QUIC, WebSocket.
    quick: [bool; 4],
    /// The release has to be this good (it fails otherwise): TCP, TLS, QUIC, WebSocket.
    goal: [Option<f64>; 4],
    /// Goals of the stack; they are shown, not required.
    aim: [Option<f64>; 4],
}

impl Cell {
    pub(super) fn quick_on(&self, transport: Transport) -> bool {
        self.quick[transport.index()]
    }

    pub(super) fn goal(&self, transport: Transport) -> Option<f64> {
        self.goal[transport.index()]
    }

    pub(super) fn aim(&self, transport: Transport) -> Option<f64> {
        self.aim[transport.index()]
    }
}

const EVERYWHERE: [bool; 4] = [true; 4];
const NOT_WEBSOCKET: [bool; 4] = [true, true, true, false];
const NOWHERE: [bool; 4] = [false; 4];
const NO_GOAL: [Option<f64>; 4] = [None; 4];

const fn three(tcp: f64, tls: f64, quic: f64) -> [Option<f64>; 4] {
    [Some(tcp), Some(tls), Some(quic), None]
}

const fn flow(name: &'static str, arguments: &'static [&'static str]) -> Cell {
    Cell {
        name,
        arguments,
        figure: Figure::Cpu,
        timed: true,
        quick: NOT_WEBSOCKET,
        goal: NO_GOAL,
        aim: NO_GOAL,
    }
}

/// The idle cell comes first on a new broker, because memory that a broker has had once it often
/// keeps.
pub(super) const CELLS: [Cell; 19] = [
    Cell {
        figure: Figure::Bytes,
        timed: false,
        quick: EVERYWHERE,
        goal: [None, None, Some(24.0 * 1024.0), None],
        aim: three(1024.0, 7.0 * 1024.0, 16.0 * 1024.0),
        ..flow(
            "idle connection, 1,000",
            &["idle", "-n", "1000", "--hold", "0.5"],
        )
    },
    Cell {
        timed: false,
        quick: EVERYWHERE,
        aim: three(16.7, 133.0, 250.0),
        ..flow("connect, full handshake", &["connect", "-n", "1000"])
    },
    Cell {
        timed: false,
        quick: NOWHERE,
        ..flow(
            "connect, full handshake, with a will",
            &["connect", "-n", "1000", "--will", "32"],
        )
    },
    Cell {
        timed: false,
        quick: NOWHERE,
        aim: [None, Some(40.0), Some(67.0), None],
        ..flow("connect, resumed", &["connect", "-n", "1000", "--resume"])
    },
    Cell {
        quick: EVERYWHERE,
        goal: three(1.0, 1.2, 1.8),
        aim: three(0.5, 0.6, 1.1),
        ..flow("QoS 0, window 16", &["pairs", "-q", "0"])
    },
    Cell {
        aim: three(0.75, 1.0, 1.45),
        ..flow("QoS 1, window 16", &["pairs", "-q", "1"])
    },
    Cell {
        aim: three(1.25, 1.8, 2.5),
        ..flow("QoS 2, window 16", &["pairs", "-q", "2"])
    },
    Cell {
        aim: three(3.5, 4.5, 7.5),
        ..flow("QoS 0, window 1", &["pairs", "-w", "1"])
    },
    Cell {
        quick: EVERYWHERE,
        aim: three(7.0, 9.0, 16.0),
        ..flow("QoS 0 alone, 10,000/s", &["rate", "-r", "10000"])
    },
    Cell {
        quick: NOWHERE,
        ..flow("QoS 1 alone, 10,000/s", &["rate", "-r", "10000", "-q", "1"])
    },
    Cell {
        aim: three(0.9, 1.2, 3.5),
        ..flow("QoS 0, window 16, 1 KiB", &["pairs", "--payload", "1024"])
    },
    Cell {
        quick: NOWHERE,
        ..flow(
            "QoS 1, window 16, 1 KiB",
            &["pairs", "--payload", "1024", "-q", "1"],
        )
    },
    Cell {
        quick: NOWHERE,
        ..flow("QoS 0, window 16, 16 KiB", &["pairs", "--payload", "16384"])
    },
    Cell {
        quick: NOWHERE,
        ..flow("QoS 0, window 16, MQTT 5", &["pairs", "-V", "5"])
    },
    Cell {
        aim: three(1.0, 1.8, 6.0),
        ..flow("fan-out 1:1,000, QoS 0", &["fan-out", "-n", "1000"])
    },
    Cell {
        quick: NOWHERE,
        ..flow(
            "fan-out 1:1,000, QoS 0, window 1",
            &["fan-out", "-n", "1000", "-w", "1"],
        )
    },
    Cell {
        quick: NOWHERE,
        ..flow(
            "fan-out 1:1,000, QoS 1",
            &["fan-out", "-n", "1000", "-q", "1"],
        )
    },
    Cell {
        quick: NOWHERE,
        ..flow("fan-in 50:1, QoS 0", &["fan-in", "-n", "50"])
    },
    Cell {
        quick: NOWHERE,
        ..flow("fan-in 50:1, QoS 1", &["fan-in", "-n", "50", "-q", "1"])
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_transports() {
        assert_eq!(Transport::of("mqtt+quic://h:1"), Some(Transport::Quic));
        assert_eq!(Transport::of("mqtts://h"), Some(Transport::Tls));
        assert_eq!(Transport::of("http://h"), None);
        assert_eq!(Transport::of("h:1883"), None);
    }

    #[test]
    fn goals_stand_where_the_release_needs_them() {
        let cell = CELLS
            .iter()
            .find(|cell| cell.name == "QoS 0, window 16")
            .unwrap();
        assert_eq!(cell.goal(Transport::Tcp), Some(1.0));
        assert_eq!(cell.goal(Transport::Tls), Some(1.2));
        assert_eq!(cell.goal(Transport::Quic), Some(1.8));
        assert_eq!(CELLS[0].goal(Transport::Quic), Some(24_576.0));
        let quick = CELLS.iter().flat_map(|cell| {
            Transport::ALL
                .into_iter()
                .filter(|transport| cell.quick_on(*transport))
        });
        // About 1.7 s each, three times: within three minutes.
        assert!(quick.count() <= 32);
    }
}
