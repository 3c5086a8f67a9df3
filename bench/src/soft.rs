//! Messages between two software devices, on one connection or as datagrams ([`crate::pair`]). A result
//! covers both drivers, both devices and the link; copying memory in the same slices is the reference.

use std::hint::black_box;
use std::time::{Duration, Instant};

use connectx::cable::CableEnd;

use dataplane::latency::{Recorder, Summary, empty};
use pmd::mem::{Pool, PoolConfig};

use crate::fabric::Fabric;
use crate::pair::{
    Depths, End, Manager, PATIENCE, Service, end, is_message, message, pair_over, start_eal, text,
};
use crate::sample::{Figure, Sample, times};
use crate::series::Spread;

const LARGEST: usize = 65_524;
/// Bytes of a message's number.
const SHORTEST: usize = 8;
const DATA_ROOM: u16 = 4096;
const SRQ_DEPTH: u32 = 128;
const DEPTHS: Depths = Depths { send: 64, receive: [SRQ_DEPTH; 2], largest: LARGEST };
/// Sizes of messages in bytes: up to IPoIB's maximum on a connection, and up to the size of a packet as
/// datagrams.
const fn sizes_of(service: Service) -> &'static [usize] {
    match service {
        Service::Connection => &[64, 1024, 4096, 16_384, LARGEST],
        Service::Datagrams => &[64, 256, 1024, 2048, 4096],
    }
}

/// Buffers of one connection: two shared receive queues, and messages in flight. Each connection cycles
/// through its own pool: with a common one, no connection would find a buffer in a cache.
const BUFFERS: u32 = (2 * SRQ_DEPTH + 2 * WINDOW as u32) * 17;
/// Messages in flight. Without a limit, a receiver would run out of buffers.
const WINDOW: u64 = 64;
/// Duration of a slice of one kind, for messages up to a size and for larger ones, whose pool needs longer to
/// cycle.
const TURNS: [(usize, Duration); 2] = [(4096, Duration::from_millis(1)), (LARGEST, Duration::from_millis(8))];
/// Part of a slice before the measurement: the previous slice of another kind has replaced the content of the
/// caches.
const WARM_UP: f64 = 0.25;

/// Sends at full speed for a while. Returns messages per second that arrived between the end of the warm-up
/// and the end of the time; the numbers in flight at both moments are about equal. All messages arrive.
fn stream(a: &mut End, b: &mut End, pool: &Pool, len: usize, duration: Duration) -> Result<f64, String> {
    let (mut sent, mut received) = (0, 0);
    let begin = Instant::now();
    let warm = begin + duration.mul_f64(WARM_UP);
    let (mut last, mut from, mut to) = (begin, None, None);
    loop {
        // The clock is read once per round, after which nothing new is sent.
        while to.is_none() && sent - received < WINDOW {
            let Some(buf) = message(pool, len, sent) else { break };
            if a.send(buf).is_err() {
                break;
            }
            sent += 1;
        }
        a.turn()?;
        b.turn()?;
        let now = Instant::now();
        for arrived in b.burst.drain(..) {
            if !is_message(&arrived.buf, len, received) {
                return Err(format!("message {received} of {len} bytes arrived as {:?}", arrived.buf));
            }
            received += 1;
            last = now;
        }
        if from.is_none() && now >= warm {
            from = Some((now, received));
        } else if to.is_none() && now - begin >= duration && from.is_some_and(|(_, before)| received > before)
        {
            to = Some((now, received));
        }
        if let (Some((start, before)), Some((end, after))) = (from, to)
            && received == sent
        {
            return Ok((after - before) as f64 / (end - start).as_secs_f64());
        }
        if now - last > PATIENCE {
            return Err(format!("message {received} of {len} bytes is lost"));
        }
    }
}

