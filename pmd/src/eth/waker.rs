//! Wakeup sources of a worker for frames on its queue.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::PollFlags;
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::net::sockopt::socket_error;

use super::descriptor::Descriptor;
use super::kernel::TAP;
use dpdk_sys as sys;

/// Wakeup source of a sleeping worker when a frame arrives at a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WokenBy {
    /// The driver's socket is readable.
    Socket,
    /// The port's receive interrupt.
    RxInterrupt,
    /// None: the frame waits until the sleep timer expires.
    Timer,
}

impl WokenBy {
    /// Returns its name in messages and JSON output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Socket => "socket",
            Self::RxInterrupt => "rx-interrupt",
            Self::Timer => "timer",
        }
    }

    /// Returns the source that all queues of a port have in common.
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

/// Wakeup source of a queue's worker.
#[derive(Debug)]
pub(super) enum Waker {
    /// Readable while a frame is available.
    Socket(Descriptor),
    /// Readable after a frame has arrived since the interrupt was enabled.
    Interrupt(Interrupt),
}

/// Meaning of a descriptor's poll result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WakeEvent {
    /// A frame on a socket, or nothing.
    Nothing,
    /// An interrupt. It must be disabled, and enabled again before the next sleep.
    Interrupt,
    /// The wakeup source is permanently lost.
    Gone,
}

/// The side that clears the readable state of an interrupt's descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Clearing {
    /// The driver, when it returns the frame or when the interrupt is disabled.
    Driver,
    /// The waiting worker. The descriptor is a counter (eventfd) that the kernel increments, as VFIO does for
    /// MSI-X vectors.
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

/// Whether the interrupt is enabled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Switch {
    /// Enabled.
    On,
    /// Disabled.
    Off,
    /// Always enabled: the driver has no switch.
    Always,
}

impl Interrupt {
    /// Returns the interrupt of a running port's queue, or `None` if it has none that a worker can wait on.
    pub(super) fn of(port: u16, queue: u16, driver: &str) -> Option<Self> {
        // SAFETY: the port runs and has that queue.
        let switch = match unsafe { sys::rte_eth_dev_rx_intr_enable(port, queue) } {
            0 => Switch::Off,
            no if no == -libc::ENOTSUP && driver == TAP => Switch::Always,
            _ => return None,
        };
        if switch == Switch::Off {
            // SAFETY: as above. The driver may fail because there is nothing to disable.
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
    /// Determines the side by the kind of descriptor. Returns `None` for a descriptor of the whole device
    /// (UIO), which EAL reads, and for a blocking counter.
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
    /// Returns the descriptor to wait on, or `None` while it cannot signal.
    pub(super) fn events(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Socket(socket) => Some(socket.as_fd()),
            Self::Interrupt(interrupt) => {
                (interrupt.switch != Switch::Off).then(|| interrupt.descriptor.as_fd())
            }
        }
    }

    /// Enables an interrupt. Returns true if it was disabled: frames that arrived before do not trigger it.
    pub(super) fn arm(&mut self) -> bool {
        match self {
            Self::Socket(_) => false,
            Self::Interrupt(interrupt) => interrupt.on(),
        }
    }

    /// Disables an interrupt.
    pub(super) fn disarm(&mut self) {
        if let Self::Interrupt(interrupt) = self {
            interrupt.off();
        }
    }

    /// Interprets the poll flags of the descriptor and clears the condition if necessary.
    pub(super) fn classify(&self, flags: PollFlags) -> WakeEvent {
        match self {
            // An interface that went down leaves a pending error, which ends every wait until it is read.
            Self::Socket(socket) if flags.contains(PollFlags::ERR) => {
                let _ = socket_error(socket);
                WakeEvent::Nothing
            }
            // The interface below is gone. The condition would end every wait.
            Self::Interrupt(_) if flags.intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL) => {
                WakeEvent::Gone
            }
            Self::Interrupt(interrupt) if flags.contains(PollFlags::IN) => {
                if interrupt.clearing == Clearing::Counter {
                    // Another queue with the same vector may already have read it.
                    let _ = rustix::io::read(interrupt.descriptor, &mut [0; 8]);
                }
                WakeEvent::Interrupt
            }
            Self::Socket(_) | Self::Interrupt(_) => WakeEvent::Nothing,
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
    fn only_a_counter_is_read_after_an_interrupt() {
        let fd = counter(7, EventfdFlags::NONBLOCK);
        assert_eq!(waker(&fd, Switch::On).classify(PollFlags::IN), WakeEvent::Interrupt);
        assert_eq!(rustix::io::read(&fd, &mut [0; 8]), Err(rustix::io::Errno::AGAIN), "it was read");
        // The other queue was first.
        assert_eq!(waker(&fd, Switch::On).classify(PollFlags::IN), WakeEvent::Interrupt);

        let (reader, writer) = std::io::pipe().unwrap();
        rustix::io::write(&writer, b"12345678").unwrap();
        let reader = OwnedFd::from(reader);
        assert_eq!(waker(&reader, Switch::On).classify(PollFlags::IN), WakeEvent::Interrupt);
        assert_eq!(rustix::io::read(&reader, &mut [0; 8]), Ok(8), "the driver reads the frame");
    }

    #[test]
    fn only_enabled_sources_are_waited_for() {
        let fd = counter(0, EventfdFlags::NONBLOCK);
        let waited =
            [Switch::On, Switch::Off, Switch::Always].map(|switch| waker(&fd, switch).events().is_some());
        assert_eq!(waited, [true, false, true]);
        assert_eq!(waker(&fd, Switch::On).classify(PollFlags::empty()), WakeEvent::Nothing);
        for end in [PollFlags::ERR, PollFlags::IN | PollFlags::HUP, PollFlags::NVAL] {
            assert_eq!(waker(&fd, Switch::Always).classify(end), WakeEvent::Gone);
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
