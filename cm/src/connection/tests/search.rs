//! Checks every schedule of a few decisions: the network's treatment of each datagram, the passage of time,
//! and the owners' actions. Each schedule is replayed from the start and then continues without disturbance.
//! It must become idle, with both ends in agreement.

use super::*;

/// Number of decisions of a schedule.
const DEPTH: usize = 6;

#[derive(Clone, Copy, Debug)]
enum Choice {
    /// Deliver the oldest datagram in flight to b, or to a.
    Deliver(usize),
    /// Deliver it and keep a copy in flight.
    Repeat(usize),
    /// Lose it.
    Lose(usize),
    /// Advance to the earliest deadline.
    Time,
    /// The owner of a, or of b, performs its next required action.
    Act(usize),
    /// The owner of a, or of b, ends the connection.
    End(usize),
}

const CHOICES: [Choice; 11] = [
    Choice::Deliver(0),
    Choice::Deliver(1),
    Choice::Repeat(0),
    Choice::Repeat(1),
    Choice::Lose(0),
    Choice::Lose(1),
    Choice::Time,
    Choice::Act(0),
    Choice::Act(1),
    Choice::End(0),
    Choice::End(1),
];

struct World {
    now: Instant,
    nodes: [ConnectionTable; 2],
    /// Datagrams in flight from node 0 and from node 1.
    wires: [Vec<Mad>; 2],
    /// Events that the owners have not acted upon yet.
    pending: [Vec<Event>; 2],
    released: [Vec<ConnId>; 2],
    next_qp: u32,
    /// A REJ is not retransmitted. If it was lost, the ends may differ.
    one_shot_lost: bool,
}

impl World {
    fn new(now: Instant) -> Self {
        let mut nodes = [table(1), table(2)];
        nodes[0].connect(now, ConnectRequest::ipoib(SERVICE, qpn(0x11), path(1, 2), &[])).unwrap();
        let mut w = Self {
            now,
            nodes,
            wires: [Vec::new(), Vec::new()],
            pending: [Vec::new(), Vec::new()],
            released: [Vec::new(), Vec::new()],
            next_qp: 0x100,
            one_shot_lost: false,
        };
        w.collect();
        w
    }

    fn collect(&mut self) {
        for at in 0..2 {
            while let Some(mad) = self.nodes[at].poll_transmit() {
                self.wires[at].push(arrived(&mad, at as u16 + 1));
            }
            while let Some(event) = self.nodes[at].poll_event() {
                let id = event.id();
                assert!(!self.released[at].contains(&id), "an event after the release");
                match event {
                    Event::Released { .. } => {
                        self.released[at].push(id);
                        self.pending[at].retain(|e| e.id() != id);
                    }
                    Event::Requested { .. } | Event::Replied { .. } => self.pending[at].push(event),
                    _ => self.pending[at].retain(|e| e.id() != id),
                }
            }
        }
    }

    /// Makes a decision. Returns false if it is not possible.
    fn choose(&mut self, choice: Choice) -> bool {
        match choice {
            Choice::Deliver(from) | Choice::Repeat(from) => {
                if self.wires[from].is_empty() {
                    return false;
                }
                let mad = self.wires[from].remove(0);
                if matches!(choice, Choice::Repeat(_)) {
                    self.wires[from].push(mad.clone());
                }
                self.nodes[1 - from].handle_mad(self.now, &mad);
            }
            Choice::Lose(from) => {
                if self.wires[from].is_empty() {
                    return false;
                }
                let mad = self.wires[from].remove(0);
                self.one_shot_lost |= matches!(message(&mad), Message::Reject(_));
            }
            Choice::Time => {
                let Some(at) = self.nodes.iter().filter_map(ConnectionTable::poll_timeout).min() else {
                    return false;
                };
                self.now = self.now.max(at);
                for node in &mut self.nodes {
                    node.handle_timeout(self.now);
                }
            }
            Choice::Act(at) => {
                if self.pending[at].is_empty() {
                    return false;
                }
                let event = self.pending[at].remove(0);
                let id = event.id();
                if matches!(event, Event::Requested { .. }) {
                    self.next_qp += 1;
                    let qp = self.next_qp;
                    self.nodes[at].accept(self.now, id, &accept(qp)).unwrap();
                } else {
                    self.nodes[at].ready(self.now, id).unwrap();
                }
            }
            Choice::End(at) => {
                let mut live: Vec<_> = self.nodes[at]
                    .entries
                    .iter()
                    .filter(|(_, e)| !matches!(e.state, State::DreqSent | State::Timewait))
                    .map(|(id, _)| *id)
                    .collect();
                live.sort_unstable();
                let Some(id) = live.first() else { return false };
                self.pending[at].retain(|e| e.id() != ConnId(*id));
                self.nodes[at].disconnect(self.now, ConnId(*id)).unwrap();
            }
        }
        self.collect();
        true
    }

    /// Lets everything that is due happen, without losses.
    fn settle(&mut self) {
        for _ in 0..500 {
            let quiet =
                [Choice::Deliver(0), Choice::Deliver(1), Choice::Act(0), Choice::Act(1), Choice::Time]
                    .into_iter()
                    .all(|choice| !self.choose(choice));
            if quiet {
                return;
            }
        }
        panic!("it never becomes idle");
    }

    fn check(&mut self) {
        self.settle();
        for node in &self.nodes {
            assert!(node.entries.values().all(|e| e.state == State::Established), "stuck");
        }
        if !self.one_shot_lost {
            assert_eq!(self.nodes[0].len(), self.nodes[1].len(), "the ends differ");
        }
        for at in 0..2 {
            while self.choose(Choice::End(at)) {}
        }
        self.settle();
        self.nodes.iter().for_each(assert_empty);
    }
}

fn replay(start: Instant, schedule: &[Choice]) -> Option<World> {
    let mut w = World::new(start);
    schedule.iter().all(|choice| w.choose(*choice)).then_some(w)
}

fn explore(start: Instant, schedule: &mut Vec<Choice>, checked: &mut usize) {
    let Some(mut w) = replay(start, schedule) else { return };
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| w.check()));
    assert!(outcome.is_ok(), "after {schedule:?}");
    *checked += 1;
    if schedule.len() < DEPTH {
        for choice in CHOICES {
            schedule.push(choice);
            explore(start, schedule, checked);
            schedule.pop();
        }
    }
}

#[test]
fn every_short_schedule_comes_to_rest() {
    let mut checked = 0;
    explore(Instant::now(), &mut Vec::new(), &mut checked);
    assert!(checked > 10_000, "{checked} schedules");
}
