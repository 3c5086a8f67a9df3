//! Converts the file's text to validated values. Every error names its position and a remedy.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::Range;
use std::path::Path;
use std::str::FromStr;

use connectx::cable::{CableUrl, CableUrlError, Transport};
use ib_wire::smp::Lmc;
use ib_wire::{Guid, Mtu, PKey, QKey, ServiceLevel};
use ipoib::link::{MAX_MESSAGE, Mode};
use logging::LogLevel;
use toml::Spanned;

use super::keys::{Raw, RawFabric, RawHost, RawLink, RawPartition, RawSwitch, RawTrunk};
use super::{
    ConfigError, DEFAULT_PREFIX, FabricConfig, HostConfig, LinkConfig, MAX_HOSTS, MAX_PARTITIONS,
    MAX_SWITCHES, Place, SwitchConfig, TrunkConfig,
};
use crate::subnet::{Member, Members, Membership, Partition, rate_of_gbits};
use crate::switch::MAX_PORTS;

/// Largest IP MTU of a connection: the largest message less the encapsulation header.
const MAX_IP_MTU: u32 = MAX_MESSAGE - 4;
/// Smallest MTU that IPv4 allows (RFC 791).
const MIN_IP_MTU: u32 = 68;
/// Gb/s of the fabric's links, 4X at 10 Gb/s a lane.
const LINK_GBITS: f64 = 40.0;
/// Member name for all ports of a partition that are not named.
const ALL: &str = "all";

type Result<T> = std::result::Result<T, ConfigError>;

/// The file during its conversion.
pub(super) struct Source<'s> {
    file: &'s Path,
    text: &'s str,
    /// GUIDs in use, with their owners.
    guids: BTreeMap<u64, String>,
    switches: Vec<SwitchConfig>,
    /// The number of ports that the file sets for each switch, if any, and its position.
    given_ports: Vec<Option<(u8, Range<usize>)>>,
    /// The ports of links and hosts, by their names.
    places: BTreeMap<String, Place>,
}

/// Makes a GUID from a name: locally administered, the same at every start.
fn guid_of(name: &str) -> Guid {
    // FNV-1a, 64 bits; the last bits are free for the port's GUID.
    let hash = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325, |h: u64, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    Guid(0x0200_0000_0000_0000 | hash & 0x00ff_ffff_ffff_fff0)
}

/// Reads 16 hexadecimal digits, with colons or `0x` as users write them.
fn read_guid(text: &str) -> Option<Guid> {
    let digits: String = text.trim_start_matches("0x").chars().filter(|c| *c != ':').collect();
    u64::from_str_radix(&digits, 16).ok().filter(|&n| n != 0 && n != u64::MAX).map(Guid)
}

impl<'s> Source<'s> {
    pub(super) fn new(file: &'s Path, text: &'s str) -> Self {
        Self {
            file,
            text,
            guids: BTreeMap::new(),
            switches: Vec::new(),
            given_ports: Vec::new(),
            places: BTreeMap::new(),
        }
    }

    pub(super) fn read(mut self) -> Result<FabricConfig> {
        let raw: Raw = toml::from_str(self.text)
            .map_err(|e| self.error(&e.span().unwrap_or(0..0), e.message().trim_end().replace('\n', "; ")))?;
        let mtu = match &raw.fabric.mtu {
            None => Mtu::B4096,
            Some(bytes) => self.mtu(bytes)?,
        };
        let prefix = match &raw.fabric.prefix {
            None => DEFAULT_PREFIX,
            Some(text) => self.prefix(text)?,
        };
        let hop_limit = match &raw.fabric.hop_limit {
            None => 0,
            Some(limit) => self.hop_limit(limit)?,
        };
        let lmc = match &raw.fabric.lmc {
            None => Lmc::new(0),
            Some(lmc) => self.lmc(lmc)?,
        };
        self.read_switches(&raw.fabric, &raw.switch)?;
        let links = self.links(&raw.link)?;
        let hosts = self.hosts(&raw.host)?;
        let trunks = self.trunks(&raw.trunk)?;
        self.check_ports()?;
        let partitions = self.partitions(&raw.partition, mtu)?;
        let log = self.word(raw.fabric.log.as_ref())?.unwrap_or(LogLevel::Info);
        let log_filter = self.word(raw.fabric.log_filter.as_ref())?.unwrap_or_default();
        let keep_crcs = raw.fabric.keep_crcs.unwrap_or(false);
        let switches = self.switches;
        Ok(FabricConfig {
            mtu,
            prefix,
            hop_limit,
            lmc,
            sm_key: raw.fabric.sm_key.unwrap_or(1),
            keep_crcs,
            log,
            log_filter,
            switches,
            trunks,
            partitions,
            links,
            hosts,
        })
    }

