//! The device: registers and commands on one side, the engine on the other.

mod command;
mod completion_queue;
mod counter;
mod event;
mod event_queue;
mod function;
mod key;
mod numbers;
mod pair;
mod port;
mod queue;
mod report;
mod setup;
mod shared_queue;
mod table;
mod tables;
mod transition;
mod user;

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use connectx::cable::{CableEnd, CableError, CableUrl};
use connectx::engine::{Engine, EngineConfig};
use connectx::{AnswerOrder, COUNTER_SETS, PortConfig};
use hca::{LinkLayer, PortNumber};
use ib_wire::{Guid, Mtu, Qpn};
use prm::command::CommandStatus;
use prm::{Eqe, EventType};
use tracing::{debug, info, trace, warn};

pub use command::{Fault, Input, Output};
pub use report::{Counts, PortReport, Report};
pub use tables::{Table, TableSizes};

use crate::bar::{COMMANDS, Effect, FIRST_UAR, Registers, UARS};
use crate::memory::{GuestMemory, Lease};
use crate::pci::ConfigurationSpace;
use crate::vectors::Vectors;
use crate::vfio_user::Device;
use command::{Command, NotFetched};
use completion_queue::CompletionQueue;
use event_queue::EventQueue;
use key::Key;
use numbers::Numbers;
use pair::Pair;
use report::Past;
use shared_queue::SharedQueue;
use user::{Subject, Users};

/// Entries of a port's GID table.
const GIDS: u16 = 8;
/// Most protection domains, and most XRC domains.
const MAX_DOMAINS: u32 = 1 << 16;
/// Most steps of the engine in one call of [`Hca::turn`].
const STEPS: usize = 64;
/// Interval of flushing queue pairs in error, whose posted requests have no doorbell.
const FLUSH: Duration = Duration::from_millis(1);
/// Flushes without effect before the interval grows.
const PATIENCE: u32 = 32;
/// Factor by which the interval grows.
const RARER: u32 = 4;

/// Interval of retries to attach a port's cable, whose address may still be in use for a moment.
const PLUG: Duration = Duration::from_millis(100);

/// Byte order of responses to atomic operations until a driver selects one.
const INITIAL_ORDER: AnswerOrder = AnswerOrder::Big;

/// Configuration of a port.
#[derive(Clone, PartialEq, Debug)]
pub struct HcaPort {
    /// Port GUID.
    pub guid: Guid,
    /// Its cable.
    pub cable: Option<CableUrl>,
}

/// Configuration of a device.
#[derive(Clone, Debug)]
pub struct HcaConfig {
    /// Node GUID, which is also the system image GUID.
    pub node_guid: Guid,
    /// Node description.
    pub description: String,
    /// Port 1.
    pub port: HcaPort,
    /// Port 2, if there is one.
    pub second_port: Option<HcaPort>,
    /// Its ports require a GRH in every data packet, as those of a virtual function.
    pub grh_required: bool,
    /// Seed of the generator of queue pair numbers.
    pub seed: u64,
    /// Sizes of its object tables.
    pub tables: TableSizes,
}

impl HcaConfig {
    /// The ports with their numbers.
    pub fn ports(&self) -> impl Iterator<Item = (PortNumber, &HcaPort)> {
        (1..).map(PortNumber).zip(std::iter::once(&self.port).chain(&self.second_port))
    }
}

/// Activity counters.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counters {
    /// Commands.
    pub commands: u64,
    /// Commands that failed or were malformed.
    pub refused: u64,
    /// Events.
    pub events: u64,
    /// Events lost because no queue had room or accepted them.
    pub lost_events: u64,
    /// Interrupts.
    pub interrupts: u64,
    /// Doorbells of all kinds.
    pub doorbells: u64,
    /// Doorbells without a valid target.
    pub stray_doorbells: u64,
    /// Resets.
    pub resets: u64,
}

impl Counters {
    /// Names and values, for reports.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let Self { commands, refused, events, lost_events, interrupts, doorbells, stray_doorbells, resets } =
            *self;
        [
            ("commands", commands),
            ("refused", refused),
            ("events", events),
            ("lost_events", lost_events),
            ("interrupts", interrupts),
            ("doorbells", doorbells),
            ("stray_doorbells", stray_doorbells),
            ("resets", resets),
        ]
        .into_iter()
    }
}

