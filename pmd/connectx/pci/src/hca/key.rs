//! Commands on memory keys: keys of regions, and free keys whose memory is set by work requests.

use connectx::{Access, FastKey, ListKind, ProtectionDomain, RESERVED_KEY};
use prm::command::CONTEXT;
use prm::{MkeyContext, mkey_access, mkey_flags};
use tracing::warn;

use super::command::{Fault, Input, Output};
use super::user::{Kind, Users};
use super::{Hca, Table};
use crate::memory::{Lease, PAGE};

/// Binary logarithm of the largest page size.
const LOG_MAX_PAGE: u8 = 31;
/// Offset of the reserved key in the output of QUERY_SPECIAL_CONTEXTS.
const RESERVED_KEY_AT: usize = 0x0c;
/// Mask of a protection domain's number.
pub(super) const NUMBER: u32 = 0xff_ffff;

/// Binary logarithm of the longest list: pages, or twice the number of keys.
pub(super) const LOG_MAX_LIST: u64 = 12;
/// Room of all lists together, in units of 16 bytes. mlx5_ib caches six thousand keys, with room for 100 MB.
const MAX_OCTOWORDS: usize = 16 << 20;

/// A memory key.
#[derive(Debug)]
pub(super) struct Key {
    /// The engine's name of the key, which is also the value in work requests unless it is a free key.
    key: u32,
    /// It covers all memory.
    whole: bool,
    /// Keeps its memory mapped.
    lease: Lease,
    /// Room of its list, in units of 16 bytes.
    octowords: usize,
    /// Context as created.
    context: MkeyContext,
}

impl Hca {
    pub(super) fn create_key(&mut self, input: &Input, output: &mut Output) -> Result<(), Fault> {
        self.config.tables.room(Table::MemoryKeys, self.objects.keys.len())?;
        let context: MkeyContext = input.view(CONTEXT)?;
        let flags = context.access;
        self.check_users_key(input.header().uid.get(), &context)?;
        let access = Access {
            local_write: flags & mkey_access::LOCAL_WRITE != 0,
            remote_write: flags & mkey_access::REMOTE_WRITE != 0,
            remote_read: flags & mkey_access::REMOTE_READ != 0,
            remote_atomic: flags & mkey_access::ATOMIC != 0,
        };
        if context.free & MkeyContext::FREE != 0 {
            return self.create_free_key(context, access, output);
        }
        let tag = context.qpn_mkey.get() as u8;
        let (start, len) = (context.start.get(), context.len.get());
        let (whole, start, (pieces, lease)) = match flags & MkeyContext::MODE {
            0 if context.flags_pd.get() & MkeyContext::WHOLE != 0 => (true, 0, self.memory.whole()?),
            MkeyContext::MODE_PAGES => {
                let log = context.log_page_size & 0x1f;
                if !(PAGE.trailing_zeros() as u8..=LOG_MAX_PAGE).contains(&log) {
                    return Err(Fault::parameter(format!("unsupported page size: 2^{log} bytes")));
                }
                let page = 1 << log;
                let first = start % page;
                let all = first
                    .checked_add(len)
                    .ok_or_else(|| Fault::parameter("the end of the region overflows"))?;
                let pages = input.pages(all, page)?;
                (false, start, self.memory.pieces(&pages, page, first, len)?)
            }
            other => return Err(Fault::parameter(format!("unsupported kind of key: {other}"))),
        };
        let key = self.engine.register_tagged(tag, start, pieces, access)?;
        let domain = ProtectionDomain(context.flags_pd.get() & NUMBER);
        self.engine.set_key_domain(key, domain)?;
        self.objects.keys.insert(key >> 8, Key { key, whole, lease, octowords: 0, context });
        output.set_number(key >> 8)
    }

    /// A user's key may name memory only through the user's other keys: addresses that the driver has not
    /// checked are not trusted.
    fn check_users_key(&self, uid: u16, context: &MkeyContext) -> Result<(), Fault> {
        if !Users::is_user(uid) {
            return Ok(());
        }
        self.objects.users.check_own(uid, Kind::Domain, context.flags_pd.get() & NUMBER)?;
        let lists_keys = context.access & MkeyContext::MODE == MkeyContext::MODE_KEYS;
        if context.free & MkeyContext::FREE != 0 && lists_keys {
            return Ok(());
        }
        Err(Fault::parameter("a user's key must be a free key for lists of keys"))
    }

