//! The ports that the gateway opens, and the ports of each segment.

use config::{Config, Segment};

use crate::forward::{EndpointIndex, EthernetIndex};

/// An Ethernet port by its name.
#[derive(Clone, Debug)]
pub(super) struct EthernetName {
    /// `None` for the only port.
    pub(super) name: Option<String>,
    /// The first segment that names it, by its index in the configuration.
    pub(super) segment: usize,
}

/// An InfiniBand port by its device and its number there.
#[derive(Clone, Debug)]
pub(super) struct InfiniBandName {
    /// `None` for the first device.
    pub(super) device: Option<String>,
    pub(super) port: u8,
    /// The first segment that names it, by its index in the configuration.
    pub(super) segment: usize,
}

/// The names of all ports in the configuration at the start, by their indexes.
#[derive(Clone, Debug)]
pub(super) struct PortNames {
    /// Indexed by [`EthernetIndex`].
    pub(super) ethernets: Vec<EthernetName>,
    /// Indexed by [`EndpointIndex`].
    pub(super) infinibands: Vec<InfiniBandName>,
}

impl PortNames {
    /// Ports in the order in which segments name them.
    pub(super) fn of(config: &Config) -> Self {
        let first = |is: &dyn Fn(&Segment) -> bool| config.segments.iter().position(is).unwrap_or(0);
        let ethernet = |name: Option<&str>| EthernetName {
            name: name.map(str::to_owned),
            segment: first(&|s| s.ethernet.as_deref() == name),
        };
        let infiniband = |(device, port): (Option<&str>, u8)| InfiniBandName {
            device: device.map(str::to_owned),
            port,
            segment: first(&|s| (config.device_of(s), s.port) == (device, port)),
        };
        Self {
            ethernets: config.ethernet_ports().map(ethernet).collect(),
            infinibands: config.infiniband_ports().map(infiniband).collect(),
        }
    }

    /// The URL of the link of each InfiniBand port of the software ConnectX; `None` for other ports.
    pub(super) fn urls(&self, config: &Config) -> Vec<Option<String>> {
        let url = |name: &InfiniBandName| {
            let soft = config.infiniband.soft_device(name.device.as_deref())?;
            let port = usize::from(name.port).checked_sub(1)?;
            Some(soft.ports.get(port)?.link.clone())
        };
        self.infinibands.iter().map(url).collect()
    }

    /// A segment's ports. `None` if one of them was not opened at the start.
    pub(super) fn of_segment(
        &self,
        config: &Config,
        segment: &Segment,
    ) -> Option<(EthernetIndex, EndpointIndex)> {
        let ethernet = self.ethernets.iter().position(|port| port.name == segment.ethernet)?;
        let device = config.device_of(segment);
        let infiniband = self
            .infinibands
            .iter()
            .position(|name| name.device.as_deref() == device && name.port == segment.port)?;
        Some((EthernetIndex(u8::try_from(ethernet).ok()?), EndpointIndex(u8::try_from(infiniband).ok()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOFT: &str = "[[infiniband.soft-device]]\nname = \"a\"\nports = [{ link = \"shm:/1\" }, { link = \"shm:/2\" }]\n\
                        [[infiniband.soft-device]]\nname = \"b\"\nports = [{ link = \"shm:/3\" }]\n";

    fn parse(segments: &[(&str, &str, u8, u16)]) -> Config {
        let mut text = SOFT.to_owned();
        for (ethernet, device, port, vlan) in segments {
            let pkey = 0x8000 + vlan;
            text += &format!(
                "[[segment]]\nethernet = \"{ethernet}\"\ndevice = \"{device}\"\nport = {port}\nvlan = {vlan}\npkey = {pkey:#x}\n"
            );
        }
        Config::parse(std::path::Path::new("gateway.toml"), &text).unwrap()
    }

    #[test]
    fn ports_are_numbered_as_segments_name_them_and_those_not_open_are_not_found() {
        let config = parse(&[("e0", "a", 2, 1), ("e1", "a", 1, 2), ("e0", "b", 1, 3), ("e1", "a", 2, 4)]);
        let names = PortNames::of(&config);
        let of = |config: &Config| -> Vec<_> {
            let numbers = |s| names.of_segment(config, s).map(|(e, i)| (e.0, i.0));
            config.segments.iter().map(numbers).collect()
        };
        assert_eq!(of(&config), [Some((0, 0)), Some((1, 1)), Some((0, 2)), Some((1, 0))]);
        let segments: Vec<usize> = names.ethernets.iter().map(|name| name.segment).collect();
        assert_eq!(segments, [0, 1]);
        let segments: Vec<usize> = names.infinibands.iter().map(|name| name.segment).collect();
        assert_eq!(segments, [0, 1, 2]);
        let later = parse(&[("e1", "a", 1, 2), ("e2", "a", 1, 3), ("e0", "b", 1, 5)]);
        assert_eq!(of(&later), [Some((1, 1)), None, Some((0, 2))]);
    }
}
