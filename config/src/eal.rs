//! The command line: `PROGRAM [EAL arguments] -- [own arguments]`.

use std::fmt;

use crate::error::ConfigError;
use crate::lcore::{self, LcoreSet};

/// A command line split into its parts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CommandLine {
    /// The program's name.
    pub program: String,
    /// Arguments for EAL.
    pub eal: EalArguments,
    /// Own arguments, after `--`.
    pub own: Vec<String>,
}

/// Arguments for EAL, and the information read from them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct EalArguments {
    /// The unchanged arguments for EAL, without the program name.
    pub arguments: Vec<String>,
    /// Lcores of `-l`, `-c` or `--lcores`; `None` if EAL uses all available ones.
    pub lcores: Option<LcoreSet>,
    /// Lcore of `--main-lcore`.
    pub main_lcore: Option<u16>,
    /// True if `-a` or `--no-pci` restricts the PCI devices that EAL uses.
    pub pci_restricted: bool,
    /// Devices of `-a`, without bus and options.
    pub allowed: Vec<String>,
    /// Devices of `-b`; EAL may use all others.
    pub blocked: Vec<String>,
    /// Devices of `--vdev`.
    pub vdevs: Vec<String>,
    /// CPUs that `--lcores` assigns to lcores. Other lcores run on the CPU with the same number.
    placed: Vec<(LcoreSet, LcoreSet)>,
}

/// Roles of the lcores.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lcores {
    /// The control lcore.
    pub main: u16,
    /// The workers.
    pub workers: LcoreSet,
}

/// A configuration that works but may not be intended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Warning {
    /// Neither an allow-list nor `--no-pci` is given.
    EveryPciDevice,
    /// The same, with a list of devices that EAL does not use.
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
    /// Splits a command line, program name first, at the first `--`. Without one, all arguments belong to
    /// EAL.
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
                    format!("{option} is among EAL's arguments"),
                    "put `--` before the gateway's own: PROGRAM -l 0-1 --no-pci -- --config FILE",
                ));
            }
            eal.push(argument);
        }
        Ok(Self { program, eal: EalArguments::parse(eal)?, own: arguments.collect() })
    }
}

/// EAL options without a value, or with a value only after `=`.
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

/// Skips the next word if it can be a value.
fn skip_value(rest: &mut std::slice::Iter<'_, String>) {
    if rest.as_slice().first().is_some_and(|word| !word.starts_with('-')) {
        rest.next();
    }
}

/// Prefixes of AF_PACKET port names: the driver's name, and its alias, which was its former name.
const AF_PACKET: [&str; 2] = ["net_af_packet", "eth_af_packet"];
/// Length of an AF_PACKET port's blocks in bytes. Each is contiguous in the kernel and consists of whole
/// pages and whole frames.
const AF_PACKET_BLOCK: u32 = 1 << 16;
/// Length of each of its rings in bytes. The driver's own rings have 512 frames, which loses frames when a
/// worker does not run for a few milliseconds.
const AF_PACKET_RING: u32 = 8 << 20;

/// True for the `--vdev` of an AF_PACKET port.
pub(crate) fn is_af_packet(vdev: &str) -> bool {
    AF_PACKET.iter().any(|driver| vdev.starts_with(driver))
}

/// Format of a list of lcores.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LcoreOption {
    List,
    Mask,
    Map,
}

