//! Pages in the supported sizes.

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use serde_json::{Value, json};

use super::*;
use crate::top::sample;
use crate::top::snapshot::Snapshot;

fn page(view: View) -> Page {
    Page { socket: "/run/ipoib-fwd.sock".to_owned(), view, interval: 1.0, ..Page::default() }
}

/// The contents of a terminal of that size.
fn shown(size: (u16, u16), page: &Page, model: Option<&Model>) -> String {
    let mut history = History::default();
    for _ in 0..50 {
        history.add(&model.cloned().unwrap_or_default());
    }
    let mut terminal = Terminal::new(TestBackend::new(size.0, size.1)).unwrap();
    terminal.draw(|frame| draw(frame.buffer_mut(), page, model, &history)).unwrap();
    to_text(terminal.backend().buffer())
}

fn sample_model() -> Model {
    let [before, now] = sample::moments();
    Model::new(Some(&before), now)
}

/// A gateway with the maximum of everything.
fn crowd() -> Model {
    let of = |up_ms: u64| {
        let mut stats = sample::stats(up_ms, [up_ms, up_ms / 10, 8, up_ms * 100_000]);
        let segments: Vec<Value> = (0..128)
            .map(|n| json!({"segment": format!("a-segment-with-a-name-of-32-{n:04}"), "to_infiniband_packets": u64::MAX / 2, "drops": up_ms * n}))
            .collect();
        stats["segments"] = segments.into();
        let workers: Vec<Value> =
            (0..64).map(|n| json!({"worker": n, "busy_turns": up_ms, "busy_ns": up_ms * 10_000 * n, "eth_receive_packets": up_ms})).collect();
        stats["workers"] = workers.into();
        let drops = ipoib::drop_reason::DropReason::ALL
            .map(|reason| (reason.name().to_owned(), json!(up_ms * (reason as u64 + 1))));
        stats["drops"] = Value::Object(drops.into_iter().collect());
        Snapshot::of(&stats, &sample::links(), Some(&sample::connections()), None)
    };
    Model::new(Some(&of(100_000)), of(101_000))
}

