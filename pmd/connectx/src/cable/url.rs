//! Cable URLs, for example `shm:/run/ibfab.sock`, `udp:10.0.0.1:4800-10.0.0.2:4800`, `roce:eth1`.
//!
//! Options: faults as `?loss=0.01&seed=7`; `?crc=keep` to keep CRCs although the cable cannot damage packets;
//! `?key-file=PATH` for a UDP cable.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use super::fault::Faults;

/// Longest name of a network interface (`IFNAMSIZ` without its final zero).
const MAX_INTERFACE: usize = 15;
/// Longest path of a UNIX socket (`sun_path` without its final zero).
const MAX_SOCKET_PATH: usize = 107;

/// Endpoints of a cable and the faults to inject.
#[derive(Clone, PartialEq, Debug)]
pub struct CableUrl {
    /// How packets travel.
    pub transport: Transport,
    /// Packets keep CRCs even if they are not needed ([`super::Crcs`]). It is sufficient if one end sets
    /// this.
    pub keeps_crcs: bool,
    /// File with the key by which the ends of a UDP cable authenticate every datagram.
    pub key_file: Option<PathBuf>,
    /// Faults to inject; none if all are off.
    pub faults: Faults,
}

/// How packets travel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Transport {
    /// Shared memory between two processes of one host. Its descriptor is passed over a UNIX socket.
    SharedMemory {
        /// Absolute path of the socket.
        path: PathBuf,
    },
    /// One packet per UDP datagram.
    Udp {
        /// Local address and port.
        local: SocketAddr,
        /// Address and port of the other end.
        peer: SocketAddr,
    },
    /// RoCEv2 over Ethernet, on a network interface of this host.
    Ethernet {
        /// Name of the interface.
        interface: String,
    },
}

/// An error in a cable URL.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CableUrlError {
    /// None of `shm:`, `udp:`, `roce:`.
    #[error(
        "link URL `{0}` must begin with `shm:`, `udp:` or `roce:`; use shm:/path/to.sock, udp:LOCAL-PEER or \
         roce:INTERFACE"
    )]
    Scheme(String),
    /// The path of a shared-memory cable is invalid.
    #[error("`{0}` is not an absolute path of 2 to 107 bytes; example: shm:/run/ibfab.sock")]
    Path(String),
    /// The two addresses of a UDP cable are invalid.
    #[error("`{0}` is not LOCAL-PEER; example: udp:10.0.0.1:4800-10.0.0.2:4800 (IPv6: [::1]:4800)")]
    Addresses(String),
    /// The two addresses of a UDP cable have different families.
    #[error("{0} and {1} differ in their address family")]
    Families(SocketAddr, SocketAddr),
    /// Not a valid name of a network interface.
    #[error("`{0}` is not the name of a network interface; example: roce:eth1")]
    Interface(String),
    /// The other end's port is 0.
    #[error("the other end's UDP port must not be 0")]
    PeerPort,
    /// Unknown option.
    #[error(
        "unknown link option `{0}`; known options: loss, duplicate, reorder, corrupt, delay, seed, crc, key-file"
    )]
    Option(String),
    /// Invalid value of an option.
    #[error("link option {option}=`{value}`: {want}")]
    Value {
        /// The option.
        option: &'static str,
        /// The value given.
        value: String,
        /// The permitted values.
        want: &'static str,
    },
}

impl FromStr for CableUrl {
    type Err = CableUrlError;

    fn from_str(text: &str) -> Result<Self, CableUrlError> {
        let (place, options) = text.split_once('?').unwrap_or((text, ""));
        let transport = if let Some(path) = place.strip_prefix("shm:") {
            if !path.starts_with('/') || path.len() < 2 || path.len() > MAX_SOCKET_PATH || path.contains('\0')
            {
                return Err(CableUrlError::Path(path.to_owned()));
            }
            Transport::SharedMemory { path: path.into() }
        } else if let Some(pair) = place.strip_prefix("udp:") {
            let (local, peer) = addresses(pair).ok_or_else(|| CableUrlError::Addresses(pair.to_owned()))?;
            if local.is_ipv4() != peer.is_ipv4() {
                return Err(CableUrlError::Families(local, peer));
            }
            if peer.port() == 0 {
                return Err(CableUrlError::PeerPort);
            }
            Transport::Udp { local, peer }
        } else if let Some(name) = place.strip_prefix("roce:") {
            let good = |c: char| c.is_ascii_graphic() && c != '/';
            if name.is_empty() || name.len() > MAX_INTERFACE || !name.chars().all(good) {
                return Err(CableUrlError::Interface(name.to_owned()));
            }
            Transport::Ethernet { interface: name.to_owned() }
        } else {
            return Err(CableUrlError::Scheme(text.to_owned()));
        };
        let mut url = Self { transport, keeps_crcs: false, key_file: None, faults: Faults::default() };
        url.set(options)?;
        Ok(url)
    }
}

fn addresses(pair: &str) -> Option<(SocketAddr, SocketAddr)> {
    let (local, peer) = pair.split_once('-')?;
    Some((local.parse().ok()?, peer.parse().ok()?))
}

