//! The results of one run of a benchmark: a line of JSON from the process of the run to the one that collects
//! them.

use dataplane::latency::Summary;
use serde::{Deserialize, Serialize};

use crate::percentiles::Recorded;

/// One measured value.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Figure {
    /// Suffix of the benchmark's name; empty for the main value.
    pub(crate) part: String,
    /// Unit.
    pub(crate) unit: String,
    /// Value.
    pub(crate) value: f64,
    /// True if the peer has the same value.
    pub(crate) has_peer: bool,
    /// Name and value of a reference that was measured in the same run.
    #[serde(default)]
    pub(crate) beside: Option<(String, f64)>,
    /// Too little data for the value: fewer than ten packets above a percentile.
    #[serde(default)]
    pub(crate) thin: bool,
}

impl Figure {
    /// A value without a peer.
    pub(crate) fn new(part: &str, unit: &str, value: f64) -> Self {
        Self {
            part: part.to_owned(),
            unit: unit.to_owned(),
            value,
            has_peer: false,
            beside: None,
            thin: false,
        }
    }

    /// Adds a reference that was measured in the same run.
    pub(crate) fn beside(self, name: &str, value: f64) -> Self {
        Self { beside: Some((name.to_owned(), value)), ..self }
    }

    /// A value that the peer has, too.
    pub(crate) fn with_peer(part: &str, unit: &str, value: f64) -> Self {
        Self { has_peer: true, ..Self::new(part, unit, value) }
    }
}

/// One run.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Sample {
    /// Measured values.
    pub(crate) figures: Vec<Figure>,
    /// Notes on times and other things for readers.
    pub(crate) notes: Vec<String>,
    /// Times of single events, for benchmarks that record them.
    #[serde(default)]
    pub(crate) histograms: Vec<Recorded>,
}

/// A note on times.
pub(crate) fn times(what: &str, summary: &Summary) -> String {
    format!("{what}: {summary}")
}
