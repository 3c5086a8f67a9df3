//! The fabric's configuration file.
//!
//! ```toml
//! [fabric]
//! mtu = 4096                      # bytes: 256, 512, 1024, 2048 or 4096
//! prefix = "fe80::"               # subnet prefix
//!
//! [[partition]]                   # none: the default partition, all ports full members
//! pkey = 0xffff
//!
//! [[link]]                        # a port of the switch for somebody else
//! name = "gateway"
//! url = "shm:/run/ibfab/gw.sock"  # or udp:LOCAL-PEER; faults as ?loss=0.01&seed=7
//!
//! [[host]]                        # a virtual host
//! name = "host1"
//! netns = "ib"                    # none: our own
//! tun = "ib0"
//! address = "10.77.0.2/24"
//! gateway = "10.77.0.254"         # none: packets to other subnets are dropped
//! mtu = 65520
//! mode = "connected"              # or "datagram"
//! ```

mod raw;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::Range;
use std::path::{Path, PathBuf};

use connectx::cable::{CableUrl, Transport};
use ib_wire::{Guid, Mtu, PKey, QKey, Rate, ServiceLevel};
use ipoib::link::{MAX_MESSAGE, Mode};
use toml::Spanned;

use crate::sm::{Members, Partition};
use crate::switch::MAX_PORTS;
use raw::{Raw, RawHost, RawLink, RawPartition};

/// Most virtual hosts: each has queues and buffers of its own.
pub const MAX_HOSTS: usize = 64;
/// Largest IP MTU of a connection: the largest message less the encapsulation header.
const MAX_IP_MTU: u32 = MAX_MESSAGE - 4;
/// Smallest MTU that IPv4 allows (RFC 791).
const MIN_IP_MTU: u32 = 68;

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: cannot be read; name a readable file after --config", .file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// It is not TOML, has unknown keys, or a value is no good.
    #[error("{}:{line}:{column}: {what}", .file.display())]
    Value {
        /// The file.
        file: PathBuf,
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// What is wrong and what would do.
        what: String,
    },
}

/// A whole fabric.
#[derive(Clone, Debug)]
pub struct FabricConfig {
    /// Largest MTU of its ports.
    pub mtu: Mtu,
    /// Subnet prefix.
    pub prefix: u64,
    /// GUID of the switch.
    pub guid: Guid,
    /// Name of the switch.
    pub name: String,
    /// Partitions; empty for the default one alone.
    pub partitions: Vec<Partition>,
    /// Ports for others.
    pub links: Vec<LinkConfig>,
    /// Virtual hosts.
    pub hosts: Vec<HostConfig>,
}

/// A port for somebody else.
#[derive(Clone, PartialEq, Debug)]
pub struct LinkConfig {
    /// Its name in reports.
    pub name: String,
    /// Where it is.
    pub url: CableUrl,
}

/// A virtual host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostConfig {
    /// Its name in reports.
    pub name: String,
    /// Network namespace of its interface; `None` for our own.
    pub netns: Option<String>,
    /// Its interface.
    pub tun: String,
    /// Its IP address.
    pub address: Ipv4Addr,
    /// Bits of the network part.
    pub prefix: u8,
    /// Next hop of what goes outside of its subnet.
    pub gateway: Option<Ipv4Addr>,
    /// IP MTU of its interface.
    pub mtu: u32,
    /// Datagram or connected.
    pub mode: Mode,
    /// Its partition.
    pub pkey: PKey,
    /// GUID of its channel adapter; the port's is one more.
    pub guid: Guid,
}

/// The file while it is turned into values.
struct Source<'s> {
    file: &'s Path,
    text: &'s str,
    guids: BTreeMap<u64, String>,
}

impl FabricConfig {
    /// Reads a file.
    pub fn load(file: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(file)
            .map_err(|source| ConfigError::Read { file: file.to_owned(), source })?;
        Self::parse(file, &text)
    }

