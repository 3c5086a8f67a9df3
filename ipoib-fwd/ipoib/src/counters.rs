//! Counters with their descriptions and remedies, in one table.

/// Defines a struct of counters, each with a description and the operator's remedy, and a list of them. A
/// counter without a remedy does not compile:
///
/// ```
/// ipoib::counters! {
///     /// What happened to a door.
///     #[derive(Default)]
///     DoorCounters {
///         /// Times that it was slammed.
///         slammed = "Shut the window.",
///     }
/// }
/// assert_eq!(DoorCounters::DESCRIBED, [["slammed", "Times that it was slammed.", "Shut the window."]]);
/// assert_eq!(DoorCounters { slammed: 3 }.values(), [3]);
/// assert_eq!(DoorCounters::default().slammed, 0);
/// ```
#[macro_export]
macro_rules! counters {
    ($(#[$meta:meta])* $name:ident { $($(#[doc = $text:literal])+ $field:ident = $remedy:literal,)* }) => {
        $(#[$meta])*
        pub struct $name { $($(#[doc = $text])+ pub $field: u64,)* }

        impl $name {
            /// All counters: name, description, remedy.
            pub const DESCRIBED: [[&'static str; 3]; { [$(stringify!($field)),*].len() }] =
                [$([stringify!($field), concat!($($text),+).trim_ascii(), $remedy]),*];

            /// The values of the counters, in the order of [`Self::DESCRIBED`].
            #[must_use]
            pub const fn values(&self) -> [u64; Self::DESCRIBED.len()] {
                [$(self.$field),*]
            }
        }
    };
}
