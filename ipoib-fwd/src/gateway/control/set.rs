//! `ctl set`: values set at run time, on top of the configuration.
//!
//! A value stays until it is set again, or until a reload finds that the file has a new value for it.

use std::time::Instant;

use config::{Idle, LogLevel};
use dataplane::telemetry::Answer;
use ipoib::link::Mode;
use logging::Modules;
use pmd::hca::Backend;
use serde_json::{Value, json};

use super::GatewayControl;
use super::reload::policy;
use crate::event::What;
use crate::gateway::segment_parts::mode;
use crate::setting::{Key, Set};

/// The values that were set at run time.
#[derive(Debug, Default)]
pub(in crate::gateway) struct Chosen {
    idle: Option<Idle>,
    log: Option<LogLevel>,
    log_filter: Modules,
}

impl Chosen {
    /// Discards a value because the file has a new one.
    pub(super) fn give_up(&mut self, key: &str) {
        match key {
            "gateway.idle" => self.idle = None,
            "gateway.log" => (self.log, self.log_filter) = (None, Modules::default()),
            _ => {}
        }
    }
}

impl<B: Backend> GatewayControl<B> {
    /// Without arguments, lists all keys; with one, shows its row; with two, sets a key to a value.
    pub(super) fn set(&mut self, now: Instant, words: Option<&str>) -> Answer {
        let Some(words) = words else {
            let rows = Key::ALL.iter().map(|key| self.setting(*key)).collect::<Vec<_>>();
            return Ok(json!({ "settings": rows }));
        };
        let (key, value) = words.split_once(',').map_or((words, None), |(key, value)| (key, Some(value)));
        let key = Key::named(key)?;
        if let Some(value) = value {
            self.set_to(now, key, value)?;
        }
        Ok(self.setting(key))
    }

    /// `ctl mode`: the same for the mode, with an answer of its own.
    pub(super) fn set_mode(&mut self, now: Instant, word: Option<&str>) -> Answer {
        let word = word.unwrap_or_default();
        self.set_to(now, Key::Mode, word)?;
        Ok(json!({ "mode": word }))
    }

    fn set_to(&mut self, now: Instant, key: Key, value: &str) -> Result<(), String> {
        self.choose(now, key.value(value)?)?;
        let text = format!("{} is {}", key.word(), if value.is_empty() { "as configured" } else { value });
        tracing::info!(event = What::Set.journal(), "set: {text}");
        let facts = json!({"key": key.word(), "value": value});
        self.events.report(now, What::Set, None, || (text, facts));
        Ok(())
    }

    fn choose(&mut self, now: Instant, what: Set) -> Result<(), String> {
        match what {
            Set::Mode(mode) => self.choose_mode(now, mode),
            Set::ReceiveMtu(mtu) => {
                let most = self.maker.config.infiniband.receive_mtu;
                if mtu > most {
                    return Err(format!(
                        "receive-mtu cannot be {mtu}: buffers were made for {most}; configure infiniband.receive-mtu and restart"
                    ));
                }
                self.maker.receive_mtu = (mtu != most).then_some(mtu);
                self.follow_links(now);
            }
            Set::Priority(priority) => {
                let mut segments = self.maker.config.segments.iter();
                self.maker.priority =
                    (!segments.all(|segment| segment.priority == priority)).then_some(priority);
                self.follow_priorities(now);
            }
            Set::Idle(idle) => {
                self.chosen.idle = (idle != self.maker.config.gateway.idle).then_some(idle);
                self.reloader.set_idle(policy(idle));
            }
            Set::Log(level) => {
                self.reloader.log().try_set(level, &self.chosen.log_filter)?;
                self.chosen.log = (level != self.maker.config.gateway.log).then_some(level);
            }
            Set::LogFilter(filter) => {
                self.reloader.log().try_set(self.log_level(), &filter)?;
                self.chosen.log_filter = filter;
            }
        }
        Ok(())
    }

    fn choose_mode(&mut self, now: Instant, chosen: config::Mode) {
        let as_configured = self.maker.config.segments.iter().all(|segment| segment.mode == chosen);
        self.maker.mode = (!as_configured).then_some(mode(chosen));
        self.follow_modes(now);
    }

    /// Applies to each segment the mode that was set, or the configured one.
    pub(super) fn follow_modes(&mut self, now: Instant) {
        for at in self.indices() {
            let Some(duty) = self.segments.at_mut(at) else { continue };
            let (wanted, link) =
                (self.maker.mode_of(&duty.name), self.endpoints.link(duty.endpoint, duty.link));
            if let (Some(wanted), Some(link)) = (wanted, link)
                && wanted != link.settings().mode
            {
                link.set_mode(now, wanted);
                // Hosts that know the gateway's addresses learn from the flags in them whether to request a
                // connection.
                duty.segment.announce_all(now);
                self.carry_out(now, at);
            }
        }
    }

    /// Applies to each segment the priority that was set, or the configured one.
    pub(super) fn follow_priorities(&mut self, now: Instant) {
        for at in self.indices() {
            let Some(duty) = self.segments.at_mut(at) else { continue };
            let pair = &mut duty.duty.pair;
            let priority = self.maker.priority_of(&duty.name).unwrap_or(pair.priority());
            if pair.priority() != priority {
                pair.set_priority(now, priority);
                self.carry_out_pair(now, at);
            }
        }
    }

    fn log_level(&self) -> LogLevel {
        self.chosen.log.unwrap_or(self.maker.config.gateway.log)
    }

    /// A row of the list.
    fn setting(&mut self, key: Key) -> Value {
        let config = &self.maker.config;
        let (value, configured): (Value, Value) = match key {
            Key::Mode => {
                let Self { segments, endpoints, .. } = self;
                let links = segments
                    .iter()
                    .filter_map(|duty| Some(endpoints.link(duty.endpoint, duty.link)?.settings().mode));
                let modes = links.collect::<Vec<Mode>>();
                let is_one = modes.windows(2).all(|pair| pair.first() == pair.last());
                let one = modes.first().map(|mode| serde_json::to_value(mode).unwrap_or_default());
                let segments = &self.maker.config.segments;
                let same = segments
                    .windows(2)
                    .all(|pair| pair.first().map(|s| s.mode) == pair.last().map(|s| s.mode));
                let configured = segments.first().map(|segment| segment.mode.word().into());
                (
                    one.filter(|_| is_one).unwrap_or_else(|| "by segment".into()),
                    configured.filter(|_| same).unwrap_or_else(|| "by segment".into()),
                )
            }
            Key::ReceiveMtu => {
                let of_file = config.infiniband.receive_mtu;
                (self.maker.receive_mtu.unwrap_or(of_file).into(), of_file.into())
            }
            Key::Priority => {
                let segments = &config.segments;
                let of_file = segments.first().map(|first| first.priority);
                let of_file = of_file.filter(|one| segments.iter().all(|segment| segment.priority == *one));
                let configured = of_file.map_or_else(|| "by segment".into(), Value::from);
                (self.maker.priority.map_or_else(|| configured.clone(), Value::from), configured)
            }
            Key::Idle => {
                let of_file = config.gateway.idle;
                (self.chosen.idle.unwrap_or(of_file).word().into(), of_file.word().into())
            }
            Key::Log => (self.log_level().word().into(), config.gateway.log.word().into()),
            Key::LogFilter => (self.chosen.log_filter.as_str().into(), "".into()),
        };
        json!({"key": key.word(), "value": value, "configured": configured, "may_be": key.may_be(), "what": key.help()})
    }
}
