//! What wakes a worker when a frame has come to its queue.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::PollFlags;
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::net::sockopt::socket_error;

use super::descriptor::Descriptor;
use super::kernel::TAP;
use dpdk_sys as sys;

/// What ends the rest of a worker when a frame comes to a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WokenBy {
    /// The driver's socket is readable.
    Socket,
    /// The port's receive interrupt.
    RxInterrupt,
    /// Nothing: the frame waits for the end of a nap.
    Timer,
}

impl WokenBy {
    /// Its name for people and programs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Socket => "socket",
            Self::RxInterrupt => "rx-interrupt",
            Self::Timer => "timer",
        }
    }

    /// What all queues of a port have.
    pub(super) fn all(wakers: &[Option<Waker>]) -> Self {
        let of = |waker: &Option<Waker>| match waker {
            Some(Waker::Socket(_)) => Self::Socket,
            Some(Waker::Interrupt(_)) => Self::RxInterrupt,
            None => Self::Timer,
        };
        let first = wakers.first().map_or(Self::Timer, of);
        if wakers.iter().all(|waker| of(waker) == first) { first } else { Self::Timer }
    }
}

/// What wakes the worker of a queue.
#[derive(Debug)]
pub(super) enum Waker {
    /// Readable as long as there is a frame.
    Socket(Descriptor),
    /// Readable when a frame came since it was switched on.
    Interrupt(Interrupt),
}

/// What a wait found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Told {
    /// A socket's frame, or nothing.
    Nothing,
    /// An interrupt came: it has to be switched off, and on again before the next rest.
    Interrupt,
    /// It will never tell again.
    Gone,
}

/// Who keeps a descriptor from being readable after it has told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Clearing {
    /// The driver, when it gives the frame or switches the interrupt off.
    Driver,
    /// Who waits: it is a counter (eventfd) that the kernel adds to, as VFIO does for MSI-X vectors.
    Counter,
}

/// The receive interrupt of a queue.
#[derive(Debug)]
pub(super) struct Interrupt {
    port: u16,
    queue: u16,
    descriptor: Descriptor,
    clearing: Clearing,
    switch: Switch,
}

/// Whether an interrupt tells of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Switch {
    /// It was switched on and not off since.
    On,
    /// It does not.
    Off,
    /// It does always: there is nothing to switch.
    Always,
}

impl Interrupt {
    /// That of a queue of a running port; `None` if the driver has none, or none that a worker could wait for.
    pub(super) fn of(port: u16, queue: u16, driver: &str) -> Option<Self> {
        // SAFETY: the port runs and has that queue.
        let switch = match unsafe { sys::rte_eth_dev_rx_intr_enable(port, queue) } {
            0 => Switch::Off,
            no if no == -libc::ENOTSUP && driver == TAP => Switch::Always,
            _ => return None,
        };
        if switch == Switch::Off {
            // SAFETY: as above. It may complain that there was nothing to tell.
            unsafe { sys::rte_eth_dev_rx_intr_disable(port, queue) };
        }
        // SAFETY: as above.
        let fd = unsafe { sys::rte_eth_dev_rx_intr_ctl_q_get_fd(port, queue) };
        let descriptor = Descriptor((fd >= 0).then_some(fd)?);
        let clearing = Clearing::of(&descriptor)?;
        Some(Self { port, queue, descriptor, clearing, switch })
    }

    fn on(&mut self) -> bool {
        if self.switch != Switch::Off {
            return false;
        }
        // SAFETY: the port runs, its queue is used by this worker only.
        if unsafe { sys::rte_eth_dev_rx_intr_enable(self.port, self.queue) } == 0 {
            self.switch = Switch::On;
        }
        self.switch == Switch::On
    }

    fn off(&mut self) {
        if self.switch == Switch::On {
            // SAFETY: as above.
            unsafe { sys::rte_eth_dev_rx_intr_disable(self.port, self.queue) };
            self.switch = Switch::Off;
        }
    }
}

impl Clearing {
    /// By what the descriptor is. `None` for one that is the whole device's (UIO) and is read by EAL, and for a counter whose reader
    /// could be made to wait.
    fn of(descriptor: &Descriptor) -> Option<Self> {
        let path = std::fs::read_link(format!("/proc/self/fd/{}", descriptor.0)).ok()?;
        let path = path.to_str()?;
        if path.starts_with("/dev/uio") {
            return None;
        }
        if path != "anon_inode:[eventfd]" {
            return Some(Self::Driver);
        }
        fcntl_getfl(descriptor).ok()?.contains(OFlags::NONBLOCK).then_some(Self::Counter)
    }
}

