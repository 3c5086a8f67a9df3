//! `ipoib-fwd ctl`: sends commands to a running gateway over its control socket.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use dataplane::telemetry::{Client, TelemetryError, ask};
use serde_json::Value;

use crate::command::{self, Argument, Asked, Command};
use crate::event;
use crate::page;
use crate::trace;

/// The default path of a gateway's control socket.
pub const DEFAULT_SOCKET: &str = "/run/ipoib-fwd.sock";

/// Suffix of the names of values that are objects keyed by segment name.
pub const BY_SEGMENT: &str = "_by_segment";

/// Time limit of an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time limit of a reload: it creates the queues of all new segments.
const RELOAD_PATIENCE: Duration = Duration::from_secs(60);
/// Time limit of a handover.
const HANDOVER_PATIENCE: Duration = Duration::from_secs(10);

/// Options of `ipoib-fwd ctl`.
#[derive(Args, Debug)]
pub struct CtlOptions {
    /// Control socket of the gateway.
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET, global = true)]
    pub socket: PathBuf,
    /// Print the answer as JSON.
    #[arg(long, global = true)]
    pub json: bool,
    /// The command.
    #[command(subcommand)]
    pub what: Ask,
}

/// Commands of `ipoib-fwd ctl`.
#[derive(Subcommand, Debug)]
pub enum Ask {
    /// A command for the gateway.
    #[command(flatten)]
    Gateway(Asked),
    /// Prints a bash script that completes these commands: source <(ipoib-fwd ctl completion).
    Completion,
}

/// Errors of `ipoib-fwd ctl`.
#[derive(Debug, thiserror::Error)]
pub enum CtlError {
    /// The gateway does not answer, or its answer is an error.
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    /// A command was sent, and no answer arrived.
    #[error(
        "{0}; `{1}` may have been carried out, or may still be: see `ipoib-fwd ctl events` or the log, and `ipoib-fwd ctl stats`"
    )]
    Unanswered(TelemetryError, &'static str),
    /// A stream has ended because the gateway exited.
    #[error("the gateway has exited")]
    Ended,
    /// A segment could not forward.
    #[error("not every segment could forward")]
    Unhealthy,
    /// The gateway forwards although it should be drained.
    #[error("the gateway is not drained: no other one has taken over ({0})")]
    NotDrained(String),
    /// A stream has ended without a notification.
    #[error("the gateway is gone without notice: it was killed, or has crashed")]
    Gone,
}

impl CtlError {
    /// The exit code of the program.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Telemetry(_) | Self::NotDrained(_) => 1,
            Self::Ended => 3,
            Self::Gone => 4,
            Self::Unhealthy => 5,
            Self::Unanswered(..) => 6,
        }
    }
}

/// Sends the command, and prints the answer as text or JSON. A reader of the output that is gone is not an
/// error.
pub fn run(options: &CtlOptions, out: &mut impl Write) -> Result<(), CtlError> {
    match &options.what {
        Ask::Gateway(asked) if matches!(asked.command, Command::Events | Command::Trace) => {
            follow(options, asked, out)
        }
        Ask::Gateway(asked) if asked.command == Command::Drain => drain(options, asked, out),
        Ask::Gateway(asked) if asked.command == Command::Health => {
            let health = ask(&options.socket, &asked.request(), PATIENCE)?;
            let healthy = health.get("healthy") == Some(&Value::Bool(true));
            let _ = out.write_all(shown(options, health).as_bytes());
            if healthy { Ok(()) } else { Err(CtlError::Unhealthy) }
        }
        Ask::Gateway(asked) => {
            let _ = out.write_all(shown(options, put_to(options, asked)?).as_bytes());
            Ok(())
        }
        Ask::Completion => {
            let _ = out.write_all(command::completion().as_bytes());
            Ok(())
        }
    }
}

/// Prints a stream of events or traced packets.
fn follow(options: &CtlOptions, asked: &Asked, out: &mut impl Write) -> Result<(), CtlError> {
    let request = asked.request();
    let mut client = Client::open(&options.socket, PATIENCE)?;
    client.ask(&request)?;
    client.wait_without_end();
    let mut has_end = false;
    loop {
        let row = match client.follow(&request)? {
            None => return Err(CtlError::Gone),
            // The stream has reached its limits.
            Some(Value::Null) if has_end => return Ok(()),
            Some(Value::Null) => return Err(CtlError::Ended),
            Some(row) => row,
        };
        has_end = asked.command == Command::Trace && row.get("end").is_some();
        let line = match asked.command {
            _ if options.json => format!("{row}\n"),
            Command::Trace => trace::line(&row),
            _ => event::line(&row),
        };
        if put(out, &line).is_err() {
            return Ok(());
        }
    }
}

