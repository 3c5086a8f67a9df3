//! The command line: `PROGRAM [EAL arguments] -- [own arguments]`.

use std::fmt;

use crate::error::ConfigError;
use crate::lcore::{self, LcoreSet};

/// A command line, split.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CommandLine {
    /// The program's name.
    pub program: String,
    /// EAL's part.
    pub eal: EalArguments,
    /// Our part: what follows `--`.
    pub own: Vec<String>,
}

/// EAL's part of the command line, and what we read in it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct EalArguments {
    /// The arguments as given, without the program's name: what EAL gets.
    pub arguments: Vec<String>,
    /// Lcores named by `-l`, `-c` or `--lcores`; `None` if EAL is to take every one that it may.
    pub lcores: Option<LcoreSet>,
    /// Lcore named by `--main-lcore`.
    pub main_lcore: Option<u16>,
    /// True if `-a` or `--no-pci` says which PCI devices EAL may take: those and no others.
    pub pci_restricted: bool,
    /// Devices named by `-a`, without their bus and options.
    pub allowed: Vec<String>,
    /// Devices named by `-b`: EAL may take all others.
    pub blocked: Vec<String>,
    /// Devices named by `--vdev`.
    pub vdevs: Vec<String>,
    /// Processors that `--lcores` gives to lcores; of others it is the one of the lcore's number.
    placed: Vec<(LcoreSet, LcoreSet)>,
}

/// Who does what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lcores {
    /// The control lcore.
    pub main: u16,
    /// The workers.
    pub workers: LcoreSet,
}

/// Something that will work, though perhaps not as meant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Warning {
    /// Neither an allow-list nor `--no-pci` is given.
    EveryPciDevice,
    /// The same with a list of devices that EAL is not to take.
    EveryOtherPciDevice,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EveryPciDevice => f.write_str(
                "EAL will take every PCI network device that it can drive, the one you are logged in by included; \
                 name the right one with -a ADDRESS, or give --no-pci",
            ),
            Self::EveryOtherPciDevice => f.write_str(
                "EAL will take every PCI network device that it can drive, but for those of -b; name the right one with -a ADDRESS in \
                 their place",
            ),
        }
    }
}

impl CommandLine {
    /// Splits a command line, program name first, at the first `--`. Without one, all arguments are EAL's.
    pub fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Self, ConfigError> {
        let mut arguments = arguments.into_iter();
        let program = arguments.next().unwrap_or_default();
        let mut eal = Vec::new();
        for argument in arguments.by_ref() {
            if argument == "--" {
                break;
            }
            let option = argument.split_once('=').map_or(argument.as_str(), |(name, _)| name);
            if let "--config" | "--check" = option {
                return Err(ConfigError::command_line(
                    format!("{option} stands among EAL's arguments"),
                    "put `--` before the gateway's own: PROGRAM -l 0-1 --no-pci -- --config FILE",
                ));
            }
            eal.push(argument);
        }
        Ok(Self { program, eal: EalArguments::parse(eal)?, own: arguments.collect() })
    }
}

/// Options of EAL without a value, or whose value stands behind `=` only.
const WITHOUT_VALUE: [&str; 17] = [
    "--create-uio-dev",
    "--help",
    "--huge-unlink",
    "--in-memory",
    "--legacy-mem",
    "--match-allocations",
    "--no-hpet",
    "--no-huge",
    "--no-pci",
    "--no-shconf",
    "--no-telemetry",
    "--single-file-segments",
    "--telemetry",
    "--version",
    "--vmware-tsc-map",
    "-h",
    "-v",
];

/// Takes the next word if it can be a value.
fn skip_value(rest: &mut std::slice::Iter<'_, String>) {
    if rest.as_slice().first().is_some_and(|word| !word.starts_with('-')) {
        rest.next();
    }
}

/// How names of AF_PACKET ports begin: with that of the driver, or with its alias, the name that it had before.
const AF_PACKET: [&str; 2] = ["net_af_packet", "eth_af_packet"];
/// Bytes of an AF_PACKET port's blocks, each of which the kernel has in one piece: pages, and whole frames.
const AF_PACKET_BLOCK: u32 = 1 << 16;
/// Bytes of each of its rings. The driver's own have 512 frames: what comes while a worker does not run for a few milliseconds is lost then.
const AF_PACKET_RING: u32 = 8 << 20;

