//! Users and groups by name or number, from the local files (`/etc/passwd`, `/etc/group`). No library is
//! loaded for it.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

/// Maximum length of a file in bytes.
const MOST: u64 = 16 << 20;
/// The invalid ID of system calls.
const NONE: u32 = u32::MAX;

/// A user ID.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UserId(pub u32);

/// A group ID.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupId(pub u32);

/// A user.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct User {
    /// User ID.
    pub id: UserId,
    /// Primary group; `None` for a number without an entry.
    pub group: Option<GroupId>,
}

/// Reason why a user or group was not found.
#[derive(Debug, thiserror::Error)]
pub enum UserError {
    /// No entry has this name.
    #[error(
        "there is no {kind} {name:?} in {file}: create it (adduser --system --group {name}) or give its number"
    )]
    Unknown {
        /// "user" or "group".
        kind: &'static str,
        /// Its name.
        name: String,
        /// The file.
        file: &'static str,
    },
    /// The file cannot be read.
    #[error("cannot read {file}: {source}")]
    Read {
        /// The file.
        file: &'static str,
        /// The system error.
        #[source]
        source: std::io::Error,
    },
}

/// Looks up a user by name or number.
pub fn user(name: &str) -> Result<User, UserError> {
    let file = "/etc/passwd";
    find_user(name, &read(file)?).ok_or_else(|| unknown("user", name, file))
}

/// Looks up a group by name or number.
pub fn group(name: &str) -> Result<GroupId, UserError> {
    let file = "/etc/group";
    find_group(name, &read(file)?).ok_or_else(|| unknown("group", name, file))
}

fn unknown(kind: &'static str, name: &str, file: &'static str) -> UserError {
    UserError::Unknown { kind, name: name.to_owned(), file }
}

fn read(file: &'static str) -> Result<String, UserError> {
    let mut bytes = Vec::new();
    File::open(Path::new(file))
        .and_then(|opened| opened.take(MOST).read_to_end(&mut bytes))
        .map_err(|source| UserError::Read { file, source })?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn number(text: &str) -> Option<u32> {
    text.parse().ok().filter(|&id| id != NONE)
}

/// Finds a user in `name:password:uid:gid:…`, by name or number.
fn find_user(wanted: &str, passwd: &str) -> Option<User> {
    let by_number = number(wanted);
    let entry = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        let id = number(fields.nth(1)?)?;
        let group = number(fields.next()?)?;
        let is_it = by_number.map_or_else(|| name == wanted, |number| id == number);
        is_it.then_some(User { id: UserId(id), group: Some(GroupId(group)) })
    };
    passwd.lines().find_map(entry).or_else(|| Some(User { id: UserId(by_number?), group: None }))
}

/// Finds a group in `name:password:gid:members`.
fn find_group(wanted: &str, groups: &str) -> Option<GroupId> {
    if let Some(number) = number(wanted) {
        return Some(GroupId(number));
    }
    let entry = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        let id = number(fields.nth(1)?)?;
        (name == wanted).then_some(GroupId(id))
    };
    groups.lines().find_map(entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nbroken\nhalf:x:12\nbad:x:-1:4::\nall:x:4294967295:0::\ngateway:x:901:902::/:\n";

    #[test]
    fn users_are_found_by_name_and_number() {
        let gateway = User { id: UserId(901), group: Some(GroupId(902)) };
        assert_eq!(find_user("gateway", PASSWD), Some(gateway));
        assert_eq!(find_user("901", PASSWD), Some(gateway));
        assert_eq!(find_user("77", PASSWD), Some(User { id: UserId(77), group: None }));
        assert_eq!(user("root").unwrap().id, UserId(0));
    }

    #[test]
    fn what_is_no_entry_is_no_user() {
        for name in ["", "broken", "half", "bad", "all", "x", "gateway:x", "4294967295", "-1", "1e3"] {
            assert_eq!(find_user(name, PASSWD), None, "{name}");
        }
        let error = user("no-such-user").unwrap_err().to_string();
        assert!(error.contains("no-such-user") && error.contains("/etc/passwd"), "{error}");
    }

    #[test]
    fn groups_are_found_by_name_and_number() {
        let groups = "root:x:0:\nnet:x:77:a,b\nbad:x::\n";
        assert_eq!(find_group("net", groups), Some(GroupId(77)));
        assert_eq!(find_group("78", groups), Some(GroupId(78)));
        for name in ["", "bad", "a", "4294967295"] {
            assert_eq!(find_group(name, groups), None, "{name}");
        }
    }
}
