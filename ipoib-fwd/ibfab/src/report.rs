//! Statistics as text.

use std::fmt::{self, Write as _};

use ib_wire::mad::MadStatus;
use ib_wire::sa::status;
use pmd::hca::Backend;

use crate::fabric::Fabric;
use crate::host::Host;
use crate::sm::SubnetManager;
use crate::switch::Switch;

/// Writes the counters of the switches' ports and the hosts.
pub fn write<B: Backend>(out: &mut String, fabric: &Fabric, hosts: &mut [Host<B>]) -> fmt::Result {
    let state = match fabric.manager() {
        None => "managed elsewhere",
        Some(manager) if manager.is_up() => "configured",
        Some(_) => "being configured",
    };
    writeln!(out, "subnet {state}, switch LID {}", fabric.switch().lid())?;
    if let Some(counters) =
        fabric.manager().map(SubnetManager::counters).filter(|counters| counters.sa_refused > 0)
    {
        write!(
            out,
            "subnet administration: {} requests, {} refused",
            counters.sa_requests, counters.sa_refused
        )?;
        for (code, n) in (0u8..).zip(counters.sa_refused_by).filter(|(_, n)| *n > 0) {
            let name = match code {
                0 => "other",
                code => status::name(MadStatus::class_specific(code)),
            };
            write!(out, ", {name} {n}")?;
        }
        writeln!(out)?;
    }
    for (n, switch) in fabric.switches().enumerate() {
        if n > 0 {
            writeln!(out, "switch {}, LID {}", switch.name(), switch.lid())?;
        }
        write_switch(out, switch)?;
    }
    for host in hosts {
        let state = if host.is_up() { "up" } else { "down" };
        write!(out, "host {} {}: {state}", host.config().name, host.config().address)?;
        for (name, flow) in host.counters().flows().filter(|(_, flow)| flow.packets > 0) {
            write!(out, ", {name} {} packets {} bytes", flow.packets, flow.bytes)?;
        }
        for (reason, n) in host.counters().reasons() {
            write!(out, ", dropped {} {n}", reason.name())?;
        }
        if let (n @ 1.., last) = host.endpoint().device_errors() {
            write!(out, ", device errors {n}")?;
            if let Some(last) = last {
                write!(out, " (last: {last})")?;
            }
        }
        writeln!(out)?;
    }
    Ok(())
}

fn write_switch(out: &mut String, switch: &Switch) -> fmt::Result {
    for port in switch.ports() {
        write!(out, "port {} {}: {:?}", port.number.0, port.name, port.state)?;
        if let Some(trouble) = port.trouble {
            write!(out, " ({trouble})")?;
        }
        write!(out, ", in {} packets {} bytes", port.link.rx_packets, port.link.rx_bytes)?;
        write!(out, ", out {} packets {} bytes", port.link.tx_packets, port.link.tx_bytes)?;
        for (reason, n) in port.switch.drops() {
            write!(out, ", dropped {} {n}", reason.name())?;
        }
        let rare = [
            "tx_full",
            "tx_down",
            "tx_errors",
            "socket_errors",
            "rx_invalid",
            "rx_forged",
            "rx_stale",
            "lost_going_down",
            "downs",
            "violations",
        ];
        for (name, n) in port.link.iter().filter(|(name, n)| *n > 0 && rare.contains(name)) {
            write!(out, ", {name} {n}")?;
        }
        writeln!(out)?;
    }
    for (reason, n) in switch.own_counters().drops() {
        writeln!(out, "port 0: dropped {} {n}", reason.name())?;
    }
    Ok(())
}
