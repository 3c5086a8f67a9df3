//! Metrics for monitoring systems: families in the text format of OpenMetrics 1.0.
//!
//! The gateway writes them for its control socket (`ctl metrics`). `ipoib-fwd metrics` serves them over HTTP
//! in a separate process, so that HTTP clients have no access to the gateway's process.

mod exporter;
mod family;
mod figures;
mod gateway;
mod places;
mod sheet;

pub use exporter::{MetricsError, MetricsOptions, run, serve};
pub use family::{Family, Table};
pub use figures::{
    EthernetFigures, Figures, InfinibandFigures, LinkFigures, MOST_BESIDE, MOST_OF_PORT, MOST_OF_SEGMENT,
    MOST_OF_WORKER, SegmentFigures,
};
pub use gateway::Gateway;
use sheet::to_prometheus;
pub use sheet::{Labels, Sheet, labels};

/// The media type of OpenMetrics 1.0 ("Protocol Negotiation").
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The media type of Prometheus' own text format, for clients that do not accept OpenMetrics.
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";
