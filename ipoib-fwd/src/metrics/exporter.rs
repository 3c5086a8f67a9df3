//! `ipoib-fwd metrics`: serves a gateway's figures over HTTP.
//!
//! Whoever can reach the address is hostile: a bounded number of clients with bounded heads, each within a time, none of whose words get
//! further than to the choice between two pages. One question at a time goes to the gateway.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use dataplane::service::ServiceManager;
use dataplane::telemetry::{TelemetryError, ask};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Mutex, Semaphore};

use super::{OPEN_METRICS, PROMETHEUS, to_prometheus};
use crate::command::Command;
use crate::ctl::DEFAULT_SOCKET;

/// Where it listens if it is not told otherwise.
const DEFAULT_LISTEN: &str = "127.0.0.1:9847";
/// Most clients at a time; more of them wait.
const MAX_CLIENTS: usize = 16;
/// How long a client may take for a request, and for all that it wants.
const HEAD_PATIENCE: Duration = Duration::from_secs(5);
const CLIENT_PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of a request's head.
const MAX_HEAD: usize = 16 << 10;
/// How long the gateway may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Options of `ipoib-fwd metrics`.
#[derive(Args, Clone, Debug)]
pub struct MetricsOptions {
    /// Address and port to listen on. There is no password: let others than this machine in only on a network that may see the figures.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = DEFAULT_LISTEN)]
    pub listen: SocketAddr,
    /// Control socket of the gateway. It need not run yet: until it does, who asks is told so (HTTP status 503).
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET)]
    pub socket: PathBuf,
}

/// Why figures cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum MetricsError {
    /// The address is not to be had.
    #[error("cannot listen on {0}: {1}; choose another address with --listen")]
    Listen(SocketAddr, io::Error),
    /// The system gives no runtime.
    #[error("cannot start: {0}")]
    Start(io::Error),
}

type Page = Response<Full<Bytes>>;

/// Serves until a signal ends it.
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
        tracing::info!("figures of {} at http://{address}/metrics", options.socket.display());
        if let Some(manager) = &mut manager {
            manager.status(&format!("http://{address}/metrics"));
            manager.ready();
        }
        let [first, second] = ends.as_mut_slice() else { return Ok(()) };
        tokio::select! {
            () = accept(listener, Arc::new(Gateway::new(&options.socket))) => {}
            _ = first.recv() => {}
            _ = second.recv() => {}
        }
        if let Some(manager) = &manager {
            manager.stopping();
        }
        Ok(())
    })
}

