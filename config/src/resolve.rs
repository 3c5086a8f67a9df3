//! From the file to the typed configuration.

use std::net::Ipv4Addr;
use std::ops::{Range, RangeInclusive};
use std::path::Path;
use std::str::FromStr;

use toml::Spanned;

use crate::error::{ConfigError, Place};
use crate::raw::{Key, Raw, RawBuffers, RawEthernet, RawGateway, RawInfiniBand, RawSoft, RawSoftPort};
use crate::settings::{
    Buffers, Config, Driver, Ethernet, Gateway, Idle, InfiniBand, Ipv4Interface, Mode, Overrides, Soft,
    SoftPort,
};

impl Default for Config {
    /// What an empty file means.
    fn default() -> Self {
        Self {
            gateway: Gateway {
                address: None,
                idle: Idle::Sleep,
                gids: None,
                control_socket: Some("/run/ipoib-fwd.sock".into()),
                stats_seconds: 0,
            },
            ethernet: Ethernet {
                port: None,
                mtu: 1500,
                rx_descriptors: 1024,
                tx_descriptors: 1024,
                promiscuous: false,
            },
            infiniband: InfiniBand {
                driver: Driver::Auto,
                device: None,
                port: 1,
                pkey: 0xffff,
                scope: 2,
                mode: Mode::Connected,
                receive_mtu: 65520,
                ud_send_depth: 512,
                ud_receive_depth: 512,
                srq_depth: 512,
                srq_low: 128,
                max_connections: 4096,
                connection_send_depth: 1024,
                retry_count: 0,
                rnr_retry: 0,
                connection_idle_seconds: 512,
                neighbour_idle_seconds: 60,
                soft: None,
            },
            buffers: Buffers { count: None, data_room: 4096, cache: 256 },
        }
    }
}

impl Config {
    /// Reads a file and puts the command line's overrides on top.
    pub fn load(file: &Path, overrides: &Overrides) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(file)
            .map_err(|source| ConfigError::Read { file: file.to_owned(), source })?;
        let mut config = Self::parse(file, &text)?;
        config.apply(overrides);
        Ok(config)
    }

    /// Reads `text`, the content of `file`, whose name only serves errors.
    pub fn parse(file: &Path, text: &str) -> Result<Self, ConfigError> {
        let raw: Raw = toml::from_str(text).map_err(|e| ConfigError::toml(file, text, &e))?;
        Resolver { file, text }.config(raw)
    }

    /// The default configuration as a file that explains every key.
    #[must_use]
    pub fn annotated_default() -> String {
        let mut out = String::from(
            "# Configuration of ipoib-fwd. Every key is shown with its default; a key without a default is shown as a\n\
             # comment with an example.\n",
        );
        section(&mut out, "", "gateway", RawGateway::KEYS);
        section(&mut out, "", "ethernet", RawEthernet::KEYS);
        section(&mut out, "", "infiniband", RawInfiniBand::KEYS);
        out.push_str(
            "\n# The software ConnectX: an InfiniBand port without hardware, on a fabric made by ibfab.\n",
        );
        section(&mut out, "# ", "infiniband.soft", RawSoft::KEYS);
        section(&mut out, "", "buffers", RawBuffers::KEYS);
        out
    }
}

/// Writes a section; with a prefix of `# ` all of it is an example.
fn section(out: &mut String, prefix: &str, name: &str, keys: &[Key]) {
    if prefix.is_empty() {
        out.push('\n');
    }
    out.push_str(&format!("{prefix}[{name}]\n"));
    for key in keys {
        for line in key.doc {
            out.push_str(&format!("{prefix}#{line}\n"));
        }
        let key_name = key.name.replace('_', "-");
        match key.default.strip_prefix("# ") {
            Some(example) => out.push_str(&format!("{prefix}# {key_name} = {example}\n")),
            None => out.push_str(&format!("{prefix}{key_name} = {}\n", key.default)),
        }
    }
}

struct Resolver<'f> {
    file: &'f Path,
    text: &'f str,
}

