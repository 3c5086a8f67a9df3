//! Users and groups of the configuration.

use privileges::UserError;

/// The result of looking up a name.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub enum Account {
    /// It is usable, or no name is configured.
    #[default]
    Known,
    /// A user's number without an entry, so its group is unknown.
    Groupless,
    /// This file has no entry for it.
    Unknown(&'static str),
    /// The file with the entries cannot be read; the reason.
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
