//! The devices of the InfiniBand ports, opened from the configuration, all by one driver.

use connectx::cable::{CableEnd, CableUrl};
use dataplane::capture::Capture;
use ib_wire::{Guid, Mtu};
use pmd::hca::{HcaError, PortNumber, Shared};
use pmd::soft::{SoftConfig, SoftHca};
use pmd::verbs::{Mlx5Hca, VerbsHca};

use config::{Config, Driver, Soft};

use super::error::{GatewayError, Places};
use super::port_names::{InfiniBandName, PortNames};
use super::random::random;

/// The devices, one entry for each InfiniBand port, as far as they can be opened before EAL starts. A device
/// of the host is opened once for each of its ports.
#[derive(Debug)]
pub(super) enum Devices {
    /// Software ConnectX.
    Soft(Vec<SoftParts>),
    /// Open devices of the host, driven by libibverbs.
    Verbs(Vec<VerbsHca>),
    /// Open ConnectX of the host, driven by their rings.
    Mlx5(Vec<Mlx5Hca>),
}

/// The key whose location is reported when a software device cannot be opened.
const SOFT_PORTS: &str = "infiniband.soft.ports";

/// The parts of a software ConnectX, and its ports that are used.
#[derive(Debug)]
pub(super) struct SoftParts {
    config: SoftConfig,
    links: Vec<CableUrl>,
    /// Ports that need a GRH in every packet.
    virtual_ports: Vec<PortNumber>,
    /// Its index in the configuration.
    number: usize,
    /// Indexes of its ports among the gateway's ports.
    places: Vec<usize>,
}

pub(super) fn no_device() -> GatewayError {
    GatewayError::Unsupported(
        "no InfiniBand device: add [infiniband.soft] with ports = [{ link = \"shm:/run/ibfab.sock\" }] and start \
         ibfab, or load the driver of a host channel adapter (modprobe mlx5_ib ib_uverbs ib_umad)"
            .to_owned(),
    )
}

impl Devices {
    pub(super) fn choose(config: &Config, names: &PortNames, places: &Places) -> Result<Self, GatewayError> {
        let ports = &names.infinibands;
        let driver = match config.infiniband.driver {
            Driver::Auto if config.infiniband.is_soft() => Driver::Soft,
            Driver::Auto if pmd::verbs::devices()?.is_empty() => return Err(no_device()),
            // One driver for all devices: their rings, if every device supports them.
            Driver::Auto => {
                let mut all = Driver::Mlx5;
                for name in ports {
                    let device = pmd::verbs::find(name.device.as_deref(), PortNumber(name.port));
                    if !device.map_err(|e| name.wrong(places, e))?.is_mlx5 {
                        all = Driver::Verbs;
                    }
                }
                all
            }
            chosen => chosen,
        };
        Ok(match driver {
            Driver::Soft => Self::Soft(soft_parts(config, ports, places)?),
            Driver::Mlx5 => Self::Mlx5(open(ports, places, Mlx5Hca::open)?),
            Driver::Auto | Driver::Verbs => Self::Verbs(open(ports, places, VerbsHca::open)?),
        })
    }
}

fn open<B>(
    names: &[InfiniBandName],
    places: &Places,
    open: impl Fn(Option<&str>, PortNumber) -> Result<B, HcaError>,
) -> Result<Vec<B>, GatewayError> {
    let one = |name: &InfiniBandName| {
        open(name.device.as_deref(), PortNumber(name.port)).map_err(|e| name.wrong(places, e))
    };
    names.iter().map(one).collect()
}

impl InfiniBandName {
    /// Adds the location of its key to an error of opening it.
    pub(super) fn wrong(&self, places: &Places, error: impl Into<GatewayError>) -> GatewayError {
        let key = if self.device.is_some() { "segment.device" } else { "segment.port" };
        places.at(key, Some(self.segment), error)
    }
}

fn soft_parts(
    config: &Config,
    names: &[InfiniBandName],
    places: &Places,
) -> Result<Vec<SoftParts>, GatewayError> {
    let mut all: Vec<SoftParts> = Vec::new();
    for (place, name) in names.iter().enumerate() {
        let Some(soft) = config.infiniband.soft_device(name.device.as_deref()) else {
            return Err(no_device());
        };
        let number = config.infiniband.soft.iter().position(|s| s.name == soft.name).unwrap_or(0);
        match all.iter_mut().find(|parts| parts.config.name == soft.name) {
            Some(known) => known.places.push(place),
            None => {
                let mut parts =
                    SoftParts::new(soft, number).map_err(|e| places.at(SOFT_PORTS, Some(number), e))?;
                parts.places.push(place);
                all.push(parts);
            }
        }
    }
    Ok(all)
}

impl SoftParts {
    fn new(soft: &Soft, number: usize) -> Result<Self, GatewayError> {
        let seed = soft.seed.unwrap_or_else(random);
        // Locally administered, so that it does not collide with the GUID of a real device.
        let node = soft.node_guid.map_or(0x0200_0000_0000_0000 | (seed & 0x00ff_ffff_ffff_ff00), |g| g.0);
        let guid_of = |(i, p): (usize, &config::SoftPort)| Guid(p.guid.map_or(node + 1 + i as u64, |g| g.0));
        let mtu = soft.ports.iter().map(|p| p.mtu).max().unwrap_or(4096);
        let max_mtu = [Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B2048, Mtu::B4096]
            .into_iter()
            .find(|m| m.bytes() == usize::from(mtu))
            .unwrap_or(Mtu::B4096);
        Ok(Self {
            config: SoftConfig {
                name: soft.name.clone(),
                node_guid: Guid(node),
                port_guids: soft.ports.iter().enumerate().map(guid_of).collect(),
                max_mtu,
                gid_table: soft.gid_table,
                seed,
            },
            virtual_ports: (1..)
                .map(PortNumber)
                .zip(&soft.ports)
                .filter_map(|(number, port)| port.grh_required.then_some(number))
                .collect(),
            links: soft.ports.iter().map(|p| p.link.parse()).collect::<Result<_, _>>()?,
            number,
            places: Vec::new(),
        })
    }

    fn open(&self, capture: &mut Option<Capture>) -> Result<SoftHca, GatewayError> {
        let mut hca = SoftHca::new(&self.config)?;
        for port in &self.virtual_ports {
            hca.require_grh(*port)?;
        }
        for (index, url) in self.links.iter().enumerate() {
            let mut link = CableEnd::connect(url)?;
            link.set_tap(capture.as_mut().map(Capture::tap));
            hca.set_cable(PortNumber(index as u8 + 1), Some(link))?;
        }
        Ok(hca)
    }
}

/// Makes the software devices, and gives each port a handle on its own, in the order of the ports.
pub(super) fn open_soft(
    all: &[SoftParts],
    capture: &mut Option<Capture>,
    places: &Places,
) -> Result<Vec<Shared<SoftHca>>, GatewayError> {
    let mut handles = Vec::new();
    for parts in all {
        let first =
            Shared::new(parts.open(capture).map_err(|e| places.at(SOFT_PORTS, Some(parts.number), e))?);
        for place in parts.places.iter().skip(1) {
            handles.push((*place, first.another()));
        }
        handles.extend(parts.places.first().map(|place| (*place, first)));
    }
    handles.sort_by_key(|(place, _)| *place);
    Ok(handles.into_iter().map(|(_, handle)| handle).collect())
}