impl Resolver<'_> {
    fn config(&self, raw: Raw) -> Result<Config, ConfigError> {
        let default = Config::default();
        let config = Config {
            gateway: self.gateway(raw.gateway, default.gateway)?,
            ethernet: self.ethernet(raw.ethernet, default.ethernet)?,
            infiniband: self.infiniband(raw.infiniband, default.infiniband)?,
            buffers: self.buffers(&raw.buffers, default.buffers)?,
        };
        if let (Some(count), Some(value)) = (config.buffers.count, &raw.buffers.count) {
            let needed = config.buffers_needed(1);
            if count < needed {
                return Err(self.error(
                    value.span(),
                    format!(
                        "{count} buffers are too few for these queues, which need {needed} for one worker"
                    ),
                    "write 0 to have them counted, or make srq-depth smaller",
                ));
            }
        }
        Ok(config)
    }

    fn gateway(&self, raw: RawGateway, default: Gateway) -> Result<Gateway, ConfigError> {
        Ok(Gateway {
            address: raw.address.map(|a| self.interface(&a)).transpose()?,
            idle: self.word(raw.idle, default.idle)?,
            gids: raw.gids.map(Spanned::into_inner).filter(|path| !path.is_empty()).map(Into::into),
            control_socket: match raw.control_socket {
                Some(path) => {
                    // A UNIX socket's address holds 107 bytes and a zero.
                    if path.get_ref().len() > 107 {
                        let what = "the path of the control socket is longer than 107 bytes";
                        return Err(self.error(path.span(), what, "choose a shorter one"));
                    }
                    Some(path.into_inner()).filter(|p| !p.is_empty()).map(Into::into)
                }
                None => default.control_socket,
            },
            stats_seconds: self.number(
                "stats-seconds",
                raw.stats_seconds.as_ref(),
                default.stats_seconds,
                0..=86_400,
            )?,
        })
    }

    fn ethernet(&self, raw: RawEthernet, default: Ethernet) -> Result<Ethernet, ConfigError> {
        Ok(Ethernet {
            port: name(raw.port),
            mtu: self.number("mtu", raw.mtu.as_ref(), default.mtu, 576..=9700)?,
            rx_descriptors: self.number(
                "rx-descriptors",
                raw.rx_descriptors.as_ref(),
                default.rx_descriptors,
                64..=32_768,
            )?,
            tx_descriptors: self.number(
                "tx-descriptors",
                raw.tx_descriptors.as_ref(),
                default.tx_descriptors,
                64..=32_768,
            )?,
            promiscuous: raw.promiscuous.map_or(default.promiscuous, Spanned::into_inner),
        })
    }

    fn infiniband(&self, raw: RawInfiniBand, default: InfiniBand) -> Result<InfiniBand, ConfigError> {
        let depth = 64..=32_768;
        let pkey = self.number("pkey", raw.pkey.as_ref(), default.pkey, 1..=0xffff)?;
        if let (0, Some(value)) = (pkey & 0x7fff, &raw.pkey) {
            return Err(self.error(
                value.span(),
                "P_Key 0x8000 names no partition",
                "write 0xffff for the default partition",
            ));
        }
        let driver = match &raw.driver {
            Some(word) => self.parse_word(word)?,
            None => default.driver,
        };
        let soft = raw.soft.map(|s| self.soft(s)).transpose()?;
        if let (Driver::Soft, None, Some(word)) = (driver, &soft, &raw.driver) {
            return Err(self.error(
                word.span(),
                "the software ConnectX has no ports",
                "add [infiniband.soft] with ports = [{ link = \"shm:/run/ibfab/gw.sock\" }]",
            ));
        }
        let port = self.number("port", raw.port.as_ref(), default.port, 1..=254)?;
        if let (Some(soft), Some(value)) = (&soft, &raw.port)
            && matches!(driver, Driver::Auto | Driver::Soft)
            && usize::from(port) > soft.ports.len()
        {
            let what =
                format!("the software ConnectX has {} port(s), so there is no port {port}", soft.ports.len());
            return Err(self.error(value.span(), what, "count from 1, or add a port to [infiniband.soft]"));
        }
        let srq_depth = self.number("srq-depth", raw.srq_depth.as_ref(), default.srq_depth, 16..=32_768)?;
        Ok(InfiniBand {
            driver,
            device: name(raw.device),
            port,
            pkey,
            scope: self.number("scope", raw.scope.as_ref(), default.scope, 1..=14)?,
            mode: self.word(raw.mode, default.mode)?,
            receive_mtu: self.number(
                "receive-mtu",
                raw.receive_mtu.as_ref(),
                default.receive_mtu,
                576..=65_520,
            )?,
            ud_send_depth: self.number(
                "ud-send-depth",
                raw.ud_send_depth.as_ref(),
                default.ud_send_depth,
                depth.clone(),
            )?,
            ud_receive_depth: self.number(
                "ud-receive-depth",
                raw.ud_receive_depth.as_ref(),
                default.ud_receive_depth,
                depth,
            )?,
            srq_depth,
            srq_low: self.number("srq-low", raw.srq_low.as_ref(), srq_depth / 4, 0..=srq_depth - 1)?,
            max_connections: self.number(
                "max-connections",
                raw.max_connections.as_ref(),
                default.max_connections,
                2..=65_535,
            )?,
            connection_send_depth: self.number(
                "connection-send-depth",
                raw.connection_send_depth.as_ref(),
                default.connection_send_depth,
                4..=8192,
            )?,
            retry_count: self.number("retry-count", raw.retry_count.as_ref(), default.retry_count, 0..=7)?,
            rnr_retry: self.number("rnr-retry", raw.rnr_retry.as_ref(), default.rnr_retry, 0..=7)?,
            connection_idle_seconds: self.number(
                "connection-idle-seconds",
                raw.connection_idle_seconds.as_ref(),
                default.connection_idle_seconds,
                1..=86_400,
            )?,
            neighbour_idle_seconds: self.number(
                "neighbour-idle-seconds",
                raw.neighbour_idle_seconds.as_ref(),
                default.neighbour_idle_seconds,
                1..=86_400,
            )?,
            soft,
        })
    }

    fn soft(&self, raw: RawSoft) -> Result<Soft, ConfigError> {
        let ports = match raw.ports {
            Some(ports) if (1..=2).contains(&ports.get_ref().len()) => ports.into_inner(),
            Some(ports) => {
                let what =
                    format!("the software ConnectX has one or two ports, not {}", ports.get_ref().len());
                return Err(self.error(
                    ports.span(),
                    what,
                    "write ports = [{ link = \"shm:/run/ibfab/gw.sock\" }]",
                ));
            }
            None => {
                let at = self.text.find("[infiniband.soft]").unwrap_or(0);
                let what = "[infiniband.soft] has no ports";
                return Err(self.error(at..at, what, "add ports = [{ link = \"shm:/run/ibfab/gw.sock\" }]"));
            }
        };
        Ok(Soft {
            node_guid: raw.node_guid.map(|g| g.into_inner().0),
            seed: match &raw.seed {
                Some(seed) => Some(self.number("seed", Some(seed), 0, 0..=i64::MAX as u64)?),
                None => None,
            },
            gid_table: self.number("gid-table", raw.gid_table.as_ref(), 128, 1..=255)?,
            ports: ports.into_iter().map(|p| self.soft_port(p.into_inner())).collect::<Result<_, _>>()?,
        })
    }

    fn soft_port(&self, raw: RawSoftPort) -> Result<SoftPort, ConfigError> {
        let link = raw.link.get_ref();
        if !link.strip_prefix("shm:").is_some_and(|path| path.starts_with('/'))
            && !link.strip_prefix("udp:").is_some_and(|pair| pair.contains('-'))
        {
            return Err(self.error(
                raw.link.span(),
                format!("`{link}` is not the URL of a link"),
                "write for instance shm:/run/ibfab/gw.sock or udp:10.0.0.1:4800-10.0.0.2:4800",
            ));
        }
        let mtu: u16 = self.number("mtu", raw.mtu.as_ref(), 4096, 256..=4096)?;
        if let (false, Some(value)) = (mtu.is_power_of_two(), &raw.mtu) {
            let what = format!("{mtu} is not an InfiniBand MTU");
            return Err(self.error(value.span(), what, "write 256, 512, 1024, 2048 or 4096"));
        }
        Ok(SoftPort { link: raw.link.into_inner(), mtu, guid: raw.guid.map(|g| g.into_inner().0) })
    }

    fn buffers(&self, raw: &RawBuffers, default: Buffers) -> Result<Buffers, ConfigError> {
        let data_room = self.number("data-room", raw.data_room.as_ref(), default.data_room, 2048..=16_384)?;
        if let (false, Some(value)) = (data_room.is_multiple_of(64), &raw.data_room) {
            let what = format!("data-room = {data_room} is not a multiple of 64");
            let remedy = format!("write {}", data_room.next_multiple_of(64));
            return Err(self.error(value.span(), what, remedy));
        }
        let count = self.number("count", raw.count.as_ref(), 0, 0..=16_777_215)?;
        Ok(Buffers {
            count: (count != 0).then_some(count),
            data_room,
            cache: self.number("cache", raw.cache.as_ref(), default.cache, 0..=512)?,
        })
    }

    fn interface(&self, value: &Spanned<String>) -> Result<Ipv4Interface, ConfigError> {
        let text = value.get_ref();
        let remedy = "write an address of the gateway's own with the length of the subnet's prefix, \
                      for instance \"10.77.0.254/24\"";
        let bad = |what: String| self.error(value.span(), what, remedy);
        let (address, prefix) =
            text.split_once('/').ok_or_else(|| bad(format!("`{text}` has no prefix length")))?;
        let address: Ipv4Addr =
            address.parse().map_err(|_| bad(format!("`{address}` is not an IPv4 address")))?;
        let prefix_len = prefix
            .parse::<u8>()
            .ok()
            .filter(|p| (1..=31).contains(p))
            .ok_or_else(|| bad(format!("`{prefix}` is not a prefix length from 1 to 31")))?;
        let host_bits = u32::MAX >> prefix_len;
        let host = address.to_bits() & host_bits;
        let [first, ..] = address.octets();
        if first == 0 || first == 127 || first >= 224 || (prefix_len < 31 && (host == 0 || host == host_bits))
        {
            return Err(bad(format!("`{text}` is not the address of one host")));
        }
        Ok(Ipv4Interface { address, prefix_len })
    }

    fn word<T: FromStr<Err = String>>(
        &self,
        value: Option<Spanned<String>>,
        default: T,
    ) -> Result<T, ConfigError> {
        value.map_or(Ok(default), |v| self.parse_word(&v))
    }

    fn parse_word<T: FromStr<Err = String>>(&self, value: &Spanned<String>) -> Result<T, ConfigError> {
        value
            .get_ref()
            .parse()
            .map_err(|what: String| self.error(value.span(), what, "write one of these words"))
    }

    fn number<T>(
        &self,
        key: &str,
        value: Option<&Spanned<i64>>,
        default: T,
        legal: RangeInclusive<T>,
    ) -> Result<T, ConfigError>
    where
        T: TryFrom<i64> + PartialOrd + std::fmt::Display + Copy,
    {
        let Some(value) = value else { return Ok(default) };
        T::try_from(*value.get_ref()).ok().filter(|v| legal.contains(v)).ok_or_else(|| {
            self.error(
                value.span(),
                format!("{key} = {} is out of range", value.get_ref()),
                format!("write a number from {} to {}", legal.start(), legal.end()),
            )
        })
    }

    fn error(&self, span: Range<usize>, what: impl Into<String>, remedy: impl Into<String>) -> ConfigError {
        ConfigError::File {
            place: Place::new(self.file, self.text, span),
            what: what.into(),
            remedy: remedy.into(),
        }
    }
}

/// A name that may be left empty.
fn name(value: Option<Spanned<String>>) -> Option<String> {
    value.map(Spanned::into_inner).filter(|name| !name.is_empty())
}