/// True for the `--vdev` of an AF_PACKET port.
pub(crate) fn is_af_packet(vdev: &str) -> bool {
    AF_PACKET.iter().any(|driver| vdev.starts_with(driver))
}

/// One way to name lcores.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LcoreOption {
    List,
    Mask,
    Map,
}

impl EalArguments {
    /// Reads EAL's arguments, program name left out.
    pub fn parse(arguments: Vec<String>) -> Result<Self, ConfigError> {
        let mut this = Self::default();
        let mut named_by: Option<&'static str> = None;
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            let mut lcores = |this: &mut Self, option, name: &'static str, value: &str| {
                if let Some(before) = named_by.replace(name) {
                    return Err(ConfigError::command_line(
                        format!("both {before} and {name} name lcores"),
                        "keep one of them",
                    ));
                }
                this.lcores = Some(parse_lcores(option, name, value, &mut this.placed)?);
                Ok(())
            };
            let mut value = |name: &str| {
                let inline = argument.strip_prefix(name).filter(|v| !v.is_empty());
                let inline = match name.starts_with("--") {
                    true => inline.and_then(|v| v.strip_prefix('=')),
                    false => inline,
                };
                match inline {
                    Some(v) => Ok(v.to_owned()),
                    None => rest.next().cloned().ok_or_else(|| {
                        ConfigError::command_line(
                            format!("{name} has no value"),
                            "give the value behind it, and `--` after that",
                        )
                    }),
                }
            };
            let long = argument.split_once('=').map_or(argument.as_str(), |(name, _)| name);
            match long {
                "--lcores" => lcores(&mut this, LcoreOption::Map, "--lcores", &value("--lcores")?)?,
                "--main-lcore" => {
                    let id = lcore::id(&value("--main-lcore")?).map_err(|what| {
                        ConfigError::command_line(
                            format!("--main-lcore: {what}"),
                            "name one of the lcores of -l",
                        )
                    })?;
                    this.main_lcore = Some(id);
                }
                "--vdev" => this.vdevs.push(value("--vdev")?),
                "--allow" | "--block" => {
                    let device = value(long)?;
                    this.list(long == "--allow", long, &device)?;
                }
                "--no-pci" => this.pci_restricted = true,
                _ if argument.starts_with("--") => {
                    if !argument.contains('=') && !WITHOUT_VALUE.contains(&long) {
                        skip_value(&mut rest);
                    }
                }
                _ if argument.starts_with("-l") => lcores(&mut this, LcoreOption::List, "-l", &value("-l")?)?,
                _ if argument.starts_with("-c") => lcores(&mut this, LcoreOption::Mask, "-c", &value("-c")?)?,
                _ if argument.starts_with("-a") || argument.starts_with("-b") => {
                    let option = argument.get(..2).unwrap_or_default();
                    let device = value(option)?;
                    this.list(option == "-a", option, &device)?;
                }
                _ if argument.starts_with('-') => {
                    if argument.len() == 2 && !WITHOUT_VALUE.contains(&long) {
                        skip_value(&mut rest);
                    }
                }
                // EAL would ignore it.
                word => {
                    return Err(ConfigError::command_line(
                        format!("`{word}` is no option, nor the value of one"),
                        "remove it, or see `ipoib-fwd --help` for the commands; the gateway's own options stand behind `--`",
                    ));
                }
            }
        }
        this.arguments = arguments;
        if let (Some(lcores), Some(main)) = (&this.lcores, this.main_lcore)
            && !lcores.contains(main)
        {
            return Err(ConfigError::command_line(
                format!("--main-lcore {main} is not among the lcores {lcores}"),
                format!("add {main} to them or name one of them"),
            ));
        }
        Ok(this)
    }

    /// Takes note of a device of `-a` or `-b`.
    fn list(&mut self, is_allowed: bool, option: &str, device: &str) -> Result<(), ConfigError> {
        if !names_device(device) {
            return Err(ConfigError::command_line(
                format!("{option} {device} names no device"),
                "write a PCI address, for instance 0000:81:00.0, or the name of a port of --vdev",
            ));
        }
        let list = if is_allowed { &mut self.allowed } else { &mut self.blocked };
        list.push(device_name(device));
        self.pci_restricted |= is_allowed;
        Ok(())
    }

    /// Bytes of the rings of AF_PACKET ports, which their driver has the kernel lock: one each way for each queue.
    #[must_use]
    pub fn locked_rings(&self) -> u64 {
        let ports = self.vdevs.iter().filter(|vdev| is_af_packet(vdev));
        let rings = ports.map(|vdev| {
            let option = |name: &str| {
                let given = vdev.split(',').find_map(|option| option.strip_prefix(name));
                given.map(|number| number.parse().unwrap_or(0_u64))
            };
            let ring = match (option("framesz="), option("blocksz="), option("framecnt=")) {
                (None, None, None) => AF_PACKET_RING.into(),
                // Those of the driver's own.
                (size, _, count) => size.unwrap_or(2048).saturating_mul(count.unwrap_or(512)),
            };
            ring.saturating_mul(2).saturating_mul(option("qpairs=").unwrap_or(1))
        });
        rings.fold(0, u64::saturating_add)
    }

    /// The arguments, in which AF_PACKET ports have frames as long as a packet buffer of `data_room` bytes, and rings with room for a burst, unless
    /// theirs are given. Their driver has the kernel join fragments, and loses what is longer than a frame, by itself one of 2,048 bytes.
    #[must_use]
    pub fn with_rings(&self, data_room: u16) -> Vec<String> {
        // The driver takes no frame that does not fit a buffer; the kernel takes blocks of pages that hold whole frames, and as many frames as are in
        // all blocks.
        let frame = 1_u32 << data_room.max(1).ilog2();
        let long = |vdev: &str| {
            let (name, options) = vdev.split_once(',').unwrap_or((vdev, ""));
            let given = ["framesz=", "blocksz=", "framecnt="];
            let is_given = options.split(',').any(|option| given.iter().any(|name| option.starts_with(name)));
            let is_packet = is_af_packet(name);
            let more =
                format!(",framesz={frame},blocksz={AF_PACKET_BLOCK},framecnt={}", AF_PACKET_RING / frame);
            format!("{vdev}{}", if is_packet && !is_given { more.as_str() } else { "" })
        };
        let mut is_vdev = false;
        let words = self.arguments.iter().map(|word| {
            let value = std::mem::replace(&mut is_vdev, word == "--vdev");
            match word.strip_prefix("--vdev=") {
                Some(vdev) if !value => format!("--vdev={}", long(vdev)),
                _ if value => long(word),
                _ => word.clone(),
            }
        });
        words.collect()
    }

    /// Which lcore controls and which work, as EAL will deal them out: the main lcore is the one that `--main-lcore`
    /// names, else the lowest. `None` if no argument names lcores: then only EAL knows.
    pub fn roles(&self) -> Result<Option<Lcores>, ConfigError> {
        let Some(mut workers) = self.lcores else { return Ok(None) };
        let Some(main) = self.main_lcore.or(workers.first()) else { return Ok(None) };
        workers.remove(main);
        if workers.is_empty() {
            return Err(ConfigError::command_line(
                format!("lcore {main} is the control lcore and none is left to forward packets"),
                format!("name at least two lcores, for instance -l {main},{}", if main == 0 { 1 } else { 0 }),
            ));
        }
        Ok(Some(Lcores { main, workers }))
    }

    /// The processors that an lcore runs on.
    #[must_use]
    pub fn processors_of(&self, lcore: u16) -> LcoreSet {
        let placed = self.placed.iter().rfind(|(lcores, _)| lcores.contains(lcore));
        placed.map_or_else(
            || {
                let mut own = LcoreSet::EMPTY;
                own.insert(lcore);
                own
            },
            |(_, processors)| *processors,
        )
    }

    /// True if an option without a value is given, such as `--no-huge`.
    #[must_use]
    pub fn has(&self, option: &str) -> bool {
        self.arguments.iter().any(|word| word == option)
    }

    /// The value of an option, `-m 512`, `-m512`, `--huge-dir DIR` or `--huge-dir=DIR`; the last one counts.
    #[must_use]
    pub fn value_of(&self, option: &str) -> Option<&str> {
        let mut found = None;
        let mut words = self.arguments.iter().map(String::as_str);
        while let Some(word) = words.next() {
            if word == option {
                found = words.next().or(found);
            } else if let Some(rest) = word.strip_prefix(option) {
                found = match option.starts_with("--") {
                    true => rest.strip_prefix('=').or(found),
                    false => Some(rest),
                };
            }
        }
        found
    }

    /// What should be told to the operator before EAL starts.
    #[must_use]
    pub fn warnings(&self) -> Vec<Warning> {
        match (self.pci_restricted, self.blocked.as_slice()) {
            (true, _) => Vec::new(),
            (false, []) => vec![Warning::EveryPciDevice],
            (false, _) => vec![Warning::EveryOtherPciDevice],
        }
    }
}

