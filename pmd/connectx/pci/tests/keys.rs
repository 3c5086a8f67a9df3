//! Keys whose memory is set by work requests, as created and used by the kernel's driver and the library.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod guest;

use guest::*;

const UMR: u8 = 0x25;
const WRITE: u8 = 0x08;
const READ: u8 = 0x10;
const PAGES: u8 = 1;
const KEYS: u8 = 2;
const SERVICE_UMR: u8 = 0x0c;

/// The fields that the kernel's driver changes when it registers.
const REGISTER: u64 = 1 | 1 << 1 | 1 << 6 | 1 << 8 | 1 << 13 | 0xf << 17 | 1 << 23 | 1 << 29;
const FREE: u64 = 1 << 29;
const CHECK_FREE: u8 = 0x20;
const CHECK_VALID: u8 = 0x40;
const OFFSET: u8 = 0x10;

/// The input that creates a free key.
fn free_key_input(kind: u8, domain: u32, tag: u8, octowords: u32) -> Vec<u8> {
    let mut bytes = input(0x200, 0x110);
    bytes[0x10] = 0x40;
    bytes[0x12] = 0x84 | kind;
    put32(&mut bytes, 0x14, 0xffff_ff00 | u32::from(tag));
    put32(&mut bytes, 0x1c, domain);
    put32(&mut bytes, 0x10 + 52, octowords);
    bytes
}

fn free_key(g: &mut Guest, kind: u8, octowords: u32) -> u32 {
    g.command(&free_key_input(kind, 0, 0, octowords), 16).number() << 8
}

/// A key operation without its list.
#[derive(Clone, Copy, Default)]
struct Umr {
    flags: u8,
    octowords: u16,
    offset: u16,
    mask: u64,
    free: bool,
    tag: u8,
    qpn: u32,
    domain: u32,
    start: u64,
    len: u64,
    access: u8,
}

impl Umr {
    fn body(&self, list: &[u8]) -> Vec<u8> {
        let mut b = vec![self.flags, 0, 0, 0];
        b.extend_from_slice(&self.octowords.to_be_bytes());
        b.extend_from_slice(&self.offset.to_be_bytes());
        b.extend_from_slice(&self.mask.to_be_bytes());
        b.resize(48, 0);
        b.extend_from_slice(&[u8::from(self.free) << 6, 0, self.access, 0]);
        b.extend_from_slice(&(self.qpn << 8 | u32::from(self.tag)).to_be_bytes());
        b.extend_from_slice(&[0; 4]);
        b.extend_from_slice(&(1 << 24 | self.domain).to_be_bytes());
        b.extend_from_slice(&self.start.to_be_bytes());
        b.extend_from_slice(&self.len.to_be_bytes());
        b.resize(48 + 59, 0);
        b.extend_from_slice(&[12, 0, 0, 0, 0]);
        b.extend_from_slice(list);
        b
    }
}

/// `list`, padded as drivers do, but not with zeros.
fn inline(mut umr: Umr, list: &[u8]) -> Vec<u8> {
    let mut list = list.to_vec();
    list.resize(list.len().next_multiple_of(64), 0xab);
    umr.flags |= 0x80;
    umr.octowords = (list.len() / 16) as u16;
    umr.body(&list)
}

/// Pages as the driver writes them.
fn list(pages: &[u64]) -> Vec<u8> {
    pages.iter().flat_map(|page| (page | 3).to_be_bytes()).collect()
}

struct Setting {
    g: Guest,
    cq: Completions,
    a: QueuePair,
    b: QueuePair,
    whole: u32,
}

/// Two connected queue pairs of the kernel, or of programs.
fn setting(kernel: bool) -> Setting {
    let mut g = Guest::new();
    let eq = g.probe();
    let cq = g.create_cq(eq.number, 7);
    let [a, b] = [(); 2].map(|()| {
        let (pages, record) = (g.scattered(2), g.pages(1));
        let mut bytes = g.qp_input(SERVICE_RC, cq.number, &pages, record);
        bytes[0x18 + 0x72] = if kernel { 0x08 } else { 0 };
        let number = g.command(&bytes, 16).number();
        QueuePair { number, pages, record, posted: 0, received: 0 }
    });
    g.open(&a, Some((7, b.number)));
    g.open(&b, Some((7, a.number)));
    let whole = g.whole_key(3);
    Setting { g, cq, a, b, whole }
}

