//! `sterna top`: rates, clients and queues of a running broker, live.

mod model;
mod view;

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::backend::TestBackend;
use ratatui::{DefaultTerminal, Terminal};
use sterna_client::arguments::seconds;
use tokio::sync::mpsc::{Receiver, channel};

use super::admin::connection::{Admin, Connection};
use super::exit::{self, Failure};
use model::{Look, Picture, Sort};
use view::{Choice, Tab};

/// Size of the picture where there is no terminal, in characters.
const PLAIN_COLUMNS: u16 = 100;
/// Lines of it beside the entries of a list.
const PLAIN_LINES: u16 = 8;
/// Most entries of it.
const PLAIN_ENTRIES: u16 = 1_000;

/// Show rates, clients and queues of a running broker, live.
///
/// By the admin listener, with the role `viewer` (docs/admin.md). Without a terminal it prints one picture,
/// and ends.
#[derive(clap::Args, Debug)]
#[command(after_help = help())]
pub(crate) struct Args {
    #[command(flatten)]
    connection: Connection,
    /// Time between two looks at the broker
    #[arg(short = 'n', long, value_name = "SECONDS", default_value = "2", value_parser = seconds,
          help_heading = "Output")]
    interval: Duration,
    /// By what clients are sorted, the largest first
    #[arg(
        long,
        value_name = "BY",
        value_enum,
        default_value = "rtt",
        help_heading = "Output"
    )]
    sort: Sort,
    /// Most clients that each look reads
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1_000,
        help_heading = "Output"
    )]
    clients: usize,
    /// Print one picture, and end
    #[arg(long, help_heading = "Output")]
    once: bool,
}

