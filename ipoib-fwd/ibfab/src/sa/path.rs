//! PathRecord (IBA 15.2.5.16).

use std::cell::OnceCell;

use ib_wire::sa::{LifeTime, PathMask, PathRecord, SaMad, Selector, status};
use ib_wire::{Gid, Mtu, PKey, Rate};

use super::group::Groups;
use super::request::{Context, MAX_RECORDS, NO_RECORDS, Records, Refusal, bytes_of, refuse};
use super::select::selected;
use crate::subnet::{EndPort, Node, Subnet, slower, speed};

/// Returns the paths that match a request.
pub(crate) fn find(context: &Context<'_>, request: &SaMad, groups: &Groups) -> Result<Records, Refusal> {
    let Some(wanted) = request.record::<PathRecord>() else { return Err(NO_RECORDS) };
    let mask = PathMask::from_bits_retain(request.component_mask);
    let subnet = context.subnet;
    let sources: Vec<EndPort<'_>> = if mask.contains(PathMask::SGID) {
        vec![by_gid(subnet, wanted.sgid)?.ok_or(refuse(status::INVALID_GID))?]
    } else if mask.contains(PathMask::SLID) {
        vec![subnet.by_lid(wanted.slid).ok_or(NO_RECORDS)?]
    } else {
        subnet.end_ports().collect()
    };
    if mask.contains(PathMask::DGID) && wanted.dgid.is_multicast() {
        let record = sources.first().and_then(|s| to_group(context, &wanted, mask, groups, *s));
        return record.map(|r| vec![bytes_of(&r)]).ok_or(NO_RECORDS);
    }
    let targets: Vec<EndPort<'_>> = if mask.contains(PathMask::DGID) {
        vec![by_gid(subnet, wanted.dgid)?.ok_or(NO_RECORDS)?]
    } else if mask.contains(PathMask::DLID) {
        vec![subnet.by_lid(wanted.dlid).ok_or(NO_RECORDS)?]
    } else {
        subnet.end_ports().collect()
    };
    let pairs = sources.iter().flat_map(|s| targets.iter().map(move |t| (*s, *t)));
    let trunks = OnceCell::new();
    let mut records = Records::new();
    for (examined, (source, target)) in pairs.enumerate() {
        // Without this limit, a request that names neither end, for a partition that no two ports share,
        // would examine all pairs of the subnet.
        if examined >= context.config.max_path_pairs {
            return Err(refuse(status::NO_RESOURCES));
        }
        context.count(1);
        let record = between(context, &wanted, mask, (source, target), &trunks);
        records.extend(record.map(|record| bytes_of(&record)));
        if records.len() == MAX_RECORDS {
            break;
        }
    }
    if records.is_empty() { Err(NO_RECORDS) } else { Ok(records) }
}

/// Finds the port at an end of a path by GID, with the subnet's prefix or the link-local one, which every
/// port accepts (IBA 4.1.1). A GID of another subnet is refused.
fn by_gid(subnet: &Subnet, gid: Gid) -> Result<Option<EndPort<'_>>, Refusal> {
    let known = gid.prefix() == subnet.prefix || gid.prefix() == Gid::DEFAULT_PREFIX;
    if known { Ok(subnet.by_guid(gid.id())) } else { Err(refuse(status::INVALID_GID)) }
}

/// The smallest MTU and the slowest rate of the links between switches, determined once for a request.
type Trunks = OnceCell<Option<(Mtu, Rate)>>;

fn slowest_trunk(context: &Context<'_>) -> Option<(Mtu, Rate)> {
    let subnet = context.subnet;
    let ports = subnet.nodes.values().filter(|n| n.is_switch()).flat_map(|n| n.ports.values());
    let trunks = ports.inspect(|_| context.count(1)).filter(|port| {
        let other = port.peer.and_then(|peer| subnet.nodes.get(&peer.0));
        other.is_some_and(Node::is_switch)
    });
    trunks.map(|port| subnet.abilities(port)).reduce(|(m1, r1), (m2, r2)| (m1.min(m2), slower(r1, r2)))
}

/// Returns the smallest MTU and the slowest rate between two ports. Between different switches every trunk
/// counts, since the forwarding tables select the trunk of a packet.
fn bottleneck(
    context: &Context<'_>,
    source: EndPort<'_>,
    target: EndPort<'_>,
    trunks: &Trunks,
) -> (Mtu, Rate) {
    let subnet = context.subnet;
    let (m1, r1) = subnet.abilities(source.port);
    let (m2, r2) = subnet.abilities(target.port);
    let least = (m1.min(m2), slower(r1, r2));
    let home = |e: EndPort<'_>| if e.node.is_switch() { Some(e.id.0) } else { e.port.peer.map(|p| p.0) };
    if home(source) == home(target) {
        return least;
    }
    let trunk = *trunks.get_or_init(|| slowest_trunk(context));
    trunk.map_or(least, |(mtu, rate)| (least.0.min(mtu), slower(least.1, rate)))
}

