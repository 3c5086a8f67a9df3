//! Executes every row of the state table, and checks the next state and the requests.

use std::time::{Duration, Instant};

use hca::{AddressVector, PortState, QpTransition, RcSlot, RcToReceive, RcToSend};
use ib_wire::cm::FlowLabel;
use ib_wire::cm::ipoib::ServiceIdForm;
use ib_wire::ipoib::{AddressFlags, HardwareAddress};
use ib_wire::sa::LifeTime;
use ib_wire::{Gid, Guid, Mtu, PKey, Psn, Qpn, Rate, ServiceLevel};

use super::state::tests::{INPUTS, states};
use super::state::{Act, Input, Row, State, When};
use super::*;
use crate::link::action::{Action, Event};
use crate::link::settings::{LinkSettings, PortFacts};
use crate::link::statistics::LinkCounters;
use crate::link::timers::Timer;

struct Bench {
    now: Instant,
    conns: Connections,
    ground: Ground,
    paths: Paths,
    out: Outbox,
}

impl Bench {
    /// A running link with one connection that has everything that its state needs.
    fn new(state: State, when: When, active: bool) -> (Self, ConnKey) {
        let now = Instant::now();
        let settings = LinkSettings::new(PKey::DEFAULT, Qpn::new(0x100), 7);
        let mut ground = Ground::new(settings);
        let gid = |n| Gid::new(Gid::DEFAULT_PREFIX, Guid(n));
        ground.port =
            PortFacts { state: PortState::Active, gid: gid(1), pkey_index: Some(0), ..PortFacts::DOWN };
        ground.up = true;
        let mut conns = Connections::new(LinkIndex(0));
        let peer = HardwareAddress { flags: AddressFlags::RC, qpn: Qpn::new(0x200), gid: gid(2) };
        let side =
            if active { Side::Active { form: ServiceIdForm::Linux, fallback: false } } else { Side::Passive };
        let key = conns.add(now, side, WorkerIndex(0), peer, Psn::new(1));
        let mut paths = Paths::default();
        paths.know(cm::Path {
            sgid: gid(1),
            dgid: gid(2),
            slid: Lid(1),
            dlid: Lid(2),
            pkey: PKey::DEFAULT,
            sl: ServiceLevel::new(0),
            mtu: Mtu::B2048,
            rate: Rate::default(),
            life_time: LifeTime::new(18),
            flow_label: FlowLabel::new(0),
            hop_limit: 0,
            traffic_class: 0,
        });
        let av = AddressVector {
            dlid: Lid(2),
            sl: ServiceLevel::new(0),
            src_path_bits: 0,
            rate: Rate::default(),
            grh: None,
        };
        if let Some(conn) = conns.map.get_mut(&key) {
            conn.state = state;
            conn.slot = Some(RcSlot(3));
            conn.qpn = Some(Qpn::new(0x300));
            conn.handshake = true;
            conn.closing = state.is_closing().then_some(CloseReason::NeighbourGone);
            conn.carried = when == When::Carried;
            conn.kept.drained = when == When::Drained;
            conn.drain_tries = if when == When::TriesLeft { 0 } else { u16::MAX };
            conn.receive = Some(RcToReceive {
                av,
                dest_qpn: Qpn::new(0x400),
                rq_psn: Psn::new(0),
                path_mtu: Mtu::B2048,
                min_rnr_timer: 12,
            });
            conn.send = Some(RcToSend { sq_psn: Psn::new(0), timeout: 18, retry_count: 0, rnr_retry: 0 });
            conns.by_qpn.insert(Qpn::new(0x300), key);
        }
        let out = Outbox::new(1);
        (Self { now, conns, ground, paths, out }, key)
    }

    fn step(&mut self, key: ConnKey, input: Input) {
        let Self { now, conns, ground, paths, out } = self;
        Work { conns, ground, paths, out }.step(*now, key, input, CloseReason::NeighbourGone);
    }

