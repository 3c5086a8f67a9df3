//! Settings of the ports: one table each in the file, or options that are repeated for each port.

use connectx::cable::{CableUrl, CableUrlError};
use ib_wire::Guid;
use serde::Deserialize;
use toml::Spanned;

use super::{File, OptionsError, Place, Setting, guid};
use crate::hca::HcaPort;

/// Value of a cable's URL for a port without a cable.
const NOWHERE: &str = "none";

/// A port in the file.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(super) struct FilePort {
    pub(super) guid: Option<Spanned<String>>,
    pub(super) cable: Option<Spanned<String>>,
}

/// Settings of one port.
struct Said {
    /// Where the port is defined.
    place: Place,
    guid: Option<Setting<String>>,
    cable: Option<Setting<String>>,
}

impl Said {
    /// Builds the configuration. The default GUID is the node's plus the port number.
    fn port(self, node: Guid, number: u64) -> Result<HcaPort, OptionsError> {
        let guid = match &self.guid {
            Some(setting) => guid(setting)?,
            None => Guid(node.0.wrapping_add(number)),
        };
        let cable = self.cable.filter(|setting| setting.value != NOWHERE).as_ref().map(cable).transpose()?;
        Ok(HcaPort { guid, cable })
    }
}

fn cable(setting: &Setting<String>) -> Result<CableUrl, OptionsError> {
    let remedy = "use shm:/path/to.sock, udp:LOCAL-PEER or none";
    if setting.value.starts_with("roce:") {
        return Err(setting.wrong(format!("`{}` is for Ethernet ports", setting.value), remedy));
    }
    setting.value.parse().map_err(|error: CableUrlError| setting.wrong(error.to_string(), remedy))
}

/// The ports of the file.
fn in_file(file: &File, tables: Vec<Spanned<FilePort>>, alone: FilePort) -> Result<Vec<Said>, OptionsError> {
    let mut said = Vec::new();
    for table in tables {
        let place = file.place("port", table.span().start);
        let FilePort { guid, cable } = table.into_inner();
        said.push(Said {
            place,
            guid: file.setting("guid", None, guid),
            cable: file.setting("cable", None, cable),
        });
    }
    let guid = file.setting("port-guid", None, alone.guid);
    let cable = file.setting("cable", None, alone.cable);
    if let Some(setting) = guid.as_ref().or(cable.as_ref()) {
        if !said.is_empty() {
            let remedy = "set it in one of them, each of which is a port";
            return Err(setting.wrong("it conflicts with the [[port]] tables", remedy));
        }
        said.push(Said { place: setting.place.clone(), guid, cable });
    }
    Ok(said)
}

/// Overrides a setting of the ports in order with the values of an option.
fn over(
    said: &mut Vec<Said>,
    key: &'static str,
    values: Vec<String>,
    put: impl Fn(&mut Said, Setting<String>),
) {
    for (n, value) in values.into_iter().enumerate() {
        let place = Place::Option(key);
        if n == said.len() {
            said.push(Said { place: place.clone(), guid: None, cable: None });
        }
        if let Some(said) = said.get_mut(n) {
            put(said, Setting { value, place });
        }
    }
}

/// The one or two ports of a device: from the file, as tables or single keys, overridden by the command line.
pub(super) fn ports(
    file: &File,
    node: Guid,
    tables: Vec<Spanned<FilePort>>,
    alone: FilePort,
    guids: Vec<String>,
    cables: Vec<String>,
) -> Result<(HcaPort, Option<HcaPort>), OptionsError> {
    let mut said = in_file(file, tables, alone)?;
    over(&mut said, "port-guid", guids, |said, setting| said.guid = Some(setting));
    over(&mut said, "cable", cables, |said, setting| said.cable = Some(setting));
    let wrong =
        |place, what: String, remedy: &str| OptionsError::Value { place, what, remedy: remedy.to_owned() };
    let count = said.len();
    let mut said = said.into_iter();
    let (first, second, third) = (said.next(), said.next(), said.next());
    if let Some(third) = third {
        return Err(wrong(
            third.place,
            format!("{count} ports are too many"),
            "a device has one or two ports",
        ));
    }
    let unsaid = || Said { place: Place::Option("cable"), guid: None, cable: None };
    let first = first.unwrap_or_else(unsaid).port(node, 1)?;
    let Some(second) = second else { return Ok((first, None)) };
    let place = second.place.clone();
    let second = second.port(node, 2)?;
    if second.guid == first.guid {
        return Err(wrong(place, format!("both ports have GUID {}", first.guid), "give each its own"));
    }
    match (&first.cable, &second.cable) {
        (Some(one), Some(other)) if one.transport == other.transport => {
            let remedy = "give each its own, or none";
            Err(wrong(place, format!("both ports have the cable {one}"), remedy))
        }
        _ => Ok((first, Some(second))),
    }
}
