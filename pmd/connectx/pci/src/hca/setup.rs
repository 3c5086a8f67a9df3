//! Commands on the device as a whole, and on objects that are only a number.

use connectx::{
    AnswerOrder, CLOCK_KHZ, COUNTER_SETS, MAX_GROUP_MEMBERS, MAX_GROUPS, ProtectionDomain, XrcDomain,
};
use prm::capability::{ATOMIC, GENERAL, atomic, general as cap};
use prm::command::{CommandStatus, issi};
use zerocopy::big_endian::U16;

use super::command::{Fault, Input, Output};
use super::key::LOG_MAX_LIST;
use super::{GIDS, Hca, Table};

/// The latest supported version of the interface (ISSI).
const LAST_ISSI: u16 = 1;
/// Binary logarithm of the largest number of WQEBBs, and of receives.
const LOG_MAX_WORK: u64 = 15;
/// Binary logarithm of the largest number of completions.
pub(super) const LOG_MAX_CQ_SIZE: u8 = 16;
/// Binary logarithm of the largest number of events.
pub(super) const LOG_MAX_EQ_SIZE: u8 = 16;
/// OUI of Mellanox.
const OUI: u32 = 0x2c9;
/// Offset of capabilities in the output of a query and the input of SET_HCA_CAP.
const CAPABILITIES: usize = 0x10;
/// Identifies the board to drivers.
const BOARD: &[u8; 16] = b"SFT_0000000001\0\0";

impl Hca {
    /// A command without effect.
    pub(super) fn good(&mut self, _: &Input, _: &mut Output) -> Result<(), Fault> {
        Ok(())
    }

    /// Handles the start or end of a driver. A driver destroys its objects itself; what a failed one left is
    /// destroyed here.
    pub(super) fn teardown(&mut self, _: &Input, _: &mut Output) -> Result<(), Fault> {
        self.forget_objects();
        Ok(())
    }

    /// Returns the first two versions of the interface (ISSI). The second names shared receive queues
    /// differently, and reports the user index of XRC queues, which libmlx5 needs in completions.
    pub(super) fn query_issi(&mut self, _: &Input, output: &mut Output) -> Result<(), Fault> {
        output.put(issi::CURRENT, &self.issi.to_be_bytes())?;
        output.put(issi::SUPPORTED, &((1u32 << (LAST_ISSI + 1)) - 1).to_be_bytes())
    }

    /// Commands of both versions are always available: a driver uses only those of its version.
    pub(super) fn set_issi(&mut self, input: &Input, _: &mut Output) -> Result<(), Fault> {
        let wanted: U16 = input.view(issi::CURRENT)?;
        if wanted.get() > LAST_ISSI {
            return Err(Fault::parameter(format!("unsupported version of the interface: {wanted}")));
        }
        self.issi = wanted.get();
        Ok(())
    }

    pub(super) fn query_adapter(&mut self, _: &Input, output: &mut Output) -> Result<(), Fault> {
        output.put(0x28, &OUI.to_be_bytes())?;
        output.put(0x100, BOARD)
    }

    pub(super) fn query_capabilities(&mut self, input: &Input, output: &mut Output) -> Result<(), Fault> {
        match input.header().modifier.get() >> 1 {
            GENERAL => self.general_capabilities(output.rest(CAPABILITIES)),
            ATOMIC => self.atomic_capabilities(output.rest(CAPABILITIES)),
            // The other kinds have no capabilities.
            _ => {}
        }
        Ok(())
    }

    /// Sets what drivers may choose: the byte order of responses to atomic operations.
    pub(super) fn set_capabilities(&mut self, input: &Input, _: &mut Output) -> Result<(), Fault> {
        if input.header().modifier.get() >> 1 == ATOMIC {
            let wanted = atomic::ANSWER_ORDER.get(&input.view::<[u8; 16]>(CAPABILITIES)?);
            let order = match wanted {
                atomic::BIG_ENDIAN => AnswerOrder::Big,
                atomic::HOST_ENDIAN => AnswerOrder::Host,
                other => {
                    return Err(Fault::parameter(format!("unsupported byte order of responses: {other}")));
                }
            };
            self.engine.set_answer_order(order);
        }
        Ok(())
    }

    fn atomic_capabilities(&self, out: &mut [u8]) {
        let order = match self.engine.answer_order() {
            AnswerOrder::Big => atomic::BIG_ENDIAN,
            AnswerOrder::Host => atomic::HOST_ENDIAN,
        };
        for (field, value) in [
            (atomic::ANSWER_ORDER, order),
            (atomic::HOST_ORDER_SUPPORTED, 1),
            (atomic::OPERATIONS, atomic::COMPARE_SWAP | atomic::FETCH_ADD),
            (atomic::SIZES, atomic::EIGHT_BYTES),
        ] {
            field.set(out, value);
        }
    }