#[test]
fn the_overview_fits_in_80_columns() {
    let text = shown((80, 24), &page(View::Overview), Some(&sample_model()));
    for wanted in [
        "ipoib-fwd top  pid 4711, up 12 s  /run/ipoib-fwd.sock",
        "of 2.0 s  every 1 s",
        "[overview]",
        "from Ethernet            1.00k     8.00M",
        "InfiniBand mlx5_0/1",
        "LID 3, SM 1, MTU 4096, 1 device errors",
        "storage        forwarding up",
        "lab            blocked    DOWN",
        "storm ",
        "iterations, last second",
        "2.50 us  8.10 us    31 us   250 us  1.90 ms",
        "25 %   50 %",
        "q quit",
    ] {
        assert!(text.contains(wanted), "{wanted}\n{text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 80) && text.lines().count() == 24);
}

#[test]
fn every_view_fits_small_and_large_terminals() {
    for model in [sample_model(), crowd(), Model::default()] {
        for size in [(80, 24), (200, 60), (40, 10), (81, 11)] {
            for view in View::ALL {
                for row in [0, 1, 127, usize::MAX] {
                    let mut page = page(view);
                    page.rows[view as usize] = row;
                    page.trouble = (row == 1).then(|| "no answer ".repeat(30));
                    let text = shown(size, &page, Some(&model));
                    assert!(
                        text.contains("q quit") && (size.0 < 80 || text.contains(view.title())),
                        "{size:?}\n{text}"
                    );
                }
            }
        }
    }
}

#[test]
fn large_terminals_show_more() {
    let model = crowd();
    let segments = |size| shown(size, &page(View::Segments), Some(&model)).matches("a-segment-wi").count();
    assert!(segments((80, 24)) >= 10 && segments((200, 60)) >= 40);
    let small = shown((80, 24), &page(View::Overview), Some(&model));
    let large = shown((200, 60), &page(View::Overview), Some(&model));
    assert!(small.contains(" +12") && !small.contains("conns out"), "{small}");
    for wanted in ["conns out", "hosts IB", "neighbour-unresolved", "Ethernet"] {
        assert!(large.contains(wanted), "{wanted}\n{large}");
    }
    let workers = shown((200, 60), &page(View::Workers), Some(&model));
    assert!(
        workers.contains("46 %") && !workers.contains("No alarms") && workers.contains("loops 2"),
        "{workers}"
    );
}

#[test]
fn the_marked_row_is_visible() {
    let model = crowd();
    let mut page = page(View::Segments);
    page.rows[View::Segments as usize] = 100;
    let text = shown((80, 24), &page, Some(&model));
    assert!(text.contains("a-segment-with-a-name-of-32-0100: "), "{text}");
    assert!(text.contains(" ^87 +27"), "{text}");
    page = Page { view: View::Connections, ..page };
    page.rows[View::Connections as usize] = 49;
    let text = shown((80, 24), &page, Some(&sample_model()));
    assert!(text.contains("50 connections: 1 closing, 49 live") && text.contains("10.77.0.0"), "{text}");
    // The gateway has more than one page of connections.
    let mut answer = sample::connections();
    answer["next"] = json!("0/connections/50");
    let now = Snapshot::of(&json!({}), &sample::links(), Some(&answer), None);
    let text = shown((80, 24), &page, Some(&Model::new(None, now)));
    let wanted = "the first 50 connections: 1 closing, 49 live; see `ipoib-fwd ctl connections`";
    assert!(text.contains(wanted), "{text}");
}

#[test]
fn a_segment_shows_its_condition_and_its_drops() {
    let mut page = page(View::Segments);
    let text = shown((80, 24), &page, Some(&sample_model()));
    assert!(text.contains("storm") && text.contains("hosts 5 Ethernet, 7 InfiniBand"), "{text}");
    page.rows[View::Segments as usize] = 1;
    let text = shown((80, 24), &page, Some(&sample_model()));
    assert!(
        text.contains("waits for the broadcast group")
            && text.contains("VLAN 100")
            && text.contains("waiting for data"),
        "{text}"
    );
}

#[test]
fn a_missing_gateway_is_reported_with_the_fix_and_the_last_data() {
    let mut page = page(View::Overview);
    assert!(shown((80, 24), &page, None).contains("waiting for the gateway's first answer"));
    let why = "control socket /run/ipoib-fwd.sock: cannot connect: No such file or directory (os error 2); \
               is the gateway running, and with this control socket (--socket)? - retrying every 1 s";
    page.trouble = Some(why.to_owned());
    for model in [None, Some(&sample_model())] {
        let text = shown((80, 24), &page, model);
        assert!(text.contains("NO ANSWER") && text.contains("retrying every 1 s"), "{text}");
    }
    page.is_paused = true;
    page.is_helping = true;
    let text = shown((80, 24), &page, Some(&sample_model()));
    assert!(
        text.contains("PAUSED") && text.contains("pause, resume") && text.contains("it polled."),
        "{text}"
    );
}

#[test]
fn hostile_values_draw_no_control_characters() {
    let evil = "\u{1b}]0;owned\u{7}\u{1b}[2J\r\n\u{202e}\u{9b}H漢字";
    let mut stats = sample::stats(12_000, [u64::MAX, u64::MAX, 1, u64::MAX]);
    stats["segments"][0]["segment"] = evil.into();
    stats["segments"][1] = json!("no row at all");
    stats["drops"] = json!({evil: u64::MAX, "negative": -5, "text": "many", "float": 1.5, "none": null});
    stats["workers"] = json!([{"worker": evil, "busy_ns": -1}, [], 7, null]);
    stats["times"] = json!("soon");
    stats["alarms"] = json!({evil: 3});
    let mut links = sample::links();
    links["ethernet"]["port"] = evil.into();
    links["ethernet"]["mac"] = json!({"a": [evil]});
    links["infiniband"]["device"] = evil.repeat(10_000).into();
    links["device_drops"] = json!({evil: 3});
    links["segments"] = json!({"segment": evil});
    let connections = json!({"connections": [{"state": evil, "segment": evil, "peer": evil, "ip": evil, "idle_ms": u64::MAX}, 7]});
    let detail = json!({"segment": evil, "drops": {evil: 1}});
    let now = Snapshot::of(&stats, &links, Some(&connections), Some(&detail));
    let before = Snapshot::of(
        &json!({"process": {"pid": 4711, "up_ms": 1}}),
        &json!(7),
        Some(&json!([])),
        Some(&json!("x")),
    );
    let model = Model::new(Some(&before), now);
    for view in View::ALL {
        let text = shown((200, 60), &page(view), Some(&model));
        assert!(
            text.chars().all(|c| c == '\n' || !c.is_control() && c != '\u{202e}' && c != '漢'),
            "{text:?}"
        );
        assert!(text.contains("owned"), "{text}");
    }
}

#[test]
fn lines_are_wrapped_between_words_and_long_words_are_split() {
    assert_eq!(wrapped("one two three", 8), ["one two", "three"]);
    assert_eq!(wrapped("abcdefgh ij", 3), ["abc", "def", "gh", "ij"]);
    assert_eq!(wrapped("", 5), [""]);
}

#[test]
fn nothing_is_drawn_without_lines_or_columns() {
    for (width, height) in [(0, 0), (80, 0), (0, 24)] {
        let mut buffer = Buffer::empty(Rect::new(0, 0, width, height));
        draw(&mut buffer, &Page::default(), None, &History::default());
        assert!(buffer.content.is_empty());
    }
}