    /// True if the effects of `act` are visible.
    fn shows(&self, key: ConnKey, act: Act) -> bool {
        let action = |is: &dyn Fn(&Action) -> bool| self.out.actions.iter().any(is);
        let request = |is: &dyn Fn(&Request) -> bool| self.out.requests.iter().any(is);
        let event = |is: &dyn Fn(&Event) -> bool| self.out.events.iter().any(is);
        let modify = |to: fn(&QpTransition) -> bool| {
            action(&|a| matches!(a, Action::ModifyRc { to: requested, .. } if to(requested)))
        };
        let deadline = self.out.timers.get(Timer::Conn(key)).map(|at| at - self.now);
        let teardown = self.ground.settings.teardown_timeout;
        match act {
            Act::Initialise => modify(|to| matches!(to, QpTransition::RcToInit { .. })),
            Act::Insert => action(&|a| matches!(a, Action::InsertRc { .. })),
            Act::Connect => request(&|r| matches!(r, Request::Connect { .. })),
            Act::ConnectOther => {
                self.out.counters.service_id_fallbacks == 1
                    && request(&|r| matches!(r, Request::Connect { .. }))
            }
            Act::Receive => modify(|to| matches!(to, QpTransition::RcToReceive(_))),
            Act::Send => modify(|to| matches!(to, QpTransition::RcToSend(_))),
            Act::Rtu => request(&|r| matches!(r, Request::Ready(_))),
            Act::Rep => request(&|r| matches!(r, Request::Accept { .. })),
            Act::Up => event(&|e| matches!(e, Event::ConnectionUp { .. })),
            Act::Withdraw => self.out.is_owed() && self.conns.retiring.len() == 1,
            Act::Down => {
                event(&|e| matches!(e, Event::ConnectionDown { .. })) && self.conns.retiring.is_empty()
            }
            Act::Unlist => {
                let republished = self.out.words.iter().any(|w| matches!(w, Word::Republish(_)));
                republished != self.conns.map.get(&key).is_some_and(Connection::is_passive)
            }
            Act::Disconnect => request(&|r| matches!(r, Request::Close { .. })),
            Act::Linger => deadline == Some(Duration::from_millis(50)),
            Act::Error => modify(|to| matches!(to, QpTransition::ToError)) && deadline.is_none(),
            Act::AwaitLastWqe => deadline == Some(teardown / 2),
            Act::Drain => {
                action(&|a| matches!(a, Action::PostDrain { .. })) && deadline == Some(teardown / 2)
            }
            Act::DrainLater => deadline == Some(Duration::from_millis(10)),
            Act::Overdue => self.out.counters.teardown_timeouts == 1,
            Act::Remove => action(&|a| matches!(a, Action::RemoveRc { .. })) && deadline.is_none(),
            Act::AwaitRelease => deadline == Some(teardown),
            Act::Destroy => {
                action(&|a| matches!(a, Action::DestroyRc { .. }))
                    && !self.conns.map.contains_key(&key)
                    && self.out.words.contains(&Word::ConnectionGone)
            }
            Act::Keep => self.conns.map.get(&key).is_some_and(|c| {
                let Kept { established, last_wqe, drained } = c.kept;
                established || last_wqe || drained
            }),
            // Nothing came early here.
            Act::Recall(_) => true,
        }
    }
}

const ACTIONS: [Act; 18] = [
    Act::Initialise,
    Act::Insert,
    Act::Connect,
    Act::Receive,
    Act::Send,
    Act::Rtu,
    Act::Rep,
    Act::Up,
    Act::Withdraw,
    Act::Down,
    Act::Disconnect,
    Act::Linger,
    Act::Error,
    Act::Drain,
    Act::DrainLater,
    Act::Overdue,
    Act::Remove,
    Act::Destroy,
];

