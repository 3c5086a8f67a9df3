//! The M_Key check of a port (IBA 14.2.4): who does not know the key changes nothing, and with more protection reads nothing; but a key whose
//! owner is gone does not last for ever.

use std::time::{Duration, Instant};

use super::{PortInfo, Smp};
use crate::mad::Method;

/// The lease of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Lease {
    /// Nobody has come with a wrong key.
    #[default]
    Quiet,
    /// Somebody has, and nobody has looked at the clock yet.
    Begins,
    /// The protection ends then unless somebody comes with the right key.
    Ends(Instant),
}

/// What guards a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MKeyGuard {
    key: u64,
    protect: u8,
    /// Seconds; 0 is for ever.
    period: u16,
    violations: u16,
    lease: Lease,
}

impl MKeyGuard {
    /// May this packet be carried out? Of `Get`, `Set` and `TrapRepress`; counts what may not.
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

    /// Looks at the clock: after the lease anybody may read the key, and with it take the port over (IBA 14.2.4.3).
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

    /// Takes over what a `Set` says.
    pub fn set(&mut self, want: &PortInfo) {
        self.key = want.mkey;
        self.protect = want.mkey_protect.get();
        self.period = want.mkey_lease;
        // Any write clears it (IBA 14.2.5.6).
        self.violations = self.violations.min(want.mkey_violations);
    }

    /// Fills in what the answer to `smp` shows: the key only to those that know it, or where the protection does not hide it.
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
        assert!(!guard.admits(&smp(Method::Get, 0)), "the second does not make it longer");
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
        assert!(!guard.admits(&smp(Method::Get, 0)), "without a lease for ever");
    }
}
