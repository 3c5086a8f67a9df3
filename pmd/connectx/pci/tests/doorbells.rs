//! Doorbell pages: a program with a page rings only for queues created with it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod guest;

use guest::*;
use ib_wire::{Lid, Mtu};

const EQ_ARM: u64 = 0x40;
const CQ_ARM: u64 = 0x20;
const SEND: u64 = 0x800;

/// Allocates another page, as for a program that opens the device.
fn another_page(g: &mut Guest) -> u32 {
    let page = g.command(&input(0x802, 16), 16).number();
    assert_ne!(page, UAR);
    page
}

/// Writes to a page; true if that was a stray doorbell.
fn is_stray(g: &mut Guest, page: u32, offset: u64, bytes: &[u8]) -> bool {
    let before = g.hca.counters();
    g.write(0, doorbell(page, offset), bytes);
    let after = g.hca.counters();
    assert_eq!(after.doorbells, before.doorbells + 1);
    after.stray_doorbells == before.stray_doorbells + 1
}

#[test]
fn an_event_queue_has_one_page() {
    let mut g = Guest::new();
    let mut eq = g.probe();
    let other = another_page(&mut g);
    // The forged consumer index makes the queue look full: the next event would fail it.
    let forged = (eq.number << 24 | (eq.consumer.wrapping_sub(64) & 0xff_ffff)).to_be_bytes();
    for offset in [EQ_ARM, EQ_ARM + 8] {
        assert!(is_stray(&mut g, other, offset, &forged), "{offset:#x}");
    }
    g.hca.engine_mut().set_cable(PORT, None).unwrap();
    g.settle();
    assert_eq!(g.interrupts(0), 0, "its owner has not armed it");
    assert!(g.next_event(&mut eq).is_some(), "it has room");
    g.hca.engine_mut().activate(PORT, Lid(7), Mtu::B4096).unwrap();
    g.settle();
    let word = (eq.number << 24 | eq.consumer).to_be_bytes();
    assert!(!is_stray(&mut g, UAR, EQ_ARM, &word));
    assert_eq!(g.interrupts(0), 1);
    // A freed page does not ring, either.
    g.command(&about(0x803, UAR), 16);
    assert!(is_stray(&mut g, UAR, EQ_ARM, &word));
}

#[test]
fn a_completion_queue_has_one_page() {
    let mut g = Guest::new();
    g.probe();
    let mut eq = g.create_eq(1, 0);
    let other = another_page(&mut g);
    let cq = g.create_cq(eq.number, 6);
    let mut qp = g.create_qp(SERVICE_UD, &cq);
    g.open(&qp, None);
    let arm = [cq.consumer.to_be_bytes(), cq.number.to_be_bytes()].concat();
    assert!(is_stray(&mut g, other, CQ_ARM, &arm));
    g.post_send(&mut qp, 0, &[]);
    g.settle();
    assert_eq!(g.next_event(&mut eq), None);
    assert!(!is_stray(&mut g, UAR, CQ_ARM, &arm));
    g.settle();
    assert!(g.next_event(&mut eq).is_some());

    // A program's own queue on its own page.
    let (pages, record) = (g.scattered(1), g.pages(1));
    let mut bytes = g.cq_input(eq.number, 6, &pages, record);
    put32(&mut bytes, 0x1c, 6 << 24 | other);
    let own = g.command(&bytes, 16).number();
    let arm = [0u32.to_be_bytes(), own.to_be_bytes()].concat();
    assert!(is_stray(&mut g, UAR, CQ_ARM, &arm));
    assert!(!is_stray(&mut g, other, CQ_ARM, &arm));
}

#[test]
fn a_send_queue_has_one_page() {
    let mut g = Guest::new();
    g.probe();
    let eq = g.create_eq(1, 0);
    let other = another_page(&mut g);
    let mut cq = g.create_cq(eq.number, 6);
    let mut qp = g.create_qp(SERVICE_UD, &cq);
    g.open(&qp, None);
    let first = g.lay_send(&mut qp, 0, &[]);
    assert!(is_stray(&mut g, other, SEND, &first));
    g.settle();
    assert_eq!(g.poll(&mut cq), None);
    assert!(!is_stray(&mut g, UAR, SEND, &first));
    g.settle();
    assert!(g.poll(&mut cq).is_some());
}
