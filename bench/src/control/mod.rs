//! The control lcore's work: connections made, ended and expired, ARP, paths from subnet administration. The
//! machines live without I/O, and are run as they are; queue pairs are made on the software device. Tables
//! that are published have a benchmark of their own.

mod arp;
mod connections;
mod device;
mod paths;

use std::time::Instant;

use crate::sample::{Figure, Sample};

/// Processor time of one of several sides.
struct Clock {
    seconds: f64,
}

impl Clock {
    const fn new() -> Self {
        Self { seconds: 0.0 }
    }

    fn measure<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = work();
        self.seconds += start.elapsed().as_secs_f64();
        result
    }

    /// The rate of `number` operations in the elapsed time.
    fn rate(&self, number: u64) -> f64 {
        if self.seconds > 0.0 { number as f64 / self.seconds } else { 0.0 }
    }
}

/// The rate of a side, with the time of the device.
fn with_device(machine: f64, device: f64) -> f64 {
    1.0 / (1.0 / machine + 1.0 / device)
}

pub(crate) fn run(seconds: f64) -> Result<Sample, String> {
    let part = seconds / 8.0;
    let mut sample = Sample::default();
    let mut add = |name: String, rate: f64| sample.figures.push(Figure::new(&name, "per second", rate));
    let device = device::run(part)?;
    add("queue-pairs".to_owned(), device);
    for beside in [0, 4000] {
        let rates = connections::run(part, beside)?;
        add(format!("active-{beside}-beside"), with_device(rates.active, device));
        add(format!("passive-{beside}-beside"), with_device(rates.passive, device));
        add(format!("active-machine-{beside}-beside"), rates.active);
        add(format!("passive-machine-{beside}-beside"), rates.passive);
        add(format!("ended-{beside}-beside"), rates.ended);
        add(format!("expired-{beside}-beside"), rates.expired);
    }
    for hosts in [16, 4096] {
        add(format!("arp-{hosts}-hosts"), arp::run(part, hosts)?);
    }
    for number in [16, 4096] {
        let rates = paths::run(part, number)?;
        add(format!("path-asked-{number}"), rates.asked);
        add(format!("path-cached-{number}"), rates.cached);
    }
    Ok(sample)
}
