//! Web pages and the broker on their visitor's host: over WebSocket as over HTTP (attack row 36).

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use sterna_server::Server;
use sterna_server::config::{Config, Listener};

/// The status with which a browser's request is answered. `HOST` stands for where the broker is.
fn status(url: &str, protocol: &str, fields: &str) -> u16 {
    let (scheme, rest) = url.split_once("://").expect("a URL");
    let address = rest.split('/').next().expect("an address");
    let head = if scheme == "ws" {
        format!(
            "GET /mqtt HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Protocol: {protocol}\r\n"
        )
    } else {
        "POST /v1/topics/a HTTP/1.1\r\nContent-Length: 0\r\nConnection: close\r\n".to_owned()
    };
    let mut stream = TcpStream::connect(address).expect("connects");
    stream
        .set_read_timeout(Some(Duration::from_secs(30)))
        .expect("a socket");
    let request = format!("{head}{fields}\r\n").replace("HOST", address);
    stream.write_all(request.as_bytes()).expect("sends");
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).expect("an answer");
    let text = std::str::from_utf8(&answer).expect("text");
    let status = text.strip_prefix("HTTP/1.1 ").expect("HTTP/1.1");
    match status.parse().expect("a status") {
        // Both mean that it was let in.
        101 | 204 => 200,
        other => other,
    }
}

#[test]
fn a_page_of_another_origin_reaches_no_door() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut config = Config {
        listeners: vec![
            Listener::at("ws://127.0.0.1:0/mqtt"),
            Listener::at("http://127.0.0.1:0"),
        ],
        data_directory: Some(folder.path().to_owned()),
        ..Config::default()
    };
    let server = Server::start(&config).expect("a broker");
    let urls = server.listeners().to_vec();
    let each = |fields: &str, expected: u16| {
        for (url, protocol) in [(&urls[0], "mqtt"), (&urls[0], "amqp"), (&urls[1], "")] {
            let status = status(url, protocol, fields);
            assert_eq!(status, expected, "{url} {protocol} {fields}");
        }
    };
    // No browser.
    each("Host: HOST\r\n", 200);
    // A page of the broker's own.
    each("Host: HOST\r\nOrigin: http://HOST\r\n", 200);
    each("Host: HOST\r\nOrigin: https://evil.example\r\n", 403);
    each("Host: HOST\r\nOrigin: null\r\n", 403);
    each("Host: HOST\r\nSec-Fetch-Site: cross-site\r\n", 403);
    // DNS rebinding: the name is the page's, the address ours.
    each(
        "Host: evil.example:8083\r\nOrigin: http://evil.example:8083\r\n",
        421,
    );
    each("Host: localhost.evil.example\r\n", 421);

    // A page that the operator lets in, and a name, without a restart.
    config.http.cors_origins = vec!["https://app.example".to_owned()];
    config.http.hosts = vec!["broker.example".to_owned(), "127.0.0.1".to_owned()];
    assert_eq!(server.reload(&config), Ok(Vec::new()));
    let let_in = "Host: broker.example\r\nOrigin: https://app.example\r\n";
    let came_into_force = (0..1_000).any(|_| {
        [&urls[0], &urls[1]]
            .iter()
            .all(|url| status(url, "mqtt", let_in) == 200)
    });
    assert!(came_into_force, "the pages that may are still refused");
    each(let_in, 200);
    each("Host: HOST\r\nOrigin: https://evil.example\r\n", 403);
    each("Host: other.example\r\n", 421);
    server.shutdown();
}
