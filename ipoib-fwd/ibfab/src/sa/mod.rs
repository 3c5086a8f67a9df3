//! Subnet administration on the subnet manager's QP1 (IBA 15), without I/O. OpenSM's behaviour is the model where the
//! specification leaves a choice: statuses, masks, what a client that is not trusted may see.

mod event;
mod group;
mod node;
mod path;
mod table;

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use ib_wire::mad::{Mad, MadStatus, Method};
use ib_wire::sa::{
    CLASS_VERSION, CapabilityMask2, ClassPortInfo, DATA_LEN, Record, SaMad, attribute, status,
};
use ib_wire::{Gid, Lid};

use crate::sm::subnet::{EndPort, PortId, Subnet};
use crate::sm::{Changes, Counters, SmConfig};
use event::{Event, Events};
use group::Groups;

/// Optional abilities: multicast groups for datagrams (IBA table 188).
const CAPABILITIES: u16 = 1 << 9;

/// A refusal: the status of the answer.
pub(crate) type Refusal = MadStatus;

/// A refusal by a class-specific code.
pub(crate) const fn refuse(code: u8) -> Refusal {
    MadStatus::class_specific(code)
}

/// The refusal of a request that found nothing.
pub(crate) const NO_RECORDS: Refusal = refuse(status::NO_RECORDS);
/// The refusal of a request that contradicts itself or what is there.
pub(crate) const INVALID: Refusal = refuse(status::REQUEST_INVALID);

/// What a request works on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context<'a> {
    pub subnet: &'a Subnet,
    pub config: &'a SmConfig,
    /// The port that asks.
    pub requester: EndPort<'a>,
    /// Number of multicast LIDs that the switches can hold.
    pub multicast_limit: u16,
}

impl Context<'_> {
    /// True if the request shows the SM_Key (IBA 15.4.1).
    pub(crate) const fn is_trusted(&self, request: &SaMad) -> bool {
        self.config.sm_key != 0 && request.sm_key == self.config.sm_key
    }
}

/// Where answers and reports go, and what is counted.
#[derive(Debug)]
pub(crate) struct Output<'a> {
    pub now: Instant,
    pub config: &'a SmConfig,
    pub counters: &'a mut Counters,
    pub out: &'a mut VecDeque<Mad>,
}

/// Records found for a request, each as its bytes.
pub(crate) type Records = Vec<[u8; DATA_LEN]>;

/// Bytes of a record.
pub(crate) fn bytes_of<R: Record>(record: &R) -> [u8; DATA_LEN] {
    let mut data = [0; DATA_LEN];
    record.to_data(&mut data);
    data
}

/// The server.
#[derive(Debug)]
pub(crate) struct Server {
    groups: Groups,
    events: Events,
}

impl Server {
    /// With the broadcast groups of all partitions.
    pub(crate) fn new(config: &SmConfig) -> Self {
        Self { groups: Groups::new(config), events: Events::new(config) }
    }

