//! The whole server on sockets of the loopback, as an operator starts it.

mod certificates;
mod key_refresh;
mod last_words;
mod malformed;
mod otlp;
mod pages;
mod process;
mod profiles;
mod reload;
mod rights;
mod scrape;
