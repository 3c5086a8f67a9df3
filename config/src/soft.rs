//! Reads the software devices of the file.

use std::collections::HashSet;

use toml::Spanned;

use crate::error::ConfigError;
use crate::guid::Guid;
use crate::settings::{RawInfiniBand, RawSoft, RawSoftPort, Soft, SoftPort};
use crate::source::Source;

/// Maximum number of software devices.
const MAX_DEVICES: usize = 16;

const PORTS: &str = "ports = [{ link = \"shm:/run/ibfab.sock\" }]";

/// Reads the devices of `[infiniband.soft]` and `[[infiniband.soft-device]]`. `device` is the one in
/// `[infiniband]`.
pub(crate) fn read(
    source: &Source<'_>,
    raw: &RawInfiniBand,
    device: Option<&str>,
) -> Result<Vec<Soft>, ConfigError> {
    let mut devices: Vec<Soft> = Vec::new();
    if let Some(first) = &raw.soft {
        let mut soft = one(source, first.get_ref(), first.span());
        let mut at = first.get_ref().name.as_ref();
        if let Ok(soft) = &mut soft
            && soft.name.is_empty()
        {
            soft.name = device.unwrap_or("soft0").to_owned();
            at = raw.device.as_ref();
        }
        let named = soft.and_then(|soft| {
            check_name(source, &soft.name, at.map_or(first.span(), Spanned::span))?;
            Ok(Some(soft))
        });
        devices.extend(source.keep(named, None)?);
    }
    let mut names: HashSet<String> = devices.iter().map(|d| d.name.clone()).collect();
    for more in raw.soft_device.iter().flatten() {
        if devices.len() == MAX_DEVICES {
            let what = format!("more than {MAX_DEVICES} software devices");
            return source.keep(Err(source.error(more.span(), what, "remove this one")), devices);
        }
        let soft = named(source, more, devices.len(), &mut names);
        let soft = soft.and_then(|soft| distinct(source, more, &devices, soft)).map(Some);
        devices.extend(source.keep(soft, None)?);
    }
    Ok(devices)
}

/// Checks that the file does not assign a GUID to two devices: a fabric identifies nodes and ports by GUIDs.
fn distinct(
    source: &Source<'_>,
    raw: &Spanned<RawSoft>,
    before: &[Soft],
    soft: Soft,
) -> Result<Soft, ConfigError> {
    let guids = |soft: &Soft| {
        let ports = soft.ports.iter().zip(1..);
        let ports = ports
            .filter_map(|(port, n)| port.guid.or(soft.node_guid.map(|node| Guid(node.0.wrapping_add(n)))));
        soft.node_guid.into_iter().chain(ports).collect::<Vec<_>>()
    };
    let own = guids(&soft);
    for other in before {
        if let Some(same) = guids(other).into_iter().find(|guid| own.contains(guid)) {
            let keys = raw.get_ref();
            let at = keys.node_guid.as_ref().map(Spanned::span);
            let at = at.or_else(|| keys.ports.as_ref().map(Spanned::span)).unwrap_or_else(|| raw.span());
            let what = format!(
                "the software devices `{}` and `{}` both have GUID {:#018x}",
                other.name, soft.name, same.0
            );
            return Err(source.error(at, what, "give one of them another, or omit it for a random one"));
        }
    }
    Ok(soft)
}

/// Reads a device of `[[infiniband.soft-device]]`, the `number`th, which must have a name.
fn named(
    source: &Source<'_>,
    raw: &Spanned<RawSoft>,
    number: usize,
    names: &mut HashSet<String>,
) -> Result<Soft, ConfigError> {
    let soft = one(source, raw.get_ref(), raw.span())?;
    let at = raw.get_ref().name.as_ref().map_or(raw.span(), |name| name.span());
    if soft.name.is_empty() {
        let what = "[[infiniband.soft-device]] has no name";
        return Err(source.error(at, what, format!("add name = \"soft{number}\"")));
    }
    check_name(source, &soft.name, at.clone())?;
    if !names.insert(soft.name.clone()) {
        let what = format!("two software devices are called `{}`", soft.name);
        return Err(source.error(at, what, "give one of them another name"));
    }
    Ok(soft)
}

/// Reserved names: device names become parts of file names, next to which other files have these suffixes.
const TAKEN: [&str; 2] = ["lock", "new"];
/// Maximum name length in bytes, that of the kernel's devices (IB_DEVICE_NAME_MAX).
const LONGEST: usize = 63;

fn check_name(source: &Source<'_>, name: &str, at: std::ops::Range<usize>) -> Result<(), ConfigError> {
    let remedy = "write for example name = \"soft0\"";
    if TAKEN.contains(&name) {
        let what = format!(
            "a software device cannot be named `{name}`: a file next to that of gateway.gids has this name"
        );
        return Err(source.error(at, what, remedy));
    }
    if name.len() > LONGEST {
        let what = format!("the name of a software device has {} bytes", name.len());
        return Err(source.error(at, what, format!("write at most {LONGEST}, for example name = \"soft0\"")));
    }
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if let Some(odd) = name.chars().find(|c| !is_plain(*c)) {
        let what =
            format!("{odd:?} is not allowed in the name of a software device, which becomes a file name");
        let remedy = "write letters, digits, `_` and `-`, for example name = \"soft0\"";
        return Err(source.error(at, what, remedy));
    }
    Ok(())
}

fn one(source: &Source<'_>, raw: &RawSoft, at: std::ops::Range<usize>) -> Result<Soft, ConfigError> {
    let mut soft = raw.read(source, Soft::default())?;
    let ports = match &raw.ports {
        Some(ports) if (1..=2).contains(&ports.get_ref().len()) => ports.get_ref(),
        Some(ports) => {
            let what = format!("the software ConnectX has one or two ports, not {}", ports.get_ref().len());
            return Err(source.error(ports.span(), what, format!("write {PORTS}")));
        }
        None => {
            let at = at.start..at.start;
            return Err(source.error(at, "the software ConnectX has no ports", format!("add {PORTS}")));
        }
    };
    let kept = |raw| source.keep(port(source, raw), SoftPort::default());
    soft.ports = ports.iter().map(kept).collect::<Result<_, _>>()?;
    Ok(soft)
}

fn port(source: &Source<'_>, raw: &Spanned<RawSoftPort>) -> Result<SoftPort, ConfigError> {
    let (keys, before) = (raw.get_ref(), source.kept());
    let port = keys.read(source, SoftPort::default())?;
    if source.kept() > before {
        return Ok(port);
    }
    let link = &port.link;
    if !link.strip_prefix("shm:").is_some_and(|path| path.starts_with('/'))
        && !link.strip_prefix("udp:").is_some_and(|pair| pair.contains('-'))
    {
        let at = keys.link.as_ref().map_or_else(|| raw.span(), Spanned::span);
        let what = format!("`{link}` is not the URL of a link");
        let remedy =
            "write for example link = \"shm:/run/ibfab.sock\" or \"udp:10.0.0.1:4800-10.0.0.2:4800\"";
        return Err(source.error(at, what, remedy));
    }
    if let (false, Some(value)) = (port.mtu.is_power_of_two(), &keys.mtu) {
        let what = format!("{} is not an InfiniBand MTU", port.mtu);
        return Err(source.error(value.span(), what, "write 256, 512, 1024, 2048 or 4096"));
    }
    Ok(port)
}
