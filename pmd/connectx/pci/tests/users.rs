//! Users with commands of their own: ownership of objects, and destruction with their user.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod guest;

use guest::*;
use softhca::hca::TableSizes;

const BAD_OPERATION: u8 = 0x02;
const BAD_PARAMETER: u8 = 0x03;
const BAD_RESOURCE: u8 = 0x05;
const NO_RESOURCES: u8 = 0x0f;

const CREATE_UCTX: u16 = 0xa04;
const DESTROY_UCTX: u16 = 0xa06;
const SHARED: u16 = 0xffff;

fn with_users(users: u64) -> Guest {
    let mut tables = TableSizes::default();
    assert!(tables.set_users(users));
    Guest::with_tables(tables)
}

/// The same command, from a user.
fn from(uid: u16, mut bytes: Vec<u8>) -> Vec<u8> {
    put16(&mut bytes, 2, uid);
    bytes
}

fn user(g: &mut Guest) -> u16 {
    let mut bytes = input(CREATE_UCTX, 0x40);
    // The length that the kernel's driver uses.
    bytes.resize(0x40, 0);
    g.command(&bytes, 16).number() as u16
}

fn announced(g: &mut Guest) -> u8 {
    g.command(&input(0x100, 16), 0x1010).output[0x10 + 0x8c] & 0x1f
}

/// A free key for a list of `octowords` keys in a domain.
fn free_key(domain: u32, octowords: u32) -> Vec<u8> {
    let mut bytes = input(0x200, 0x110);
    bytes[0x10] = 0x40;
    bytes[0x12] = 0x84 | 2;
    put32(&mut bytes, 0x14, 0xffff_ff00);
    put32(&mut bytes, 0x1c, domain);
    put32(&mut bytes, 0x10 + 52, octowords);
    bytes
}

/// Objects of a user, one of each kind, and the commands that query, use and destroy them.
#[derive(Debug)]
struct Own {
    domain: u32,
    cq: Completions,
    qp: u32,
    srq: u32,
    key: u32,
}

impl Own {
    fn new(g: &mut Guest, uid: u16, eq: u32) -> Self {
        let domain = g.command(&from(uid, input(0x800, 16)), 16).number();
        let (pages, record) = (g.scattered(2), g.pages(1));
        let bytes = g.cq_input(eq, 7, &pages, record);
        let number = g.command(&from(uid, bytes), 16).number();
        let cq = Completions { number, pages, log: 7, record, consumer: 0 };
        let (pages, record) = (g.scattered(2), g.pages(1));
        let mut bytes = g.qp_input(SERVICE_RC, cq.number, &pages, record);
        put32(&mut bytes, 0x18 + 4, domain);
        let qp = g.command(&from(uid, bytes), 16).number();
        let srq = {
            let mut bytes = input(0x700, 0x110);
            let (ring, record) = (g.pages(1), g.pages(1));
            bytes[0x10] = 6;
            bytes[0x14] = 1;
            put32(&mut bytes, 0x28, domain);
            put64(&mut bytes, 0x38, record);
            bytes.extend_from_slice(&ring.to_be_bytes());
            g.command(&from(uid, bytes), 16).number()
        };
        let key = g.command(&from(uid, free_key(domain, 8)), 16).number();
        Self { domain, cq, qp, srq, key }
    }

    /// Queries of all supported kinds, and the room for their output.
    fn queries(&self) -> [(Vec<u8>, usize); 4] {
        [
            (about(0x201, self.key), 0x110),
            (about(0x402, self.cq.number), 0x110),
            (about(0x50b, self.qp), 0x110),
            (about(0x702, self.srq), 0x110),
        ]
    }

    /// Every command that destroys or changes one of them.
    fn attacks(&self, g: &Guest) -> Vec<Vec<u8>> {
        let mut all: Vec<_> = [
            (0x202, self.key),
            (0x401, self.cq.number),
            (0x501, self.qp),
            (0x701, self.srq),
            (0x801, self.domain),
            (0x507, self.qp),
            (0x50a, self.qp),
            (0x703, self.srq),
            (0x806, self.qp),
            (0x807, self.qp),
        ]
        .map(|(opcode, number)| {
            let mut bytes = about(opcode, number);
            bytes.resize(0x110, 0);
            bytes
        })
        .into();
        all.push(g.transition(0x502, self.qp, 1, None));
        all.push({
            let mut bytes = about(0x403, self.cq.number);
            bytes.resize(0x110, 0);
            bytes
        });
        all
    }
}

