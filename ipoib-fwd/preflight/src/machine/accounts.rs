//! Users and groups that a configuration names.

use privileges::UserError;

/// What the machine knows of a name.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub enum Account {
    /// Nothing that would be in the way, or none is named.
    #[default]
    Known,
    /// A user's number that no entry has, so that its group is unknown.
    Groupless,
    /// It has no entry in this file.
    Unknown(&'static str),
    /// The file with the entries cannot be read, and why.
    Unreadable(String),
}

impl Account {
    pub(super) fn of_user(name: &str) -> Self {
        match privileges::user(name) {
            Ok(user) if user.group.is_none() => Self::Groupless,
            Ok(_) => Self::Known,
            Err(error) => Self::of_error(&error),
        }
    }

    pub(super) fn of_group(name: &str) -> Self {
        privileges::group(name).map_or_else(|error| Self::of_error(&error), |_| Self::Known)
    }

    fn of_error(error: &UserError) -> Self {
        match error {
            UserError::Unknown { file, .. } => Self::Unknown(file),
            UserError::Read { .. } => Self::Unreadable(error.to_string()),
        }
    }
}
