//! Addresses, prefixes and routes.

use std::fmt;
use std::net::Ipv4Addr;

use toml::Spanned;

use crate::value::{Fault, MayLack, Value};

/// A network: an address without host bits, and the length of its prefix.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Prefix {
    address: Ipv4Addr,
    len: u8,
}

impl Prefix {
    /// Returns `None` if `len` is above 32 or `address` has host bits.
    #[must_use]
    pub const fn new(address: Ipv4Addr, len: u8) -> Option<Self> {
        if len > 32 || address.to_bits() & host_bits(len) != 0 {
            return None;
        }
        Some(Self { address, len })
    }

    /// Returns the network address.
    #[must_use]
    pub const fn address(self) -> Ipv4Addr {
        self.address
    }

    /// Length in bits, 0 to 32.
    #[must_use]
    pub const fn prefix_len(self) -> u8 {
        self.len
    }

    /// True if the network contains the address.
    #[must_use]
    pub const fn contains(self, address: Ipv4Addr) -> bool {
        address.to_bits() & !host_bits(self.len) == self.address.to_bits()
    }

    /// True if the network contains all of `other`.
    #[must_use]
    pub const fn covers(self, other: Self) -> bool {
        self.len <= other.len && self.contains(other.address)
    }

    /// True if a single host can have this address. Prefixes of 31 or 32 bits have neither a network nor a
    /// broadcast address (RFC 3021).
    #[must_use]
    pub const fn has_host(self, address: Ipv4Addr) -> bool {
        let host = address.to_bits() & host_bits(self.len);
        self.contains(address) && (self.len >= 31 || (host != 0 && host != host_bits(self.len)))
    }
}

/// Returns the mask of host bits for a prefix of `len` bits, at most 32.
const fn host_bits(len: u8) -> u32 {
    if len >= 32 { 0 } else { u32::MAX >> len }
}

/// Returns the network of `len` bits that contains an address.
const fn network(address: Ipv4Addr, len: u8) -> Prefix {
    Prefix { address: Ipv4Addr::from_bits(address.to_bits() & !host_bits(len)), len }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.len)
    }
}

/// A gateway address with the prefix length of its network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Interface {
    /// Host address within the prefix.
    pub address: Ipv4Addr,
    /// Prefix length, 1 to 31.
    pub prefix_len: u8,
}

impl Interface {
    /// Returns the network.
    #[must_use]
    pub const fn prefix(self) -> Prefix {
        network(self.address, self.prefix_len)
    }
}

impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix_len)
    }
}

/// A route to another network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Route {
    /// Destination network; `0.0.0.0/0` is the default route.
    pub to: Prefix,
    /// Next hop, a host of the segment's own subnets.
    pub via: Ipv4Addr,
}

/// True if the address can belong to a host, as far as that is known without its network.
const fn is_unicast(address: Ipv4Addr) -> bool {
    let [first, ..] = address.octets();
    first != 0 && first != 127 && first < 224
}

/// Parses `ADDRESS/LENGTH`.
fn split(text: &str, remedy: &str, longest: u8) -> Result<(Ipv4Addr, u8), Fault> {
    let bad = |what: String| Fault::new(what, remedy);
    let (address, len) = text.split_once('/').ok_or_else(|| bad(format!("`{text}` has no prefix length")))?;
    let address = address.parse().map_err(|_| bad(format!("`{address}` is not an IPv4 address")))?;
    let shortest = u8::from(longest < 32);
    let len = len
        .parse::<u8>()
        .ok()
        .filter(|len| (shortest..=longest).contains(len))
        .ok_or_else(|| bad(format!("`{len}` is not a prefix length from {shortest} to {longest}")))?;
    Ok((address, len))
}

impl MayLack for Interface {}

impl Value for Interface {
    type Raw = String;
    type Legal = ();

    fn read(_: &str, text: String, _: Option<()>) -> Result<Self, Fault> {
        let remedy = "write an address of the gateway's own with the length of the subnet's prefix, \
                      for example \"10.77.0.254/24\"";
        let (address, prefix_len) = split(&text, remedy, 31)?;
        if !is_unicast(address) || !network(address, prefix_len).has_host(address) {
            return Err(Fault::new(format!("`{text}` is not the address of one host"), remedy));
        }
        Ok(Self { address, prefix_len })
    }

    fn toml(&self) -> Option<String> {
        Some(format!("\"{self}\""))
    }
}

/// Destination of a route: any unicast network, or the default route.
impl Value for Prefix {
    type Raw = String;
    type Legal = ();

    fn read(key: &str, text: String, _: Option<()>) -> Result<Self, Fault> {
        let remedy = "write the network address with its prefix length, for example \"10.78.0.0/16\"";
        let (address, len) = split(&text, remedy, 32)?;
        let right = network(address, len);
        if right.address != address {
            let what = format!("{key} = \"{text}\" has host bits after its prefix");
            return Err(Fault::new(what, format!("write \"{right}\"")));
        }
        if len != 0 && !is_unicast(address) {
            return Err(Fault::new(format!("{key} = \"{text}\" is not a unicast network"), remedy));
        }
        Ok(right)
    }

    fn toml(&self) -> Option<String> {
        Some(format!("\"{self}\""))
    }
}

/// Subnets: distinct networks other than the default route.
impl Value for Vec<Prefix> {
    type Raw = Vec<Spanned<String>>;
    /// Maximum number of subnets.
    type Legal = usize;

    fn read(key: &str, raw: Self::Raw, most: Option<usize>) -> Result<Self, Fault> {
        if let Some(most) = most.filter(|most| raw.len() > *most) {
            let what = format!("{key} has {} entries", raw.len());
            return Err(Fault::new(what, format!("write at most {most}; one shorter prefix can cover many")));
        }
        let mut all = Self::new();
        for text in raw {
            let span = Some(text.span());
            let prefix = Prefix::read(key, text.into_inner(), None)
                .map_err(|fault| Fault { span: span.clone(), ..fault })?;
            if prefix.len == 0 {
                let what = format!("{key} contains {prefix}: not every network is on the link");
                let remedy =
                    "list the link's networks, and add a [[segment.route]] to 0.0.0.0/0 for all others";
                return Err(Fault { span, ..Fault::new(what, remedy) });
            }
            if all.contains(&prefix) {
                return Err(Fault {
                    span,
                    ..Fault::new(format!("{key} contains {prefix} twice"), "write it once")
                });
            }
            all.push(prefix);
        }
        Ok(all)
    }

    fn toml(&self) -> Option<String> {
        let all: Vec<String> = self.iter().map(|p| format!("\"{p}\"")).collect();
        Some(format!("[{}]", all.join(", ")))
    }

    fn range(most: Option<usize>) -> Option<String> {
        most.map(|most| format!("at most {most}"))
    }
}

/// Next hop of a route.
impl Value for Ipv4Addr {
    type Raw = String;
    type Legal = ();

    fn read(key: &str, text: String, _: Option<()>) -> Result<Self, Fault> {
        let remedy = "write the address of a router of the segment, for example \"10.77.0.1\"";
        match text.parse() {
            Ok(address) if is_unicast(address) => Ok(address),
            Ok(_) => Err(Fault::new(format!("{key} = \"{text}\" is not the address of one host"), remedy)),
            Err(_) => Err(Fault::new(format!("`{text}` is not an IPv4 address"), remedy)),
        }
    }

    fn toml(&self) -> Option<String> {
        Some(format!("\"{self}\""))
    }
}