#[test]
fn a_device_has_the_announced_number_of_users_and_none_by_default() {
    let mut g = Guest::new();
    g.probe();
    assert_eq!(announced(&mut g), 0);
    assert_eq!(g.try_command(&input(CREATE_UCTX, 0x40), 16).status, NO_RESOURCES);
    assert_eq!(g.try_command(&from(1, input(0x800, 16)), 16).status, BAD_RESOURCE);

    let mut g = with_users(4);
    g.probe();
    assert_eq!(announced(&mut g), 2);
    let all = [(); 3].map(|()| user(&mut g));
    assert_eq!(all, [1, 2, 3]);
    assert_eq!(g.try_command(&input(CREATE_UCTX, 0x40), 16).status, NO_RESOURCES);
    g.command(&about(DESTROY_UCTX, 2), 16);
    assert_eq!(g.try_command(&about(DESTROY_UCTX, 2), 16).status, BAD_RESOURCE);
    // Invalid users: the driver's own two numbers, and one behind the table.
    for invalid in [0, 4, 0xffff] {
        assert_eq!(g.try_command(&about(DESTROY_UCTX, invalid), 16).status, BAD_RESOURCE, "{invalid}");
    }
    // A destroyed user cannot send commands.
    assert_eq!(g.try_command(&from(2, input(0x800, 16)), 16).status, BAD_RESOURCE);
    assert_eq!(user(&mut g), 2);
    g.command(&from(2, input(0x800, 16)), 16);
}

#[test]
fn objects_of_a_user_belong_to_that_user() {
    let mut g = with_users(8);
    let eq = g.probe();
    let (one, two) = (user(&mut g), user(&mut g));
    let own = Own::new(&mut g, one, eq.number);
    let before = g.hca.report().objects["memory_keys"];
    for (bytes, room) in own.queries() {
        assert_eq!(g.try_command(&from(two, bytes.clone()), room).status, BAD_RESOURCE, "{bytes:x?}");
        g.command(&from(one, bytes.clone()), room);
        g.command(&bytes, room);
    }
    for bytes in own.attacks(&g) {
        assert_eq!(g.try_command(&from(two, bytes.clone()), 16).status, BAD_RESOURCE, "{bytes:x?}");
    }
    // The driver's objects do not belong to the user either, and users cannot set up the device.
    let theirs = Own::new(&mut g, 0, eq.number);
    for bytes in theirs.attacks(&g) {
        assert_eq!(g.try_command(&from(two, bytes.clone()), 16).status, BAD_RESOURCE, "{bytes:x?}");
    }
    for opcode in
        [0x103, 0x105, 0x109, 0x10b, 0x203, 0x301, 0x302, 0x50d, 0x763, 0x805, CREATE_UCTX, DESTROY_UCTX]
    {
        let mut bytes = about(opcode, one.into());
        bytes.resize(0x120, 0);
        assert_eq!(g.try_command(&from(two, bytes), 0x120).status, BAD_OPERATION, "{opcode:#x}");
    }
    assert_eq!(g.hca.report().objects["memory_keys"], before + 1);
    // The kernel's driver creates sets of counters for all users.
    let set = g.command(&from(SHARED, input(0x771, 16)), 16).number();
    assert_eq!(g.try_command(&from(two, about(0x772, set)), 16).status, BAD_RESOURCE);
    g.command(&from(SHARED, about(0x772, set)), 16);
    // A user may destroy its own objects once. A domain must be empty first; otherwise keys of the next owner
    // would be valid here.
    assert_eq!(g.try_command(&from(one, about(0x801, own.domain)), 16).status, 6);
    g.command(&from(one, about(0x202, own.key)), 16);
    assert_eq!(g.try_command(&from(one, about(0x202, own.key)), 16).status, BAD_RESOURCE);
}

