//! Reload of the configuration while the gateway runs, by SIGHUP or `ctl reload`: it is applied as a whole or
//! not at all, and does not affect the traffic of unchanged segments.
//!
//! ```text
//!  read, compare ──> make links of new segments ──> take segments away ──> join new ones ──> change others, keys
//!    │ refused        one in each iteration;                                 │ their links come up, one in each iteration
//!    │                  │ a device refuses: the links made go again            │
//!    v                  v                                                      v
//!  nothing changed    nothing changed                   wait: its partition or number is given back first
//! ```
//!
//! A removed segment leaves the workers' directory at once. Its link drains (connections closed, groups
//! left), and keeps its index and its partition until then. A new segment with that partition waits for it. A
//! reload makes all its decisions at once, so that the next one may come at any time: it is compared with the
//! result of the last one, whether all of that is running yet or not.

mod keys;
mod links;
mod segments;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use config::{Change, Config, Overrides, Segment};
use dataplane::quiescence::Grace;
use dataplane::telemetry::{Answer, Reply};
use dataplane::worker::{Handle, IdlePolicy};
use endpoint::{Backoff, Endpoint};
use ib_wire::PKey;
use ipoib::link::LinkIndex;
use logging::Log;
use pmd::hca::Backend;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::GatewayControl;
use super::answers::SegmentRow;
use keys::Live;
use links::{NewLinks, Progress};

use crate::event::What;
use crate::forward::{EndpointIndex, MAX_SEGMENTS, SegmentIndex};
use crate::gateway::segment_parts::{Ground, SegmentMaker, networks};

pub(in crate::gateway) use keys::policy;

const STOPPING: &str = "the gateway is stopping";

/// Period of checking whether a draining segment has released the index or partition of a new one.
const LOOK: Duration = Duration::from_millis(20);

/// The sources of a reload, and its unfinished work.
#[derive(Debug)]
pub(in crate::gateway) struct Reloader {
    file: Option<PathBuf>,
    overrides: Overrides,
    log: Log,
    workers: Vec<Arc<Handle>>,
    draining: Vec<Draining>,
    waiting: Vec<Waiting>,
    /// A reload was requested.
    requested: bool,
    /// Clients that wait for the answer.
    clients: Vec<Client>,
    under_way: Option<UnderWay>,
    /// Links that may come up once their segments are joined.
    held: VecDeque<(EndpointIndex, LinkIndex)>,
    /// Reloads that were carried out, and reloads that were refused.
    counts: [u64; 2],
}

type Client = oneshot::Sender<Answer>;

/// A reload in progress: the links of its new segments are being created. All other changes follow the last
/// link.
#[derive(Debug)]
struct UnderWay {
    config: Config,
    change: Change,
    ready: Vec<(Segment, Ground)>,
    /// New segments that wait for an index or partition.
    waiting: Vec<Segment>,
    links: NewLinks,
    /// The value in force when the reload began.
    receive_mtu: Option<u16>,
    clients: Vec<Client>,
}

/// A link that is being removed.
#[derive(Debug)]
struct Draining {
    /// The removed segment of the link. `None` for a link of a refused reload: a segment of its name may be
    /// running.
    name: Option<String>,
    index: SegmentIndex,
    endpoint: EndpointIndex,
    link: LinkIndex,
    pkey: PKey,
    /// Its link is gone; after this grace period, no worker reads its table.
    forgotten: Option<Grace>,
}

/// A segment that waits until a draining segment makes room for it.
#[derive(Debug)]
struct Waiting {
    segment: Segment,
    retry: Instant,
    /// Why it could not be joined, if that was tried.
    failed: Option<String>,
    tries: Backoff,
}

impl Reloader {
    /// For a gateway that was started with this file and these overrides.
    pub(in crate::gateway) const fn new(
        file: Option<PathBuf>,
        overrides: Overrides,
        log: Log,
        workers: Vec<Arc<Handle>>,
    ) -> Self {
        Self {
            file,
            overrides,
            log,
            workers,
            draining: Vec::new(),
            waiting: Vec::new(),
            requested: false,
            clients: Vec::new(),
            under_way: None,
            held: VecDeque::new(),
            counts: [0; 2],
        }
    }

    /// True if no link of a removed segment is left, and none is being made.
    pub(super) const fn is_settled(&self) -> bool {
        self.draining.is_empty() && self.under_way.is_none()
    }

    /// Requests a reload; the result is in the log.
    pub(super) const fn request(&mut self) {
        self.requested = true;
    }

    /// Numbers of reloads that were carried out, and that were refused.
    pub(super) const fn counts(&self) -> [u64; 2] {
        self.counts
    }

