//! The bus between the driver and the software device.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::rest::{Arming, Rest};
use crate::mlx5::bus::Bus;
use crate::mlx5::rings::Register;
use connectx::doorbell::DoorbellSender;
use connectx::engine::Engine;

/// One thread's handle of the device. It has its own doorbell queue and advances the device.
#[derive(Debug)]
pub struct SoftBus {
    engine: Arc<Mutex<Engine>>,
    doorbells: DoorbellSender,
    /// Created by the first `arm`.
    rest: Option<Rest>,
}

impl SoftBus {
    /// Creates another handle of a device.
    #[must_use]
    pub fn new(engine: &Arc<Mutex<Engine>>) -> Self {
        let doorbells = engine.lock().attach_doorbells();
        Self { engine: engine.clone(), doorbells, rest: None }
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
        let mut engine = match &self.rest {
            // Last poll before a sleep. Wait for the lock, because its holder may not be advancing the
            // device.
            Some(rest) if rest.is_armed() => self.engine.lock(),
            // Another thread is advancing the device now, which is equivalent; otherwise the next iteration
            // does it.
            _ => match self.engine.try_lock() {
                Some(engine) => engine,
                None => return false,
            },
        };
        let now = Instant::now();
        if let Some(rest) = &mut self.rest {
            rest.arm_cables(&mut engine, now);
        }
        let worked = engine.step(now);
        if let (true, Some(rest)) = (worked, &mut self.rest) {
            rest.disarm();
        }
        worked
    }

    fn arm(&mut self, doorbell: [u8; 8]) -> bool {
        if self.rest.is_none() {
            match Rest::new() {
                Ok(rest) => self.rest = Some(rest),
                Err(e) => tracing::debug!("cannot create a wakeup source: {e}"),
            }
        }
        let Some(rest) = &mut self.rest else { return false };
        rest.arm(&mut self.engine.lock(), Arming::from(doorbell), Instant::now())
    }

    fn events(&self) -> Option<BorrowedFd<'_>> {
        self.rest.as_ref().map(Rest::events)
    }

    fn wait(&mut self, at_most: Duration) -> u32 {
        match &mut self.rest {
            Some(rest) => u32::from(rest.wait(at_most)),
            None => {
                std::thread::sleep(at_most);
                0
            }
        }
    }
}
