//! Devices that appear, disappear, fail or exceed the limit, on a mock host: only the tables are real.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::rc::Rc;

use gidcache::{Attributes, GidType, Key, PortKind};
use ib_wire::{Gid, Guid, PortNumber};
use pmd::gids::{SharedGids, Standing, tables};
use pmd::shm::monotonic_nanoseconds;

use super::*;

const PORT: PortNumber = PortNumber(1);

/// The current state of a device.
#[derive(Debug)]
struct State {
    ids: RefCell<Vec<u64>>,
    event: Cell<bool>,
    fails: Cell<bool>,
    opened: Cell<u32>,
    renamed: RefCell<Option<String>>,
}

#[derive(Debug)]
struct Fake {
    state: Rc<State>,
    fd: File,
}

impl AsFd for Fake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn answer<T>(state: &State, value: T) -> Result<T, HcaError> {
    if state.fails.get() { Err(HcaError::Environment("no answer".into())) } else { Ok(value) }
}

impl Device for Fake {
    fn renamed(&self) -> Option<String> {
        self.state.renamed.borrow().clone()
    }

    fn setups(&self) -> Result<Vec<PortSetup>, HcaError> {
        answer(&self.state, vec![PortSetup { number: PORT, len: 8, kind: PortKind::InfiniBand }])
    }

    fn entries(&self) -> Result<Vec<Entry>, HcaError> {
        let entry = |(index, id): (u16, &u64)| {
            let key = Key { gid: Gid::new(7, Guid(*id)), gid_type: GidType::Ib, ifindex: None };
            Entry { port: PORT, index, attributes: Attributes { key, vlan: None }, default: index == 0 }
        };
        let entries = (0..).zip(self.state.ids.borrow().iter()).map(entry).collect();
        answer(&self.state, entries)
    }

    fn take_events(&self) -> Result<bool, HcaError> {
        answer(&self.state, self.state.event.take())
    }
}

#[derive(Clone, Default, Debug)]
struct Bench {
    states: Rc<RefCell<BTreeMap<String, Rc<State>>>>,
    /// True if the list of devices fails.
    fails: Rc<Cell<bool>>,
}

impl Bench {
    fn plug(&self, name: &str, ids: &[u64]) -> Rc<State> {
        let state = Rc::new(State {
            ids: RefCell::new(ids.to_vec()),
            event: Cell::default(),
            fails: Cell::default(),
            opened: Cell::default(),
            renamed: RefCell::default(),
        });
        self.states.borrow_mut().insert(name.to_owned(), Rc::clone(&state));
        state
    }

    fn pull(&self, name: &str) {
        self.states.borrow_mut().remove(name);
    }
}

impl Machine for Bench {
    type Device = Fake;

    fn names(&self) -> Result<Vec<String>, HcaError> {
        if self.fails.get() {
            return Err(HcaError::Environment("no list".into()));
        }
        Ok(self.states.borrow().keys().cloned().collect())
    }

    fn open(&self, name: &str) -> Result<Fake, HcaError> {
        let state = self.states.borrow().get(name).cloned();
        let state = state.ok_or_else(|| HcaError::NotFound { what: "device", name: name.to_owned() })?;
        state.opened.set(state.opened.get() + 1);
        Ok(Fake { state, fd: File::open("/dev/null").unwrap() })
    }
}

/// The mock host, the service of its devices, and the directory, which is removed at the end.
struct Rig {
    bench: Bench,
    directory: Directory,
    devices: Devices<Bench>,
    now: Instant,
}

impl Rig {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("gid-devices-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        let (bench, now) = (Bench::default(), Instant::now());
        let devices = Devices::new(bench.clone(), now);
        Self { bench, directory: Directory::serve(&path).unwrap(), devices, now }
    }

