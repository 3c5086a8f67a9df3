//! `ipoib-fwd metrics`: serves a gateway's metrics over HTTP.
//!
//! Any client that can reach the address may be hostile. The exporter serves a limited number of clients.
//! Each sends one request, with a bounded head and within a bounded time. [`Places`] decides which clients
//! are served. A request only selects one of two pages, and [`Gateway`] limits how often the gateway is
//! queried.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use dataplane::service::ServiceManager;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use super::gateway::Gateway;
use super::places::{Places, Progress};
use super::{OPEN_METRICS, PROMETHEUS};
use crate::ctl::DEFAULT_SOCKET;

/// Default address.
const DEFAULT_LISTEN: &str = "127.0.0.1:9847";
/// Largest head of a request in bytes.
const MAX_HEAD: usize = 16 << 10;

/// Time limits for a client.
#[derive(Clone, Copy, Debug)]
struct Times {
    /// For the head of its request.
    head: Duration,
    /// In total, including the gateway's answer.
    client: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self { head: Duration::from_secs(5), client: Duration::from_secs(15) }
    }
}

/// Options of `ipoib-fwd metrics`.
#[derive(Args, Clone, Debug)]
pub struct MetricsOptions {
    /// Address and port to listen on. There is no authentication: on an address other than loopback, every
    /// host that can reach it can read the metrics.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = DEFAULT_LISTEN)]
    pub listen: SocketAddr,
    /// Control socket of the gateway. The gateway need not run yet: until it does, requests are answered with
    /// HTTP status 503.
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET)]
    pub socket: PathBuf,
}

/// Why metrics cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum MetricsError {
    /// The address cannot be bound.
    #[error("cannot listen on {0}: {1}; choose another address with --listen")]
    Listen(SocketAddr, io::Error),
    /// The runtime cannot be created.
    #[error("cannot start: {0}")]
    Start(io::Error),
}

type Page = Response<Full<Bytes>>;

/// Serves metrics until SIGTERM or SIGINT.
pub fn run(options: &MetricsOptions) -> Result<(), MetricsError> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(MetricsError::Start)?;
    runtime.block_on(async {
        let listener = TcpListener::bind(options.listen)
            .await
            .map_err(|error| MetricsError::Listen(options.listen, error))?;
        let mut ends = [SignalKind::terminate(), SignalKind::interrupt()]
            .map(signal)
            .into_iter()
            .collect::<io::Result<Vec<_>>>()
            .map_err(MetricsError::Start)?;
        let mut manager = ServiceManager::of_environment().ok().flatten();
        let address = listener.local_addr().unwrap_or(options.listen);
        tracing::info!("metrics of {} at http://{address}/metrics", options.socket.display());
        if let Some(manager) = &mut manager {
            manager.status(&format!("http://{address}/metrics"));
            manager.ready();
        }
        let [first, second] = ends.as_mut_slice() else { return Ok(()) };
        tokio::select! {
            () = accept(listener, Arc::new(Gateway::new(&options.socket)), Times::default()) => {}
            _ = first.recv() => {}
            _ = second.recv() => {}
        }
        if let Some(manager) = &manager {
            manager.stopping();
        }
        Ok(())
    })
}

