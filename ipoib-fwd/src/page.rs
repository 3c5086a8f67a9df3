//! Pages of lists on the control socket: the page arguments of a request, and
//! the client's loop over all pages.
//!
//! A list's answer has at most [`MOST_ROWS`] rows and `next`, a cursor, or null on the last page. The same
//! request with `after=CURSOR` continues after that row, in the order of keys. Rows that are added or removed
//! in between neither repeat nor hide others.

use std::path::Path;
use std::time::Duration;

use dataplane::telemetry::{Client, TelemetryError};
use serde_json::Value;

use crate::command::Asked;

/// Maximum number of rows of a page, and the default.
pub const MOST_ROWS: usize = 2_048;
/// Maximum number of pages that a client reads: 16 times the number that the largest tables fill.
const MOST_PAGES: usize = 1_024;

/// Position of a row: the next page starts after it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cursor<'a> {
    /// The segment's number.
    pub segment: u8,
    /// The list of that segment, by its name in the answer.
    pub list: &'a str,
    /// The row's key in that list.
    pub key: &'a str,
}

impl<'a> Cursor<'a> {
    /// Reads `SEGMENT/LIST/KEY`.
    fn parse(text: &'a str) -> Option<Self> {
        let (segment, rest) = text.split_once('/')?;
        let (list, key) = rest.split_once('/')?;
        Some(Self { segment: segment.parse().ok()?, list, key })
    }
}

impl std::fmt::Display for Cursor<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}/{}", self.segment, self.list, self.key)
    }
}

/// The page arguments of a request: `[SEGMENT][,after=CURSOR][,limit=ROWS]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageRequest<'a> {
    /// The segment whose rows are requested; `None` for all.
    pub segment: Option<&'a str>,
    /// The last row of the previous page.
    pub after: Option<Cursor<'a>>,
    /// Maximum number of rows.
    pub limit: usize,
}

impl<'a> PageRequest<'a> {
    /// Parses a request's arguments; an error names the invalid one.
    pub fn parse(words: Option<&'a str>) -> Result<Self, String> {
        let mut page = Self { segment: None, after: None, limit: MOST_ROWS };
        for word in words.unwrap_or_default().split(',').filter(|word| !word.is_empty()) {
            match word.split_once('=') {
                Some(("after", cursor)) => {
                    let wrong = || format!("after={cursor}: not a cursor; use `next` of the previous page");
                    page.after = Some(Cursor::parse(cursor).ok_or_else(wrong)?);
                }
                Some(("limit", rows)) => {
                    let rows = rows.parse().ok().filter(|rows| (1..=MOST_ROWS).contains(rows));
                    page.limit = rows.ok_or_else(|| format!("{word}: a page has 1 to {MOST_ROWS} rows"))?;
                }
                None if page.segment.is_none() => page.segment = Some(word),
                _ => {
                    return Err(format!("invalid argument `{word}`; usage: SEGMENT,after=CURSOR,limit=ROWS"));
                }
            }
        }
        Ok(page)
    }
}

/// Queries a gateway for a list, page by page, and returns it as one answer. The pages have the maximum size,
/// whatever `limit=` says. `patience` is the timeout for each page.
pub fn fetch(socket: &Path, asked: &Asked, patience: Duration) -> Result<Value, TelemetryError> {
    let mut client = Client::open(socket, patience)?;
    join(&without_limit(&asked.request()), |request| client.ask(request)).map_err(|error| match error {
        JoinError::Ask(error) => error,
        JoinError::Endless => TelemetryError::Protocol {
            path: socket.to_owned(),
            what: format!("the list has more than {MOST_PAGES} pages"),
        },
    })
}

/// Removes the page size from a request.
fn without_limit(request: &str) -> String {
    let words = request.split(',').filter(|word| !word.starts_with("limit="));
    words.collect::<Vec<_>>().join(",")
}

