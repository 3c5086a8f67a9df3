//! Every schedule of a few decisions: what the network does to each datagram, when time passes, what the owners do.
//! A schedule is replayed from the start, then left in peace, and must come to rest with both ends agreeing.

use super::*;

/// Decisions of one schedule.
const DEPTH: usize = 6;

#[derive(Clone, Copy, Debug)]
enum Choice {
    /// Carry the oldest datagram on its way to b, or to a.
    Deliver(usize),
    /// Carry it and leave a copy behind.
    Repeat(usize),
    /// Lose it.
    Lose(usize),
    /// The earliest deadline comes.
    Time,
    /// The owner of a, or of b, does the next thing it has to.
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
    /// Datagrams on their way from node 0 and from node 1.
    wires: [Vec<Mad>; 2],
    /// What the owners have been told and not yet acted upon.
    told: [Vec<Event>; 2],
    released: [Vec<ConnId>; 2],
    next_qp: u32,
    /// A REJ that nobody repeats may be lost, and then the ends may differ.
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
            told: [Vec::new(), Vec::new()],
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
                        self.told[at].retain(|e| e.id() != id);
                    }
                    Event::Requested { .. } | Event::Replied { .. } => self.told[at].push(event),
                    _ => self.told[at].retain(|e| e.id() != id),
                }
            }
        }
    }

    /// False if there is nothing to do it to.
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
                if self.told[at].is_empty() {
                    return false;
                }
                let event = self.told[at].remove(0);
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
                self.told[at].retain(|e| e.id() != ConnId(*id));
                self.nodes[at].disconnect(self.now, ConnId(*id)).unwrap();
            }
        }
        self.collect();
        true
    }

    /// Everything that is due happens, nothing is lost.
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
        panic!("it never comes to rest");
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
