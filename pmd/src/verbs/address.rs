//! Address vectors in the library's form, and address handles created from them.

use std::collections::HashMap;
use std::sync::Arc;

use ib_wire::{QKey, Qpn};
use verbs_sys as sys;

use super::object::{AddressHandle, ProtectionDomain};
use crate::hca::{AddressVector, HcaError, PortNumber, UdDestination};

/// Number of handles after which unused ones are first collected.
const MIN_HANDLES: usize = 64;

/// Converts an address vector to the library's form.
pub(super) fn attributes(av: &AddressVector, port: PortNumber) -> sys::ibv_ah_attr {
    let mut attr = sys::ibv_ah_attr {
        dlid: av.dlid.0,
        sl: av.sl.get(),
        src_path_bits: av.src_path_bits,
        static_rate: av.rate.code(),
        port_num: port.0,
        ..Default::default()
    };
    if let Some(grh) = &av.grh {
        attr.is_global = 1;
        attr.grh = sys::ibv_global_route {
            dgid: sys::ibv_gid { raw: grh.dgid.0 },
            flow_label: grh.flow_label,
            sgid_index: grh.sgid_index,
            hop_limit: grh.hop_limit,
            traffic_class: grh.traffic_class,
        };
    }
    attr
}

/// A datagram destination, prepared for posting.
#[derive(Clone, Debug)]
pub struct VerbsDestination {
    pub(super) handle: Arc<AddressHandle>,
    pub(super) qpn: Qpn,
    /// Q_Key for the work request.
    pub(super) qkey: QKey,
}

/// All address handles, one for each path. They are destroyed here on the control lcore, not where the last
/// packet completes, because that is a system call.
#[derive(Debug, Default)]
pub(super) struct AddressHandles {
    handles: HashMap<(AddressVector, PortNumber), Arc<AddressHandle>>,
    /// Handles created before the last GID change and still in use.
    outdated: Vec<Arc<AddressHandle>>,
    sweep_at: usize,
}

impl AddressHandles {
    /// Returns the handle for a destination.
    pub(super) fn destination(
        &mut self,
        domain: &Arc<ProtectionDomain>,
        port: PortNumber,
        to: &UdDestination,
    ) -> Result<VerbsDestination, HcaError> {
        let handle = match self.handles.get(&(to.av, port)) {
            Some(handle) => Arc::clone(handle),
            None => {
                self.sweep();
                let handle = Arc::new(AddressHandle::new(domain, &mut attributes(&to.av, port))?);
                self.handles.insert((to.av, port), Arc::clone(&handle));
                handle
            }
        };
        Ok(VerbsDestination { handle, qpn: to.qpn, qkey: to.request_qkey() })
    }

    /// Handles a GID change of the device: later destinations get new handles. The kernel resolves a handle's
    /// source GID on creation and keeps that GID as long as the handle exists.
    pub(super) fn renew(&mut self) {
        self.outdated.extend(self.handles.drain().map(|(_, handle)| handle));
        self.outdated.retain(|handle| Arc::strong_count(handle) > 1);
    }

    /// Destroys unused handles. Handles in use are checked again only after their number has doubled.
    fn sweep(&mut self) {
        self.outdated.retain(|handle| Arc::strong_count(handle) > 1);
        if self.handles.len() >= self.sweep_at.max(MIN_HANDLES) {
            self.handles.retain(|_, handle| Arc::strong_count(handle) > 1);
            self.sweep_at = 2 * self.handles.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use ib_wire::{Gid, Lid, Rate, ServiceLevel};

    use super::*;
    use crate::hca::GlobalRoute;

    #[test]
    fn an_address_keeps_its_fields() {
        let mut av = AddressVector {
            dlid: Lid(0xc001),
            sl: ServiceLevel::new(3),
            src_path_bits: 2,
            rate: Rate::new(5),
            grh: None,
        };
        let attr = attributes(&av, PortNumber(2));
        assert_eq!((attr.dlid, attr.sl, attr.src_path_bits), (0xc001, 3, 2));
        assert_eq!((attr.static_rate, attr.is_global, attr.port_num), (5, 0, 2));
        let dgid = Gid(std::array::from_fn(|i| i as u8));
        av.grh =
            Some(GlobalRoute { dgid, sgid_index: 1, flow_label: 0xf_1234, hop_limit: 9, traffic_class: 7 });
        let attr = attributes(&av, PortNumber(1));
        // SAFETY: both views of a GID are 16 plain bytes.
        assert_eq!(unsafe { attr.grh.dgid.raw }, dgid.0);
        assert_eq!((attr.is_global, attr.grh.flow_label, attr.grh.sgid_index), (1, 0xf_1234, 1));
        assert_eq!((attr.grh.hop_limit, attr.grh.traffic_class), (9, 7));
    }
}
