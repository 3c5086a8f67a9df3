//! The worker's part of an endpoint: queues, rings, and messages that wait for full queues.

use std::time::Instant;

use arrayvec::ArrayVec;
use dataplane::latency::Recorder;
use dataplane::ring::{Receiver, Sender};
use pmd::hca::{BURST, MemoryWork, PostError, QpEvent, Queues, RcSlot, Refused, RxBurst, UdSlot};
use pmd::mem::{Mbuf, Single};

use super::held::{HELD, Held, Task, Way};
use super::long::{KEYS, Long};
use super::message::{Command, Note};
use super::query::{MOST_BEFORE, MOST_BEFORE_STUCK, QueryPace, WaitingQuery, is_query};
use super::view::{LinkView, Peer};
use dataplane::usage::Marks;
use ipoib::link::{LinkIndex, Neighbour};

/// The first link's datagram queue pair in its workers' queues.
pub const UD: UdSlot = UdSlot(0);

/// Returns the slot of a link's datagram queue pair: the link's index.
pub(crate) fn place(link: LinkIndex) -> UdSlot {
    UdSlot(u8::try_from(link.0).unwrap_or(u8::MAX))
}

/// Most commands that are carried out in one iteration.
const COMMANDS_PER_ITERATION: usize = 32;
/// Room in the ring of notes that applications leave for queue pair events: below it, [`note`] refuses, and
/// no command is taken.
pub const RESERVE: usize = 4 * BURST;

/// How a packet was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sent {
    /// By a connection.
    Rc,
    /// As a datagram.
    Ud,
}

/// An application's identifier of a message that may wait for a full queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tag(pub u16);

/// Outcome of sending a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taken {
    /// The queue has accepted it.
    Now,
    /// The queue is full. The message waits for a short time ([`LinkWorker::retry`]).
    Later,
}

/// Outcome for a message that waited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waited {
    /// The queue has accepted it, with this number of bytes.
    Sent(usize),
    /// It was dropped.
    Lost(PostError),
}

/// A message that waits.
#[derive(Debug)]
struct Waiting<D> {
    /// Destination of a datagram.
    to: Option<D>,
    tag: Tag,
    buf: Mbuf,
}

/// One worker's queues and its rings.
#[derive(Debug)]
pub struct LinkWorker<Q: Queues, C, N> {
    index: u8,
    queues: Q,
    commands: Receiver<Command<Q, C>>,
    notes: Sender<Note<Q, N>>,
    events: ArrayVec<QpEvent, BURST>,
    lost_events: u64,
    /// Links whose datagram queue pair is being closed, and still has requests outstanding.
    closing: Vec<LinkIndex>,
    /// Marks of the connections that messages arrived on, by slot.
    received: Marks,
    /// Messages that full queues did not accept.
    held: Held<Waiting<Q::Destination>>,
    /// The query that precedes the held messages.
    query: Option<WaitingQuery<Q::Destination>>,
    pace: QueryPace,
    /// Tags of messages whose queues were removed while they waited.
    orphans: Vec<Tag>,
    /// Sends messages that the queues refuse for their number of segments.
    long: Long,
}

impl<Q: MemoryWork, C, N> LinkWorker<Q, C, N> {
    /// Creates a worker from its parts. Its control lcore has the other ends of the rings, and harvests the
    /// marks of connections that messages arrived on.
    pub fn new(
        index: u8,
        queues: Q,
        commands: Receiver<Command<Q, C>>,
        notes: Sender<Note<Q, N>>,
        received: Marks,
    ) -> Self {
        Self {
            index,
            queues,
            commands,
            notes,
            events: ArrayVec::new(),
            lost_events: 0,
            closing: Vec::new(),
            received,
            held: Held::new(),
            query: None,
            pace: QueryPace::new(),
            orphans: Vec::with_capacity(HELD),
            long: Long::default(),
        }
    }

    /// Sets the sender of messages that the queues refuse for their number of segments.
    pub(crate) fn with_long(self, long: Long) -> Self {
        Self { long, ..self }
    }

    /// Returns its index among the link's workers.
    #[must_use]
    pub const fn index(&self) -> u8 {
        self.index
    }

