//! Table of all commands.

use prm::command::opcode as op;

use super::Hca;
use super::command::{Fault, Input, Output};
use super::user::Kind::{CompletionQueue, Counters, Domain, Key, Pair, SharedQueue, Uar, XrcDomain};
use super::user::Subject;
use super::user::Subject::{Device, Ends, Makes, Open, Uses};

type Run = fn(&mut Hca, &Input, &mut Output) -> Result<(), Fault>;

/// A command.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    opcode: u16,
    pub(super) name: &'static str,
    /// The kind of object that it is about.
    pub(super) subject: Subject,
    /// Smallest input and output in bytes.
    pub(super) input: usize,
    pub(super) output: usize,
    pub(super) run: Run,
}

/// Looks up a command by its opcode.
pub(super) fn find(opcode: u16) -> Option<&'static Entry> {
    COMMANDS.binary_search_by_key(&opcode, |entry| entry.opcode).ok().and_then(|at| COMMANDS.get(at))
}

/// Input or output length of a header only.
const HEAD: usize = 8;
/// With a number.
const NUMBER: usize = 12;
/// With a context.
const CONTEXT: usize = 0x50;
/// With the context of a queue pair.
const PAIR: usize = 0x100;
/// With the context of a receive memory pool.
const POOL: usize = 0x110;

