//! What is counted: drops and other happenings, by reason.

/// Defines an enum of what is counted. Each variant is written down once, with its label and the words that explain it:
///
/// ```
/// hca::counted! {
///     /// Why the door was opened.
///     Opening {
///         /// Somebody rang.
///         Bell = "bell",
///         /// It was not closed.
///         Wind = "wind",
///     }
/// }
/// assert_eq!(Opening::ALL.map(Opening::name), ["bell", "wind"]);
/// assert_eq!(Opening::Wind.describe(), "It was not closed.");
/// ```
#[macro_export]
macro_rules! counted {
    ($(#[$meta:meta])* $name:ident { $($(#[doc = $text:literal])+ $variant:ident = $label:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u8)]
        pub enum $name { $($(#[doc = $text])+ $variant,)* }

        #[allow(dead_code, reason = "not all of it is of use for each of them")]
        impl $name {
            /// All of them, in the order of their numbers: `ALL[n as usize] == n`.
            pub const ALL: [Self; { [$(Self::$variant),*].len() }] = [$(Self::$variant),*];

            /// Label of its counter.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $label,)* }
            }

            /// It in a sentence, for people.
            #[must_use]
            pub const fn describe(self) -> &'static str {
                match self { $(Self::$variant => concat!($($text),+).trim_ascii(),)* }
            }
        }
    };
}

/// Defines a struct of counters, each with the words that explain it, and the list of them:
///
/// ```
/// hca::counters! {
///     /// What happened to a door.
///     #[derive(Default)]
///     DoorCounters {
///         /// Times that it was opened.
///         opened,
///     }
/// }
/// assert_eq!(DoorCounters::DESCRIBED, [("opened", "Times that it was opened.")]);
/// assert_eq!(DoorCounters::default().opened, 0);
/// ```
#[macro_export]
macro_rules! counters {
    ($(#[$meta:meta])* $name:ident { $($(#[doc = $text:literal])+ $field:ident,)* }) => {
        $(#[$meta])*
        pub struct $name { $($(#[doc = $text])+ pub $field: u64,)* }

        impl $name {
            /// All of them, with what they count.
            pub const DESCRIBED: [(&'static str, &'static str); { [$(stringify!($field)),*].len() }] =
                [$((stringify!($field), concat!($($text),+).trim_ascii())),*];
        }
    };
}
