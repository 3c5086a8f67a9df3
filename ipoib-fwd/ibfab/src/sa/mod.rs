//! Subnet administration on the subnet manager's QP1 (IBA 15), without I/O. Where the specification leaves a
//! choice, OpenSM's behaviour is the model: statuses, masks, and the data that an untrusted client may see.

mod event;
mod group;
mod node;
mod path;
mod report;
mod request;
mod select;
mod table;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use ib_wire::mad::{Mad, MadStatus, Method};
use ib_wire::sa::{CLASS_VERSION, CapabilityMask2, ClassPortInfo, McMemberRecord, SaMad, attribute, status};
use ib_wire::smp::MFT_BLOCK_LEN;
use ib_wire::{Gid, Guid, Lid};

use crate::subnet::{Changes, PortId, SmConfig, Subnet};
use event::Event;
use group::Groups;
use report::Reports;
use request::{Context, bytes_of};

pub(crate) use request::Output;

/// Optional capabilities: multicast groups for datagrams (IBA table 188).
const CAPABILITIES: u16 = 1 << 9;

/// The subnet administration server.
#[derive(Debug)]
pub(crate) struct Server {
    groups: Groups,
    reports: Reports,
    /// Number of items that requests have examined since [`Self::take_examined`].
    examined: usize,
    /// Ports whose refused joins were logged, by status. A port's entries are removed when it leaves.
    reported: BTreeSet<(Guid, u16)>,
}

impl Server {
    /// Creates the server with the broadcast groups of all partitions.
    pub(crate) fn new(config: &SmConfig) -> Self {
        Self {
            groups: Groups::new(config),
            reports: Reports::new(config),
            examined: 0,
            reported: BTreeSet::new(),
        }
    }

    /// Returns MGID, MLID and number of members of every group.
    pub(crate) fn groups(&self) -> impl Iterator<Item = (Gid, Lid, usize)> + '_ {
        self.groups.iter()
    }

    /// Returns the ports that receive each multicast LID.
    pub(crate) fn receivers(&self, subnet: &Subnet) -> BTreeMap<Lid, Vec<PortId>> {
        self.groups.receivers(subnet, Lid::FIRST_MULTICAST..=Lid(0xffff))
    }

    /// Returns the blocks of the multicast tables whose groups changed since the last call.
    pub(crate) fn take_changed(&mut self) -> BTreeSet<u16> {
        let index = |lid: Lid| (lid.0 - Lid::FIRST_MULTICAST.0) / MFT_BLOCK_LEN as u16;
        self.groups.take_changed().into_iter().map(index).collect()
    }

    /// Returns the ports that receive each multicast LID of these blocks.
    pub(crate) fn receivers_of(&self, blocks: &BTreeSet<u16>, subnet: &Subnet) -> BTreeMap<Lid, Vec<PortId>> {
        let first = |block: &u16| Lid::FIRST_MULTICAST.0 + block * MFT_BLOCK_LEN as u16;
        let lids = |block| Lid(first(block))..=Lid(first(block) + MFT_BLOCK_LEN as u16 - 1);
        blocks.iter().flat_map(|block| self.groups.receivers(subnet, lids(block))).collect()
    }

    /// Returns the number of pairs of ports, groups, members and ports that requests examined since the last
    /// call.
    pub(crate) const fn take_examined(&mut self) -> usize {
        std::mem::replace(&mut self.examined, 0)
    }

    /// Returns when a report must be sent again.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.reports.due()
    }

    /// Sends due reports again.
    pub(crate) fn expire(&mut self, subnet: &Subnet, to: &mut Output<'_>) {
        self.reports.expire(subnet, to);
    }

    /// Applies the changes of a sweep: ports appeared, disappeared or lost their state, or changed their
    /// partitions. Returns the ports that must join again because their groups have changed.
    pub(crate) fn ports_changed(
        &mut self,
        changes: &Changes,
        subnet: &Subnet,
        multicast_limit: u16,
        to: &mut Output<'_>,
    ) -> BTreeSet<Guid> {
        let mut happened = Vec::new();
        for &guid in changes.departed.iter().map(|(guid, _)| guid).chain(&changes.restarted) {
            self.reports.forget(guid);
            self.reported.retain(|(port, _)| *port != guid);
            happened.extend(self.groups.forget(guid));
        }
        let followed = self.groups.follow(to.config, subnet, multicast_limit);
        happened.extend(followed.happened);
        to.counters.groups_left_out += followed.without_room;
        happened.extend(changes.departed.iter().map(|(g, keys)| Event::port_out(subnet, *g, keys.clone())));
        happened.extend(changes.arrived.iter().map(|&g| Event::port_in(subnet, g)));
        for event in happened {
            self.reports.publish(event, subnet, to);
        }
        followed.informed
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
            let is_expected = header.method == Method::ReportResp
                && self.reports.acknowledged(header.tid, mad.peer.lid, subnet, to);
            if !is_expected {
                to.counters.unasked += 1;
            }
            return false;
        }
        // Acknowledgements of tables in a single segment need no answer.
        if table::is_control(&request) {
            return false;
        }
        let Some(requester) = subnet.by_lid(mad.peer.lid) else {
            to.counters.unknown += 1;
            return false;
        };
        to.counters.sa_requests += 1;
        let examined = Cell::new(0);
        let context = Context { subnet, config: to.config, requester, multicast_limit, examined: &examined };
        let before = self.groups.version();
        let (answer, happened) = self.serve(&context, mad, &request);
        self.examined = self.examined.saturating_add(examined.get());
        let status = answer.header.status;
        if !status.is_ok() {
            to.counters.sa_refused += 1;
            if let Some(n) = to.counters.sa_refused_by.get_mut(usize::from(status.class_code())) {
                *n += 1;
            }
            to.counters.ports_refused +=
                u64::from(self.report_refusal(requester.port.guid, &request, status));
        }
        to.out.push_back(Mad { peer: mad.peer.reply(), bytes: answer.to_bytes() });
        for event in happened {
            self.reports.publish(event, subnet, to);
        }
        self.groups.version() != before
    }

    /// Logs a port that cannot join a group, once for each status. False for all other refusals, which are
    /// ordinary.
    fn report_refusal(&mut self, port: Guid, request: &SaMad, status: MadStatus) -> bool {
        let is_join =
            (request.header.method, request.header.attribute) == (Method::Set, attribute::MC_MEMBER_RECORD);
        let is_new = is_join && self.reported.insert((port, status.0));
        if is_new {
            let group = request.record::<McMemberRecord>().map(|record| record.mgid.to_string());
            let is_invalid = status == MadStatus::class_specific(status::REQUEST_INVALID);
            let help =
                if is_invalid { "; compare its P_Key, scope, rate and MTU with the partition's" } else { "" };
            tracing::warn!(
                "port {port} cannot join group {}: status {:#06x}, {}{help}",
                group.unwrap_or_default(),
                status.0,
                status::name(status)
            );
        }
        is_new
    }

    /// Returns the answer to a request, and the resulting events.
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
                self.reports.subscribe(context, mad, request).map(|r| vec![bytes_of(&r)])
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