impl CableUrl {
    fn set(&mut self, options: &str) -> Result<(), CableUrlError> {
        let Self { transport, keeps_crcs, key_file, faults } = self;
        for option in options.split('&').filter(|o| !o.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            let bad = |option, want| CableUrlError::Value { option, value: value.to_owned(), want };
            match name {
                "loss" => faults.loss = probability("loss", value)?,
                "duplicate" => faults.duplicate = probability("duplicate", value)?,
                "reorder" => faults.reorder = probability("reorder", value)?,
                "corrupt" => faults.corrupt = probability("corrupt", value)?,
                "delay" => faults.delay = delay(value)?,
                "seed" => {
                    faults.seed =
                        value.parse().map_err(|_| bad("seed", "a whole number from 0 to 2^64 - 1"))?;
                }
                "crc" if value == "keep" => *keeps_crcs = true,
                "crc" => {
                    return Err(bad(
                        "crc",
                        "the only value is keep; without it, CRCs are omitted on cables that cannot damage packets",
                    ));
                }
                "key-file" => {
                    let has_key = matches!(transport, Transport::Udp { .. });
                    if !has_key || !value.starts_with('/') || value.contains('\0') {
                        return Err(bad("key-file", "an absolute path, for udp: only"));
                    }
                    *key_file = Some(value.into());
                }
                _ => return Err(CableUrlError::Option(name.to_owned())),
            }
        }
        Ok(())
    }
}

fn probability(option: &'static str, value: &str) -> Result<f64, CableUrlError> {
    let bad = || CableUrlError::Value { option, value: value.to_owned(), want: "a probability from 0 to 1" };
    let p: f64 = value.parse().map_err(|_| bad())?;
    if (0.0..=1.0).contains(&p) { Ok(p) } else { Err(bad()) }
}

fn delay(value: &str) -> Result<Duration, CableUrlError> {
    let bad = || CableUrlError::Value {
        option: "delay",
        value: value.to_owned(),
        want: "a time of at most one second, such as 500us or 2ms",
    };
    let (number, unit) = value.split_at(value.find(|c: char| !c.is_ascii_digit()).unwrap_or(value.len()));
    let n: u64 = number.parse().map_err(|_| bad())?;
    let time = match unit {
        "us" => Duration::from_micros(n),
        "ms" => Duration::from_millis(n),
        "s" => Duration::from_secs(n),
        _ => return Err(bad()),
    };
    if time <= Duration::from_secs(1) { Ok(time) } else { Err(bad()) }
}

impl fmt::Display for CableUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.transport {
            Transport::SharedMemory { path } => write!(f, "shm:{}", path.display()),
            Transport::Udp { local, peer } => write!(f, "udp:{local}-{peer}"),
            Transport::Ethernet { interface } => write!(f, "roce:{interface}"),
        }?;
        let off = Faults::default();
        let mut separator = '?';
        let mut option = |f: &mut fmt::Formatter<'_>, name: &str, value: &dyn fmt::Display, set: bool| {
            if set {
                write!(f, "{separator}{name}={value}")?;
                separator = '&';
            }
            Ok::<(), fmt::Error>(())
        };
        let faults = &self.faults;
        option(f, "loss", &faults.loss, faults.loss > 0.0)?;
        option(f, "duplicate", &faults.duplicate, faults.duplicate > 0.0)?;
        option(f, "reorder", &faults.reorder, faults.reorder > 0.0)?;
        option(f, "corrupt", &faults.corrupt, faults.corrupt > 0.0)?;
        option(f, "delay", &format_args!("{}us", faults.delay.as_micros()), faults.delay > off.delay)?;
        option(f, "seed", &faults.seed, faults.seed != off.seed)?;
        option(f, "crc", &"keep", self.keeps_crcs)?;
        match &self.key_file {
            Some(path) => option(f, "key-file", &path.display(), true),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_urls_round_trip() {
        for text in [
            "shm:/run/ibfab.sock",
            "udp:10.0.0.1:4800-10.0.0.2:4801",
            "roce:eth1.100?loss=0.5",
            "udp:[::1]:1-[::1]:2?loss=0.25&seed=7",
            "shm:/run/ibfab.sock?crc=keep",
            "udp:10.0.0.1:1-10.0.0.2:1?loss=0.5&crc=keep",
            "udp:10.0.0.1:1-10.0.0.2:1?key-file=/etc/ipoib-fwd/cable.key",
            "shm:/a?duplicate=0.5&reorder=0.125&corrupt=1&delay=2500us",
        ] {
            let url: CableUrl = text.parse().expect(text);
            assert_eq!(url.to_string(), text);
            assert_eq!(url.to_string().parse::<CableUrl>(), Ok(url));
        }
        let url: CableUrl = "shm:/a?delay=3ms".parse().unwrap();
        assert_eq!(url.faults.delay, Duration::from_millis(3));
    }

    #[test]
    fn bad_urls_are_reported_with_a_hint() {
        for (text, hint) in [
            ("tcp:1", "shm:/path/to.sock"),
            ("shm:gw.sock", "shm:/run/ibfab.sock"),
            ("udp:10.0.0.1:4800", "LOCAL-PEER"),
            ("udp:10.0.0.1:1-[::1]:2", "address family"),
            ("udp:10.0.0.1:1-10.0.0.1:0", "must not be 0"),
            ("roce:", "roce:eth1"),
            ("roce:a/b", "roce:eth1"),
            ("roce:way-too-long-a-name", "roce:eth1"),
            ("shm:/a?los=1", "reorder"),
            ("shm:/a?loss=1.5", "from 0 to 1"),
            ("shm:/a?loss=NaN", "from 0 to 1"),
            ("shm:/a?delay=2", "500us"),
            ("shm:/a?delay=2000ms", "one second"),
            ("shm:/a?seed=-1", "whole number"),
            ("shm:/a?crc=no", "keep"),
            ("shm:/a?crc", "keep"),
            ("shm:/a?key-file=/k", "udp: only"),
            ("udp:10.0.0.1:1-10.0.0.2:1?key-file=k", "absolute path"),
        ] {
            let error = text.parse::<CableUrl>().expect_err(text).to_string();
            assert!(error.contains(hint), "{text}: {error}");
        }
        let long = format!("shm:/{}", "x".repeat(107));
        assert!(long.parse::<CableUrl>().is_err());
    }
}