    /// Returns the queues.
    pub const fn queues(&mut self) -> &mut Q {
        &mut self.queues
    }

    /// Returns the queues and the ring of notes, for sending. A worker refreshes its tables after
    /// [`LinkWorker::commands`]: in older tables, a connection's slot may now hold another connection.
    pub const fn parts(&mut self) -> (&mut Q, &mut Sender<Note<Q, N>>) {
        (&mut self.queues, &mut self.notes)
    }

    /// Carries out commands; passes the application's commands to `app`. Call it first in an iteration.
    /// Returns the number of commands.
    pub fn commands(&mut self, times: &mut Recorder, mut app: impl FnMut(C, &mut Q)) -> usize {
        for done in 0..COMMANDS_PER_ITERATION {
            // Each command may need room for its answer.
            if self.notes.room() <= RESERVE {
                return done;
            }
            let Some(command) = self.commands.receive() else { return done };
            let note = match command {
                Command::InsertRc { conn, slot, rc } => {
                    Some(Note::Inserted { conn, refused: self.queues.insert_rc(slot, rc).err() })
                }
                Command::PostDrain { conn, slot } => {
                    self.queues.post_drain(slot).err().map(|_| Note::DrainRefused { conn })
                }
                Command::RemoveRc { conn, slot } => {
                    self.held.forget(Way::Rc(slot), |waiting| self.orphans.push(waiting.tag));
                    Some(Note::Removed { conn, rc: self.queues.remove_rc(slot) })
                }
                Command::InsertUd { link, ud } => {
                    Some(Note::UdInserted { refused: self.queues.insert_ud(place(link), ud).err() })
                }
                Command::RemoveUd(link) => {
                    self.held.forget(Way::Ud(place(link)), |waiting| self.orphans.push(waiting.tag));
                    self.closing.retain(|closing| *closing != link);
                    drop(self.query.take_if(|query| query.link == link));
                    Some(Note::UdRemoved { link, ud: self.queues.remove_ud(place(link)) })
                }
                Command::CloseUd(link) => {
                    self.queues.close_ud(place(link));
                    if !self.closing.contains(&link) {
                        self.closing.push(link);
                    }
                    None
                }
                Command::OpenUd(link) => {
                    self.queues.open_ud(place(link));
                    self.closing.retain(|closing| *closing != link);
                    None
                }
                // A refused datagram is lost. The link is notified, so that it does not count a query that
                // was not sent as unanswered.
                Command::SendUd { link, to, buf } => {
                    let slot = place(link);
                    let sent = if self.is_pressed(slot) && is_query(buf.data()) {
                        self.overtake(link, to, buf)
                    } else {
                        self.queues.send_ud(slot, &to, buf).inspect(|()| self.held.took(Way::Ud(slot)))
                    };
                    sent.err().map(|Refused { buf, error }| Note::Refused { link, buf, error })
                }
                Command::Latency(next) => Some(Note::Latency(times.swap(next))),
                Command::Key(key, list) => {
                    self.long.take_key(key, list);
                    None
                }
                Command::AgeKeys(now) => {
                    self.long.age(now);
                    None
                }
                Command::App(command) => {
                    app(command, &mut self.queues);
                    None
                }
            };
            if let Some(note) = note {
                // There is room: checked above, and this is the only sender.
                drop(self.notes.send(note));
            }
        }
        COMMANDS_PER_ITERATION
    }

    /// True if traffic waits for a datagram queue, or waited in vain and is still in it: what the queue
    /// accepts now leaves late.
    fn is_pressed(&self, slot: UdSlot) -> bool {
        let way = Way::Ud(slot);
        self.held.has(way) || self.held.is_stuck(way) && self.queues.ud_sends(slot) > MOST_BEFORE_STUCK
    }

    /// Posts a query before the traffic that waits for its queue, if one is due and is likely to leave in
    /// time.
    #[cold]
    fn overtake(&mut self, link: LinkIndex, to: Q::Destination, buf: Mbuf) -> Result<(), Refused> {
        let slot = place(link);
        let is_moving = self.held.has(Way::Ud(slot)) && self.queues.ud_sends(slot) <= MOST_BEFORE;
        if !is_moving || self.query.is_some() || !self.pace.may_pass(slot, Instant::now()) {
            return Err(Refused { buf, error: PostError::Full });
        }
        match self.queues.send_ud(slot, &to, buf) {
            Err(Refused { buf, error: PostError::Full }) => {
                self.query = Some(WaitingQuery { link, to, buf });
                Ok(())
            }
            sent => sent,
        }
    }