    /// Sets the idle policy of the workers.
    pub(super) fn set_idle(&self, policy: IdlePolicy) {
        for worker in &self.workers {
            worker.set_idle(policy);
        }
    }

    /// The log.
    pub(super) const fn log(&self) -> &Log {
        &self.log
    }

    /// For `ctl stats`.
    pub(super) fn json(&self) -> Value {
        let [done, refused] = self.counts;
        json!({"done": done, "refused": refused})
    }

    /// Forgets links that no worker uses any more. Returns the names of the segments that are thereby
    /// removed: not a segment that has only moved, nor one with another link that is not gone yet.
    fn take_removed(
        &mut self,
        passed: impl Fn(Grace) -> bool,
        is_at_work: impl Fn(&str) -> bool,
    ) -> Vec<String> {
        let is_gone = |d: &mut Draining| d.forgotten.is_some_and(&passed);
        let mut names: Vec<String> =
            self.draining.extract_if(.., is_gone).filter_map(|gone| gone.name).collect();
        names.sort_unstable();
        names.dedup();
        names.retain(|name| {
            let is_left = self.draining.iter().any(|d| d.name.as_ref() == Some(name));
            !is_left && !self.is_waiting(name) && !is_at_work(name)
        });
        names
    }

    /// True if a segment of this name waits for an index or partition.
    fn is_waiting(&self, name: &str) -> bool {
        self.waiting.iter().any(|w| w.segment.name.as_str() == name)
    }

    /// Segments that are not running yet, and the reasons.
    pub(super) fn coming(&self) -> impl Iterator<Item = (&str, PKey, String)> {
        self.waiting.iter().map(|w| {
            let why = w.failed.as_ref().map_or_else(
                || "the segment that had its index or partition to be gone".to_owned(),
                |why| format!("the device, which has refused it {} times: {why}", w.tries.failures()),
            );
            (w.segment.name.as_str(), PKey(w.segment.pkey.value()), why)
        })
    }

    /// Rows for `ctl links`: segments that are not running any more, or not yet. A segment that a reload has
    /// moved has no row for its old link.
    pub(super) fn rows(&self, is_at_work: impl Fn(&str) -> bool) -> impl Iterator<Item = Value> {
        let row = |name: &str, pkey: PKey, why: String| {
            serde_json::to_value(SegmentRow::waiting(name, pkey, why)).unwrap_or_default()
        };
        let leaving = self.draining.iter().filter_map(move |d| {
            let name = d.name.as_ref().filter(|name| !self.is_waiting(name) && !is_at_work(name))?;
            let why = "its connections and groups to be closed: it is removed";
            Some(row(name, d.pkey, why.into()))
        });
        leaving.chain(self.coming().map(move |(name, pkey, why)| row(name, pkey, why)))
    }
}

impl<B: Backend> GatewayControl<B> {
    /// Requests a reload. The answer comes when it has been carried out or refused.
    pub(super) fn ask_for_reload(&mut self) -> Reply {
        let (client, answer) = oneshot::channel();
        self.reloader.requested = true;
        self.reloader.clients.push(client);
        Reply::Later(answer)
    }

    /// Continues a reload, or starts one. True if there was something to do.
    fn drive_reload(&mut self, now: Instant) -> bool {
        let work = match self.reloader.under_way.take() {
            Some(work) => work,
            None if std::mem::take(&mut self.reloader.requested) => {
                let clients = std::mem::take(&mut self.reloader.clients);
                self.service.reloading();
                match self.begin_reload(clients) {
                    Ok(work) => work,
                    Err((why, clients)) => {
                        self.end_reload(now, Err(why), clients);
                        return true;
                    }
                }
            }
            None => return false,
        };
        self.continue_reload(now, work);
        true
    }

    /// Compares the file with the running configuration. Changes nothing yet.
    fn begin_reload(&mut self, clients: Vec<Client>) -> Result<UnderWay, (String, Vec<Client>)> {
        match self.plan_reload() {
            Ok((config, change, ready, waiting)) => {
                let maker = self.maker.with(config.clone());
                let settings =
                    ready.iter().map(|(segment, ground)| (ground.endpoint, maker.link_settings(segment)));
                let links = NewLinks::new(settings);
                let receive_mtu = self.maker.receive_mtu;
                Ok(UnderWay { config, change, ready, waiting, links, receive_mtu, clients })
            }
            Err(why) => Err((why, clients)),
        }
    }

