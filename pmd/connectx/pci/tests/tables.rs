//! Tables: the device holds what it announces, and a full table affects nothing else.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod guest;

use guest::*;
use softhca::hca::{Table, TableSizes};

const NO_RESOURCES: u8 = 0xf;

/// Location of a table's binary logarithm in the capabilities: byte, and bits.
fn announced(g: &mut Guest, table: Table) -> u8 {
    let capabilities = g.command(&[&0x100u16.to_be_bytes()[..], &[0; 14]].concat(), 0x1010).output;
    let (at, mask) = match table {
        Table::QueuePairs => (0x13, 0x1f),
        Table::CompletionQueues => (0x1b, 0x1f),
        Table::SharedReceiveQueues => (0x15, 0x1f),
        Table::MemoryKeys => (0x1d, 0x3f),
        Table::EventQueues => (0x1f, 0x0f),
    };
    capabilities[0x10 + at] & mask
}

/// The command that creates an object, and the one that destroys it.
fn commands(g: &mut Guest, table: Table, eq: u32, cq: u32) -> (Vec<u8>, u16) {
    let pages = [0x20_0000, 0x20_2000];
    match table {
        Table::QueuePairs => (g.qp_input(SERVICE_UD, cq, &pages, 0x20_4000), 0x501),
        Table::CompletionQueues => (g.cq_input(eq, 6, &pages, 0x20_4000), 0x401),
        Table::SharedReceiveQueues => {
            let mut bytes = input(0x700, 0x118);
            bytes[0x10] = 4;
            bytes[0x14] = 1;
            put64(&mut bytes, 0x10 + 0x28, 0x20_4000);
            put64(&mut bytes, 0x110, pages[0]);
            (bytes, 0x701)
        }
        Table::MemoryKeys => (g.key_input(3, 0, 8192, &pages), 0x202),
        Table::EventQueues => {
            let mut bytes = input(0x301, 0x118);
            put32(&mut bytes, 0x1c, 6 << 24 | 0x10);
            put64(&mut bytes, 0x110, pages[0]);
            (bytes, 0x302)
        }
    }
}

fn filled(table: Table, sizes: TableSizes) {
    let mut g = Guest::with_tables(sizes);
    let eq = g.probe().number;
    let cq = g.create_cq(eq, 6).number;
    assert_eq!(announced(&mut g, table), sizes.log(table), "{table:?}");
    let (create, destroy) = commands(&mut g, table, eq, cq);
    let mut made = vec![];
    let last = loop {
        let done = g.try_command(&create, 16);
        if done.status != 0 {
            break done.status;
        }
        made.push(done.number());
        assert!(made.len() <= 1 << 16, "{table:?} has no limit");
    };
    assert_eq!(last, NO_RESOURCES, "{table:?}");
    // Without the unused number, and the existing object.
    let fewer = match table {
        Table::QueuePairs | Table::MemoryKeys => 0,
        Table::SharedReceiveQueues => 1,
        Table::CompletionQueues | Table::EventQueues => 2,
    };
    assert_eq!(made.len() + fewer, 1 << sizes.log(table), "{table:?}");
    // One is destroyed and one created; all others still exist.
    g.command(&about(destroy, made[1]), 16);
    made[1] = g.command(&create, 16).number();
    assert_eq!(g.try_command(&create, 16).status, NO_RESOURCES);
    for number in made {
        g.command(&about(destroy, number), 16);
    }
    g.command(&create, 16);
}

#[test]
fn a_device_holds_what_it_announces() {
    for table in Table::ALL {
        let mut sizes = TableSizes::default();
        assert!(sizes.set(table, 1 << table.sizes().start()));
        filled(table, sizes);
        assert!(sizes.set(table, 2 << table.sizes().start()));
        filled(table, sizes);
    }
}

#[test]
fn the_largest_tables_can_be_filled() {
    for table in [Table::CompletionQueues, Table::SharedReceiveQueues, Table::EventQueues] {
        let mut sizes = TableSizes::default();
        assert!(sizes.set(table, 1 << table.sizes().end()));
        filled(table, sizes);
    }
}