/// Sends one message back and forth for a while. The times are round trips.
fn ping_pong(
    a: &mut End,
    b: &mut End,
    pool: &Pool,
    len: usize,
    duration: Duration,
) -> Result<Summary, String> {
    let mut times = Recorder::default();
    let begin = Instant::now();
    for number in 0.. {
        let sent = Instant::now();
        if sent - begin >= duration {
            break;
        }
        let mut buf = message(pool, len, number).ok_or("the pool is empty")?;
        // The last acknowledgements of a stream may still be in flight.
        while let Err(refused) = a.send(buf) {
            if sent.elapsed() > PATIENCE {
                return Err(text(refused.error));
            }
            buf = refused.buf;
            a.turn()?;
            b.turn()?;
        }
        loop {
            a.turn()?;
            b.turn()?;
            while let Some(arrived) = b.burst.pop() {
                b.send(arrived.buf).map_err(|r| text(r.error))?;
            }
            if let Some(back) = a.burst.pop() {
                if !is_message(&back.buf, len, number) {
                    return Err(format!("message {number} of {len} bytes came back as {:?}", back.buf));
                }
                break;
            }
            if sent.elapsed() > PATIENCE {
                return Err(format!("message {number} of {len} bytes is lost"));
            }
        }
        times.record(sent.elapsed().as_nanos() as u64);
    }
    Ok(Summary::of(&times.swap(empty())))
}

/// The link between the two devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Between {
    /// Memory of this process, where packets need no CRCs.
    Memory,
    /// The same with CRCs, which are calculated and checked.
    MemoryWithCrcs,
    /// `ibfab` as a separate process, and memory shared with it.
    Fabric,
    /// The same with CRCs.
    FabricWithCrcs,
}

impl Between {
    const ALL: [Self; 4] = [Self::Memory, Self::MemoryWithCrcs, Self::Fabric, Self::FabricWithCrcs];

    /// Prefix of the names of its results.
    const fn prefix(self) -> &'static str {
        match self {
            Self::Memory => "",
            Self::MemoryWithCrcs => "crc.",
            Self::Fabric => "ibfab.",
            Self::FabricWithCrcs => "ibfab-crc.",
        }
    }

    const fn keeps_crcs(self) -> bool {
        matches!(self, Self::MemoryWithCrcs | Self::FabricWithCrcs)
    }

    /// Creates the link; `None` without `ibfab`.
    fn middle(self) -> Result<Option<Middle>, String> {
        let fabric = match self {
            Self::Memory | Self::MemoryWithCrcs => None,
            Self::Fabric | Self::FabricWithCrcs => match Fabric::start(self.keeps_crcs())? {
                Some(fabric) => Some(fabric),
                None => return Ok(None),
            },
        };
        Ok(Some(Middle { between: self, fabric }))
    }
}

/// The link between two devices, which exists before them.
struct Middle {
    between: Between,
    fabric: Option<Fabric>,
}

impl Middle {
    fn connection(self, service: Service, cache: u16) -> Result<Connection, String> {
        let Self { between, fabric } = self;
        let config = PoolConfig { count: BUFFERS, data_room: DATA_ROOM, cache, socket: -1 };
        let pool = Pool::create(&format!("{between:?}"), &config).map_err(text)?;
        let (cables, manager) = match &fabric {
            Some(fabric) => (fabric.cables()?, Manager::Fabric),
            None => {
                let (mut here, there) = CableEnd::pair().map_err(text)?;
                if between.keeps_crcs() {
                    here.keep_crcs();
                }
                ((here, there), Manager::Nobody)
            }
        };
        let (a, b) = pair_over(cables, manager, service, &[&pool], &pool, DEPTHS)?;
        Ok(Connection { between, a, b, pool, _fabric: fabric })
    }
}

/// Both ends, and their link.
struct Connection {
    between: Between,
    a: End,
    b: End,
    pool: Pool,
    _fabric: Option<Fabric>,
}

/// Copies blocks of a window of memory for a while. Returns blocks per second after the warm-up.
fn copy(from: &[u8], to: &mut [u8], len: usize, duration: Duration) -> f64 {
    let begin = Instant::now();
    let warm = begin + duration.mul_f64(WARM_UP);
    let (mut counted, mut start, mut end) = (0, begin, begin);
    while end - begin < duration || counted == 0 {
        let mut blocks = 0;
        for (from, to) in from.chunks_exact(len).zip(to.chunks_exact_mut(len)).take(WINDOW as usize) {
            black_box(&mut *to).copy_from_slice(black_box(from));
            blocks += 1;
        }
        let now = Instant::now();
        if end >= warm {
            counted += blocks;
        } else {
            start = now;
        }
        end = now;
    }
    f64::from(counted) / (end - start).as_secs_f64()
}

