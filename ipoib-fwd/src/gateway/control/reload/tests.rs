//! Keys that change at run time, values set at run time, reports of a reload.

use super::*;
use crate::gateway::port_names::PortNames;
use ipoib::link::Mode;

#[test]
fn every_key_that_may_change_has_something_that_changes_it() {
    let keys = Config::live_keys();
    assert!(keys.len() >= 8, "{keys:?}");
    for key in keys {
        assert!(Live::of(&key).is_some(), "{key}");
    }
    assert_eq!(Live::of("gateway.hello-ms"), None);
}

/// The configuration of two segments with these modes.
fn with_modes(one: &str, two: &str) -> Config {
    let segment = |name: &str, vlan: u16, mode: &str| {
        format!(
            "[[segment]]\nname = \"{name}\"\nvlan = {vlan}\npkey = {}\nmode = \"{mode}\"\n",
            0x8000 + vlan
        )
    };
    let text = format!("{}{}", segment("one", 1, one), segment("two", 2, two));
    Config::parse(std::path::Path::new("test.toml"), &text).unwrap()
}

#[test]
fn a_mode_that_was_set_holds_for_new_links_until_the_file_says_another() {
    let config = with_modes("connected", "connected");
    let mut maker = SegmentMaker {
        names: PortNames::of(&config),
        workers: 1,
        instance: 1,
        started: Instant::now(),
        receive_mtu: None,
        mode: None,
        priority: None,
        drained: false,
        config,
    };
    let modes = |maker: &SegmentMaker| -> Vec<Mode> {
        maker.config.segments.iter().map(|segment| maker.link_settings(segment).mode).collect()
    };
    assert_eq!(modes(&maker), [Mode::Connected; 2]);
    maker.mode = Some(Mode::Datagram);
    let with_one_more = maker.with(Config::clone(&maker.config));
    assert_eq!(modes(&with_one_more), [Mode::Datagram; 2], "the file says the same");
    // A change in one segment is enough, and a new segment does not count for the others.
    let given_up = maker.with(with_modes("datagram", "connected"));
    assert_eq!(modes(&given_up), [Mode::Datagram, Mode::Connected]);
    // Running segments behave the same.
    assert_eq!(
        [given_up.mode_of("one"), given_up.mode_of("two")],
        [Some(Mode::Datagram), Some(Mode::Connected)]
    );
    assert_eq!((with_one_more.mode_of("two"), given_up.mode_of("three")), (Some(Mode::Datagram), None));
    // A priority likewise, for any mode.
    maker.priority = Some(200);
    let mut changed = with_modes("datagram", "connected");
    assert_eq!(maker.with(changed.clone()).priority_of("two"), Some(200));
    if let Some(one) = changed.segments.first_mut() {
        one.priority = 7;
    }
    let changed = maker.with(changed);
    assert_eq!([changed.priority_of("one"), changed.priority_of("two")], [Some(7), Some(100)]);
    assert_eq!(changed.priority_of("three"), None);
    maker.priority = None;
    let mut of_one = maker.config.clone();
    of_one.segments.pop();
    maker.config = of_one;
    assert_eq!(modes(&maker.with(with_modes("connected", "connected"))), [Mode::Datagram; 2]);
}

#[test]
fn what_a_refused_reload_had_made_is_no_segment_that_goes() {
    let mut reloader = Reloader::new(None, Overrides::default(), Log::silent(), Vec::new());
    let mut board = dataplane::table::Publisher::new(());
    let forgotten = Some(board.ask());
    for (name, n) in [(Some("gone"), 0), (None, 1)] {
        reloader.draining.push(Draining {
            name: name.map(str::to_owned),
            index: SegmentIndex(n),
            endpoint: EndpointIndex(0),
            link: LinkIndex(n.into()),
            pkey: PKey(0x8001),
            forgotten,
        });
    }
    let rows: Vec<_> = reloader.rows(|_| false).collect();
    assert_eq!((rows.len(), &rows[0]["segment"]), (1, &json!("gone")));
    assert!(reloader.take_removed(|_| false, |_| false).is_empty() && !reloader.is_settled());
    assert_eq!(reloader.take_removed(|_| true, |_| false), ["gone"]);
    assert!(reloader.is_settled());
}

