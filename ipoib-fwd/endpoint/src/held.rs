//! Messages that a full send queue did not accept. They wait for a short time, in order, so that a burst can
//! use the room that the previous burst leaves.
//!
//! Each full queue has its own line: no queue waits behind another. A queue that accepts nothing for
//! [`PATIENCE`] is stuck. Its waiting messages are dropped, and later messages do not wait, until it accepts
//! one. A stuck queue has no line: any number of stuck queues leaves all lines to the others.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use pmd::hca::{RcSlot, UdSlot};

/// Largest number of waiting messages, for all of a worker's queues on a device.
pub const HELD: usize = 512;
/// Largest number of queues that messages wait for.
const LINES: usize = 8;
/// Number of messages that may wait for a queue, regardless of what waits for others.
const FAIR: usize = 16;
/// Longest wait for a queue that accepts no message: a peer whose processor is busy for a while accepts more
/// later.
const PATIENCE: Duration = Duration::from_millis(20);

/// A send queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// A connection's.
    Rc(RcSlot),
    /// A datagram queue pair's.
    Ud(UdSlot),
}

/// Action on a message that waited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Task {
    /// Offer it to its queue once more; a full queue hands it back again.
    Offer,
    /// Drop it: it has waited long enough.
    GiveUp,
}

/// The queues that are stuck.
#[derive(Debug)]
struct Stuck {
    /// One bit for each possible slot: those of connections, then those of datagram queue pairs.
    bits: Box<[u64]>,
    count: usize,
}

impl Stuck {
    fn new() -> Self {
        let slots = (1 << u16::BITS) + (1 << u8::BITS);
        Self { bits: vec![0; slots / u64::BITS as usize].into(), count: 0 }
    }

    /// Returns the index of the word, and the mask of the bit in it.
    const fn at(way: Way) -> (usize, u64) {
        let slot = match way {
            Way::Rc(slot) => slot.0 as usize,
            Way::Ud(slot) => (1 << u16::BITS) + slot.0 as usize,
        };
        (slot / u64::BITS as usize, 1 << (slot % u64::BITS as usize))
    }

    #[inline]
    const fn any(&self) -> bool {
        self.count > 0
    }

    fn has(&self, way: Way) -> bool {
        let (word, bit) = Self::at(way);
        self.any() && self.bits.get(word).is_some_and(|word| word & bit != 0)
    }

    fn insert(&mut self, way: Way) {
        let (word, bit) = Self::at(way);
        if let Some(word) = self.bits.get_mut(word).filter(|word| **word & bit == 0) {
            *word |= bit;
            self.count += 1;
        }
    }

    fn remove(&mut self, way: Way) {
        let (word, bit) = Self::at(way);
        if let Some(word) = self.bits.get_mut(word).filter(|word| **word & bit != 0) {
            *word &= !bit;
            self.count -= 1;
        }
    }
}

#[derive(Debug)]
struct Line<M> {
    way: Way,
    /// When its queue last accepted a message, or the first message arrived.
    since: Instant,
    messages: VecDeque<M>,
}

/// Messages that wait, in one line for each full queue.
#[derive(Debug)]
pub(crate) struct Held<M> {
    lines: [Line<M>; LINES],
    /// Number of lines in use. Each of them has messages.
    used: usize,
    messages: usize,
    stuck: Stuck,
    /// True if nothing waits and nothing is stuck.
    calm: bool,
}

impl<M> Held<M> {
    pub(crate) fn new() -> Self {
        let line = |_| Line {
            way: Way::Rc(RcSlot(0)),
            since: Instant::now(),
            messages: VecDeque::with_capacity(HELD / 2),
        };
        Self { lines: std::array::from_fn(line), used: 0, messages: 0, stuck: Stuck::new(), calm: true }
    }