    /// Reads the text of `file`.
    pub fn parse(file: &Path, text: &str) -> Result<Self, ConfigError> {
        let mut source = Source { file, text, guids: BTreeMap::new() };
        let raw: Raw = toml::from_str(text).map_err(|e| {
            source.error(&e.span().unwrap_or(0..0), e.message().trim_end().replace('\n', "; "))
        })?;
        let fabric = raw.fabric;
        let mtu = match &fabric.mtu {
            None => Mtu::B4096,
            Some(bytes) => source.mtu(bytes)?,
        };
        let prefix = match &fabric.prefix {
            None => ib_wire::Gid::DEFAULT_PREFIX,
            Some(text) => source.prefix(text)?,
        };
        let name = fabric.name.unwrap_or_else(|| "ibfab".to_owned());
        let guid = source.guid(fabric.guid.as_ref(), &format!("switch {name}"), &(0..0))?;
        let partitions = raw.partition.iter().map(|p| source.partition(p, mtu)).collect::<Result<_, _>>()?;
        let mut links: Vec<LinkConfig> = Vec::new();
        for raw in &raw.link {
            let link = source.link(raw)?;
            if let Some(other) = links.iter().find(|l| l.url.transport == link.url.transport) {
                return Err(source.error(
                    &raw.url.span(),
                    format!("{} is link {}'s; give each its own", link.url, other.name),
                ));
            }
            links.push(link);
        }
        let mut hosts: Vec<HostConfig> = Vec::new();
        for raw in &raw.host {
            let host = source.host(raw)?;
            if let Some(other) = hosts.iter().find(|h| h.netns == host.netns && h.tun == host.tun) {
                return Err(source.error(
                    &raw.name.span(),
                    format!("interface {} is host {}'s; give each its own", host.tun, other.name),
                ));
            }
            if hosts.iter().any(|h| h.address == host.address) {
                return Err(
                    source.error(&raw.address.span(), format!("{} is another host's address", host.address))
                );
            }
            hosts.push(host);
        }
        if hosts.len() > MAX_HOSTS || hosts.len() + links.len() > MAX_PORTS {
            let what = format!(
                "{} hosts and {} links are too many: {MAX_HOSTS} hosts and {MAX_PORTS} ports in all",
                hosts.len(),
                links.len()
            );
            return Err(source.error(&(0..0), what));
        }
        Ok(Self { mtu, prefix, guid, name, partitions, links, hosts })
    }
}

/// A GUID made from a name: locally administered, the same at every start.
fn guid_of(name: &str) -> Guid {
    // FNV-1a, 64 bits; the last bits are free for the port's GUID.
    let hash = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325, |h: u64, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    Guid(0x0200_0000_0000_0000 | hash & 0x00ff_ffff_ffff_fff0)
}

