//! The whole GID table of a real device: in one call, and from sysfs, file by file.

use std::fs;
use std::hint::black_box;
use std::time::Instant;

use pmd::verbs::{GidDevice, devices};

use super::{median, text};
use crate::sample::{Figure, Sample};

/// True if there is a device to query.
pub(crate) fn has_device() -> bool {
    devices().is_ok_and(|devices| !devices.is_empty())
}

pub(crate) fn run(seconds: f64) -> Result<Sample, String> {
    let name = devices()
        .map_err(text)?
        .first()
        .map(|device| device.name.clone())
        .ok_or("there is no RDMA device to query: scripts/lab gids bench creates one")?;
    let device = GidDevice::open(&name).map_err(text)?;
    let entries = device.entries().map_err(text)?;
    let files = read_files(&name)?;
    if entries.len() != files.0 {
        return Err(format!("{name} has {} GIDs and its files {}", entries.len(), files.0));
    }
    let one_call = measure(seconds, || device.entries().map(|entries| entries.len()).map_err(text))?;
    let by_file = measure(seconds, || read_files(&name).map(|(entries, _)| entries))?;
    let part = |what: &str| format!("{what}-{}", entries.len());
    Ok(Sample {
        figures: vec![
            Figure::new(&part("one-call"), "us/table", one_call),
            Figure::new(&part("files"), "us/table", by_file),
            Figure::new(&part("files-to-one-call"), "times", by_file / one_call),
        ],
        notes: vec![format!("{name}: {} GIDs, {} files", entries.len(), files.1)],
        ..Sample::default()
    })
}

/// Median time in microseconds.
fn measure(seconds: f64, mut call: impl FnMut() -> Result<usize, String>) -> Result<f64, String> {
    let start = Instant::now();
    let mut rounds = Vec::new();
    while rounds.len() < 5 || start.elapsed().as_secs_f64() < seconds / 2.0 {
        let round = Instant::now();
        black_box(call()?);
        rounds.push(round.elapsed().as_nanos() as f64 / 1e3);
    }
    Ok(median(rounds))
}

/// Returns the number of the device's GIDs and of read files: the GID of each slot, and type and interface of
/// used slots.
fn read_files(device: &str) -> Result<(usize, usize), String> {
    let (mut entries, mut files) = (0, 0);
    let mut read = |path: String| {
        files += 1;
        fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))
    };
    for port in fs::read_dir(format!("/sys/class/infiniband/{device}/ports")).map_err(text)? {
        let port = port.map_err(text)?.path();
        let port = port.display();
        for index in 0.. {
            let Ok(gid) = read(format!("{port}/gids/{index}")) else { break };
            if gid.bytes().any(|byte| !b"0:\n".contains(&byte)) {
                entries += 1;
                black_box(read(format!("{port}/gid_attrs/types/{index}"))?);
                black_box(read(format!("{port}/gid_attrs/ndevs/{index}"))?);
            }
        }
    }
    Ok((entries, files))
}
