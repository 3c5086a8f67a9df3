//! What is said of the ports: a table each in the file, or options that stand once for each port.

use connectx::cable::{CableUrl, CableUrlError};
use ib_wire::Guid;
use serde::Deserialize;
use toml::Spanned;

use super::{File, OptionsError, Place, Told, guid};
use crate::hca::HcaPort;

/// In place of a cable's URL: the port has none.
const NOWHERE: &str = "none";

/// A port in the file.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(super) struct FilePort {
    pub(super) guid: Option<Spanned<String>>,
    pub(super) cable: Option<Spanned<String>>,
}

/// What is said of one port.
struct Said {
    /// Where it is said that there is one.
    place: Place,
    guid: Option<Told<String>>,
    cable: Option<Told<String>>,
}

impl Said {
    /// GUIDs that nobody gives are those behind the node's.
    fn port(self, node: Guid, number: u64) -> Result<HcaPort, OptionsError> {
        let guid = match &self.guid {
            Some(told) => guid(told)?,
            None => Guid(node.0.wrapping_add(number)),
        };
        let cable = self.cable.filter(|told| told.value != NOWHERE).as_ref().map(cable).transpose()?;
        Ok(HcaPort { guid, cable })
    }
}

fn cable(told: &Told<String>) -> Result<CableUrl, OptionsError> {
    let remedy = "this port takes shm:/path/to.sock and udp:LOCAL-PEER, or none";
    if told.value.starts_with("roce:") {
        return Err(told.wrong(format!("`{}` is for Ethernet ports", told.value), remedy));
    }
    told.value.parse().map_err(|error: CableUrlError| told.wrong(error.to_string(), remedy))
}

/// What the file says of ports.
fn in_file(file: &File, tables: Vec<Spanned<FilePort>>, alone: FilePort) -> Result<Vec<Said>, OptionsError> {
    let mut said = Vec::new();
    for table in tables {
        let place = file.place("port", table.span().start);
        let FilePort { guid, cable } = table.into_inner();
        said.push(Said {
            place,
            guid: file.told("guid", None, guid),
            cable: file.told("cable", None, cable),
        });
    }
    let guid = file.told("port-guid", None, alone.guid);
    let cable = file.told("cable", None, alone.cable);
    if let Some(told) = guid.as_ref().or(cable.as_ref()) {
        if !said.is_empty() {
            let remedy = "say it in one of them, each of which is a port";
            return Err(told.wrong("there are tables [[port]], too", remedy));
        }
        said.push(Said { place: told.place.clone(), guid, cable });
    }
    Ok(said)
}

/// What an option says of one port after the other.
fn over(said: &mut Vec<Said>, key: &'static str, values: Vec<String>, put: impl Fn(&mut Said, Told<String>)) {
    for (n, value) in values.into_iter().enumerate() {
        let place = Place::Option(key);
        if n == said.len() {
            said.push(Said { place: place.clone(), guid: None, cable: None });
        }
        if let Some(said) = said.get_mut(n) {
            put(said, Told { value, place });
        }
    }
}

/// The port or two of a device: what the file says, in tables or beside them, and over it what the command line says.
pub(super) fn ports(
    file: &File,
    node: Guid,
    tables: Vec<Spanned<FilePort>>,
    alone: FilePort,
    guids: Vec<String>,
    cables: Vec<String>,
) -> Result<(HcaPort, Option<HcaPort>), OptionsError> {
    let mut said = in_file(file, tables, alone)?;
    over(&mut said, "port-guid", guids, |said, told| said.guid = Some(told));
    over(&mut said, "cable", cables, |said, told| said.cable = Some(told));
    let wrong =
        |place, what: String, remedy: &str| OptionsError::Value { place, what, remedy: remedy.to_owned() };
    let count = said.len();
    let mut said = said.into_iter();
    let (first, second, third) = (said.next(), said.next(), said.next());
    if let Some(third) = third {
        return Err(wrong(third.place, format!("{count} ports are too many"), "a device has one or two"));
    }
    let unsaid = || Said { place: Place::Option("cable"), guid: None, cable: None };
    let first = first.unwrap_or_else(unsaid).port(node, 1)?;
    let Some(second) = second else { return Ok((first, None)) };
    let place = second.place.clone();
    let second = second.port(node, 2)?;
    if second.guid == first.guid {
        return Err(wrong(place, format!("both ports have GUID {}", first.guid), "give each one of its own"));
    }
    match (&first.cable, &second.cable) {
        (Some(one), Some(other)) if one.transport == other.transport => {
            let remedy = "give each one of its own, or write none";
            Err(wrong(place, format!("both ports have the cable {one}"), remedy))
        }
        _ => Ok((first, Some(second))),
    }
}
