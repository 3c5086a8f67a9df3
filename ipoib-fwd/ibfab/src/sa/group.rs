//! Multicast groups and their members (IBA 15.2.5.17).

mod creation;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use ib_wire::ipoib::{GroupScope, broadcast_gid};
use ib_wire::sa::{JoinState, McMask, McMemberRecord, MtuCode, SaMad, status};
use ib_wire::{Gid, Guid, Lid, PKey};

use creation::broadcast_record;

use super::event::Event;
use super::request::{Context, INVALID, MAX_RECORDS, NO_RECORDS, Records, Refusal, bytes_of, refuse};
use super::select::selected;
use crate::subnet::{EndPort, PortId, SmConfig, Subnet, speed};

/// Number of multicast LIDs (IBA 4.1.3).
const MULTICAST_LIDS: u16 = Lid::PERMISSIVE.0 - Lid::FIRST_MULTICAST.0;
/// Components that every join and leave must have.
const JOIN: McMask = McMask::MGID.union(McMask::PORT_GID).union(McMask::JOIN_STATE);

/// Join states that keep a group alive.
const KEEPS: JoinState = JoinState::FULL_MEMBER.union(JoinState::SEND_ONLY_FULL_MEMBER);
/// Join states that receive.
const RECEIVES: JoinState = JoinState::FULL_MEMBER.union(JoinState::NON_MEMBER);

/// Membership of a port in a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Member {
    state: JoinState,
    /// The other port that joined it (the stored ProxyJoin).
    proxy: Option<Guid>,
}

/// A multicast group.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    /// Its attributes; port GID and join state are empty.
    pub record: McMemberRecord,
    /// Members by port GUID.
    members: BTreeMap<Guid, Member>,
    /// Exists without members: created by the configuration.
    permanent: bool,
    /// The port that created it, for itself or by proxy, or that took it over; `None` for groups of the
    /// configuration.
    maker: Option<Guid>,
}

impl Group {
    /// Returns the port whose share this group counts towards.
    const fn counts_for(&self) -> Option<Guid> {
        if self.permanent { None } else { self.maker }
    }

    /// Hands the group over if a change ended the membership of its creator. From now on, the group counts
    /// for a member that keeps it alive and has joined by its own request, if there is one.
    fn hand_over(&mut self) {
        let keeps = |member: &Member| member.state.intersects(KEEPS);
        if self.maker.and_then(|maker| self.members.get(&maker)).is_some_and(keeps) {
            return;
        }
        let heir = self.members.iter().find(|(_, member)| keeps(member) && member.proxy.is_none());
        self.maker = heir.map(|(&guid, _)| guid).or(self.maker);
    }

    /// Returns the record of one member.
    fn of_member(&self, port_gid: Gid, member: Member) -> McMemberRecord {
        McMemberRecord {
            port_gid,
            join_state: member.state,
            proxy_join: member.proxy.is_some(),
            ..self.record
        }
    }
}

/// Effects of a change of partitions.
#[derive(Debug, Default)]
pub(crate) struct Followed {
    /// Groups that were created and deleted.
    pub happened: Vec<Event>,
    /// Ports whose groups have changed.
    pub informed: BTreeSet<Guid>,
    /// Groups for which no multicast LID was left.
    pub without_room: u64,
}

/// All multicast groups.
#[derive(Debug)]
pub(crate) struct Groups {
    groups: BTreeMap<Gid, Group>,
    /// MGIDs by multicast LID.
    by_mlid: BTreeMap<Lid, Gid>,
    /// All multicast LIDs below this one are in use.
    lowest_free: u16,
    /// Number of groups that a port created or took over, whatever their members: a port may let others join
    /// them, and may create them for others (ProxyJoin).
    made: BTreeMap<Guid, usize>,
    /// Number of memberships that a port requested for others.
    proxied: BTreeMap<Guid, usize>,
    /// Multicast LIDs whose members have changed.
    changed: BTreeSet<Lid>,
    version: u64,
    /// Next number for MGIDs that the requester leaves to us.
    next_id: u32,
}