/// The median slice, which preempted slices do not change.
fn middle(rates: &[f64]) -> f64 {
    Spread::of(rates).map_or(0.0, |spread| spread.median)
}

/// The duration of a slice with messages of this size.
fn turn_of(len: usize) -> Duration {
    let [_, (_, longest)] = TURNS;
    TURNS.iter().find(|(most, _)| len <= *most).map_or(longest, |(_, turn)| *turn)
}

/// Runs all sizes over a connection of each kind, for `seconds` each. The kinds alternate in forward and
/// reverse order, so that other load of the machine affects all.
fn measure(
    service: Service,
    sizes: &[usize],
    cache: u16,
    middles: Vec<Middle>,
    seconds: f64,
) -> Result<Sample, String> {
    let mut sample = Sample::default();
    if !middles.iter().any(|middle| middle.fabric.is_some()) {
        sample.notes.push("without ibfab: it is not next to this program".to_owned());
    }
    let all = middles.into_iter().map(|middle| middle.connection(service, cache));
    let mut all = all.collect::<Result<Vec<_>, _>>()?;
    let n = all.len();
    let (from, mut to) = (vec![1; LARGEST * WINDOW as usize], vec![2; LARGEST * WINDOW as usize]);
    for len in sizes.iter().copied() {
        let share = Duration::from_secs_f64(seconds);
        let turn = turn_of(len);
        // The same number of forward and reverse rounds.
        let rounds = (0.7 * seconds / (turn.as_secs_f64() * 2.0 * (n + 1) as f64)).ceil() as usize;
        let (mut rates, mut copied) = (vec![Vec::new(); n], Vec::new());
        for round in 0..2 * rounds.max(1) {
            for at in 0..n {
                let at = if round % 2 == 0 { at } else { n - 1 - at };
                if let (Some(Connection { a, b, pool, .. }), Some(rates)) =
                    (all.get_mut(at), rates.get_mut(at))
                {
                    rates.push(stream(a, b, pool, len, turn)?);
                }
            }
            copied.push(copy(&from, &mut to, len, turn));
        }
        let gbps = |rate: f64| rate * len as f64 * 8.0 / 1e9;
        let copied = middle(&copied);
        for (Connection { between, a, b, pool, .. }, rates) in all.iter_mut().zip(rates) {
            let round = ping_pong(a, b, pool, len, share.mul_f64(0.3 / n as f64))?;
            let rate = middle(&rates);
            let name = |figure: &str| format!("{}{len}.{figure}", between.prefix());
            sample.figures.extend([
                Figure::new(&name("messages"), "messages/s", rate),
                Figure::new(&name("throughput"), "Gbit/s", gbps(rate)).beside("memory copy", gbps(copied)),
                Figure::new(&name("ping-pong"), "ns", round.p50 as f64),
                Figure::new(&name("ping-pong-99"), "ns", round.p99 as f64),
            ]);
            sample.notes.push(times(&format!("{}{len} bytes there and back", between.prefix()), &round));
        }
    }
    for Connection { between, a, b, pool, .. } in all {
        end(a)?;
        end(b)?;
        let outstanding = pool.in_use();
        if outstanding != 0 {
            return Err(format!("{between:?}: {outstanding} buffers are not home"));
        }
    }
    Ok(sample)
}

/// Creates the available links of these kinds. They start first, as a process that EAL's thread starts would
/// share its only core.
fn middles(kinds: &[Between]) -> Result<Vec<Middle>, String> {
    kinds.iter().filter_map(|kind| kind.middle().transpose()).collect()
}

/// The sizes to measure: the requested ones, or all.
fn wanted(service: Service, asked: &[usize]) -> Result<Vec<usize>, String> {
    let all = sizes_of(service);
    if asked.is_empty() {
        return Ok(all.to_vec());
    }
    let most = all.last().copied().unwrap_or(LARGEST);
    match asked.iter().find(|len| !(SHORTEST..=most).contains(len)) {
        Some(len) => Err(format!("--sizes: a message of {len} bytes: here they have {SHORTEST} to {most}")),
        None => Ok(asked.to_vec()),
    }
}

