//! The client side.

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::net::{RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, connect, recv, send, sockopt};
use serde_json::Value;

use super::{MAX_ANSWER, MAX_MESSAGE, TelemetryError, seqpacket};

const LATE: &str = "; the gateway did not answer in time";

/// A connection to a running program.
#[derive(Debug)]
pub struct Client {
    path: PathBuf,
    pub(super) socket: OwnedFd,
    /// Time limit for a complete answer; `None` for no limit.
    timeout: Option<Duration>,
    /// Length of every message of an answer except the last, in bytes.
    part: usize,
    buffer: Vec<u8>,
}

impl Client {
    /// Connects and receives the greeting within `timeout`. The timeout also applies to each answer.
    pub fn open(path: &Path, timeout: Duration) -> Result<Self, TelemetryError> {
        let end = Instant::now() + timeout;
        let fail = |what, hint| {
            move |e: rustix::io::Errno| TelemetryError::Socket {
                path: path.to_owned(),
                what,
                source: e.into(),
                hint,
            }
        };
        let address =
            SocketAddrUnix::new(path).map_err(fail("use this path", "; a path has at most 107 bytes"))?;
        let socket = seqpacket(SocketFlags::empty()).map_err(|e| TelemetryError::Socket {
            path: path.to_owned(),
            what: "be made",
            source: e,
            hint: "",
        })?;
        // unix(7): the timeout also limits connecting, which waits if the server's backlog is full.
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(timeout))
            .map_err(fail("set a time limit", ""))?;
        connect(&socket, &address).map_err(|error| fail("connect", refused(error))(error))?;
        let buffer = vec![0u8; MAX_MESSAGE];
        let mut client = Self { path: path.to_owned(), socket, timeout: None, part: MAX_MESSAGE, buffer };
        client.end_at(end);
        let greeting = client.receive()?;
        if let Some(why) = greeting.get("error").and_then(Value::as_str) {
            return Err(TelemetryError::Refused(why.to_owned()));
        }
        client.timeout = Some(timeout);
        let part = greeting.get("max_output_len").and_then(Value::as_u64);
        let part = part.and_then(|n| usize::try_from(n).ok()).unwrap_or(MAX_MESSAGE);
        client.part = part.clamp(1, MAX_MESSAGE);
        Ok(client)
    }

    fn fail(&self, what: &'static str, hint: &'static str, e: rustix::io::Errno) -> TelemetryError {
        TelemetryError::Socket { path: self.path.clone(), what, source: e.into(), hint }
    }

    fn protocol(&self, what: String) -> TelemetryError {
        TelemetryError::Protocol { path: self.path.clone(), what }
    }

    /// Removes the time limit, for repeated answers.
    pub const fn wait_without_end(&mut self) {
        self.timeout = None;
    }

    fn end_at(&mut self, end: Instant) {
        self.timeout = Some(end.saturating_duration_since(Instant::now()));
    }

    /// Limits the next receive to the time left until `end`.
    fn limit(&self, end: Option<Instant>) -> Result<(), TelemetryError> {
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Err(self.fail("read an answer", LATE, rustix::io::Errno::TIMEDOUT));
        }
        sockopt::set_socket_timeout(&self.socket, sockopt::Timeout::Recv, left)
            .map_err(|e| self.fail("set a time limit", "", e))
    }

    /// Returns the next value, or `None` if the server closed the connection.
    pub(super) fn next(&mut self) -> Result<Option<Value>, TelemetryError> {
        let end = self.timeout.map(|timeout| Instant::now() + timeout);
        let mut answer = Vec::new();
        loop {
            self.limit(end)?;
            let received = recv(self.socket.as_fd(), &mut self.buffer[..], RecvFlags::empty());
            let length = match received {
                Ok((0, _)) | Err(rustix::io::Errno::CONNRESET) if answer.is_empty() => return Ok(None),
                Ok((0, _)) => return Err(self.protocol("the server closed the connection".to_owned())),
                Ok((length, _)) => length,
                Err(rustix::io::Errno::INTR) => continue,
                Err(e) => return Err(self.fail("read an answer", LATE, e)),
            };
            answer.extend_from_slice(self.buffer.get(..length).unwrap_or_default());
            if answer.len() > MAX_ANSWER + self.part {
                return Err(self.protocol(format!("the answer is longer than {MAX_ANSWER} bytes")));
            }
            if length < self.part {
                return serde_json::from_slice(&answer).map(Some).map_err(|e| self.protocol(e.to_string()));
            }
        }
    }

    fn receive(&mut self) -> Result<Value, TelemetryError> {
        let closed = || "the server closed the connection".to_owned();
        self.next()?.ok_or_else(|| self.protocol(closed()))
    }

    /// Sends a request and waits for its answer.
    pub fn ask(&mut self, request: &str) -> Result<Value, TelemetryError> {
        send(&self.socket, request.as_bytes(), SendFlags::NOSIGNAL)
            .map_err(|e| self.fail("send the request", "", e))?;
        let reply = self.receive()?;
        self.value(request, reply)
    }

    /// Returns the next of the repeated answers to a request. Returns `None` if the server closed the
    /// connection without a final null.
    pub fn follow(&mut self, request: &str) -> Result<Option<Value>, TelemetryError> {
        self.next()?.map(|reply| self.value(request, reply)).transpose()
    }

    fn value(&self, request: &str, mut reply: Value) -> Result<Value, TelemetryError> {
        if let Some(why) = reply.get("error").and_then(Value::as_str) {
            return Err(TelemetryError::Refused(why.to_owned()));
        }
        let name = request.split(',').next().unwrap_or_default();
        reply
            .get_mut(name)
            .map(Value::take)
            .ok_or_else(|| self.protocol(format!("the answer does not contain {name}")))
    }
}

/// Returns a remedy for a failed connection.
const fn refused(error: rustix::io::Errno) -> &'static str {
    match error {
        rustix::io::Errno::AGAIN => {
            "; the gateway accepts no more clients: close some (ipoib-fwd ctl, top, metrics), or try again later"
        }
        rustix::io::Errno::ACCESS | rustix::io::Errno::PERM => {
            "; only the gateway's user and members of its group may use it: run this command as one of them, or set group in [gateway]"
        }
        _ => "; is the gateway running, and with this control socket (--socket)?",
    }
}

/// Sends one request to a running program and waits for the answer, for at most `timeout` in total.
pub fn ask(path: &Path, request: &str, timeout: Duration) -> Result<Value, TelemetryError> {
    let end = Instant::now() + timeout;
    let mut client = Client::open(path, timeout)?;
    client.end_at(end);
    client.ask(request)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    #[test]
    fn an_error_of_permission_names_user_and_group() {
        for error in [Errno::ACCESS, Errno::PERM] {
            let hint = refused(error);
            assert!(hint.contains("user") && hint.contains("group in [gateway]"), "{hint}");
        }
        assert!(
            refused(Errno::NOENT).contains("--socket") && refused(Errno::CONNREFUSED).contains("--socket")
        );
        assert!(refused(Errno::AGAIN).contains("no more clients"));
    }
}
