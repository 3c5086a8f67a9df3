//! Two devices of this machine, opened through verbs and driven by its calls or by the rings of mlx5 devices, that reach each other: soft-RoCE over a pair of Ethernet interfaces, with
//! Ethernet ports or with InfiniBand ones (the laboratory's `ibll`), or real ones.

use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use ib_wire::mad::{Mad, MadAddress, Method};
use ib_wire::sa::{JoinState, McMask, McMemberRecord, SaMad};
use ib_wire::{Gid, Lid, PKey, PortNumber, Tid};
use pmd::hca::{Backend, Control, HcaError, LinkLayer, MemoryWork};
use pmd::verbs::{Adapter, DataPath, OpenOptions};

use crate::bench::{LIMIT, QKEY};
use crate::lab::{Lab, Need, Outcome, same, wrong};

const PORT: PortNumber = PortNumber(1);
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
    /// What pulls the cable of end 0 and puts it back, if it is not a kind that we can do that to.
    cable: Option<String>,
    /// Of the next request.
    tid: Tid,
}

fn parent(device: &str) -> PathBuf {
    Path::new("/sys/class/infiniband").join(device).join("parent")
}

impl<P> Verbs<P> {
    pub(crate) fn new(names: [String; 2], cable: Option<String>) -> Self {
        let ibll = Path::new("/sys/module/ibll").exists();
        let kind = match parent(&names[0]).exists() {
            true if ibll && names.iter().all(|name| name.starts_with("ibx")) => Kind::Ibll,
            true => Kind::SoftRoce,
            false => Kind::Other,
        };
        Self { _path: PhantomData, names, kind, cable, tid: Tid(1) }
    }

    /// The Ethernet interface below end 0.
    fn interface(&self) -> Outcome<String> {
        match std::fs::read_to_string(parent(&self.names[0])) {
            Ok(name) => Ok(name.trim().to_owned()),
            Err(e) => wrong(format!("the interface below {}: {e}", self.names[0])),
        }
    }
}

/// Asks subnet administration to join a group, or to leave it.
fn membership(hca: &mut impl Control, tid: Tid, method: Method, mgid: Gid) -> Outcome<McMemberRecord> {
    let port = hca.port(PORT)?;
    let record = McMemberRecord {
        mgid,
        port_gid: hca.gid(PORT, 0)?,
        qkey: QKEY,
        pkey: PKey(0xffff),
        join_state: JoinState::FULL_MEMBER,
        ..McMemberRecord::default()
    };
    let mut mask = McMask::MGID | McMask::PORT_GID | McMask::JOIN_STATE;
    if method == Method::Set {
        // What it takes to make the group (IBA 15.2.5.17.2).
        mask |= McMask::QKEY | McMask::TRAFFIC_CLASS | McMask::PKEY | McMask::SL | McMask::FLOW_LABEL;
    }
    let bytes = SaMad::request(method, tid, mask.bits(), &record).to_bytes();
    hca.send_mad(PORT, &Mad { peer: MadAddress::gsi(port.sm_lid, port.sm_sl), bytes })?;
    let end = Instant::now() + LIMIT;
    while Instant::now() < end {
        let Some(mad) = hca.receive_mad(PORT)? else {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        };
        let answer = SaMad::parse(&mad.bytes);
        if answer.header.tid == tid && Some(answer.header.method) == method.response() {
            same!(
                answer.header.status.is_ok(),
                true,
                "{method:?} of {mgid}: status {:?}",
                answer.header.status
            );
            return answer.record().map_or_else(|| wrong("an answer without a record"), Ok);
        }
    }
    wrong(format!("{method:?} of {mgid}: no answer within {LIMIT:?}"))
}

fn run(program: &str, words: &[&str]) -> Outcome {
    match Command::new(program).args(words).output() {
        Ok(done) if done.status.success() => Ok(()),
        Ok(done) => {
            wrong(format!("{program} {}: {}", words.join(" "), String::from_utf8_lossy(&done.stderr)))
        }
        Err(e) => wrong(format!("{program}: {e}")),
    }
}

impl<P: DataPath + Send> Lab for Verbs<P>
where
    P::Worker: Send,
    Adapter<P>: Backend<Queues: MemoryWork>,
{
    type Hca = Adapter<P>;

    fn name(&self) -> String {
        self.names.join("+")
    }

    fn open(&mut self) -> Result<[Adapter<P>; 2], HcaError> {
        let options = OpenOptions { infiniband: false, management: true };
        let open = |name: &String| Adapter::open_with(Some(name), PORT, options);
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
            (Need::PortEvents, Kind::Other) if self.cable.is_some() => None,
            // Of these the device tells itself.
            (Need::FastRegistration | Need::LongLists, _) => None,
            (Need::KeyBounds | Need::RemoteInvalidate, Kind::Other) => None,
            (Need::KeyBounds, _) => Some("soft-RoCE looks at the region's bounds, not at the window's"),
            (Need::RemoteInvalidate, _) => {
                Some("soft-RoCE tells it by another flag than the library has, and the sender nothing")
            }
            (Need::PortEvents, Kind::Other) => Some("the cable is out of reach"),
        }
    }

    fn change_gid(&mut self, _hcas: [&mut Adapter<P>; 2], add: bool) -> Outcome<Gid> {
        let interface = self.interface()?;
        run("ip", &["address", if add { "add" } else { "delete" }, ADDRESS, "dev", &interface])?;
        Ok(ADDRESS_GID)
    }

    /// As the subnet manager of an InfiniBand fabric has it.
    fn join(&mut self, hca: &mut Adapter<P>, mgid: Gid) -> Outcome<Option<Lid>> {
        if self.kind != Kind::Other || hca.port(PORT)?.link_layer == LinkLayer::Ethernet {
            return Ok(None);
        }
        self.tid.0 += 1;
        Ok(Some(membership(hca, self.tid, Method::Set, mgid)?.mlid))
    }

    fn leave(&mut self, hca: &mut Adapter<P>, mgid: Gid) -> Outcome {
        if self.kind != Kind::Other || hca.port(PORT)?.link_layer == LinkLayer::Ethernet {
            return Ok(());
        }
        self.tid.0 += 1;
        membership(hca, self.tid, Method::Delete, mgid).map(drop)
    }

    /// By the command that was given for it, or by `ibll`, which raises these events and shows the port's state.
    fn plug(&mut self, _hcas: [&mut Adapter<P>; 2], in_place: bool) -> Outcome {
        if let Some(command) = &self.cable {
            return run(command, &[if in_place { "plug" } else { "pull" }]);
        }
        // Numbers of enum ib_event_type.
        let event = format!("{} {}", self.names[0], if in_place { 9 } else { 10 });
        match std::fs::write("/sys/module/ibll/parameters/event", event) {
            Ok(()) => Ok(()),
            Err(e) => wrong(format!("ibll's event: {e}")),
        }
    }
}