#[test]
fn a_user_names_no_memory_and_no_objects_but_its_own() {
    let mut g = with_users(8);
    let eq = g.probe();
    let (one, two) = (user(&mut g), user(&mut g));
    let own = Own::new(&mut g, one, eq.number);
    let other = Own::new(&mut g, two, eq.number);
    let drivers = g.command(&input(0x800, 16), 16).number();
    for domain in [other.domain, drivers, 0, 0xff_ffff] {
        assert_eq!(g.try_command(&from(one, free_key(domain, 8)), 16).status, BAD_RESOURCE, "{domain:#x}");
    }
    let page = g.pages(1);
    let pages = g.key_input(0, page, 4096, &[page]);
    let whole = {
        let mut bytes = input(0x200, 0x110);
        bytes[0x12] = 0x0c;
        bytes[0x1c] = 0x80;
        bytes
    };
    let free_for_pages = {
        let mut bytes = free_key(own.domain, 8);
        bytes[0x12] = 0x84 | 1;
        bytes
    };
    for mut bytes in [pages, whole, free_for_pages] {
        let flags = bytes[0x1c];
        put32(&mut bytes, 0x1c, own.domain);
        bytes[0x1c] = flags;
        assert_eq!(g.try_command(&from(one, bytes.clone()), 16).status, BAD_PARAMETER, "{bytes:x?}");
        g.command(&bytes, 16);
    }
    // Queues in user-registered memory: the driver marks such commands.
    let (list, record) = (g.scattered(2), g.pages(1));
    let mut bytes = g.cq_input(eq.number, 7, &list, record);
    bytes[0x5c] = 0x80;
    assert_eq!(g.try_command(&from(one, bytes), 16).status, BAD_PARAMETER);
    let queue_pair = |g: &Guest, cq: u32, domain: u32| {
        let mut bytes = g.qp_input(SERVICE_RC, cq, &list, record);
        put32(&mut bytes, 0x18 + 4, domain);
        from(one, bytes)
    };
    let mut bytes = queue_pair(&g, own.cq.number, own.domain);
    bytes[0x10c] = 0x80;
    assert_eq!(g.try_command(&bytes, 16).status, BAD_PARAMETER);
    // Queue pairs on another user's queues, in another user's domain.
    for (cq, domain) in [(other.cq.number, own.domain), (own.cq.number, other.domain)] {
        let bytes = queue_pair(&g, cq, domain);
        assert_eq!(g.try_command(&bytes, 16).status, BAD_RESOURCE, "{cq} {domain}");
    }
    let mut bytes = queue_pair(&g, own.cq.number, own.domain);
    put32(&mut bytes, 0x18 + 0xac, 1 << 24 | other.srq);
    assert_eq!(g.try_command(&bytes, 16).status, BAD_RESOURCE);
    // On the driver's: mlx5_ib puts queue pairs without a queue of their own on some.
    let drivers = g.create_cq(eq.number, 7);
    let bytes = queue_pair(&g, drivers.number, own.domain);
    g.command(&bytes, 16);
}