async fn accept(listener: TcpListener, gateway: Arc<Gateway>, times: Times) {
    let mut places = Places::default();
    loop {
        match listener.accept().await {
            Ok((client, peer)) => {
                let progress = Progress::default();
                let serving = serve_in(client, Arc::clone(&gateway), times, progress.clone());
                let serving = tokio::time::timeout(times.client, serving);
                // A client that is slow or sends an invalid request is dropped; the others are not affected.
                let task = tokio::spawn(async move { drop(serving.await) });
                places.take(peer.ip(), progress, task.abort_handle());
                // Serve a client that has already sent its request before the next client can take its slot.
                tokio::task::yield_now().await;
            }
            // No descriptors or memory: this may be temporary.
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

/// Serves one client: answers its first request, or closes the connection if that is not valid.
pub async fn serve(client: impl AsyncRead + AsyncWrite + Unpin, gateway: Arc<Gateway>) {
    serve_in(client, gateway, Times::default(), Progress::default()).await;
}

async fn serve_in(
    client: impl AsyncRead + AsyncWrite + Unpin,
    gateway: Arc<Gateway>,
    times: Times,
    progress: Progress,
) {
    let service = service_fn(|request: Request<Incoming>| {
        let (gateway, progress) = (Arc::clone(&gateway), progress.clone());
        async move {
            progress.waits();
            let page = page(&gateway, &request).await;
            progress.answered();
            Ok::<Page, Infallible>(page)
        }
    });
    let mut server = http1::Builder::new();
    // A client that closes its sending side still gets an answer.
    server.half_close(true).keep_alive(false);
    server.timer(TokioTimer::new()).header_read_timeout(times.head).max_buf_size(MAX_HEAD);
    drop(server.serve_connection(TokioIo::new(client), service).await);
}

async fn page(gateway: &Gateway, request: &Request<Incoming>) -> Page {
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    match request.uri().path() {
        "/" | "/metrics" if !is_read => {
            let mut page = plain(StatusCode::METHOD_NOT_ALLOWED, "method not allowed; use GET\n");
            page.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            page
        }
        "/" => plain(StatusCode::OK, "ipoib-fwd: the metrics are at /metrics\n"),
        "/metrics" => match gateway.pages().await {
            Ok(pages) if takes_open_metrics(request) => {
                with_type(StatusCode::OK, OPEN_METRICS, pages.open_metrics)
            }
            Ok(pages) => with_type(StatusCode::OK, PROMETHEUS, pages.prometheus),
            Err(why) => plain(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
        },
        _ => plain(StatusCode::NOT_FOUND, "not found; the metrics are at /metrics\n"),
    }
}

fn takes_open_metrics(request: &Request<Incoming>) -> bool {
    let mut accepted = request.headers().get_all(ACCEPT).iter();
    accepted.any(|types| types.to_str().is_ok_and(|types| types.contains("application/openmetrics-text")))
}

fn plain(status: StatusCode, text: impl Into<Bytes>) -> Page {
    with_type(status, "text/plain; charset=utf-8", text)
}

fn with_type(status: StatusCode, media_type: &'static str, text: impl Into<Bytes>) -> Page {
    let mut page = Response::new(Full::new(text.into()));
    *page.status_mut() = status;
    page.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::places::MAX_CLIENTS;
    use std::path::Path;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;

    fn on_runtime(test: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
    }

    /// A timeout that no test reaches.
    const NO_END: Duration = Duration::from_secs(100_000);

    /// An exporter for a gateway that does not exist.
    async fn exporter() -> SocketAddr {
        exporter_of(Gateway::new(Path::new("/nonexistent/ipoib-fwd.sock"))).await
    }

    async fn exporter_of(gateway: Gateway) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let times = Times { head: NO_END, client: NO_END };
        tokio::spawn(accept(listener, Arc::new(gateway), times));
        address
    }

    async fn say(address: SocketAddr, bytes: &[u8]) -> String {
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(bytes).await.unwrap();
        let mut answer = Vec::new();
        // The connection is reset if it is closed while the client still sends.
        let _ = client.read_to_end(&mut answer).await;
        String::from_utf8(answer).unwrap()
    }

    #[test]
    fn without_a_gateway_requests_get_an_error_status() {
        on_runtime(async {
            let address = exporter().await;
            for (request, status, text) in [
                (
                    "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
                    503,
                    "is the gateway running",
                ),
                ("GET / HTTP/1.0\r\n\r\n", 200, "/metrics"),
                ("GET /metrics/x HTTP/1.0\r\n\r\n", 404, "/metrics"),
                ("POST /metrics HTTP/1.0\r\nContent-Length: 0\r\n\r\n", 405, "GET"),
                ("DELETE / HTTP/1.0\r\n\r\n", 405, "GET"),
            ] {
                let answer = say(address, request.as_bytes()).await;
                assert!(
                    answer.starts_with("HTTP/1.") && answer.contains(&format!(" {status} ")),
                    "{request}: {answer}"
                );
                assert!(answer.contains(text), "{request}: {answer}");
            }
        });
    }

    #[test]
    fn an_oversized_head_is_rejected() {
        on_runtime(async {
            let address = exporter().await;
            let long = [b"GET / HTTP/1.1\r\nX: ".as_slice(), &[b'a'; 8 * MAX_HEAD]].concat();
            assert!(!say(address, &long).await.contains(" 200 "));
            assert!(!say(address, b"\x16\x03\x01 no HTTP\r\n\r\n").await.contains(" 200 "));
            assert!(say(address, b"GET / HTTP/1.0\r\n\r\n").await.contains(" 200 "));
        });
    }

    #[test]
    fn open_connections_do_not_keep_other_clients_out() {
        on_runtime(async {
            let address = exporter().await;
            // Some send nothing, some send half a request, some do not read; none disconnects.
            let mut held = Vec::new();
            for n in 0..3 * MAX_CLIENTS {
                let mut client = TcpStream::connect(address).await.unwrap();
                let says = [b"".as_slice(), b"GET / HTTP/1.1\r\nX:", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"];
                client.write_all(says[n % 3]).await.unwrap();
                held.push(client);
                if n % MAX_CLIENTS == 0 {
                    assert!(say(address, b"GET / HTTP/1.0\r\n\r\n").await.contains(" 200 "));
                }
            }
            assert!(say(address, b"GET / HTTP/1.0\r\n\r\n").await.contains(" 200 "));
            drop(held);
        });
    }

    #[test]
    fn a_waiting_client_is_answered_while_others_connect() {
        let (answer, answers) = std::sync::mpsc::channel::<()>();
        let (sender, mut queries) = tokio::sync::mpsc::unbounded_channel();
        let answers = std::sync::Mutex::new(answers);
        let gateway = Gateway::with(move || {
            let _ = sender.send(());
            let _ = answers.lock().unwrap().recv();
            Ok("# EOF\n".to_owned())
        });
        on_runtime(async move {
            let address = exporter_of(gateway).await;
            let scrape = tokio::spawn(say(address, b"GET /metrics HTTP/1.0\r\n\r\n"));
            queries.recv().await.unwrap();
            // One connection from each of many loopback addresses.
            let mut held = Vec::new();
            for n in 0..3 * MAX_CLIENTS as u8 {
                let socket = tokio::net::TcpSocket::new_v4().unwrap();
                socket.bind(([127, 0, 1, n], 0).into()).unwrap();
                held.push(socket.connect(address).await.unwrap());
            }
            assert!(say(address, b"GET / HTTP/1.0\r\n\r\n").await.contains(" 200 "));
            answer.send(()).unwrap();
            assert!(scrape.await.unwrap().contains(" 200 "));
        });
    }

    #[test]
    fn a_connection_serves_one_request() {
        on_runtime(async {
            let address = exporter().await;
            let answer = say(address, &b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".repeat(3)).await;
            assert_eq!(answer.matches(" 200 ").count(), 1, "{answer}");
        });
    }

    #[test]
    fn the_head_and_the_connection_have_time_limits() {
        on_runtime(async {
            for times in [
                Times { head: NO_END, client: Duration::ZERO },
                Times { head: Duration::ZERO, client: NO_END },
            ] {
                let (mut client, server) = tokio::io::duplex(64);
                let gateway = Arc::new(Gateway::new(Path::new("/nonexistent/ipoib-fwd.sock")));
                let serving = serve_in(server, gateway, times, Progress::default());
                let serving = tokio::time::timeout(times.client, serving);
                tokio::spawn(async move { drop(serving.await) });
                let mut answer = Vec::new();
                client.read_to_end(&mut answer).await.unwrap();
                assert!(!answer.starts_with(b"HTTP/1.1 200"));
            }
        });
    }
}