impl Setting {
    fn outcome(&mut self) -> (u8, u8, u8) {
        self.g.settle();
        let cqe = self.g.poll(&mut self.cq).expect("a completion");
        let (opcode, syndrome) = outcome(&cqe);
        (opcode, cqe[56], syndrome)
    }

    /// A key operation of `a`: its syndrome, 0 for none.
    fn umr(&mut self, key: u32, body: &[u8]) -> u8 {
        let first = self.g.lay_request(&mut self.a, UMR, key, body);
        self.g.ring_send(first);
        self.outcome().2
    }

    /// `b` reads or writes `len` bytes of its page `local`.
    fn access(&mut self, opcode: u8, key: u32, address: u64, len: u32, local: u64) -> u8 {
        let mut body = address.to_be_bytes().to_vec();
        body.extend_from_slice(&key.to_be_bytes());
        body.extend_from_slice(&[0; 4]);
        body.extend_from_slice(&piece(len, self.whole, local));
        self.g.post_send(&mut self.b, opcode, &body);
        self.outcome().2
    }
}

/// Registers memory for peers as the kernel's driver does.
fn register(tag: u8, start: u64, len: u64) -> Umr {
    Umr {
        flags: CHECK_FREE,
        mask: REGISTER,
        tag,
        qpn: 0xff_ffff,
        start,
        len,
        access: 0x80 | 0x3c | PAGES,
        ..Umr::default()
    }
}

#[test]
fn pages_registered_used_and_invalidated() {
    let mut s = setting(true);
    let index = free_key(&mut s.g, PAGES, 64);
    let pages = s.g.scattered(20);
    let bytes: Vec<u8> = (0..20 * 4096u32).map(|n| (n * 7 + n / 251) as u8).collect();
    for (page, data) in pages.iter().zip(bytes.chunks(4096)) {
        s.g.put(*page, data);
    }
    let local = s.g.pages(20);
    let lists = s.g.pages(1);
    for round in 1..4u8 {
        let (key, start) = (index | u32::from(round), 0x7000_0123);
        // A short list is in the entry, a long one in separate memory.
        let (count, body) = if round == 2 {
            let long = list(&pages);
            s.g.put(lists, &long);
            s.g.put(lists + long.len() as u64, &[0xab; 64]);
            let umr = Umr { octowords: 12, ..register(round, start, 19 * 4096) };
            (19, umr.body(&piece(12 * 16, s.whole, lists)))
        } else {
            (7, inline(register(round, start, 7 * 4096), &list(&pages[..8])))
        };
        assert_eq!(s.umr(key, &body), 0);
        assert_eq!(s.access(READ, key, start, count * 4096, local), 0);
        let len = count as usize * 4096;
        assert!(s.g.get(local, len) == bytes[0x123..0x123 + len], "round {round}");
        assert_eq!(s.access(WRITE, key, start + 5000, 100, local), 0);
        assert_eq!(s.g.get(pages[1] + 5000 + 0x123 - 4096, 100), bytes[0x123..0x123 + 100]);
        s.g.put(pages[1], &bytes[4096..8192]);
        let key_now = s.g.command(&about(0x201, index >> 8), 0x110).output;
        assert_eq!((key_now[0x10], key_now[0x17], &key_now[0x20..0x28]), (0, round, &start_bytes(start)[..]));
        // LOCAL_INV as posted by the kernel's driver.
        let free = Umr { mask: FREE, free: true, flags: 0x80, ..Umr::default() };
        assert_eq!(s.umr(key, &free.body(&[])), 0);
        assert_eq!(s.g.command(&about(0x201, index >> 8), 0x110).output[0x10], 0x40);
    }
    assert_eq!(s.access(READ, index | 3, 0x7000_0123, 1, local), 0x13, "a remote access error");
    s.g.command(&about(0x202, index >> 8), 16);
    assert_ne!(s.g.try_command(&about(0x201, index >> 8), 0x110).status, 0);
}

