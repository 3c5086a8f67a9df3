//! Tests on simulated hosts.

mod bounds;
mod codes;
mod hostile;
mod init;
mod reading;
mod shown;
mod tree;

use std::path::Path;

use config::{CommandLine, Config, ConfigFile, Overrides};

use crate::machine::Machine;
use crate::report::Report;
use crate::subject::Subject;
use tree::Tree;

/// EAL's arguments of a well-placed gateway on [`Tree::good`].
const EAL: &str = "p -l 8-10 --in-memory -a 0000:81:00.0";
/// Its configuration.
const CONFIGURATION: &str =
    "[gateway]\ncontrol-socket = \"\"\nidle = \"poll\"\n[ethernet]\nport = \"0000:81:00.0\"\n";

fn check(machine: &Machine, eal: &str, text: &str) -> Report {
    let tree = Tree::new();
    let path = tree.file("gateway.toml", text);
    check_file(machine, eal, &path)
}

fn check_file(machine: &Machine, eal: &str, path: &Path) -> Report {
    let mut errors = Vec::new();
    let line = (!eal.is_empty()).then(|| CommandLine::parse(eal.split(' ').map(str::to_owned)));
    let eal = line.and_then(|line| line.map_err(|e| errors.push(e)).ok()).map(|line| line.eal);
    let file = ConfigFile::read(path).map_err(|e| errors.push(e)).ok();
    let config = file.as_ref().map_or_else(Config::default, |file| {
        let (config, wrong) = file.examine(&Overrides::default(), Some(1));
        errors.extend(wrong);
        config
    });
    Subject { machine, config: &config, file: file.as_ref(), eal: eal.as_ref(), errors: &errors }.check()
}

fn codes(report: &Report) -> Vec<&'static str> {
    report.findings().iter().map(|finding| finding.code.word()).collect()
}
