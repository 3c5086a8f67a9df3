//! Processors of lcores: online, not shared, isolated, at full frequency.

use config::{Idle, LcoreSet};

use super::listed;
use crate::finding::{Code, Finding, Severity};
use crate::subject::Subject;

pub(crate) fn check(subject: &Subject<'_>, found: &mut Vec<Finding>) {
    let Some(eal) = subject.eal else { return };
    let processors = &subject.machine.processors;
    if let Err(error) = eal.roles() {
        // This error has its description and fix in one text.
        let text = error.to_string();
        let text = text.strip_prefix("command line: ").unwrap_or(&text);
        let (what, help) = text.split_once("; ").unwrap_or((text, ""));
        found.push(Finding::new(Code::WorkerMissing, what, help));
    } else if eal.lcores.is_none() && processors.online.len() == 1 {
        let what = "there is one processor, and a gateway has at least two lcores";
        found.push(Finding::new(Code::WorkerMissing, what, "let both lcores share it: --lcores 0@0,1@0"));
    }
    let Some(lcores) = eal.lcores else { return };
    let places: Vec<(u16, LcoreSet)> = lcores.iter().map(|lcore| (lcore, eal.processors_of(lcore))).collect();
    if !processors.online.is_empty() {
        let missing: LcoreSet = places
            .iter()
            .flat_map(|(_, of)| of.iter())
            .filter(|cpu| !processors.online.contains(*cpu))
            .collect();
        if !missing.is_empty() {
            let what = format!("lcores use processors that are not online: {missing}");
            let help = format!("-l, -c and --lcores can use {}", processors.online);
            found.push(Finding::new(Code::LcoreOffline, what, help));
            // Skip checks of placement: the processors are offline.
            return;
        }
    }
    together(subject, &places, found);
    undisturbed(subject, found);
}

/// Finds lcores that share a processor or a core.
fn together(subject: &Subject<'_>, places: &[(u16, LcoreSet)], found: &mut Vec<Finding>) {
    let siblings = &subject.machine.processors.siblings;
    let (mut shared, mut halves) = (Vec::new(), Vec::new());
    for (at, (first, of_first)) in places.iter().enumerate() {
        for (second, of_second) in places.iter().skip(at + 1) {
            let is_half = |cpu: u16| {
                siblings
                    .get(&cpu)
                    .is_some_and(|threads| of_second.iter().any(|other| threads.contains(other)))
            };
            if of_first.iter().any(|cpu| of_second.contains(cpu)) {
                shared.push(format!("{first} and {second}"));
            } else if of_first.iter().any(is_half) {
                halves.push(format!("{first} and {second}"));
            }
        }
    }
    if !shared.is_empty() {
        let what = format!("lcores share processors and wait for each other: {}", listed(shared));
        found.push(Finding::new(Code::LcoresShared, what, "give each lcore a dedicated processor"));
    }
    if !halves.is_empty() {
        let what = format!("lcores are threads of one core and share its units: {}", listed(halves));
        let help = "use one thread of each core (/sys/devices/system/cpu/cpu*/topology/thread_siblings_list)";
        found.push(Finding::new(Code::LcoresSiblings, what, help));
    }
}

/// Finds workers that are interrupted or slowed down.
fn undisturbed(subject: &Subject<'_>, found: &mut Vec<Finding>) {
    let processors = &subject.machine.processors;
    let workers: LcoreSet =
        subject.workers().iter().flat_map(|(_, of)| of.iter().collect::<Vec<_>>()).collect();
    let without = |set: &LcoreSet| -> LcoreSet { workers.iter().filter(|cpu| !set.contains(*cpu)).collect() };
    // A worker that sleeps yields its processor anyway.
    let milder = |finding: Finding| match subject.config.gateway.idle {
        Idle::Sleep => finding.as_severe_as(Severity::Note),
        Idle::Poll | Idle::Pause => finding,
    };
    let busy = without(&processors.isolated);
    if !busy.is_empty() {
        let what = format!("the kernel may run other programs on workers' processors: {busy}");
        let help = format!(
            "use isolcpus={workers} nohz_full={workers} rcu_nocbs={workers} on the kernel's command line"
        );
        found.push(milder(Finding::new(Code::LcoreNotIsolated, what, help)));
    }
    let ticking = without(&processors.tickless);
    if !ticking.is_empty() && busy.is_empty() {
        let what = format!("the kernel's timer interrupts workers on processors {ticking}");
        let help = format!("use nohz_full={workers} rcu_nocbs={workers} on the kernel's command line");
        found.push(Finding::new(Code::LcoreTicks, what, help));
    }
    let governed =
        |cpu: &u16| processors.governors.get(cpu).is_some_and(|governor| governor != "performance");
    let slow: LcoreSet = workers.iter().filter(governed).collect();
    if let Some(governor) = slow.first().and_then(|cpu| processors.governors.get(&cpu)) {
        let what = format!("the frequency governor {governor} slows workers' processors down: {slow}");
        let help = format!("run cpupower -c {slow} frequency-set -g performance");
        found.push(Finding::new(Code::Governor, what, help));
    }
}
