//! The file as TOML has it: every key optional, each value with its place.

use toml::Spanned;

use crate::segment::RawSegment;
use crate::settings::{RawBuffers, RawEthernet, RawGateway, RawInfiniBand};

/// The file.
#[derive(serde::Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Raw {
    pub(crate) gateway: RawGateway,
    pub(crate) ethernet: RawEthernet,
    pub(crate) infiniband: RawInfiniBand,
    pub(crate) buffers: RawBuffers,
    pub(crate) segment: Option<Vec<Spanned<RawSegment>>>,
}
