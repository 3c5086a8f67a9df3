//! What the gateway may once its ports and devices are open: the control lcore what these take, all other threads nothing.

use config::{Config, Gateway};
use dataplane::telemetry::Access;
use privileges::{CapabilitySet, Cores, GroupId, Keep, User};

use super::devices::Devices;
use super::error::{GatewayError, Places};

/// Why the control lcore keeps a capability.
type Reason = (CapabilitySet, &'static str);

/// What drives the InfiniBand ports, as far as that matters here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Driver {
    Soft,
    Mlx5,
    Verbs,
}

/// Who the gateway is to be, looked up before anything is opened.
#[derive(Clone, Copy, Debug)]
pub(super) struct Privileges {
    user: Option<User>,
    group: Option<GroupId>,
    driver: Driver,
}

impl Privileges {
    /// As configured. The files that this process makes from here on are its user's alone.
    pub(super) fn configured(
        gateway: &Gateway,
        devices: &Devices,
        places: &Places,
    ) -> Result<Self, GatewayError> {
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
        let driver = match devices {
            Devices::Soft(_) => Driver::Soft,
            Devices::Mlx5(_) => Driver::Mlx5,
            Devices::Verbs(_) => Driver::Verbs,
        };
        let find = |name: &Option<String>| name.as_deref().map(privileges::user).transpose();
        let user = find(&gateway.user).map_err(|e| places.at("gateway.user", None, e))?;
        let find = |name: &Option<String>| name.as_deref().map(privileges::group).transpose();
        let group = find(&gateway.group).map_err(|e| places.at("gateway.group", None, e))?;
        for (key, given) in [("gateway.user", user.is_some()), ("gateway.group", group.is_some())] {
            if given && driver == Driver::Verbs {
                let what = "the kernel ties a device that driver \"verbs\" opens to the credentials that opened it: leave this key out, \
                            or start the gateway as that user";
                return Err(places.at(key, None, GatewayError::Unsupported(what.to_owned())));
            }
        }
        if user.is_some_and(|user| user.group.is_none()) && group.is_none() {
            let what = "no entry of /etc/passwd says the group of this user: write gateway.group, too";
            return Err(places.at("gateway.user", None, GatewayError::Unsupported(what.to_owned())));
        }
        Ok(Self { user, group, driver })
    }

    /// Who may use the control socket.
    pub(super) fn access(&self) -> Access {
        Access { user: self.user.map(|user| user.id.0), group: self.group.map(|group| group.0) }
    }

    /// Gives up what is not needed any more, in all threads there are. `ports` are the drivers of the Ethernet ports. Of this call and what
    /// comes after it nothing may open a port or a device.
    pub(super) fn give_up<'a>(
        &self,
        config: &Config,
        ports: impl Iterator<Item = &'a str>,
    ) -> Result<(), GatewayError> {
        if config.gateway.privileges == config::Privileges::Drop {
            if self.driver == Driver::Verbs {
                privileges::no_new_privileges()?;
                tracing::info!(
                    "driver \"verbs\": capabilities stay, since the kernel ties its devices to the credentials that opened them"
                );
            } else {
                self.keep(&reasons(self.driver, ports, config.ethernet.promiscuous))?;
            }
        }
        privileges::set_cores(match config.gateway.cores {
            config::Cores::None => Cores::None,
            config::Cores::Lean => Cores::Lean,
            config::Cores::Full => Cores::Full,
        })?;
        Ok(())
    }

    fn keep(&self, reasons: &[Reason]) -> Result<(), GatewayError> {
        let capabilities = reasons.iter().fold(CapabilitySet::empty(), |all, (one, _)| all | *one);
        let group = self.group.or_else(|| self.user?.group);
        Keep { capabilities, user: self.user.map(|user| user.id), group }.in_all_threads()?;
        let kept: Vec<String> =
            reasons.iter().map(|(what, why)| format!("{} ({why})", names(*what))).collect();
        let kept = if kept.is_empty() { "no capability".to_owned() } else { kept.join(", ") };
        tracing::info!("privileges: the control lcore keeps {kept}, all other threads nothing");
        Ok(())
    }
}

/// Names of capabilities as capabilities(7) has them.
fn names(set: CapabilitySet) -> String {
    let names: Vec<String> = set.iter_names().map(|(name, _)| format!("CAP_{name}")).collect();
    names.join(" and ")
}

/// What the control lcore keeps, and why.
fn reasons<'a>(driver: Driver, ports: impl Iterator<Item = &'a str>, promiscuous: bool) -> Vec<Reason> {
    let mut all = Vec::new();
    for port in ports {
        let why = match port {
            "net_bonding" => "a bond gives its members addresses and modes",
            "net_af_xdp" => "net_af_xdp takes its program off the interface at the end",
            "net_tap" => "net_tap takes its rules off the interface at the end",
            "net_af_packet" if promiscuous => "the interface takes all frames until the end",
            _ => continue,
        };
        all.push((CapabilitySet::NET_ADMIN, why));
    }
    if driver == Driver::Mlx5 {
        // A Q_Key with its highest bit, which partitions' groups may have, is for CAP_NET_RAW since Linux 6.4.
        all.push((CapabilitySet::NET_RAW, "controlled Q_Keys"));
        all.push((CapabilitySet::IPC_LOCK, "memory of queue pairs that are made later is locked"));
    }
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capability_is_kept_only_for_what_takes_it() {
        let kept = |driver, ports: &[&str], promiscuous| {
            let all = reasons(driver, ports.iter().copied(), promiscuous);
            names(all.iter().fold(CapabilitySet::empty(), |set, (one, _)| set | *one))
        };
        assert_eq!(kept(Driver::Soft, &["net_af_packet", "net_mlx5"], false), "");
        assert_eq!(kept(Driver::Soft, &["net_af_packet"], true), "CAP_NET_ADMIN");
        for port in ["net_bonding", "net_af_xdp", "net_tap"] {
            assert_eq!(kept(Driver::Soft, &["net_null", port], false), "CAP_NET_ADMIN");
        }
        assert_eq!(kept(Driver::Mlx5, &["net_af_packet"], false), "CAP_NET_RAW and CAP_IPC_LOCK");
    }
}
