//! The file as TOML has it, with the places of values that can be wrong.

use serde::Deserialize;
use toml::Spanned;

/// The file.
#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Raw {
    pub(super) fabric: RawFabric,
    pub(super) partition: Vec<RawPartition>,
    pub(super) link: Vec<RawLink>,
    pub(super) host: Vec<RawHost>,
}

#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct RawFabric {
    pub(super) mtu: Option<Spanned<u64>>,
    pub(super) prefix: Option<Spanned<String>>,
    pub(super) guid: Option<Spanned<String>>,
    pub(super) name: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct RawPartition {
    pub(super) pkey: Spanned<u64>,
    pub(super) qkey: Option<u32>,
    pub(super) mtu: Option<Spanned<u64>>,
    pub(super) rate: Option<u8>,
    #[serde(default)]
    pub(super) members: Vec<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct RawLink {
    pub(super) name: String,
    pub(super) url: Spanned<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct RawHost {
    pub(super) name: Spanned<String>,
    pub(super) netns: Option<String>,
    pub(super) tun: Option<String>,
    pub(super) address: Spanned<String>,
    pub(super) gateway: Option<Spanned<String>>,
    pub(super) mtu: Option<Spanned<u64>>,
    pub(super) mode: Option<Spanned<String>>,
    pub(super) guid: Option<Spanned<String>>,
    pub(super) pkey: Option<Spanned<u64>>,
}
