//! The bus between the driver and the software device.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use crate::mlx5::bus::Bus;
use crate::mlx5::rings::Register;
use connectx::doorbell::DoorbellSender;
use connectx::engine::Engine;

/// How often cables are asked anew to wake: one that was plugged in since, or came back, has not been asked.
const AGAIN: Duration = Duration::from_millis(10);

/// A handle of one thread on the device: its doorbells go through a queue of its own, and it gives the device turns. Completions come
/// of such turns, so that what ends its thread's rest is not a completion but a packet at the device's cables.
#[derive(Debug)]
pub struct SoftBus {
    engine: Arc<Mutex<Engine>>,
    doorbells: DoorbellSender,
    /// Readable when something arrived: an epoll instance on the cables' descriptors.
    wakers: Option<OwnedFd>,
    /// When the cables were asked to wake.
    asked: Option<Instant>,
}

impl SoftBus {
    /// Another handle on a device.
    #[must_use]
    pub fn new(engine: &Arc<Mutex<Engine>>) -> Self {
        let doorbells = engine.lock().attach_doorbells();
        Self { engine: engine.clone(), doorbells, wakers: None, asked: None }
    }

    fn ask(wakers: &OwnedFd, engine: &mut Engine, now: Instant) -> bool {
        engine.rest(now, |waker| {
            // One that is closed is out of it by itself. Each arrival tells once: who was woken takes all there is.
            let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
            match epoll::add(wakers, waker, epoll::EventData::new_u64(0), flags) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(e) => tracing::debug!("a cable that does not wake: {e}"),
            }
        })
    }
}

impl Bus for SoftBus {
    #[inline]
    fn ring(&mut self, register: &mut Register, doorbell: [u8; 8]) {
        register.turn_over();
        self.doorbells.post(doorbell);
    }

    #[inline]
    fn turn(&mut self) -> bool {
        // Somebody else gives it a turn at this moment: that does as well.
        let Some(mut engine) = self.engine.try_lock() else { return false };
        let now = Instant::now();
        if let (Some(asked), Some(wakers)) = (self.asked, &self.wakers)
            && now.saturating_duration_since(asked) >= AGAIN
            && Self::ask(wakers, &mut engine, now)
        {
            self.asked = Some(now);
        }
        engine.step(now)
    }

    fn arm(&mut self, _doorbell: [u8; 8]) -> bool {
        if self.wakers.is_none() {
            self.wakers = epoll::create(epoll::CreateFlags::CLOEXEC).ok();
        }
        let Some(wakers) = &self.wakers else { return false };
        let now = Instant::now();
        let told = Self::ask(wakers, &mut self.engine.lock(), now);
        self.asked = told.then_some(now);
        told
    }

    fn events(&self) -> Option<BorrowedFd<'_>> {
        self.wakers.as_ref().map(AsFd::as_fd)
    }

    fn wait(&mut self, at_most: Duration) -> u32 {
        let Some(wakers) = &self.wakers else {
            std::thread::sleep(at_most);
            return 0;
        };
        let timeout = Timespec { tv_sec: at_most.as_secs() as i64, tv_nsec: at_most.subsec_nanos().into() };
        let mut events = [MaybeUninit::uninit(); 8];
        // An interrupted wait is a short one.
        let woken =
            epoll::wait(wakers, &mut events[..], Some(&timeout)).is_ok_and(|(new, _)| !new.is_empty());
        if woken {
            self.asked = None;
        }
        u32::from(woken)
    }
}

#[cfg(test)]
mod tests {
    use connectx::cable::{CableEnd, CableUrl};
    use connectx::engine::EngineConfig;
    use ib_wire::{Guid, Mtu, PortNumber};

    use super::*;
    use crate::hca::LinkLayer;

    const MOMENT: Duration = Duration::from_millis(1);

    /// A device, and the other end of its cable in shared memory.
    fn device() -> (Arc<Mutex<Engine>>, CableEnd) {
        let path = std::env::temp_dir().join(format!("ib-bus-{}.sock", std::process::id()));
        let url: CableUrl = format!("shm:{}", path.display()).parse().unwrap();
        let port = connectx::PortConfig {
            guid: Guid(2),
            max_mtu: Mtu::B4096,
            link_layer: LinkLayer::InfiniBand,
            gid_table: 1,
        };
        let description = "rest".to_owned();
        let config = EngineConfig { node_guid: Guid(1), description, ports: vec![port], seed: 1 };
        let mut engine = Engine::new(config);
        let mut other = CableEnd::listen(&url).unwrap();
        engine.set_cable(PortNumber(1), Some(CableEnd::connect(&url).unwrap())).unwrap();
        let end = Instant::now() + Duration::from_secs(10);
        while !other.is_up() {
            assert!(Instant::now() < end, "{:?}", other.trouble());
            engine.step(Instant::now());
            other.poll(Instant::now());
        }
        (Arc::new(Mutex::new(engine)), other)
    }

    #[test]
    fn a_packet_ends_a_rest_on_an_idle_device() {
        let (engine, mut other) = device();
        let mut bus = SoftBus::new(&engine);
        let mut send = || {
            other.send_with(100, |out| out.fill(0)).unwrap();
            other.flush();
        };
        for round in 0..3 {
            // As the loop of a worker has it.
            while bus.turn() || !bus.arm([0; 8]) {
                std::thread::sleep(MOMENT);
            }
            assert!(!bus.turn());
            assert_eq!(bus.wait(MOMENT), 0, "nothing has come in round {round}");
            send();
            let start = Instant::now();
            assert_eq!(bus.wait(Duration::from_secs(5)), 1, "round {round}");
            assert!(start.elapsed() < Duration::from_secs(5));
            assert_eq!(bus.wait(MOMENT), 0, "once");
            let (mut engine, now) = (engine.lock(), Instant::now());
            assert!(engine.step(now), "there it is");
            assert!(!engine.rest(now, |_| {}), "the device is busy");
        }
    }
}