const fn start_bytes(start: u64) -> [u8; 8] {
    start.to_be_bytes()
}

#[test]
fn programs_give_no_pages_to_keys_but_keys_to_windows() {
    let mut s = setting(false);
    let page = s.g.pages(1);
    let region = s.g.key(9, 0x5000_0000, 4096, &[page]);
    s.g.put(page, b"window");
    let window = free_key(&mut s.g, KEYS, 4);
    let bind = Umr {
        flags: OFFSET | CHECK_FREE,
        mask: FREE | 1 << 13 | 1 << 14 | 1 | 1 << 6 | 0xf << 18,
        tag: 1,
        qpn: s.a.number,
        start: 0x5000_0000,
        len: 6,
        access: 0x30,
        ..Umr::default()
    };
    assert_eq!(s.umr(window, &inline(bind, &piece(6, region, 0x5000_0000))), 0);
    let local = s.g.pages(1);
    // It is bound to the responding queue pair.
    assert_eq!(s.access(READ, window | 1, 0x5000_0000, 6, local), 0);
    assert_eq!(s.g.get(local, 6), b"window");
    let now = s.g.command(&about(0x201, window >> 8), 0x110).output;
    assert_eq!(now[0x14..0x18], (s.a.number << 8 | 1).to_be_bytes());
    // Programs may not use the other kind.
    let pages = free_key(&mut s.g, PAGES, 4);
    assert_eq!(s.umr(pages, &inline(register(1, 0, 4096), &list(&[page]))), 6, "a memory window bind error");
}

#[test]
fn memory_that_the_guest_takes_away_while_a_key_names_it() {
    let mut s = setting(true);
    let index = free_key(&mut s.g, PAGES, 4);
    // More memory, behind the existing memory.
    let file = s.g.memory.try_clone().unwrap();
    let there = MEMORY + 0x10_0000;
    let map = |g: &mut Guest| g.map(0x20_0000, there, 0x1000, Some(std::os::fd::AsFd::as_fd(&file)));
    assert_eq!(map(&mut s.g), 0);
    assert_eq!(s.umr(index | 1, &inline(register(1, 0, 4096), &list(&[there]))), 0);
    let local = s.g.pages(1);
    assert_eq!(s.access(WRITE, index | 1, 0, 8, local), 0);
    assert_eq!(s.g.unmap(there, 0x1000), 0);
    assert_eq!(s.access(WRITE, index | 1, 0, 8, local), 0x13, "a remote access error");
}

