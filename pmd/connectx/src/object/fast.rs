//! Keys whose memory is set by work requests: fast registration and memory windows (IBA 10.6.5, 10.6.7). A
//! key is created with room for its list, so that a registration allocates nothing. Each access is resolved
//! again through the list and the keys that it names, so that nothing invalidated stays usable.

use hca::HcaError;
use ib_wire::Qpn;
use prm::{DataSegment, MkeyContext, UmrControl, mkey_access, mkey_flags, mkey_mask, umr_flags};
use zerocopy::FromBytes;
use zerocopy::big_endian::U64;

use super::mr::{Access, Denied, Layout, Member, Mr, MrTable, ProtectionDomain, Trust, Use};

/// Unit in which list lengths are measured, in bytes.
pub(crate) const OCTOWORD: usize = 16;
/// Longest list: the largest length that one work request can give, behind the largest offset.
pub const MAX_OCTOWORDS: usize = 1 << 17;
/// Lists are padded to a multiple of this many units, and keys have room for the padding.
const LIST_STEP: usize = 4;
/// Most bytes that one entry of a list covers.
const MAX_ENTRY: u64 = 1 << 31;
/// Supported page sizes, as binary logarithms.
const PAGE_SHIFTS: std::ops::RangeInclusive<u8> = 12..=31;

/// How the entries of a list name memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ListKind {
    /// By addresses of pages of one size (8 bytes each); see
    /// [`Engine::set_bus`](crate::engine::Engine::set_bus).
    Pages,
    /// By length, key and address (16 bytes each). The keys must have memory of their own.
    Keys,
}

/// Parameters of a key whose memory is set by work requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FastKey {
    /// Low byte of the key.
    pub tag: u8,
    /// Protection domain: queue pairs of the same domain set its memory and use it.
    pub domain: ProtectionDomain,
    /// How its lists name memory.
    pub list: ListKind,
    /// Longest list, in units of 16 bytes.
    pub octowords: usize,
    /// Access rights, until a work request changes them.
    pub access: Access,
    /// The peer may invalidate it, until a work request changes this.
    pub remote_invalidate: bool,
}

/// State of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyStatus {
    /// The key is free: it grants no access.
    pub free: bool,
    /// Current low byte.
    pub tag: u8,
    /// Address of its first byte.
    pub start: u64,
    /// Length in bytes.
    pub len: u64,
    /// Access rights.
    pub access: Access,
    /// Protection domain.
    pub domain: ProtectionDomain,
    /// The only queue pair that may use it, if it is bound.
    pub queue_pair: Option<Qpn>,
}

/// Addresses of pages.
#[derive(Debug)]
pub(super) struct Pages {
    shift: u8,
    /// Bytes of the first page before the key's first byte.
    skip: u64,
    addresses: Vec<u64>,
}

impl Pages {
    /// The address of the key's byte `offset`, and the number of bytes from there to the end of the page.
    pub(super) fn find(&self, offset: u64) -> Option<(u64, u64)> {
        let at = self.skip.checked_add(offset)?;
        let page = 1 << self.shift;
        let base = self.addresses.get(usize::try_from(at >> self.shift).ok()?)?;
        let within = at % page;
        Some((base.checked_add(within)?, page - within))
    }
}

/// An entry of a list.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// End of the entry, as an offset into the key's range.
    end: u64,
    address: u64,
    key: u32,
    len: u32,
}

/// Entries in order.
#[derive(Debug)]
pub(super) struct Entries(Vec<Entry>);

impl Entries {
    /// Key and address of byte `offset`, and the number of bytes from there to the end of the entry.
    pub(super) fn find(&self, offset: u64) -> Option<(u32, u64, u64)> {
        let entry = self.0.get(self.0.partition_point(|entry| entry.end <= offset))?;
        let there = entry.end - offset;
        Some((entry.key, entry.address.checked_add(u64::from(entry.len) - there)?, there))
    }

    fn len(&self) -> u64 {
        self.0.last().map_or(0, |entry| entry.end)
    }
}

/// The memory of a key.
#[derive(Debug)]
pub(super) enum List {
    Pages(Pages),
    Entries(Entries),
}

/// State of a key whose memory is set by work requests.
#[derive(Debug)]
pub(crate) struct Fast {
    tag: u8,
    octowords: usize,
    remote_invalidate: bool,
    /// Length in bytes.
    pub(super) len: u64,
    pub(super) list: List,
}

impl Fast {
    pub(super) const fn is_list(&self) -> bool {
        matches!(self.list, List::Entries(_))
    }
}

/// A key operation is rejected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Refused;

