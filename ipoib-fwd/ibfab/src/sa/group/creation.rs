//! Creation of multicast groups: by requests of ports (IBA 15.2.5.17.2), and broadcast groups by partitions.

use std::collections::BTreeMap;

use ib_wire::ipoib::{GroupScope, IpoibGroup, broadcast_gid};
use ib_wire::sa::{JoinState, LifeTime, McMask, McMemberRecord, MtuCode, Scope, Selector, status};
use ib_wire::{Gid, Lid, PKey};

use super::super::request::{Context, INVALID, Refusal, refuse};
use super::super::select::{choose_mtu, choose_rate};
use super::{Group, Groups, KEEPS, agrees};
use crate::subnet::{EndPort, Partition, SmConfig};

/// Further components that a join must have to create the group (IBA 15.2.5.17.2).
const CREATE: McMask =
    McMask::QKEY.union(McMask::TRAFFIC_CLASS).union(McMask::PKEY).union(McMask::SL).union(McMask::FLOW_LABEL);

impl Groups {
    /// Creates a group with the attributes of a request (IBA 15.2.5.17.2).
    pub(super) fn create(
        &mut self,
        context: &Context<'_>,
        wanted: &McMemberRecord,
        mask: McMask,
        named: bool,
        port: EndPort<'_>,
    ) -> Result<Group, Refusal> {
        if !mask.contains(CREATE) {
            return Err(refuse(status::INSUFFICIENT_COMPONENTS));
        }
        // Only a member that keeps a group alive can create it, and only in a partition of its port.
        if !wanted.join_state.intersects(KEEPS) || !port.port.is_in(wanted.pkey) {
            return Err(INVALID);
        }
        let is_full = self.groups.len() >= context.config.max_groups
            || self
                .made
                .get(&context.requester.port.guid)
                .is_some_and(|&n| n >= context.config.max_groups_of_a_port);
        if is_full {
            return Err(refuse(status::NO_RESOURCES));
        }
        let (port_mtu, port_rate) = context.subnet.abilities(port.port);
        let mtu: MtuCode = choose_mtu(wanted, mask, port_mtu).ok_or(INVALID)?.into();
        let rate = choose_rate(wanted, mask, port_rate).ok_or(INVALID)?;
        let mgid = if named { wanted.mgid } else { self.choose_mgid(wanted, mask)? };
        if !is_usable(mgid) {
            return Err(INVALID);
        }
        let link = self.link_of(mgid, wanted, mask)?;
        let (mtu, rate) = link.map_or((mtu, rate), |link| (link.mtu, link.rate));
        let mlid = self.free_mlid(context.multicast_limit).ok_or(refuse(status::NO_RESOURCES))?;
        let life_time = if mask.contains(McMask::LIFE_TIME_SELECTOR | McMask::LIFE_TIME)
            && wanted.life_time_selector == Selector::Exactly
        {
            wanted.life_time
        } else {
            LifeTime::new(context.config.subnet_timeout.code())
        };
        let record = McMemberRecord {
            mgid,
            port_gid: Gid::ZERO,
            mlid,
            mtu_selector: Selector::Exactly,
            mtu,
            pkey: PKey(wanted.pkey.0 | 0x8000),
            rate_selector: Selector::Exactly,
            rate,
            life_time_selector: Selector::Exactly,
            life_time,
            hop_limit: if mask.contains(McMask::HOP_LIMIT) { wanted.hop_limit } else { 0 },
            scope: Scope::new(mgid.0[1] & 0xf),
            join_state: JoinState::empty(),
            proxy_join: false,
            ..*wanted
        };
        let maker = Some(context.requester.port.guid);
        Ok(Group { record, members: BTreeMap::new(), permanent: false, maker })
    }

    /// Returns the broadcast group of the IPoIB link that a group belongs to, if any. The broadcast group
    /// exists first, and the group has its attributes (RFC 4391 section 5), including MTU and rate: with
    /// smaller ones it would exclude the link's other hosts.
    fn link_of(
        &self,
        mgid: Gid,
        wanted: &McMemberRecord,
        mask: McMask,
    ) -> Result<Option<McMemberRecord>, Refusal> {
        if IpoibGroup::from_gid(mgid).is_none_or(|group| group == IpoibGroup::Broadcast) {
            return Ok(None);
        }
        let (pkey, scope) = IpoibGroup::link_of(mgid);
        let broadcast = self.groups.get(&broadcast_gid(pkey, scope)).ok_or(INVALID)?;
        if agrees(&broadcast.record, wanted, mask) { Ok(Some(broadcast.record)) } else { Err(INVALID) }
    }

    /// Chooses an MGID: transient, with the signature that OpenSM uses for such groups, and a number.
    fn choose_mgid(&mut self, wanted: &McMemberRecord, mask: McMask) -> Result<Gid, Refusal> {
        let scope = if mask.contains(McMask::SCOPE) { wanted.scope.get() } else { 2 };
        for _ in 0..=self.groups.len() {
            self.next_id = self.next_id.wrapping_add(1);
            let mut mgid = Gid::ZERO;
            mgid.0[..4].copy_from_slice(&[0xff, 0x10 | scope, 0xa0, 0x1b]);
            mgid.0[12..].copy_from_slice(&self.next_id.to_be_bytes());
            if !self.groups.contains_key(&mgid) {
                return Ok(mgid);
            }
        }
        Err(refuse(status::NO_RESOURCES))
    }
}

/// True if a multicast GID may name a group: `ff`, and a transient or permanent flag (IBA 4.1.1).
const fn is_usable(mgid: Gid) -> bool {
    mgid.is_multicast() && mgid.0[1] & 0xe0 == 0 && mgid.0[1] & 0x0f != 0
}

/// Returns the record of a partition's broadcast group.
pub(super) fn broadcast_record(
    partition: &Partition,
    mgid: Gid,
    mlid: Lid,
    config: &SmConfig,
) -> McMemberRecord {
    McMemberRecord {
        mgid,
        qkey: partition.qkey,
        mlid,
        mtu_selector: Selector::Exactly,
        mtu: partition.mtu.into(),
        pkey: partition.full_key(),
        rate_selector: Selector::Exactly,
        rate: partition.rate,
        life_time_selector: Selector::Exactly,
        life_time: LifeTime::new(config.subnet_timeout.code()),
        sl: partition.sl,
        scope: Scope::new(GroupScope::LINK_LOCAL.get()),
        ..McMemberRecord::default()
    }
}