async fn accept(listener: TcpListener, gateway: Arc<Gateway>) {
    let places = Arc::new(Semaphore::new(MAX_CLIENTS));
    while let Ok(place) = Arc::clone(&places).acquire_owned().await {
        match listener.accept().await {
            Ok((client, _)) => {
                let gateway = Arc::clone(&gateway);
                tokio::spawn(async move {
                    // A client that is slow, or whose request is none, is gone; the others are not concerned.
                    drop(tokio::time::timeout(CLIENT_PATIENCE, serve(client, gateway)).await);
                    drop(place);
                });
            }
            // Out of descriptors or memory: that may pass.
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

/// Serves one client until it goes, or has said something that is no request.
pub async fn serve(client: impl AsyncRead + AsyncWrite + Unpin, gateway: Arc<Gateway>) {
    let service = service_fn(|request: Request<Incoming>| {
        let gateway = Arc::clone(&gateway);
        async move { Ok::<Page, Infallible>(gateway.page(&request).await) }
    });
    let mut server = http1::Builder::new();
    // Who has said all that it has to say has its answer all the same.
    server.half_close(true);
    server.timer(TokioTimer::new()).header_read_timeout(HEAD_PATIENCE).max_buf_size(MAX_HEAD);
    drop(server.serve_connection(TokioIo::new(client), service).await);
}

/// The gateway that is asked, once at a time.
#[derive(Debug)]
pub struct Gateway {
    socket: Arc<Path>,
    turn: Mutex<()>,
}

impl Gateway {
    /// The one with this control socket.
    #[must_use]
    pub fn new(socket: &Path) -> Self {
        Self { socket: socket.into(), turn: Mutex::new(()) }
    }

    async fn page(&self, request: &Request<Incoming>) -> Page {
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
        let open_metrics = takes_open_metrics(request);
        match request.uri().path() {
            "/" | "/metrics" if !is_read => {
                let mut page = plain(StatusCode::METHOD_NOT_ALLOWED, "GET this page\n".to_owned());
                page.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
                page
            }
            "/" => plain(StatusCode::OK, "ipoib-fwd: its figures are at /metrics\n".to_owned()),
            "/metrics" => match self.figures().await {
                Ok(text) if open_metrics => with_type(StatusCode::OK, OPEN_METRICS, text),
                Ok(text) => with_type(StatusCode::OK, PROMETHEUS, to_prometheus(&text)),
                Err(why) => plain(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
            },
            _ => plain(StatusCode::NOT_FOUND, "there is /metrics\n".to_owned()),
        }
    }

    async fn figures(&self) -> Result<String, String> {
        let _turn = self.turn.lock().await;
        let socket = Arc::clone(&self.socket);
        let request = format!("/{}", Command::Metrics.word());
        let asked = tokio::task::spawn_blocking(move || ask(&socket, &request, PATIENCE));
        match asked.await {
            Ok(Ok(Value::String(text))) => Ok(text),
            Ok(Ok(_)) => Err("the gateway is of another version: its answer is no text".to_owned()),
            Ok(Err(error @ TelemetryError::Socket { .. })) => Err(error.to_string()),
            Ok(Err(error)) => Err(format!("{}: {error}", self.socket.display())),
            Err(error) => Err(error.to_string()),
        }
    }
}

fn takes_open_metrics(request: &Request<Incoming>) -> bool {
    let mut accepted = request.headers().get_all(ACCEPT).iter();
    accepted.any(|types| types.to_str().is_ok_and(|types| types.contains("application/openmetrics-text")))
}

fn plain(status: StatusCode, text: String) -> Page {
    with_type(status, "text/plain; charset=utf-8", text)
}

fn with_type(status: StatusCode, media_type: &'static str, text: String) -> Page {
    let mut page = Response::new(Full::new(Bytes::from(text)));
    *page.status_mut() = status;
    page.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;

    fn on_runtime(test: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
    }

    /// An exporter of a gateway that is not there.
    async fn exporter() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let nobody = Path::new("/nonexistent/ipoib-fwd.sock");
        tokio::spawn(accept(listener, Arc::new(Gateway::new(nobody))));
        address
    }

    async fn say(address: SocketAddr, bytes: &[u8]) -> String {
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(bytes).await.unwrap();
        let mut answer = Vec::new();
        // One that is cut off while it still sends is reset.
        let _ = client.read_to_end(&mut answer).await;
        String::from_utf8(answer).unwrap()
    }

    #[test]
    fn who_asks_without_a_gateway_is_told_so() {
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
    fn a_head_without_end_is_cut_off_and_nobody_else_waits() {
        on_runtime(async {
            let address = exporter().await;
            // As many as are served at a time but one say nothing at all.
            let mut silent = Vec::new();
            for _ in 1..MAX_CLIENTS {
                silent.push(TcpStream::connect(address).await.unwrap());
            }
            let long = [b"GET / HTTP/1.1\r\nX: ".as_slice(), &[b'a'; 8 * MAX_HEAD]].concat();
            assert!(!say(address, &long).await.contains(" 200 "));
            assert!(!say(address, b"\x16\x03\x01 no HTTP\r\n\r\n").await.contains(" 200 "));
            assert!(say(address, b"GET / HTTP/1.0\r\n\r\n").await.contains(" 200 "));
        });
    }
}