    /// Sends a message by a connection. If its queue is full, or earlier messages wait for it, the message
    /// waits. Returns it if too many wait.
    pub fn send_rc(&mut self, slot: RcSlot, tag: Tag, buf: Mbuf) -> Result<Taken, Refused> {
        let way = Way::Rc(slot);
        if self.held.has(way) {
            return self.hold(way, None, tag, buf);
        }
        match self.queues.send_rc(slot, buf) {
            Ok(()) => {
                self.held.took(way);
                Ok(Taken::Now)
            }
            Err(refused) => self.refused(way, None, tag, refused),
        }
    }

    /// Sends a message of one segment by a connection, as [`LinkWorker::send_rc`] does. A message that is not
    /// accepted at once is returned; the caller passes it to [`LinkWorker::refused_rc`].
    // There is one caller. Without inlining, the call would pass the message through memory.
    #[inline(always)]
    pub fn send_single_rc(&mut self, slot: RcSlot, message: Single) -> Result<(), Refused> {
        if self.held.is_calm() {
            return self.queues.send_single_rc(slot, message);
        }
        let way = Way::Rc(slot);
        // Messages that wait are sent before it.
        if self.held.has(way) {
            return Err(Refused { buf: message.into(), error: PostError::Full });
        }
        self.queues.send_rc(slot, message.into())?;
        self.held.took(way);
        Ok(())
    }

    /// Sends a datagram of one segment, as [`LinkWorker::send_single_rc`] does by a connection.
    #[inline(always)]
    pub fn send_single_ud(
        &mut self,
        slot: UdSlot,
        to: &Q::Destination,
        message: Single,
    ) -> Result<(), Refused> {
        if self.held.is_calm() {
            return self.queues.send_single_ud(slot, to, message);
        }
        let way = Way::Ud(slot);
        if self.held.has(way) {
            return Err(Refused { buf: message.into(), error: PostError::Full });
        }
        self.queues.send_ud(slot, to, message.into())?;
        self.held.took(way);
        Ok(())
    }

    /// Queues a datagram that was not accepted at once, or sends it in one piece if it has too many segments.
    #[cold]
    pub fn refused_ud(
        &mut self,
        slot: UdSlot,
        to: &Q::Destination,
        tag: Tag,
        refused: Refused,
    ) -> Result<Taken, Refused> {
        self.refused(Way::Ud(slot), Some(to), tag, refused)
    }

    /// Queues a message that was not accepted at once, or sends it in one piece if it has too many segments.
    #[cold]
    pub fn refused_rc(&mut self, slot: RcSlot, tag: Tag, refused: Refused) -> Result<Taken, Refused> {
        self.refused(Way::Rc(slot), None, tag, refused)
    }

    /// Sends a datagram, as [`LinkWorker::send_rc`] does by a connection.
    #[inline(always)]
    pub fn send_ud(
        &mut self,
        slot: UdSlot,
        to: &Q::Destination,
        tag: Tag,
        buf: Mbuf,
    ) -> Result<Taken, Refused> {
        let way = Way::Ud(slot);
        if self.held.has(way) {
            return self.hold(way, Some(to), tag, buf);
        }
        match self.queues.send_ud(slot, to, buf) {
            Ok(()) => {
                self.held.took(way);
                Ok(Taken::Now)
            }
            Err(refused) => self.refused(way, Some(to), tag, refused),
        }
    }