    fn turn(&mut self, after: Duration, plugged: bool, links: bool) {
        self.now += after;
        self.devices.turn(&self.directory, self.now, plugged, links).unwrap();
        self.devices.beat(monotonic_nanoseconds());
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn read(&self, name: &str) -> SharedGids {
        SharedGids::open(&self.path().join(name)).unwrap()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(self.directory.path());
    }
}

fn ids(shared: &SharedGids) -> Vec<u64> {
    let mut entries = Vec::new();
    shared.reader().entries(&mut entries).unwrap();
    entries.iter().map(|entry| entry.gid().id().0).collect()
}

const SOON: Duration = Duration::from_millis(10);

#[test]
fn a_device_is_followed_until_it_is_removed() {
    let mut rig = Rig::new("follow");
    rig.turn(SOON, false, false);
    let device = rig.bench.plug("mlx5_0", &[1, 2]);
    rig.turn(SOON, true, false);
    let shared = rig.read("mlx5_0");
    assert_eq!((ids(&shared), shared.standing().unwrap()), (vec![1, 2], Standing::Current));
    assert_eq!((rig.devices.count(), rig.devices.gids(), rig.devices.trouble()), (1, 2, None));
    // It is only read again after an event or a long time.
    *device.ids.borrow_mut() = vec![1, 3];
    rig.turn(SOON, false, false);
    assert_eq!(ids(&shared), [1, 2]);
    device.event.set(true);
    rig.turn(SOON, false, false);
    assert_eq!(ids(&shared), [1, 3]);
    *device.ids.borrow_mut() = vec![4];
    rig.turn(REREAD, false, false);
    assert_eq!(ids(&shared), [4]);
    *device.ids.borrow_mut() = vec![5];
    rig.turn(SOON, false, true);
    assert_eq!(ids(&shared), [5], "an interface changed");
    // Without an event, a new device is found at the next enumeration.
    rig.bench.plug("mlx5_1", &[9]);
    rig.turn(SOON, false, false);
    assert!(!rig.devices.has("mlx5_1"));
    rig.turn(LOOK, false, false);
    assert!(rig.devices.has("mlx5_1"));
    // When it is removed, its table is dead also for readers that have it open.
    rig.bench.pull("mlx5_0");
    rig.turn(SOON, true, false);
    assert_eq!(tables(rig.path()).unwrap().0, ["mlx5_1"]);
    assert_eq!(ids(&shared), [] as [u64; 0]);
    assert!(matches!(shared.standing().unwrap(), Standing::Dead(_)));
    assert_eq!(device.opened.get(), 1);
}

#[test]
fn readers_continue_with_the_next_device_of_a_name_and_see_when_it_is_dead() {
    let mut rig = Rig::new("lost");
    let first = rig.bench.plug("mlx5_0", &[1, 2]);
    rig.turn(SOON, true, false);
    let shared = rig.read("mlx5_0");
    // The driver is reloaded: the open device reports that it is gone, and another one exists immediately.
    first.fails.set(true);
    let second = rig.bench.plug("mlx5_0", &[1, 7]);
    rig.turn(SOON, false, false);
    assert_eq!((ids(&shared), shared.standing().unwrap()), (vec![1, 7], Standing::Current));
    assert_eq!((first.opened.get(), second.opened.get()), (1, 1));
    // It exists and does not answer: the table keeps its entries and is not confirmed.
    second.fails.set(true);
    rig.turn(SOON, false, false);
    assert_eq!((ids(&shared), rig.devices.count()), (vec![1, 7], 0));
    assert!(matches!(shared.standing().unwrap(), Standing::Dead(_)));
    assert!(rig.devices.trouble().unwrap().contains("mlx5_0"));
    let tries = second.opened.get();
    for _ in 0..100 {
        rig.turn(SOON, false, false);
    }
    assert!(second.opened.get() <= tries + 1, "it is not opened in every iteration");
    second.fails.set(false);
    second.ids.borrow_mut().push(8);
    rig.turn(LOOK, false, false);
    assert_eq!((ids(&shared), shared.standing().unwrap()), (vec![1, 7, 8], Standing::Current));
    assert_eq!(rig.devices.trouble(), None);
}

#[test]
fn a_device_that_failed_and_was_removed_leaves_no_table() {
    let mut rig = Rig::new("failed");
    let device = rig.bench.plug("mlx5_0", &[1]);
    rig.bench.plug("mlx5_1", &[2]);
    rig.turn(SOON, true, false);
    device.fails.set(true);
    rig.turn(SOON, false, false);
    assert_eq!(tables(rig.path()).unwrap().0, ["mlx5_0", "mlx5_1"], "it may answer again");
    rig.bench.pull("mlx5_0");
    rig.turn(SOON, true, false);
    assert_eq!(tables(rig.path()).unwrap().0, ["mlx5_1"]);
    assert_eq!((rig.devices.count(), rig.devices.trouble()), (1, None));
    // A device that never had a table.
    rig.bench.plug("mlx5_2", &[3]).fails.set(true);
    rig.turn(SOON, true, false);
    rig.bench.pull("mlx5_2");
    rig.turn(SOON, true, false);
    let mut files: Vec<_> =
        std::fs::read_dir(rig.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    files.sort();
    assert_eq!(files, [".lock", "mlx5_1", "mlx5_1.lock"]);
}

#[test]
fn a_device_that_fails_while_the_list_fails_is_not_confirmed() {
    let mut rig = Rig::new("unlisted");
    let device = rig.bench.plug("mlx5_0", &[1]);
    let other = rig.bench.plug("mlx5_1", &[2]);
    rig.turn(SOON, true, false);
    let shared = rig.read("mlx5_0");
    rig.bench.fails.set(true);
    device.fails.set(true);
    rig.turn(SOON, false, false);
    assert!(matches!(shared.standing().unwrap(), Standing::Dead(_)));
    assert_eq!((ids(&shared), rig.devices.readable().count()), (vec![1], 1), "it is not polled any more");
    assert!(rig.devices.trouble().unwrap().contains("mlx5_0"));
    assert_eq!(rig.read("mlx5_1").standing().unwrap(), Standing::Current);
    // It is opened again when the list can be read.
    rig.bench.fails.set(false);
    device.fails.set(false);
    rig.turn(LOOK, false, false);
    assert_eq!((rig.devices.count(), shared.standing().unwrap()), (2, Standing::Current));
    assert_eq!((device.opened.get(), other.opened.get(), rig.devices.trouble()), (2, 1, None));
}

#[test]
fn a_renamed_device_stops_the_service() {
    let mut rig = Rig::new("renamed");
    let device = rig.bench.plug("mlx5_0", &[1]);
    rig.turn(SOON, true, false);
    let shared = rig.read("mlx5_0");
    // The library still has the old name.
    *device.renamed.borrow_mut() = Some("mlx5_1".into());
    let error = rig.devices.turn(&rig.directory, rig.now + LOOK, false, false).unwrap_err();
    assert!(error.to_string().starts_with("mlx5_0 is called mlx5_1 now"), "{error}");
    rig.devices.beat(0);
    assert!(matches!(shared.standing().unwrap(), Standing::Unsaid(_)));
}

#[test]
fn the_number_of_devices_is_limited_and_invalid_names_are_refused() {
    let mut rig = Rig::new("bound");
    for n in 0..MAX_DEVICES + 2 {
        rig.bench.plug(&format!("mlx5_{n:03}"), &[1]);
    }
    for name in ["a.lock", "..", "a/b", ".lock"] {
        rig.bench.plug(name, &[1]);
    }
    rig.turn(SOON, true, false);
    assert_eq!(rig.devices.count(), MAX_DEVICES);
    assert!(rig.devices.trouble().unwrap().starts_with("6 not served"));
    assert_eq!(tables(rig.path()).unwrap().0.len(), MAX_DEVICES);
    // When a device is removed, one of those that wait takes its slot.
    rig.bench.pull("mlx5_000");
    rig.turn(SOON, true, false);
    assert_eq!(rig.devices.count(), MAX_DEVICES);
    assert!(!rig.devices.has("mlx5_000") && rig.devices.has("mlx5_064") && !rig.devices.has("mlx5_065"));
    // An orderly exit withdraws the confirmation of all tables.
    let shared = rig.read("mlx5_001");
    rig.devices.beat(0);
    assert!(matches!(shared.standing().unwrap(), Standing::Unsaid(_)));
}