fn check(state: State, input: Input, row: &Row, active: bool) {
    let (mut bench, key) = Bench::new(state, row.when, active);
    bench.out.state_dirty = false;
    bench.step(key, input);
    let what = format!("{state:?} {input:?} {row:?}");
    let after = bench.conns.map.get(&key).map_or(State::Gone, |conn| conn.state);
    assert_eq!(after, row.to.unwrap_or(state), "{what}");
    for act in row.acts {
        assert!(bench.shows(key, *act), "{what}: {act:?} is not done");
    }
    for act in ACTIONS.iter().filter(|act| !row.acts.contains(act)) {
        // A dial with the other service ID is a dial.
        let same = *act == Act::Connect && row.acts.contains(&Act::ConnectOther);
        assert!(same || !bench.shows(key, *act), "{what}: {act:?} is done");
    }
    assert_eq!(bench.out.counters.connection_strays, 0, "{what}");
}

#[test]
fn every_row_has_its_state_and_effects() {
    for state in states() {
        for input in INPUTS {
            for (at, row) in state.rows(input).iter().enumerate() {
                let earlier = state.rows(input).iter().take(at).any(|row| row.when == When::Active);
                let active = row.when == When::Active || (!earlier && state == State::Dialling);
                check(state, input, row, active);
            }
        }
    }
}

#[test]
fn input_without_a_row_changes_nothing_and_is_counted() {
    for state in states().filter(|state| *state != State::Gone) {
        for input in INPUTS.into_iter().filter(|input| state.rows(*input).is_empty()) {
            let (mut bench, key) = Bench::new(state, When::Always, true);
            bench.step(key, input);
            assert_eq!(bench.conns.map.get(&key).map(|conn| conn.state), Some(state), "{state:?} {input:?}");
            let strays = LinkCounters { connection_strays: 1, ..LinkCounters::default() };
            assert_eq!(bench.out.counters, strays, "{state:?} {input:?}");
            assert!(
                bench.out.actions.is_empty() && bench.out.requests.is_empty() && bench.out.events.is_empty()
            );
        }
    }
}

#[test]
fn early_input_has_its_effect_in_its_state() {
    let run = |state, active, kept: Input, input| {
        let (mut bench, key) = Bench::new(state, When::Always, active);
        if kept == Input::Released {
            bench.conns.map.get_mut(&key).expect("it is there").handshake = false;
        } else {
            bench.step(key, kept);
        }
        bench.step(key, input);
        bench.conns.map.get(&key).map_or(State::Gone, |conn| conn.state)
    };
    assert_eq!(run(State::ToSend, false, Input::Established, Input::Done), State::Live);
    assert_eq!(run(State::ToError, true, Input::LastWqe, Input::Done), State::AwaitDrained);
    assert_eq!(run(State::AwaitLastWqe, true, Input::Drained, Input::LastWqe), State::Removing);
    assert_eq!(run(State::Removing, true, Input::Released, Input::Done), State::Gone);
    assert_eq!(run(State::Creating, true, Input::Released, Input::Refused), State::Gone);
}

#[test]
fn a_page_of_connections_looks_up_its_own_rows_only() {
    let (now, mut conns) = (Instant::now(), Connections::new(LinkIndex(3)));
    let gid = Gid::new(Gid::DEFAULT_PREFIX, Guid(2));
    let peer = HardwareAddress { flags: AddressFlags::RC, qpn: Qpn::new(0x200), gid };
    for _ in 0..7 {
        conns.add(now, Side::Passive, WorkerIndex(0), peer, Psn::new(1));
    }
    let looked_up = std::cell::Cell::new(0);
    let page = |after, limit| -> Vec<u64> {
        let rows = conns.list(now, (after, limit), |_| {
            looked_up.set(looked_up.get() + 1);
            None
        });
        rows.iter().map(|row| row.key.number).collect()
    };
    assert_eq!((page(0, 3), looked_up.get()), (vec![1, 2, 3], 3));
    assert_eq!((page(3, 3), page(6, 3), page(7, 3)), (vec![4, 5, 6], vec![7], vec![]));
    assert_eq!(looked_up.get(), 7);
    assert_eq!(page(0, usize::MAX).len(), 7);
}
