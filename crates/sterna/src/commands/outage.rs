//! Reports of a client command while its broker is away: one when the connection is lost, one when
//! it is back.

use sterna_client::{Error, Event, Url, Version, amqp, http};

use super::exit::{self, Failure};

/// The effect of an event on the connection.
pub(super) enum Change {
    /// It stands.
    Connected,
    /// It was lost, or does not come about yet; the client tries again.
    Lost(String),
    /// The client does not try again.
    Over {
        failure: Failure,
        /// The connection was lost, and all attempts have failed.
        is_loss: bool,
    },
    /// Nothing.
    None,
}

impl Change {
    /// Of an event of MQTT, which ends with the code that this version has for it.
    pub(super) fn mqtt(event: &Event, version: Version) -> Self {
        match event {
            Event::Connected(_) => Self::Connected,
            Event::Disconnected { error, retry_in } => match retry_in {
                Some(_) => Self::Lost(error.to_string()),
                None => Self::Over {
                    failure: Failure::client(error, version),
                    is_loss: error.is_temporary() && !matches!(error, Error::Protocol(_)),
                },
            },
            _ => Self::None,
        }
    }

    /// Of an event of AMQP.
    pub(super) fn amqp(event: &amqp::Event) -> Self {
        match event {
            amqp::Event::Connected(_) => Self::Connected,
            amqp::Event::Disconnected { error, retry_in } => match retry_in {
                Some(_) => Self::Lost(error.to_string()),
                None => Self::Over {
                    failure: Failure::amqp(error),
                    is_loss: error.is_temporary() && !matches!(error, amqp::Error::Protocol { .. }),
                },
            },
            _ => Self::None,
        }
    }

    /// Of an event of HTTP.
    pub(super) fn http(event: &http::Event) -> Self {
        match event {
            http::Event::Connected(_) => Self::Connected,
            http::Event::Disconnected { error, retry_in } => match retry_in {
                Some(_) => Self::Lost(error.to_string()),
                None => Self::Over {
                    failure: Failure::http(error),
                    is_loss: error.is_temporary(),
                },
            },
            _ => Self::None,
        }
    }
}

/// Whether the broker is away.
pub(super) struct Outage {
    /// Host and port of the broker.
    place: String,
    quiet: bool,
    /// The connection stood once.
    was_connected: bool,
    is_out: bool,
}

impl Outage {
    /// Of the broker at this place. A quiet one says nothing.
    pub(super) fn new(url: &Url, quiet: bool) -> Self {
        Self {
            place: url.place(),
            quiet,
            was_connected: false,
            is_out: false,
        }
    }

    /// Says what is news.
    ///
    /// # Errors
    /// When the client does not try again: with the code for a lost connection where it stood before.
    pub(super) fn note(&mut self, change: Change) -> Result<(), Failure> {
        match change {
            Change::Connected => {
                if std::mem::take(&mut self.is_out) {
                    self.say("connected again");
                }
                self.was_connected = true;
            }
            Change::Lost(error) => {
                if !std::mem::replace(&mut self.is_out, true) {
                    self.say(&format!("{error}; trying again"));
                }
            }
            Change::Over { failure, is_loss } if is_loss && self.was_connected => {
                let text = self.at_place(&format!("not regained: {}", failure.text));
                return Err(Failure::new(exit::LOST, text));
            }
            Change::Over { failure, .. } => return self.judge(Err(failure)),
            Change::None => {}
        }
        Ok(())
    }

    /// Whether the connection stood once.
    pub(super) const fn was_connected(&self) -> bool {
        self.was_connected
    }

    /// The result of a command. A connection that never stood was not lost: the broker cannot be reached.
    pub(super) fn judge(&self, result: Result<(), Failure>) -> Result<(), Failure> {
        result.map_err(|failure| {
            if failure.code != exit::LOST || self.was_connected {
                return failure;
            }
            Failure::new(exit::UNREACHABLE, self.at_place(&failure.text))
        })
    }

    /// Runs a command, says meanwhile what `next` tells, and ends it when the client does not try again.
    pub(super) async fn beside(
        mut self,
        command: impl Future<Output = Result<(), Failure>>,
        mut next: impl AsyncFnMut() -> Option<Change>,
    ) -> Result<(), Failure> {
        let result = {
            let watching = async {
                while let Some(change) = next().await {
                    self.note(change)?;
                }
                std::future::pending().await
            };
            tokio::pin!(watching);
            // The client's last event explains more than the failure of what was under way.
            let result = tokio::select! {
                biased;
                failure = &mut watching => return failure,
                result = command => result,
            };
            tokio::select! {
                biased;
                failure = watching, if result.is_err() => failure,
                () = std::future::ready(()) => result,
            }
        };
        self.judge(result)
    }

    fn say(&self, what: &str) {
        if !self.quiet {
            exit::tell(format_args!("sterna: {}", self.at_place(what)));
        }
    }

    /// The text with host and port, which errors of connecting have already.
    fn at_place(&self, text: &str) -> String {
        if text.contains(&self.place) {
            return text.to_owned();
        }
        format!("{}: {text}", self.place)
    }
}
