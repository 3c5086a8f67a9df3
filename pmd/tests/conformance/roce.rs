//! Two software ConnectX with Ethernet ports: RoCEv2 on a pair of interfaces in a private network namespace.

use std::process::Command;
use std::time::Instant;

use connectx::cable::{CableEnd, CableUrl};
use gidcache::{Attributes, GidType, Key};
use ib_wire::{Gid, PKey, PortNumber};
use pmd::hca::HcaError;
use pmd::soft::{RoceConfig, RoceGids, SoftHca};

use crate::lab::{Lab, Need, Outcome, wrong};

const PORT: PortNumber = PortNumber(1);
const INTERFACES: [&str; 2] = ["left", "right"];
/// The added entry and its contents: 10.1.2.3.
const INDEX: u16 = 2;
const GID: Gid = Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 2, 3]);

/// The lab.
pub(crate) struct Roce(());

impl Roce {
    /// Creates the interfaces in a new namespace. Call it before the process has other threads.
    pub(crate) fn new() -> Result<Self, String> {
        // SAFETY: no memory is involved.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
            return Err(format!("a network namespace needs root ({})", std::io::Error::last_os_error()));
        }
        let ip = |line: String| match Command::new("ip").args(line.split(' ')).status() {
            Ok(status) if status.success() => Ok(()),
            other => Err(format!("ip {line}: {other:?}")),
        };
        ip(format!("link add {} type veth peer name {}", INTERFACES[0], INTERFACES[1]))?;
        for name in INTERFACES {
            // The kernel must not have the devices' addresses.
            ip(format!("link set {name} addrgenmode none mtu 5000 up"))?;
        }
        Ok(Self(()))
    }
}

fn url(interface: &str) -> Result<CableUrl, HcaError> {
    format!("roce:{interface}").parse().map_err(|e| HcaError::Environment(format!("{e}")))
}

impl Lab for Roce {
    type Hca = SoftHca;

    fn name(&self) -> String {
        "roce".to_owned()
    }

    fn open(&mut self) -> Result<[SoftHca; 2], HcaError> {
        let open = |n: usize| {
            let config = RoceConfig {
                name: format!("soft{n}"),
                cable: url(INTERFACES[n])?,
                gids: RoceGids::Addresses(vec![
                    [10, 0, 0, n as u8 + 1].into(),
                    [10, 0, 1, n as u8 + 1].into(),
                ]),
                seed: n as u64,
            };
            let hca = SoftHca::roce(&config).map_err(|e| HcaError::Environment(e.to_string()))?;
            // The first iteration detects that the interface is up.
            hca.engine().lock().step(Instant::now());
            Ok(hca)
        };
        Ok([open(0)?, open(1)?])
    }

    fn lacks(&self, need: Need) -> Option<&'static str> {
        match need {
            Need::Privileges => Some("a device in the same process cannot check privileges"),
            Need::NoGrh => Some("every RoCE packet has an IP header, which is reported as a GRH"),
            Need::SourceLid => Some("RoCE has no LIDs"),
            _ => None,
        }
    }

    fn set_pkey(&mut self, hca: &mut SoftHca, index: u16, key: PKey) -> Outcome {
        Ok(hca.engine().lock().set_pkey(PORT, index, key)?)
    }

    fn change_gid(&mut self, hcas: [&mut SoftHca; 2], add: bool) -> Outcome<Gid> {
        let key = Key { gid: GID, gid_type: GidType::RoceV2, ifindex: None };
        let entry = add.then_some(Attributes { key, vlan: None });
        hcas[0].engine().lock().set_gid(PORT, INDEX, entry)?;
        Ok(GID)
    }

    fn plug(&mut self, hcas: [&mut SoftHca; 2], in_place: bool) -> Outcome {
        let link = match in_place {
            true => match CableEnd::connect(&url(INTERFACES[0])?) {
                Ok(link) => Some(link),
                Err(e) => return wrong(e.to_string()),
            },
            false => None,
        };
        Ok(hcas[0].set_cable(PORT, link)?)
    }
}
