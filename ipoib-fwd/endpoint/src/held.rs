//! Messages that a full send queue did not take. They wait a little, in their order, so that a burst finds the room that the one
//! before it leaves.
//!
//! Each queue that is full has a line of its own: none waits behind another. A queue that took nothing for as long as patience lasts is
//! stuck: what waits for it is dropped, and what comes next does not wait, until it takes something.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use pmd::hca::{RcSlot, UdSlot};

/// Messages that wait at once, for all of a worker's queues on a device.
pub const HELD: usize = 512;
/// Queues that messages wait for at once.
const LINES: usize = 8;
/// Messages that may wait for a queue whatever waits for others.
const FAIR: usize = 16;
/// How long a message waits for a queue that takes none: a peer whose processor does something else for a while takes more later.
const PATIENCE: Duration = Duration::from_millis(20);

/// A send queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// A connection's.
    Rc(RcSlot),
    /// A datagram queue pair's.
    Ud(UdSlot),
}

/// What is to be done with a message that waited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Task {
    /// Offer it to its queue once more; one that is full still hands it back.
    Offer,
    /// Drop it: it has waited long enough.
    GiveUp,
}

#[derive(Debug)]
struct Line<M> {
    way: Way,
    /// When its queue last took one, or the first came.
    since: Instant,
    stuck: bool,
    messages: VecDeque<M>,
}

/// The lines.
#[derive(Debug)]
pub(crate) struct Held<M> {
    lines: [Line<M>; LINES],
    /// How many lines are in use: they have messages, or are stuck.
    used: usize,
    messages: usize,
}

impl<M> Held<M> {
    pub(crate) fn new() -> Self {
        let line = |_| Line {
            way: Way::Rc(RcSlot(0)),
            since: Instant::now(),
            stuck: false,
            messages: VecDeque::with_capacity(HELD / 2),
        };
        Self { lines: std::array::from_fn(line), used: 0, messages: 0 }
    }

    /// Messages that wait.
    #[inline]
    pub(crate) const fn len(&self) -> usize {
        self.messages
    }

    fn at(&self, way: Way) -> Option<usize> {
        self.lines.iter().take(self.used).position(|line| line.way == way)
    }

    /// True if messages wait for this queue, so that the next one must wait behind them.
    #[inline]
    pub(crate) fn has(&self, way: Way) -> bool {
        self.messages > 0
            && self.lines.iter().take(self.used).any(|line| line.way == way && !line.messages.is_empty())
    }

    /// A queue has taken a message right away: it is not stuck.
    #[inline]
    pub(crate) fn took(&mut self, way: Way) {
        if self.used > 0
            && let Some(at) = self.at(way)
        {
            self.end(at);
        }
    }

    /// Has a message wait for a queue that is full, or is handed back.
    #[cold]
    pub(crate) fn hold(&mut self, way: Way, message: M, now: Instant) -> Result<(), M> {
        let Some(at) = self.at(way).or_else(|| self.begin(way, now)) else { return Err(message) };
        let free = HELD - self.messages;
        let Some(line) = self.lines.get_mut(at) else { return Err(message) };
        let held = line.messages.len();
        // None may have more than it leaves to the others.
        if line.stuck || held >= free.max(FAIR) || held >= HELD / 2 || free == 0 {
            return Err(message);
        }
        line.messages.push_back(message);
        self.messages += 1;
        Ok(())
    }

    /// A line for a queue: a free one, or that of a stuck queue.
    fn begin(&mut self, way: Way, now: Instant) -> Option<usize> {
        let at = if self.used < LINES {
            self.used += 1;
            self.used - 1
        } else {
            self.lines.iter().position(|line| line.stuck)?
        };
        let line = self.lines.get_mut(at)?;
        (line.way, line.since, line.stuck) = (way, now, false);
        Some(at)
    }

    /// Ends a line without messages.
    fn end(&mut self, at: usize) {
        if let Some(last) = self.used.checked_sub(1) {
            self.lines.swap(at, last);
            self.used = last;
        }
    }

    /// What waits is to be offered again, or dropped if its queue took none for too long.
    pub(crate) fn retry(&mut self, now: Instant, mut handle: impl FnMut(Way, M, Task) -> Option<M>) {
        let mut at = 0;
        while at < self.used {
            let Some(line) = self.lines.get_mut(at) else { return };
            while let Some(message) = line.messages.pop_front() {
                if let Some(message) = handle(line.way, message, Task::Offer) {
                    line.messages.push_front(message);
                    break;
                }
                line.since = now;
                self.messages -= 1;
            }
            if line.messages.is_empty() && !line.stuck {
                self.end(at);
                continue;
            }
            if now.saturating_duration_since(line.since) >= PATIENCE {
                line.stuck = true;
                self.messages -= line.messages.len();
                for message in line.messages.drain(..) {
                    handle(line.way, message, Task::GiveUp);
                }
            }
            at += 1;
        }
    }

