//! The annotated default configuration. Writing to a string cannot fail.

use std::fmt::Write as _;

use crate::key::{Key, Reload};
use crate::segment::{RawRoute, RawSegment};
use crate::settings::{Config, RawBuffers, RawEthernet, RawGateway, RawInfiniBand, RawSoft, RawSoftPort};

impl Config {
    /// Returns the default configuration as a file with a description of every key.
    #[must_use]
    pub fn annotated_default() -> String {
        let mut out = String::from(
            "# Configuration of ipoib-fwd. Every key is shown with its default. A key without a default is shown as a\n\
             # comment with an example. Keys marked (reload) can change while the gateway runs, by SIGHUP or\n\
             # `ipoib-fwd ctl reload`; other keys need a restart. A segment restarts if another of its keys changes.\n\
             # Other segments are not affected.\n",
        );
        section(&mut out, "", "[gateway]", &RawGateway::keys());
        section(&mut out, "", "[ethernet]", &RawEthernet::keys());
        section(&mut out, "", "[infiniband]", &RawInfiniBand::keys());
        out.push_str(
            "\n# The software ConnectX: InfiniBand ports without hardware, on a fabric made by ibfab. Add more devices, with\n\
             # the same keys, as [[infiniband.soft-device]].\n",
        );
        section(&mut out, "# ", "[infiniband.soft]", &RawSoft::keys());
        out.push_str("## One or two ports, each with these keys:\n");
        let mut port = Vec::new();
        for key in RawSoftPort::keys() {
            let (name, doc) = (key.name.replace('_', "-"), key.doc.concat());
            let _ = writeln!(out, "## - {name}:{doc}{}", range(&key));
            port.extend(key.example.map(|example| format!("{name} = {example}")));
        }
        let _ = writeln!(out, "# ports = [{{ {} }}]", port.join(", "));
        section(&mut out, "", "[buffers]", &RawBuffers::keys());
        out.push_str(
            "\n# Segments: each joins a VLAN of an Ethernet port to a partition of an InfiniBand port, with its own neighbors.\n\
             # Up to 128; no two may have the same VLAN or the same partition of a port. Without a segment, the keys above\n\
             # define one with the name \"default\": untagged frames, and the partition of [infiniband].\n",
        );
        section(&mut out, "# ", "[[segment]]", &RawSegment::keys());
        out.push_str("\n# Networks behind a router on the segment, on either side; up to 256 routes.\n");
        section(&mut out, "# ", "[[segment.route]]", &RawRoute::keys());
        out
    }
}

/// Writes a section. With the prefix `# ` all of it is an example.
fn section(out: &mut String, prefix: &str, head: &str, keys: &[Key]) {
    if prefix.is_empty() {
        out.push('\n');
    }
    let _ = writeln!(out, "{prefix}{head}");
    for key in keys {
        let name = key.name.replace('_', "-");
        let (last, first) = key.doc.split_last().unwrap_or((&"", &[]));
        let comment = if prefix.is_empty() { "#" } else { "##" };
        for line in first {
            let _ = writeln!(out, "{comment}{line}");
        }
        let _ = writeln!(out, "{comment}{last}{}", range(key));
        let _ = match (&key.default, key.example) {
            (Some(default), None) => writeln!(out, "{prefix}{name} = {default}"),
            (_, example) => writeln!(out, "# {name} = {}", example.unwrap_or_default()),
        };
    }
}

/// Describes the valid values of a key, and whether it changes while the gateway runs.
fn range(key: &Key) -> String {
    let range = key.range.as_ref().map(|range| format!(" [{range}]")).unwrap_or_default();
    let reload = match key.reload {
        // The name identifies a segment across reloads.
        Reload::Live if key.name != "name" => " (reload)",
        Reload::Shrink => " (reload, smaller only)",
        Reload::Segment => " (as in [[segment]])",
        Reload::Live | Reload::Restart => "",
    };
    format!("{range}{reload}")
}
