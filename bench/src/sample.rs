//! What one run of a benchmark tells: a line of JSON from the process that ran it to the one that gathers.

use dataplane::latency::Summary;
use serde::{Deserialize, Serialize};

use crate::percentiles::Recorded;

/// One figure.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Figure {
    /// Behind the benchmark's name; empty for the main one.
    pub(crate) part: String,
    /// Unit.
    pub(crate) unit: String,
    /// Value.
    pub(crate) value: f64,
    /// True if the peer's figure is of the same thing.
    pub(crate) has_peer: bool,
    /// What it is compared with that was measured in the same run: name and value.
    #[serde(default)]
    pub(crate) beside: Option<(String, f64)>,
    /// Too little lies behind it to tell it: fewer than ten packets above a percentile.
    #[serde(default)]
    pub(crate) thin: bool,
}

impl Figure {
    /// A figure that no peer has.
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

    /// Compared with something else that the same run measured.
    pub(crate) fn beside(self, name: &str, value: f64) -> Self {
        Self { beside: Some((name.to_owned(), value)), ..self }
    }

    /// A figure that the peer has, too.
    pub(crate) fn with_peer(part: &str, unit: &str, value: f64) -> Self {
        Self { has_peer: true, ..Self::new(part, unit, value) }
    }
}

/// One run.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Sample {
    /// Figures.
    pub(crate) figures: Vec<Figure>,
    /// Lines on times and other things, for people.
    pub(crate) notes: Vec<String>,
    /// Times, of benchmarks that are of each single one.
    #[serde(default)]
    pub(crate) histograms: Vec<Recorded>,
}

/// A line on times.
pub(crate) fn times(what: &str, summary: &Summary) -> String {
    format!("{what}: {summary}")
}
