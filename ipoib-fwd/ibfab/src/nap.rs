//! What the fabric's thread does between turns: it goes on at once while there is work, then naps, at first for a moment
//! and then for longer; a packet at an interface or a cable ends a nap.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};

/// Idle turns that are gone through before the first nap: few, since who is to send next may wait for this processor.
const SPINS: u32 = 20;
/// First nap.
const FIRST: Duration = Duration::from_micros(200);
/// Longest nap: bounds the delay of what does not wake.
const LONGEST: Duration = Duration::from_millis(4);
/// Naps of one length before they get longer: a conversation goes on with short ones.
const REPEATS: u32 = 20;

/// The pace of the fabric's thread.
#[derive(Debug, Default)]
pub struct Naps {
    idle_turns: u32,
}

impl Naps {
    /// How long to nap after so many idle turns; `None` to go on at once.
    fn length(&self) -> Option<Duration> {
        let naps = self.idle_turns.checked_sub(SPINS)?;
        let doublings = (naps / REPEATS).min(10);
        Some((FIRST * (1 << doublings)).min(LONGEST))
    }

    /// After a turn. `wakers` are what has packets for us. True if a nap may follow the next turn: then cables are to be asked to wake.
    pub fn after<'f>(&mut self, busy: bool, wakers: impl Iterator<Item = BorrowedFd<'f>>) -> bool {
        if busy {
            self.idle_turns = 0;
            return false;
        }
        self.idle_turns = self.idle_turns.saturating_add(1);
        if let Some(nap) = self.length() {
            Self::nap(nap, wakers);
        } else {
            std::hint::spin_loop();
        }
        self.idle_turns >= SPINS - 1
    }

    /// True if a waker ended it.
    fn nap<'f>(nap: Duration, wakers: impl Iterator<Item = BorrowedFd<'f>>) -> bool {
        let mut wakers: Vec<PollFd<'_>> =
            wakers.map(|w| PollFd::from_borrowed_fd(w, PollFlags::IN)).collect();
        let timeout = Timespec { tv_sec: 0, tv_nsec: nap.subsec_nanos().into() };
        // An interrupted nap is over; anything else would show where the interface is read.
        rustix::event::poll(&mut wakers, Some(&timeout)).is_ok_and(|ready| ready > 0)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd as _;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn naps_get_longer_and_work_ends_them() {
        let mut naps = Naps::default();
        let none = || std::iter::empty();
        for _ in 0..SPINS - 1 {
            naps.after(false, none());
            assert_eq!(naps.length(), None);
        }
        naps.idle_turns = SPINS;
        assert_eq!(naps.length(), Some(FIRST));
        naps.idle_turns = SPINS + REPEATS;
        assert_eq!(naps.length(), Some(2 * FIRST));
        naps.idle_turns = u32::MAX;
        assert_eq!(naps.length(), Some(LONGEST));
        naps.after(true, none());
        assert_eq!(naps.length(), None);
    }

    #[test]
    fn a_packet_ends_a_nap() {
        let (mut far, near) = UnixStream::pair().unwrap();
        far.write_all(&[1]).unwrap();
        assert!(Naps::nap(LONGEST, std::iter::once(near.as_fd())));
        assert!(!Naps::nap(FIRST, std::iter::empty()));
    }
}
