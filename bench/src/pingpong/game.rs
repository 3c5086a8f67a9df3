//! The ping-pong: an end that receives a message sends the next one.
//!
//! The stock programs receive into one buffer and send from it. Each thus returns the last received data, and
//! the end that creates the messages ([`Role::Originator`]) can compare every byte.

use std::time::{Duration, Instant};

use dataplane::latency::{Recorder, Summary, empty};
use ib_wire::packet::GRH_LEN;
use pmd::hca::{QpFault, Received, Source, WcStatus};
use pmd::mem::{Mbuf, Pool};

use crate::device::{End, mix};
use crate::{Error, Mode};

/// Iterations without work before the thread sleeps.
const SPINS: u32 = 50;
/// Duration of a sleep, in which other processes can use this processor.
const NAP: Duration = Duration::from_micros(20);
/// Number of different messages, cut from the same bytes.
const CUTS: usize = 251;

/// How this end handles data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// Creates messages and checks that they return.
    Originator,
    /// Returns received messages.
    Echo,
}

/// Parameters of the ping-pong.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) mode: Mode,
    pub(crate) size: usize,
    pub(crate) iterations: u64,
    pub(crate) role: Role,
    /// This end sends first.
    pub(crate) first: bool,
    pub(crate) sleep: bool,
    /// Time without an event after which the ping-pong fails.
    pub(crate) patience: Duration,
}

/// The result.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    pub(crate) time: Duration,
    /// From the send of a message to the arrival of the next one.
    pub(crate) round_trips: Summary,
    /// Messages compared byte for byte.
    pub(crate) compared: u64,
    /// Sends without an acknowledgement, as the other end was done and has exited.
    pub(crate) unacknowledged: u64,
}

/// State of one queue pair.
#[derive(Debug, Default)]
struct Player {
    /// It waits for a message.
    awaits: bool,
    /// A send is outstanding.
    sends: bool,
    /// Messages sent.
    number: u64,
    sent_at: Option<Instant>,
    /// The last received message, which is sent back.
    held: Option<Mbuf>,
    /// Its queue pair accepts no more sends: the other end was done and has exited.
    over: bool,
}

/// The bytes of all messages.
struct Content {
    bytes: Vec<u8>,
    size: usize,
    /// All messages are equal, as several queue pairs of a stock program share one buffer.
    alike: bool,
}

impl Content {
    fn new(rules: &Rules, seed: u64) -> Self {
        let words = (rules.size + CUTS).div_ceil(8) as u64;
        let bytes = (0..words).flat_map(|i| mix(seed.wrapping_add(i)).to_le_bytes()).collect();
        Self { bytes, size: rules.size, alike: rules.mode == Mode::Srq }
    }

    fn message(&self, number: u64) -> &[u8] {
        let cut = if self.alike { 0 } else { (number % CUTS as u64) as usize };
        self.bytes.get(cut..cut + self.size).unwrap_or_default()
    }
}

struct Game<'a> {
    end: &'a mut End,
    pool: &'a Pool,
    rules: &'a Rules,
    content: Content,
    players: Vec<Player>,
    sent: u64,
    received: u64,
    compared: u64,
    unacknowledged: u64,
    round_trips: Recorder,
}

/// Runs until this end has received all messages and completed its sends.
pub(crate) fn play(
    end: &mut End,
    pool: &Pool,
    rules: &Rules,
    players: usize,
    seed: u64,
) -> Result<Outcome, Error> {
    let player = || Player { awaits: true, ..Player::default() };
    let mut game = Game {
        end,
        pool,
        rules,
        content: Content::new(rules, seed),
        players: (0..players).map(|_| player()).collect(),
        sent: 0,
        received: 0,
        compared: 0,
        unacknowledged: 0,
        round_trips: Recorder::default(),
    };
    let begin = Instant::now();
    if rules.first {
        (0..players).try_for_each(|index| game.send(index))?;
    }
    let (mut last, mut idle) = (begin, 0);
    while game.received < rules.iterations || game.sent + game.unacknowledged < rules.iterations {
        let (worked, moved) = game.turn()?;
        if moved {
            last = Instant::now();
        }
        idle = if worked { 0 } else { idle + 1 };
        if idle >= SPINS {
            if last.elapsed() > rules.patience {
                return Err(Error::Silence { received: game.received, sent: game.sent });
            }
            if rules.sleep {
                std::thread::sleep(NAP);
            }
        }
    }
    Ok(Outcome {
        time: begin.elapsed(),
        round_trips: Summary::of(&game.round_trips.swap(empty())),
        compared: game.compared,
        unacknowledged: game.unacknowledged,
    })
}