fn between(
    context: &Context<'_>,
    wanted: &PathRecord,
    mask: PathMask,
    (source, target): (EndPort<'_>, EndPort<'_>),
    trunks: &Trunks,
) -> Option<PathRecord> {
    // The requester must share a partition with both ends (IBA 15.4.1.2).
    let requester = context.requester.port;
    let seen = requester.may_see(source.port) && requester.may_see(target.port);
    if !seen
        || mask.contains(PathMask::SLID) && !source.port.lids().contains(wanted.slid)
        || mask.contains(PathMask::DLID) && !target.port.lids().contains(wanted.dlid)
    {
        return None;
    }
    let by_mask = |k: &PKey| !mask.contains(PathMask::PKEY) || k.base() == wanted.pkey.base();
    let pkey = source.port.shared_pkeys(target.port).find(by_mask)?;
    let (mtu, rate) = bottleneck(context, source, target, trunks);
    let partition = context.config.partitions.iter().find(|p| p.pkey.base() == pkey.base());
    let sl = partition.map(|p| p.sl).unwrap_or_default();
    let life_time = LifeTime::new(context.config.subnet_timeout.code());
    let mut record = PathRecord {
        dgid: target.gid(context.subnet),
        sgid: source.gid(context.subnet),
        // One path for each pair of ports: with the requested LIDs, or the first ones.
        dlid: if mask.contains(PathMask::DLID) { wanted.dlid } else { target.port.lid },
        slid: if mask.contains(PathMask::SLID) { wanted.slid } else { source.port.lid },
        pkey,
        sl,
        hop_limit: context.config.hop_limit,
        reversible: true,
        mtu_selector: Selector::Exactly,
        mtu: mtu.into(),
        rate_selector: Selector::Exactly,
        rate,
        life_time_selector: Selector::Exactly,
        life_time,
        ..PathRecord::default()
    };
    if mask.contains(PathMask::NUMB_PATH) {
        record.numb_path = wanted.numb_path;
    }
    fits(wanted, mask, &record).then_some(record)
}

/// True if the request's MTU, rate, life time, service level and raw traffic components allow this path.
fn fits(wanted: &PathRecord, mask: PathMask, path: &PathRecord) -> bool {
    let both = |selector: PathMask, value: PathMask| mask.contains(selector | value);
    let mtu_fits =
        !both(PathMask::MTU_SELECTOR, PathMask::MTU) || selected(wanted.mtu_selector, &path.mtu, &wanted.mtu);
    let rate_fits = !both(PathMask::RATE_SELECTOR, PathMask::RATE)
        || selected(wanted.rate_selector, &speed(path.rate), &speed(wanted.rate));
    let life_fits = !both(PathMask::LIFE_TIME_SELECTOR, PathMask::LIFE_TIME)
        || selected(wanted.life_time_selector, &path.life_time, &wanted.life_time);
    let sl_fits = !mask.contains(PathMask::SL) || wanted.sl == path.sl;
    let raw_fits = !mask.contains(PathMask::RAW_TRAFFIC) || !wanted.raw_traffic;
    mtu_fits && rate_fits && life_fits && sl_fits && raw_fits
}

/// Returns the path to a group, from the group's record.
fn to_group(
    context: &Context<'_>,
    wanted: &PathRecord,
    mask: PathMask,
    groups: &Groups,
    source: EndPort<'_>,
) -> Option<PathRecord> {
    let group = groups.get(wanted.dgid)?;
    let other = mask.contains(PathMask::PKEY) && group.record.pkey.base() != wanted.pkey.base();
    if other || !source.port.is_in(group.record.pkey) {
        return None;
    }
    Some(PathRecord {
        dgid: wanted.dgid,
        sgid: source.gid(context.subnet),
        dlid: group.record.mlid,
        slid: source.port.lid,
        pkey: group.record.pkey,
        sl: group.record.sl,
        flow_label: group.record.flow_label,
        hop_limit: group.record.hop_limit,
        traffic_class: group.record.traffic_class,
        mtu_selector: Selector::Exactly,
        mtu: group.record.mtu,
        rate_selector: Selector::Exactly,
        rate: group.record.rate,
        life_time_selector: Selector::Exactly,
        life_time: group.record.life_time,
        ..PathRecord::default()
    })
}
