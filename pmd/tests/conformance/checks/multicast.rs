//! Multicast groups.

use ib_wire::{Gid, Lid};
use pmd::hca::{Control, Source};

use super::Check;
use crate::bench::{Bench, QKEY};
use crate::lab::{Lab, Outcome, hold, same, wrong};

const MLID: Lid = Lid(0xc001);

pub(super) fn checks<L: Lab>() -> Vec<Check<L>> {
    vec![
        Check::new("a group's datagrams arrive while attached, and are distinguished", attached),
        Check::new("groups are distinguished, and many can be attached", several),
        Check::new("a unicast GID cannot be attached", no_group),
    ]
}

/// IPv4's all-hosts group and others, as IPoIB maps them.
fn group(n: u8) -> Gid {
    Gid([0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0xe, 0, 0, n])
}

fn attached<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    b.start()?;
    let mgid = group(1);
    let mlid = b.join(mgid, MLID)?;
    let (to_group, to) = (b.destination_of_group(0, mgid, mlid)?, b.to(0, false, QKEY)?);
    let ud = b.ends[1].ud;
    for round in 0..3 {
        b.send_ud(0, &to_group, b"nobody")?;
        b.send_ud(0, &to, b"mark")?;
        let got = b.messages(1, 1)?;
        same!((got.len(), &got[0].bytes[..]), (1, &b"mark"[..]), "round {round}, before it is attached");
        b.ends[1].hca.attach_multicast(ud, mgid, mlid)?;
        b.send_ud(0, &to_group, b"group")?;
        b.send_ud(0, &to, b"mark")?;
        let got = b.messages(1, 2)?;
        let received: Vec<_> = got
            .iter()
            .filter_map(|m| match m.source {
                Source::Ud(from) => Some((&m.bytes[..], from.qpn, from.multicast)),
                Source::Rc | Source::RcInvalidated(_) => None,
            })
            .collect();
        let us = b.ends[0].ud;
        same!(received, [(&b"group"[..], us, true), (&b"mark"[..], us, false)], "round {round}, attached");
        same!(got[0].grh[24..40], mgid.0, "destination GID");
        b.ends[1].hca.detach_multicast(ud, mgid, mlid)?;
    }
    b.send_ud(0, &to_group, b"nobody")?;
    b.send_ud(0, &to, b"mark")?;
    same!(b.messages(1, 1)?[0].bytes, b"mark", "after it was detached");
    hold!(b.ends[1].hca.detach_multicast(ud, mgid, mlid).is_err(), "detached twice without an error");
    b.leave(mgid)
}

fn several<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    const GROUPS: u8 = 20;
    b.start()?;
    let ud = b.ends[1].ud;
    let mut mlids = Vec::new();
    for n in 0..GROUPS {
        mlids.push(b.join(group(n), Lid(MLID.0 + u16::from(n)))?);
    }
    let groups = || (0..GROUPS).zip(mlids.iter().copied());
    for (n, mlid) in groups().step_by(2) {
        b.ends[1].hca.attach_multicast(ud, group(n), mlid)?;
    }
    for (n, mlid) in groups() {
        let to = b.destination_of_group(0, group(n), mlid)?;
        b.send_ud(0, &to, &[n])?;
    }
    let got = b.messages(1, usize::from(GROUPS / 2))?;
    let got: Vec<_> = got.iter().flat_map(|m| m.bytes.clone()).collect();
    let expected: Vec<_> = (0..GROUPS).step_by(2).collect();
    same!(got, expected, "groups that arrived");
    for (n, mlid) in groups().step_by(2) {
        b.ends[1].hca.detach_multicast(ud, group(n), mlid)?;
    }
    (0..GROUPS).try_for_each(|n| b.leave(group(n)))
}

fn no_group<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    b.start()?;
    let (ud, gid) = (b.ends[1].ud, b.gid(0)?);
    match b.ends[1].hca.attach_multicast(ud, gid, MLID) {
        Err(_) => Ok(()),
        Ok(()) => wrong("a unicast GID was attached"),
    }
}
