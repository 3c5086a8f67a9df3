//! Location of queues in memory; commands on event queues.

use connectx::{HostMemory, RegionMemory};
use prm::command::{CONTEXT, EVENT_MASK};
use prm::context::EqContext;
use prm::{DBREC_SIZE, EQE_SIZE};
use zerocopy::big_endian::U64;

use super::command::{Fault, Input, Output};
use super::event_queue::EventQueue;
use super::setup::LOG_MAX_EQ_SIZE;
use super::{Hca, Table};
use crate::memory::{Lease, PAGE};

/// Binary logarithm of the largest page, in units of the smallest.
const LOG_MAX_PAGE: u8 = 19;
/// Page offsets are in units of this fraction of a page.
const OFFSET_UNITS: u64 = 64;

/// Location of a queue's ring on its pages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) log_page_size: u8,
    pub(super) page_offset: u8,
    /// Bytes of other rings before it.
    pub(super) before: usize,
    pub(super) len: usize,
}

impl Hca {
    /// The ring on the pages that a command lists.
    pub(super) fn ring(&self, input: &Input, place: Place) -> Result<(RegionMemory, Lease), Fault> {
        if place.log_page_size > LOG_MAX_PAGE {
            return Err(Fault::parameter(format!(
                "unsupported page size: 2^{} times {PAGE} bytes",
                place.log_page_size
            )));
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
        view.ok_or_else(|| Fault::parameter("the doorbell record is not in memory"))
    }

    pub(super) fn create_eq(&mut self, input: &Input, output: &mut Output) -> Result<(), Fault> {
        self.config.tables.room(Table::EventQueues, self.objects.eqs.len())?;
        let context: EqContext = input.view(CONTEXT)?;
        if context.log_size() > LOG_MAX_EQ_SIZE {
            return Err(Fault::parameter(format!("unsupported number of events: 2^{}", context.log_size())));
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
            return Err(Fault::new(prm::command::CommandStatus::ResourceBusy, "in use by completion queues"));
        }
        self.objects.eqs.remove(&eqn).ok_or_else(|| Fault::resource("event queue", eqn))?;
        self.objects.eq_numbers.give_back(eqn);
        Ok(())
    }
}
