//! Worker lcores, and the cleanup of EAL. A separate process, because EAL starts once.
#![allow(clippy::unwrap_used, reason = "a test")]

use pmd::eal::{Eal, EalError};
use pmd::mem::{Pool, PoolConfig, pools_left};

#[test]
fn work_runs_on_workers_and_eal_ends_after_them() {
    // Two lcores on any CPU, so that one CPU is enough.
    let words =
        "test --no-huge --no-shconf --no-pci -m 128 --no-telemetry --log-level=error --lcores 0@0,3@0";
    let eal = Eal::init(words.split(' ').map(str::to_owned)).unwrap();
    let workers = eal.worker_lcores();
    assert_eq!((eal.main_lcore().0, workers.iter().map(|l| l.0).collect::<Vec<_>>()), (0, vec![3]));
    let worker = workers[0];

    let here = std::thread::current().id();
    let elsewhere = eal.launch(worker, || std::thread::current().id()).unwrap().join().unwrap();
    assert_ne!(here, elsewhere);

    // A busy lcore accepts no second job, and the rejected job is dropped.
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let busy = eal.launch(worker, move || wait.recv().is_ok()).unwrap();
    assert!(!busy.is_over());
    let refused = std::sync::Arc::new(());
    let inner = refused.clone();
    assert!(matches!(eal.launch(worker, move || drop(inner)), Err(EalError::Launch { .. })));
    assert_eq!(std::sync::Arc::strong_count(&refused), 1);
    assert!(matches!(eal.launch(eal.main_lcore(), || ()), Err(EalError::Launch { .. })));
    go.send(()).unwrap();
    assert!(busy.join().unwrap());

    // A panic ends the job, but not the process or the lcore.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| ()));
    let outcome = eal.launch(worker, || assert_eq!(1, 2)).unwrap().join();
    std::panic::set_hook(hook);
    assert!(matches!(outcome, Err(EalError::Panicked(l)) if l == worker));
    assert_eq!(eal.launch(worker, || 7).unwrap().join().unwrap(), 7);

    // A pool whose last handle is dropped on a worker is freed later, by the main lcore.
    let config = PoolConfig { count: 128, data_room: 2048, cache: 16, socket: -1 };
    let pool = Pool::create("worker", &config).unwrap();
    let kept = pool.alloc().unwrap();
    eal.launch(worker, move || drop((pool.alloc().unwrap(), pool))).unwrap().join().unwrap();
    assert_eq!(pools_left(), 1, "a buffer is in use");
    drop(kept);
    drop(Pool::create("another", &config).unwrap());
    assert_eq!(pools_left(), 0);

    // EAL's memory outlives EAL while a buffer in it is in use.
    let pool = Pool::create("outlives", &config).unwrap();
    let mut kept = pool.copy_from_slice(b"still here").unwrap();
    drop(eal);
    kept.data_mut()[0] = b'S';
    assert_eq!(kept.data(), b"Still here");
    assert!(pool.alloc().is_some(), "a handle keeps working");
    assert!(Pool::create("too late", &config).unwrap_err().to_string().contains("EAL is not running"));
    assert!(matches!(Eal::init(["x", "--no-huge"].map(str::to_owned)), Err(EalError::Twice)));
}
