//! A kernel that is not there. It answers the system calls of the unmodified libibverbs and libmlx5, so that they open ConnectX
//! devices, and behind each device works the engine of the software ConnectX, on the rings that the library allocated.
//!
//! * [`system`] stands in front of libc: `open`, `stat`, `ioctl`, `mmap`, `read`, `close` and `socket` of this program.
//! * [`sysfs`] is the tree in which libibverbs finds the devices.
//! * [`command`] carries out what the libraries ask of the kernel, on a [`device`].
//! * [`user`] carries out commands of programs (DEVX): those that make keys.
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

/// The devices, in the order of their names. Locked for the length of one request.
static DEVICES: Mutex<Vec<Device>> = Mutex::new(Vec::new());

fn devices() -> MutexGuard<'static, Vec<Device>> {
    DEVICES.lock().unwrap_or_else(|e| e.into_inner())
}

/// New devices `mlx5_0`, `mlx5_1`, …: one for each of the settings.
pub(crate) fn boot(settings: &[Settings]) {
    sysfs::build(settings);
    doorbell::catch();
    let mut devices = devices();
    // What was rung at the devices before these is nobody's any more. It waits still if whoever gives turns came late.
    doorbell::take();
    *devices = settings.iter().enumerate().map(|(index, s)| Device::new(index, s)).collect();
}

/// Gives a device another P_Key, as a subnet manager would.
pub(crate) fn set_pkey(device: usize, index: u16, key: PKey) {
    sysfs::put_pkey(device, index.into(), key.0);
    with(device, |d| d.engine.set_pkey(device::PORT, index, key)).unwrap();
}

/// Looks at a device, or changes it.
pub(crate) fn with<T>(device: usize, f: impl FnOnce(&mut Device) -> T) -> T {
    f(&mut devices()[device])
}

/// Gives doorbells to their devices. Returns them.
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

/// A doorbell page is unmapped, if that is what the address is of. What was rung there goes to its device before: another device's page may
/// have the address next.
fn end_page(page: usize) {
    if !doorbell::is_page(page) {
        return;
    }
    let mut devices = devices();
    deliver(&mut devices);
    devices.iter_mut().for_each(|device| device.unmap_page(page));
    doorbell::forget_page(page);
}

/// Gives doorbells to their devices, and each device a turn at the time that the clock then shows. Returns the doorbells, and true if anything was done.
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
