//! The fabric's subnet administration.

use ib_wire::mad::{Mad, MadStatus, Method};
use ib_wire::sa::{McMemberRecord, MtuCode, PathRecord, SaMad, attribute};
use ib_wire::{Lid, Mtu, Rate};

use super::fabric::Fabric;

impl Fabric {
    /// The subnet administration: the first join creates a group, and every node has a path to every other.
    pub(super) fn administer(&mut self, mad: &Mad) -> Option<Box<[u8; 256]>> {
        let request = SaMad::parse(&mad.bytes);
        *self.requests.entry((request.header.attribute, request.header.method.code())).or_default() += 1;
        let answer = match (request.header.attribute, request.header.method) {
            (attribute::MC_MEMBER_RECORD, method) => {
                let asked: McMemberRecord = request.record()?;
                if method == Method::Get
                    && let Some(code) = self.query_status
                {
                    return Some(SaMad::refusal(&request, MadStatus::class_specific(code)).to_bytes());
                }
                if method == Method::Get {
                    // The parameters of a group are visible to every port.
                    let mtu = MtuCode::from(Mtu::B4096);
                    let record = McMemberRecord {
                        mgid: asked.mgid,
                        mtu,
                        rate: Rate::new(3),
                        ..McMemberRecord::default()
                    };
                    return Some(SaMad::answer(&request, &record).to_bytes());
                }
                if self.refuse_join.contains(&asked.mgid) {
                    return Some(
                        SaMad::refusal(&request, MadStatus::class_specific(self.join_status)).to_bytes(),
                    );
                }
                let member = (asked.mgid, asked.port_gid);
                if method == Method::Delete {
                    self.members.remove(&member);
                } else {
                    self.members.insert(member);
                }
                let next = &mut self.next_mlid;
                let mlid = *self.mlids.entry(asked.mgid).or_insert_with(|| {
                    *next += 1;
                    Lid(*next)
                });
                let record = McMemberRecord {
                    qkey: self.qkey,
                    mlid,
                    mtu: MtuCode::from(Mtu::B4096),
                    rate: Rate::new(3),
                    ..asked
                };
                SaMad::answer(&request, &record)
            }
            (attribute::PATH_RECORD, Method::Get) => {
                let asked: PathRecord = request.record()?;
                let to = self.nodes.iter().find(|n| n.alive && self.is_named(n.facts.gid, asked.dgid));
                let from = self.nodes.iter().find(|n| self.is_named(n.facts.gid, asked.sgid));
                match (to, from) {
                    (Some(to), Some(from)) => {
                        let record = PathRecord {
                            dlid: to.facts.lid,
                            slid: from.facts.lid,
                            mtu: MtuCode::from(Mtu::B4096),
                            rate: Rate::new(3),
                            life_time: self.life_time,
                            ..asked
                        };
                        SaMad::answer(&request, &record)
                    }
                    _ => SaMad::refusal(&request, MadStatus::class_specific(3)),
                }
            }
            _ => SaMad::refusal(&request, MadStatus::UNSUPPORTED_ATTRIBUTE),
        };
        Some(answer.to_bytes())
    }
}
