//! Definition of counters: drops and other events, by reason.

/// Defines an enum of counters. Each variant is written once, with its label and its description:
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
///
/// An enum whose counters need action by an operator gives a remedy in each variant:
///
/// ```
/// hca::counted! {
///     /// Why the door is open.
///     Open {
///         /// It was not closed.
///         Wind = "wind" => "Close it.",
///     }
/// }
/// assert_eq!(Open::Wind.remedy(), "Close it.");
/// ```
#[macro_export]
macro_rules! counted {
    ($(#[$meta:meta])* $name:ident { $($(#[doc = $text:literal])+ $variant:ident = $label:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u8)]
        pub enum $name { $($(#[doc = $text])+ $variant,)* }

        #[allow(dead_code, reason = "not every enum uses all of these")]
        impl $name {
            /// All variants in numeric order: `ALL[n as usize] == n`.
            pub const ALL: [Self; { [$(Self::$variant),*].len() }] = [$(Self::$variant),*];

            /// Label of its counter.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $label,)* }
            }

            /// Description in a sentence, for people.
            #[must_use]
            pub const fn describe(self) -> &'static str {
                match self { $(Self::$variant => concat!($($text),+).trim_ascii(),)* }
            }
        }
    };
    ($(#[$meta:meta])* $name:ident { $($(#[doc = $text:literal])+ $variant:ident = $label:literal => $remedy:literal,)* }) => {
        $crate::counted! { $(#[$meta])* $name { $($(#[doc = $text])+ $variant = $label,)* } }

        impl $name {
            /// The remedy for an operator.
            #[must_use]
            pub const fn remedy(self) -> &'static str {
                match self { $(Self::$variant => $remedy,)* }
            }
        }
    };
}