/// State of a key after an operation.
struct Change {
    domain: ProtectionDomain,
    free: bool,
    tag: u8,
    start: u64,
    len: u64,
    shift: u8,
    bound: Option<Qpn>,
    access: Access,
    remote_invalidate: bool,
    /// Offset of the new list within the key's list, in units of 16 bytes.
    offset: usize,
}

impl Change {
    /// Bytes of the first page before the first byte.
    const fn skip(&self) -> u64 {
        self.start % (1 << self.shift)
    }

    /// Index of the first page of the new list within the key's list.
    const fn first_page(&self) -> usize {
        self.offset * (OCTOWORD / size_of::<U64>())
    }
}

impl MrTable {
    /// Creates a free key with room for its list.
    pub(crate) fn create_fast(&mut self, how: &FastKey) -> Result<u32, HcaError> {
        if how.octowords > MAX_OCTOWORDS {
            return Err(HcaError::Unsupported {
                what: "list of a memory key",
                value: how.octowords as u64,
                limit: format!("{MAX_OCTOWORDS} units of {OCTOWORD} bytes"),
            });
        }
        let octowords = how.octowords.next_multiple_of(LIST_STEP);
        let room = octowords * OCTOWORD;
        let list = match how.list {
            ListKind::Pages => {
                let addresses = Vec::with_capacity(room / size_of::<U64>());
                List::Pages(Pages { shift: *PAGE_SHIFTS.start(), skip: 0, addresses })
            }
            ListKind::Keys => List::Entries(Entries(Vec::with_capacity(octowords))),
        };
        let &FastKey { tag, remote_invalidate, .. } = how;
        let fast = Fast { tag, octowords, remote_invalidate, len: 0, list };
        let key = self.insert_fast(tag, how.domain, how.access, fast);
        let key = key.ok_or(HcaError::Exhausted("memory keys"))?;
        self.staging.reserve(room.saturating_sub(self.staging.len()));
        Ok(key)
    }

    /// State of the key with this name.
    pub(crate) fn query(&self, name: u32) -> Option<KeyStatus> {
        let mr = self.at(name).filter(|mr| mr.is_named(name))?;
        let (len, tag) = match &mr.layout {
            Layout::Direct(memory) => (memory.len(), name as u8),
            Layout::Fast(fast) => (fast.len, fast.tag),
        };
        let &Mr { start, access, domain, bound, .. } = mr;
        Some(KeyStatus { free: mr.is_free(), tag, start, len, access, domain, queue_pair: bound })
    }

    /// Copies a list of `len` bytes from the memory that a data segment names; the list is then read from the
    /// copy. [`Staging::NoRoom`] if the key has no room for it.
    pub(crate) fn stage(
        &mut self,
        member: Member,
        key: u32,
        segment: &DataSegment,
        len: usize,
    ) -> Result<Vec<u8>, Staging> {
        let room = self.at(key).and_then(|mr| match &mr.layout {
            Layout::Fast(fast) => Some(fast.octowords * OCTOWORD),
            Layout::Direct(_) => None,
        });
        if room.is_none_or(|room| len > room) {
            return Err(Staging::NoRoom);
        }
        // A member trusted with all domains has none of its own.
        let named = self.at(segment.lkey.get()).map_or(member.domain, |mr| mr.domain);
        let domain = if member.trust == Trust::Domains { named } else { member.domain };
        let mut staged = std::mem::take(&mut self.staging);
        staged.resize(len, 0);
        match self.of(Member { domain, ..member }).read(
            segment.lkey.get(),
            segment.address.get(),
            &mut staged,
        ) {
            Ok(()) => Ok(staged),
            Err(Denied) => {
                self.staging = staged;
                Err(Staging::Denied)
            }
        }
    }

    /// Returns the buffer of a staged list.
    pub(crate) fn unstage(&mut self, staged: Vec<u8>) {
        self.staging = staged;
    }

    /// Executes a key operation of a queue pair, completely or not at all.
    pub(crate) fn change(
        &mut self,
        member: Member,
        key: u32,
        (control, context): (&UmrControl, &MkeyContext),
        list: &[u8],
    ) -> Result<(), Refused> {
        let mr = self.at(key).ok_or(Refused)?;
        let Layout::Fast(fast) = &mr.layout else {
            return self.change_region(member, key, (control, context), list);
        };
        let change = planned(mr, fast, member, key, control, context)?;
        let given = !list.is_empty();
        // A list may be written to a free key, but not in the operation that frees it.
        let freed = change.free && !mr.is_free();
        if list.len() > fast.octowords.saturating_sub(change.offset) * OCTOWORD || given && freed {
            return Err(Refused);
        }
        if matches!(fast.list, List::Pages(_)) && member.trust < Trust::Pages && (given || !change.free) {
            return Err(Refused);
        }
        if !change.free {
            let room = match &fast.list {
                List::Pages(pages) => {
                    let all = change.first_page() + list.len() / size_of::<U64>();
                    let count = if given { all } else { pages.addresses.len() };
                    ((count as u64) << change.shift).saturating_sub(change.skip())
                }
                List::Entries(entries) if !given => entries.len(),
                List::Entries(_) => self.sum(member, list, &change)?,
            };
            if change.len > room || change.start.checked_add(change.len).is_none() {
                return Err(Refused);
            }
        }
        self.apply(key, &change, list);
        Ok(())
    }