/// Why the pages of a list cannot be joined.
#[derive(PartialEq, Eq, Debug)]
enum JoinError<E> {
    /// A page was refused.
    Ask(E),
    /// There are too many pages.
    Endless,
}

/// Joins pages. Lists are concatenated; other values are taken from the first page.
fn join<E>(request: &str, mut ask: impl FnMut(&str) -> Result<Value, E>) -> Result<Value, JoinError<E>> {
    let mut whole = ask(request).map_err(JoinError::Ask)?;
    let mut next = take_next(&mut whole);
    for _ in 1..MOST_PAGES {
        let Some(cursor) = next else { return Ok(whole) };
        let mut page = ask(&format!("{request},after={cursor}")).map_err(JoinError::Ask)?;
        next = take_next(&mut page);
        if let (Some(whole), Value::Object(page)) = (whole.as_object_mut(), page) {
            for (name, rows) in page {
                if let (Some(Value::Array(all)), Value::Array(mut rows)) = (whole.get_mut(&name), rows) {
                    all.append(&mut rows);
                }
            }
        }
    }
    if next.is_none() { Ok(whole) } else { Err(JoinError::Endless) }
}

/// Takes the cursor out of a page. A gateway of a version without pages sends the whole list without a
/// cursor.
fn take_next(page: &mut Value) -> Option<String> {
    match page.as_object_mut()?.remove("next")? {
        Value::String(next) => Some(next),
        _ => None,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::json;

    /// The answer that a client gets from a server that answers requests with `serve`.
    pub(crate) fn all(request: &str, serve: impl FnMut(&str) -> Value) -> Value {
        let mut serve = serve;
        join(request, |request| Ok::<_, ()>(serve(request))).unwrap()
    }

    #[test]
    fn a_request_has_a_segment_a_cursor_and_a_limit_in_any_order() {
        let whole = PageRequest { segment: None, after: None, limit: MOST_ROWS };
        assert_eq!(PageRequest::parse(None), Ok(whole));
        let after = Cursor { segment: 3, list: "ethernet", key: "fe80::1" };
        assert_eq!(after.to_string(), "3/ethernet/fe80::1");
        let one = PageRequest { segment: Some("lab"), after: Some(after), limit: 7 };
        assert_eq!(PageRequest::parse(Some("lab,limit=7,after=3/ethernet/fe80::1")), Ok(one));
        assert_eq!(PageRequest::parse(Some("after=3/ethernet/fe80::1,limit=7,lab")), Ok(one));
        for wrong in
            ["limit=0", "limit=2049", "limit=x", "after=", "after=300/a/b", "after=1/a", "a,b", "from=1"]
        {
            assert!(PageRequest::parse(Some(wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_whole_list_is_read_in_large_pages() {
        for (given, expected) in [
            ("/neighbours,lab,limit=1", "/neighbours,lab"),
            ("/neighbours,limit=1,lab,after=0/a/b", "/neighbours,lab,after=0/a/b"),
            ("/neighbours", "/neighbours"),
        ] {
            assert_eq!(without_limit(given), expected);
        }
    }

    #[test]
    fn pages_are_joined_up_to_a_limit() {
        let mut requests = Vec::new();
        let answer = all("/x,lab", |request| {
            requests.push(request.to_owned());
            match requests.len() {
                1 => json!({"rows": [1, 2], "up": true, "next": "0/rows/2"}),
                _ => json!({"rows": [3], "up": false, "next": null}),
            }
        });
        assert_eq!(answer, json!({"rows": [1, 2, 3], "up": true}));
        assert_eq!(requests, ["/x,lab", "/x,lab,after=0/rows/2"]);
        let old = json!({"rows": [1], "left_out": 0});
        assert_eq!(all("/x", |_| old.clone()), old, "a gateway without pages");
        let endless = join("/x", |_| Ok::<_, ()>(json!({"next": "0/rows/0"})));
        assert_eq!(endless, Err(JoinError::Endless));
    }
}