impl EalArguments {
    /// Parses EAL's arguments, without the program name.
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
                            "write the value after it, and then `--`",
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
                            "use one of the lcores of -l",
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
                        format!("`{word}` is neither an option nor the value of one"),
                        "remove it, or see `ipoib-fwd --help` for the commands; the gateway's own options come after `--`",
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
                format!("add {main} to them or use one of them"),
            ));
        }
        Ok(this)
    }

    /// Records a device of `-a` or `-b`.
    fn list(&mut self, is_allowed: bool, option: &str, device: &str) -> Result<(), ConfigError> {
        if !names_device(device) {
            return Err(ConfigError::command_line(
                format!("{option} {device} is not a device"),
                "write a PCI address, for example 0000:81:00.0, or the name of a port of --vdev",
            ));
        }
        let list = if is_allowed { &mut self.allowed } else { &mut self.blocked };
        list.push(device_name(device));
        self.pci_restricted |= is_allowed;
        Ok(())
    }

    /// Number of bytes that the driver of AF_PACKET ports makes the kernel lock: the rings of each queue, one
    /// per direction.
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
                // The driver's own sizes.
                (size, _, count) => size.unwrap_or(2048).saturating_mul(count.unwrap_or(512)),
            };
            ring.saturating_mul(2).saturating_mul(option("qpairs=").unwrap_or(1))
        });
        rings.fold(0, u64::saturating_add)
    }

    /// Returns the arguments with ring sizes for AF_PACKET ports, unless they have their own.
    ///
    /// Frames get the length of a packet buffer of `data_room` bytes, and the rings have room for a burst.
    /// The driver makes the kernel join fragments and loses packets longer than a frame. Its default frame
    /// length is 2,048 bytes.
    #[must_use]
    pub fn with_rings(&self, data_room: u16) -> Vec<String> {
        // The driver rejects frames that do not fit a buffer. The kernel requires blocks of whole pages with
        // whole frames, and a number of frames that fills all blocks.
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

    /// Returns the roles of the lcores as EAL assigns them: the main lcore is that of `--main-lcore`, or the
    /// lowest one. Returns `None` if no argument lists lcores; then only EAL knows them.
    pub fn roles(&self) -> Result<Option<Lcores>, ConfigError> {
        let Some(mut workers) = self.lcores else { return Ok(None) };
        let Some(main) = self.main_lcore.or(workers.first()) else { return Ok(None) };
        workers.remove(main);
        if workers.is_empty() {
            return Err(ConfigError::command_line(
                format!("lcore {main} is the control lcore and none is left to forward packets"),
                format!("use at least two lcores, for example -l {main},{}", if main == 0 { 1 } else { 0 }),
            ));
        }
        Ok(Some(Lcores { main, workers }))
    }

    /// Returns the CPUs of an lcore.
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

    /// True if an option without a value, such as `--no-huge`, is given.
    #[must_use]
    pub fn has(&self, option: &str) -> bool {
        self.arguments.iter().any(|word| word == option)
    }

    /// Returns the value of an option in any form: `-m 512`, `-m512`, `--huge-dir DIR` or `--huge-dir=DIR`.
    /// The last one takes effect.
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

    /// Returns warnings for the operator before EAL starts.
    #[must_use]
    pub fn warnings(&self) -> Vec<Warning> {
        match (self.pci_restricted, self.blocked.as_slice()) {
            (true, _) => Vec::new(),
            (false, []) => vec![Warning::EveryPciDevice],
            (false, _) => vec![Warning::EveryOtherPciDevice],
        }
    }
}

/// True for a device in EAL's sense: an address or name on some bus, a driver name such as `net_null0`, or
/// `bus=…,…`.
fn names_device(device: &str) -> bool {
    device.split(',').next().is_some_and(|name| name.contains([':', '_', '.', '=', '-']))
}

/// Returns a device name without bus and options, and a PCI address in the kernel's format, for example for
/// `3b:00.0,option=1`.
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

/// True for a name in the format of PCI addresses: hexadecimal digits, colons and dots.
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
        |what| ConfigError::command_line(format!("{name}: {what}"), format!("write for example {example}"));
    match set {
        Ok(set) if set.is_empty() => Err(error("it contains no lcore".to_owned())),
        other => other.map_err(error),
    }
}

/// Parses `LCORES[@CPUS]` separated by commas. Each side is a number, a range, or a list of these in
/// parentheses.
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
            // The lcores of a list in parentheses share its CPUs.
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