#[test]
fn objects_of_a_user_and_no_others_end_with_the_user() {
    let mut g = with_users(8);
    let eq = g.probe();
    let (one, two) = (user(&mut g), user(&mut g));
    let other = Own::new(&mut g, two, eq.number);
    let drivers = Own::new(&mut g, 0, eq.number);
    for _ in 0..100 {
        let own = Own::new(&mut g, one, eq.number);
        for opcode in [0x802, 0x80e, 0x771] {
            g.command(&from(one, input(opcode, 16)), 16);
        }
        g.command(&about(DESTROY_UCTX, one.into()), 16);
        for (bytes, room) in own.queries() {
            assert_eq!(g.try_command(&bytes, room).status, BAD_RESOURCE, "{bytes:x?}");
        }
        assert_eq!(g.try_command(&about(0x801, own.domain), 16).status, BAD_RESOURCE);
        assert_eq!(user(&mut g), one);
    }
    for own in [&other, &drivers] {
        for (bytes, room) in own.queries() {
            g.command(&bytes, room);
        }
    }
    // A queue used by another user's queue pair outlives its owner, and becomes the driver's.
    let own = Own::new(&mut g, one, eq.number);
    let (list, record) = (g.scattered(2), g.pages(1));
    let bytes = g.qp_input(SERVICE_RC, own.cq.number, &list, record);
    let pair = g.command(&bytes, 16).number();
    g.command(&about(DESTROY_UCTX, one.into()), 16);
    g.command(&about(0x402, own.cq.number), 0x110);
    assert_eq!(user(&mut g), one);
    assert_eq!(g.try_command(&from(one, about(0x401, own.cq.number)), 16).status, BAD_RESOURCE);
    g.command(&about(0x501, pair), 16);
    g.command(&about(0x401, own.cq.number), 16);
    // A restarted driver finds none.
    g.command(&input(0x104, 16), 16);
    assert_eq!(g.try_command(&from(two, input(0x800, 16)), 16).status, BAD_RESOURCE);
    assert_eq!(user(&mut g), 1);
}

/// The results of all queries.
fn query_all(g: &mut Guest, own: &Own) -> Vec<Vec<u8>> {
    own.queries().into_iter().map(|(bytes, room)| g.command(&bytes, room).output).collect()
}

#[test]
fn domains_queues_and_targets_of_extended_connections_belong_to_their_user() {
    let mut g = with_users(8);
    let eq = g.probe();
    let (one, two) = (user(&mut g), user(&mut g));
    let [mine, theirs] = [one, two].map(|uid| g.command(&from(uid, input(0x80e, 16)), 16).number());
    let (own, other) = (Own::new(&mut g, one, eq.number), Own::new(&mut g, two, eq.number));
    let (ring, record) = (g.pages(1), g.pages(1));
    let queue = |xrcd: u32, cq: u32, domain: u32| {
        let mut bytes = input(0x705, 0x110);
        bytes[0x10] = 6;
        put32(&mut bytes, 0x14, 1 << 24 | xrcd);
        put32(&mut bytes, 0x18, cq);
        put32(&mut bytes, 0x28, domain);
        put64(&mut bytes, 0x38, record);
        bytes.extend_from_slice(&ring.to_be_bytes());
        bytes
    };
    let target = |xrcd: u32| {
        let mut bytes = input(0x500, 0x110);
        bytes[0x19] = 3;
        bytes[0x18 + 10] = 0x80;
        put32(&mut bytes, 0x18 + 0x98, xrcd);
        bytes
    };
    for (xrcd, cq, domain) in [
        (theirs, own.cq.number, own.domain),
        (mine, other.cq.number, own.domain),
        (mine, own.cq.number, other.domain),
    ] {
        let bytes = from(one, queue(xrcd, cq, domain));
        assert_eq!(g.try_command(&bytes, 16).status, BAD_RESOURCE, "{xrcd} {cq} {domain}");
    }
    assert_eq!(g.try_command(&from(one, target(theirs)), 16).status, BAD_RESOURCE);
    assert_eq!(g.try_command(&from(one, about(0x80f, theirs)), 16).status, BAD_RESOURCE);
    let srq = g.command(&from(one, queue(mine, own.cq.number, own.domain)), 16).number();
    let tgt = g.command(&from(one, target(mine)), 16).number();
    for (op, number) in [(0x706, srq), (0x707, srq), (0x708, srq), (0x501, tgt), (0x50b, tgt)] {
        let mut bytes = about(op, number);
        bytes.resize(0x110, 0);
        assert_eq!(g.try_command(&from(two, bytes), 0x110).status, BAD_RESOURCE, "{op:#x}");
    }
    // As in Linux: the domain and its queue belong to the driver, and use a completion queue of a user, which
    // outlives that user.
    let drivers = g.command(&input(0x80e, 16), 16).number();
    let shared = g.command(&queue(drivers, own.cq.number, own.domain), 16).number();
    g.command(&about(DESTROY_UCTX, one.into()), 16);
    assert_eq!(g.try_command(&about(0x80f, mine), 16).status, BAD_RESOURCE, "it was destroyed with the user");
    g.command(&about(0x402, own.cq.number), 0x110);
    g.command(&about(0x706, shared), 16);
    g.command(&about(0x401, own.cq.number), 16);
    g.command(&about(0x80f, drivers), 16);
}

