//! Requests of a member of the control socket's group, including the arguments of captures, traces and
//! settings.

use dataplane::capture::Order;
use dataplane::filter::{Filter, Look};
use dataplane::telemetry::{Command as Request, MAX_REQUEST};
use ipoib_fwd::command::{Argument, Asked, Command, help};
use ipoib_fwd::setting::Key;
use tap::TapDirection;

/// The maximum of an error, which names the request, perhaps with escaped characters, and the valid values.
const MAX_ERROR: usize = 16 * MAX_REQUEST;

fn refused<T>(answer: Result<T, String>) -> Option<T> {
    answer.map_err(|error| assert!(!error.is_empty() && error.len() <= MAX_ERROR, "{error}")).ok()
}

fn check(asked: &Asked) {
    let again = Request::parse(asked.request().as_bytes()).expect("was one");
    assert_eq!(Asked::parse(&again).as_ref(), Ok(asked));
    let words = asked.argument.as_deref();
    match asked.command {
        Command::Help => drop(refused(help(words))),
        Command::Capture => {
            let order = words.and_then(|words| words.strip_prefix("start,")).map(Order::parse);
            if let Some(order) = order.and_then(refused) {
                assert!(!order.name.contains('/') && !order.name.starts_with('.') && order.name.len() <= 64);
            }
        }
        _ => {}
    }
    if let (Argument::Setting, Some((key, value))) =
        (asked.command.argument(), words.and_then(|w| w.split_once(',')))
    {
        assert!(Key::named(key).and_then(|key| key.value(value)).is_ok(), "accepted, but invalid");
    }
}

/// One input: a request, and after a zero a frame for its packet filters.
pub fn run(bytes: &[u8]) {
    let (words, frame) = bytes.split_at(bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len()));
    let words = &words[..words.len().min(MAX_REQUEST)];
    if let Some(asked) = refused(Request::parse(words)).and_then(|request| refused(Asked::parse(&request))) {
        check(&asked);
    }
    let mut filter = Filter::default();
    let words = str::from_utf8(words).unwrap_or_default().split(',');
    let taken = words
        .filter_map(|word| word.split_once('='))
        .filter(|(key, value)| filter.take(key, value).is_some());
    let taken = taken.count();
    for direction in [TapDirection::Received, TapDirection::Sent] {
        let look = Look::at_frame(direction, frame.get(1..).unwrap_or_default());
        let _ = look.ports();
        assert!(filter.wants(&look) || taken > 0, "an empty filter matches all packets");
    }
}