    /// Executes a key operation on a region, which can change only rights and domain.
    fn change_region(
        &mut self,
        member: Member,
        key: u32,
        (control, context): (&UmrControl, &MkeyContext),
        list: &[u8],
    ) -> Result<(), Refused> {
        let mask = control.mkey_mask.get();
        let fits = control.flags & !(umr_flags::INLINE | umr_flags::CHECK_VALID) == 0
            && mask & !(mkey_mask::RIGHTS | mkey_mask::DOMAIN) == 0
            && list.is_empty();
        let mr = self.at_mut(key).filter(|mr| mr.is_called(key)).ok_or(Refused)?;
        if !fits || member.trust < Trust::Domains {
            return Err(Refused);
        }
        mr.access = rights(mask, context, mr.access);
        mr.domain = domain(mask, context, mr.domain);
        Ok(())
    }

    /// Total bytes of a list of keys, if the list is valid and permitted.
    fn sum(&self, member: Member, list: &[u8], change: &Change) -> Result<u64, Refused> {
        // IBA 10.6.7.2.1: remote write access needs a region with local write access.
        let writes = change.access.remote_write || change.access.remote_atomic;
        let how = if writes { Use::LocalWrite } else { Use::LocalRead };
        let keys = self.of(Member { domain: change.domain, ..member });
        let mut sum = 0;
        for segment in segments(list, change.len) {
            let len = u64::from(segment.byte_count.get());
            if len > MAX_ENTRY {
                return Err(Refused);
            }
            let (key, address) = (segment.lkey.get(), segment.address.get());
            keys.underneath(key, address, len as usize, how).map_err(|_| Refused)?;
            sum += len;
        }
        Ok(sum)
    }

    fn apply(&mut self, key: u32, change: &Change, list: &[u8]) {
        let Some(mr) = self.at_mut(key) else { return };
        let Layout::Fast(fast) = &mut mr.layout else { return };
        fast.tag = change.tag;
        fast.len = change.len;
        fast.remote_invalidate = change.remote_invalidate;
        match &mut fast.list {
            List::Pages(pages) => {
                pages.shift = change.shift;
                pages.skip = change.skip();
                if !list.is_empty() {
                    pages.addresses.resize(change.first_page(), NO_PAGE);
                    let (words, _) = list.as_chunks();
                    // The low bits hold flags.
                    let address = |word: &[u8; 8]| u64::from_be_bytes(*word) & !0xfff;
                    pages.addresses.extend(words.iter().map(address));
                }
            }
            List::Entries(entries) => {
                if !list.is_empty() {
                    entries.0.clear();
                    let mut end = 0;
                    entries.0.extend(segments(list, change.len).map(|segment| {
                        let len = segment.byte_count.get();
                        end += u64::from(len);
                        Entry { end, address: segment.address.get(), key: segment.lkey.get(), len }
                    }));
                }
            }
        }
        mr.start = change.start;
        mr.access = change.access;
        mr.domain = change.domain;
        if change.free {
            mr.free();
        } else {
            mr.bound = change.bound;
            mr.open(change.tag);
        }
    }

    /// Invalidates a key for the peer (IBA 9.4.1.1.3).
    pub(crate) fn invalidate(&mut self, member: Member, key: u32) -> Result<(), Denied> {
        let mr = self.at_mut(key).ok_or(Denied)?;
        let allowed = matches!(&mr.layout, Layout::Fast(fast) if fast.remote_invalidate);
        let bound = mr.bound.is_some() && mr.bound != member.queue_pair;
        if !allowed || bound || !mr.is_called(key) || mr.domain != member.domain {
            return Err(Denied);
        }
        mr.free();
        Ok(())
    }
}

/// Why a list could not be copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Staging {
    /// The key has no room for it.
    NoRoom,
    /// Its memory may not be read.
    Denied,
}

/// Address of a page that no list has set yet: there is no memory at it.
const NO_PAGE: u64 = !0xfff;