impl Source<'_> {
    fn error(&self, at: &Range<usize>, what: String) -> ConfigError {
        let before = self.text.get(..at.start).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        ConfigError::Value { file: self.file.to_owned(), line, column, what }
    }

    fn mtu(&self, bytes: &Spanned<u64>) -> Result<Mtu, ConfigError> {
        let codes = (1..=5).filter_map(Mtu::from_code);
        codes.into_iter().find(|mtu| mtu.bytes() as u64 == *bytes.get_ref()).ok_or_else(|| {
            self.error(&bytes.span(), format!("mtu {} is not 256, 512, 1024, 2048 or 4096", bytes.get_ref()))
        })
    }

    fn prefix(&self, text: &Spanned<String>) -> Result<u64, ConfigError> {
        let bad = || {
            self.error(
                &text.span(),
                format!("`{}` is no subnet prefix; write for instance \"fe80::\"", text.get_ref()),
            )
        };
        let address: Ipv6Addr = text.get_ref().trim_end_matches("/64").parse().map_err(|_| bad())?;
        let bits = u128::from(address);
        if bits as u64 == 0 && !address.is_multicast() && bits != 0 {
            Ok((bits >> 64) as u64)
        } else {
            Err(bad())
        }
    }

    /// The GUID that is written, or one made from `owner`; each only once.
    fn guid(
        &mut self,
        text: Option<&Spanned<String>>,
        owner: &str,
        at: &Range<usize>,
    ) -> Result<Guid, ConfigError> {
        let guid = match text {
            None => guid_of(owner),
            Some(text) => {
                let digits: String =
                    text.get_ref().trim_start_matches("0x").chars().filter(|c| *c != ':').collect();
                let number = u64::from_str_radix(&digits, 16).ok().filter(|&n| n != 0 && n != u64::MAX);
                number.map(Guid).ok_or_else(|| {
                    self.error(
                        &text.span(),
                        format!("`{}` is no GUID; write 16 hexadecimal digits", text.get_ref()),
                    )
                })?
            }
        };
        let at = text.map_or_else(|| at.clone(), Spanned::span);
        // A host's port has the number behind its node's.
        for number in [guid.0, guid.0.wrapping_add(1)] {
            if let Some(other) = self.guids.insert(number, owner.to_owned()) {
                return Err(
                    self.error(&at, format!("GUID {guid} is too near to that of {other}; write another"))
                );
            }
        }
        Ok(guid)
    }

    fn partition(&self, raw: &RawPartition, mtu: Mtu) -> Result<Partition, ConfigError> {
        let default = Partition::default_ipoib();
        let pkey =
            u16::try_from(*raw.pkey.get_ref()).ok().map(PKey).filter(|key| key.base() != 0).ok_or_else(
                || {
                    self.error(
                        &raw.pkey.span(),
                        "a P_Key is 1 to 0x7fff, with or without the membership bit 0x8000".to_owned(),
                    )
                },
            )?;
        let mtu = match &raw.mtu {
            None => mtu,
            Some(bytes) => self.mtu(bytes)?.min(mtu),
        };
        let mut members = Vec::new();
        for member in &raw.members {
            let text = member.get_ref();
            let (guid, full) =
                text.strip_suffix("=limited").map_or((text.trim_end_matches("=full"), true), |g| (g, false));
            let number = u64::from_str_radix(guid.trim_start_matches("0x"), 16).map_err(|_| {
                self.error(
                    &member.span(),
                    format!("`{text}` is no port GUID, with =full or =limited behind it"),
                )
            })?;
            members.push((Guid(number), full));
        }
        Ok(Partition {
            pkey,
            qkey: raw.qkey.map_or(default.qkey, QKey),
            mtu,
            rate: raw.rate.map_or(default.rate, Rate::new),
            sl: ServiceLevel::new(0),
            members: if members.is_empty() { Members::AllFull } else { Members::Listed(members) },
        })
    }

    fn link(&self, raw: &RawLink) -> Result<LinkConfig, ConfigError> {
        let wrong = |text| self.error(&raw.url.span(), text);
        let url: CableUrl =
            raw.url.get_ref().parse().map_err(|e: connectx::cable::CableUrlError| wrong(e.to_string()))?;
        if matches!(url.transport, Transport::Ethernet { .. }) {
            return Err(wrong(format!(
                "`{url}` is a link of Ethernet ports; write shm:/path/to.sock or udp:LOCAL-PEER"
            )));
        }
        Ok(LinkConfig { name: raw.name.clone(), url })
    }

    fn host(&mut self, raw: &RawHost) -> Result<HostConfig, ConfigError> {
        let text = raw.address.get_ref();
        let address = text.split_once('/').and_then(|(ip, bits)| {
            let prefix: u8 = bits.parse().ok().filter(|&bits| bits <= 31)?;
            Some((ip.parse::<Ipv4Addr>().ok()?, prefix))
        });
        let (address, prefix) = address.ok_or_else(|| {
            self.error(
                &raw.address.span(),
                format!("`{text}` is no address with a prefix; write for instance 10.77.0.2/24"),
            )
        })?;
        let mode = match raw.mode.as_ref().map(|m| (m.get_ref().as_str(), m.span())) {
            None | Some(("connected", _)) => Mode::Connected,
            Some(("datagram", _)) => Mode::Datagram,
            Some((other, at)) => {
                return Err(
                    self.error(&at, format!("mode `{other}` is neither \"connected\" nor \"datagram\""))
                );
            }
        };
        let mtu = match &raw.mtu {
            None => MAX_IP_MTU,
            Some(mtu) => u32::try_from(*mtu.get_ref())
                .ok()
                .filter(|m| (MIN_IP_MTU..=MAX_IP_MTU).contains(m))
                .ok_or_else(|| {
                    self.error(
                        &mtu.span(),
                        format!("mtu {} is not within {MIN_IP_MTU} and {MAX_IP_MTU}", mtu.get_ref()),
                    )
                })?,
        };
        let gateway =
            match &raw.gateway {
                None => None,
                Some(text) => Some(text.get_ref().parse().map_err(|_| {
                    self.error(&text.span(), format!("`{}` is no IPv4 address", text.get_ref()))
                })?),
            };
        let name = raw.name.get_ref().clone();
        let guid = self.guid(raw.guid.as_ref(), &format!("host {name}"), &raw.name.span())?;
        let pkey = match &raw.pkey {
            None => PKey::DEFAULT,
            Some(key) => {
                u16::try_from(*key.get_ref()).ok().map(PKey).filter(|k| k.base() != 0).ok_or_else(|| {
                    self.error(
                        &key.span(),
                        "a P_Key is 1 to 0x7fff, with or without the membership bit 0x8000".to_owned(),
                    )
                })?
            }
        };
        let tun = raw.tun.clone().unwrap_or_else(|| "ib0".to_owned());
        Ok(HostConfig {
            name,
            netns: raw.netns.clone(),
            tun,
            address,
            prefix,
            gateway,
            mtu,
            mode,
            pkey,
            guid,
        })
    }
}
