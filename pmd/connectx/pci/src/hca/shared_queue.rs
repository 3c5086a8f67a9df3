//! Commands on shared receive queues.
//!
//! Drivers use three kinds: plain ones, receive memory pools (RMP), which replace them from ISSI 1 on, and
//! XRC ones. The engine has one kind, with an XRC domain and a completion queue for the last.

use connectx::engine::SrqStatus;
use connectx::{ProtectionDomain, XrcDomain, XrcQueue};
use prm::command::{CONTEXT, RMP_CONTEXT, XRC_SRQ_UMEM, modify_rmp};
use prm::context::{RmpContext, SrqContext, WorkQueueContext};
use zerocopy::big_endian::{U16, U32, U64};

use super::command::{Fault, Input, Output};
use super::key::NUMBER;
use super::queue::Place;
use super::user::Kind;
use super::{Hca, Table};
use crate::memory::Lease;

/// Largest binary logarithm of the number of slots.
const LOG_MAX_SLOTS: u8 = 16;

/// Context as created, for queries: each kind has its own commands.
#[derive(Debug)]
enum Form {
    Plain(SrqContext),
    Pool(Box<RmpContext>),
    Xrc(SrqContext),
}

/// A shared receive queue.
#[derive(Debug)]
pub(super) struct SharedQueue {
    form: Form,
    _leases: [Lease; 2],
}

/// Parameters common to all kinds.
struct Wanted {
    domain: u32,
    place: Place,
    stride: usize,
    dbrec: U64,
    limit: u16,
    xrc: Option<XrcQueue>,
}

impl Wanted {
    fn of(context: &SrqContext, xrc: Option<XrcQueue>) -> Self {
        let stride = context.stride();
        let place = Place {
            log_page_size: context.log_page_size(),
            page_offset: context.page_offset(),
            before: 0,
            len: stride << context.log_size(),
        };
        let domain = context.pd.get() & NUMBER;
        Self { domain, place, stride, dbrec: context.dbrec, limit: context.limit(), xrc }
    }

    fn of_pool(wq: &WorkQueueContext) -> Result<Self, Fault> {
        if wq.log_size() > LOG_MAX_SLOTS {
            return Err(Fault::parameter(format!("unsupported number of receives: 2^{}", wq.log_size())));
        }
        let stride = wq.stride();
        let place = Place {
            log_page_size: wq.log_page_size(),
            page_offset: wq.page_offset(),
            before: 0,
            len: stride << wq.log_size(),
        };
        let domain = wq.pd.get() & NUMBER;
        Ok(Self { domain, place, stride, dbrec: wq.dbrec, limit: wq.limit.get(), xrc: None })
    }
}

fn with_status(made: &SrqContext, now: SrqStatus) -> SrqContext {
    let state = if now.broken { SrqContext::ERROR } else { 0 };
    SrqContext {
        state_size: (made.state_size.get() & !SrqContext::STATE | state).into(),
        limit_count: (u32::from(now.limit) << 16 | u32::from(now.posted)).into(),
        ..*made
    }
}

impl Hca {
    fn make_shared_queue(&mut self, input: &Input, wanted: &Wanted, form: Form) -> Result<u32, Fault> {
        self.config.tables.room(Table::SharedReceiveQueues, self.objects.srqs.len())?;
        self.objects.users.check_reach(input.header().uid.get(), Kind::Domain, wanted.domain)?;
        let (ring, lease) = self.ring(input, wanted.place)?;
        let (record, record_lease) = self.record(wanted.dbrec)?;
        let number = match wanted.xrc {
            Some(how) => self.engine.create_xrc_srq(ring, wanted.stride, record, how)?,
            None => self.engine.create_srq(ring, wanted.stride, record)?,
        };
        self.engine.set_srq_domain(number, ProtectionDomain(wanted.domain))?;
        if wanted.limit > 0 {
            self.engine.arm_srq(number, wanted.limit)?;
        }
        self.objects.srqs.insert(number, SharedQueue { form, _leases: [lease, record_lease] });
        Ok(number)
    }

    /// The queue with this number and its state, if it is of the kind that `wanted` selects.
    fn shared_queue<T>(
        &self,
        number: u32,
        wanted: impl FnOnce(&Form) -> Option<T>,
    ) -> Result<(T, SrqStatus), Fault> {
        let made = self.objects.srqs.get(&number).and_then(|srq| wanted(&srq.form));
        let made = made.ok_or_else(|| Fault::resource("shared receive queue of this kind", number))?;
        Ok((made, self.engine.query_srq(number)?))
    }

    /// Destroys a queue of any kind.
    pub(super) fn end_shared_queue(&mut self, input: &Input, _: &mut Output) -> Result<(), Fault> {
        self.engine.destroy_srq(input.number())?;
        self.objects.srqs.remove(&input.number());
        Ok(())
    }

