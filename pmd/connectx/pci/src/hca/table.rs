//! All commands, in one table.

use prm::command::opcode as op;

use super::Hca;
use super::command::{Fault, Input, Output};

type Run = fn(&mut Hca, &Input, &mut Output) -> Result<(), Fault>;

/// A command.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    opcode: u16,
    pub(super) name: &'static str,
    /// Bytes of input and output that it takes at least.
    pub(super) input: usize,
    pub(super) output: usize,
    pub(super) run: Run,
}

/// The command of a code.
pub(super) fn find(opcode: u16) -> Option<&'static Entry> {
    COMMANDS.binary_search_by_key(&opcode, |entry| entry.opcode).ok().and_then(|at| COMMANDS.get(at))
}

/// Input and output of a command that has no more than a header.
const HEAD: usize = 8;
/// With a number.
const NUMBER: usize = 12;
/// With a context.
const CONTEXT: usize = 0x50;
/// With the context of a queue pair.
const PAIR: usize = 0x100;

/// By code.
#[rustfmt::skip]
static COMMANDS: &[Entry] = &[
    entry(op::QUERY_HCA_CAP, "QUERY_HCA_CAP", HEAD, 0x110, Hca::query_capabilities),
    entry(op::QUERY_ADAPTER, "QUERY_ADAPTER", HEAD, 0x110, Hca::query_adapter),
    entry(op::INIT_HCA, "INIT_HCA", HEAD, HEAD, Hca::good),
    entry(op::TEARDOWN_HCA, "TEARDOWN_HCA", HEAD, HEAD, Hca::teardown),
    entry(op::ENABLE_HCA, "ENABLE_HCA", HEAD, HEAD, Hca::teardown),
    entry(op::DISABLE_HCA, "DISABLE_HCA", HEAD, HEAD, Hca::teardown),
    // The device has memory enough: it wants no pages and has none to give back.
    entry(op::QUERY_PAGES, "QUERY_PAGES", HEAD, 0x10, Hca::good),
    entry(op::MANAGE_PAGES, "MANAGE_PAGES", HEAD, HEAD, Hca::good),
    entry(op::SET_HCA_CAP, "SET_HCA_CAP", HEAD, HEAD, Hca::good),
    entry(op::QUERY_ISSI, "QUERY_ISSI", HEAD, 0x70, Hca::query_issi),
    entry(op::SET_DRIVER_VERSION, "SET_DRIVER_VERSION", HEAD, HEAD, Hca::good),
    entry(op::CREATE_MKEY, "CREATE_MKEY", CONTEXT, NUMBER, Hca::create_key),
    entry(op::DESTROY_MKEY, "DESTROY_MKEY", NUMBER, HEAD, Hca::destroy_key),
    entry(op::CREATE_EQ, "CREATE_EQ", 0x60, NUMBER, Hca::create_eq),
    entry(op::DESTROY_EQ, "DESTROY_EQ", NUMBER, HEAD, Hca::destroy_eq),
    entry(op::QUERY_EQ, "QUERY_EQ", NUMBER, 0x60, Hca::query_eq),
    entry(op::CREATE_CQ, "CREATE_CQ", CONTEXT, NUMBER, Hca::create_cq),
    entry(op::DESTROY_CQ, "DESTROY_CQ", NUMBER, HEAD, Hca::destroy_cq),
    entry(op::QUERY_CQ, "QUERY_CQ", NUMBER, CONTEXT, Hca::query_cq),
    entry(op::MODIFY_CQ, "MODIFY_CQ", CONTEXT, HEAD, Hca::modify_cq),
    entry(op::CREATE_QP, "CREATE_QP", PAIR, NUMBER, Hca::create_qp),
    entry(op::DESTROY_QP, "DESTROY_QP", NUMBER, HEAD, Hca::destroy_qp),
    entry(op::RST2INIT_QP, "RST2INIT_QP", PAIR, HEAD, Hca::modify_qp),
    entry(op::INIT2RTR_QP, "INIT2RTR_QP", PAIR, HEAD, Hca::modify_qp),
    entry(op::RTR2RTS_QP, "RTR2RTS_QP", PAIR, HEAD, Hca::modify_qp),
    entry(op::RTS2RTS_QP, "RTS2RTS_QP", PAIR, HEAD, Hca::modify_qp),
    entry(op::SQERR2RTS_QP, "SQERR2RTS_QP", PAIR, HEAD, Hca::modify_qp),
    entry(op::TWO_ERR_QP, "2ERR_QP", NUMBER, HEAD, Hca::modify_qp),
    entry(op::TWO_RST_QP, "2RST_QP", NUMBER, HEAD, Hca::modify_qp),
    entry(op::QUERY_QP, "QUERY_QP", NUMBER, PAIR, Hca::query_qp),
    entry(op::MAD_IFC, "MAD_IFC", 0x110, 0x110, Hca::management),
    entry(op::INIT2INIT_QP, "INIT2INIT_QP", PAIR, HEAD, Hca::modify_qp),
    entry(op::CREATE_SRQ, "CREATE_SRQ", CONTEXT, NUMBER, Hca::create_srq),
    entry(op::DESTROY_SRQ, "DESTROY_SRQ", NUMBER, HEAD, Hca::destroy_srq),
    entry(op::QUERY_SRQ, "QUERY_SRQ", NUMBER, CONTEXT, Hca::query_srq),
    entry(op::ARM_RQ, "ARM_RQ", 0x10, HEAD, Hca::arm_srq),
    entry(op::QUERY_VPORT_STATE, "QUERY_VPORT_STATE", HEAD, 0x10, Hca::query_vport_state),
    entry(op::MODIFY_VPORT_STATE, "MODIFY_VPORT_STATE", HEAD, HEAD, Hca::good),
    entry(op::QUERY_HCA_VPORT_CONTEXT, "QUERY_HCA_VPORT_CONTEXT", NUMBER, 0x7c, Hca::query_vport),
    entry(op::MODIFY_HCA_VPORT_CONTEXT, "MODIFY_HCA_VPORT_CONTEXT", 0x7c, HEAD, Hca::modify_vport),
    entry(op::QUERY_HCA_VPORT_GID, "QUERY_HCA_VPORT_GID", 0x10, 0x20, Hca::query_gid),
    entry(op::QUERY_HCA_VPORT_PKEY, "QUERY_HCA_VPORT_PKEY", 0x10, 0x14, Hca::query_pkey),
    entry(op::ALLOC_PD, "ALLOC_PD", HEAD, NUMBER, Hca::alloc_pd),
    entry(op::DEALLOC_PD, "DEALLOC_PD", NUMBER, HEAD, Hca::dealloc_pd),
    entry(op::ALLOC_UAR, "ALLOC_UAR", HEAD, NUMBER, Hca::alloc_uar),
    entry(op::DEALLOC_UAR, "DEALLOC_UAR", NUMBER, HEAD, Hca::dealloc_uar),
    entry(op::ACCESS_REG, "ACCESS_REG", 0x10, 0x10, Hca::access_register),
    entry(op::ATTACH_TO_MCG, "ATTACH_TO_MCG", 0x20, HEAD, Hca::attach_group),
    entry(op::DETACH_FROM_MCG, "DETACH_FROM_MCG", 0x20, HEAD, Hca::detach_group),
    entry(op::ALLOC_XRCD, "ALLOC_XRCD", HEAD, NUMBER, Hca::alloc_xrcd),
    entry(op::DEALLOC_XRCD, "DEALLOC_XRCD", NUMBER, HEAD, Hca::dealloc_xrcd),
];

const fn entry(opcode: u16, name: &'static str, input: usize, output: usize, run: Run) -> Entry {
    Entry { opcode, name, input, output, run }
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