    /// Creates a key whose memory is set by work requests: for fast registration, or a memory window.
    fn create_free_key(
        &mut self,
        context: MkeyContext,
        access: Access,
        output: &mut Output,
    ) -> Result<(), Fault> {
        if context.access & mkey_access::UMR == 0 {
            return Err(Fault::parameter("a free key must permit UMR operations"));
        }
        let list = match context.access & MkeyContext::MODE {
            MkeyContext::MODE_PAGES => ListKind::Pages,
            MkeyContext::MODE_KEYS => ListKind::Keys,
            other => return Err(Fault::parameter(format!("unsupported kind of free key: {other}"))),
        };
        let octowords = context.translation_octowords.get() as usize;
        if octowords > MAX_OCTOWORDS - self.objects.octowords {
            return Err(Fault::exhausted("lists of memory keys"));
        }
        if list == ListKind::Pages {
            self.share_memory()?;
        }
        let flags = context.flags_pd.get();
        let key = self.engine.create_fast_key(&FastKey {
            tag: context.qpn_mkey.get() as u8,
            domain: ProtectionDomain(flags & NUMBER),
            list,
            octowords,
            access,
            remote_invalidate: flags & mkey_flags::REMOTE_INVALIDATE != 0,
        })?;
        self.objects.octowords += octowords;
        let lease = Lease::default();
        self.objects.keys.insert(key >> 8, Key { key, whole: false, lease, octowords, context });
        output.set_number(key >> 8)
    }

    /// Returns the keys that exist from the start, of which the device has the reserved key.
    pub(super) fn query_special_keys(&mut self, _: &Input, output: &mut Output) -> Result<(), Fault> {
        self.share_memory()?;
        output.put(RESERVED_KEY_AT, &RESERVED_KEY.to_be_bytes())
    }

    /// Gives page lists, and the reserved key, access to the guest's memory.
    fn share_memory(&mut self) -> Result<(), Fault> {
        if self.objects.bus.is_none() {
            let (pieces, lease) = self.memory.whole()?;
            self.engine.set_bus(pieces);
            self.objects.bus = Some(lease);
        }
        Ok(())
    }

    /// Current state of a key.
    pub(super) fn query_key(&mut self, input: &Input, output: &mut Output) -> Result<(), Fault> {
        let index = input.number();
        let key = self.objects.keys.get(&index).ok_or_else(|| Fault::resource("memory key", index))?;
        let now = self.engine.query_key(key.key)?;
        let mut context = key.context;
        context.free = if now.free { MkeyContext::FREE } else { 0 };
        let qpn = now.queue_pair.map_or(MkeyContext::ANY_QP, |qpn| qpn.get() << 8);
        context.qpn_mkey.set(qpn | u32::from(now.tag));
        context.flags_pd.set(context.flags_pd.get() & !NUMBER | now.domain.0);
        context.start.set(now.start);
        context.len.set(now.len);
        let bit = |yes: bool, bit: u8| if yes { bit } else { 0 };
        context.access = context.access & (mkey_access::UMR | mkey_access::LOCAL_READ | MkeyContext::MODE)
            | bit(now.access.local_write, mkey_access::LOCAL_WRITE)
            | bit(now.access.remote_read, mkey_access::REMOTE_READ)
            | bit(now.access.remote_write, mkey_access::REMOTE_WRITE)
            | bit(now.access.remote_atomic, mkey_access::ATOMIC);
        output.put(CONTEXT, &context)
    }

    pub(super) fn destroy_key(&mut self, input: &Input, _: &mut Output) -> Result<(), Fault> {
        let index = input.number();
        let key = self.objects.keys.get(&index).ok_or_else(|| Fault::resource("memory key", index))?;
        self.engine.deregister(key.key)?;
        self.objects.octowords -= key.octowords;
        self.objects.keys.remove(&index);
        Ok(())
    }

    /// Updates the keys for all memory, and page lists, after a change of the guest's memory.
    pub(super) fn refresh_whole_keys(&mut self) {
        if let Some(bus) = &mut self.objects.bus {
            let (pieces, lease) = self.memory.whole().unwrap_or_else(|error| {
                warn!("page lists: {error}");
                Default::default()
            });
            self.engine.set_bus(pieces);
            *bus = lease;
        }
        for key in self.objects.keys.values_mut().filter(|key| key.whole) {
            // If there is no room for its memory, the key covers nothing, rather than stale memory.
            let (pieces, lease) = self.memory.whole().unwrap_or_else(|error| {
                warn!("key {:#x}: {error}", key.key);
                Default::default()
            });
            match self.engine.replace_memory(key.key, pieces) {
                // Only now nothing uses the old memory.
                Ok(()) => key.lease = lease,
                Err(error) => warn!("key {:#x}: {error}", key.key),
            }
        }
    }
}
