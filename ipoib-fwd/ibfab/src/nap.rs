//! The idle policy of the fabric's thread. It continues at once while there is work, then sleeps, at first
//! for a moment and then for longer. A packet at an interface or a cable wakes it.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};

/// Idle iterations before the first sleep: few, since the next sender may wait for this processor.
const SPINS: u32 = 20;
/// First sleep.
const FIRST: Duration = Duration::from_micros(200);
/// Longest sleep: bounds the delay of events that do not wake the thread.
const LONGEST: Duration = Duration::from_millis(4);
/// Sleeps of one length before the length doubles: so an exchange of packets meets only short ones.
const REPEATS: u32 = 20;

/// The idle state of the fabric's thread.
#[derive(Debug, Default)]
pub struct Naps {
    idle_turns: u32,
}

impl Naps {
    /// Returns the length of the next sleep; `None` to continue at once.
    fn length(&self) -> Option<Duration> {
        let naps = self.idle_turns.checked_sub(SPINS)?;
        let doublings = (naps / REPEATS).min(10);
        Some((FIRST * (1 << doublings)).min(LONGEST))
    }

    /// Called after an iteration. `wakers` become readable when there are packets. True if the next iteration
    /// may be followed by a sleep: the caller then makes cables wake the thread.
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

    /// True if a waker ended the sleep.
    fn nap<'f>(nap: Duration, wakers: impl Iterator<Item = BorrowedFd<'f>>) -> bool {
        let mut wakers: Vec<PollFd<'_>> =
            wakers.map(|w| PollFd::from_borrowed_fd(w, PollFlags::IN)).collect();
        let timeout = Timespec { tv_sec: 0, tv_nsec: nap.subsec_nanos().into() };
        // An interrupted sleep is over; any other error would show where the interface is read.
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
