//! The control socket's path.

use crate::finding::{Code, Finding};
use crate::machine::Occupant;
use crate::shell::shell_path;
use crate::subject::Subject;

pub(crate) fn check(subject: &Subject<'_>, found: &mut Vec<Finding>) {
    let Some(path) = &subject.config.gateway.control_socket else { return };
    let directory = crate::machine::directory_of(path);
    let make =
        format!("create the directory (mkdir -p {}), or use another control-socket", shell_path(directory));
    let (directory, path) = (directory.display(), path.display());
    let (code, what, help) = match subject.machine.socket {
        Occupant::Nobody => return,
        Occupant::Gateway => (
            Code::SocketOccupied,
            format!("a running gateway serves {path}"),
            "stop it (unless it is the one with this configuration), or use another control-socket",
        ),
        Occupant::Other => (
            Code::SocketOccupied,
            format!("{path} exists and is not a control socket"),
            "remove it, or use another control-socket",
        ),
        Occupant::NoDirectory => {
            (Code::PathUnusable, format!("control-socket: there is no directory {directory}"), make.as_str())
        }
        Occupant::Forbidden => (
            Code::SocketForbidden,
            format!("the control socket {path} cannot be created: its directory is not writable"),
            "run as root, or use another control-socket",
        ),
    };
    found.push(subject.of_key(code, "gateway.control-socket", None, what, help));
}
