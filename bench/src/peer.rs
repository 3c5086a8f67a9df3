//! The peers: `dpdk-testpmd` in several forwarding modes, on the same packets and the same processor.

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use crate::machine;

/// Forwarding mode of `dpdk-testpmd`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    /// Reads all headers, and calculates and checks checksums.
    Csum,
    /// Forwards packets without reading them.
    Io,
    /// Swaps the Ethernet addresses.
    MacSwap,
    /// Swaps these, and addresses and ports of IP and UDP.
    FiveTupleSwap,
}

impl Mode {
    /// All modes; steps are compared with the first one.
    pub(crate) const ALL: [Self; 4] = [Self::Csum, Self::Io, Self::MacSwap, Self::FiveTupleSwap];

    /// Its name in `dpdk-testpmd`.
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::Csum => "csum",
            Self::Io => "io",
            Self::MacSwap => "macswap",
            Self::FiveTupleSwap => "5tswap",
        }
    }

    /// Name of the peer's result.
    pub(crate) fn name(self) -> String {
        format!("dpdk-testpmd {}, net_pcap infinite_rx to net_null", self.text())
    }
}

/// Maximum duration of start and stop.
const PATIENCE: Duration = Duration::from_secs(30);

/// Kills the process when dropped without a wait.
struct Reaped(Child);

impl Drop for Reaped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Forwards the packets of a file for `seconds`. Returns millions of packets per second.
pub(crate) fn run(mode: Mode, (pcap, packets): (&Path, u32), seconds: f64) -> Result<f64, String> {
    let mut command = Command::new("dpdk-testpmd");
    command
        .args(["--lcores", &machine::lcores(), "--no-pci", "--no-telemetry", "--log-level=error"])
        .args(machine::memory_arguments())
        .args(["--vdev", &format!("net_pcap0,rx_pcap={},infinite_rx=1", pcap.display())])
        .args(["--vdev", "net_null0,no-rx=1"])
        .args(["--", "-i", "--nb-cores=1", "--burst=32"])
        // The port keeps a copy of each packet.
        .arg(format!("--total-num-mbufs={}", 16_384 + packets))
        .arg(format!("--forward-mode={}", mode.text()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let child = command.spawn().map_err(|e| format!("dpdk-testpmd (package dpdk-dev): {e}"))?;
    let mut child = Reaped(child);
    let (Some(mut input), Some(mut output)) = (child.0.stdin.take(), child.0.stdout.take()) else {
        return Err("dpdk-testpmd: no pipes".to_owned());
    };
    let (done, text) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = output.read_to_end(&mut bytes);
        let _ = done.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    let mut say = |words: &str, then: f64| {
        let said = input.write_all(words.as_bytes()).and_then(|()| input.flush());
        std::thread::sleep(Duration::from_secs_f64(then));
        said.map_err(|e| format!("dpdk-testpmd has ended: {e}"))
    };
    // The pipe holds the commands until it has started; a rate covers the time since the last query.
    say("start\n", 1.0)?;
    say("show port stats 0\n", seconds)?;
    say("show port stats 0\nstop\nquit\n", 0.0)?;
    let text = text
        .recv_timeout(PATIENCE)
        .map_err(|_| format!("dpdk-testpmd does not end within {} s", PATIENCE.as_secs()))?;
    rate(&text).ok_or_else(|| format!("dpdk-testpmd reports no rate:\n{text}"))
}

/// The last rate of received packets that testpmd reported, in millions per second.
fn rate(text: &str) -> Option<f64> {
    let told = text.lines().filter_map(|line| line.trim().strip_prefix("Rx-pps:")).next_back()?;
    let pps: f64 = told.split_whitespace().next()?.parse().ok()?;
    (pps > 0.0).then_some(pps / 1e6)
}

#[cfg(test)]
mod tests {
    use super::{Mode, rate};

    #[test]
    fn every_mode_has_a_name_of_its_own_and_csum_is_the_first() {
        let names = Mode::ALL.map(Mode::text);
        assert_eq!(names, ["csum", "io", "macswap", "5tswap"]);
        assert!(Mode::ALL.iter().all(|mode| mode.name().contains(mode.text())));
    }

    #[test]
    fn the_last_rate_counts_and_none_is_none() {
        let text =
            "x\n  Rx-pps:            5          Rx-bps:   1\n  Rx-pps:     19500000          Rx-bps:  936\n";
        assert_eq!(rate(text), Some(19.5));
        assert_eq!(rate("Rx-pps: 0 Rx-bps: 0"), None);
        assert_eq!(rate("testpmd>"), None);
    }
}
