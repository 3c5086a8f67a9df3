//! Which packets have CRCs: every kind of cable, with every setting of either end.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use ib_wire::packet::{Bth, Extended, Headers, Lrh, Opcode, Packet};
use ib_wire::{Lid, PKey, Psn, Qpn};

use super::super::*;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Make {
    Pair,
    SharedMemory,
    Udp,
}

/// Setting or disturbance of an end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wish {
    Nothing,
    KeepCrcs,
    /// Faults that never occur while a test runs.
    Faults,
    Tap,
}

const WISHES: [Wish; 4] = [Wish::Nothing, Wish::KeepCrcs, Wish::Faults, Wish::Tap];

/// A cable whose ends are up, with its temporary directory.
struct Cable {
    ends: [CableEnd; 2],
    folder: Option<PathBuf>,
}

impl Drop for Cable {
    fn drop(&mut self) {
        if let Some(folder) = &self.folder {
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

impl Cable {
    fn new(make: Make, options: [&str; 2]) -> Self {
        let url = |text: &str, end: usize| format!("{text}?{}", options[end]).parse::<CableUrl>().unwrap();
        let mut folder = None;
        let ends = match make {
            Make::Pair => {
                let (mut a, mut b) = CableEnd::pair().unwrap();
                for (end, options) in [&mut a, &mut b].into_iter().zip(options) {
                    let url: CableUrl = format!("shm:/nowhere?{options}").parse().unwrap();
                    if url.keeps_crcs {
                        end.keep_crcs();
                    }
                    end.inject(url.faults);
                }
                [a, b]
            }
            Make::SharedMemory => {
                static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
                let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                let path = std::env::temp_dir().join(format!("ib-crcs-{}-{number}", std::process::id()));
                std::fs::create_dir_all(&path).unwrap();
                let text = format!("shm:{}/l.sock", path.display());
                folder = Some(path);
                [CableEnd::listen(&url(&text, 0)).unwrap(), CableEnd::connect(&url(&text, 1)).unwrap()]
            }
            Make::Udp => {
                let (a, b) = super::ports();
                let one = CableEnd::listen(&url(&format!("udp:{a}-{b}"), 0)).unwrap();
                [one, CableEnd::connect(&url(&format!("udp:{b}-{a}"), 1)).unwrap()]
            }
        };
        let mut cable = Self { ends, folder };
        cable.until(|ends| ends.iter().all(CableEnd::is_up));
        cable
    }

    fn until(&mut self, mut done: impl FnMut(&mut [CableEnd; 2]) -> bool) {
        let begin = Instant::now();
        while !done(&mut self.ends) {
            let now = Instant::now();
            self.ends.iter_mut().for_each(|end| _ = end.poll(now));
            assert!(begin.elapsed() < Duration::from_secs(120), "not done in 120 s");
            std::thread::yield_now();
        }
    }

    /// Sends a packet from an end and returns what the other received.
    fn carry(&mut self, from: usize, payload: &[u8]) -> (Vec<u8>, Crcs) {
        let len = headers().packet_len(payload.len());
        let mut received_crcs = None;
        self.ends[from]
            .send(len, |out, crcs| {
                let mut frame = headers().write(payload.len(), out).unwrap();
                frame.payload_mut().copy_from_slice(payload);
                let written = match crcs {
                    Crcs::Present => frame.seal(),
                    Crcs::Absent => frame.leave_bare(),
                };
                assert_eq!(written, len);
                received_crcs = Some(crcs);
            })
            .unwrap();
        assert_eq!(received_crcs, Some(self.ends[from].crcs()));
        self.ends[from].flush();
        let mut got = None;
        self.until(|ends| {
            ends[1 - from].receive_as_sent(1, |bytes, crcs| {
                got = Some((bytes.to_vec(), crcs));
                true
            });
            got.is_some()
        });
        got.unwrap()
    }
}

fn headers() -> Headers {
    Headers {
        lrh: Lrh { dlid: Lid(4), slid: Lid(3), ..Lrh::default() },
        grh: None,
        bth: Bth {
            opcode: Opcode::RcSendOnly,
            solicited: false,
            migrated: false,
            pkey: PKey::DEFAULT,
            fecn: false,
            becn: false,
            dest_qpn: Qpn::new(0x5b),
            ack_request: false,
            psn: Psn::new(7),
        },
        extended: Extended::Bare,
    }
}

fn payload(n: usize) -> Vec<u8> {
    (0..n).map(|i| (i * 31 + n) as u8).collect()
}

#[test]
fn crcs_are_omitted_if_both_ends_agree_and_are_correct_otherwise() {
    let options = |wish| match wish {
        Wish::KeepCrcs => "crc=keep",
        Wish::Faults => "loss=1e-300",
        Wish::Nothing | Wish::Tap => "",
    };
    let mut bare = 0;
    for make in [Make::Pair, Make::SharedMemory, Make::Udp] {
        for (near, far) in WISHES.into_iter().flat_map(|near| WISHES.map(|far| (near, far))) {
            let case = (make, near, far);
            let mut cable = Cable::new(make, [options(near), options(far)]);
            let mut captures = [None, None];
            for (at, wish) in [near, far].into_iter().enumerate() {
                if wish == Wish::Tap {
                    let (tap, reader) = tap::tap(1 << 16);
                    cable.ends[at].set_tap(Some(tap));
                    captures[at] = Some(reader);
                }
            }
            let refuses = |wish| matches!(wish, Wish::KeepCrcs | Wish::Faults);
            let agreed = make != Make::Udp && !refuses(near) && !refuses(far);
            for (from, wish) in [(0, near), (1, far)] {
                for n in [0, 1, 3, 64, 1000, 4096] {
                    let (bytes, crcs) = cable.carry(from, &payload(n));
                    // A capture records packets with CRCs as they were sent.
                    let expected = if agreed && wish != Wish::Tap { Crcs::Absent } else { Crcs::Present };
                    assert_eq!(crcs, expected, "{case:?} from {from}");
                    assert_eq!(crc::verify(&bytes), crcs == Crcs::Present, "{case:?} from {from}");
                    assert_eq!(Packet::parse(&bytes).unwrap().payload(), payload(n));
                    bare += u32::from(crcs == Crcs::Absent);
                }
            }
            for reader in captures.iter_mut().flatten() {
                let (mut captured, mut bytes) = (0, Vec::new());
                while reader.pop(&mut bytes).is_some() {
                    assert!(crc::verify(&bytes), "{case:?}: a capture has correct CRCs");
                    captured += 1;
                }
                assert_eq!(captured, 12, "{case:?}");
            }
        }
    }
    // Two kinds of memory; neither end keeps CRCs in 4 of 16 cases, and half of their ends have taps.
    assert_eq!(bare, 2 * 4 * 6);
}

#[test]
fn a_sender_that_requests_crcs_gets_correct_ones() {
    for make in [Make::Pair, Make::SharedMemory] {
        let mut cable = Cable::new(make, ["", ""]);
        let len = headers().packet_len(100);
        cable.ends[0]
            .send(len, |out, crcs| {
                assert_eq!(crcs, Crcs::Absent);
                let mut frame = headers().write(100, out).unwrap();
                frame.payload_mut().fill(9);
                frame.leave_bare();
            })
            .unwrap();
        let mut got = 0;
        cable.until(|ends| {
            got += ends[1].receive(8, |bytes| assert!(crc::verify(bytes)));
            got == 1
        });
    }
}

#[test]
fn a_forwarded_packet_gets_crcs_only_if_needed() {
    let mut whole = vec![0; headers().packet_len(200)];
    headers().write_packet(&payload(200), &mut whole).unwrap();
    let mut bare = whole.clone();
    bare[whole.len() - 6..].fill(0);
    let mut wrong = whole.clone();
    wrong[50] ^= 1;
    let kinds = [
        (Make::Pair, "", true),
        (Make::Pair, "crc=keep", false),
        (Make::SharedMemory, "", true),
        (Make::SharedMemory, "crc=keep", false),
        (Make::SharedMemory, "loss=1e-300", false),
        (Make::Udp, "", false),
    ];
    for (make, options, takes_bare) in kinds {
        let mut cable = Cable::new(make, [options, ""]);
        let mut cross = |packet: &[u8], crcs| {
            cable.ends[0].forward(packet, crcs).unwrap();
            cable.ends[0].flush();
            let mut got = None;
            cable.until(|ends| {
                ends[1].receive_as_sent(1, |bytes, crcs| {
                    got = Some((bytes.to_vec(), crcs));
                    true
                });
                got.is_some()
            });
            got.unwrap()
        };
        let case = (make, options);
        assert_eq!(cross(&whole, Crcs::Present), (whole.clone(), Crcs::Present), "{case:?}");
        assert_eq!(cross(&wrong, Crcs::Present), (wrong.clone(), Crcs::Present), "{case:?}");
        let expected = if takes_bare { (bare.clone(), Crcs::Absent) } else { (whole.clone(), Crcs::Present) };
        assert_eq!(cross(&bare, Crcs::Absent), expected, "{case:?}");
        // An empty and an oversized packet, as with packets built here.
        let end = &mut cable.ends[0];
        assert_eq!(end.forward(&[], Crcs::Present), Ok(()));
        assert_eq!(end.forward(&[0; MAX_PACKET + 1], Crcs::Present), Ok(()));
        assert_eq!(end.counters().tx_bad_length, 2, "{case:?}");
    }
}

#[test]
fn damage_is_found_whichever_end_does_it() {
    for make in [Make::Pair, Make::SharedMemory, Make::Udp] {
        for options in [["corrupt=1&seed=3", ""], ["", "corrupt=1&seed=4"]] {
            let mut cable = Cable::new(make, options);
            for n in [0, 4, 100, 4096] {
                for from in [0, 1] {
                    let (bytes, crcs) = cable.carry(from, &payload(n));
                    assert_eq!(crcs, Crcs::Present, "{make:?} {options:?} from {from}");
                    assert!(!crc::verify(&bytes), "{make:?} {options:?} from {from}");
                }
            }
        }
    }
}

#[test]
fn damage_that_starts_during_traffic_is_detected() {
    for make in [Make::Pair, Make::SharedMemory] {
        let mut cable = Cable::new(make, ["", ""]);
        assert_eq!(cable.carry(0, &payload(100)).1, Crcs::Absent);
        cable.ends[1].inject(Faults { corrupt: 1.0, seed: 5, ..Faults::default() });
        for from in [0, 1] {
            let (bytes, crcs) = cable.carry(from, &payload(100));
            assert_eq!((crcs, crc::verify(&bytes)), (Crcs::Present, false), "{make:?} from {from}");
        }
    }
}

#[test]
fn ethernet_frames_are_never_without() {
    let (mut a, mut b) = CableEnd::ethernet_pair().unwrap();
    a.send(60, |out, crcs| {
        assert_eq!(crcs, Crcs::Present);
        out.fill(1);
    })
    .unwrap();
    let seen = b.receive_as_sent(1, |frame, crcs| {
        assert_eq!((frame, crcs), (&[1; 60][..], Crcs::Present));
        true
    });
    assert_eq!(seen, 1);
}