#[test]
fn the_drivers_own_queue_pair_makes_regions_of_all_domains() {
    let mut s = setting(true);
    let number = s.cq.number;
    // Cached keys of the driver: free, in a separate domain.
    let [store, user] = [(); 2].map(|()| s.g.command(&input(0x800, 16), 16).number());
    let index = s.g.command(&free_key_input(PAGES, store, 0x77, 8), 16).number() << 8;
    let (ring, record) = (s.g.scattered(2), s.g.pages(1));
    let mut bytes = s.g.qp_input(SERVICE_UMR, number, &ring, record);
    put32(&mut bytes, 0x18 + 0xac, 3 << 24);
    bytes[0x18 + 9] = 0;
    // It is in no domain.
    let number = s.g.command(&bytes, 16).number();
    s.g.move_on(number, None, &[0x502, 0x503, 0x504]);
    assert_eq!(s.g.state(number), 3);
    let whole = {
        let mut bytes = input(0x200, 0x110);
        bytes[0x12] = 0x0c;
        put32(&mut bytes, 0x1c, 0x8000_0000 | store);
        s.g.command(&bytes, 16).number() << 8
    };
    let mut own = QueuePair { number, pages: ring, record, posted: 0, received: 0 };
    let mut send = |s: &mut Setting, key: u32, body: &[u8]| {
        // Without receives, the sends begin at the front of the ring.
        let mut wqe = (u32::from(own.posted) << 8 | u32::from(UMR)).to_be_bytes().to_vec();
        wqe.extend_from_slice(&(own.number << 8 | (1 + body.len() as u32 / 16)).to_be_bytes());
        wqe.extend_from_slice(&[0, 0, 0, 8]);
        wqe.extend_from_slice(&key.to_be_bytes());
        wqe.extend_from_slice(body);
        for (n, block) in wqe.chunks(64).enumerate() {
            let at = (u64::from(own.posted) + n as u64) % 64 * 64;
            s.g.put(own.pages[at as usize / 4096] + at % 4096, block);
        }
        own.posted += wqe.len().div_ceil(64) as u16;
        s.g.put(own.record + 4, &u32::from(own.posted).to_be_bytes());
        s.g.ring_send(wqe[..8].try_into().unwrap());
        s.outcome()
    };
    let (pages, lists, local) = (s.g.scattered(16), s.g.pages(1), s.g.pages(1));
    for (n, page) in pages.iter().enumerate() {
        s.g.put(*page, &[n as u8 + 1; 4096]);
    }
    // In two parts, of which the second sets all other fields: a region of a program.
    s.g.put(lists, &list(&pages[..8]));
    s.g.put(lists + 2048, &list(&pages[8..]));
    let first = Umr { flags: CHECK_FREE, octowords: 4, ..Umr::default() };
    assert_eq!(send(&mut s, index | 0x77, &first.body(&piece(64, whole, lists))), (0, UMR, 0));
    let all = Umr {
        flags: CHECK_FREE | OFFSET,
        octowords: 4,
        offset: 4,
        mask: 1 | 1 << 1 | 1 << 6 | 1 << 7 | 1 << 13 | 0x1f << 17 | FREE,
        tag: 0x77,
        qpn: 0xff_ffff,
        start: 0x1000,
        len: 16 * 4096,
        access: 0x3c,
        ..Umr::default()
    };
    let key = index | 0x77;
    assert_eq!(send(&mut s, key, &all.body(&piece(64, whole, lists + 2048))), (0, UMR, 0));
    // A second one, with room for two pages: the list is padded to eight.
    let small = s.g.command(&free_key_input(PAGES, store, 0x78, 1), 16).number() << 8 | 0x78;
    let one = Umr { octowords: 4, offset: 0, flags: CHECK_FREE, tag: 0x78, len: 4096, start: 0x2000, ..all };
    assert_eq!(send(&mut s, small, &one.body(&piece(64, whole, lists))), (0, UMR, 0));
    assert_eq!(s.access(READ, small, 0x2000, 8, local), 0);
    // Domain 0, which contains the two queue pairs.
    assert_eq!(s.access(READ, key, 0x1000 + 10 * 4096, 8, local), 0);
    assert_eq!(s.g.get(local, 8), [11; 8]);
    // To another domain, with other rights.
    let again = Umr {
        flags: 0x80 | CHECK_VALID,
        mask: 1 << 7 | 0x1f << 17,
        domain: user,
        access: 0x14,
        qpn: 0xff_ffff,
        ..Umr::default()
    };
    assert_eq!(send(&mut s, key, &again.body(&[])).2, 0);
    let now = s.g.command(&about(0x201, index >> 8), 0x110).output;
    assert_eq!((now[0x12], &now[0x1d..0x20]), (0x80 | 0x14 | PAGES, &user.to_be_bytes()[1..]));
    // Back to the cache; then it cannot be changed like a valid one.
    let back = Umr { flags: 0x80, mask: FREE | 1 << 7, free: true, domain: store, ..Umr::default() };
    assert_eq!(send(&mut s, key, &back.body(&[])).2, 0);
    assert_eq!(s.access(READ, key, 0x1000, 8, local), 0x13);
    assert_eq!(send(&mut s, key, &again.body(&[])).2, 6);
}