    /// Queues what a queue refused, or sends it in one piece if it has too many segments.
    #[cold]
    #[inline(never)]
    fn refused(
        &mut self,
        way: Way,
        to: Option<&Q::Destination>,
        tag: Tag,
        refused: Refused,
    ) -> Result<Taken, Refused> {
        let Self { queues, long, .. } = self;
        let again = match (refused, way, to) {
            (Refused { buf, error: PostError::TooManySegments }, Way::Rc(slot), _) => {
                long.send_rc(queues, slot, buf)
            }
            (Refused { buf, error: PostError::TooManySegments }, Way::Ud(slot), Some(to)) => {
                long.send_ud(queues, slot, to, buf)
            }
            (refused, ..) => Err(refused),
        };
        match again {
            Ok(()) => {
                self.held.took(way);
                Ok(Taken::Now)
            }
            Err(Refused { buf, error: PostError::Full }) => self.hold(way, to, tag, buf),
            Err(refused) => Err(refused),
        }
    }

    #[cold]
    fn hold(&mut self, way: Way, to: Option<&Q::Destination>, tag: Tag, buf: Mbuf) -> Result<Taken, Refused> {
        let waiting = Waiting { to: to.cloned(), tag, buf };
        match self.held.hold(way, waiting, Instant::now()) {
            Ok(()) => Ok(Taken::Later),
            Err(Waiting { buf, .. }) => Err(Refused { buf, error: PostError::Full }),
        }
    }

    /// Returns the number of messages that wait for full queues.
    #[inline]
    #[must_use]
    pub const fn waiting(&self) -> usize {
        self.held.len() + self.orphans.len() + self.query.is_some() as usize
    }

    /// Offers waiting messages to their queues again, and reports the outcome. Call it once in an iteration,
    /// after [`LinkWorker::commands`].
    #[inline]
    pub fn retry(&mut self, report: impl FnMut(Tag, Waited)) {
        if self.waiting() > 0 {
            self.retry_all(report);
        }
    }

    #[cold]
    fn retry_all(&mut self, mut report: impl FnMut(Tag, Waited)) {
        self.retry_query();
        let Self { queues, held, orphans, long, .. } = self;
        for tag in orphans.drain(..) {
            report(tag, Waited::Lost(PostError::NoConnection));
        }
        held.retry(Instant::now(), |way, Waiting { to, tag, buf }, task| {
            if task == Task::GiveUp {
                report(tag, Waited::Lost(PostError::Full));
                return None;
            }
            let bytes = buf.len();
            let sent = match (way, &to) {
                (Way::Rc(slot), _) => post_rc(queues, long, slot, buf),
                (Way::Ud(slot), Some(to)) => post_ud(queues, long, slot, to, buf),
                (Way::Ud(_), None) => Err(Refused { buf, error: PostError::NoConnection }),
            };
            match sent {
                Ok(()) => report(tag, Waited::Sent(bytes)),
                Err(Refused { buf, error: PostError::Full }) => return Some(Waiting { to, tag, buf }),
                Err(Refused { error, .. }) => report(tag, Waited::Lost(error)),
            }
            None
        });
    }

    /// Offers the waiting query to its queue. If no traffic waits there any more, it is too late.
    fn retry_query(&mut self) {
        let Some(WaitingQuery { link, to, buf }) = self.query.take() else { return };
        let slot = place(link);
        let Err(Refused { buf, error }) = self.queues.send_ud(slot, &to, buf) else {
            self.held.took(Way::Ud(slot));
            return;
        };
        if error == PostError::Full && self.held.has(Way::Ud(slot)) {
            self.query = Some(WaitingQuery { link, to, buf });
        } else {
            // A ring without room loses the note: the query then counts as unanswered.
            drop(self.notes.send(Note::Refused { link, buf, error }));
        }
    }

    /// Receives messages.
    pub fn receive(&mut self, burst: &mut RxBurst) {
        self.queues.poll_receive(burst, &mut self.events);
        // An explicit condition, as an iterator's filter compiles to more instructions for each message.
        for received in &*burst {
            if let Some(slot) = received.rc {
                self.received.mark(slot.0.into());
            }
        }
        self.report_events();
    }

    /// Rings doorbells, reaps completed sends and refills the receive queues. Call it last in an iteration.
    /// True if there was any work.
    pub fn finish(&mut self) -> bool {
        self.queues.ring();
        let freed = self.queues.poll_send(&mut self.events);
        let events = !self.events.is_empty();
        self.report_events();
        if self.long.is_busy() {
            self.settle();
        }
        if !self.closing.is_empty() {
            let Self { queues, notes, closing, .. } = self;
            closing.retain(|link| {
                queues.ud_outstanding(place(*link)) > 0 || notes.send(Note::UdClosed(*link)).is_err()
            });
        }
        let posted = self.queues.refill();
        freed > 0 || posted > 0 || events
    }

