//! The switches with the cables between them, and the subnet manager behind port 0 of the first one, unless
//! another one manages the subnet. In both cases, a subnet manager writes the forwarding tables of the
//! switches by subnet management packets.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use connectx::cable::CableEnd;
use tap::Tap;

use crate::config::{FabricConfig, Place, TrunkConfig};
use crate::sm::SubnetManager;
use crate::subnet::{MKeys, OwnSwitches, Partition, SmConfig};
use crate::switch::{NoSuchPort, Switch, SwitchConfig, SwitchPort};

/// Most datagrams between switch and subnet manager in one iteration.
const MADS_PER_ITERATION: usize = 64;
/// Most items that requests to subnet administration may examine in one iteration. Later requests wait for
/// the next iteration, but subnet management continues.
const EXAMINED_PER_TURN: usize = 1 << 14;

/// The subnet manager in charge.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Management {
    /// The embedded subnet manager, behind port 0 of the first switch.
    #[default]
    Embedded,
    /// Another one at a link, for instance OpenSM.
    Elsewhere,
}

/// A subnet: switches, and subnet manager and administration unless they are elsewhere.
#[derive(Debug)]
pub struct Fabric {
    /// The switch of the subnet manager.
    first: Switch,
    others: Vec<Switch>,
    /// Cables that are plugged in.
    plugged: Vec<[Place; 2]>,
    /// All cables keep their CRCs.
    keep_crcs: bool,
    manager: Option<SubnetManager>,
    /// Limit as [`EXAMINED_PER_TURN`]; tests set another one.
    examined_per_iteration: usize,
}

