//! A configuration key is written down once: its name, type, default, legal range, what a reload does with it, and the
//! words that explain it. From that come the type that serde fills, the typed settings, the checks, the annotated
//! default configuration, and the list of what a running gateway can change.

/// What a reload does with a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reload {
    /// Changes while the gateway runs.
    Live,
    /// Is settled when the gateway starts.
    Restart,
    /// May become smaller while the gateway runs: what was made for the larger value holds the smaller one.
    Shrink,
    /// Is a default of segments, which are compared themselves.
    Segment,
}

/// One key of a section, for the annotated default configuration.
pub(crate) struct Key {
    /// With `_` in place of `-`.
    pub(crate) name: &'static str,
    pub(crate) doc: &'static [&'static str],
    /// "576 to 9700", or nothing.
    pub(crate) range: Option<String>,
    /// As TOML; `None` if leaving the key out means something that cannot be written.
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

/// Defines a section: the settings, the type that serde fills, and the list of keys. A key is
/// `name: type = default [=> legal], what a reload does [, an example as TOML];`. `tables` are read by hand, from the
/// type behind `from`; `made` are fields of the settings that no key has.
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

            /// The settings; a key that is not given is as in `base`.
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
            /// The keys that are not as in `other`, with what a reload to `other` does. A key that may shrink, and does, is
            /// live.
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
