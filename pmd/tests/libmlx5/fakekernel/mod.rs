//! A fake kernel. It answers the system calls of the unmodified libibverbs and libmlx5, which therefore open
//! ConnectX devices. Behind each device is the engine of the software ConnectX, on the rings that the library
//! allocated.
//!
//! * [`system`] replaces libc functions: `open`, `stat`, `ioctl`, `mmap`, `read`, `close` and `socket` of
//!   this program.
//! * [`sysfs`] is the tree in which libibverbs finds the devices.
//! * [`command`] executes requests of the libraries to the kernel, on a [`device`].
//! * [`user`] executes user-level commands (DEVX) that create keys.
//! * [`doorbell`] catches each store to a doorbell page.
//!
//! x86-64 and glibc only.

mod answers;
mod command;
mod device;
mod doorbell;
mod modify;
mod sysfs;
mod system;
mod user;
mod words;

use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

use ib_wire::PKey;

pub(crate) use device::{Device, Settings};
pub(crate) use doorbell::Doorbell;

/// The devices in name order. Locked for one request at a time.
static DEVICES: Mutex<Vec<Device>> = Mutex::new(Vec::new());

fn devices() -> MutexGuard<'static, Vec<Device>> {
    DEVICES.lock().unwrap_or_else(|e| e.into_inner())
}

/// Creates devices `mlx5_0`, `mlx5_1`, …, one for each of the settings.
pub(crate) fn boot(settings: &[Settings]) {
    sysfs::build(settings);
    doorbell::catch();
    let mut devices = devices();
    // Discard doorbells of earlier devices. Some may be left if the thread that advances them was late.
    doorbell::take();
    *devices = settings.iter().enumerate().map(|(index, s)| Device::new(index, s)).collect();
}

/// Sets a P_Key of a device, as a subnet manager would.
pub(crate) fn set_pkey(device: usize, index: u16, key: PKey) {
    sysfs::put_pkey(device, index.into(), key.0);
    with(device, |d| d.engine.set_pkey(device::PORT, index, key)).unwrap();
}

/// Accesses a device.
pub(crate) fn with<T>(device: usize, f: impl FnOnce(&mut Device) -> T) -> T {
    f(&mut devices()[device])
}

/// Delivers doorbells to their devices. Returns them.
fn deliver(devices: &mut [Device]) -> Vec<Doorbell> {
    let rung = doorbell::take();
    for doorbell in &rung {
        let device = devices.iter_mut().find(|d| d.has_page(doorbell.page)).expect("a page of a device");
        match doorbell.arms() {
            Some((cqn, consumer)) => device.arm(cqn, consumer),
            None => device.ring(doorbell.qpn()),
        }
    }
    rung
}

/// Handles the unmapping of an address that may be a doorbell page. Its doorbells are delivered first,
/// because another device's page may get the address next.
fn end_page(page: usize) {
    if !doorbell::is_page(page) {
        return;
    }
    let mut devices = devices();
    deliver(&mut devices);
    devices.iter_mut().for_each(|device| device.unmap_page(page));
    doorbell::forget_page(page);
}

/// Delivers doorbells to their devices and advances each device to the clock's current time. Returns the
/// doorbells, and true if any work was done.
pub(crate) fn turn(clock: impl FnOnce() -> Instant) -> (Vec<Doorbell>, bool) {
    let mut devices = devices();
    let rung = deliver(&mut devices);
    let now = clock();
    let mut worked = !rung.is_empty();
    for device in devices.iter_mut() {
        worked |= device.turn(now);
    }
    (rung, worked)
}
