//! SIGINT and SIGTERM as a wish to end in order.

use signal_hook::consts::{SIGINT, SIGTERM};
use tokio::sync::mpsc;

use super::exit::Failure;

/// Reports the first signal; the second one ends the process by default.
pub(super) fn listen() -> mpsc::Receiver<()> {
    let (sender, receiver) = mpsc::channel(1);
    // Without signals the command still works; it only ends less politely.
    if let Ok(mut signals) = signal_hook::iterator::Signals::new([SIGINT, SIGTERM]) {
        std::thread::spawn(move || {
            for signal in signals.forever() {
                if sender.try_send(()).is_err() {
                    let _ = signal_hook::low_level::emulate_default_handler(signal);
                }
            }
        });
    }
    receiver
}

/// Runs a request. A signal ends it at any time before its response, also while it connects.
pub(super) async fn or_end(
    request: impl Future<Output = Result<(), Failure>>,
) -> Result<(), Failure> {
    let mut signals = listen();
    tokio::select! {
        result = request => result,
        Some(()) = signals.recv() => Err(Failure::interrupted()),
    }
}