/// Access rights from a context, as selected by the mask.
fn rights(mask: u64, context: &MkeyContext, old: Access) -> Access {
    let right =
        |bit: u64, flag: u8, old: bool| if mask & bit != 0 { context.access & flag != 0 } else { old };
    Access {
        local_write: right(mkey_mask::LOCAL_WRITE, mkey_access::LOCAL_WRITE, old.local_write),
        remote_write: right(mkey_mask::REMOTE_WRITE, mkey_access::REMOTE_WRITE, old.remote_write),
        remote_read: right(mkey_mask::REMOTE_READ, mkey_access::REMOTE_READ, old.remote_read),
        remote_atomic: right(mkey_mask::ATOMIC, mkey_access::ATOMIC, old.remote_atomic),
    }
}

/// Protection domain from a context, if the mask selects it.
const fn domain(mask: u64, context: &MkeyContext, old: ProtectionDomain) -> ProtectionDomain {
    let new = ProtectionDomain(context.flags_pd.get() & Qpn::MASK);
    if mask & mkey_mask::DOMAIN != 0 { new } else { old }
}

/// The entries of a list of keys that cover `len` bytes. Drivers pad lists, and not always with zeros.
fn segments(list: &[u8], len: u64) -> impl Iterator<Item = DataSegment> {
    let all = list.as_chunks::<OCTOWORD>().0.iter().filter_map(|b| DataSegment::read_from_bytes(b).ok());
    let there = all.filter(|segment| segment.byte_count.get() > 0);
    there.scan(len, |missing, segment| {
        let wanted = *missing > 0;
        *missing = missing.saturating_sub(segment.byte_count.get().into());
        wanted.then_some(segment)
    })
}

/// The state of a key after an operation, if permitted, except for what depends on its list.
fn planned(
    mr: &Mr,
    fast: &Fast,
    member: Member,
    key: u32,
    control: &UmrControl,
    context: &MkeyContext,
) -> Result<Change, Refused> {
    let flags = control.flags;
    let mask = control.mkey_mask.get();
    let bound = mr.bound.is_some() && mr.bound != member.queue_pair;
    let offset =
        if flags & umr_flags::TRANSLATION_OFFSET != 0 { control.translation_offset.get() } else { 0 };
    let domain = domain(mask, context, mr.domain);
    let foreign = [mr.domain, domain].iter().any(|&domain| domain != member.domain);
    let forbidden = foreign && member.trust < Trust::Domains
        || flags & !umr_flags::ALL != 0
        || mask & !mkey_mask::ALL != 0
        || flags & umr_flags::CHECK_FREE != 0 && !mr.is_free()
        || flags & umr_flags::CHECK_VALID != 0 && mr.is_free()
        || flags & umr_flags::CHECK_QPN != 0 && bound
        || offset != 0 && fast.is_list();
    if forbidden {
        return Err(Refused);
    }
    let masked = |bit: u64| mask & bit != 0;
    let free = if masked(mkey_mask::FREE) { context.free & MkeyContext::FREE != 0 } else { mr.is_free() };
    // A requester that frees a key by an outdated name means another key.
    if free && !mr.is_free() && !mr.is_called(key) {
        return Err(Refused);
    }
    let qpn_tag = context.qpn_mkey.get();
    let bound = match qpn_tag >> 8 {
        _ if !masked(mkey_mask::QPN) => mr.bound,
        Qpn::MASK => None,
        qpn if member.queue_pair == Some(Qpn::new(qpn)) => member.queue_pair,
        _ => return Err(Refused),
    };
    let old_shift = if let List::Pages(pages) = &fast.list { pages.shift } else { *PAGE_SHIFTS.start() };
    let shift = if masked(mkey_mask::PAGE_SIZE) && !fast.is_list() && !free {
        Some(context.log_page_size & 0x1f).filter(|shift| PAGE_SHIFTS.contains(shift)).ok_or(Refused)?
    } else {
        old_shift
    };
    let flags_pd = context.flags_pd.get();
    Ok(Change {
        domain,
        free,
        tag: if masked(mkey_mask::MKEY) { qpn_tag as u8 } else { fast.tag },
        start: if masked(mkey_mask::START_ADDR) { context.start.get() } else { mr.start },
        len: if masked(mkey_mask::LEN) { context.len.get() } else { fast.len },
        shift,
        bound,
        access: rights(mask, context, mr.access),
        offset: offset.into(),
        remote_invalidate: if masked(mkey_mask::REMOTE_INVALIDATE) {
            flags_pd & mkey_flags::REMOTE_INVALIDATE != 0
        } else {
            fast.remote_invalidate
        },
    })
}