    /// The new configuration, its changes, the new segments that can be created, and those that must wait.
    #[expect(clippy::type_complexity, reason = "the parts of one plan, used once")]
    fn plan_reload(&mut self) -> Result<(Config, Change, Vec<(Segment, Ground)>, Vec<Segment>), String> {
        if self.stopping.is_some() {
            return Err(STOPPING.to_owned());
        }
        let Some(file) = &self.reloader.file else {
            let why = "the gateway was started without --config, so there is no file to read again; start it with one";
            return Err(why.to_owned());
        };
        let workers = self.maker.workers.into();
        let (config, change) =
            self.maker.config.reload(file, &self.reloader.overrides, workers).map_err(|e| e.to_string())?;
        if let Some(key) = change.keys.iter().find(|key| Live::of(key).is_none()) {
            return Err(format!(
                "{}: {key} cannot change while the gateway runs; restart needed",
                file.display()
            ));
        }
        for segment in change.added.iter().chain(&change.changed) {
            networks(segment).map_err(|e| format!("{}: segment `{}`: {e}", file.display(), segment.name))?;
        }
        let maker = self.maker.with(config.clone());
        let (mut ready, mut waiting) = (Vec::new(), Vec::new());
        let mut vacancies = self.vacancies().into_iter();
        for segment in &change.added {
            let ground = self.ground(&maker, segment).ok_or_else(|| {
                format!("segment `{}` is on a port that is not open; restart needed", segment.name)
            })?;
            match (!self.is_held(segment, ground.endpoint)).then(|| vacancies.next()).flatten() {
                Some(index) => ready.push((segment.clone(), Ground { index, ..ground })),
                None => waiting.push(segment.clone()),
            }
        }
        Ok((config, change, ready, waiting))
    }

    /// Makes the next links of new segments; after the last one carries out all changes. If the device
    /// refuses one, removes them all.
    fn continue_reload(&mut self, now: Instant, mut work: UnderWay) {
        let progress = if self.stopping.is_some() {
            Progress::Refused { at: 0, why: STOPPING.to_owned() }
        } else {
            work.links.step(&mut (now, &mut self.endpoints))
        };
        match progress {
            Progress::More => self.reloader.under_way = Some(work),
            Progress::Made(links) => {
                let clients = std::mem::take(&mut work.clients);
                let answer = self.carry_out_reload(now, work, links);
                self.end_reload(now, Ok(answer), clients);
            }
            Progress::Refused { at, why } => {
                let UnderWay { ready, links, clients, .. } = work;
                let undone = links.undo(&mut (now, &mut self.endpoints));
                for ((segment, ground), link) in ready.iter().zip(undone) {
                    let Ground { index, endpoint, .. } = *ground;
                    let pkey = PKey(segment.pkey.value());
                    let undone = Draining { name: None, index, endpoint, link, pkey, forgotten: None };
                    self.reloader.draining.push(undone);
                }
                let name = ready.get(at).map(|(segment, _)| segment.name.to_string()).unwrap_or_default();
                let why = if self.stopping.is_some() {
                    why
                } else {
                    format!(
                        "segment `{name}`: {why}; take other segments away first, or restart the gateway with fewer workers or connections"
                    )
                };
                self.end_reload(now, Err(why), clients);
            }
        }
    }

    /// Applies the new configuration. Nothing can be refused at this point.
    fn carry_out_reload(&mut self, now: Instant, work: UnderWay, links: Vec<LinkIndex>) -> Value {
        let UnderWay { config, change, ready, waiting, receive_mtu, .. } = work;
        let maker = self.maker.with(config);
        for name in &change.removed {
            self.take_segment_away(now, name.as_str());
        }
        let joined: Vec<Segment> = ready
            .into_iter()
            .zip(links)
            .map(|((segment, ground), link)| {
                self.join(now, &maker, &segment, Ground { link, ..ground });
                segment
            })
            .collect();
        for segment in &change.changed {
            self.change_segment(now, segment);
        }
        let names = |segments: &[Segment]| segments.iter().map(|s| s.name.to_string()).collect::<Vec<_>>();
        let answer = json!({
            "added": names(&joined),
            "waiting": names(&waiting),
            "removed": change.removed.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "changed": names(&change.changed),
            "keys": change.keys,
        });
        self.reloader.waiting.extend(waiting.into_iter().map(|segment| Waiting {
            segment,
            retry: now,
            failed: None,
            tries: Backoff::new(),
        }));
        self.maker = maker;
        self.follow_modes(now);
        self.follow_priorities(now);
        if self.maker.receive_mtu != receive_mtu {
            // It was set while the links were created.
            self.follow_links(now);
        }
        self.follow_keys(now, &change);
        self.board.flush();
        if let Some(text) = overcommitted(&self.maker.config, self.maker.workers, self.pool.size()) {
            tracing::warn!("{text}");
        }
        answer
    }