#[test]
fn invalid_free_keys_are_refused() {
    let mut g = Guest::new();
    g.probe();
    // Unusable, of another kind, too long.
    let mut vain = free_key_input(PAGES, 0, 0, 4);
    vain[0x12] = 0x05;
    for bytes in
        [vain, free_key_input(0, 0, 0, 4), free_key_input(3, 0, 0, 4), free_key_input(KEYS, 0, 0, 0x2_0001)]
    {
        assert_eq!(g.try_command(&bytes, 16).status, 3, "a bad parameter");
    }
    // All lists together are limited; a destroyed key frees its room.
    let long = free_key_input(PAGES, 0, 0, 65_536);
    let first = g.command(&long, 16).number();
    let made = (0..1000).take_while(|_| g.try_command(&long, 16).status == 0).count();
    assert_eq!((made, g.try_command(&long, 16).status), (255, 0xf), "no resources");
    g.command(&about(0x202, first), 16);
    g.command(&long, 16);
}

#[test]
fn the_capabilities_announce_fast_registration() {
    let mut g = Guest::new();
    g.set_queue();
    let mut query = input(0x100, 16);
    query[7] = 1;
    let caps = g.command(&query, 0x1010).output;
    let cap = &caps[0x10..];
    // Memory windows; lists of 4096; the page size may be changed.
    assert_eq!((cap[0x46] & 0x40, cap[0x23] & 0x3f, cap[0x40] & 1), (0x40, 12, 0));
}

/// A connection of the kernel with itself, with or without permission to use the reserved key.
fn with_itself(g: &mut Guest, cq: u32, reserved: bool) -> QueuePair {
    let (pages, record) = (g.scattered(2), g.pages(1));
    let mut bytes = g.qp_input(SERVICE_RC, cq, &pages, record);
    bytes[0x18 + 0x0b] |= if reserved { 0x10 } else { 0 };
    let number = g.command(&bytes, 16).number();
    let pair = QueuePair { number, pages, record, posted: 0, received: 0 };
    g.open(&pair, Some((7, number)));
    pair
}

#[test]
fn the_reserved_key_is_for_work_requests_of_queue_pairs_that_may_use_it() {
    const SEND: u8 = 0x0a;
    const LOCAL_PROTECTION: u8 = 4;
    const FLUSHED: u8 = 5;
    let mut g = Guest::new();
    let eq = g.probe();
    let mut cq = g.create_cq(eq.number, 7);
    let number = cq.number;
    let contexts = g.command(&input(0x203, 16), 16).output;
    let key = u32::from_be_bytes(contexts[12..16].try_into().unwrap());
    let (from, to, whole) = (g.pages(1), g.pages(1), g.whole_key(3));
    // Syndromes of the completed requests, 0 for none.
    let mut outcomes = |g: &mut Guest| {
        g.settle();
        let all = std::iter::from_fn(|| g.poll(&mut cq));
        all.map(|cqe| outcome(&cqe).1).collect::<Vec<_>>()
    };
    for receive_by in [whole, key] {
        let mut pair = with_itself(&mut g, number, true);
        g.put(from, b"by its address");
        g.put(to, &[0; 14]);
        g.receive(&mut pair, piece(4096, receive_by, to));
        g.post_send(&mut pair, SEND, &piece(14, key, from));
        assert_eq!(outcomes(&mut g), [0, 0]);
        assert_eq!(g.get(to, 14), b"by its address");
    }
    // Other queue pairs may not use it, and it fails where there is no memory.
    for (reserved, by, address) in
        [(false, key, from), (true, key, MEMORY), (true, key, u64::MAX - 3), (true, key + 1, from)]
    {
        let mut pair = with_itself(&mut g, number, reserved);
        g.receive(&mut pair, piece(4096, whole, to));
        g.post_send(&mut pair, SEND, &piece(14, by, address));
        assert!(outcomes(&mut g).contains(&LOCAL_PROTECTION), "{reserved} {by:#x} {address:#x}");
    }
    // A peer cannot access memory with it.
    let mut pair = with_itself(&mut g, number, true);
    let mut body = from.to_be_bytes().to_vec();
    body.extend_from_slice(&key.to_be_bytes());
    body.extend_from_slice(&[0; 4]);
    body.extend_from_slice(&piece(14, whole, to));
    g.put(to, b"never there...");
    g.post_send(&mut pair, WRITE, &body);
    // It is both ends: the error of the responder flushes the requester.
    assert_eq!(outcomes(&mut g), [FLUSHED]);
    assert_eq!(g.get(from, 14), b"by its address");
}
