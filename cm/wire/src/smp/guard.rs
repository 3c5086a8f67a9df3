//! The M_Key check of a port (IBA 14.2.4). A requester without the key cannot change anything; with more
//! protection it cannot read anything either. A lease limits the protection, so that a port whose key is lost
//! becomes manageable again.

use std::time::{Duration, Instant};

use super::{PortInfo, Smp};
use crate::mad::Method;

/// State of the key's lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Lease {
    /// No request with a wrong key has arrived.
    #[default]
    Quiet,
    /// A request with a wrong key has arrived, but [`MKeyGuard::follow`] has not yet set the end.
    Begins,
    /// The protection ends at this time, unless a request with the correct key arrives before.
    Ends(Instant),
}

/// The M_Key check of one port.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MKeyGuard {
    key: u64,
    protect: u8,
    /// Lease in seconds; 0 is unlimited.
    period: u16,
    violations: u16,
    lease: Lease,
}

impl MKeyGuard {
    /// Checks if a packet may be executed, for `Get`, `Set` and `TrapRepress`. Counts the packets that may
    /// not.
    pub fn admits(&mut self, smp: &Smp) -> bool {
        if self.key == 0 || smp.mkey == self.key {
            self.lease = Lease::Quiet;
            return true;
        }
        if smp.header.method == Method::Get && self.protect < 2 {
            return true;
        }
        self.violations = self.violations.saturating_add(1);
        if self.period != 0 && self.lease == Lease::Quiet {
            self.lease = Lease::Begins;
        }
        false
    }

    /// Advances the lease to `now`. After the lease anybody may read the key, and can take over the port with
    /// it (IBA 14.2.4.3).
    pub fn follow(&mut self, now: Instant) {
        match self.lease {
            Lease::Begins => self.lease = Lease::Ends(now + Duration::from_secs(self.period.into())),
            Lease::Ends(at) if at <= now => {
                self.protect = 0;
                self.lease = Lease::Quiet;
            }
            Lease::Quiet | Lease::Ends(_) => {}
        }
    }

    /// Applies the fields of a `Set`.
    pub fn set(&mut self, want: &PortInfo) {
        self.key = want.mkey;
        self.protect = want.mkey_protect.get();
        self.period = want.mkey_lease;
        // Any write clears the counter (IBA 14.2.5.6).
        self.violations = self.violations.min(want.mkey_violations);
    }

    /// Fills in the guard's fields for the response to `smp`. The key is visible only to a requester that
    /// knows it, or if the protection does not hide it.
    pub fn show(&self, smp: &Smp, info: &mut PortInfo) {
        let hidden = self.protect != 0 && smp.mkey != self.key;
        info.mkey = if hidden { 0 } else { self.key };
        info.mkey_protect = super::port::ProtectBits::new(self.protect);
        info.mkey_lease = self.period;
        info.mkey_violations = self.violations;
    }
}

#[cfg(test)]
mod tests {
    use super::super::{PortInfo, attribute};
    use super::*;
    use crate::Tid;

    fn smp(method: Method, mkey: u64) -> Smp {
        Smp { mkey, ..Smp::lid_routed(method, Tid(1), attribute::PORT_INFO, 0) }
    }

    fn guarded(protect: u8, lease: u16) -> MKeyGuard {
        let mut guard = MKeyGuard::default();
        let bits = super::super::port::ProtectBits::new(protect);
        guard.set(&PortInfo { mkey: 7, mkey_protect: bits, mkey_lease: lease, ..PortInfo::default() });
        guard
    }

    fn shown(guard: &MKeyGuard, mkey: u64) -> PortInfo {
        let mut info = PortInfo::default();
        guard.show(&smp(Method::Get, mkey), &mut info);
        info
    }

    #[test]
    fn without_a_key_everybody_may_everything() {
        let mut guard = MKeyGuard::default();
        for method in [Method::Get, Method::Set, Method::TrapRepress] {
            assert!(guard.admits(&smp(method, 0)) && guard.admits(&smp(method, 5)));
        }
    }

    #[test]
    fn protection_controls_access_and_key_visibility() {
        for (protect, reads, sees) in
            [(0, true, true), (1, true, false), (2, false, false), (3, false, false)]
        {
            let mut guard = guarded(protect, 0);
            assert!(!guard.admits(&smp(Method::Set, 8)) && !guard.admits(&smp(Method::TrapRepress, 0)));
            assert!(guard.admits(&smp(Method::Set, 7)) && guard.admits(&smp(Method::Get, 7)));
            assert_eq!(guard.admits(&smp(Method::Get, 8)), reads, "{protect}");
            assert_eq!(shown(&guard, 8).mkey, if sees { 7 } else { 0 }, "{protect}");
            assert_eq!(shown(&guard, 7).mkey, 7);
            assert_eq!(shown(&guard, 7).mkey_violations, if reads { 2 } else { 3 }, "{protect}");
        }
    }

    #[test]
    fn after_its_lease_a_key_protects_no_more_unless_its_owner_comes() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut guard = guarded(2, 10);
        guard.follow(at(100));
        assert!(!guard.admits(&smp(Method::Get, 0)));
        guard.follow(at(100));
        assert!(!guard.admits(&smp(Method::Get, 0)), "a second violation does not extend the lease");
        guard.follow(at(109));
        assert!(guard.admits(&smp(Method::Get, 7)), "its owner");
        guard.follow(at(111));
        assert!(!guard.admits(&smp(Method::Get, 0)));
        guard.follow(at(111));
        guard.follow(at(120));
        assert!(!guard.admits(&smp(Method::Get, 0)));
        guard.follow(at(121));
        assert!(guard.admits(&smp(Method::Get, 0)));
        assert_eq!((shown(&guard, 0).mkey, shown(&guard, 0).mkey_protect.get()), (7, 0));
        assert!(!guard.admits(&smp(Method::Set, 0)));
        let mut guard = guarded(2, 0);
        assert!(!guard.admits(&smp(Method::Get, 0)));
        guard.follow(at(0));
        guard.follow(at(1 << 30));
        assert!(!guard.admits(&smp(Method::Get, 0)), "unlimited without a lease");
    }
}