#[test]
fn a_malicious_user_changes_nothing_of_others() {
    const OPCODES: &[u16] = &[
        0x100, 0x101, 0x102, 0x103, 0x104, 0x105, 0x107, 0x108, 0x109, 0x10a, 0x10b, 0x10d, 0x200, 0x201,
        0x202, 0x203, 0x301, 0x302, 0x303, 0x400, 0x401, 0x402, 0x403, 0x500, 0x501, 0x502, 0x503, 0x504,
        0x505, 0x506, 0x507, 0x508, 0x509, 0x50a, 0x50b, 0x50c, 0x50d, 0x50e, 0x700, 0x701, 0x702, 0x703,
        0x705, 0x706, 0x707, 0x708, 0x750, 0x751, 0x762, 0x763, 0x764, 0x765, 0x771, 0x772, 0x773, 0x800,
        0x801, 0x802, 0x803, 0x805, 0x806, 0x807, 0x80e, 0x80f, 0x90c, 0x90d, 0x90e, 0x90f, 0xa04, 0xa06,
    ];
    let mut g = with_users(8);
    let eq = g.probe();
    let (one, two) = (user(&mut g), user(&mut g));
    let others = [Own::new(&mut g, 0, eq.number), Own::new(&mut g, two, eq.number)];
    for own in &others {
        g.move_on(own.qp, None, &[0x502]);
    }
    let own = Own::new(&mut g, one, eq.number);
    let before: Vec<_> = others.iter().map(|other| query_all(&mut g, other)).collect();
    let numbers: Vec<u32> = [&own, &others[0], &others[1]]
        .into_iter()
        .flat_map(|own| [own.domain, own.cq.number, own.qp, own.srq, own.key, own.key << 8])
        .chain([0, 1, 2, 0xffff, 0xff_ffff, u32::MAX])
        .collect();
    let mut dice = 0x9e37_79b9_7f4a_7c15_u64;
    let mut roll = move |below: usize| {
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        (dice % below as u64) as usize
    };
    let (pages, record) = (g.scattered(2), g.pages(1));
    let mut good = 0;
    for _ in 0..20_000 {
        let opcode = OPCODES[roll(OPCODES.len())];
        let mut bytes = match opcode {
            0x200 => free_key(own.domain, 8),
            0x400 => g.cq_input(eq.number, 6, &pages, record),
            0x500 => g.qp_input(SERVICE_RC, own.cq.number, &pages, record),
            0x502..=0x504 => g.transition(opcode, own.qp, 1, Some((7, others[1].qp))),
            _ => input(opcode, 0x120),
        };
        // Words with numbers, and arbitrary bytes.
        for _ in 0..roll(4) {
            let at = 8 + 4 * roll(0x30);
            put32(&mut bytes, at, numbers[roll(numbers.len())]);
        }
        for _ in 0..roll(3) {
            let at = 4 + roll(bytes.len() - 4);
            bytes[at] = roll(256) as u8;
        }
        if roll(2) == 0 {
            put32(&mut bytes, 8, numbers[roll(numbers.len())]);
        }
        good += u32::from(g.try_command(&from(one, bytes), 0x1010).status == 0);
    }
    assert!(good > 1000, "{good} commands succeeded");
    let after: Vec<_> = others.iter().map(|other| query_all(&mut g, other)).collect();
    assert_eq!(before, after);
    // Its objects are destroyed with the user.
    g.command(&about(DESTROY_UCTX, one.into()), 16);
    let objects = g.hca.report().objects;
    for (kind, left) in [
        ("queue_pairs", 2),
        ("completion_queues", 2),
        ("shared_receive_queues", 2),
        ("memory_keys", 2),
        ("users", 1),
    ] {
        assert_eq!(objects[kind], left, "{kind}");
    }
    for other in &others {
        g.command(&about(0x501, other.qp), 16);
    }
}
