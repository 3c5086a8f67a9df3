//! Two devices of this machine, opened through verbs and driven by its calls or by the rings of mlx5 devices, that reach each other: soft-RoCE over a pair of Ethernet interfaces, with
//! Ethernet ports or with InfiniBand ones (the laboratory's `ibll`), or real ones.

use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::process::Command;

use ib_wire::{Gid, PortNumber};
use pmd::hca::{Backend, HcaError};
use pmd::verbs::{Adapter, DataPath, OpenOptions};

use crate::lab::{Lab, Need, Outcome, wrong};

/// The address that is added and taken away, and its GID.
const ADDRESS: &str = "10.123.45.67/24";
const ADDRESS_GID: Gid = Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 123, 45, 67]);

/// What drives the devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// Soft-RoCE.
    SoftRoce,
    /// Soft-RoCE with an InfiniBand link layer.
    Ibll,
    /// Something else: hardware.
    Other,
}

/// The laboratory.
pub(crate) struct Verbs<P> {
    _path: PhantomData<P>,
    names: [String; 2],
    kind: Kind,
}

fn parent(device: &str) -> PathBuf {
    Path::new("/sys/class/infiniband").join(device).join("parent")
}

impl<P> Verbs<P> {
    pub(crate) fn new(names: [String; 2]) -> Self {
        let ibll = Path::new("/sys/module/ibll").exists();
        let kind = match parent(&names[0]).exists() {
            true if ibll && names.iter().all(|name| name.starts_with("ibx")) => Kind::Ibll,
            true => Kind::SoftRoce,
            false => Kind::Other,
        };
        Self { _path: PhantomData, names, kind }
    }

    /// The Ethernet interface below end 0.
    fn interface(&self) -> Outcome<String> {
        match std::fs::read_to_string(parent(&self.names[0])) {
            Ok(name) => Ok(name.trim().to_owned()),
            Err(e) => wrong(format!("the interface below {}: {e}", self.names[0])),
        }
    }
}

fn ip(words: &[&str]) -> Outcome {
    match Command::new("ip").args(words).output() {
        Ok(done) if done.status.success() => Ok(()),
        Ok(done) => wrong(format!("ip {}: {}", words.join(" "), String::from_utf8_lossy(&done.stderr))),
        Err(e) => wrong(format!("ip: {e}")),
    }
}

impl<P: DataPath + Send> Lab for Verbs<P>
where
    P::Worker: Send,
    Adapter<P>: Backend,
{
    type Hca = Adapter<P>;

    fn name(&self) -> String {
        self.names.join("+")
    }

    fn open(&mut self) -> Result<[Adapter<P>; 2], HcaError> {
        let options = OpenOptions { infiniband: false, management: true };
        let open = |name: &String| Adapter::open_with(Some(name), PortNumber(1), options);
        Ok([open(&self.names[0])?, open(&self.names[1])?])
    }

    fn lacks(&self, need: Need) -> Option<&'static str> {
        match (need, self.kind) {
            (Need::Privileges | Need::Management, _) => None,
            (Need::GidChange, Kind::SoftRoce) => None,
            (Need::PortEvents, Kind::Ibll) => None,
            (Need::SourceLid | Need::NoGrh | Need::ControlledQKey, Kind::Other) => None,
            (Need::LengthStatus, Kind::Other) => None,
            (Need::SourceLid, _) => Some("soft-RoCE completes with LID 0"),
            (Need::NoGrh, _) => Some("every packet of soft-RoCE has an IP header, which it shows as GRH"),
            (Need::ControlledQKey, _) => Some("soft-RoCE sends every Q_Key as it is"),
            (Need::Partitions, Kind::Other) => Some("the subnet manager's to change"),
            (Need::Partitions, _) => Some("soft-RoCE has one P_Key, 0xffff"),
            (Need::LengthStatus, _) => {
                Some("soft-RoCE takes it for an operation that failed, and tells both so")
            }
            (Need::GidChange, _) => Some("the port's one GID is made of its LID, or the subnet manager's"),
            (Need::PortEvents, Kind::SoftRoce) => {
                Some("soft-RoCE loses its first GID, and its queue pairs go to error, with the interface")
            }
            (Need::PortEvents, Kind::Other) => Some("the cable is out of reach"),
        }
    }

    fn change_gid(&mut self, _hcas: [&mut Adapter<P>; 2], add: bool) -> Outcome<Gid> {
        let interface = self.interface()?;
        ip(&["address", if add { "add" } else { "delete" }, ADDRESS, "dev", &interface])?;
        Ok(ADDRESS_GID)
    }

    /// By `ibll`, which raises these events and shows the port's state.
    fn plug(&mut self, _hcas: [&mut Adapter<P>; 2], in_place: bool) -> Outcome {
        // Numbers of enum ib_event_type.
        let event = format!("{} {}", self.names[0], if in_place { 9 } else { 10 });
        match std::fs::write("/sys/module/ibll/parameters/event", event) {
            Ok(()) => Ok(()),
            Err(e) => wrong(format!("ibll's event: {e}")),
        }
    }
}