    #[cold]
    fn settle(&mut self) {
        let Self { queues, notes, long, .. } = self;
        long.settle(queues, |note| match notes.send(Note::Key(note)) {
            Ok(()) => Ok(()),
            Err(Note::Key(note)) => Err(note),
            Err(_) => Ok(()),
        });
    }

    #[inline]
    fn report_events(&mut self) {
        if self.lost_events > 0 || !self.events.is_empty() {
            self.report_all_events();
        }
    }

    #[cold]
    fn report_all_events(&mut self) {
        if self.lost_events > 0 && self.notes.send(Note::EventsLost(self.lost_events)).is_ok() {
            self.lost_events = 0;
        }
        for event in self.events.drain(..) {
            // Every wait for such an event is bounded on the control side: a lost event delays and does not
            // block.
            if self.notes.send(Note::Qp(event)).is_err() {
                self.lost_events += 1;
            }
        }
    }

    /// Returns the queues after the worker has ended.
    pub fn into_queues(mut self) -> Q {
        // Reaps one burst at a time. Requests that have not completed by now never will.
        for _ in 0..KEYS {
            self.settle();
            if !self.long.is_busy() {
                break;
            }
        }
        self.queues
    }
}

/// Posts a message on a connection, regardless of its number of buffers.
#[inline(never)]
fn post_rc<Q: MemoryWork>(queues: &mut Q, long: &mut Long, slot: RcSlot, buf: Mbuf) -> Result<(), Refused> {
    match queues.send_rc(slot, buf) {
        Err(Refused { buf, error: PostError::TooManySegments }) => long.send_rc(queues, slot, buf),
        posted => posted,
    }
}

/// Posts a datagram, regardless of its number of buffers.
#[inline(never)]
fn post_ud<Q: MemoryWork>(
    queues: &mut Q,
    long: &mut Long,
    slot: UdSlot,
    to: &Q::Destination,
    buf: Mbuf,
) -> Result<(), Refused> {
    match queues.send_ud(slot, to, buf) {
        Err(Refused { buf, error: PostError::TooManySegments }) => long.send_ud(queues, slot, to, buf),
        posted => posted,
    }
}

/// Sends a note of the application, unless that would use the room reserved for more important ones.
pub fn note<Q: Queues, N>(notes: &mut Sender<Note<Q, N>>, app: N) -> Result<(), N> {
    if notes.room() <= RESERVE {
        return Err(app);
    }
    // There is room: checked above, and this is the only sender.
    drop(notes.send(Note::App(app)));
    Ok(())
}

/// Sends a message to a neighbour. It uses the neighbour's connection if it is up and the message fits the
/// peer's receive MTU. Otherwise, the message is sent as a datagram if it fits the link's MTU.
pub fn send<Q: Queues, N>(
    queues: &mut Q,
    notes: &mut Sender<Note<Q, N>>,
    view: &LinkView<Q::Destination>,
    index: u8,
    neighbour: &Neighbour<Peer<Q::Destination>>,
    buf: Mbuf,
) -> Result<Sent, Refused> {
    let length = buf.len();
    let rc = neighbour.rc(index).filter(|rc| length <= rc.mtu as usize);
    if let Some(peer) = &neighbour.ud
        && view.used.mark(peer.number as usize)
        && neighbour.dial
        && neighbour.rc(index).is_none()
        && notes.room() > RESERVE
    {
        // A full ring loses the hint; the next packet after the mark is cleared repeats it.
        drop(notes.send(Note::Wanted(LinkIndex(0), neighbour.ip)));
    }
    if let Some(rc) = rc {
        return queues.send_rc(rc.slot, buf).map(|()| Sent::Rc);
    }
    match &neighbour.ud {
        Some(peer) if length <= view.state.ud_mtu as usize => {
            queues.send_ud(UD, &peer.to, buf).map(|()| Sent::Ud)
        }
        _ => Err(Refused { buf, error: PostError::NoConnection }),
    }
}
