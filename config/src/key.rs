//! Definition of configuration keys.
//!
//! Each key is defined once: its name, type, default, valid range, behavior on reload, and description. The
//! definition generates the serde type, the typed settings, the checks, the annotated default configuration,
//! and the list of keys that can change at run time.

/// Behavior of a key on reload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reload {
    /// Can change while the gateway runs.
    Live,
    /// Fixed at startup.
    Restart,
    /// Can be reduced while the gateway runs: objects created for the larger value also suit the smaller one.
    Shrink,
    /// A default of segments, which are compared separately.
    Segment,
}

/// A key of a section, for the annotated default configuration.
pub(crate) struct Key {
    /// Name with `_` instead of `-`.
    pub(crate) name: &'static str,
    pub(crate) doc: &'static [&'static str],
    /// Range such as "576 to 9700", or nothing.
    pub(crate) range: Option<String>,
    /// Default in TOML; `None` if an omitted key means a value that cannot be written.
    pub(crate) default: Option<String>,
    pub(crate) example: Option<&'static str>,
    pub(crate) reload: Reload,
}

macro_rules! legal {
    () => {
        None
    };
    ($legal:expr) => {
        Some($legal)
    };
}
pub(crate) use legal;

macro_rules! example {
    () => {
        None
    };
    ($example:literal) => {
        Some($example)
    };
}
pub(crate) use example;

/// Defines a section: the settings, the serde type, and the list of keys.
///
/// A key is `name: type = default [=> legal], behavior on reload [, an example as TOML];`. `tables` are
/// parsed by hand, from the type after `from`. `made` are fields of the settings without a key.
macro_rules! section {
    (
        $(#[doc = $section:literal])*
        $svis:vis $name:ident from $raw:ident {
            $($(#[doc = $doc:literal])* $vis:vis $field:ident: $type:ty = $default:expr $(=> $legal:expr)?, $reload:ident $(, $example:literal)?;)*
        }
        $(tables { $($table:ident: $ttype:ty,)* })?
        $(made { $($(#[doc = $mdoc:literal])* pub $made:ident: $mtype:ty,)* })?
    ) => {
        $(#[doc = $section])*
        #[allow(rustdoc::broken_intra_doc_links, reason = "sections of the file stand in brackets")]
        #[derive(Clone, PartialEq, Eq, Debug)]
        $svis struct $name {
            $($(#[doc = $doc])* $vis $field: $type,)*
            $($($(#[doc = $mdoc])* pub $made: $mtype,)*)?
        }

        impl Default for $name {
            fn default() -> Self {
                Self {
                    $($field: $default,)*
                    $($($made: <$mtype>::default(),)*)?
                }
            }
        }

        #[derive(serde::Deserialize, Default)]
        #[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
        pub(crate) struct $raw {
            $(pub(crate) $field: Option<toml::Spanned<<$type as $crate::value::Value>::Raw>>,)*
            $($(pub(crate) $table: Option<$ttype>,)*)?
        }

        impl $raw {
            pub(crate) fn keys() -> Vec<$crate::key::Key> {
                let default = $name::default();
                vec![$($crate::key::Key {
                    name: stringify!($field),
                    doc: &[$($doc),*],
                    range: <$type as $crate::value::Value>::range($crate::key::legal!($($legal)?)),
                    default: $crate::value::Value::toml(&default.$field),
                    example: $crate::key::example!($($example)?),
                    reload: $crate::key::Reload::$reload,
                },)*]
            }

            /// Reads the settings. Omitted keys have their values in `base`.
            pub(crate) fn read(
                &self,
                file: &$crate::source::Source<'_>,
                base: $name,
            ) -> Result<$name, $crate::error::ConfigError> {
                Ok($name {
                    $($field: file.value(stringify!($field), self.$field.as_ref(), $crate::key::legal!($($legal)?), base.$field)?,)*
                    $($($made: base.$made,)*)?
                })
            }
        }

        impl $name {
            #[allow(dead_code, reason = "routes are compared by their segment")]
            /// Returns the keys that differ from `other`, with their behavior on a reload to `other`. A
            /// reducible key with a smaller value counts as live.
            pub(crate) fn differing(&self, other: &Self) -> Vec<(&'static str, $crate::key::Reload)> {
                let mut keys = Vec::new();
                $(if self.$field != other.$field {
                    let reload = match $crate::key::Reload::$reload {
                        $crate::key::Reload::Shrink if $crate::value::Value::holds(&self.$field, &other.$field) => {
                            $crate::key::Reload::Live
                        }
                        reload => reload,
                    };
                    keys.push((stringify!($field), reload));
                })*
                keys
            }
        }
    };
}
pub(crate) use section;
