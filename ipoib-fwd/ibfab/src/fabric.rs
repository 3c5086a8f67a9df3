//! The switch with the subnet manager behind its port 0.

use std::time::Instant;

use connectx::cable::CableEnd;

use crate::config::FabricConfig;
use crate::sm::{SmConfig, SubnetManager};
use crate::switch::{NoMorePorts, Switch, SwitchConfig, SwitchPort};

/// Datagrams exchanged between switch and subnet manager in one turn.
const MADS_PER_TURN: usize = 64;

/// A subnet: switch, subnet manager, subnet administration.
#[derive(Debug)]
pub struct Fabric {
    switch: Switch,
    manager: SubnetManager,
}

impl Fabric {
    /// A fabric without external ports.
    #[must_use]
    pub fn new(now: Instant, config: &FabricConfig, seed: u64) -> Self {
        let switch =
            Switch::new(&SwitchConfig { guid: config.guid, name: config.name.clone(), mtu: config.mtu });
        let mut settings = SmConfig::new(config.guid);
        settings.subnet_prefix = config.prefix;
        settings.seed = seed;
        if !config.partitions.is_empty() {
            settings.partitions.clone_from(&config.partitions);
        }
        for partition in &mut settings.partitions {
            partition.mtu = partition.mtu.min(config.mtu);
        }
        Self { switch, manager: SubnetManager::new(now, settings) }
    }

    /// Adds a port to the switch.
    pub fn add_port(&mut self, name: &str, link: CableEnd) -> Result<SwitchPort, NoMorePorts> {
        self.switch.add_port(name, link)
    }

    /// Gives the subnet another prefix.
    pub fn set_prefix(&mut self, now: Instant, prefix: u64) {
        self.manager.set_prefix(now, prefix);
    }

    /// The switch.
    #[must_use]
    pub const fn switch(&self) -> &Switch {
        &self.switch
    }

    /// The subnet manager.
    #[must_use]
    pub const fn manager(&self) -> &SubnetManager {
        &self.manager
    }

    /// Does a bounded amount of work; true if there was any.
    pub fn step(&mut self, now: Instant) -> bool {
        let mut worked = self.switch.step(now);
        if self.switch.take_port_change() {
            self.manager.handle_port_change(now);
        }
        if self.manager.poll_timeout().is_some_and(|at| at <= now) {
            self.manager.handle_timeout(now);
            worked = true;
        }
        for _ in 0..MADS_PER_TURN {
            let Some(mad) = self.switch.next_mad() else { break };
            self.manager.handle_mad(now, &mad);
            worked = true;
        }
        for _ in 0..MADS_PER_TURN {
            let Some(mad) = self.manager.poll_transmit() else { break };
            self.switch.send_mad(&mad);
            worked = true;
        }
        worked
    }
}

#[cfg(test)]
mod tests;
