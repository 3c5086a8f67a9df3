//! The file in TOML form: every key is optional, and each value has its location.

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
