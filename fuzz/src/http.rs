//! Requests of any client of `ipoib-fwd metrics`: each answer is a page or an error, and the connection
//! always ends.

use std::path::Path;
use std::sync::Arc;

use ipoib_fwd::metrics::{Gateway, serve};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::runtime::{Builder, Runtime};

/// Maximum of a request and of all answers: pages are short without a gateway.
const MOST: usize = 1 << 16;
const ANSWERS: usize = 1 << 22;

thread_local! {
    static RUNTIME: Option<Runtime> = Builder::new_current_thread().enable_time().max_blocking_threads(1).build().ok();
}

/// Sends the bytes in pieces and closes the connection; returns the answer.
async fn say(mut client: DuplexStream, request: &[u8], piece: usize) -> Vec<u8> {
    for part in request.chunks(piece) {
        // The server may close the connection early.
        if client.write_all(part).await.is_err() {
            break;
        }
        tokio::task::yield_now().await;
    }
    let _ = client.shutdown().await;
    let mut answer = Vec::new();
    let _ = client.read_to_end(&mut answer).await;
    answer
}

/// One input: length of the pieces, and the bytes.
pub fn run(bytes: &[u8]) {
    let Some((piece, request)) = bytes.split_first() else { return };
    let request = &request[..request.len().min(MOST)];
    let gateway = Arc::new(Gateway::new(Path::new("/nonexistent/ipoib-fwd.sock")));
    // No deadlock: the socket buffer holds all answers, and the client reads them at the end.
    let (client, server) = duplex(ANSWERS);
    let answer = RUNTIME.with(|runtime| {
        let runtime = runtime.as_ref().expect("a runtime");
        let talk =
            async { tokio::join!(say(client, request, 1 + usize::from(*piece)), serve(server, gateway)).0 };
        runtime.block_on(talk)
    });
    check(&answer);
}

fn check(answer: &[u8]) {
    assert!(answer.len() < ANSWERS, "an answer without a request");
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1."), "{:?}", answer.get(..16));
    let text = String::from_utf8_lossy(answer);
    for status in text.split("HTTP/1.").skip(1).filter_map(|head| head.get(2..5)) {
        let known = ["100", "200", "400", "404", "405", "414", "431", "503"];
        assert!(known.contains(&status), "status {status} in {text}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_and_refusals_come() {
        let said = |request: &str| {
            let gateway = Arc::new(Gateway::new(Path::new("/nonexistent/ipoib-fwd.sock")));
            let (client, server) = duplex(ANSWERS);
            let runtime = Builder::new_current_thread().enable_time().build().unwrap();
            let answer = runtime.block_on(async {
                tokio::join!(say(client, request.as_bytes(), 7), serve(server, gateway)).0
            });
            check(&answer);
            String::from_utf8(answer).unwrap()
        };
        assert!(said("GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200"));
        let refusal = said("POST /metrics HTTP/1.0\r\n\r\n");
        assert!(refusal.contains(" 405 "), "{refusal:?}");
        assert!(said("GET /x HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n").matches("HTTP/1.1").count() == 1);
        assert!(said("nothing of that kind\r\n\r\n").contains(" 400 "));
        assert!(said(&format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "x".repeat(20 << 10))).contains(" 431 "));
    }
}
