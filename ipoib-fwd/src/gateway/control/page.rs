//! A page of a list over all segments: its rows, whose number is limited before they are built, and the
//! cursor of the next page.

use std::fmt::Display;
use std::str::FromStr;

use serde_json::Value;

use crate::forward::SegmentIndex;
use crate::page::{Cursor, PageRequest};

/// Rows of one page, over the segments in the order of their indexes and each segment's lists in a fixed
/// order.
#[derive(Debug)]
pub(super) struct Page<'a> {
    after: Option<Cursor<'a>>,
    /// The lists of each segment, in their order.
    lists: &'static [&'static str],
    room: usize,
    next: Option<String>,
}

impl<'a> Page<'a> {
    /// A page without rows yet; `lists` are the lists of each segment.
    pub(super) fn new(request: &PageRequest<'a>, lists: &'static [&'static str]) -> Result<Self, String> {
        let after = request.after;
        if let Some(after) = after.filter(|after| !lists.contains(&after.list)) {
            return Err(format!(
                "after={after}: the cursor is of another list; write what `next` of the page before says"
            ));
        }
        Ok(Self { after, lists, room: request.limit, next: None })
    }

    /// Adds the next rows of one list of a segment, in the order of their keys, and builds only those. `rows`
    /// gets the key of the last row before the page, and the number of following rows that are read. It may
    /// return other rows, too. It is not called if the list is before the page or after it.
    pub(super) fn extend<K, R, I>(
        &mut self,
        out: &mut Vec<Value>,
        (segment, list): (SegmentIndex, &'static str),
        rows: impl FnOnce(Option<&K>, usize) -> I,
        build: impl Fn(R) -> Value,
    ) where
        K: Ord + Display + FromStr,
        I: IntoIterator<Item = (K, R)>,
    {
        let place = |segment: u8, list: &str| (segment, self.lists.iter().position(|known| *known == list));
        let here = place(segment.0, list);
        let begin = self.after.map(|after| (place(after.segment, after.list), after.key));
        if self.next.is_some() || begin.is_some_and(|(at, _)| here < at) {
            return;
        }
        // A key that cannot be parsed belongs to no row: the list starts again.
        let last = begin.filter(|(at, _)| here == *at).and_then(|(_, key)| key.parse::<K>().ok());
        // One more than fits: it shows that there is another page.
        let most = self.room + 1;
        let rows = rows(last.as_ref(), most).into_iter();
        let mut rows = smallest(rows.filter(|(key, _)| last.as_ref().is_none_or(|last| key > last)), most);
        let goes_on = rows.len() > self.room;
        rows.truncate(self.room);
        self.room -= rows.len();
        let last = rows.last().map(|(key, _)| key.to_string());
        out.extend(rows.into_iter().map(|(_, row)| build(row)));
        if goes_on {
            // The page may end with the previous list: then the next one starts with this list.
            let key = last.unwrap_or_default();
            self.next = Some(Cursor { segment: segment.0, list, key: &key }.to_string());
        }
    }

    /// The cursor of the next page; null if this is the last one.
    pub(super) fn next(self) -> Value {
        self.next.into()
    }

    /// True for the page with which a list starts.
    pub(super) const fn is_first(&self) -> bool {
        self.after.is_none()
    }
}

/// The `n` smallest keys and their rows, sorted; keeps at most 2 `n` at a time.
fn smallest<K: Ord, R>(rows: impl Iterator<Item = (K, R)>, n: usize) -> Vec<(K, R)> {
    let mut kept: Vec<(K, R)> = Vec::new();
    for row in rows {
        kept.push(row);
        if kept.len() >= 2 * n {
            kept.select_nth_unstable_by(n - 1, |(a, _), (b, _)| a.cmp(b));
            kept.truncate(n);
        }
    }
    kept.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
    kept.truncate(n);
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::MOST_ROWS;
    use crate::page::tests::all;
    use serde_json::json;
    use std::cell::Cell;
    use std::collections::BTreeSet;
    use std::net::{IpAddr, Ipv4Addr};

    const LISTS: &[&str] = &["infiniband", "ethernet"];

    /// Answers a request from tables of addresses, by segment and list, as the gateway does;
    /// counts the rows that it builds.
    fn serve(tables: &[[Vec<IpAddr>; 2]], request: &str, built: &Cell<usize>) -> Value {
        let words = request.split_once(',').map(|(_, words)| words);
        let request = PageRequest::parse(words).unwrap();
        let mut page = Page::new(&request, LISTS).unwrap();
        let mut out = [Vec::new(), Vec::new()];
        for (segment, lists) in (0..).zip(tables) {
            for ((list, name), out) in lists.iter().zip(LISTS).zip(&mut out) {
                let rows = |_: Option<&IpAddr>, _| list.iter().map(|ip| (*ip, *ip));
                page.extend(out, (SegmentIndex(segment), *name), rows, |ip| {
                    built.set(built.get() + 1);
                    json!([segment, ip])
                });
            }
        }
        let [infiniband, ethernet] = out;
        json!({"infiniband": infiniband, "ethernet": ethernet, "next": page.next()})
    }

    /// Addresses that are not sorted.
    fn crowd(n: u32) -> Vec<IpAddr> {
        (0..n).map(|i| Ipv4Addr::from_bits(0x0a00_0000 + (i.wrapping_mul(40_503) & 0xffff)).into()).collect()
    }

    #[test]
    fn a_crowd_is_listed_whole_by_pages_of_which_each_builds_its_own_rows_only() {
        let tables = [
            [crowd(40_000), crowd(16_384)],
            [Vec::new(), crowd(1)],
            [crowd(2_048), Vec::new()],
            [crowd(25_535), crowd(9)],
        ];
        for limit in [MOST_ROWS, 1_000] {
            let mut pages = 0;
            let answer = all(&format!("/neighbours,limit={limit}"), |request| {
                pages += 1;
                let built = Cell::new(0);
                let page = serve(&tables, request, &built);
                assert!(built.get() <= limit, "{request} builds {}", built.get());
                page
            });
            let rows: usize = tables.iter().flatten().map(Vec::len).sum();
            assert_eq!(pages, rows.div_ceil(limit), "every page but the last is full");
            for (list, name) in LISTS.iter().enumerate() {
                let listed: Vec<(u8, IpAddr)> = serde_json::from_value(answer[name].clone()).unwrap();
                let there: BTreeSet<(u8, IpAddr)> = (0..)
                    .zip(&tables)
                    .flat_map(|(segment, lists)| lists[list].iter().map(move |ip| (segment, *ip)))
                    .collect();
                assert!(listed.iter().eq(there.iter()), "each row of {name} once, in order");
            }
        }
    }

    #[test]
    fn a_list_builds_only_the_rows_of_a_page() {
        let seen = std::cell::RefCell::new(Vec::new());
        let answer = all("/connections,limit=3", |request| {
            let words = request.split_once(',').map(|(_, words)| words);
            let mut page = Page::new(&PageRequest::parse(words).unwrap(), LISTS).unwrap();
            let mut out = Vec::new();
            let rows = |after: Option<&u64>, most: usize| {
                let after = after.copied().unwrap_or_default();
                seen.borrow_mut().push((after, most));
                (after + 1..=7).take(most).map(|n| (n, n))
            };
            page.extend(&mut out, (SegmentIndex(0), "ethernet"), rows, Value::from);
            json!({"rows": out, "next": page.next()})
        });
        assert_eq!(answer["rows"], json!([1, 2, 3, 4, 5, 6, 7]));
        assert_eq!(seen.into_inner(), [(0, 4), (3, 4), (6, 4)]);
    }

    #[test]
    fn rows_that_come_and_go_between_pages_hide_no_other() {
        let tables = [[crowd(10), Vec::new()]];
        let first = serve(&tables, "/neighbours,limit=4", &Cell::new(0));
        let next = first["next"].as_str().unwrap().to_owned();
        // The row that the cursor names is gone, and a new one precedes it.
        let mut later = crowd(10);
        later.sort_unstable();
        let rest: Vec<IpAddr> = later.split_off(4);
        let tables = [[[vec![Ipv4Addr::new(9, 0, 0, 1).into()], rest.clone()].concat(), Vec::new()]];
        let second = serve(&tables, &format!("/neighbours,after={next}"), &Cell::new(0));
        let listed: Vec<(u8, IpAddr)> = serde_json::from_value(second["infiniband"].clone()).unwrap();
        assert_eq!(listed, rest.iter().map(|ip| (0, *ip)).collect::<Vec<_>>());
        assert_eq!(second["next"], Value::Null);
    }

    #[test]
    fn a_cursor_of_another_list_is_refused_and_lists_before_it_are_not_touched() {
        let request = PageRequest::parse(Some("after=1/connections/7")).unwrap();
        assert!(Page::new(&request, LISTS).unwrap_err().contains("another list"));
        let request = PageRequest::parse(Some("after=1/ethernet/10.0.0.1")).unwrap();
        let mut page = Page::new(&request, LISTS).unwrap();
        let mut out = Vec::new();
        for (segment, list) in [(0, "infiniband"), (0, "ethernet"), (1, "infiniband")] {
            let untouched = |_: Option<&IpAddr>, _| -> Vec<(IpAddr, ())> {
                panic!("{segment}/{list} is before the page")
            };
            page.extend(&mut out, (SegmentIndex(segment), list), untouched, |()| Value::Null);
        }
        assert!(out.is_empty());
    }
}