    fn error(&self, at: &Range<usize>, what: String) -> ConfigError {
        let before = self.text.get(..at.start).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        ConfigError::Value { file: self.file.to_owned(), line, column, what }
    }

    /// Converts a value whose type knows the valid words.
    fn word<T: FromStr<Err = String>>(&self, text: Option<&Spanned<String>>) -> Result<Option<T>> {
        text.map(|text| text.get_ref().parse().map_err(|what| self.error(&text.span(), what))).transpose()
    }

    fn mtu(&self, bytes: &Spanned<u64>) -> Result<Mtu> {
        let codes = (1..=5).filter_map(Mtu::from_code);
        codes.into_iter().find(|mtu| mtu.bytes() as u64 == *bytes.get_ref()).ok_or_else(|| {
            self.error(&bytes.span(), format!("mtu {} is not 256, 512, 1024, 2048 or 4096", bytes.get_ref()))
        })
    }

    /// A limit above 1 would mean that paths cross a router; there is none.
    fn hop_limit(&self, limit: &Spanned<u64>) -> Result<u8> {
        u8::try_from(*limit.get_ref()).ok().filter(|limit| *limit <= 1).ok_or_else(|| {
            self.error(&limit.span(), format!("hop_limit {} is neither 0 nor 1", limit.get_ref()))
        })
    }

    fn lmc(&self, lmc: &Spanned<u64>) -> Result<Lmc> {
        let bits = u8::try_from(*lmc.get_ref()).ok().filter(|bits| *bits <= 7);
        let bits =
            bits.ok_or_else(|| self.error(&lmc.span(), format!("lmc {} is not 0 to 7", lmc.get_ref())))?;
        Ok(Lmc::new(bits))
    }

