//! Kernel modules that conflict with the gateway.

use config::Mode;

use crate::finding::{Code, Finding, Severity};
use crate::subject::Subject;

/// `ib_cm` and the modules that use communication management through it, in the order in which they must be
/// unloaded.
const CM_MODULES: [&str; 7] = ["ib_ipoib", "ib_srp", "ib_srpt", "ib_isert", "rdma_ucm", "rdma_cm", "ib_cm"];

pub(crate) fn check(subject: &Subject<'_>, found: &mut Vec<Finding>) {
    let machine = subject.machine;
    if subject.config.infiniband.is_soft() || machine.adapters.is_empty() {
        return;
    }
    let loaded: Vec<&str> = CM_MODULES.into_iter().filter(|name| machine.modules.contains(*name)).collect();
    let unload = format!(
        "modprobe -r {0}; to make it permanent: printf 'blacklist %s\\n' {0} > /etc/modprobe.d/gateway.conf",
        loaded.join(" ")
    );
    if loaded.contains(&"ib_cm") {
        let is_connected = subject.config.segments.iter().any(|segment| segment.mode == Mode::Connected);
        let what = "the kernel's communication management (ib_cm) occupies the management class of connections on the port: \
                    it rejects the requests of the gateway's peers, and the gateway cannot register the class";
        let severity = if is_connected { Severity::Error } else { Severity::Warning };
        found.push(Finding::new(Code::IbCmLoaded, what, unload.clone()).as_severe_as(severity));
    }
    if loaded.contains(&"ib_ipoib") {
        let what = "the kernel's IPoIB (ib_ipoib) is loaded: its interface is a second host on the gateway's port, and \
                    accepts connections with the same service ID";
        found.push(Finding::new(Code::IbIpoibLoaded, what, unload));
    }
}
