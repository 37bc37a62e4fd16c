//! The life of a client with a driver: it connects, moves bytes until the connection ends, and
//! connects again.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::LinkOptions;
use crate::backoff::Failures;
use crate::error::{ConnectError, is_tls};
use crate::transport::carrier::Carrier;
use crate::transport::outlet::Waiter;
use crate::transport::{self, Settings, Transport};

/// Turns of a connection before the runtime gets its own.
const MAX_TURNS: usize = 64;

/// An error of a protocol's client.
pub(crate) trait DriverError: Clone + fmt::Display + From<ConnectError> {
    /// The application has ended the client.
    const ENDED: Self;

    /// Whether another attempt to connect can succeed without a change by anybody.
    fn is_temporary(&self) -> bool;

    /// The transport's error, where that broke.
    fn lost(&self) -> Option<&io::Error>;
}

/// End of a connection or of an attempt.
pub(crate) enum End<E> {
    /// The application wanted it.
    Wanted,
    /// Something went wrong.
    Failed(E),
    /// The server took no early data: everything starts again on this connection, if it is there
    /// already.
    StartOver(Option<Box<(Transport, Instant)>>),
}

impl<E: DriverError> End<E> {
    /// Whether the server may have hung up because data ran ahead of its answer. TLS knows nothing of such data: what it
    /// refused once, it refuses again.
    pub(crate) fn may_be_of_haste(&self) -> bool {
        let Self::Failed(error) = self else {
            return false;
        };
        error.lost().is_some_and(|error| !is_tls(error))
    }
}

impl<E> From<E> for End<E> {
    fn from(error: E) -> Self {
        Self::Failed(error)
    }
}

/// State of a client that outlives its connections.
pub(crate) trait Driver {
    type Error: DriverError;

    fn options(&self) -> &LinkOptions;

    /// Settings of the next connection.
    fn settings(&self) -> Settings;

    /// Connections that the server has accepted.
    fn connections(&self) -> u64;

    /// Whether a server has hung up on data that ran ahead of its answer.
    fn ran_ahead_in_vain(&self) -> bool;

    /// Whether the application wants to end.
    fn wants_to_end(&self) -> bool;

    /// Whether another attempt to connect may follow this error, with which the last one has ended.
    fn may_retry(&mut self, error: &Self::Error) -> bool {
        error.is_temporary()
    }

    /// Whether the application has handed something over that is yet to be sent.
    fn has_work(&self) -> bool;

    /// Takes a request while there is no connection. Never returns while there is no room for one,
    /// or when there will be no more.
    async fn take_request(&mut self);

    /// A connection or an attempt has ended, and another one follows unless the client ends.
    fn connection_ended(&mut self) {}

    /// The next attempt begins after this time.
    fn tell_retry(&mut self, error: Self::Error, retry_in: Duration);

    /// Runs a connection, from the first packet to the last.
    async fn serve(&mut self, transport: Transport, deadline: Instant) -> End<Self::Error>;
}

/// Connects, and connects again, until there is a reason to stop.
pub(crate) async fn live<D: Driver>(driver: &mut D) -> D::Error {
    let mut failures = Failures::default();
    loop {
        let connections = driver.connections();
        let in_vain = driver.ran_ahead_in_vain();
        let started = Instant::now();
        let error = match connect_once(driver).await {
            End::Wanted => return D::Error::ENDED,
            End::Failed(error) => error,
            End::StartOver(_) => continue,
        };
        let url = &driver.options().url;
        tracing::debug!(%url, %error, "no connection");
        driver.connection_ended();
        if driver.ran_ahead_in_vain() && !in_vain && !driver.wants_to_end() {
            // Some servers want to be the first to speak: once more, and at once, in their way.
            continue;
        }
        if driver.connections() > connections {
            failures.lasted(started.elapsed());
        }
        let may_retry = driver.may_retry(&error);
        let options = driver.options();
        let may_retry = may_retry && (driver.connections() > 0 || options.retry_first);
        let delay = failures.add(options.reconnect.filter(|_| may_retry));
        let Some(delay) = delay.filter(|_| !driver.wants_to_end()) else {
            return error;
        };
        driver.tell_retry(error, delay);
        let pause = tokio::time::sleep(delay);
        tokio::pin!(pause);
        loop {
            tokio::select! {
                () = &mut pause => break,
                () = driver.take_request() => {}
            }
            if driver.wants_to_end() {
                return D::Error::ENDED;
            }
        }
    }
}

/// One connection, from the first packet to the last.
async fn connect_once<D: Driver>(driver: &mut D) -> End<D::Error> {
    let settings = driver.settings();
    let deadline = Instant::now() + settings.link.longest_connect();
    tracing::debug!(url = %settings.link.url, "connecting");
    let connecting = transport::connect(&settings);
    tokio::pin!(connecting);
    let transport = loop {
        tokio::select! {
            result = &mut connecting => match result {
                Ok(transport) => break transport,
                Err(error) => return End::Failed(error.into()),
            },
            () = driver.take_request() => {
                if driver.wants_to_end() && !driver.has_work() {
                    return End::Wanted;
                }
            }
        }
    };
    driver.serve(transport, deadline).await
}

/// One connection of a driver.
pub(crate) trait Link<D: Driver> {
    type State;
    type Waiter: Waiter;

    fn carrier(&mut self) -> &mut Carrier<Self::State, Self::Waiter>;

    /// One turn: as much of everything as is possible without waiting. True when there was progress.
    ///
    /// # Errors
    /// The end of the connection.
    fn turn(&mut self, driver: &mut D, cx: &mut Context<'_>) -> Result<bool, End<D::Error>>;

    /// Whether the server has accepted the client.
    fn is_accepted(&self) -> bool;

    /// Ends the transport in order if that is wanted, and tells who waits for the end.
    async fn finish(&mut self, driver: &mut D, end: End<D::Error>) -> End<D::Error>;

    /// Moves bytes until the connection ends.
    async fn run(&mut self, driver: &mut D) -> End<D::Error> {
        let end = poll_fn(|cx| {
            let end = self.turns(driver, cx);
            // All that belongs into the first datagram is written now.
            self.carrier().uncork();
            end
        })
        .await;
        let end = match (end, self.carrier().handshake_error()) {
            (End::Failed(error), Some(reason)) if error.lost().is_some() => {
                End::Failed(reason.into())
            }
            (end, _) => end,
        };
        if self.is_accepted() {
            self.carrier().remember();
        }
        let end = self.finish(driver, end).await;
        self.carrier().let_go();
        end
    }

    fn turns(&mut self, driver: &mut D, cx: &mut Context<'_>) -> Poll<End<D::Error>> {
        for _ in 0..MAX_TURNS {
            match self.turn(driver, cx) {
                Ok(true) => {}
                Ok(false) => return Poll::Pending,
                Err(end) => return Poll::Ready(end),
            }
        }
        // Others on this runtime get their turn.
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}