/// Sorted by opcode.
#[rustfmt::skip]
static COMMANDS: &[Entry] = &[
    entry(op::QUERY_HCA_CAP, "QUERY_HCA_CAP", Open, HEAD, 0x110, Hca::query_capabilities),
    entry(op::QUERY_ADAPTER, "QUERY_ADAPTER", Open, HEAD, 0x110, Hca::query_adapter),
    entry(op::INIT_HCA, "INIT_HCA", Device, HEAD, HEAD, Hca::good),
    entry(op::TEARDOWN_HCA, "TEARDOWN_HCA", Device, HEAD, HEAD, Hca::teardown),
    entry(op::ENABLE_HCA, "ENABLE_HCA", Device, HEAD, HEAD, Hca::teardown),
    entry(op::DISABLE_HCA, "DISABLE_HCA", Device, HEAD, HEAD, Hca::teardown),
    // The device has enough memory of its own: it requests no pages and returns none.
    entry(op::QUERY_PAGES, "QUERY_PAGES", Device, HEAD, 0x10, Hca::good),
    entry(op::MANAGE_PAGES, "MANAGE_PAGES", Device, HEAD, HEAD, Hca::good),
    entry(op::SET_HCA_CAP, "SET_HCA_CAP", Device, HEAD, HEAD, Hca::set_capabilities),
    entry(op::QUERY_ISSI, "QUERY_ISSI", Open, HEAD, 0x70, Hca::query_issi),
    entry(op::SET_ISSI, "SET_ISSI", Device, 0x10, HEAD, Hca::set_issi),
    entry(op::SET_DRIVER_VERSION, "SET_DRIVER_VERSION", Device, HEAD, HEAD, Hca::good),
    entry(op::CREATE_MKEY, "CREATE_MKEY", Makes(Key), CONTEXT, NUMBER, Hca::create_key),
    entry(op::QUERY_MKEY, "QUERY_MKEY", Uses(Key), NUMBER, CONTEXT, Hca::query_key),
    entry(op::DESTROY_MKEY, "DESTROY_MKEY", Ends(Key), NUMBER, HEAD, Hca::destroy_key),
    entry(op::QUERY_SPECIAL_CONTEXTS, "QUERY_SPECIAL_CONTEXTS", Device, HEAD, 0x10, Hca::query_special_keys),
    entry(op::CREATE_EQ, "CREATE_EQ", Device, 0x60, NUMBER, Hca::create_eq),
    entry(op::DESTROY_EQ, "DESTROY_EQ", Device, NUMBER, HEAD, Hca::destroy_eq),
    entry(op::QUERY_EQ, "QUERY_EQ", Device, NUMBER, 0x60, Hca::query_eq),
    entry(op::CREATE_CQ, "CREATE_CQ", Makes(CompletionQueue), CONTEXT, NUMBER, Hca::create_cq),
    entry(op::DESTROY_CQ, "DESTROY_CQ", Ends(CompletionQueue), NUMBER, HEAD, Hca::destroy_cq),
    entry(op::QUERY_CQ, "QUERY_CQ", Uses(CompletionQueue), NUMBER, CONTEXT, Hca::query_cq),
    entry(op::MODIFY_CQ, "MODIFY_CQ", Uses(CompletionQueue), CONTEXT, HEAD, Hca::modify_cq),
    entry(op::CREATE_QP, "CREATE_QP", Makes(Pair), PAIR, NUMBER, Hca::create_qp),
    entry(op::DESTROY_QP, "DESTROY_QP", Ends(Pair), NUMBER, HEAD, Hca::destroy_qp),
    entry(op::RST2INIT_QP, "RST2INIT_QP", Uses(Pair), PAIR, HEAD, Hca::modify_qp),
    entry(op::INIT2RTR_QP, "INIT2RTR_QP", Uses(Pair), PAIR, HEAD, Hca::modify_qp),
    entry(op::RTR2RTS_QP, "RTR2RTS_QP", Uses(Pair), PAIR, HEAD, Hca::modify_qp),
    entry(op::RTS2RTS_QP, "RTS2RTS_QP", Uses(Pair), PAIR, HEAD, Hca::modify_qp),
    entry(op::SQERR2RTS_QP, "SQERR2RTS_QP", Uses(Pair), PAIR, HEAD, Hca::modify_qp),
    entry(op::TWO_ERR_QP, "2ERR_QP", Uses(Pair), NUMBER, HEAD, Hca::modify_qp),
    entry(op::RTS2SQD_QP, "RTS2SQD_QP", Uses(Pair), NUMBER, HEAD, Hca::modify_qp),
    entry(op::SQD2RTS_QP, "SQD2RTS_QP", Uses(Pair), PAIR, HEAD, Hca::modify_qp),
    entry(op::TWO_RST_QP, "2RST_QP", Uses(Pair), NUMBER, HEAD, Hca::modify_qp),
    entry(op::QUERY_QP, "QUERY_QP", Uses(Pair), NUMBER, PAIR, Hca::query_qp),
    entry(op::SQD_RTS_QP, "SQD_RTS_QP", Uses(Pair), PAIR, HEAD, Hca::modify_qp),
    entry(op::MAD_IFC, "MAD_IFC", Device, 0x110, 0x110, Hca::management),
    entry(op::INIT2INIT_QP, "INIT2INIT_QP", Uses(Pair), PAIR, HEAD, Hca::modify_qp),
    entry(op::CREATE_SRQ, "CREATE_SRQ", Makes(SharedQueue), CONTEXT, NUMBER, Hca::create_srq),
    entry(op::DESTROY_SRQ, "DESTROY_SRQ", Ends(SharedQueue), NUMBER, HEAD, Hca::destroy_srq),
    entry(op::QUERY_SRQ, "QUERY_SRQ", Uses(SharedQueue), NUMBER, CONTEXT, Hca::query_srq),
    entry(op::ARM_RQ, "ARM_RQ", Uses(SharedQueue), 0x10, HEAD, Hca::arm_srq),
    entry(op::CREATE_XRC_SRQ, "CREATE_XRC_SRQ", Makes(SharedQueue), 0x60, NUMBER, Hca::create_xrc_srq),
    entry(op::DESTROY_XRC_SRQ, "DESTROY_XRC_SRQ", Ends(SharedQueue), NUMBER, HEAD, Hca::destroy_xrc_srq),
    entry(op::QUERY_XRC_SRQ, "QUERY_XRC_SRQ", Uses(SharedQueue), NUMBER, CONTEXT, Hca::query_xrc_srq),
    entry(op::ARM_XRC_SRQ, "ARM_XRC_SRQ", Uses(SharedQueue), 0x10, HEAD, Hca::arm_xrc_srq),
    entry(op::QUERY_VPORT_STATE, "QUERY_VPORT_STATE", Open, HEAD, 0x10, Hca::query_vport_state),
    entry(op::MODIFY_VPORT_STATE, "MODIFY_VPORT_STATE", Device, HEAD, HEAD, Hca::good),
    entry(op::QUERY_HCA_VPORT_CONTEXT, "QUERY_HCA_VPORT_CONTEXT", Open, NUMBER, 0x7c, Hca::query_vport),
    entry(op::MODIFY_HCA_VPORT_CONTEXT, "MODIFY_HCA_VPORT_CONTEXT", Device, 0x7c, HEAD, Hca::modify_vport),
    entry(op::QUERY_HCA_VPORT_GID, "QUERY_HCA_VPORT_GID", Device, 0x10, 0x20, Hca::query_gid),
    entry(op::QUERY_HCA_VPORT_PKEY, "QUERY_HCA_VPORT_PKEY", Device, 0x10, 0x14, Hca::query_pkey),
    entry(op::ALLOC_Q_COUNTER, "ALLOC_Q_COUNTER", Makes(Counters), HEAD, NUMBER, Hca::alloc_counters),
    entry(op::DEALLOC_Q_COUNTER, "DEALLOC_Q_COUNTER", Ends(Counters), NUMBER, HEAD, Hca::dealloc_counters),
    entry(op::QUERY_Q_COUNTER, "QUERY_Q_COUNTER", Device, 0x20, 0x64, Hca::query_counters),
    entry(op::ALLOC_PD, "ALLOC_PD", Makes(Domain), HEAD, NUMBER, Hca::alloc_pd),
    entry(op::DEALLOC_PD, "DEALLOC_PD", Ends(Domain), NUMBER, HEAD, Hca::dealloc_pd),
    entry(op::ALLOC_UAR, "ALLOC_UAR", Makes(Uar), HEAD, NUMBER, Hca::alloc_uar),
    entry(op::DEALLOC_UAR, "DEALLOC_UAR", Ends(Uar), NUMBER, HEAD, Hca::dealloc_uar),
    entry(op::ACCESS_REG, "ACCESS_REG", Device, 0x10, 0x10, Hca::access_register),
    entry(op::ATTACH_TO_MCG, "ATTACH_TO_MCG", Uses(Pair), 0x20, HEAD, Hca::attach_group),
    entry(op::DETACH_FROM_MCG, "DETACH_FROM_MCG", Uses(Pair), 0x20, HEAD, Hca::detach_group),
    entry(op::ALLOC_XRCD, "ALLOC_XRCD", Makes(XrcDomain), HEAD, NUMBER, Hca::alloc_xrcd),
    entry(op::DEALLOC_XRCD, "DEALLOC_XRCD", Ends(XrcDomain), NUMBER, HEAD, Hca::dealloc_xrcd),
    entry(op::CREATE_RMP, "CREATE_RMP", Makes(SharedQueue), POOL, NUMBER, Hca::create_pool),
    entry(op::MODIFY_RMP, "MODIFY_RMP", Uses(SharedQueue), POOL, HEAD, Hca::modify_pool),
    entry(op::DESTROY_RMP, "DESTROY_RMP", Ends(SharedQueue), NUMBER, HEAD, Hca::destroy_pool),
    entry(op::QUERY_RMP, "QUERY_RMP", Uses(SharedQueue), NUMBER, POOL, Hca::query_pool),
    entry(op::CREATE_UCTX, "CREATE_UCTX", Device, HEAD, NUMBER, Hca::create_user),
    entry(op::DESTROY_UCTX, "DESTROY_UCTX", Device, NUMBER, HEAD, Hca::destroy_user),
];

const fn entry(
    opcode: u16,
    name: &'static str,
    subject: Subject,
    input: usize,
    output: usize,
    run: Run,
) -> Entry {
    Entry { opcode, name, subject, input, output, run }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_order_and_every_command_is_found() {
        assert!(COMMANDS.is_sorted_by(|a, b| a.opcode < b.opcode));
        for entry in COMMANDS {
            assert_eq!(find(entry.opcode).map(|found| found.name), Some(entry.name));
        }
        assert!(find(0).is_none() && find(0x106).is_none() && find(u16::MAX).is_none());
    }
}
