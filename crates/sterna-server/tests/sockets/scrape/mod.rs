//! Metrics of a running server, whose second listener is the one for operators.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use sterna_server::Server;

/// A sample of the metrics, by its name and labels; 0 where there is none.
pub(crate) fn metric(server: &Server, sample: &str) -> u64 {
    let url = &server.listeners()[1];
    let address = url.trim_start_matches("admin://");
    let mut stream = TcpStream::connect(address).expect("connects");
    let request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(request).expect("writes");
    let mut page = String::new();
    stream.read_to_string(&mut page).expect("a page");
    assert!(page.starts_with("HTTP/1.1 200"), "{page}");
    let mut values = page.lines().filter_map(|line| line.strip_prefix(sample));
    values
        .next()
        .map_or(0, |value| value.trim().parse().expect("a number"))
}