    fn general_capabilities(&self, out: &mut [u8]) {
        let gids = u64::from(GIDS / 8).trailing_zeros();
        let most = |table| u64::from(self.config.tables.log(table));
        let fields = [
            (cap::VHCA_ID, 1),
            (cap::LOG_MAX_SRQ_SIZE, LOG_MAX_WORK),
            (cap::LOG_MAX_QP_SIZE, LOG_MAX_WORK),
            (cap::LOG_MAX_QP, most(Table::QueuePairs)),
            (cap::LOG_MAX_SRQ, most(Table::SharedReceiveQueues)),
            (cap::MAX_SGL, 8),
            (cap::LOG_MAX_CQ_SIZE, LOG_MAX_CQ_SIZE.into()),
            (cap::LOG_MAX_CQ, most(Table::CompletionQueues)),
            (cap::LOG_MAX_EQ_SIZE, LOG_MAX_EQ_SIZE.into()),
            (cap::LOG_MAX_MKEY, most(Table::MemoryKeys)),
            (cap::LOG_MAX_EQ, most(Table::EventQueues)),
            (cap::MAX_INDIRECTION, 4),
            (cap::LOG_MAX_REGION, 32),
            (cap::LOG_MAX_KLM_LIST, LOG_MAX_LIST),
            (cap::LOG_MAX_READS_OUT, 4),
            (cap::LOG_MAX_READS_IN, 4),
            (cap::GID_TABLE_SIZE, gids.into()),
            (cap::OUT_OF_SEQUENCE_COUNT, 1),
            (cap::RETRANSMISSION_COUNTS, 1),
            (cap::MAX_COUNTER_SETS, u64::from(COUNTER_SETS) - 1),
            (cap::PKEY_TABLE_SIZE, 0),
            (cap::IB_VIRT, 1),
            (cap::LOCAL_ACK_DELAY, 15),
            (cap::PORT_TYPE, 0),
            (cap::NUM_PORTS, self.config.ports().count() as u64),
            (cap::LOG_MAX_MESSAGE, 30),
            (cap::CQE_VERSION, 1),
            (cap::ATOMIC, 1),
            (cap::CQ_RESIZE, 1),
            (cap::CQ_MODERATION, 1),
            (cap::BLOCK_LOOPBACK_MULTICAST, 1),
            (cap::MEMORY_WINDOWS, 1),
            (cap::XRC, 1),
            (cap::UD, 1),
            (cap::UC, 1),
            (cap::RC, 1),
            (cap::LOG_PAGE_SIZE, 12),
            (cap::LOG_DOORBELL_REGISTER, 9),
            // libmlx5 reserves more than 512 bytes for a connection's entries.
            (cap::MAX_SEND_WQE, 1024),
            (cap::MAX_RECEIVE_WQE, 512),
            (cap::MAX_QP_PER_GROUP, MAX_GROUP_MEMBERS as u64),
            (cap::LOG_MAX_GROUPS, MAX_GROUPS.ilog2().into()),
            (cap::LOG_MAX_PD, 16),
            (cap::LOG_MAX_XRCD, 16),
            (cap::LOG_MAX_USERS, self.config.tables.log_users().into()),
            (cap::CLOCK_KHZ, CLOCK_KHZ),
        ];
        for (field, value) in fields {
            field.set(out, value);
        }
    }

    pub(super) fn alloc_pd(&mut self, _: &Input, output: &mut Output) -> Result<(), Fault> {
        output.set_number(self.objects.pds.take().ok_or_else(|| Fault::exhausted("protection domains"))?)
    }

    pub(super) fn dealloc_pd(&mut self, input: &Input, _: &mut Output) -> Result<(), Fault> {
        let pd = input.number();
        if self.engine.has_keys_in(ProtectionDomain(pd)) {
            return Err(Fault::new(CommandStatus::ResourceBusy, "the protection domain contains keys"));
        }
        self.objects.pds.give_back(pd).then_some(()).ok_or_else(|| Fault::resource("protection domain", pd))
    }

    pub(super) fn alloc_uar(&mut self, _: &Input, output: &mut Output) -> Result<(), Fault> {
        output.set_number(self.objects.uars.take().ok_or_else(|| Fault::exhausted("doorbell pages"))?)
    }

    pub(super) fn dealloc_uar(&mut self, input: &Input, _: &mut Output) -> Result<(), Fault> {
        let uar = input.number();
        self.objects.uars.give_back(uar).then_some(()).ok_or_else(|| Fault::resource("doorbell page", uar))
    }

    pub(super) fn alloc_xrcd(&mut self, _: &Input, output: &mut Output) -> Result<(), Fault> {
        output.set_number(self.objects.xrcds.take().ok_or_else(|| Fault::exhausted("XRC domains"))?)
    }

    pub(super) fn dealloc_xrcd(&mut self, input: &Input, _: &mut Output) -> Result<(), Fault> {
        let xrcd = input.number();
        if self.engine.is_xrc_domain_used(XrcDomain(xrcd)) {
            return Err(Fault::new(CommandStatus::ResourceBusy, "the XRC domain contains queues"));
        }
        self.objects.xrcds.give_back(xrcd).then_some(()).ok_or_else(|| Fault::resource("XRC domain", xrcd))
    }
}
