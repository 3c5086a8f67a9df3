//! Two software ConnectX on one link.

use connectx::cable::CableEnd;
use ib_wire::mad::Method;
use ib_wire::smp::{GuidBlock, Smp, attribute};
use ib_wire::{Gid, Guid, Lid, Mtu, PKey, PortNumber, Tid};
use pmd::hca::{Control, HcaError};
use pmd::soft::{SoftConfig, SoftHca};

use crate::lab::{Failure, Lab, Need, Outcome};

const PORT: PortNumber = PortNumber(1);

/// The lab.
pub(crate) struct Soft;

fn join(hcas: [&mut SoftHca; 2]) -> Result<(), HcaError> {
    let (left, right) =
        CableEnd::pair().map_err(|source| HcaError::Io { what: "making a link".into(), source })?;
    for ((hca, link), lid) in hcas.into_iter().zip([left, right]).zip([1, 2]) {
        hca.set_cable(PORT, Some(link))?;
        hca.engine().lock().activate(PORT, Lid(lid), Mtu::B4096)?;
    }
    Ok(())
}

impl Lab for Soft {
    type Hca = SoftHca;

    fn name(&self) -> String {
        "soft".to_owned()
    }

    fn open(&mut self) -> Result<[SoftHca; 2], HcaError> {
        let device = |n: u64| {
            SoftHca::new(&SoftConfig {
                name: format!("soft{n}"),
                node_guid: Guid(0x100 + n),
                port_guids: vec![Guid(0x1000 + n)],
                max_mtu: Mtu::B4096,
                gid_table: 16,
                seed: n,
            })
        };
        let (mut a, mut b) = (device(0)?, device(1)?);
        join([&mut a, &mut b])?;
        Ok([a, b])
    }

    fn lacks(&self, need: Need) -> Option<&'static str> {
        match need {
            Need::Privileges => Some("a device in the same process cannot check privileges"),
            _ => None,
        }
    }

    fn set_pkey(&mut self, hca: &mut SoftHca, index: u16, key: PKey) -> Outcome {
        Ok(hca.engine().lock().set_pkey(PORT, index, key)?)
    }

    /// Done by a subnet manager at end 1.
    fn change_gid(&mut self, hcas: [&mut SoftHca; 2], add: bool) -> Outcome<Gid> {
        let guid = Guid(0x77_0000_0001);
        let mut guids = GuidBlock::default();
        guids.guids[1] = if add { guid } else { Guid(0) };
        let smp = Smp::lid_routed(Method::Set, Tid(1 + u64::from(add)), attribute::GUID_INFO, 0).with(&guids);
        let [one, other] = hcas;
        other.send_mad(PORT, &smp.to_mad(Lid(1)))?;
        Ok(Gid::new(one.gid(PORT, 0)?.prefix(), guid))
    }

    fn plug(&mut self, hcas: [&mut SoftHca; 2], in_place: bool) -> Outcome {
        let [one, other] = hcas;
        if in_place {
            return join([one, other]).map_err(Failure::from);
        }
        one.set_cable(PORT, None)?;
        Ok(other.set_cable(PORT, None)?)
    }
}