/// Why a cable cannot be plugged in.
#[derive(Debug, thiserror::Error)]
pub enum TrunkError {
    /// Its switch or port does not exist.
    #[error(transparent)]
    Port(#[from] NoSuchPort),
    /// No memory.
    #[error("no memory for a trunk")]
    Memory(#[source] io::Error),
}

/// Returns the switches of a configuration, and their ports behind which a switch may be.
fn own_switches(config: &FabricConfig) -> OwnSwitches {
    let id = |place: Place| Some((config.switches.get(place.switch)?.guid, place.port));
    let links = config.links.iter().filter(|link| link.trunk);
    OwnSwitches {
        guids: config.switches.iter().map(|switch| switch.guid).collect(),
        trunks: config.trunks.iter().flat_map(|trunk| trunk.ends).filter_map(id).collect(),
        others: links.map(|link| link.place).filter_map(id).collect(),
    }
}

impl Fabric {
    /// Creates a fabric with nothing plugged in, not even trunks.
    #[must_use]
    pub fn new(now: Instant, config: &FabricConfig, seed: u64, management: Management) -> Self {
        let mut switches = config.switches.iter().map(|switch| {
            let crate::config::SwitchConfig { name, guid, ports } = switch.clone();
            Switch::new(&SwitchConfig { guid, name, mtu: config.mtu, ports })
        });
        // A configuration has at least one switch.
        let nameless =
            || SwitchConfig { guid: ib_wire::Guid(1), name: String::new(), mtu: config.mtu, ports: 0 };
        let first = switches.next().unwrap_or_else(|| Switch::new(&nameless()));
        let mut settings = SmConfig::new(config.switches.first().map_or(ib_wire::Guid(1), |s| s.guid));
        settings.subnet_prefix = config.prefix;
        settings.hop_limit = config.hop_limit;
        settings.lmc = config.lmc;
        settings.sm_key = config.sm_key;
        let keys = MKeys::random();
        settings.m_keys = Some(keys);
        settings.own = own_switches(config);
        settings.seed = seed;
        settings.partitions = config.effective_partitions();
        let manager = (management == Management::Embedded).then(|| SubnetManager::new(now, settings));
        let mut fabric = Self {
            first,
            others: switches.collect(),
            plugged: Vec::new(),
            keep_crcs: config.keep_crcs,
            manager,
            examined_per_iteration: EXAMINED_PER_TURN,
        };
        let trunks = config.trunks.iter().flat_map(|trunk| trunk.ends);
        for place in trunks.chain(config.links.iter().filter(|link| link.trunk).map(|link| link.place)) {
            // Plugging in checks that the port exists.
            if let Ok(switch) = fabric.switch_at(place) {
                switch.set_trunk(SwitchPort(place.port));
            }
        }
        // Before a host can set the key of a switch.
        if management == Management::Embedded {
            let switches = std::iter::once(&mut fabric.first).chain(&mut fabric.others);
            switches.for_each(|switch| switch.protect(keys));
        }
        fabric
    }

    fn switch_at(&mut self, place: Place) -> Result<&mut Switch, NoSuchPort> {
        match place.switch.checked_sub(1) {
            None => Ok(&mut self.first),
            Some(at) => self.others.get_mut(at).ok_or(NoSuchPort(place.port)),
        }
    }

    /// Plugs the end of a link into a port; `name` is for reports.
    pub fn plug(&mut self, place: Place, name: &str, mut link: CableEnd) -> Result<(), NoSuchPort> {
        if self.keep_crcs {
            link.keep_crcs();
        }
        self.switch_at(place)?.plug(SwitchPort(place.port), name, link)
    }

    /// Unplugs the link of a port.
    pub fn unplug(&mut self, place: Place) {
        if let Ok(switch) = self.switch_at(place) {
            switch.unplug(SwitchPort(place.port));
        }
    }

    /// Plugs cables between switches in and out as `trunks` says, all of them or none; `tap` makes a tap for
    /// each that is plugged in.
    pub fn set_trunks(
        &mut self,
        trunks: &[TrunkConfig],
        mut tap: impl FnMut() -> Option<Tap>,
    ) -> Result<(), TrunkError> {
        // All steps that can fail come first.
        let mut new = Vec::new();
        for trunk in trunks {
            if !trunk.up || self.plugged.contains(&trunk.ends) {
                continue;
            }
            for end in trunk.ends {
                self.switch_at(end)?.has_port(SwitchPort(end.port))?;
            }
            new.push((trunk, CableEnd::pair().map_err(TrunkError::Memory)?));
        }
        for trunk in trunks.iter().filter(|trunk| !trunk.up) {
            if let Some(at) = self.plugged.iter().position(|ends| *ends == trunk.ends) {
                self.plugged.swap_remove(at);
                trunk.ends.into_iter().for_each(|end| self.unplug(end));
            }
        }
        for (trunk, (mut one, other)) in new {
            let ([a, b], [near, far]) = (trunk.ends, &trunk.names);
            one.set_tap(tap());
            self.plug(a, near, one)?;
            self.plug(b, far, other)?;
            self.plugged.push(trunk.ends);
        }
        Ok(())
    }

    /// Changes the subnet's prefix in the embedded subnet manager.
    pub fn set_prefix(&mut self, now: Instant, prefix: u64) {
        if let Some(manager) = &mut self.manager {
            manager.set_prefix(now, prefix);
        }
    }

    /// Sets the hop limit of paths that subnet administration returns from now on.
    pub const fn set_hop_limit(&mut self, hop_limit: u8) {
        if let Some(manager) = &mut self.manager {
            manager.set_hop_limit(hop_limit);
        }
    }

    /// Changes the partitions in the embedded subnet manager.
    pub fn set_partitions(&mut self, now: Instant, partitions: Vec<Partition>) {
        if let Some(manager) = &mut self.manager {
            manager.set_partitions(now, partitions);
        }
    }

    /// Returns the first switch.
    #[must_use]
    pub const fn switch(&self) -> &Switch {
        &self.first
    }

    /// Requests a wakeup from the other ends of cables when they send. Call [`Fabric::step`] once more before
    /// sleeping.
    pub fn rest(&mut self) {
        let switches = std::iter::once(&mut self.first).chain(&mut self.others);
        switches.for_each(Switch::rest);
    }

    /// Returns the descriptors that then become readable.
    pub fn wakers(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.switches().flat_map(Switch::wakers)
    }

    /// Returns all switches, in the order of the configuration.
    pub fn switches(&self) -> impl Iterator<Item = &Switch> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// Returns the embedded subnet manager.
    #[must_use]
    pub const fn manager(&self) -> Option<&SubnetManager> {
        self.manager.as_ref()
    }

    /// Does a bounded amount of work; true if there was any.
    pub fn step(&mut self, now: Instant) -> bool {
        let mut worked = self.first.step(now);
        for switch in &mut self.others {
            worked |= switch.step(now);
            switch.discard_mads();
        }
        // A switch notifies a subnet manager elsewhere by traps.
        let port_changed = self.first.take_port_change();
        let Some(manager) = &mut self.manager else {
            self.first.discard_mads();
            return worked;
        };
        if port_changed {
            manager.handle_port_change(now);
        }
        let mut examined = 0;
        for _ in 0..MADS_PER_ITERATION {
            let is_spent = examined >= self.examined_per_iteration;
            let next = if is_spent { self.first.next_smp() } else { self.first.next_mad() };
            let Some(mad) = next else { break };
            manager.handle_mad(now, &mad);
            worked = true;
            examined += manager.take_examined();
        }
        // After the answers that have arrived: they are not late.
        if manager.poll_timeout().is_some_and(|at| at <= now) {
            manager.handle_timeout(now);
            worked = true;
        }
        // Before the ports learn their LIDs.
        if let Some(sources) = manager.take_sources() {
            let mut elsewhere = manager.elsewhere();
            for switch in std::iter::once(&mut self.first).chain(&mut self.others) {
                let guid = switch.guid();
                switch.set_sources(|port| sources.get(&(guid, port.0)).copied());
                switch.set_elsewhere(|port| elsewhere.remove(&(guid, port.0)));
            }
        }
        for _ in 0..MADS_PER_ITERATION {
            let Some(mad) = manager.poll_transmit() else { break };
            self.first.send_mad(&mad);
            worked = true;
        }
        worked
    }
}

#[cfg(test)]
mod tests;