impl Waker {
    /// To be waited for; `None` while it would tell nothing.
    pub(super) fn events(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Socket(socket) => Some(socket.as_fd()),
            Self::Interrupt(interrupt) => {
                (interrupt.switch != Switch::Off).then(|| interrupt.descriptor.as_fd())
            }
        }
    }

    /// Switches an interrupt on. True if it was off: what came before does not wake.
    pub(super) fn arm(&mut self) -> bool {
        match self {
            Self::Socket(_) => false,
            Self::Interrupt(interrupt) => interrupt.on(),
        }
    }

    /// Switches an interrupt off.
    pub(super) fn disarm(&mut self) {
        if let Self::Interrupt(interrupt) = self {
            interrupt.off();
        }
    }

    /// What the flags of its descriptor mean; takes note of it.
    pub(super) fn told(&self, flags: PollFlags) -> Told {
        match self {
            // An interface that went down leaves an error which wakes until somebody asks for it.
            Self::Socket(socket) if flags.contains(PollFlags::ERR) => {
                let _ = socket_error(socket);
                Told::Nothing
            }
            // The interface below is gone, which would wake for ever.
            Self::Interrupt(_) if flags.intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL) => {
                Told::Gone
            }
            Self::Interrupt(interrupt) if flags.contains(PollFlags::IN) => {
                if interrupt.clearing == Clearing::Counter {
                    // Another queue with the same vector may have been first.
                    let _ = rustix::io::read(interrupt.descriptor, &mut [0; 8]);
                }
                Told::Interrupt
            }
            Self::Socket(_) | Self::Interrupt(_) => Told::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsRawFd, OwnedFd};

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    fn descriptor(fd: &impl AsRawFd) -> Descriptor {
        Descriptor(fd.as_raw_fd())
    }

    fn counter(value: u32, flags: EventfdFlags) -> OwnedFd {
        eventfd(value, flags).unwrap()
    }

    fn waker(fd: &OwnedFd, switch: Switch) -> Waker {
        let descriptor = descriptor(fd);
        let clearing = Clearing::of(&descriptor).unwrap();
        Waker::Interrupt(Interrupt { port: 0, queue: 0, descriptor, clearing, switch })
    }

    #[test]
    fn a_counter_is_read_when_it_has_told_and_nothing_else_is() {
        let fd = counter(7, EventfdFlags::NONBLOCK);
        assert_eq!(waker(&fd, Switch::On).told(PollFlags::IN), Told::Interrupt);
        assert_eq!(rustix::io::read(&fd, &mut [0; 8]), Err(rustix::io::Errno::AGAIN), "it was read");
        // Another queue was first.
        assert_eq!(waker(&fd, Switch::On).told(PollFlags::IN), Told::Interrupt);

        let (reader, writer) = std::io::pipe().unwrap();
        rustix::io::write(&writer, b"12345678").unwrap();
        let reader = OwnedFd::from(reader);
        assert_eq!(waker(&reader, Switch::On).told(PollFlags::IN), Told::Interrupt);
        assert_eq!(rustix::io::read(&reader, &mut [0; 8]), Ok(8), "a frame is the driver's");
    }

    #[test]
    fn only_what_would_tell_is_waited_for() {
        let fd = counter(0, EventfdFlags::NONBLOCK);
        let waited =
            [Switch::On, Switch::Off, Switch::Always].map(|switch| waker(&fd, switch).events().is_some());
        assert_eq!(waited, [true, false, true]);
        assert_eq!(waker(&fd, Switch::On).told(PollFlags::empty()), Told::Nothing);
        for end in [PollFlags::ERR, PollFlags::IN | PollFlags::HUP, PollFlags::NVAL] {
            assert_eq!(waker(&fd, Switch::Always).told(end), Told::Gone);
        }
    }

    #[test]
    fn no_worker_waits_where_a_read_might_make_it_wait() {
        assert_eq!(Clearing::of(&descriptor(&counter(0, EventfdFlags::empty()))), None);
        assert_eq!(Clearing::of(&Descriptor(-1)), None);
    }

    #[test]
    fn a_port_is_woken_by_what_all_its_queues_have() {
        let fd = counter(0, EventfdFlags::NONBLOCK);
        let interrupt = || Some(waker(&fd, Switch::Off));
        assert_eq!(WokenBy::all(&[interrupt(), interrupt()]), WokenBy::RxInterrupt);
        assert_eq!(WokenBy::all(&[interrupt(), None]), WokenBy::Timer);
        assert_eq!(WokenBy::all(&[Some(Waker::Socket(descriptor(&fd)))]), WokenBy::Socket);
        assert_eq!(WokenBy::all(&[]), WokenBy::Timer);
    }
}