/// Objects created by commands.
#[derive(Debug)]
struct Objects {
    eqs: BTreeMap<u32, EventQueue>,
    eq_numbers: Numbers,
    cqs: BTreeMap<u32, CompletionQueue>,
    srqs: BTreeMap<u32, SharedQueue>,
    qps: BTreeMap<u32, Pair>,
    keys: BTreeMap<u32, Key>,
    /// Room of all keys' lists, in units of 16 bytes.
    octowords: usize,
    /// Keeps the memory of page lists mapped, once there may be such lists.
    bus: Option<Lease>,
    pds: Numbers,
    uars: Numbers,
    xrcds: Numbers,
    counter_sets: Numbers,
    users: Users,
}

impl Objects {
    fn new(tables: TableSizes) -> Self {
        Self {
            eqs: BTreeMap::new(),
            eq_numbers: Numbers::new(1, 1 << tables.log(Table::EventQueues)),
            cqs: BTreeMap::new(),
            srqs: BTreeMap::new(),
            qps: BTreeMap::new(),
            keys: BTreeMap::new(),
            octowords: 0,
            bus: None,
            pds: Numbers::new(1, MAX_DOMAINS),
            uars: Numbers::new(FIRST_UAR, UARS),
            xrcds: Numbers::new(1, MAX_DOMAINS),
            counter_sets: Numbers::new(1, COUNTER_SETS.into()),
            users: Users::new(tables.log_users()),
        }
    }

    fn is_empty(&self) -> bool {
        self.counts().values().all(|count| *count == 0)
    }
}

/// The device.
///
/// The engine is declared before the objects, so that it is dropped first: their leases keep its memory
/// mapped.
#[derive(Debug)]
pub struct Hca {
    config: HcaConfig,
    engine: Engine,
    objects: Objects,
    memory: GuestMemory,
    space: ConfigurationSpace,
    registers: Registers,
    vectors: Vectors,
    counters: Counters,
    past: Past,
    begin: Instant,
    next_flush: Instant,
    /// Flushes without effect.
    looks: u32,
    /// There may be queue pairs in error.
    failed: bool,
    /// Entries of the command queue that wait until the device may use memory.
    rung: u32,
    /// The command queue is not in memory.
    deaf: bool,
    /// Version of the interface (ISSI) that the driver selected.
    issi: u16,
    /// Next attempt to attach the cable of a port that lacks it.
    next_plug: Option<Instant>,
}

fn engine(config: &HcaConfig, begin: Instant, life: u64) -> Engine {
    let port = |(_, port): (PortNumber, &HcaPort)| PortConfig {
        guid: port.guid,
        max_mtu: Mtu::B4096,
        link_layer: LinkLayer::InfiniBand,
        gid_table: GIDS,
    };
    let mut engine = Engine::new(EngineConfig {
        node_guid: config.node_guid,
        description: config.description.clone(),
        ports: config.ports().map(port).collect(),
        seed: config.seed.wrapping_add(life),
    });
    if config.grh_required {
        for (port, _) in config.ports() {
            // The ports exist, so this cannot fail.
            let _ = engine.require_grh(port);
        }
    }
    engine.set_answer_order(INITIAL_ORDER);
    engine.start_clock(begin);
    engine
}

impl Hca {
    /// Creates a device in its power-on state.
    pub fn new(config: HcaConfig) -> Result<Self, CableError> {
        let now = Instant::now();
        let mut hca = Self {
            engine: engine(&config, now, 0),
            objects: Objects::new(config.tables),
            config,
            memory: GuestMemory::new(),
            space: ConfigurationSpace::new(),
            registers: Registers::new(),
            vectors: Vectors::new(),
            counters: Counters::default(),
            past: Past::default(),
            begin: now,
            next_flush: now,
            looks: 0,
            failed: false,
            rung: 0,
            deaf: false,
            issi: 0,
            next_plug: None,
        };
        hca.plug()?;
        Ok(hca)
    }

    /// Activity counters.
    #[must_use]
    pub const fn counters(&self) -> Counters {
        self.counters
    }

    /// The engine.
    #[must_use]
    pub const fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The engine, mutable.
    pub const fn engine_mut(&mut self) -> &mut Engine {
        &mut self.engine
    }

    /// Attaches the missing cables of all ports. Returns the first error.
    fn plug(&mut self) -> Result<(), CableError> {
        let mut all = Ok(());
        for (number, port) in self.config.ports() {
            let Some(url) = port.cable.as_ref().filter(|_| self.engine.cable(number).is_none()) else {
                continue;
            };
            match CableEnd::connect(url) {
                Err(error) => all = all.and(Err(error)),
                Ok(cable) => {
                    if let Err(error) = self.engine.set_cable(number, Some(cable)) {
                        warn!("cannot attach the cable of port {}: {error}", number.0);
                    }
                }
            }
        }
        all
    }

