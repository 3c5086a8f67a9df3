//! The bus between the driver and the software device.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use crate::mlx5::bus::Bus;
use crate::mlx5::rings::Register;
use connectx::doorbell::DoorbellSender;
use connectx::engine::Engine;

/// A handle of one thread on the device: its doorbells go through a queue of its own, and it gives the device turns.
#[derive(Debug)]
pub struct SoftBus {
    engine: Arc<Mutex<Engine>>,
    doorbells: DoorbellSender,
}

impl SoftBus {
    /// Another handle on a device.
    #[must_use]
    pub fn new(engine: &Arc<Mutex<Engine>>) -> Self {
        let doorbells = engine.lock().attach_doorbells();
        Self { engine: engine.clone(), doorbells }
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
        self.engine.try_lock().is_some_and(|mut engine| engine.step(Instant::now()))
    }
}
