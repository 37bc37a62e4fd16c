//! HTTP/2 and HTTP/1.1: hyper's server.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body_util::{BodyExt as _, combinators::BoxBody};
use hyper::body::{Body, Frame, Incoming};
use hyper::rt::{ReadBufCursor, Write};
use hyper::service::service_fn;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc};
use tokio_rustls::TlsAcceptor;

use super::{Answer, Identity, Part, Request, Script};

pub(super) fn free_address() -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

pub(super) async fn start_tls(
    identity: &Identity,
    script: &Script,
    address: SocketAddr,
    alpn: &[&[u8]],
) -> bool {
    let Ok(listener) = TcpListener::bind(address).await else {
        return false;
    };
    let acceptor = TlsAcceptor::from(Arc::new(identity.server(alpn)));
    let script = script.clone();
    tokio::spawn(async move {
        let number = AtomicUsize::new(0);
        while let Ok((tcp, _)) = listener.accept().await {
            let (acceptor, script) = (acceptor.clone(), script.clone());
            let number = number.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(async move {
                if let Ok(tls) = acceptor.accept(tcp).await {
                    let is_http2 = tls.get_ref().1.alpn_protocol() == Some(b"h2");
                    serve(tls, script, number, is_http2).await;
                }
            });
        }
    });
    true
}

pub(super) async fn start_plain(script: &Script, address: SocketAddr) -> bool {
    let Ok(listener) = TcpListener::bind(address).await else {
        return false;
    };
    let script = script.clone();
    tokio::spawn(async move {
        let number = AtomicUsize::new(0);
        while let Ok((tcp, _)) = listener.accept().await {
            let number = number.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(serve::<TcpStream>(tcp, script.clone(), number, false));
        }
    });
    true
}

async fn serve<T>(stream: T, script: Script, connection: usize, is_http2: bool)
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let cut = Arc::new(Notify::new());
    let cutting = Arc::clone(&cut);
    let version = if is_http2 { "h2" } else { "http/1.1" };
    let service = service_fn(move |request: http::Request<Incoming>| {
        let (script, cut) = (script.clone(), Arc::clone(&cut));
        async move {
            let (head, body) = request.into_parts();
            let content = body.collect().await.unwrap().to_bytes().to_vec();
            let target = head.uri.path_and_query().unwrap().to_string();
            let text = |value: &http::HeaderValue| value.to_str().unwrap().to_owned();
            let request = Request {
                method: head.method.to_string(),
                target,
                fields: head
                    .headers
                    .iter()
                    .map(|(name, value)| (name.to_string(), text(value)))
                    .collect(),
                content,
                early: false,
                connection,
                version,
            };
            Ok::<_, Infallible>(answer(script.answer(request), &cut).await)
        }
    });
    let io = Io(stream);
    let serving = async {
        if is_http2 {
            let builder = hyper::server::conn::http2::Builder::new(Tasks);
            let _ = builder.serve_connection(io, service).await;
        } else {
            let builder = hyper::server::conn::http1::Builder::new();
            let _ = builder.serve_connection(io, service).await;
        }
    };
    tokio::select! {
        () = serving => {}
        () = cutting.notified() => {}
    }
}

type Content = BoxBody<Bytes, io::Error>;

async fn answer(answer: Answer, cut: &Arc<Notify>) -> http::Response<Content> {
    let (status, fields, content) = match answer {
        Answer::Whole(status, fields, content) => {
            let whole = http_body_util::Full::new(content).map_err(|never| match never {});
            (status, fields, whole.boxed())
        }
        Answer::Stream(fields, parts) => {
            let parts = Parts {
                parts,
                cut: Arc::clone(cut),
            };
            (200, fields, parts.boxed())
        }
        Answer::Cut | Answer::Refused => {
            cut.notify_one();
            std::future::pending().await
        }
        Answer::Silence => std::future::pending().await,
    };
    let mut response = http::Response::builder().status(status);
    for (name, value) in fields {
        response = response.header(name, value);
    }
    response.body(content).unwrap()
}

struct Parts {
    parts: mpsc::UnboundedReceiver<Part>,
    cut: Arc<Notify>,
}

impl Body for Parts {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match ready!(self.parts.poll_recv(cx)) {
            Some(Part::Bytes(bytes)) => Poll::Ready(Some(Ok(Frame::data(bytes)))),
            Some(Part::End) => Poll::Ready(None),
            Some(Part::Cut) => {
                self.cut.notify_one();
                Poll::Pending
            }
            None => Poll::Pending,
        }
    }
}

#[derive(Clone, Copy)]
struct Tasks;

impl<F: Future<Output: Send> + Send + 'static> hyper::rt::Executor<F> for Tasks {
    fn execute(&self, task: F) {
        tokio::spawn(task);
    }
}

struct Io<T>(T);

impl<T: AsyncRead + Unpin> hyper::rt::Read for Io<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut cursor: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let mut bytes = [0; 4_096];
        let most = cursor.remaining().min(4_096);
        let mut buffer = ReadBuf::new(&mut bytes[..most]);
        ready!(Pin::new(&mut self.0).poll_read(cx, &mut buffer))?;
        cursor.put_slice(buffer.filled());
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> Write for Io<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
