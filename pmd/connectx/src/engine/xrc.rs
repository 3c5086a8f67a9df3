//! Engine calls on extended reliable connections (IBA annex A14): targets and shared receive queues.

use ib_wire::Qpn;

use super::{Engine, not_found};
use crate::memory::HostMemory;
use crate::object::mr::Member;
use crate::object::qp::{Qp, QpKind, Receives};
use crate::object::send::SendQueue;
use crate::object::table::QpTable;
use crate::object::xrc::{Target, XrcDomain, XrcQueue};
use crate::region::RegionMemory;
use hca::{HcaError, PortNumber};

impl Engine {
    /// Creates the target of an extended reliable connection, in RESET. It has no queues of its own. Requests
    /// that arrive at it access the XRC shared receive queues of its domain, and memory of their protection
    /// domains.
    pub fn create_xrc_target(&mut self, port: PortNumber, domain: XrcDomain) -> Result<Qpn, HcaError> {
        self.port(port)?;
        let slot = self.qps.next_slot().ok_or(HcaError::Exhausted("queue pairs"))?;
        let qpn = QpTable::number(slot, self.roll() as u32);
        let receives = Receives::Named(Target { domain, named: None });
        let member = Member { queue_pair: Some(qpn), ..Member::default() };
        self.qps.insert(Qp::new(qpn, QpKind::XrcTarget, port.0 - 1, SendQueue::none(), receives, member));
        Ok(qpn)
    }

    /// Creates an XRC shared receive queue with slots of `stride` bytes.
    pub fn create_xrc_srq(
        &mut self,
        ring: impl Into<RegionMemory>,
        stride: usize,
        dbrec: HostMemory,
        how: XrcQueue,
    ) -> Result<u32, HcaError> {
        self.dev.cq(how.cq).ok_or_else(|| not_found("completion queue", how.cq))?;
        let number = self.create_srq(ring, stride, dbrec)?;
        if let Some(srq) = self.dev.srqs.get_mut(number as usize).and_then(Option::as_mut) {
            srq.xrc = Some(how);
        }
        Ok(number)
    }

    /// True if an XRC domain still contains a target or a shared receive queue.
    #[must_use]
    pub fn is_xrc_domain_used(&self, domain: XrcDomain) -> bool {
        let targets = self
            .qps
            .all()
            .any(|qp| matches!(&qp.receives, Receives::Named(target) if target.domain == domain));
        targets || self.dev.srqs.iter().flatten().any(|srq| srq.xrc.is_some_and(|xrc| xrc.domain == domain))
    }
}
