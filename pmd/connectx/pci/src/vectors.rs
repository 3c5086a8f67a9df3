//! Interrupt vectors and the eventfds through which the client receives them.

use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use crate::pci::VECTORS;
use crate::vfio_user::Interrupts;

/// The vectors of MSI-X. The client handles masking.
#[derive(Debug)]
pub struct Vectors {
    eventfds: Vec<Option<OwnedFd>>,
}

impl Default for Vectors {
    fn default() -> Self {
        Self::new()
    }
}

impl Vectors {
    /// All vectors disabled.
    #[must_use]
    pub fn new() -> Self {
        Self { eventfds: (0..VECTORS).map(|_| None).collect() }
    }

    /// Applies a request of the client.
    pub fn set(&mut self, how: Interrupts) -> Result<(), Errno> {
        match how {
            Interrupts::Off => *self = Self::new(),
            Interrupts::Signal { first, eventfds } => {
                let places = usize::try_from(first).ok().and_then(|first| self.eventfds.get_mut(first..));
                let places = places.filter(|places| places.len() >= eventfds.len()).ok_or(Errno::INVAL)?;
                for (place, eventfd) in places.iter_mut().zip(eventfds) {
                    *place = eventfd;
                }
            }
            Interrupts::Raise { first, count } => {
                for vector in first..first.saturating_add(count).min(VECTORS.into()) {
                    self.raise(vector as u16);
                }
            }
        }
        Ok(())
    }

    /// Raises a vector. False if it has no eventfd.
    pub fn raise(&self, vector: u16) -> bool {
        let Some(Some(eventfd)) = self.eventfds.get(usize::from(vector)) else { return false };
        // A full counter already signals the interrupt. Do not write to it, because a blocking eventfd would
        // stall.
        let mut room = [PollFd::new(eventfd, PollFlags::OUT)];
        if rustix::event::poll(&mut room, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(0) {
            return true;
        }
        rustix::io::write(eventfd, &1u64.to_ne_bytes()).is_ok()
    }
}