    /// Returns the number of messages that wait.
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
        self.used > 0 && self.at(way).is_some()
    }

    /// True if this queue's waiting messages were dropped after [`PATIENCE`], and it has accepted nothing
    /// since.
    pub(crate) fn is_stuck(&self, way: Way) -> bool {
        self.stuck.has(way)
    }

    /// True if nothing waits and nothing is stuck: the caller then need not check a queue or report an
    /// accepted message.
    #[inline(always)]
    pub(crate) const fn is_calm(&self) -> bool {
        self.calm
    }

    /// Updates `calm`; called after every change.
    const fn settle(&mut self) {
        self.calm = self.used == 0 && self.stuck.count == 0;
    }

    /// Notes that a queue has accepted a message at once: it is not stuck.
    #[inline]
    pub(crate) fn took(&mut self, way: Way) {
        if self.stuck.any() {
            self.stuck.remove(way);
            self.settle();
        }
    }

    /// Adds a message to the line of a queue that is full. Returns the message if it may not wait.
    #[cold]
    pub(crate) fn hold(&mut self, way: Way, message: M, now: Instant) -> Result<(), M> {
        let free = HELD - self.messages;
        if free == 0 || self.stuck.has(way) {
            return Err(message);
        }
        let Some(at) = self.at(way).or_else(|| self.begin(way, now)) else { return Err(message) };
        let Some(line) = self.lines.get_mut(at) else { return Err(message) };
        let held = line.messages.len();
        // A queue may not have more than it leaves to the others.
        if held >= free.max(FAIR) || held >= HELD / 2 {
            return Err(message);
        }
        line.messages.push_back(message);
        self.messages += 1;
        Ok(())
    }

    /// Allocates a free line for a queue.
    fn begin(&mut self, way: Way, now: Instant) -> Option<usize> {
        let at = self.used;
        let line = self.lines.get_mut(at)?;
        (line.way, line.since) = (way, now);
        self.used += 1;
        self.settle();
        Some(at)
    }

    /// Frees a line without messages.
    fn end(&mut self, at: usize) {
        if let Some(last) = self.used.checked_sub(1) {
            self.lines.swap(at, last);
            self.used = last;
        }
    }

    /// Offers waiting messages again, or drops them if their queue accepted none for [`PATIENCE`].
    pub(crate) fn retry(&mut self, now: Instant, mut handle: impl FnMut(Way, M, Task) -> Option<M>) {
        let mut at = 0;
        while at < self.used {
            let Some(line) = self.lines.get_mut(at) else { break };
            while let Some(message) = line.messages.pop_front() {
                if let Some(message) = handle(line.way, message, Task::Offer) {
                    line.messages.push_front(message);
                    break;
                }
                line.since = now;
                self.messages -= 1;
            }
            if !line.messages.is_empty() {
                if now.saturating_duration_since(line.since) < PATIENCE {
                    at += 1;
                    continue;
                }
                self.stuck.insert(line.way);
                self.messages -= line.messages.len();
                for message in line.messages.drain(..) {
                    handle(line.way, message, Task::GiveUp);
                }
            }
            self.end(at);
        }
        self.settle();
    }

    /// Forgets a queue whose slot gets another owner: passes the messages that wait for it to `lost`.
    pub(crate) fn forget(&mut self, way: Way, lost: impl FnMut(M)) {
        self.stuck.remove(way);
        if let Some(at) = self.at(way) {
            if let Some(line) = self.lines.get_mut(at) {
                self.messages -= line.messages.len();
                line.messages.drain(..).for_each(lost);
            }
            self.end(at);
        }
        self.settle();
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
    fn waiting_messages_keep_their_order_and_no_queue_waits_for_another() {
        let mut held = Held::new();
        let now = Instant::now();
        for n in 0..6 {
            held.hold(way(n % 2), n, now).unwrap();
        }
        assert!(held.has(way(0)) && held.has(way(1)) && !held.has(way(2)) && !held.has(Way::Ud(UdSlot(0))));
        let mut sent = Vec::new();
        // The first queue has no room yet; the other accepts two messages.
        let mut retry = |open: fn(Way, usize) -> bool| {
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
        assert_eq!(retry(|to, sent| to != way(0) && sent < 2), (vec![1, 3], 4));
        assert_eq!(retry(|_, _| true), (vec![1, 3, 0, 2, 4, 5], 0));
        assert_eq!(held.used, 0);
    }

    /// Retries while no queue has room; returns the messages that were given up.
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
    fn a_queue_that_accepts_nothing_is_given_up_and_not_waited_for_again() {
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
        // An accepted message is progress, and restarts the wait.
        held.retry(soon, |_, m, _| (m == 'd').then_some(m));
        assert!(full(&mut held, late).is_empty() && held.len() == 1);
        held.retry(late, |_, _, _| None);
        assert_eq!((held.len(), held.used), (0, 0));
    }

    #[test]
    fn any_number_of_stuck_queues_leaves_lines_to_others_and_does_not_wait_again() {
        let mut held = Held::new();
        let mut now = Instant::now();
        let rcs = (0..=u16::MAX).step_by(55).map(way);
        let stuck: Vec<Way> = rcs.chain((0..=u8::MAX).map(|n| Way::Ud(UdSlot(n)))).collect();
        assert_eq!(stuck.len() % LINES, 0);
        for some in stuck.chunks(LINES) {
            for way in some {
                held.hold(*way, *way, now).unwrap();
            }
            assert!(held.hold(way(1), way(1), now).is_err(), "no line");
            now += PATIENCE;
            let lost = full(&mut held, now);
            assert!(lost.len() == LINES && some.iter().all(|way| lost.contains(way)));
        }
        for round in 0..3 {
            assert_eq!(stuck.iter().filter(|way| held.hold(**way, **way, now).is_ok()).count(), 0, "{round}");
            // All lines are available to queues that accept messages.
            for n in 1..=LINES as u16 {
                held.hold(way(n), way(n), now).unwrap();
            }
            held.retry(now, |_, _, _| None);
        }
        // Each is distinguished from all others.
        for (n, way) in stuck.iter().enumerate() {
            held.took(*way);
            assert_eq!(held.stuck.count, stuck.len() - 1 - n);
            assert!(!held.stuck.has(*way));
        }
        assert_eq!((held.len(), held.used), (0, 0));
    }

    #[test]
    fn a_new_owner_inherits_nothing() {
        let mut held = Held::new();
        let now = Instant::now();
        held.hold(way(99), 99, now).unwrap();
        let mut gone = Vec::new();
        held.forget(way(99), |m| gone.push(m));
        assert_eq!((gone, held.has(way(99)), held.len()), (vec![99], false, 0));
        held.hold(way(99), 99, now).unwrap();
        assert_eq!(full(&mut held, now + PATIENCE), [99]);
        assert!(held.hold(way(99), 99, now).is_err(), "stuck");
        held.forget(way(99), |_| panic!("nothing waits"));
        held.hold(way(99), 99, now).unwrap();
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
        Retry(u8),
        Forget(u16),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            8 => (0u16..12).prop_map(Step::Send),
            3 => any::<u8>().prop_map(Step::Retry),
            1 => (0u16..12).prop_map(Step::Forget),
        ]
    }

    proptest! {
        /// Every message is sent once or lost once, and messages of a queue are sent in order. A message
        /// waits for its queue, unless the queue is stuck or other waiting messages leave no room.
        #[test]
        fn nothing_is_lost_unseen_or_overtaken(steps in prop::collection::vec(step(), 0..2000)) {
            let mut held = Held::new();
            let mut now = Instant::now();
            let mut room = [0u32; 12];
            let (mut given, mut sent, mut lost) = (0u32, 0, 0);
            let mut last = [None; 12];
            let mut stuck = [false; 12];
            for step in steps {
                match step {
                    Step::Send(n) => {
                        given += 1;
                        let at = usize::from(n);
                        if !held.has(way(n)) && room[at] > 0 {
                            room[at] -= 1;
                            held.took(way(n));
                            stuck[at] = false;
                            sent += 1;
                            prop_assert!(last[at] < Some(given));
                            last[at] = Some(given);
                        } else {
                            let room = held.has(way(n)) || held.used < LINES;
                            let first = !held.has(way(n));
                            let waits = held.hold(way(n), (n, given), now).is_ok();
                            lost += usize::from(!waits);
                            prop_assert!(!(waits && (stuck[at] || !room)));
                            prop_assert!(waits || stuck[at] || !room || !first || held.len() == HELD);
                        }
                    }
                    Step::Retry(open) => {
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
                                stuck[at] = true;
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
                    Step::Forget(n) => {
                        held.forget(way(n), |_| lost += 1);
                        stuck[usize::from(n)] = false;
                    }
                }
                prop_assert_eq!(given as usize, sent + lost + held.len());
                prop_assert!(held.len() <= HELD && held.used <= LINES);
                prop_assert_eq!(held.is_calm(), held.used == 0 && held.stuck.count == 0);
                let used = (0..12).filter(|n| held.has(way(*n))).count();
                let all = stuck.iter().filter(|stuck| **stuck).count();
                prop_assert_eq!((held.used, held.stuck.count), (used, all));
                prop_assert!((0..12).all(|n| held.stuck.has(way(n)) == stuck[usize::from(n)]));
            }
        }
    }
}