    /// Reports the result of a reload.
    fn end_reload(&mut self, now: Instant, outcome: Answer, clients: Vec<Client>) {
        self.service.reloaded(now);
        self.reloader.counts[usize::from(outcome.is_err())] += 1;
        match &outcome {
            Ok(answer) => {
                let text = change_text(answer);
                tracing::info!(event = What::Reloaded.journal(), "reload: {text}");
                self.events.report(now, What::Reloaded, None, || (text, answer.clone()));
            }
            Err(why) => {
                let text = format!("{why}; the configuration stays as it was");
                tracing::error!(event = What::ReloadRefused.journal(), "reload: {text}");
                self.events.report(now, What::ReloadRefused, None, || (text, Value::Null));
            }
        }
        for client in clients {
            // The client may be gone.
            let _ = client.send(outcome.clone());
        }
    }

    /// The location of a segment except for its indexes. `None` if one of its ports is not open.
    fn ground(&mut self, maker: &SegmentMaker, segment: &Segment) -> Option<Ground> {
        maker.ground(segment, SegmentIndex(0), &self.ethernets, &mut self.endpoints)
    }

    /// True if a segment that is being removed still has this partition on this port.
    fn is_held(&self, segment: &Segment, endpoint: EndpointIndex) -> bool {
        let pkey = PKey(segment.pkey.value()).base();
        let at_work = self.segments.iter().map(|duty| (duty.endpoint, duty.pkey));
        let draining = self.reloader.draining.iter().map(|d| (d.endpoint, d.pkey));
        at_work.chain(draining).any(|(port, held)| (port, held.base()) == (endpoint, pkey))
    }

    /// Indexes of no segment, not even of a draining one.
    fn vacancies(&self) -> Vec<SegmentIndex> {
        let is_free = |at: &SegmentIndex| {
            self.segments.at(*at).is_none() && self.reloader.draining.iter().all(|d| d.index != *at)
        };
        (0..MAX_SEGMENTS).map(|n| SegmentIndex(n as u8)).filter(is_free).collect()
    }

    /// Continues the work of earlier reloads. Packets that workers handed over from removed segments have
    /// been processed before.
    pub(super) fn advance_reload(&mut self, now: Instant) -> bool {
        for port in self.endpoints.indices() {
            while let Some(link) = self.endpoints.at(port).and_then(Endpoint::poll_removed) {
                let is_it = |d: &&mut Draining| (d.endpoint, d.link) == (port, link) && d.forgotten.is_none();
                if let Some(gone) = self.reloader.draining.iter_mut().find(is_it) {
                    gone.forgotten = Some(self.board.remove(gone.index));
                }
            }
        }
        let (board, segments) = (&self.board, &self.segments);
        for name in self.reloader.take_removed(|grace| board.passed(grace), |name| segments.has(name)) {
            let event = What::Removed.journal();
            tracing::info!(segment = name.as_str(), event, "{name}: removed");
            let said = || (format!("{name} is removed"), json!({ "segment": name }));
            self.events.report(now, What::Removed, None, said);
        }
        if self.stopping.is_some() {
            self.reloader.held.clear();
            self.reloader.waiting.clear();
        }
        let mut busy = self.release_held(now);
        // A reload in progress relies on the free indexes.
        busy = busy || self.drive_reload(now);
        let due = self.reloader.waiting.extract_if(.., |w| now >= w.retry).collect::<Vec<_>>();
        for waiting in due {
            if busy {
                self.reloader.waiting.push(waiting);
            } else {
                busy = self.join_waiting(now, waiting);
            }
        }
        busy
    }
}

/// Warns if full queues would hold more packet buffers than were created at the start.
fn overcommitted(config: &Config, workers: u8, buffers: u32) -> Option<String> {
    let budget = config.budget(workers.into());
    let held = budget.total() - budget.reserve;
    (held > buffers).then(|| {
        format!(
            "the queues of {} segments can hold {held} packet buffers, and there are {buffers}: if all are full, received packets are \
             dropped; restart the gateway, which counts buffers for all segments",
            config.segments.len()
        )
    })
}

/// Summarizes a reload in one line.
fn change_text(answer: &Value) -> String {
    let list = |what: &str| {
        let names = answer.get(what).and_then(Value::as_array)?;
        let names: Vec<&str> = names.iter().filter_map(Value::as_str).collect();
        (!names.is_empty()).then(|| format!("{what}: {}", names.join(" ")))
    };
    let all: Vec<String> =
        ["added", "waiting", "removed", "changed", "keys"].iter().filter_map(|w| list(w)).collect();
    if all.is_empty() { "nothing has changed".to_owned() } else { all.join("; ") }
}

#[cfg(test)]
mod tests;
