//! Files and directories of the configuration, for the user that the gateway changes to.

use std::path::Path;

use crate::finding::{Code, Finding, Severity};
use crate::machine::{PathKind, cable_socket, directory_of, drops_capabilities};
use crate::shell::{shell_path, shell_word};
use crate::subject::Subject;

pub(crate) fn check(subject: &Subject<'_>, found: &mut Vec<Finding>) {
    gids(subject, found);
    captures(subject, found);
    state(subject, found);
    cables(subject, found);
}

fn kind(subject: &Subject<'_>, path: &Path) -> Option<PathKind> {
    subject.machine.paths.get(path).map(|state| state.kind)
}

/// The user that the gateway changes to, as text.
fn later(subject: &Subject<'_>) -> String {
    let without = match subject.config.gateway.user {
        None if drops_capabilities(subject.config) => " without capabilities (privileges = \"drop\")",
        _ => "",
    };
    format!("user {}{without}", later_user(subject))
}

fn later_user<'s>(subject: &'s Subject<'_>) -> &'s str {
    subject.config.gateway.user.as_deref().unwrap_or(&subject.machine.effective_user)
}

fn gids(subject: &Subject<'_>, found: &mut Vec<Finding>) {
    const KEY: &str = "gateway.gids";
    let Some(file) = &subject.config.gateway.gids else { return };
    let directory = directory_of(file);
    let (what, help) = if kind(subject, file) == Some(PathKind::Directory) {
        (
            format!("{KEY}: {} is a directory", file.display()),
            format!("use a file in it: {}/gids", file.display()),
        )
    } else if matches!(kind(subject, directory), Some(PathKind::Missing | PathKind::Other)) {
        (
            format!("{KEY}: there is no directory {}", directory.display()),
            format!("create it (mkdir -p {}) or use another file", shell_path(directory)),
        )
    } else {
        return;
    };
    found.push(subject.of_key(Code::PathUnusable, KEY, None, what, help));
}

fn captures(subject: &Subject<'_>, found: &mut Vec<Finding>) {
    let directory = subject.config.gateway.captures.as_deref();
    let Some((kind, finding)) = directory.and_then(|at| written(subject, "gateway.captures", at)) else {
        return;
    };
    // A capture is started later, when the directory may exist.
    found.push(match kind {
        PathKind::Missing => finding.as_severe_as(Severity::Warning),
        PathKind::Directory | PathKind::Other => finding,
    });
}

fn state(subject: &Subject<'_>, found: &mut Vec<Finding>) {
    let directory = subject.config.gateway.state_directory.as_deref();
    let finding = directory.and_then(|at| written(subject, "gateway.state-directory", at));
    // The gateway also forwards without it.
    found.extend(finding.map(|(_, finding)| finding.as_severe_as(Severity::Warning)));
    if let Some((path, holder)) = &subject.machine.state_in_use {
        let what =
            format!("gateway.state-directory: {holder} uses {} as its state directory", path.display());
        let help = "give each gateway of a host its own state-directory, or stop that process (unless it is the gateway \
                    that this configuration is for)";
        found.push(subject.of_key(Code::PathUnusable, "gateway.state-directory", None, what, help));
    }
}

/// Checks a directory that the gateway writes to later.
fn written(subject: &Subject<'_>, key: &'static str, directory: &Path) -> Option<(PathKind, Finding)> {
    let state = subject.machine.paths.get(directory)?;
    let shown = directory.display();
    let (what, help) = match state.kind {
        PathKind::Missing => (
            format!("{key}: there is no directory {shown}"),
            format!("create it: mkdir -p {}", shell_path(directory)),
        ),
        PathKind::Other => (format!("{key}: {shown} is not a directory"), "use a directory".to_owned()),
        PathKind::Directory if !state.is_writable => {
            let what = format!("{key}: {} cannot write to {shown}", later(subject));
            let owner = shell_word(later_user(subject));
            (what, format!("change the owner: chown {owner} {}", shell_path(directory)))
        }
        PathKind::Directory => return None,
    };
    Some((state.kind, subject.of_key(Code::PathUnusable, key, None, what, help)))
}

fn cables(subject: &Subject<'_>, found: &mut Vec<Finding>) {
    if !subject.config.infiniband.is_soft() {
        return;
    }
    for (number, device) in subject.config.infiniband.soft.iter().enumerate() {
        for path in device.ports.iter().filter_map(|port| cable_socket(&port.link)) {
            let Some(state) = subject.machine.paths.get(Path::new(path)) else { continue };
            if state.kind != PathKind::Missing && !state.is_writable {
                let what =
                    format!("{} cannot use the cable's socket {path} (permission denied)", later(subject));
                let help = "give that user write access to the socket and its directory (chgrp and chmod g+w), or run ibfab as the \
                            same user";
                let key = "infiniband.soft.ports";
                found.push(subject.of_key(Code::CableForbidden, key, Some(number), what, help));
            }
        }
    }
}