/// Drains the gateway, and waits until it has forwarded packets that hosts still sent to it.
fn drain(options: &CtlOptions, asked: &Asked, out: &mut impl Write) -> Result<(), CtlError> {
    let mut answer = put_to(options, asked)?;
    let health = Asked { command: Command::Health, argument: None }.request();
    let begin = Instant::now();
    while rows(&answer).any(|row| row.get("hands_over") == Some(&Value::Bool(true)))
        && begin.elapsed() < HANDOVER_PATIENCE
    {
        std::thread::sleep(Duration::from_millis(100));
        // The gateway has accepted the command.
        answer = ask(&options.socket, &health, PATIENCE)
            .map_err(|error| CtlError::Unanswered(error, asked.command.word()))?;
    }
    // A segment that the device refuses has no role.
    let serves = |row: &Value| row.get("role").and_then(Value::as_str).is_some_and(|role| role != "drained");
    let undo = asked.argument.as_deref() == Some("undo");
    let back = rows(&answer).find(|row| !undo && serves(row));
    if let Some(name) = back.and_then(|row| row.get("segment")).and_then(Value::as_str) {
        return Err(CtlError::NotDrained(name.to_owned()));
    }
    let answer = serde_json::json!({ "drained": !undo, "segments": answer.get("segments") });
    let _ = out.write_all(shown(options, answer).as_bytes());
    Ok(())
}

fn rows(answer: &Value) -> impl Iterator<Item = &Value> {
    answer.get("segments").and_then(Value::as_array).into_iter().flatten()
}

fn put(out: &mut impl Write, line: &str) -> io::Result<()> {
    out.write_all(line.as_bytes())?;
    out.flush()
}

/// Sends a query or a command to the gateway. A command that was sent may be
/// carried out even if no answer comes.
fn put_to(options: &CtlOptions, asked: &Asked) -> Result<Value, CtlError> {
    let (request, command) = (asked.request(), asked.command);
    if command.argument() == Argument::Page {
        return Ok(page::fetch(&options.socket, asked, PATIENCE)?);
    }
    if !asked.is_order() {
        return Ok(ask(&options.socket, &request, PATIENCE)?);
    }
    let patience = if command == Command::Reload { RELOAD_PATIENCE } else { PATIENCE };
    let mut client = Client::open(&options.socket, patience)?;
    client.ask(&request).map_err(|error| match error {
        refused @ TelemetryError::Refused(_) => refused.into(),
        error => CtlError::Unanswered(error, command.word()),
    })
}

fn shown(options: &CtlOptions, answer: Value) -> String {
    match answer {
        // A text of several lines is printed unchanged.
        Value::String(text) if text.ends_with('\n') => text,
        answer if options.json => format!("{answer:#}\n"),
        mut answer => {
            // The text shows each value once.
            if let Some(answer) = answer.as_object_mut() {
                answer.retain(|name, _| !name.ends_with(BY_SEGMENT));
            }
            render(&answer)
        }
    }
}

/// A JSON value as indented text; a list of objects becomes a table.
#[must_use]
pub fn render(value: &Value) -> String {
    let mut out = String::new();
    render_into(&mut out, value, 0);
    out
}

fn render_into(out: &mut String, value: &Value, indent: usize) {
    let pad = "  ".repeat(indent);
    match value {
        Value::Object(fields) => {
            let width = fields.keys().map(String::len).max().unwrap_or(0);
            for (name, field) in fields {
                match flat(field) {
                    Some(text) => out.push_str(&format!("{pad}{:width$}  {text}\n", name.replace('_', " "))),
                    None => {
                        out.push_str(&format!("{pad}{}\n", name.replace('_', " ")));
                        render_into(out, field, indent + 1);
                    }
                }
            }
        }
        Value::Array(rows) if rows.is_empty() => out.push_str(&format!("{pad}(none)\n")),
        Value::Array(rows) if rows.iter().any(is_nested) => {
            for (number, row) in rows.iter().enumerate() {
                out.push_str(&format!("{pad}{number}\n"));
                render_into(out, row, indent + 1);
            }
        }
        Value::Array(rows) => table(out, rows, &pad),
        other => out.push_str(&format!("{pad}{}\n", scalar(other))),
    }
}

/// True for a row that does not fit into a line of a table.
fn is_nested(row: &Value) -> bool {
    row.as_object().is_some_and(|row| row.values().any(|field| field.is_object() || field.is_array()))
}

/// The text of a value that fits one line.
fn flat(value: &Value) -> Option<String> {
    match value {
        Value::Object(fields) if !fields.is_empty() && fields.len() <= 8 => fields
            .iter()
            .map(|(name, field)| match field {
                Value::Object(_) | Value::Array(_) => None,
                field => Some(format!("{} {}", name.replace('_', " "), scalar(field))),
            })
            .collect::<Option<Vec<_>>>()
            .map(|parts| parts.join(", ")),
        Value::Object(_) | Value::Array(_) => None,
        other => Some(scalar(other)),
    }
}