impl Groups {
    /// Creates the broadcast groups of all IPoIB partitions, in the order of the configuration.
    pub(crate) fn new(config: &SmConfig) -> Self {
        let mut this = Self {
            groups: BTreeMap::new(),
            by_mlid: BTreeMap::new(),
            lowest_free: Lid::FIRST_MULTICAST.0,
            made: BTreeMap::new(),
            proxied: BTreeMap::new(),
            changed: BTreeSet::new(),
            version: 0,
            next_id: 0,
        };
        this.follow_partitions(config, MULTICAST_LIDS, &mut Followed::default());
        this
    }

    /// Applies a change of partitions: creates and deletes broadcast groups, and removes from every group the
    /// ports that are no longer in its partition. `limit` is the number of multicast LIDs.
    pub(crate) fn follow(&mut self, config: &SmConfig, subnet: &Subnet, limit: u16) -> Followed {
        let mut followed = Followed::default();
        self.follow_partitions(config, limit, &mut followed);
        for group in self.groups.values_mut() {
            let before = group.members.len();
            let pkey = group.record.pkey;
            let had_maker = group.maker.is_some_and(|maker| group.members.contains_key(&maker));
            group.members.retain(|&guid, _| subnet.by_guid(guid).is_some_and(|e| e.port.is_in(pkey)));
            if group.members.len() != before {
                if had_maker {
                    group.hand_over();
                }
                self.version += 1;
                self.changed.insert(group.record.mlid);
            }
        }
        self.made.clear();
        self.proxied.clear();
        for group in self.groups.values() {
            count(&mut self.made, group.counts_for());
            group.members.values().for_each(|member| count(&mut self.proxied, member.proxy));
        }
        let all: Vec<Gid> = self.groups.keys().copied().collect();
        self.delete_orphans(&all, &mut followed.happened);
        followed
    }

    fn follow_partitions(&mut self, config: &SmConfig, limit: u16, followed: &mut Followed) {
        for group in self.groups.values_mut() {
            group.permanent = false;
        }
        for partition in config.partitions.iter().filter(|p| p.ipoib) {
            let mgid = broadcast_gid(partition.pkey, GroupScope::LINK_LOCAL);
            let known = self.groups.get(&mgid).map(|group| group.record.mlid);
            let Some(mlid) = known.or_else(|| self.free_mlid(limit)) else {
                followed.without_room += 1;
                continue;
            };
            let record = broadcast_record(partition, mgid, mlid, config);
            self.by_mlid.insert(mlid, mgid);
            let group = self.groups.entry(mgid).or_insert_with(|| {
                followed.happened.push(Event::group_created(mgid, record.pkey));
                Group { record, members: BTreeMap::new(), permanent: true, maker: None }
            });
            group.permanent = true;
            if group.record != record {
                // Its members learn of it when they join again.
                group.record = record;
                followed.informed.extend(group.members.keys());
            }
        }
    }

    /// Returns the lowest free multicast LID.
    fn free_mlid(&mut self, limit: u16) -> Option<Lid> {
        let end = Lid::FIRST_MULTICAST.0 + limit.min(MULTICAST_LIDS);
        let free = (self.lowest_free..end).map(Lid).find(|lid| !self.by_mlid.contains_key(lid));
        self.lowest_free = free.map_or(self.lowest_free.max(end), |lid| lid.0);
        free
    }

    /// Returns a number that changes with every membership.
    pub(crate) const fn version(&self) -> u64 {
        self.version
    }

