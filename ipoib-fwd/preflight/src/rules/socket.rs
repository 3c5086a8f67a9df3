//! The control socket's path.

use crate::finding::{Code, Finding};
use crate::machine::Occupant;
use crate::shell::shell_path;
use crate::subject::Subject;

pub(crate) fn check(subject: &Subject<'_>, found: &mut Vec<Finding>) {
    let Some(path) = &subject.config.gateway.control_socket else { return };
    let directory = crate::machine::directory_of(path);
    let make =
        format!("make the directory (mkdir -p {}), or choose another control-socket", shell_path(directory));
    let (directory, path) = (directory.display(), path.display());
    let (code, what, help) = match subject.machine.socket {
        Occupant::Nobody => return,
        Occupant::Gateway => (
            Code::SocketOccupied,
            format!("a gateway that runs serves {path}"),
            "stop it (unless it is the one that this configuration is for), or choose another control-socket",
        ),
        Occupant::Other => (
            Code::SocketOccupied,
            format!("something else is at {path}, where the control socket is to be"),
            "take it away, or choose another control-socket",
        ),
        Occupant::NoDirectory => {
            (Code::PathUnusable, format!("control-socket: there is no directory {directory}"), make.as_str())
        }
        Occupant::Forbidden => (
            Code::SocketForbidden,
            format!("the control socket {path} cannot be made: its directory may not be written to"),
            "run as root, or choose another control-socket",
        ),
    };
    found.push(subject.of_key(code, "gateway.control-socket", None, what, help));
}
