//! Where queues lie in memory; commands about event queues and shared receive queues.

use connectx::{HostMemory, ProtectionDomain, RegionMemory};
use prm::command::{CONTEXT, EVENT_MASK};
use prm::context::{EqContext, SrqContext};
use prm::{DBREC_SIZE, EQE_SIZE};
use zerocopy::big_endian::U64;

use super::command::{Fault, Input, Output};
use super::event_queue::EventQueue;
use super::key::NUMBER;
use super::setup::LOG_MAX_EQ_SIZE;
use super::user::Kind;
use super::{Hca, Table};
use crate::memory::{Lease, PAGE};

/// Binary logarithm of the largest page, in units of the smallest.
const LOG_MAX_PAGE: u8 = 19;
/// Pages offsets are in units of a page by this.
const OFFSET_UNITS: u64 = 64;

/// A shared receive queue.
#[derive(Debug)]
pub(super) struct SharedQueue {
    /// For queries: as it was made.
    context: SrqContext,
    _leases: [Lease; 2],
}

/// Where a queue's ring lies on its pages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) log_page_size: u8,
    pub(super) page_offset: u8,
    /// Bytes of other rings before it.
    pub(super) before: usize,
    pub(super) len: usize,
}

impl Hca {
    /// A ring on the pages that a command lists.
    pub(super) fn ring(&self, input: &Input, place: Place) -> Result<(RegionMemory, Lease), Fault> {
        if place.log_page_size > LOG_MAX_PAGE {
            return Err(Fault::parameter(format!("pages of 2^{} times {PAGE} bytes", place.log_page_size)));
        }
        let page = PAGE << place.log_page_size;
        let offset = u64::from(place.page_offset) * (page / OFFSET_UNITS) + place.before as u64;
        let pages = input.pages(offset + place.len as u64, page)?;
        let (pieces, lease) = self.memory.pieces(&pages, page, offset, place.len as u64)?;
        Ok((pieces.into(), lease))
    }

    /// A doorbell record.
    pub(super) fn record(&self, address: U64) -> Result<(HostMemory, Lease), Fault> {
        let view = self.memory.view(address.get(), DBREC_SIZE);
        view.ok_or_else(|| Fault::parameter("the doorbell record is no memory"))
    }

    pub(super) fn create_eq(&mut self, input: &Input, output: &mut Output) -> Result<(), Fault> {
        self.config.tables.room(Table::EventQueues, self.objects.eqs.len())?;
        let context: EqContext = input.view(CONTEXT)?;
        if context.log_size() > LOG_MAX_EQ_SIZE {
            return Err(Fault::parameter(format!("2^{} events", context.log_size())));
        }
        let place = Place {
            log_page_size: context.log_page_size(),
            page_offset: 0,
            before: 0,
            len: EQE_SIZE << context.log_size(),
        };
        let ring = self.ring(input, place)?;
        let mask: U64 = input.view(EVENT_MASK)?;
        let eq = EventQueue::new(ring, &context, mask.get());
        let eq = eq.ok_or_else(|| Fault::parameter("the ring is too short"))?;
        let eqn = self.objects.eq_numbers.take().ok_or_else(|| Fault::exhausted("event queues"))?;
        self.objects.eqs.insert(eqn, eq);
        output.set_number(eqn)
    }

    pub(super) fn query_eq(&mut self, input: &Input, output: &mut Output) -> Result<(), Fault> {
        let eqn = input.number();
        let eq = self.objects.eqs.get(&eqn).ok_or_else(|| Fault::resource("event queue", eqn))?;
        output.put(CONTEXT, &eq.context())?;
        output.put(EVENT_MASK, &U64::new(eq.mask()))
    }

    pub(super) fn destroy_eq(&mut self, input: &Input, _: &mut Output) -> Result<(), Fault> {
        let eqn = input.number();
        if self.objects.cqs.values().any(|cq| cq.eqn == eqn) {
            return Err(Fault::new(prm::command::CommandStatus::ResourceBusy, "completion queues use it"));
        }
        self.objects.eqs.remove(&eqn).ok_or_else(|| Fault::resource("event queue", eqn))?;
        self.objects.eq_numbers.give_back(eqn);
        Ok(())
    }

    pub(super) fn create_srq(&mut self, input: &Input, output: &mut Output) -> Result<(), Fault> {
        self.config.tables.room(Table::SharedReceiveQueues, self.objects.srqs.len())?;
        let context: SrqContext = input.view(CONTEXT)?;
        let domain = context.pd.get() & NUMBER;
        self.objects.users.check_reach(input.header().uid.get(), Kind::Domain, domain)?;
        let stride = context.stride();
        let (ring, lease) = self.ring(
            input,
            Place {
                log_page_size: context.log_page_size(),
                page_offset: context.page_offset(),
                before: 0,
                len: stride << context.log_size(),
            },
        )?;
        let (record, record_lease) = self.record(context.dbrec)?;
        let number = self.engine.create_srq(ring, stride, record)?;
        self.engine.set_srq_domain(number, ProtectionDomain(domain))?;
        if context.limit() > 0 {
            self.engine.arm_srq(number, context.limit())?;
        }
        self.objects.srqs.insert(number, SharedQueue { context, _leases: [lease, record_lease] });
        output.set_number(number)
    }

    pub(super) fn query_srq(&mut self, input: &Input, output: &mut Output) -> Result<(), Fault> {
        let number = input.number();
        let srq = self.objects.srqs.get(&number);
        let made = srq.ok_or_else(|| Fault::resource("shared receive queue", number))?.context;
        let now = self.engine.query_srq(number)?;
        let state = if now.broken { SrqContext::ERROR } else { 0 };
        let context = SrqContext {
            state_size: (made.state_size.get() & !SrqContext::STATE | state).into(),
            limit_count: (u32::from(now.limit) << 16 | u32::from(now.posted)).into(),
            ..made
        };
        output.put(CONTEXT, &context)
    }

    pub(super) fn destroy_srq(&mut self, input: &Input, _: &mut Output) -> Result<(), Fault> {
        self.engine.destroy_srq(input.number())?;
        self.objects.srqs.remove(&input.number());
        Ok(())
    }

    pub(super) fn arm_srq(&mut self, input: &Input, _: &mut Output) -> Result<(), Fault> {
        Ok(self.engine.arm_srq(input.number(), input.header().parameter.get() as u16)?)
    }
}