    pub(crate) fn get(&self, mgid: Gid) -> Option<&Group> {
        self.groups.get(&mgid)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Gid, Lid, usize)> + '_ {
        self.groups.iter().map(|(&mgid, g)| (mgid, g.record.mlid, g.members.len()))
    }

    /// Returns the multicast LIDs whose members changed since the last call.
    pub(crate) fn take_changed(&mut self) -> BTreeSet<Lid> {
        std::mem::take(&mut self.changed)
    }

    /// Returns the ports that receive each multicast LID in a range.
    pub(crate) fn receivers(&self, subnet: &Subnet, lids: RangeInclusive<Lid>) -> BTreeMap<Lid, Vec<PortId>> {
        let mut all: BTreeMap<Lid, Vec<PortId>> = BTreeMap::new();
        for group in self.by_mlid.range(lids).filter_map(|(_, mgid)| self.groups.get(mgid)) {
            let members = group.members.iter().filter(|(_, member)| member.state.intersects(RECEIVES));
            let ports = members.filter_map(|(&guid, _)| subnet.by_guid(guid));
            all.entry(group.record.mlid).or_default().extend(ports.map(|e| e.id));
        }
        all
    }

    /// Removes a port that is gone from all groups, and ends the memberships that it requested for others.
    pub(crate) fn forget(&mut self, port: Guid) -> Vec<Event> {
        let mut happened = Vec::new();
        let requested = self.proxied.contains_key(&port);
        let its = |guid: Guid, member: &Member| guid == port || member.proxy == Some(port);
        let mut left = Vec::new();
        for (&mgid, group) in &self.groups {
            if requested {
                let members = group.members.iter().filter(|&(&guid, member)| its(guid, member));
                left.extend(members.map(|(&guid, _)| (mgid, guid)));
            } else if group.members.contains_key(&port) {
                left.push((mgid, port));
            }
        }
        for &(mgid, member) in &left {
            self.set_member(mgid, member, None);
        }
        let its: Vec<Gid> = left.into_iter().map(|(mgid, _)| mgid).collect();
        self.delete_orphans(&its, &mut happened);
        happened
    }

    /// Sets or removes the membership of a port in a group.
    fn set_member(&mut self, mgid: Gid, port: Guid, member: Option<Member>) {
        let Some(group) = self.groups.get_mut(&mgid) else { return };
        let before = match member {
            Some(member) => group.members.insert(port, member),
            None => group.members.remove(&port),
        };
        self.changed.insert(group.record.mlid);
        self.version += 1;
        uncount(&mut self.proxied, before.and_then(|member| member.proxy));
        count(&mut self.proxied, member.and_then(|member| member.proxy));
        if before.is_some() && group.maker == Some(port) {
            uncount(&mut self.made, group.counts_for());
            group.hand_over();
            count(&mut self.made, group.counts_for());
        }
    }

    /// Inserts a group that a port has created.
    fn insert(&mut self, group: Group) {
        let mgid = group.record.mgid;
        count(&mut self.made, group.counts_for());
        self.by_mlid.insert(group.record.mlid, mgid);
        self.groups.insert(mgid, group);
    }

    /// Deletes those of these groups that no member keeps alive.
    fn delete_orphans(&mut self, groups: &[Gid], happened: &mut Vec<Event>) {
        for mgid in groups {
            let stays =
                |group: &Group| group.permanent || group.members.values().any(|m| m.state.intersects(KEEPS));
            if self.groups.get(mgid).is_none_or(stays) {
                continue;
            }
            let Some(group) = self.groups.remove(mgid) else { continue };
            uncount(&mut self.made, group.counts_for());
            group.members.values().for_each(|member| uncount(&mut self.proxied, member.proxy));
            let mlid = group.record.mlid;
            self.by_mlid.remove(&mlid);
            self.lowest_free = self.lowest_free.min(mlid.0);
            self.changed.insert(mlid);
            self.version += 1;
            happened.push(Event::group_deleted(*mgid, group.record.pkey));
        }
    }

    /// Returns the port that a request is about. The request names it with the subnet's prefix: a member that
    /// still uses another prefix has not learned of the change yet.
    fn subject<'a>(context: &Context<'a>, record: &McMemberRecord) -> Result<EndPort<'a>, Refusal> {
        context.subnet.by_gid(record.port_gid).ok_or(INVALID)
    }

    /// Checks that the requester may change the membership of `port` in a group of partition `pkey`
    /// (o15-0.1.14, o15-0.2.1). The SM_Key has no effect.
    ///
    /// | the port is | may change it |
    /// |---|---|
    /// | no member | the port itself; a request with ProxyJoin from another port in the partition |
    /// | a member by its own request | the port itself |
    /// | a member by proxy (the *stored* ProxyJoin) | the port itself; any port in the partition |
    fn may_change(
        context: &Context<'_>,
        port: EndPort<'_>,
        pkey: PKey,
        member: Option<&Member>,
        asks_for_proxy: bool,
    ) -> Result<(), Refusal> {
        let own = port.id == context.requester.id;
        let proxy = member.map_or(asks_for_proxy, |member| member.proxy.is_some());
        if own || proxy && context.requester.port.is_in(pkey) { Ok(()) } else { Err(INVALID) }
    }

    /// Joins a group; creates it if it does not exist.
    pub(crate) fn join(
        &mut self,
        context: &Context<'_>,
        request: &SaMad,
        happened: &mut Vec<Event>,
    ) -> Result<McMemberRecord, Refusal> {
        let wanted = request.record::<McMemberRecord>().ok_or(INVALID)?;
        let mask = McMask::from_bits_retain(request.component_mask);
        // Without an MGID, the group is created, and we choose its MGID.
        if !mask.contains(JOIN.difference(McMask::MGID)) {
            return Err(refuse(status::INSUFFICIENT_COMPONENTS));
        }
        let port = Self::subject(context, &wanted)?;
        if wanted.join_state.is_empty() {
            return Err(INVALID);
        }
        let named = mask.contains(McMask::MGID) && wanted.mgid != Gid::ZERO;
        let known = self.groups.get(&wanted.mgid).filter(|_| named);
        let pkey = known.map_or(PKey(wanted.pkey.0 | 0x8000), |group| group.record.pkey);
        let member = known.and_then(|group| group.members.get(&port.port.guid));
        let asks_for_proxy = mask.contains(McMask::PROXY_JOIN) && wanted.proxy_join;
        Self::may_change(context, port, pkey, member, asks_for_proxy)?;
        let own = port.id == context.requester.id;
        let requester = context.requester.port.guid;
        let requested = self.proxied.get(&requester).copied().unwrap_or(0);
        if !own && member.is_none() && requested >= context.config.max_groups_of_a_port {
            return Err(refuse(status::NO_RESOURCES));
        }
        let mgid = if known.is_some() {
            wanted.mgid
        } else {
            let group = self.create(context, &wanted, mask, named, port)?;
            if !can_join(&group.record, context.subnet, port) {
                return Err(INVALID);
            }
            let mgid = group.record.mgid;
            happened.push(Event::group_created(mgid, group.record.pkey));
            self.insert(group);
            mgid
        };
        let Some(group) = self.groups.get(&mgid) else { return Err(INVALID) };
        if !agrees(&group.record, &wanted, mask) || !can_join(&group.record, context.subnet, port) {
            // A new group has attributes with which its creator can join, so no group is left without
            // members.
            return Err(INVALID);
        }
        let joined = Member { state: JoinState::empty(), proxy: Some(requester) };
        let before = group.members.get(&port.port.guid).copied();
        let mut now = before.unwrap_or(joined);
        now.state |= wanted.join_state;
        // After its own request, a membership is the port's own.
        now.proxy = now.proxy.filter(|_| !own);
        let record = group.of_member(port.gid(context.subnet), now);
        if before != Some(now) {
            self.set_member(mgid, port.port.guid, Some(now));
        }
        Ok(record)
    }

    /// Leaves a group, with the join states that the request names.
    pub(crate) fn leave(
        &mut self,
        context: &Context<'_>,
        request: &SaMad,
        happened: &mut Vec<Event>,
    ) -> Result<McMemberRecord, Refusal> {
        let wanted = request.record::<McMemberRecord>().ok_or(INVALID)?;
        let mask = McMask::from_bits_retain(request.component_mask);
        if !mask.contains(JOIN) {
            return Err(refuse(status::INSUFFICIENT_COMPONENTS));
        }
        let port = Self::subject(context, &wanted)?;
        let group = self.groups.get(&wanted.mgid).ok_or(INVALID)?;
        let mut left = *group.members.get(&port.port.guid).ok_or(INVALID)?;
        Self::may_change(context, port, group.record.pkey, Some(&left), false)?;
        // A leave names only join states that the port has (IBA 15.2.5.17.3).
        if wanted.join_state.is_empty() || !left.state.contains(wanted.join_state) {
            return Err(INVALID);
        }
        left.state.remove(wanted.join_state);
        let record = group.of_member(port.gid(context.subnet), left);
        self.set_member(wanted.mgid, port.port.guid, Some(left).filter(|left| !left.state.is_empty()));
        self.delete_orphans(&[wanted.mgid], happened);
        Ok(record)
    }

    /// Returns the groups that match a request; with the SM_Key, their members.
    pub(crate) fn find(&self, context: &Context<'_>, request: &SaMad) -> Result<Records, Refusal> {
        let wanted = request.record::<McMemberRecord>().ok_or(NO_RECORDS)?;
        let mask = McMask::from_bits_retain(request.component_mask);
        let trusted = context.is_trusted(request);
        let mut records = Records::new();
        let named = mask.contains(McMask::MGID).then_some(wanted.mgid);
        let groups = named.map_or(Gid::ZERO..=Gid([0xff; 16]), |mgid| mgid..=mgid);
        for group in self.groups.range(groups).map(|(_, group)| group) {
            if records.len() >= MAX_RECORDS {
                break;
            }
            context.count(1);
            let visible = trusted || context.requester.port.is_in(group.record.pkey);
            if !visible {
                continue;
            }
            if mask.contains(McMask::MLID) && wanted.mlid != group.record.mlid
                || !agrees(&group.record, &wanted, mask)
            {
                continue;
            }
            let member = |(&guid, &member): (&Guid, &Member)| {
                group.of_member(Gid::new(context.subnet.prefix, guid), member)
            };
            let fits = |r: &McMemberRecord| {
                (!mask.contains(McMask::PORT_GID) || r.port_gid == wanted.port_gid)
                    && (!mask.contains(McMask::JOIN_STATE) || r.join_state.intersects(wanted.join_state))
            };
            // The list of members is restricted (IBA 15.4.1.2): others see only their own membership.
            if trusted {
                context.count(group.members.len());
                let found = group.members.iter().map(member).filter(fits).map(|r| bytes_of(&r));
                records.extend(found.take(MAX_RECORDS - records.len()));
            } else if mask.intersects(McMask::PORT_GID | McMask::JOIN_STATE) {
                let own = group.members.get_key_value(&context.requester.port.guid);
                records.extend(own.map(member).filter(fits).map(|r| bytes_of(&r)));
            } else {
                records.push(bytes_of(&group.record));
            }
        }
        if records.is_empty() { Err(NO_RECORDS) } else { Ok(records) }
    }
}