fn help() -> String {
    format!(
        "\
Keys:
  r l q b m    sort clients by round trip, loss, queue, bytes, messages
  Tab          clients or queues
  up, down     scroll
  x, Ctrl-C    end

{}",
        exit::HELP
    )
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> ExitCode {
    exit::code(super::block_on(top(args)), false)
}

async fn top(args: &Args) -> Result<(), Failure> {
    let admin = args.connection.client()?;
    let interval = args.interval.max(Duration::from_millis(100));
    // A broker that cannot be reached is reported before the screen is cleared.
    let before = look(&admin, args.clients, args.sort).await?;
    let choice = Choice {
        tab: Tab::Clients,
        sort: args.sort,
        scroll: 0,
        place: admin.place().to_owned(),
        failure: None,
    };
    if args.once || !std::io::stdout().is_terminal() {
        tokio::time::sleep(interval).await;
        let now = look(&admin, args.clients, args.sort).await?;
        let text = plain(&Picture::new(&before, &now, choice.sort), &choice)?;
        let mut out = std::io::stdout().lock();
        let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        return written.map_err(|_| Failure::quiet());
    }
    let mut screen = Screen(ratatui::try_init().map_err(Failure::local)?);
    live(
        &mut screen.0,
        &admin,
        (args.clients, interval),
        before,
        choice,
    )
    .await
}

/// The terminal, which is as it was before when this is dropped.
struct Screen(DefaultTerminal);

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// One look at the broker.
async fn look(admin: &Admin, most: usize, sort: Sort) -> Result<Look, Failure> {
    let path = format!("/clients?sort={}", sort.parameter());
    let clients = admin.list(&path, most).await?;
    let queues = admin.list("/queues", most).await?;
    // Last, so that its time is that of the counts.
    let node = admin.get("/node").await?;
    Ok(Look {
        node,
        has_more: clients.has_more,
        clients: clients.items,
        queues: queues.items,
        unanswered: clients.unanswered,
    })
}

/// Looks and draws until the user ends it. A look that fails is told, and the next may succeed.
async fn live(
    terminal: &mut DefaultTerminal,
    admin: &Admin,
    (most, interval): (usize, Duration),
    before: Look,
    mut choice: Choice,
) -> Result<(), Failure> {
    let mut keys = keys();
    let (mut before, mut now) = (before.clone(), before);
    let mut next = tokio::time::interval(interval);
    next.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    next.tick().await;
    loop {
        let picture = Picture::new(&before, &now, choice.sort);
        let drawn = terminal.draw(|frame| view::draw(frame, &picture, &choice));
        drawn.map_err(Failure::local)?;
        tokio::select! {
            key = keys.recv() => match key {
                Some(code) => {
                    let most = picture.clients.len().max(picture.queues.len());
                    if !obey(code, &mut choice, most) {
                        return Ok(());
                    }
                }
                None => return Ok(()),
            },
            _ = next.tick() => match look(admin, most, choice.sort).await {
                Ok(new) => {
                    before = std::mem::replace(&mut now, new);
                    choice.failure = None;
                }
                Err(failure) => choice.failure = Some(failure.text),
            },
        }
    }
}

/// Does what a key asks for; false where it is the end. A list has `most` entries at most.
fn obey(code: KeyCode, choice: &mut Choice, most: usize) -> bool {
    match code {
        KeyCode::Char('x') | KeyCode::Esc => return false,
        KeyCode::Char('r') => choice.sort = Sort::Rtt,
        KeyCode::Char('l') => choice.sort = Sort::Loss,
        KeyCode::Char('q') => choice.sort = Sort::Queue,
        KeyCode::Char('b') => choice.sort = Sort::Bytes,
        KeyCode::Char('m') => choice.sort = Sort::Messages,
        KeyCode::Tab => {
            choice.scroll = 0;
            choice.tab = match choice.tab {
                Tab::Clients => Tab::Queues,
                Tab::Queues => Tab::Clients,
            };
        }
        KeyCode::Down => choice.scroll = (choice.scroll + 1).min(most.saturating_sub(1)),
        KeyCode::Up => choice.scroll = choice.scroll.saturating_sub(1),
        _ => {}
    }
    true
}

/// The keys that are pressed; Ctrl-C comes as Escape.
fn keys() -> Receiver<KeyCode> {
    let (sender, receiver) = channel(16);
    std::thread::spawn(move || {
        while let Ok(event) = event::read() {
            let Event::Key(key) = event else {
                continue;
            };
            if key.kind != KeyEventKind::Press {
                continue;
            }
            let is_end =
                key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c');
            let code = if is_end { KeyCode::Esc } else { key.code };
            if sender.blocking_send(code).is_err() {
                return;
            }
        }
    });
    receiver
}

/// The picture as text.
fn plain(picture: &Picture, choice: &Choice) -> Result<String, Failure> {
    let entries = u16::try_from(picture.clients.len()).unwrap_or(u16::MAX);
    let lines = entries.min(PLAIN_ENTRIES) + PLAIN_LINES;
    let mut terminal =
        Terminal::new(TestBackend::new(PLAIN_COLUMNS, lines)).map_err(Failure::local)?;
    let drawn = terminal.draw(|frame| view::draw(frame, picture, choice));
    drawn.map_err(Failure::local)?;
    let buffer = terminal.backend().buffer();
    let rows = buffer.content().chunks(usize::from(PLAIN_COLUMNS));
    let mut text = String::new();
    // The last line has the keys, which nobody can press here.
    for row in rows.take(usize::from(lines) - 1) {
        let line: String = row.iter().map(ratatui::buffer::Cell::symbol).collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn client(name: &str, path: &Value, pending: &Value) -> Value {
        json!({
            "id": format!("0.{name}.1"), "name": name, "protocol": "mqtt", "peer": "127.0.0.1:1",
            "path": path, "pending": pending, "unacknowledged": 1,
            "messages_received": 0, "messages_sent": 0,
        })
    }

    fn looks() -> (Look, Look) {
        let node = |now_ms: u64, messages: u64| {
            json!({
                "version": "0.1.0", "uptime_s": 90_061, "now_ms": now_ms, "cpu_s": now_ms as f64 / 4000.0,
                "messages_received": messages, "messages_sent": 2 * messages, "messages_dropped": 0,
                "bytes_received": 0, "bytes_sent": 0, "clients_connected": 3, "clients_disconnected": 1,
                "queued_messages": 5, "retained_messages": 7, "resident_bytes": 12_300_000,
            })
        };
        let path = |rtt_us: u64, sent_bytes: u64, lost: u64| {
            json!({
                "rtt_us": rtt_us, "lost_packets": lost, "sent_datagrams": 100,
                "received_bytes": 0, "sent_bytes": sent_bytes,
            })
        };
        let chatty = |messages: u64| {
            let mut chatty = client("chatty", &path(4_000, 0, 0), &json!(0));
            chatty["messages_received"] = messages.into();
            chatty["messages_sent"] = (2 * messages).into();
            chatty
        };
        let before = Look {
            node: node(1_000, 100),
            clients: vec![
                client("slow", &path(900_000, 0, 0), &json!(0)),
                client("busy", &path(1_000, 0, 0), &json!(0)),
                chatty(100),
            ],
            ..Look::default()
        };
        let now = Look {
            node: node(3_000, 5_100),
            clients: vec![
                client("slow", &path(900_000, 10, 0), &json!(0)),
                client("busy", &path(1_000, 4_000_000, 0), &json!(1)),
                client("lossy", &path(2_000, 0, 25), &json!(null)),
                client("full", &path(3_000, 0, 0), &json!(700)),
                chatty(500),
            ],
            has_more: true,
            queues: vec![
                json!({"name": "orders", "messages": 12_345, "delayed": 0, "bytes": 9, "consumers": 2}),
            ],
            ..Look::default()
        };
        (before, now)
    }

    fn shown(sort: Sort, tab: Tab) -> Vec<String> {
        let (before, now) = looks();
        let choice = Choice {
            tab,
            sort,
            scroll: 0,
            place: "http://localhost:9464".to_owned(),
            failure: None,
        };
        let text = plain(&Picture::new(&before, &now, sort), &choice).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn rates_are_of_the_time_between_two_looks() {
        let lines = shown(Sort::Rtt, Tab::Clients);
        assert!(lines[0].ends_with("Sterna 0.1.0  up 1d 1h"), "{lines:#?}");
        assert!(
            lines[1].starts_with("messages/s in 2.5k  out 5.0k  dropped 0"),
            "{lines:#?}"
        );
        assert!(
            lines[2].contains("clients 3 connected, 1 away   queued 5"),
            "{lines:#?}"
        );
        assert!(lines[2].contains("memory 12.3MB   CPU 25 %"), "{lines:#?}");
        assert_eq!(lines[4], "Clients (5+) by round trip");
    }

    #[test]
    fn clients_are_sorted_by_what_is_asked_for() {
        for (sort, first, cells) in [
            (Sort::Rtt, "slow", "900.0"),
            (Sort::Loss, "lossy", "25.00"),
            (Sort::Queue, "full", "700"),
            (Sort::Bytes, "busy", "2.0M"),
            (Sort::Messages, "chatty", " 600"),
        ] {
            let lines = shown(sort, Tab::Clients);
            assert!(lines[6].starts_with(first), "{sort:?}: {lines:#?}");
            assert!(lines[6].contains(cells), "{sort:?}: {lines:#?}");
        }
        assert!(
            shown(Sort::Rtt, Tab::Clients)[5].contains("PEER"),
            "a wide one has addresses"
        );
        let all = shown(Sort::Loss, Tab::Clients).join("\n");
        assert!(
            !all.contains("Tab queues"),
            "no keys without a screen: {all}"
        );
        let lossy = shown(Sort::Loss, Tab::Clients).remove(6);
        assert!(
            lossy.contains(" ? "),
            "what the broker does not know is no zero: {lossy}"
        );
    }

    #[test]
    fn queues_are_on_a_page_of_their_own() {
        let lines = shown(Sort::Rtt, Tab::Queues);
        assert_eq!(lines[4], "Queues (1)");
        assert!(
            lines[6].starts_with("orders") && lines[6].contains("12.3k"),
            "{lines:#?}"
        );
    }

    #[test]
    fn keys_are_obeyed() {
        let mut choice = Choice {
            tab: Tab::Clients,
            sort: Sort::Rtt,
            scroll: 0,
            place: String::new(),
            failure: None,
        };
        assert!(obey(KeyCode::Char('b'), &mut choice, 2));
        assert_eq!(choice.sort, Sort::Bytes);
        for (key, scroll) in [
            (KeyCode::Down, 1),
            (KeyCode::Down, 1),
            (KeyCode::Up, 0),
            (KeyCode::Up, 0),
        ] {
            assert!(obey(key, &mut choice, 2));
            assert_eq!(choice.scroll, scroll);
        }
        assert!(obey(KeyCode::Tab, &mut choice, 2));
        assert_eq!(choice.tab, Tab::Queues);
        assert!(!obey(KeyCode::Esc, &mut choice, 2));
    }
}