/// True for what EAL may take for a device: an address or a name of some bus, a driver's name such as `net_null0`, or `bus=…,…`.
fn names_device(device: &str) -> bool {
    device.split(',').next().is_some_and(|name| name.contains([':', '_', '.', '=', '-']))
}

/// A device's name without its bus and options; a PCI address as the kernel writes it, of `3b:00.0,option=1` for instance.
fn device_name(device: &str) -> String {
    let name = device.split(',').next().unwrap_or_default();
    let name = match name {
        "bus=pci" => device.split([',', '/']).find_map(|part| part.strip_prefix("addr=")).unwrap_or(name),
        _ => ["pci:", "auxiliary:", "vdev:"].iter().find_map(|bus| name.strip_prefix(bus)).unwrap_or(name),
    };
    if !is_pci_address(name) {
        return name.to_owned();
    }
    let domain = if name.matches(':').count() == 1 { "0000:" } else { "" };
    format!("{domain}{}", name.to_ascii_lowercase())
}

/// True for a name of the form of PCI addresses: hexadecimal digits, colons and dots.
#[must_use]
pub fn is_pci_address(name: &str) -> bool {
    name.contains(':') && name.bytes().all(|byte| byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.'))
}

fn parse_lcores(
    option: LcoreOption,
    name: &str,
    value: &str,
    placed: &mut Vec<(LcoreSet, LcoreSet)>,
) -> Result<LcoreSet, ConfigError> {
    let (set, example) = match option {
        LcoreOption::List => (LcoreSet::from_list(value), "-l 0-2"),
        LcoreOption::Mask => (LcoreSet::from_mask(value), "-c 0x7"),
        LcoreOption::Map => (parse_map(value, placed), "--lcores 0@1,1@1"),
    };
    let error =
        |what| ConfigError::command_line(format!("{name}: {what}"), format!("write for instance {example}"));
    match set {
        Ok(set) if set.is_empty() => Err(error("no lcore is named".to_owned())),
        other => other.map_err(error),
    }
}

/// `LCORES[@CPUS]` separated by commas, where each side is an id, a range, or a parenthesised list of these.
fn parse_map(text: &str, placed: &mut Vec<(LcoreSet, LcoreSet)>) -> Result<LcoreSet, String> {
    let mut set = LcoreSet::EMPTY;
    let mut depth = 0;
    let items = text.split(|c| {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0
    });
    for item in items {
        let (lcores, cpus) = item.split_once('@').map_or((item, None), |(l, c)| (l, Some(c)));
        let group = parse_group(lcores)?;
        for id in group.iter() {
            set.insert(id);
        }
        match cpus {
            Some(cpus) => placed.push((group, parse_group(cpus)?)),
            // A list in parentheses shares its processors.
            None if lcores.trim_start().starts_with('(') => placed.push((group, group)),
            None => {}
        }
    }
    Ok(set)
}

fn parse_group(text: &str) -> Result<LcoreSet, String> {
    let text = text.trim();
    match text.strip_prefix('(') {
        Some(inner) => {
            LcoreSet::from_list(inner.strip_suffix(')').ok_or_else(|| format!("`{text}` lacks its `)`"))?)
        }
        None => LcoreSet::from_list(text),
    }
}
