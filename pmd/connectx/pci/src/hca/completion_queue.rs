//! Commands on completion queues.

use std::time::Duration;

use connectx::RegionMemory;
use connectx::engine::ResizeError;
use prm::CQE_SIZE;
use prm::command::{CONTEXT, CQ_UMEM, CommandStatus, modify_cq};
use prm::context::CqContext;

use super::command::{Fault, Input, Output};
use super::queue::Place;
use super::setup::LOG_MAX_CQ_SIZE;
use super::{Hca, Table};
use crate::memory::Lease;

/// A completion queue.
#[derive(Debug)]
pub(super) struct CompletionQueue {
    pub(super) eqn: u32,
    /// Context for queries: as created, with later changes.
    context: CqContext,
    ring: Lease,
    _record: Lease,
}

impl CompletionQueue {
    /// The doorbell page of the queue.
    pub(super) const fn uar_page(&self) -> u32 {
        self.context.uar_page()
    }
}

impl From<ResizeError> for Fault {
    fn from(error: ResizeError) -> Self {
        let status = match error {
            ResizeError::NotFound(_) => CommandStatus::BadResource,
            ResizeError::Ring(_) => CommandStatus::BadParameter,
            ResizeError::Outstanding { .. } => CommandStatus::BadSize,
            ResizeError::Overrun => CommandStatus::BadSystemState,
        };
        Self::new(status, error.to_string())
    }
}

impl Hca {
    /// The ring described by a context and the page list behind it.
    fn completion_ring(&self, input: &Input, context: &CqContext) -> Result<(RegionMemory, Lease), Fault> {
        input.without_umem(CQ_UMEM)?;
        if context.entry_size() != Some(CQE_SIZE) {
            return Err(Fault::parameter("entries must have 64 bytes"));
        }
        if context.log_size() > LOG_MAX_CQ_SIZE {
            return Err(Fault::parameter(format!(
                "unsupported number of completions: 2^{}",
                context.log_size()
            )));
        }
        self.ring(
            input,
            Place {
                log_page_size: context.log_page_size(),
                page_offset: context.page_offset(),
                before: 0,
                len: CQE_SIZE << context.log_size(),
            },
        )
    }

    pub(super) fn create_cq(&mut self, input: &Input, output: &mut Output) -> Result<(), Fault> {
        self.config.tables.room(Table::CompletionQueues, self.objects.cqs.len())?;
        let context: CqContext = input.view(CONTEXT)?;
        let eqn = context.eqn.get() & 0xff;
        if !self.objects.eqs.contains_key(&eqn) {
            return Err(Fault::resource("event queue", eqn));
        }
        let (memory, ring) = self.completion_ring(input, &context)?;
        let (record, record_lease) = self.record(context.dbrec)?;
        let number = self.engine.create_cq(memory, record)?;
        self.moderate(number, &context)?;
        self.objects.cqs.insert(number, CompletionQueue { eqn, context, ring, _record: record_lease });
        output.set_number(number)
    }

    fn moderate(&mut self, number: u32, context: &CqContext) -> Result<(), Fault> {
        let period = Duration::from_micros(context.moderation_period().into());
        Ok(self.engine.moderate_cq(number, context.moderation_count(), period)?)
    }

    pub(super) fn destroy_cq(&mut self, input: &Input, _: &mut Output) -> Result<(), Fault> {
        self.engine.destroy_cq(input.number())?;
        self.objects.cqs.remove(&input.number());
        Ok(())
    }

    pub(super) fn query_cq(&mut self, input: &Input, output: &mut Output) -> Result<(), Fault> {
        let number = input.number();
        let cq = self.objects.cqs.get(&number);
        let made = cq.ok_or_else(|| Fault::resource("completion queue", number))?.context;
        let now = self.engine.query_cq(number)?;
        let state = match now.solicited_only {
            None => CqContext::FIRED,
            Some(false) => CqContext::ARMED,
            Some(true) => CqContext::SOLICITED_ARMED,
        };
        let (count, period) = now.moderation.unwrap_or_default();
        let status = if now.overrun { CqContext::OVERRUN } else { 0 };
        let context = CqContext {
            status: (status | state).into(),
            moderation: ((period.as_micros() as u32) << 16 | u32::from(count)).into(),
            consumer: now.consumer.into(),
            producer: now.producer.into(),
            ..made
        };
        output.put(CONTEXT, &context)
    }

    pub(super) fn modify_cq(&mut self, input: &Input, _: &mut Output) -> Result<(), Fault> {
        let number = input.number();
        let cq = self.objects.cqs.get(&number);
        let mut context = cq.ok_or_else(|| Fault::resource("completion queue", number))?.context;
        let requested: CqContext = input.view(CONTEXT)?;
        let mask = input.header().parameter.get();
        let lease = match input.header().modifier.get() {
            modify_cq::MODERATION if mask & !(modify_cq::PERIOD | modify_cq::COUNT) == 0 => {
                let count =
                    if mask & modify_cq::COUNT != 0 { &requested } else { &context }.moderation_count();
                let period =
                    if mask & modify_cq::PERIOD != 0 { &requested } else { &context }.moderation_period();
                context.moderation = (u32::from(period) << 16 | u32::from(count)).into();
                self.moderate(number, &context)?;
                None
            }
            modify_cq::RESIZE if mask == modify_cq::RING => {
                let (memory, lease) = self.completion_ring(input, &requested)?;
                self.engine.resize_cq(number, memory)?;
                context.page_offset = requested.page_offset;
                context.page_size = requested.page_size;
                let uar = context.size_uar.get() & 0xff_ffff;
                context.size_uar = (u32::from(requested.log_size()) << 24 | uar).into();
                Some(lease)
            }
            modifier => {
                return Err(Fault::parameter(format!("unsupported change {mask:#x} of kind {modifier}")));
            }
        };
        if let Some(cq) = self.objects.cqs.get_mut(&number) {
            cq.context = context;
            // The old memory is released only now: the engine no longer uses it.
            cq.ring = lease.unwrap_or_else(|| std::mem::take(&mut cq.ring));
        }
        // A delayed event may be due.
        self.report_events();
        Ok(())
    }
}