/// Counts a group or a membership for this port.
fn count(counts: &mut BTreeMap<Guid, usize>, port: Option<Guid>) {
    if let Some(port) = port {
        *counts.entry(port).or_default() += 1;
    }
}

/// Uncounts a group or a membership that is gone or counts for another port now.
fn uncount(counts: &mut BTreeMap<Guid, usize>, port: Option<Guid>) {
    if let Some(port) = port
        && let Entry::Occupied(mut count) = counts.entry(port)
    {
        *count.get_mut() -= 1;
        if *count.get() == 0 {
            count.remove();
        }
    }
}

/// True if the components in a request match those of the group.
fn agrees(group: &McMemberRecord, wanted: &McMemberRecord, mask: McMask) -> bool {
    let same = |bit, ok: bool| !mask.contains(bit) || ok;
    same(McMask::QKEY, wanted.qkey == group.qkey)
        && same(McMask::TRAFFIC_CLASS, wanted.traffic_class == group.traffic_class)
        && same(McMask::PKEY, wanted.pkey.matches(group.pkey))
        && same(McMask::SL, wanted.sl == group.sl)
        && same(McMask::FLOW_LABEL, wanted.flow_label == group.flow_label)
        && same(McMask::HOP_LIMIT, wanted.hop_limit == group.hop_limit)
        && same(McMask::MTU_SELECTOR | McMask::MTU, selected(wanted.mtu_selector, &group.mtu, &wanted.mtu))
        && same(
            McMask::RATE_SELECTOR | McMask::RATE,
            selected(wanted.rate_selector, &speed(group.rate), &speed(wanted.rate)),
        )
}

/// True if a port is in the group's partition and its link supports the group.
fn can_join(group: &McMemberRecord, subnet: &Subnet, port: EndPort<'_>) -> bool {
    let (mtu, rate) = subnet.abilities(port.port);
    port.port.is_in(group.pkey) && MtuCode::from(mtu) >= group.mtu && speed(rate) >= speed(group.rate)
}

#[cfg(test)]
mod tests;
