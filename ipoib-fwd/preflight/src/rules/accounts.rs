//! The user and group of the gateway.

use crate::finding::{Code, Finding};
use crate::machine::Account;
use crate::subject::Subject;

pub(crate) fn check(subject: &Subject<'_>, found: &mut Vec<Finding>) {
    let (gateway, machine) = (&subject.config.gateway, subject.machine);
    let named = [("user", &gateway.user, &machine.user), ("group", &gateway.group, &machine.group)];
    for (kind, name, account) in named {
        let Some(name) = name else { continue };
        let (what, help) = match account {
            Account::Known => continue,
            Account::Groupless if gateway.group.is_some() => continue,
            Account::Groupless => (
                format!("/etc/passwd has no entry with the group of user {name}"),
                "set group in [gateway], too".to_owned(),
            ),
            Account::Unknown(file) => (
                format!("there is no {kind} {name:?} in {file}"),
                format!("create it (adduser --system --group {name}) or use its number"),
            ),
            Account::Unreadable(why) => (why.clone(), "make the file readable for this process".to_owned()),
        };
        let key = if kind == "user" { "gateway.user" } else { "gateway.group" };
        found.push(subject.of_key(Code::AccountUnknown, key, None, what, help));
    }
}