impl Game<'_> {
    /// One iteration: whether there was any event, and whether the ping-pong advanced.
    fn turn(&mut self) -> Result<(bool, bool), Error> {
        let (worked, done) = self.end.turn();
        self.handle_faults()?;
        self.sent += done as u64;
        for (index, player) in self.players.iter_mut().enumerate() {
            player.sends &= !self.end.is_done(index, done);
        }
        let arrived = self.end.burst.take();
        let moved = done > 0 || !arrived.is_empty();
        for message in arrived {
            self.receive(message)?;
        }
        for index in 0..self.players.len() {
            let ready = self.players.get(index).is_some_and(|p| !p.awaits && !p.sends && !p.over);
            if ready && self.sent < self.rules.iterations {
                self.send(index)?;
            }
        }
        Ok((worked, moved))
    }

    fn send(&mut self, index: usize) -> Result<(), Error> {
        let Some(player) = self.players.get_mut(index) else { return Ok(()) };
        let message = match (self.rules.role, player.held.take()) {
            (Role::Echo, Some(held)) => held,
            _ => self.pool.copy_from_slice(self.content.message(player.number)).ok_or(Error::Empty)?,
        };
        player.number += 1;
        (player.awaits, player.sends) = (true, true);
        player.sent_at = Some(Instant::now());
        self.end.send(index, message)
    }

    fn receive(&mut self, message: Received) -> Result<(), Error> {
        let index = self.end.index(message.qpn).ok_or(Error::Stranger(message.qpn))?;
        let Some(player) = self.players.get_mut(index) else { return Ok(()) };
        if message.buf.len() != self.rules.size {
            return Err(Error::Length { got: message.buf.len(), want: self.rules.size });
        }
        if let Source::Ud(source) = message.source {
            let area = message.buf.before_data(GRH_LEN).filter(|_| source.has_grh);
            if !area.and_then(<[u8]>::first_chunk).is_some_and(|area| self.end.came_from_there(area)) {
                return Err(Error::Header);
            }
        }
        if let Some(at) = player.sent_at.take() {
            self.round_trips.record(at.elapsed().as_nanos() as u64);
        }
        // Before the first send, nothing can have returned.
        if self.rules.role == Role::Originator && player.number > 0 {
            let expected = self.content.message(player.number - 1);
            if !is_message(&message.buf, expected) {
                return Err(Error::Content(self.received));
            }
            self.compared += 1;
        }
        player.awaits = false;
        player.held = (self.rules.role == Role::Echo).then_some(message.buf);
        self.received += 1;
        Ok(())
    }

    fn handle_faults(&mut self) -> Result<(), Error> {
        for event in self.end.events.take() {
            match event.fault {
                // All messages have arrived, so the other end had ours: only its acknowledgement is missing,
                // and it may have exited.
                QpFault::Send(WcStatus::RetryExceeded) if self.received >= self.rules.iterations => {
                    self.unacknowledged += 1;
                    let index = self.end.index(event.qpn);
                    if let Some(player) = index.and_then(|index| self.players.get_mut(index)) {
                        player.over = true;
                    }
                }
                QpFault::Send(status) | QpFault::Receive(status) => {
                    return Err(Error::Fault(event.qpn, status));
                }
                QpFault::Drained | QpFault::Flushed => {}
            }
        }
        Ok(())
    }
}

fn is_message(buf: &Mbuf, expected: &[u8]) -> bool {
    let mut rest = expected;
    for segment in buf.segments() {
        match rest.split_at_checked(segment.bytes.len()) {
            Some((part, tail)) if part == segment.bytes => rest = tail,
            _ => return false,
        }
    }
    rest.is_empty()
}

/// Continues to answer for a while: the other end may lack our last acknowledgement.
pub(crate) fn linger(end: &mut End, time: Duration) {
    let until = Instant::now() + time;
    while Instant::now() < until {
        let (worked, _) = end.turn();
        end.burst.clear();
        end.events.clear();
        if !worked {
            std::thread::sleep(NAP);
        }
    }
}
