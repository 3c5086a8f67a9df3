use super::*;

#[test]
fn counted_buffers_cover_every_queue() {
    let config = Config::default();
    assert_eq!(config.segments_per_message(), 16);
    let one = config.budget(1);
    assert_eq!(one.receives, 1024 + 512 * 16 + 512);
    assert_eq!(one.sends, 1024 + WAITING_FRAMES + 512 + 8192 + HELD_MESSAGES);
    assert_eq!(one.parked, 256 * (1 + 16));
    let others = one.receives + one.sends + one.parked + one.messages + one.caches;
    assert_eq!(one.total(), others + one.reserve);
    assert_eq!(one.reserve, one.total() / 4);
    let two = config.budget(2);
    assert_eq!((two.receives, two.sends), (2 * one.receives, 2 * one.sends));
}

/// Seventeen stalled hosts once emptied the pool: their connections held the buffers for refilling the shared
/// receive queue.
#[test]
fn stalled_connections_leave_the_receive_queues_what_they_need() {
    let config = Config::default();
    let budget = config.budget(1);
    // The queues limit them to this.
    let stalled = (17 * config.connection_send_depth(1)).min(8192);
    let full = budget.receives + budget.parked + budget.messages + budget.caches;
    assert!(full + 1024 + 512 + stalled + budget.reserve <= config.buffers_needed(1));
    // The operator chooses the share.
    let none = parse("[buffers]\nreceive-reserve = 0\n").unwrap();
    assert_eq!(none.budget(1).reserve, 0);
}

#[test]
fn every_segment_and_port_has_its_queues() {
    let soft = "[infiniband.soft]\nports = [{ link = \"shm:/a\" }]\n\
                [[infiniband.soft-device]]\nname = \"soft1\"\nports = [{ link = \"shm:/b\" }]\n";
    let segment = |vlan, ethernet, device| {
        format!(
            "[[segment]]\nvlan = {vlan}\nethernet = \"{ethernet}\"\ndevice = \"{device}\"\npkey = {}\n",
            0x8000 + vlan
        )
    };
    let queues = |segments: &[String]| {
        let budget = parse(&format!("{soft}{}", segments.concat())).unwrap().budget(1);
        (budget.receives, budget.sends)
    };
    let one = queues(&[segment(1, "a", "soft0")]);
    // Another segment adds a datagram queue pair, another Ethernet port its descriptors, and another
    // InfiniBand port its shared receive queues and connections.
    assert_eq!(queues(&[segment(1, "a", "soft0"), segment(2, "a", "soft0")]), (one.0, one.1 + 512));
    assert_eq!(
        queues(&[segment(1, "a", "soft0"), segment(3, "b", "soft1")]),
        (one.0 + 512 + 1024 + 512 * 16, one.1 + 512 + 1024 + WAITING_FRAMES + 32 * 256 + HELD_MESSAGES)
    );
}

#[test]
fn workers_share_the_connections() {
    let config = parse("[infiniband]\nmax-connections = 8000\n").unwrap();
    assert_eq!(config.connection_share(1), ConnectionShare { active: 4000, passive: 4000 });
    assert_eq!(config.connection_share(3), ConnectionShare { active: 1334, passive: 1334 });
    assert_eq!(config.connection_share(3).both(), 2668);
    let odd = parse("[infiniband]\nmax-connections = 3\n").unwrap();
    assert_eq!(odd.connection_share(1), ConnectionShare { active: 1, passive: 2 });
}

#[test]
fn what_cannot_be_held_is_refused() {
    let check = |text: &str, workers| parse(text).unwrap().check(workers).map_err(|e| e.to_string());
    assert_eq!(check("", 1), Ok(()));
    // The requested number, but with shorter queues.
    for (connections, workers, depth) in
        [(2, 1, 1024), (4096, 1, 512), (8000, 1, 256), (65_535, 1, 32), (65_535, 8, 256)]
    {
        let text = format!("[infiniband]\nmax-connections = {connections}\n");
        assert_eq!(check(&text, workers), Ok(()));
        assert_eq!(parse(&text).unwrap().connection_send_depth(workers), depth);
    }
    assert_eq!(
        check("[infiniband]\nconnection-send-depth = 1024\n", 1).unwrap_err(),
        "infiniband.connection-send-depth: 2048 connections of a worker with 1024 send requests each are more than the \
         1048576 that all rings may have together; write at most 512, reduce max-connections, or use more workers"
    );
    assert_eq!(
        check("[infiniband]\nmax-connections = 65535\nconnection-send-depth = 100\n", 1).unwrap_err(),
        "infiniband.connection-send-depth: 32767 connections of a worker with 100 send requests each are more than the \
         1048576 that all rings may have together; write at most 32, reduce max-connections, or use more workers"
    );
    assert_eq!(
        check("[infiniband]\nmax-connections = 4\n", 3).unwrap_err(),
        "infiniband.max-connections: 4 are too few for 3 workers; write at least 6: one for each worker and direction"
    );
    let large = parse("[infiniband]\nsrq-depth = 32768\n").unwrap();
    assert_eq!(large.check(16).map_err(|e| e.to_string()), Ok(()));
    assert_eq!(
        large.check(30).unwrap_err().to_string(),
        format!(
            "infiniband.srq-depth: the queues of 30 worker(s) need {} buffers, but the limit is 16777215; reduce it, \
             receive-mtu and the other queues' depths; or use fewer workers",
            large.buffers_needed(30)
        )
    );
    let needed = Config::default().buffers_needed(1);
    let count = format!("[buffers]\ncount = {needed}\n");
    assert_eq!(check(&count, 1), Ok(()));
    assert_eq!(
        check(&count, 2).unwrap_err(),
        format!(
            "buffers.count: {needed} are too few for 2 worker(s), whose queues need {}; write 0 for the required number, or \
             reduce srq-depth",
            Config::default().buffers_needed(2)
        )
    );
    assert_eq!(
        complaint(&format!("[buffers]\ncount = {}\n", needed - 1)),
        format!(
            "gateway.toml:2:9: {} buffers are too few for these queues, which need {needed} for one worker; write 0 \
             for the required number, or reduce srq-depth",
            needed - 1
        )
    );
}
