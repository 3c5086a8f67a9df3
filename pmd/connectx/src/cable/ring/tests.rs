use super::*;

const SIZE: u32 = 32 << 10;

impl Mapping {
    /// Writes like a hostile process at the other end.
    fn scribble(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.len);
        // SAFETY: the range was just checked, and the tests run in one thread.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.as_ptr().add(offset), bytes.len())
        };
    }
}

fn ring() -> (Arc<Mapping>, Producer, Consumer) {
    let memory = Arc::new(Mapping::anonymous(RING_HEADER + SIZE as usize).unwrap());
    let producer = Producer::new(memory.clone(), 0, SIZE).unwrap();
    let consumer = Consumer::new(memory.clone(), 0, SIZE).unwrap();
    (memory, producer, consumer)
}

#[test]
fn rings_that_do_not_fit_are_refused() {
    let memory = Arc::new(Mapping::anonymous(RING_HEADER + SIZE as usize).unwrap());
    for (base, size) in
        [(0, SIZE + 1), (0, 2 * SIZE), (128, SIZE), (4, SIZE), (usize::MAX, SIZE), (0, 4096), (0, 0)]
    {
        assert!(Producer::new(memory.clone(), base, size).is_none(), "{base} {size}");
    }
}

#[test]
fn indices_survive_their_wrap() {
    let (memory, mut producer, mut consumer) = ring();
    let near = u32::MAX - 7 - SIZE;
    for offset in [0, TAIL_OFFSET] {
        memory.scribble(offset, &near.to_ne_bytes());
    }
    (producer.head, producer.tail, consumer.head, consumer.tail) = (near, near, near, near);
    let mut inn = [0; MAX_PACKET];
    for i in 0..200u32 {
        let packet = vec![i as u8; 1 + (i as usize * 997) % MAX_PACKET];
        assert_eq!(producer.push(&packet, Crcs::Present), Ok(true));
        assert_eq!(producer.left_behind(), 1);
        assert_eq!(consumer.pop(&mut inn), Ok(Some((packet.len(), Crcs::Present))));
        assert_eq!(&inn[..packet.len()], packet);
        consumer.release();
    }
    assert!(producer.head < near, "the index has wrapped");
}

#[test]
fn impossible_indices_and_lengths_are_found() {
    let mut inn = [0; MAX_PACKET];
    for head in [SIZE + 8, 4, u32::MAX, 1 << 31] {
        let (memory, _, mut consumer) = ring();
        memory.scribble(0, &head.to_ne_bytes());
        assert_eq!(consumer.pop(&mut inn), Err(Broken), "head {head}");
    }
    for len in [0, 5, MAX_PACKET as u32 + 1, WRAP, 1 << 31] {
        let (memory, _, mut consumer) = ring();
        memory.scribble(0, &8u32.to_ne_bytes());
        memory.scribble(RING_HEADER, &len.to_ne_bytes());
        assert_eq!(consumer.pop(&mut inn), Err(Broken), "length {len}");
    }
    for len in [BARE, BARE | 5, BARE | (MAX_PACKET as u32 + 1), WRAP, WRAP - 1] {
        let (memory, _, mut consumer) = ring();
        consumer.take_bare();
        memory.scribble(0, &8u32.to_ne_bytes());
        memory.scribble(RING_HEADER, &len.to_ne_bytes());
        assert_eq!(consumer.pop(&mut inn), Err(Broken), "length {len:#x}, packets without CRCs accepted");
    }
    let (memory, mut producer, _) = ring();
    while producer.push(&[0; MAX_PACKET], Crcs::Present) == Ok(true) {}
    memory.scribble(TAIL_OFFSET, &(1u32 << 20).to_ne_bytes());
    assert_eq!(producer.push(&[0; MAX_PACKET], Crcs::Present), Err(Broken));
}

#[test]
fn a_packet_without_crcs_violates_the_protocol_unless_agreed() {
    for agreed in [false, true] {
        let (_memory, mut producer, mut consumer) = ring();
        if agreed {
            consumer.take_bare();
        }
        let mut inn = [0; MAX_PACKET];
        assert_eq!(producer.push(&[1; 30], Crcs::Present), Ok(true));
        assert_eq!(consumer.pop(&mut inn), Ok(Some((30, Crcs::Present))));
        assert_eq!(producer.push(&[2; 40], Crcs::Absent), Ok(true));
        assert_eq!(producer.left_behind(), 2);
        let expected = if agreed { Ok(Some((40, Crcs::Absent))) } else { Err(Broken) };
        assert_eq!(consumer.pop(&mut inn), expected);
    }
}

#[test]
fn packets_in_place_equal_those_that_are_copied() {
    // SAFETY: the memory belongs to this test and has one producer and one consumer.
    let trust = unsafe { Trust::both_ends_are_ours() };
    let (_memory, mut producer, mut consumer) = ring();
    consumer.take_bare();
    let mut inn = [0; MAX_PACKET];
    for i in 0..500u32 {
        let packet = vec![i as u8; 1 + (i as usize * 997) % MAX_PACKET];
        let crcs = if i % 3 == 0 { Crcs::Absent } else { Crcs::Present };
        let pushed = match i % 2 {
            0 => producer.push(&packet, crcs),
            _ => match producer.place(trust, packet.len()) {
                Ok(Some(out)) => {
                    out.copy_from_slice(&packet);
                    producer.commit(packet.len(), crcs);
                    Ok(true)
                }
                other => other.map(|place| place.is_some()),
            },
        };
        assert_eq!(pushed, Ok(true));
        let same = |bytes: &[u8], how: Crcs| bytes == packet && how == crcs;
        // A refused packet is passed again.
        assert_eq!(consumer.drain_in_place(trust, 9, |b, c| !same(b, c)), (0, Ok(())));
        let taken = match i % 4 {
            0 | 1 => consumer.drain(9, &mut inn, same),
            _ => consumer.drain_in_place(trust, 9, same),
        };
        assert_eq!(taken, (1, Ok(())), "packet {i}");
    }
}

#[test]
fn no_scribbling_makes_a_reader_leave_the_ring() {
    let mut dice = 0x1234_5678_9abc_def1u64;
    let mut roll = || {
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        dice
    };
    let (mut ends, mut packets) = (0, 0);
    for round in 0..400 {
        let (memory, _, mut consumer) = ring();
        if round % 2 == 0 {
            consumer.take_bare();
        }
        for at in (0..SIZE as usize).step_by(8) {
            // Mostly plausible lengths, sometimes a marker or an invalid value.
            let word = match roll() % 16 {
                0 => WRAP,
                1 => roll() as u32,
                2 if round % 2 == 0 => BARE | (roll() % 600) as u32,
                _ => (roll() % 600) as u32,
            };
            memory.scribble(RING_HEADER + at, &word.to_ne_bytes());
        }
        for _ in 0..4 {
            memory.scribble(0, &(consumer.tail.wrapping_add(roll() as u32 % SIZE) & !7).to_ne_bytes());
            let (n, verdict) = consumer.drain(usize::MAX, &mut [0; MAX_PACKET], |p, _| p.len() <= MAX_PACKET);
            packets += n;
            ends += usize::from(verdict == Err(Broken));
        }
    }
    assert!(ends > 100 && packets > 1000, "{ends} {packets}");
}

#[test]
fn only_packets_of_the_producer_are_counted() {
    let (memory, producer, _) = ring();
    // The other end writes to a field that only this end may write.
    memory.scribble(RING_HEADER, &8u32.to_ne_bytes());
    memory.scribble(0, &16u32.to_ne_bytes());
    assert_eq!(producer.left_behind(), 0);
}