fn scalar(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn table(out: &mut String, rows: &[Value], pad: &str) {
    let Some(columns) =
        rows.first().and_then(Value::as_object).map(|r| r.keys().cloned().collect::<Vec<_>>())
    else {
        for row in rows {
            out.push_str(&format!("{pad}{}\n", scalar(row)));
        }
        return;
    };
    let cell = |row: &Value, column: &str| row.get(column).map_or_else(String::new, scalar);
    let widths: Vec<usize> = columns
        .iter()
        .map(|c| rows.iter().map(|r| cell(r, c).chars().count()).max().unwrap_or(0).max(c.chars().count()))
        .collect();
    let line = |out: &mut String, cells: Vec<String>| {
        let text: Vec<String> = cells.iter().zip(&widths).map(|(c, w)| format!("{c:w$}")).collect();
        out.push_str(&format!("{pad}{}\n", text.join("  ").trim_end()));
    };
    line(out, columns.iter().map(|c| c.replace('_', " ")).collect());
    for row in rows {
        line(out, columns.iter().map(|c| cell(row, c)).collect());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn lists_of_objects_become_tables() {
        let text = render(&json!({"neighbours": [
            {"address": "10.0.0.1", "state": "reachable"},
            {"address": "10.0.0.100", "state": "stale"},
        ], "drops": {"no_neighbour": 3}}));
        assert!(text.contains("address     state\n  10.0.0.1    reachable\n"), "{text}");
        assert!(text.contains("no neighbour 3"), "{text}");
        // Rows that do not fit into a table are shown one by one.
        let text = render(&json!({"workers": [{"punt": {"packets": 1}}, {"punt": {"packets": 2}}]}));
        assert_eq!(text, "workers\n  0\n    punt  packets 1\n  1\n    punt  packets 2\n");
    }

    /// Serves clients one after the other: greets each, takes one request, and answers with the next
    /// of `answers`, or closes the connection.
    fn serve(path: &std::path::Path, answers: Vec<Option<&'static str>>) -> std::thread::JoinHandle<()> {
        use rustix::net::{
            AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketType, accept, bind, listen, recv,
            send, socket,
        };
        let _ = std::fs::remove_file(path);
        let server = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        bind(&server, &SocketAddrUnix::new(path).unwrap()).unwrap();
        listen(&server, 1).unwrap();
        std::thread::spawn(move || {
            for answer in answers {
                let client = accept(&server).unwrap();
                send(&client, br#"{"version":"test","pid":1,"max_output_len":65536}"#, SendFlags::empty())
                    .unwrap();
                recv(&client, &mut [0; 1024], RecvFlags::empty()).unwrap();
                if let Some(answer) = answer {
                    send(&client, answer.as_bytes(), SendFlags::empty()).unwrap();
                }
            }
        })
    }

    /// The error of a command with these answers.
    fn end_of(command: Command, argument: Option<&str>, answers: Vec<Option<&'static str>>) -> CtlError {
        let name = format!("ctl-{}-{:?}", std::process::id(), std::thread::current().id());
        let path = std::env::temp_dir().join(name);
        let server = serve(&path, answers);
        let asked = Asked { command, argument: argument.map(str::to_owned) };
        let options = CtlOptions { socket: path.clone(), json: true, what: Ask::Gateway(asked) };
        let error = run(&options, &mut Vec::new()).unwrap_err();
        server.join().unwrap();
        let _ = std::fs::remove_file(&path);
        error
    }

    #[test]
    fn an_order_without_an_answer_may_have_been_carried_out() {
        for (command, argument, answer, code, says) in [
            (Command::Reload, None, None, 6, "`reload` may have been carried out"),
            (Command::Drain, None, None, 6, "`drain` may have been carried out"),
            (Command::Set, Some("log,debug"), None, 6, "`set` may have been carried out"),
            (Command::Capture, Some("stop"), None, 6, "`capture` may have been carried out"),
            (Command::Stats, None, None, 1, "closed the connection"),
            (Command::Set, None, None, 1, "closed the connection"),
            (Command::Set, Some("log"), None, 1, "closed the connection"),
            (Command::Capture, None, None, 1, "closed the connection"),
            (Command::Reload, None, Some(r#"{"error":"line 3 is wrong"}"#), 1, "line 3 is wrong"),
        ] {
            let error = end_of(command, argument, vec![answer]);
            assert_eq!(error.exit_code(), code, "{command:?} {argument:?}: {error}");
            assert!(error.to_string().contains(says), "{error}");
        }
    }

    #[test]
    fn a_drain_whose_outcome_is_unknown_may_have_been_carried_out() {
        let taken = r#"{"/drain":{"segments":[{"segment":"lab","role":"forwarding","hands_over":true}]}}"#;
        for health in [None, Some(r#"{"error":"the gateway is busy"}"#)] {
            let error = end_of(Command::Drain, None, vec![Some(taken), health]);
            assert_eq!(error.exit_code(), 6, "{error}");
            assert!(error.to_string().contains("`drain` may have been carried out"), "{error}");
        }
    }
}
