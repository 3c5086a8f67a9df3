//! The segments whose packets a burst has, made ready for the short way.

use pmd::hca::{Checksum, Received};
use pmd::mem::{FrameTag, Mbuf};

use crate::forward::{SegmentIndex, SegmentTable, Short, ToEthernet, ToInfiniBand};
use crate::gateway::frames::head;
use ipoib::link::WorkerIndex;
use ipoib::net::ethernet::vid_of;

/// The VLAN identifier of a frame that has no tag in it; `None` where the port says that it has one.
#[inline(always)]
pub(super) const fn vid_beside(tag: FrameTag) -> Option<u16> {
    match tag {
        FrameTag::InFrame => Some(0),
        FrameTag::Taken(control) => Some(vid_of(control)),
        FrameTag::Stacked => None,
    }
}

/// A segment.
#[derive(Debug)]
pub(super) struct Lane<'t, D> {
    pub(super) segment: SegmentIndex,
    pub(super) table: &'t SegmentTable<D>,
    short: Short,
}

impl<'t, D: Clone> Lane<'t, D> {
    /// What to do with a frame that is plain.
    #[inline(always)]
    pub(super) fn take_frame(
        &self,
        frame: &Mbuf,
        checksum: Checksum,
        worker: WorkerIndex,
    ) -> Option<ToInfiniBand<'t, D>> {
        self.short.eth_to_ib(head(frame), frame.len(), checksum, self.table, worker)
    }

    /// What to do with a message that is plain.
    #[inline(always)]
    pub(super) fn take_message(&self, received: &Received) -> Option<ToEthernet> {
        let Received { buf, source, checksum, .. } = received;
        self.short.ib_to_eth(head(buf), buf.len(), source, *checksum, self.table)
    }
}

/// The lane of the last packet: as a rule it is the next one's, too.
#[derive(Debug)]
pub(super) struct Lanes<'t, D, K> {
    last: Option<(K, Option<Lane<'t, D>>)>,
    /// False: all packets go the long way.
    short: bool,
}

impl<'t, D, K: Copy + PartialEq> Lanes<'t, D, K> {
    pub(super) const fn new(short: bool) -> Self {
        Self { last: None, short }
    }

    /// The lane that this VLAN or link leads to, which `find` tells.
    #[inline(always)]
    pub(super) fn find(
        &mut self,
        key: K,
        find: impl FnOnce() -> Option<(SegmentIndex, &'t SegmentTable<D>)>,
    ) -> Option<&Lane<'t, D>> {
        if !matches!(&self.last, Some((last, _)) if *last == key) {
            let short = self.short;
            let lane = find().map(|(segment, table)| {
                let short = if short { Short::new(&table.settings) } else { Short::NOTHING };
                Lane { segment, table, short }
            });
            self.last = Some((key, lane));
        }
        self.last.as_ref()?.1.as_ref()
    }
}
