//! User-mode memory registration: key operations posted to a send queue. LOCAL_INV and BIND_MW are among
//! them. They have no packets. They execute in queue order, and every request that starts after them sees
//! their effect.

use hca::WcStatus;
use prm::{ControlSegment, DataSegment, MkeyContext, SendOpcode, UmrControl, umr_flags};
use zerocopy::FromBytes;

use crate::device::{Device, Step};
use crate::object::fast::{OCTOWORD, Staging};
use crate::object::mr::Member;
use crate::object::qp::Qp;
use crate::ud;
use crate::wqe::Control;

/// Alignment in bytes of a translation list outside its work request (Linux's `MLX5_UMR_ALIGN`).
const LIST_ALIGN: u64 = 2048;

/// Executes the next operation of a queue pair that serves key operations only.
pub(crate) fn step(qp: &mut Qp, dev: &mut Device) -> Step {
    ud::next(qp, dev, |qp, dev, control| {
        dev.wqe.load(&qp.sq, control, qp.qpn)?;
        match control.operation() {
            Some(SendOpcode::Nop) => {}
            Some(SendOpcode::Umr) => execute(dev, control, qp.domain)?,
            _ => return Err(WcStatus::LocalQpOperation),
        }
        Ok((Step::Sent, 0))
    })
}

/// Executes the loaded operation.
pub(crate) fn execute(dev: &mut Device, control: &Control, member: Member) -> Result<(), WcStatus> {
    const BROKEN: WcStatus = WcStatus::LocalQpOperation;
    const REFUSED: WcStatus = WcStatus::MemoryWindowBind;
    let Device { mrs, wqe, .. } = dev;
    let body = wqe.bytes().get(size_of::<ControlSegment>()..).ok_or(BROKEN)?;
    let (umr, rest) = UmrControl::read_from_prefix(body).map_err(|_| BROKEN)?;
    let (context, rest) = MkeyContext::read_from_prefix(rest).map_err(|_| BROKEN)?;
    let key = u32::from_be_bytes(control.imm);
    let len = usize::from(umr.klm_octowords.get()) * OCTOWORD;
    if umr.flags & umr_flags::INLINE != 0 || len == 0 {
        let list = rest.get(..len).ok_or(BROKEN)?;
        return mrs.change(member, key, (&umr, &context), list).map_err(|_| REFUSED);
    }
    let (segment, _) = DataSegment::read_from_prefix(rest).map_err(|_| BROKEN)?;
    if !segment.address.get().is_multiple_of(LIST_ALIGN) {
        return Err(BROKEN);
    }
    if (segment.byte_count.get() as usize) < len {
        return Err(WcStatus::LocalLength);
    }
    let list = mrs.stage(member, key, &segment, len).map_err(|error| match error {
        Staging::NoRoom => REFUSED,
        Staging::Denied => WcStatus::LocalProtection,
    })?;
    let changed = mrs.change(member, key, (&umr, &context), &list);
    mrs.unstage(list);
    changed.map_err(|_| REFUSED)
}