    fn prefix(&self, text: &Spanned<String>) -> Result<u64> {
        let bad = || {
            self.error(
                &text.span(),
                format!("`{}` is not a subnet prefix; write, for instance, \"fe80::\"", text.get_ref()),
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

    /// Returns the GUID in the file, or one made from `owner`. A GUID may be used only once.
    fn guid(&mut self, text: Option<&Spanned<String>>, owner: &str, at: &Range<usize>) -> Result<Guid> {
        let guid = match text {
            None => guid_of(owner),
            Some(text) => read_guid(text.get_ref()).ok_or_else(|| {
                let what = format!("`{}` is not a GUID; write 16 hexadecimal digits", text.get_ref());
                self.error(&text.span(), what)
            })?,
        };
        let at = text.map_or_else(|| at.clone(), Spanned::span);
        // A host's port has the GUID after its node's.
        for number in [guid.0, guid.0.wrapping_add(1)] {
            if let Some(other) = self.guids.insert(number, owner.to_owned()) {
                return Err(
                    self.error(&at, format!("GUID {guid} is too close to that of {other}; write another"))
                );
            }
        }
        Ok(guid)
    }

    fn pkey(&self, key: &Spanned<u64>) -> Result<PKey> {
        u16::try_from(*key.get_ref()).ok().map(PKey).filter(|key| key.base() != 0).ok_or_else(|| {
            let what = "a P_Key is 1 to 0x7fff, with or without the membership bit 0x8000";
            self.error(&key.span(), what.to_owned())
        })
    }

    fn read_switches(&mut self, fabric: &RawFabric, raw: &[RawSwitch]) -> Result<()> {
        if let (Some(name), false) = (fabric.name.as_ref().or(fabric.guid.as_ref()), raw.is_empty()) {
            let what = "fabric.name and fabric.guid are for a fabric without [[switch]]; write them there";
            return Err(self.error(&name.span(), what.to_owned()));
        }
        if raw.is_empty() {
            let name = fabric.name.as_ref().map_or_else(|| "ibfab".to_owned(), |n| n.get_ref().clone());
            let guid = self.guid(fabric.guid.as_ref(), &format!("switch {name}"), &(0..0))?;
            self.switches.push(SwitchConfig { name, guid, ports: 0 });
            self.given_ports.push(None);
        }
        for switch in raw {
            let (name, at) = (switch.name.get_ref(), switch.name.span());
            if self.switches.len() >= MAX_SWITCHES {
                return Err(self.error(&at, format!("more than {MAX_SWITCHES} switches; leave some out")));
            }
            if self.switches.iter().any(|s| s.name == *name) {
                return Err(self
                    .error(&at, format!("there is a switch {name} already; give each switch its own name")));
            }
            let guid = self.guid(switch.guid.as_ref(), &format!("switch {name}"), &at)?;
            let ports = match &switch.ports {
                None => None,
                Some(ports) => {
                    let number = u8::try_from(*ports.get_ref()).ok();
                    let number = number.filter(|n| (1..=MAX_PORTS).contains(&usize::from(*n)));
                    let number = number.ok_or_else(|| {
                        self.error(&ports.span(), format!("a switch has 1 to {MAX_PORTS} ports"))
                    })?;
                    Some((number, ports.span()))
                }
            };
            self.switches.push(SwitchConfig { name: name.clone(), guid, ports: 0 });
            self.given_ports.push(ports);
        }
        Ok(())
    }

    /// Allocates the next port of the named switch, or of the first one.
    fn next_port(&mut self, name: Option<(&str, Range<usize>)>, owner: &Range<usize>) -> Result<Place> {
        let (index, at) = match name {
            None => (0, owner.clone()),
            Some((name, at)) => match self.switches.iter().position(|s| s.name == name) {
                Some(index) => (index, at),
                None => {
                    let all: Vec<&str> = self.switches.iter().map(|s| s.name.as_str()).collect();
                    let what = format!("there is no switch {name}; there are: {}", all.join(", "));
                    return Err(self.error(&at, what));
                }
            },
        };
        let full = self.switches.get_mut(index).is_none_or(|switch| {
            let full = usize::from(switch.ports) >= MAX_PORTS;
            switch.ports += u8::from(!full);
            full
        });
        let Some(switch) = self.switches.get(index).filter(|_| !full) else {
            let what =
                format!("more than {MAX_PORTS} ports of one switch are in use; take another [[switch]]");
            return Err(self.error(&at, what));
        };
        Ok(Place { switch: index, port: switch.ports })
    }

    /// Checks that the ports that the file sets suffice. If it sets none, a switch has the number of ports in
    /// use.
    fn check_ports(&mut self) -> Result<()> {
        for at in 0..self.switches.len() {
            let Some(Some((given, place))) = self.given_ports.get(at).cloned() else { continue };
            let Some(switch) = self.switches.get_mut(at) else { continue };
            if switch.ports > given {
                let what =
                    format!("{} ports of switch {} are in use; give it more", switch.ports, switch.name);
                return Err(self.error(&place, what));
            }
            switch.ports = given;
        }
        Ok(())
    }

    /// Registers the name of a link or host, by which partitions refer to it.
    fn name(&mut self, name: &Spanned<String>, place: Place) -> Result<String> {
        let text = name.get_ref().clone();
        if text == ALL {
            return Err(self.error(&name.span(), format!("`{ALL}` names all ports; take another name")));
        }
        if self.places.insert(text.clone(), place).is_some() {
            return Err(
                self.error(&name.span(), format!("{text} is taken; give each link and host its own name"))
            );
        }
        Ok(text)
    }

    fn links(&mut self, raw: &[RawLink]) -> Result<Vec<LinkConfig>> {
        let mut links: Vec<LinkConfig> = Vec::new();
        for raw in raw {
            let wrong = |text| self.error(&raw.url.span(), text);
            let url: CableUrl = raw.url.get_ref().parse().map_err(|e: CableUrlError| wrong(e.to_string()))?;
            if matches!(url.transport, Transport::Ethernet { .. }) {
                return Err(wrong(format!(
                    "`{url}` is a link of Ethernet ports; write shm:/path/to.sock or udp:LOCAL-PEER"
                )));
            }
            if let Some(other) = links.iter().find(|l| l.url.transport == url.transport) {
                return Err(wrong(format!("{url} is in use by link {}; give each link its own", other.name)));
            }
            let switch = raw.switch.as_ref().map(|s| (s.get_ref().as_str(), s.span()));
            let place = self.next_port(switch, &raw.name.span())?;
            let trunk = raw.trunk.unwrap_or(false);
            links.push(LinkConfig { name: self.name(&raw.name, place)?, url, place, trunk });
        }
        Ok(links)
    }

    fn hosts(&mut self, raw: &[RawHost]) -> Result<Vec<HostConfig>> {
        let mut hosts: Vec<HostConfig> = Vec::new();
        for raw in raw {
            if hosts.len() >= MAX_HOSTS {
                let what =
                    format!("more than {MAX_HOSTS} hosts; move some to another ibfab and link the two");
                return Err(self.error(&raw.name.span(), what));
            }
            let host = self.host(raw)?;
            if let Some(other) = hosts.iter().find(|h| h.netns == host.netns && h.tun == host.tun) {
                let what = format!(
                    "interface {} is in use by host {}; give each host its own",
                    host.tun, other.name
                );
                return Err(self.error(&raw.name.span(), what));
            }
            // Partitions are separate: the same address in two of them belongs to two hosts.
            let same = |h: &&HostConfig| h.address == host.address && h.pkey.base() == host.pkey.base();
            if let Some(other) = hosts.iter().find(same) {
                let what = format!("{} is host {}'s address", host.address, other.name);
                return Err(self.error(&raw.address.span(), what));
            }
            hosts.push(host);
        }
        Ok(hosts)
    }

    fn host(&mut self, raw: &RawHost) -> Result<HostConfig> {
        let text = raw.address.get_ref();
        let address = text.split_once('/').and_then(|(ip, bits)| {
            let prefix: u8 = bits.parse().ok().filter(|&bits| bits <= 31)?;
            Some((ip.parse::<Ipv4Addr>().ok()?, prefix))
        });
        let (address, prefix) = address.ok_or_else(|| {
            let what = format!("`{text}` is not an address with a prefix; write, for instance, 10.77.0.2/24");
            self.error(&raw.address.span(), what)
        })?;
        let mode = match raw.mode.as_ref().map(|m| (m.get_ref().as_str(), m.span())) {
            None | Some(("connected", _)) => Mode::Connected,
            Some(("datagram", _)) => Mode::Datagram,
            Some((other, at)) => {
                let what = format!("mode `{other}` is neither \"connected\" nor \"datagram\"");
                return Err(self.error(&at, what));
            }
        };
        let mtu = match &raw.mtu {
            None => MAX_IP_MTU,
            Some(mtu) => {
                let number = u32::try_from(*mtu.get_ref()).ok();
                number.filter(|m| (MIN_IP_MTU..=MAX_IP_MTU).contains(m)).ok_or_else(|| {
                    let what = format!("mtu {} is not from {MIN_IP_MTU} to {MAX_IP_MTU}", mtu.get_ref());
                    self.error(&mtu.span(), what)
                })?
            }
        };
        let gateway = match &raw.gateway {
            None => None,
            Some(text) => Some(text.get_ref().parse().map_err(|_| {
                self.error(&text.span(), format!("`{}` is not an IPv4 address", text.get_ref()))
            })?),
        };
        let guid = self.guid(raw.guid.as_ref(), &format!("host {}", raw.name.get_ref()), &raw.name.span())?;
        let pkey = match &raw.pkey {
            None => PKey::DEFAULT,
            Some(key) => self.pkey(key)?,
        };
        let switch = raw.switch.as_ref().map(|s| (s.get_ref().as_str(), s.span()));
        let place = self.next_port(switch, &raw.name.span())?;
        Ok(HostConfig {
            name: self.name(&raw.name, place)?,
            netns: raw.netns.clone(),
            tun: raw.tun.clone().unwrap_or_else(|| "ib0".to_owned()),
            address,
            prefix,
            gateway,
            mtu,
            mode,
            pkey,
            guid,
            grh_required: raw.grh_required.unwrap_or(false),
            place,
        })
    }

    /// Reads the cables. Every switch must have a path to the first, which has the subnet manager.
    fn trunks(&mut self, raw: &[RawTrunk]) -> Result<Vec<TrunkConfig>> {
        let mut trunks = Vec::new();
        for raw in raw {
            let at = raw.between.span();
            let [a, b] = raw.between.get_ref().as_slice() else {
                return Err(self.error(&at, "a trunk has two ends, as in [\"s1\", \"s2\"]".to_owned()));
            };
            if a == b {
                return Err(self.error(&at, format!("both ends are at {a}; a trunk joins two switches")));
            }
            let ends =
                [self.next_port(Some((a, at.clone())), &at)?, self.next_port(Some((b, at.clone())), &at)?];
            let names = [format!("to {b}"), format!("to {a}")];
            trunks.push(TrunkConfig { ends, names, up: raw.up.unwrap_or(true) });
        }
        let mut reached = vec![0];
        let mut at = 0;
        while let Some(&here) = reached.get(at) {
            for trunk in &trunks {
                let [a, b] = trunk.ends.map(|end| end.switch);
                for (from, to) in [(a, b), (b, a)] {
                    if from == here && !reached.contains(&to) {
                        reached.push(to);
                    }
                }
            }
            at += 1;
        }
        let alone = (0..self.switches.len()).find(|at| !reached.contains(at));
        match alone.and_then(|at| self.switches.get(at)).zip(self.switches.first()) {
            None => Ok(trunks),
            Some((alone, first)) => {
                let (a, b) = (&first.name, &alone.name);
                let what = format!(
                    "no path from switch {a}, which has the subnet manager, to {b}; write a [[trunk]] with \
                     between = [\"{a}\", \"{b}\"]"
                );
                Err(self.error(&(0..0), what))
            }
        }
    }

    fn partitions(&self, raw: &[RawPartition], mtu: Mtu) -> Result<Vec<Partition>> {
        let mut partitions: Vec<Partition> = Vec::new();
        for raw in raw {
            let partition = self.partition(raw, mtu)?;
            let at = raw.pkey.span();
            if let Some(other) = partitions.iter().find(|p| p.pkey.base() == partition.pkey.base()) {
                let what = format!(
                    "P_Key {} is that of partition {}; write one of them",
                    partition.pkey, other.name
                );
                return Err(self.error(&at, what));
            }
            if partitions.len() >= MAX_PARTITIONS {
                return Err(self.error(&at, format!("more than {MAX_PARTITIONS} partitions; leave some out")));
            }
            partitions.push(partition);
        }
        Ok(partitions)
    }

    fn partition(&self, raw: &RawPartition, fabric: Mtu) -> Result<Partition> {
        let default = Partition::default_ipoib();
        let pkey = self.pkey(&raw.pkey)?;
        let mtu = match &raw.mtu {
            None => fabric,
            Some(bytes) => {
                let mtu = self.mtu(bytes)?;
                if mtu > fabric {
                    let what = format!("mtu {} is more than the fabric's {}", mtu.bytes(), fabric.bytes());
                    return Err(self.error(&bytes.span(), what));
                }
                mtu
            }
        };
        let rate = match &raw.rate {
            None => default.rate,
            Some(gbits) => {
                let rate = rate_of_gbits(*gbits.get_ref()).filter(|_| *gbits.get_ref() <= LINK_GBITS);
                rate.ok_or_else(|| {
                    self.error(&gbits.span(), "a rate is 2.5, 5, 10, 20, 30 or 40 Gb/s".to_owned())
                })?
            }
        };
        let sl = match &raw.sl {
            None => default.sl,
            Some(sl) => {
                let level = u8::try_from(*sl.get_ref()).ok().filter(|&level| level < 16);
                let level =
                    level.ok_or_else(|| self.error(&sl.span(), "a service level is 0 to 15".to_owned()))?;
                ServiceLevel::new(level)
            }
        };
        Ok(Partition {
            name: raw.name.clone().unwrap_or_else(|| pkey.to_string()),
            pkey,
            ipoib: raw.ipoib.unwrap_or(true),
            qkey: raw.qkey.map_or(default.qkey, QKey),
            mtu,
            rate,
            sl,
            members: self.members(raw.members.as_deref())?,
        })
    }

    fn members(&self, raw: Option<&[Spanned<String>]>) -> Result<Members> {
        let Some(raw) = raw else { return Ok(Members::ALL) };
        let mut members = Members { named: Vec::new(), others: None };
        for text in raw {
            let (name, membership) = match text.get_ref().rsplit_once('=') {
                None => (text.get_ref().as_str(), Membership::Full),
                Some((name, "full")) => (name, Membership::Full),
                Some((name, "limited")) => (name, Membership::Limited),
                Some((_, other)) => {
                    let what = format!("membership `{other}` is neither \"full\" nor \"limited\"");
                    return Err(self.error(&text.span(), what));
                }
            };
            let twice = || self.error(&text.span(), format!("{name} is already a member; list it once"));
            if name == ALL {
                if members.others.replace(membership).is_some() {
                    return Err(twice());
                }
                continue;
            }
            let member = self.member(name).ok_or_else(|| {
                let all: Vec<&str> = self.places.keys().map(String::as_str).collect();
                let what = format!(
                    "`{name}` is not a link, a host or a port GUID of 16 hexadecimal digits; there are: {}",
                    all.join(", ")
                );
                self.error(&text.span(), what)
            })?;
            if members.named.iter().any(|(other, _)| *other == member) {
                return Err(twice());
            }
            members.named.push((member, membership));
        }
        Ok(members)
    }

    fn member(&self, name: &str) -> Option<Member> {
        if let Some(place) = self.places.get(name) {
            return Some(Member::At((self.switches.get(place.switch)?.guid, place.port)));
        }
        read_guid(name).filter(|_| name.trim_start_matches("0x").len() >= 16).map(Member::Guid)
    }
}
