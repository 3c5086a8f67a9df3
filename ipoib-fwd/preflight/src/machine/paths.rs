//! Paths of the configuration, as seen by the user that the gateway changes to.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use config::{Config, Driver, Privileges};

use super::cable_socket;
use super::files::directory_of;
use super::process::Access;

/// The kind of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PathKind {
    /// Nothing.
    Missing,
    /// A directory.
    Directory,
    /// Something else.
    Other,
}

/// The state of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathState {
    /// Its kind.
    pub kind: PathKind,
    /// False if the user that the gateway changes to has no write access.
    pub is_writable: bool,
}

/// Credentials after privileges are dropped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Later {
    user: u32,
    groups: Vec<u32>,
}

/// True if the gateway drops its capabilities. The driver "verbs" keeps them, and "auto" may select that
/// driver.
pub(crate) fn drops_capabilities(config: &Config) -> bool {
    let is_able = config.infiniband.is_soft() || config.infiniband.driver == Driver::Mlx5;
    config.gateway.privileges == Privileges::Drop && is_able
}

/// Permission bits for others (inode(7)).
const WRITE: u32 = 2;
const SEARCH: u32 = 1;

impl Later {
    /// `None` if the gateway keeps its capabilities, or may keep them.
    fn of(config: &Config) -> Option<Self> {
        let gateway = &config.gateway;
        if !drops_capabilities(config) {
            return None;
        }
        let user = gateway.user.as_deref().map(privileges::user).transpose().ok()?;
        let group = gateway.group.as_deref().map(privileges::group).transpose().ok()?;
        let own = rustix::process::geteuid().as_raw();
        let group = group.or_else(|| user?.group).map(|group| group.0);
        let groups = match group {
            Some(group) => vec![group],
            None => {
                let more = rustix::process::getgroups().unwrap_or_default();
                let first = std::iter::once(rustix::process::getegid());
                first.chain(more).map(rustix::process::Gid::as_raw).collect()
            }
        };
        Some(Self { user: user.map_or(own, |user| user.id.0), groups })
    }

    /// True if owner, group and mode grant these permissions.
    fn may(&self, about: &Metadata, wanted: u32) -> bool {
        let bits = if about.uid() == self.user {
            about.mode() >> 6
        } else if self.groups.contains(&about.gid()) {
            about.mode() >> 3
        } else {
            about.mode()
        };
        bits & wanted == wanted
    }

    /// False if a path is known not to be writable.
    fn may_write(&self, path: &Path) -> bool {
        let Ok(path) = path.canonicalize() else { return true };
        let allows = |at: &Path, wanted: u32| {
            // The mode does not include access control lists.
            std::fs::metadata(at).map_or(true, |about| self.may(&about, wanted)) || has_list(at)
        };
        let wanted = if path.is_dir() { WRITE | SEARCH } else { WRITE };
        allows(&path, wanted) && path.ancestors().skip(1).all(|above| allows(above, SEARCH))
    }
}

fn has_list(path: &Path) -> bool {
    rustix::fs::getxattr(path, "system.posix_acl_access", &mut [0_u8; 0][..]).is_ok_and(|bytes| bytes > 0)
}

fn state(path: &Path, later: Option<&Later>) -> PathState {
    let kind = match std::fs::metadata(path) {
        Ok(about) if about.is_dir() => PathKind::Directory,
        Ok(_) => PathKind::Other,
        Err(_) => PathKind::Missing,
    };
    let is_writable =
        later.map_or_else(|| Access::of(path) != Access::Refused, |later| later.may_write(path));
    PathState { kind, is_writable }
}

/// Reads the paths of a configuration.
pub(super) fn read(config: &Config) -> BTreeMap<PathBuf, PathState> {
    let later = Later::of(config);
    let gateway = &config.gateway;
    let gids = gateway.gids.as_deref().into_iter().flat_map(|file| [file, directory_of(file)]);
    let cables = config.infiniband.soft.iter().flat_map(|soft| &soft.ports);
    let cables = cables.filter_map(|port| cable_socket(&port.link)).map(Path::new);
    let written =
        [&gateway.captures, &gateway.state_directory].into_iter().filter_map(|path| path.as_deref());
    let all = gids.chain(written).chain(cables);
    all.map(|path| (path.to_owned(), state(path, later.as_ref()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn the_user_has_the_bits_of_owner_group_or_others() {
        let directory = std::env::temp_dir().join(format!("preflight-paths-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o755)).unwrap();
        let file = directory.join("socket");
        std::fs::write(&file, "").unwrap();
        let about = std::fs::metadata(&file).unwrap();
        let owner = Later { user: about.uid(), groups: vec![4_000_000_000] };
        let member = Later { user: 4_000_000_001, groups: vec![7, about.gid()] };
        let other = Later { user: 4_000_000_001, groups: vec![4_000_000_000] };
        let rows =
            [(0o200, [true, false, false]), (0o020, [false, true, false]), (0o002, [false, false, true])];
        for (mode, expected) in rows {
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
            let may = [&owner, &member, &other].map(|later| later.may_write(&file));
            assert_eq!(may, expected, "{mode:o}");
        }
        // A parent directory is not accessible.
        std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o750)).unwrap();
        assert!(!other.may_write(&file) && !member.may_write(&directory));
        std::fs::remove_dir_all(&directory).unwrap();
        // The state of a missing path is unknown.
        assert!(other.may_write(&file));
    }
}