    pub(super) fn create_srq(&mut self, input: &Input, output: &mut Output) -> Result<(), Fault> {
        let context: SrqContext = input.view(CONTEXT)?;
        let number = self.make_shared_queue(input, &Wanted::of(&context, None), Form::Plain(context))?;
        output.set_number(number)
    }

    pub(super) fn query_srq(&mut self, input: &Input, output: &mut Output) -> Result<(), Fault> {
        let (made, now) = self.shared_queue(input.number(), plain)?;
        output.put(CONTEXT, &with_status(&made, now))
    }

    pub(super) fn destroy_srq(&mut self, input: &Input, output: &mut Output) -> Result<(), Fault> {
        self.shared_queue(input.number(), plain)?;
        self.end_shared_queue(input, output)
    }

    pub(super) fn arm_srq(&mut self, input: &Input, _: &mut Output) -> Result<(), Fault> {
        self.shared_queue(input.number(), plain)?;
        Ok(self.engine.arm_srq(input.number(), input.header().parameter.get() as u16)?)
    }

    pub(super) fn create_xrc_srq(&mut self, input: &Input, output: &mut Output) -> Result<(), Fault> {
        input.without_umem(XRC_SRQ_UMEM)?;
        let context: SrqContext = input.view(CONTEXT)?;
        let (uid, users) = (input.header().uid.get(), &self.objects.users);
        users.check_reach(uid, Kind::XrcDomain, context.xrcd())?;
        users.check_reach(uid, Kind::CompletionQueue, context.cqn())?;
        if !self.objects.xrcds.has(context.xrcd()) {
            return Err(Fault::resource("XRC domain", context.xrcd()));
        }
        // A driver without a user index sets all bits.
        let user_index = context.user_index().filter(|index| *index != NUMBER);
        let xrc = XrcQueue { domain: XrcDomain(context.xrcd()), cq: context.cqn(), user_index };
        let number = self.make_shared_queue(input, &Wanted::of(&context, Some(xrc)), Form::Xrc(context))?;
        output.set_number(number)
    }

    pub(super) fn query_xrc_srq(&mut self, input: &Input, output: &mut Output) -> Result<(), Fault> {
        let (made, now) = self.shared_queue(input.number(), xrc)?;
        output.put(CONTEXT, &with_status(&made, now))
    }

    pub(super) fn destroy_xrc_srq(&mut self, input: &Input, output: &mut Output) -> Result<(), Fault> {
        self.shared_queue(input.number(), xrc)?;
        self.end_shared_queue(input, output)
    }

    pub(super) fn arm_xrc_srq(&mut self, input: &Input, _: &mut Output) -> Result<(), Fault> {
        self.shared_queue(input.number(), xrc)?;
        Ok(self.engine.arm_srq(input.number(), input.header().parameter.get() as u16)?)
    }

    pub(super) fn create_pool(&mut self, input: &Input, output: &mut Output) -> Result<(), Fault> {
        let context: RmpContext = input.view(RMP_CONTEXT)?;
        if context.wq.flags_36 & WorkQueueContext::UMEM != 0 {
            return Err(Fault::parameter("queues in user-registered memory (UMEM) are not supported"));
        }
        let wanted = Wanted::of_pool(&context.wq)?;
        let number = self.make_shared_queue(input, &wanted, Form::Pool(Box::new(context)))?;
        output.set_number(number)
    }

    pub(super) fn query_pool(&mut self, input: &Input, output: &mut Output) -> Result<(), Fault> {
        let (mut context, now) = self.shared_queue(input.number(), pool)?;
        context.state = U32::new(if now.broken { RmpContext::ERROR } else { RmpContext::READY });
        context.wq.limit = U16::new(now.limit);
        output.put(RMP_CONTEXT, &context)
    }

    /// Only the limit can be changed.
    pub(super) fn modify_pool(&mut self, input: &Input, _: &mut Output) -> Result<(), Fault> {
        self.shared_queue(input.number(), pool)?;
        let mask: U32 = input.view(modify_rmp::MASK)?;
        if mask.get() & !modify_rmp::LIMIT != 0 {
            return Err(Fault::parameter(format!(
                "unsupported change of a receive memory pool: {:#x}",
                mask.get()
            )));
        }
        if mask.get() & modify_rmp::LIMIT != 0 {
            let context: RmpContext = input.view(RMP_CONTEXT)?;
            self.engine.arm_srq(input.number(), context.wq.limit.get())?;
        }
        Ok(())
    }

    pub(super) fn destroy_pool(&mut self, input: &Input, output: &mut Output) -> Result<(), Fault> {
        self.shared_queue(input.number(), pool)?;
        self.end_shared_queue(input, output)
    }
}

const fn plain(form: &Form) -> Option<SrqContext> {
    if let Form::Plain(context) = form { Some(*context) } else { None }
}

const fn xrc(form: &Form) -> Option<SrqContext> {
    if let Form::Xrc(context) = form { Some(*context) } else { None }
}

fn pool(form: &Form) -> Option<RmpContext> {
    if let Form::Pool(context) = form { Some(**context) } else { None }
}
