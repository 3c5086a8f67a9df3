//! The conformance suite on these devices. A thread advances them, because hardware works independently.

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ib_wire::PKey;
use pmd::hca::{Backend, HcaError, MemoryWork};
use pmd::mem::{Pool, PoolConfig};
use pmd::verbs::{Adapter, Calls, DataPath, OpenOptions, Rings};

use crate::bench::{self, Bench};
use crate::lab::{Failure, Lab, Need, Outcome};
use crate::rig::{PORT, alone, fresh_devices, join};
use crate::{checks, fakekernel};

/// Two devices with data path `P`.
struct Library<P>(PhantomData<P>);

impl<P: DataPath + Send> Lab for Library<P>
where
    P::Worker: Send,
    Adapter<P>: Backend<Queues: MemoryWork>,
{
    type Hca = Adapter<P>;

    fn name(&self) -> String {
        "libmlx5".to_owned()
    }

    fn open(&mut self) -> Result<[Self::Hca; 2], HcaError> {
        fresh_devices();
        let options = OpenOptions { management: false, ..OpenOptions::default() };
        let open = |name| Adapter::open_with(Some(name), PORT, options);
        Ok([open("mlx5_0")?, open("mlx5_1")?])
    }

    fn lacks(&self, need: Need) -> Option<&'static str> {
        match need {
            Need::Privileges => Some("the fake kernel allows everything"),
            Need::Management => Some("the fake kernel has no management agents"),
            Need::GidChange => Some("its GID table is a file that does not change"),
            _ => None,
        }
    }

    fn set_pkey(&mut self, hca: &mut Self::Hca, index: u16, key: PKey) -> Outcome {
        use pmd::hca::Control as _;
        let device = usize::from(hca.device().name == "mlx5_1");
        fakekernel::set_pkey(device, index, key);
        Ok(())
    }

    fn plug(&mut self, _hcas: [&mut Self::Hca; 2], in_place: bool) -> Outcome {
        if in_place {
            join();
            return Ok(());
        }
        for device in 0..2 {
            fakekernel::with(device, |d| d.engine.set_cable(PORT, None))?;
        }
        Ok(())
    }
}

/// A thread that advances the devices.
struct Clockwork {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Clockwork {
    fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let _alarm = Alarm;
            while !stopped.load(Ordering::Acquire) {
                match fakekernel::turn(Instant::now).1 {
                    // Commands need the devices too.
                    true => std::thread::yield_now(),
                    false => std::thread::sleep(Duration::from_micros(20)),
                }
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

/// Aborts on a panic. Otherwise the test would wait for a device that has panicked, and its message would
/// never be shown.
struct Alarm;

impl Drop for Alarm {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

impl Drop for Clockwork {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// `lists`: keys for lists can be created.
fn run<L: Lab>(lab: &mut L, lists: bool) {
    let _one = alone();
    let _clockwork = Clockwork::start();
    let config = PoolConfig { count: 2048, data_room: 4096, cache: 0, socket: -1 };
    let pools = ["conformance-0", "conformance-1"].map(|name| Pool::create(name, &config).unwrap());
    let (mut well, mut bad) = (0, Vec::new());
    for (subject, checks) in checks::all::<L>() {
        for check in checks {
            let mut sizes = bench::sizes();
            (check.sizes)(&mut sizes);
            let outcome = Bench::new(lab, &sizes, &pools).and_then(|mut bench| {
                let outcome = (check.run)(&mut bench);
                let closed = bench.close();
                outcome.and(closed)
            });
            match outcome {
                Ok(()) => well += 1,
                Err(Failure::Lacks(Need::FastRegistration | Need::LongLists, why)) if lists => {
                    bad.push(format!("{}: {subject}: {}: {why}", lab.name(), check.name));
                }
                Err(Failure::Lacks(..)) => {}
                Err(Failure::Wrong(text)) => {
                    bad.push(format!("{}: {subject}: {}: {text}", lab.name(), check.name))
                }
            }
        }
    }
    assert!(bad.is_empty(), "{} checks succeeded, these did not:\n{}", well, bad.join("\n"));
    assert!(well > 40, "{well} checks only");
}

#[test]
fn the_driver_on_the_rings_of_the_library_conforms() {
    run(&mut Library::<Rings>(PhantomData), true);
}

#[test]
fn the_calls_of_the_library_conform() {
    run(&mut Library::<Calls>(PhantomData), false);
}
