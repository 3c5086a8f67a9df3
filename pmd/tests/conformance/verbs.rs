//! Two connected devices of this host, opened through verbs and used by library calls or through the rings of
//! mlx5 devices.
//!
//! They are soft-RoCE devices on a pair of Ethernet interfaces, with Ethernet ports or InfiniBand ports (the
//! test VM's `ibll`), or real devices.

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
/// The address that is added and removed, and its GID.
const ADDRESS: &str = "10.123.45.67/24";
const ADDRESS_GID: Gid = Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 123, 45, 67]);

/// Kind of the devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// Soft-RoCE.
    SoftRoce,
    /// Soft-RoCE with an InfiniBand link layer.
    Ibll,
    /// Any other kind: hardware.
    Other,
}

/// The lab.
pub(crate) struct Verbs<P> {
    _path: PhantomData<P>,
    names: [String; 2],
    kind: Kind,
    /// Command that unplugs and plugs the cable of end 0, for kinds that the suite cannot control itself.
    cable: Option<String>,
    /// Transaction ID of the next request.
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

    /// Returns the Ethernet interface below end 0.
    fn interface(&self) -> Outcome<String> {
        match std::fs::read_to_string(parent(&self.names[0])) {
            Ok(name) => Ok(name.trim().to_owned()),
            Err(e) => wrong(format!("the interface below {}: {e}", self.names[0])),
        }
    }
}

/// Requests a group join or leave from subnet administration.
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
        // Components required to create the group (IBA 15.2.5.17.2).
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
            return answer.record().map_or_else(|| wrong("a response without a record"), Ok);
        }
    }
    wrong(format!("{method:?} of {mgid}: no response within {LIMIT:?}"))
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
            (Need::NoGrh, _) => Some("every soft-RoCE packet has an IP header, which is reported as a GRH"),
            (Need::ControlledQKey, _) => Some("soft-RoCE sends every Q_Key unchanged"),
            (Need::Partitions, Kind::Other) => Some("only the subnet manager can change it"),
            (Need::Partitions, _) => Some("soft-RoCE has one P_Key, 0xffff"),
            (Need::LengthStatus, _) => {
                Some("soft-RoCE treats it as a failed operation and reports that to both ends")
            }
            (Need::GidChange, _) => {
                Some("the port's only GID is derived from its LID or set by the subnet manager")
            }
            (Need::PortEvents, Kind::SoftRoce) => Some(
                "with the interface, soft-RoCE loses its first GID and its queue pairs enter the error state",
            ),
            (Need::PortEvents, Kind::Other) if self.cable.is_some() => None,
            // The device reports these itself.
            (Need::FastRegistration | Need::LongLists, _) => None,
            (Need::KeyBounds | Need::RemoteInvalidate, Kind::Other) => None,
            (Need::KeyBounds, _) => Some("soft-RoCE checks the region's bounds, not the window's"),
            (Need::RemoteInvalidate, _) => Some(
                "soft-RoCE reports it with a flag that differs from the library's, and does not notify the sender",
            ),
            (Need::PortEvents, Kind::Other) => Some("the suite cannot control the cable"),
        }
    }

    fn change_gid(&mut self, _hcas: [&mut Adapter<P>; 2], add: bool) -> Outcome<Gid> {
        let interface = self.interface()?;
        run("ip", &["address", if add { "add" } else { "delete" }, ADDRESS, "dev", &interface])?;
        Ok(ADDRESS_GID)
    }

    /// As with the subnet manager of an InfiniBand fabric.
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

    /// Uses the given command, or `ibll`, which raises these events and shows the port's state.
    fn plug(&mut self, _hcas: [&mut Adapter<P>; 2], in_place: bool) -> Outcome {
        if let Some(command) = &self.cable {
            return run(command, &[if in_place { "plug" } else { "pull" }]);
        }
        // Values of enum ib_event_type.
        let event = format!("{} {}", self.names[0], if in_place { 9 } else { 10 });
        match std::fs::write("/sys/module/ibll/parameters/event", event) {
            Ok(()) => Ok(()),
            Err(e) => wrong(format!("ibll's event: {e}")),
        }
    }
}
