//! Sampling of checksums: workers sample once a second, and what they find is checked and reported.

use std::time::Instant;

use pmd::hca::Backend;
use pmd::mem::{FrameFacts, Mbuf};
use serde_json::json;

use super::GatewayControl;
use crate::event::What;
use crate::forward::{EndpointIndex, EthernetIndex, FrameHead};
use crate::gateway::partial_checksum::{self, text};
use crate::gateway::worker::GatewayCommand;
use ipoib::link::WorkerIndex;
use ipoib::net::ethernet::EthernetHeader;

impl<B: Backend> GatewayControl<B> {
    /// Requests each worker to sample the checksums of a few frames of each Ethernet port.
    pub(super) fn sample_checksums(&mut self) {
        // A worker has all Ethernet ports, whatever InfiniBand port the command goes by.
        if let Some(endpoint) = self.endpoints.at(EndpointIndex(0)) {
            for worker in (0..self.maker.workers).map(WorkerIndex) {
                endpoint.order(worker, GatewayCommand::SampleChecksums);
            }
        }
    }

    /// Computes the checksum of a frame that a worker suspects, and warns of
    /// the packet if it is not complete.
    pub(super) fn take_checksum_sample(&mut self, now: Instant, port: EthernetIndex, frame: &Mbuf) {
        let frame = frame.data();
        let Ok(front) = FrameHead::parse(frame, FrameFacts::default()) else { return };
        let Ok(EthernetHeader { source: hardware, .. }) = EthernetHeader::parse(frame) else { return };
        let packet = frame.get(front.len..).unwrap_or_default();
        let Some(source) = partial_checksum::sender(packet) else { return };
        let Some(end) = self.ethernets.get_mut(port.at()) else { return };
        if !end.partial.note(now, source, hardware) {
            return;
        }
        let (name, text) = (end.port.name(), text(source, hardware));
        tracing::warn!(event = What::ChecksumOffload.journal(), "{name}: {text}");
        let facts = json!({"port": name, "address": source, "hardware_address": hardware.to_string()});
        self.events.report(now, What::ChecksumOffload, None, || (format!("{name}: {text}"), facts));
    }
}
