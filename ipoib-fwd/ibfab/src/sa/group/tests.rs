use super::*;

/// Checks that the indexes agree with the groups.
fn check(groups: &mut Groups) {
    let taken: BTreeMap<Lid, Gid> = groups.groups.iter().map(|(&mgid, g)| (g.record.mlid, mgid)).collect();
    assert_eq!(groups.by_mlid, taken);
    let number = |ports: Vec<Guid>| {
        let mut counts: BTreeMap<Guid, usize> = BTreeMap::new();
        ports.into_iter().for_each(|port| *counts.entry(port).or_default() += 1);
        counts
    };
    let all = || groups.groups.values();
    assert_eq!(groups.made, number(all().filter_map(Group::counts_for).collect()));
    let members = all().flat_map(|group| group.members.values());
    assert_eq!(groups.proxied, number(members.filter_map(|member| member.proxy).collect()));
    let free = (Lid::FIRST_MULTICAST.0..).map(Lid).find(|lid| !taken.contains_key(lid));
    assert_eq!(groups.free_mlid(MULTICAST_LIDS), free);
}

#[test]
fn the_indexes_of_groups_follow_each_change() {
    let mut groups = Groups::new(&SmConfig::new(Guid(1)));
    check(&mut groups);
    let mut dice = 7u64;
    let mut roll = move |sides: u64| {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (dice >> 33) % sides
    };
    let mut happened = Vec::new();
    for _ in 0..3000 {
        let mgid = Gid::new(0xff12_0000_0000_0000, Guid(roll(12)));
        let port = Guid(roll(4));
        groups.take_changed();
        if !groups.groups.contains_key(&mgid) {
            let mlid = groups.free_mlid(MULTICAST_LIDS).unwrap();
            let record = McMemberRecord { mgid, mlid, ..McMemberRecord::default() };
            groups.insert(Group {
                record,
                members: BTreeMap::new(),
                permanent: false,
                maker: Some(Guid(roll(4))),
            });
        }
        let mlid = groups.groups[&mgid].record.mlid;
        let state = if roll(3) == 0 { JoinState::NON_MEMBER } else { JoinState::FULL_MEMBER };
        let proxy = (roll(3) == 0).then(|| Guid(roll(4)));
        groups.set_member(mgid, port, Some(Member { state, proxy }).filter(|_| roll(2) == 0));
        groups.delete_orphans(&[mgid], &mut happened);
        assert_eq!(groups.take_changed(), [mlid].into());
        if roll(50) == 0 {
            happened.extend(groups.forget(port));
        }
        check(&mut groups);
    }
    assert!(happened.len() > 100);
}