    /// As [`Hca::plug`], with a retry later on failure.
    fn plug_until_plugged(&mut self, now: Instant) {
        let waited = self.next_plug.is_some();
        match self.plug() {
            Ok(()) => {
                self.next_plug = None;
                if waited {
                    info!("the cables of all ports are attached");
                }
            }
            Err(error) => {
                self.next_plug = Some(now + PLUG);
                if !waited {
                    warn!("cannot attach the cable of a port, retrying: {error}");
                }
            }
        }
    }

    /// Resets the device after the client has disconnected, and drops its memory and interrupts.
    pub fn disconnect(&mut self) {
        self.reset();
        self.vectors = Vectors::new();
        // No object can name it any more.
        let _ = self.memory.unmap(None);
    }

    /// Arms the cables to wake a sleeping thread ([`Engine::sleep`]). Returns how long to sleep, apart from
    /// [`Hca::next_deadline`]; `None` if there is work.
    pub fn sleep(&mut self, now: Instant, watch: impl FnMut(BorrowedFd<'_>)) -> Option<Duration> {
        // A suspended device has nothing to wake up for.
        if self.works() { self.engine.sleep(now, watch) } else { Some(Duration::MAX) }
    }

    /// False while the device is suspended: there are queue pairs, and the guest has disabled bus mastering.
    /// Without queue pairs the port's agents continue to serve the subnet.
    fn works(&self) -> bool {
        self.space.is_master() || self.objects.qps.is_empty()
    }

    /// Resumes after the guest has enabled bus mastering.
    fn resume(&mut self) {
        let rung = std::mem::take(&mut self.rung);
        self.commands(rung);
        self.report_events();
        self.interrupt_all();
    }

    /// When [`Hca::turn`] is due even if nothing happens.
    #[must_use]
    pub fn next_deadline(&self, now: Instant) -> Option<Instant> {
        let flush = self.failed.then_some(self.next_flush);
        let work = self.engine.next_deadline(now).into_iter().chain(flush).filter(|_| self.works());
        work.chain(self.next_plug).min()
    }

    /// Does a bounded amount of work. Returns true if it did any.
    pub fn turn(&mut self, now: Instant) -> bool {
        if self.next_plug.is_some_and(|at| now >= at) {
            self.plug_until_plugged(now);
        }
        if !self.works() {
            return false;
        }
        let looked = now >= self.next_flush;
        if looked {
            self.failed = self.flush_failed();
        }
        let mut worked = false;
        for _ in 0..STEPS {
            if !self.engine.step(now) {
                break;
            }
            worked = true;
        }
        self.report_events();
        // The work may have failed queue pairs.
        self.failed |= worked;
        if worked {
            self.looks = 0;
        }
        if looked {
            self.next_flush = now + FLUSH * (1 << (self.looks / PATIENCE).min(RARER));
            self.looks = self.looks.saturating_add(1);
        }
        worked
    }

    fn apply(&mut self, effect: Effect) {
        let rings = !matches!(effect, Effect::None | Effect::Queue | Effect::Commands(_));
        self.counters.doorbells += u64::from(rings);
        match effect {
            Effect::None => {}
            // A starting driver does not know objects of a previous one.
            Effect::Queue => {
                self.rung = 0;
                self.deaf = false;
                self.forget_objects();
            }
            Effect::Commands(entries) => self.commands(entries),
            // A program with a doorbell page may ring only for its own objects, never for those of the kernel
            // or another program.
            _ if !self.rings_for_its_own(&effect) => self.counters.stray_doorbells += 1,
            Effect::ArmCq { number, consumer, solicited, .. } => {
                if self.engine.arm_cq(number, consumer, solicited).is_err() {
                    self.counters.stray_doorbells += 1;
                }
                self.report_events();
            }
            Effect::Eq { number, consumer, arm, .. } => {
                match self.objects.eqs.get_mut(&number) {
                    Some(eq) => eq.update(consumer, arm),
                    None => self.counters.stray_doorbells += 1,
                }
                self.interrupt(number);
            }
            Effect::Send { qpn, .. } => self.engine.ring(Qpn::new(qpn)),
        }
    }

    /// True if a doorbell was written to the page of its queue, and the driver still owns that page.
    fn rings_for_its_own(&self, effect: &Effect) -> bool {
        let Objects { uars, eqs, cqs, qps, .. } = &self.objects;
        let (page, made_with) = match *effect {
            Effect::ArmCq { page, number, .. } => (page, cqs.get(&number).map(CompletionQueue::uar_page)),
            Effect::Eq { page, number, .. } => (page, eqs.get(&number).map(EventQueue::uar_page)),
            Effect::Send { page, qpn } => (page, qps.get(&qpn).map(Pair::uar_page)),
            Effect::None | Effect::Queue | Effect::Commands(_) => return true,
        };
        uars.has(page) && made_with == Some(page)
    }

    /// Handles the doorbell of these entries of the command queue.
    fn commands(&mut self, entries: u32) {
        // A device that is not bus master may not read memory.
        if !self.space.is_master() {
            self.rung |= entries;
            return;
        }
        if entries == 0 {
            return;
        }
        // A command may give up objects whose requests must be flushed.
        self.failed = true;
        self.looks = 0;
        self.next_flush = self.next_flush.min(Instant::now() + FLUSH);
        for index in (0..COMMANDS).filter(|index| entries >> index & 1 == 1) {
            self.command(index);
        }
    }

    fn command(&mut self, index: u32) {
        let Some(at) = self.registers.entry(index) else { return };
        let fetched = match Command::fetch(&self.memory, at) {
            Ok(None) => return,
            Ok(Some(command)) => Ok(command),
            Err(NotFetched::Broken(broken)) => Err(broken),
            Err(NotFetched::NoMemory) => {
                if !std::mem::replace(&mut self.deaf, true) {
                    warn!("the command queue is not in the guest's memory");
                }
                return;
            }
        };
        self.deaf = false;
        self.counters.commands += 1;
        // Evaluated before execution: the command that creates the queue for such events is still polled.
        let reports = self.objects.eqs.values().any(|eq| eq.takes(EventType::Command));
        match fetched {
            Ok(command) => {
                let mut output = command.output();
                let status = self.run(&command.input, &mut output);
                command.deliver(&self.memory, output, status);
            }
            Err(broken) => {
                self.counters.refused += 1;
                debug!("malformed command: {:?}", broken.why);
                broken.deliver(&self.memory);
            }
        }
        if reports {
            self.raise_asynchronous(EventType::Command, 0, Eqe::of_commands(1 << index));
        }
    }

    fn run(&mut self, input: &Input, output: &mut Output) -> CommandStatus {
        let header = input.header();
        let Some(entry) = table::find(header.opcode.get()) else {
            self.counters.refused += 1;
            debug!("unknown command {:#x}", header.opcode.get());
            return CommandStatus::BadOperation;
        };
        let result = if input.len() < entry.input {
            Err(Fault::new(CommandStatus::BadInputLength, "the input is too short"))
        } else if output.len() < entry.output {
            Err(Fault::new(CommandStatus::BadOutputLength, "the output buffer is too short"))
        } else {
            self.run_for(header.uid.get(), entry, input, output)
        };
        match result {
            Ok(()) => {
                trace!("{} {:#x}", entry.name, input.number());
                CommandStatus::Good
            }
            Err(fault) => {
                self.counters.refused += 1;
                debug!("{} {:#x}: {:?}: {}", entry.name, input.number(), fault.status, fault.why);
                fault.status
            }
        }
    }

    /// Executes a command on behalf of a user.
    fn run_for(
        &mut self,
        uid: u16,
        entry: &table::Entry,
        input: &Input,
        output: &mut Output,
    ) -> Result<(), Fault> {
        let (subject, number) = (entry.subject, input.number());
        self.objects.users.check(uid, subject, number)?;
        (entry.run)(self, input, output)?;
        let number = if matches!(subject, Subject::Makes(_)) { output.number() } else { number };
        self.objects.users.keep(uid, subject, number);
        Ok(())
    }

    /// Destroys everything that commands have created, if there is anything.
    fn forget_objects(&mut self) {
        self.engine.set_answer_order(INITIAL_ORDER);
        self.issi = 0;
        if !self.objects.is_empty() {
            self.restart();
        }
    }

    /// Creates a new engine, as after power-on.
    fn restart(&mut self) {
        self.counters.resets += 1;
        self.past.add(&self.engine);
        self.engine = engine(&self.config, self.begin, self.counters.resets);
        self.objects = Objects::new(self.config.tables);
        self.plug_until_plugged(Instant::now());
    }
}