#[test]
fn a_segment_that_has_moved_is_not_reported_as_removed() {
    let mut board = dataplane::table::Publisher::new(());
    let forgotten = Some(board.ask());
    let draining = |name: &str, link: u16| Draining {
        name: Some(name.to_owned()),
        index: SegmentIndex(link as u8),
        endpoint: EndpointIndex(0),
        link: LinkIndex(link),
        pkey: PKey(0x8001),
        forgotten,
    };
    let mut reloader = Reloader::new(None, Overrides::default(), Log::silent(), Vec::new());
    reloader.draining.extend(["one", "two", "gone"].iter().zip(0..).map(|(name, n)| draining(name, n)));
    // `one` runs elsewhere; `two` waits for its new index or partition.
    let two = with_modes("connected", "connected").segments.into_iter().nth(1).unwrap();
    let tries = Backoff::new();
    reloader.waiting.push(Waiting { segment: two, retry: Instant::now(), failed: None, tries });
    let rows: Vec<_> = reloader.rows(|name| name == "one").map(|row| row["segment"].clone()).collect();
    assert_eq!(rows, [json!("gone"), json!("two")]);
    assert_eq!(reloader.take_removed(|_| true, |name| name == "one"), ["gone"]);
    assert!(reloader.is_settled());
    // It has moved, and is removed before its old link is gone: that is one removal.
    reloader.waiting.clear();
    reloader.draining.extend([draining("two", 0), Draining { forgotten: None, ..draining("two", 1) }]);
    assert!(reloader.take_removed(|_| true, |_| false).is_empty());
    reloader.draining.iter_mut().for_each(|d| d.forgotten = forgotten);
    assert_eq!(reloader.take_removed(|_| true, |_| false), ["two"]);
}

#[test]
fn segments_for_which_no_buffers_were_counted_are_warned_of() {
    let segments = |n: u16| {
        let one = |n| format!("[[segment]]\nname = \"s{n}\"\nvlan = {n}\npkey = {}\n", 0x8000 + n);
        let text: String = (1..=n).map(one).collect();
        Config::parse(std::path::Path::new("test.toml"), &text).unwrap()
    };
    let buffers = segments(2).buffers_needed(3);
    assert_eq!(overcommitted(&segments(2), 3, buffers), None);
    assert_eq!(overcommitted(&segments(3), 3, buffers), None, "the reserve is enough for some more");
    let text = overcommitted(&segments(120), 3, buffers).unwrap();
    assert!(
        text.contains("the queues of 120 segments") && text.contains(&format!("there are {buffers}")),
        "{text}"
    );
    assert_eq!(overcommitted(&segments(120), 3, segments(120).buffers_needed(3)), None);
}

/// `ctl health` relies on this.
#[test]
fn a_segment_that_is_not_running_is_reported_with_the_reason() {
    let mut reloader = Reloader::new(None, Overrides::default(), Log::silent(), Vec::new());
    assert_eq!(reloader.coming().count(), 0);
    let now = Instant::now();
    for (segment, failed) in
        with_modes("connected", "connected").segments.into_iter().zip([None, Some("no queue pair is left")])
    {
        let mut tries = Backoff::new();
        if failed.is_some() {
            tries.failed();
        }
        reloader.waiting.push(Waiting { segment, retry: now, failed: failed.map(str::to_owned), tries });
    }
    let coming: Vec<_> = reloader.coming().map(|(name, pkey, why)| (name.to_owned(), pkey.0, why)).collect();
    assert_eq!((coming[0].0.as_str(), coming[0].1), ("one", 0x8001));
    assert!(coming[0].2.contains("to be gone"), "{}", coming[0].2);
    assert!(coming[1].2.contains("refused it 1 times: no queue pair is left"), "{}", coming[1].2);
    assert_eq!(reloader.rows(|_| false).count(), 2);
}