    /// A queue is another's from now on: hands what waits for it to `lost`.
    pub(crate) fn forget(&mut self, way: Way, lost: impl FnMut(M)) {
        let Some(at) = self.at(way) else { return };
        if let Some(line) = self.lines.get_mut(at) {
            self.messages -= line.messages.len();
            line.messages.drain(..).for_each(lost);
        }
        self.end(at);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn way(n: u16) -> Way {
        Way::Rc(RcSlot(n))
    }

    #[test]
    fn what_waits_goes_in_its_order_and_no_queue_waits_for_another() {
        let mut held = Held::new();
        let now = Instant::now();
        for n in 0..6 {
            held.hold(way(n % 2), n, now).unwrap();
        }
        assert!(held.has(way(0)) && held.has(way(1)) && !held.has(way(2)) && !held.has(Way::Ud(UdSlot(0))));
        let mut sent = Vec::new();
        // The first queue has no room yet; the other takes two.
        let mut turn = |open: fn(Way, usize) -> bool| {
            held.retry(now, |to, n, task| {
                assert_eq!(task, Task::Offer, "nothing is lost");
                if !open(to, sent.len()) {
                    return Some(n);
                }
                sent.push(n);
                None
            });
            (sent.clone(), held.len())
        };
        assert_eq!(turn(|to, sent| to != way(0) && sent < 2), (vec![1, 3], 4));
        assert_eq!(turn(|_, _| true), (vec![1, 3, 0, 2, 4, 5], 0));
        assert_eq!(held.used, 0);
    }

    /// No queue has room at this moment; what is given up.
    fn full<M>(held: &mut Held<M>, now: Instant) -> Vec<M> {
        let mut lost = Vec::new();
        held.retry(now, |_, m, task| {
            if task == Task::Offer {
                return Some(m);
            }
            lost.push(m);
            None
        });
        lost
    }

    #[test]
    fn who_takes_nothing_is_given_up_and_not_waited_for_again() {
        let mut held = Held::new();
        let began = Instant::now();
        let (soon, late) = (began + PATIENCE / 2, began + PATIENCE);
        held.hold(way(1), 'a', began).unwrap();
        assert!(full(&mut held, soon).is_empty());
        assert_eq!((full(&mut held, late), held.len()), (vec!['a'], 0));
        assert!(held.hold(way(1), 'b', late).is_err(), "stuck");
        held.took(way(1));
        held.hold(way(1), 'c', began).unwrap();
        held.hold(way(1), 'd', began).unwrap();
        // What it takes is progress, and is waited for anew.
        held.retry(soon, |_, m, _| (m == 'd').then_some(m));
        assert!(full(&mut held, late).is_empty() && held.len() == 1);
        held.retry(late, |_, _, _| None);
        assert_eq!((held.len(), held.used), (0, 0));
    }

    #[test]
    fn stuck_queues_give_their_lines_to_others_and_a_new_owner_inherits_nothing() {
        let mut held = Held::new();
        let now = Instant::now();
        for n in 0..LINES as u16 {
            held.hold(way(n), n, now).unwrap();
        }
        assert!(held.hold(way(99), 99, now).is_err(), "no line");
        assert_eq!(full(&mut held, now + PATIENCE).len(), LINES);
        held.hold(way(99), 99, now).unwrap();
        let mut gone = Vec::new();
        held.forget(way(99), |m| gone.push(m));
        assert_eq!((gone, held.has(way(99)), held.len()), (vec![99], false, 0));
    }

    #[test]
    fn no_queue_has_more_than_it_leaves_to_others() {
        let mut held = Held::new();
        let now = Instant::now();
        let mut fill = |n| (0..HELD).take_while(|_| held.hold(way(n), (), now).is_ok()).count();
        let each = [0, 1, 2, 3, 4, 5, 6].map(&mut fill);
        assert_eq!(each, [256, 128, 64, 32, 16, 16, 0]);
        assert_eq!(held.len(), HELD);
        assert!(held.lines.iter().all(|line| line.messages.capacity() >= line.messages.len()));
    }

    #[derive(Clone, Debug)]
    enum Step {
        Send(u16),
        Turn(u8),
        Forget(u16),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            8 => (0u16..12).prop_map(Step::Send),
            3 => any::<u8>().prop_map(Step::Turn),
            1 => (0u16..12).prop_map(Step::Forget),
        ]
    }

    proptest! {
        /// Every message goes out once or is lost once, and those of a queue go out in order.
        #[test]
        fn nothing_is_lost_unseen_or_overtaken(steps in prop::collection::vec(step(), 0..2000)) {
            let mut held = Held::new();
            let mut now = Instant::now();
            let mut room = [0u32; 12];
            let (mut given, mut sent, mut lost) = (0u32, 0, 0);
            let mut last = [None; 12];
            for step in steps {
                match step {
                    Step::Send(n) => {
                        given += 1;
                        let at = usize::from(n);
                        if !held.has(way(n)) && room[at] > 0 {
                            room[at] -= 1;
                            held.took(way(n));
                            sent += 1;
                            prop_assert!(last[at] < Some(given));
                            last[at] = Some(given);
                        } else if held.hold(way(n), (n, given), now).is_err() {
                            lost += 1;
                        }
                    }
                    Step::Turn(open) => {
                        for (n, room) in room.iter_mut().enumerate() {
                            *room += u32::from(open >> (n % 8) & 1);
                        }
                        let mut wrong = false;
                        now += PATIENCE / 8;
                        held.retry(now, |to, (n, number), task| {
                            let at = usize::from(n);
                            wrong |= to != way(n);
                            if task == Task::GiveUp {
                                lost += 1;
                                return None;
                            }
                            if room[at] == 0 {
                                return Some((n, number));
                            }
                            room[at] -= 1;
                            wrong |= last[at] >= Some(number);
                            last[at] = Some(number);
                            sent += 1;
                            None
                        });
                        prop_assert!(!wrong);
                    }
                    Step::Forget(n) => held.forget(way(n), |_| lost += 1),
                }
                prop_assert_eq!(given as usize, sent + lost + held.len());
                prop_assert!(held.len() <= HELD && held.used <= LINES);
            }
        }
    }
}