/// Runs the benchmark once in this process, which must not have started EAL: with messages of these sizes, or
/// of all if none is given.
pub(crate) fn run(service: Service, seconds: f64, sizes: &[usize]) -> Result<Sample, String> {
    let sizes = wanted(service, sizes)?;
    let middles = middles(&Between::ALL)?;
    let _eal = start_eal()?;
    measure(service, &sizes, 256, middles, seconds)
}

/// Sends a fixed number of messages of one size from one device to the other by a link within this process,
/// for counts of instructions.
pub(crate) fn take_messages(
    service: Service,
    sizes: &[usize],
    only: &[String],
    count: u64,
) -> Result<Sample, String> {
    let between = match only {
        [] => Between::Memory,
        [kind] if kind == "crc" => Between::MemoryWithCrcs,
        _ => return Err("--only: the only value is `crc`, for messages with CRCs".to_owned()),
    };
    let [len] = wanted(service, sizes)?[..] else { return Err("--turns is of one size: name it".to_owned()) };
    let _eal = start_eal()?;
    let middle = between.middle()?.ok_or("there is nothing between them")?;
    let Connection { mut a, mut b, pool, .. } = middle.connection(service, 256)?;
    send_all(&mut a, &mut b, &pool, len, count)?;
    end(a)?;
    end(b)?;
    let mut sample = Sample::default();
    sample.figures.push(Figure::new("messages", "messages", count as f64));
    Ok(sample)
}

/// Like [`stream`], for a fixed number of messages.
fn send_all(a: &mut End, b: &mut End, pool: &Pool, len: usize, count: u64) -> Result<(), String> {
    let (mut sent, mut received) = (0, 0);
    let begin = Instant::now();
    while received < count {
        while sent < count && sent - received < WINDOW {
            let Some(buf) = message(pool, len, sent) else { break };
            if a.send(buf).is_err() {
                break;
            }
            sent += 1;
        }
        a.turn()?;
        b.turn()?;
        for arrived in b.burst.drain(..) {
            if !is_message(&arrived.buf, len, received) {
                return Err(format!("message {received} of {len} bytes arrived as {:?}", arrived.buf));
            }
            received += 1;
        }
        if begin.elapsed() > PATIENCE * 5 {
            return Err(format!("message {received} of {len} bytes is lost"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_every_size_arrive_in_order_and_every_buffer_comes_home() {
        pmd::eal::for_tests();
        for service in [Service::Connection, Service::Datagrams] {
            let (sizes, kinds) = (sizes_of(service), [Between::Memory, Between::MemoryWithCrcs]);
            let sample = measure(service, sizes, 0, middles(&kinds).unwrap(), 0.06).unwrap();
            assert_eq!(sample.figures.len(), 4 * sizes.len() * kinds.len());
            assert!(sample.figures.iter().all(|f| f.value > 0.0), "{sample:?}");
        }
    }

    #[test]
    fn sizes_that_are_asked_for_are_measured_where_they_can_be() {
        assert_eq!(wanted(Service::Datagrams, &[]).unwrap(), sizes_of(Service::Datagrams));
        assert_eq!(wanted(Service::Connection, &[65_524, 8]).unwrap(), [65_524, 8]);
        for (service, size) in
            [(Service::Connection, 65_525), (Service::Datagrams, 4097), (Service::Connection, 7)]
        {
            let error = wanted(service, &[64, size]).unwrap_err();
            assert!(error.contains(&format!("{size} bytes")), "{error}");
        }
    }

    #[test]
    fn the_rate_is_that_of_the_time_that_counts() {
        let (from, mut to) = (vec![1; LARGEST * WINDOW as usize], vec![2; LARGEST * WINDOW as usize]);
        // Longer than a slice: one round counts nevertheless.
        assert!(copy(&from, &mut to, LARGEST, Duration::from_nanos(1)) > 0.0);
        assert_eq!(to, from, "it copies");
    }
}