    /// MGID, MLID and number of members of every group.
    pub(crate) fn groups(&self) -> impl Iterator<Item = (Gid, Lid, usize)> + '_ {
        self.groups.iter()
    }

    /// The ports that receive each multicast LID.
    pub(crate) fn receivers(&self, subnet: &Subnet) -> BTreeMap<Lid, Vec<PortId>> {
        self.groups.receivers(subnet)
    }

    /// When a report is due to be sent again.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.events.due()
    }

    /// Sends reports again.
    pub(crate) fn expire(&mut self, to: &mut Output<'_>) {
        self.events.expire(to);
    }

    /// Ports came, went or lost their state.
    pub(crate) fn ports_changed(&mut self, changes: &Changes, subnet: &Subnet, to: &mut Output<'_>) {
        let mut happened = Vec::new();
        for &guid in changes.departed.iter().chain(&changes.restarted) {
            self.events.forget(guid);
            happened.extend(self.groups.forget(guid));
        }
        happened.extend(changes.departed.iter().map(|&g| Event::port_out(subnet, g)));
        happened.extend(changes.arrived.iter().map(|&g| Event::port_in(subnet, g)));
        for event in happened {
            self.events.publish(&event, subnet, to);
        }
    }

    /// Answers a request. True if memberships changed.
    pub(crate) fn handle(
        &mut self,
        mad: &Mad,
        subnet: &Subnet,
        multicast_limit: u16,
        to: &mut Output<'_>,
    ) -> bool {
        let request = SaMad::parse(&mad.bytes);
        let header = request.header;
        if header.base_version != ib_wire::mad::BASE_VERSION || header.class_version != CLASS_VERSION {
            to.counters.unknown += 1;
            return false;
        }
        if header.method.is_response() {
            if header.method != Method::ReportResp || !self.events.acknowledged(header.tid) {
                to.counters.unasked += 1;
            }
            return false;
        }
        // Acknowledgements of tables that went out in one piece want nothing.
        if table::is_control(&request) {
            return false;
        }
        let Some(requester) = subnet.by_lid(mad.peer.lid) else {
            to.counters.unknown += 1;
            return false;
        };
        to.counters.sa_requests += 1;
        let context = Context { subnet, config: to.config, requester, multicast_limit };
        let before = self.groups.version();
        let (answer, happened) = self.serve(&context, mad, &request);
        if !answer.header.status.is_ok() {
            to.counters.sa_refused += 1;
        }
        to.out.push_back(Mad { peer: mad.peer.reply(), bytes: answer.to_bytes() });
        for event in happened {
            self.events.publish(&event, subnet, to);
        }
        self.groups.version() != before
    }

    /// The answer to a request, and the events that it brought about.
    fn serve(&mut self, context: &Context<'_>, mad: &Mad, request: &SaMad) -> (SaMad, Vec<Event>) {
        let mut happened = Vec::new();
        let records = match (request.header.method, request.header.attribute) {
            (Method::Get, attribute::CLASS_PORT_INFO) => Ok(vec![bytes_of(&class_port_info(context))]),
            (Method::Get | Method::GetTable, attribute::PATH_RECORD) => {
                path::find(context, request, &self.groups)
            }
            (Method::Get | Method::GetTable, attribute::MC_MEMBER_RECORD) => {
                self.groups.find(context, request)
            }
            (Method::Get | Method::GetTable, attribute::NODE_RECORD) => Ok(node::nodes(context, request)),
            (Method::Get | Method::GetTable, attribute::PORT_INFO_RECORD) => {
                Ok(node::ports(context, request))
            }
            (Method::Set, attribute::MC_MEMBER_RECORD) => {
                self.groups.join(context, request, &mut happened).map(|r| vec![bytes_of(&r)])
            }
            (Method::Delete, attribute::MC_MEMBER_RECORD) => {
                self.groups.leave(context, request, &mut happened).map(|r| vec![bytes_of(&r)])
            }
            (Method::Set, attribute::INFORM_INFO) => {
                self.events.subscribe(context, mad, request).map(|r| vec![bytes_of(&r)])
            }
            (Method::Get | Method::Set | Method::GetTable | Method::Delete, _) => {
                Err(MadStatus::UNSUPPORTED_ATTRIBUTE)
            }
            _ => Err(MadStatus::UNSUPPORTED_METHOD),
        };
        let answer = match records {
            Ok(records) => table::answer(request, &records),
            Err(refusal) => SaMad::refusal(request, refusal),
        };
        (answer, happened)
    }
}

fn class_port_info(context: &Context<'_>) -> ClassPortInfo {
    let mut info = ClassPortInfo::parse(&[0; ClassPortInfo::LEN]);
    info.base_version = ib_wire::mad::BASE_VERSION;
    info.class_version = CLASS_VERSION;
    info.capability_mask = CAPABILITIES;
    info.capability_mask2 = CapabilityMask2::SEND_ONLY_FULL_MEMBER;
    info.response_time = context.config.subnet_timeout;
    info
}
