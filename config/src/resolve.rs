//! Conversion of the file to the typed configuration.

use std::path::Path;

use crate::error::ConfigError;
use crate::raw::Raw;
use crate::segments;
use crate::settings::{Buffers, Config, Gateway, InfiniBand, OpenPorts, Overrides, Soft};
use crate::soft;
use crate::source::Source;
use crate::word::{Driver, Privileges};

/// Maximum file length in bytes: a hundred times the length of all segments with all their routes.
const MAX_FILE: usize = 4 << 20;

impl Config {
    /// Parses `text`, the contents of `file`. The name is only used in errors.
    pub fn parse(file: &Path, text: &str) -> Result<Self, ConfigError> {
        Self::parse_with(file, text, &Overrides::default())
    }

    /// Returns the default configuration with the command line overrides.
    #[must_use]
    pub fn from_overrides(overrides: &Overrides) -> Self {
        let mut config = Self::default();
        overrides.apply(&mut config.gateway, &mut config.infiniband);
        for segment in &mut config.segments {
            segment.mode = config.infiniband.mode;
        }
        config
    }

    pub(crate) fn parse_with(file: &Path, text: &str, overrides: &Overrides) -> Result<Self, ConfigError> {
        let source = Source { file, text, faults: None };
        source.long_enough()?;
        let raw: Raw = toml::from_str(text).map_err(|e| ConfigError::toml(file, text, &e))?;
        source.config(&raw, overrides)
    }
}

/// Reads a file, limited to slightly more than the maximum length. Rejects other file types, because reading
/// a pipe without a writer would block the gateway.
pub(crate) fn read(file: &Path) -> Result<String, ConfigError> {
    use std::io::{Error, Read as _};
    let mut text = String::new();
    let no_file = || Error::other("not a regular file");
    std::fs::metadata(file)
        .and_then(|kind| if kind.is_file() { Ok(()) } else { Err(no_file()) })
        .and_then(|()| std::fs::File::open(file))
        .and_then(|f| f.take(MAX_FILE as u64 + 1).read_to_string(&mut text))
        .map_err(|source| ConfigError::Read { file: file.to_owned(), source })?;
    Ok(text)
}

impl Overrides {
    fn apply(&self, gateway: &mut Gateway, infiniband: &mut InfiniBand) {
        if let Some(mode) = self.mode {
            infiniband.mode = mode;
        }
        if let Some(idle) = self.idle {
            gateway.idle = idle;
        }
        if let Some(driver) = self.driver {
            infiniband.driver = driver;
        }
        if let Some(path) = &self.control_socket {
            gateway.control_socket = (!path.as_os_str().is_empty()).then(|| path.clone());
        }
        if let Some(seconds) = self.stats_seconds {
            gateway.stats_seconds = seconds;
        }
    }
}

impl InfiniBand {
    /// True if the software ConnectX drives the ports.
    #[must_use]
    pub fn is_soft(&self) -> bool {
        match self.driver {
            Driver::Soft => true,
            Driver::Auto => !self.soft.is_empty(),
            Driver::Mlx5 | Driver::Verbs => false,
        }
    }

    /// Returns the software device with this name, or the first one.
    #[must_use]
    pub fn soft_device(&self, name: Option<&str>) -> Option<&Soft> {
        self.soft.iter().find(|d| name.is_none_or(|name| d.name == name))
    }

    /// Returns the number of posted receives below which the alarm is raised; less than `srq_depth`, 0 for
    /// never.
    #[must_use]
    pub fn srq_alarm(&self) -> u32 {
        self.srq_low.unwrap_or(self.srq_depth / 4)
    }
}

impl Source<'_> {
    /// Fails if the file exceeds the maximum length.
    pub(crate) fn long_enough(&self) -> Result<(), ConfigError> {
        if self.text.len() > MAX_FILE {
            let what = format!("the file is longer than {MAX_FILE} bytes");
            return Err(self.error(0..0, what, "specify the gateway's configuration file after --config"));
        }
        Ok(())
    }

    pub(crate) fn config(&self, raw: &Raw, overrides: &Overrides) -> Result<Config, ConfigError> {
        let mut gateway = self.keep(self.gateway(raw), <_>::default())?;
        let ethernet = raw.ethernet.read(self, <_>::default())?;
        let mut infiniband = self.infiniband(raw)?;
        let buffers = self.keep(self.buffers(raw), <_>::default())?;
        overrides.apply(&mut gateway, &mut infiniband);
        let segments = segments::read(self, raw, &gateway, &ethernet, &infiniband, overrides)?;
        let config = Config { gateway, ethernet, infiniband, buffers, segments, open: OpenPorts::default() };
        if let (Some(count), Some(value), 0) = (config.buffers.count, &raw.buffers.count, self.kept()) {
            let needed = config.buffers_needed(1);
            if count.get() < needed {
                let what = format!(
                    "{count} buffers are too few for these queues, which need {needed} for one worker"
                );
                let remedy = "write 0 for the required number, or reduce srq-depth";
                return self.keep(Err(self.error(value.span(), what, remedy)), config);
            }
        }
        Ok(config)
    }

    fn gateway(&self, raw: &Raw) -> Result<Gateway, ConfigError> {
        let gateway = raw.gateway.read(self, <_>::default())?;
        if let Some(path) = &raw.gateway.control_socket
            // The address of a UNIX socket has 107 bytes and a null byte.
            && path.get_ref().len() > 107
        {
            let what = "the path of the control socket is longer than 107 bytes";
            return Err(self.error(path.span(), what, "choose a shorter path"));
        }
        if gateway.privileges == Privileges::Keep {
            for (key, value) in [("user", &raw.gateway.user), ("group", &raw.gateway.group)] {
                if let Some(value) = value.as_ref().filter(|value| !value.get_ref().is_empty()) {
                    let what = format!("a gateway that keeps its privileges cannot change its {key}");
                    let remedy = format!("leave {key} out, or write privileges = \"drop\"");
                    return Err(self.error(value.span(), what, remedy));
                }
            }
        }
        Ok(gateway)
    }

    fn infiniband(&self, raw: &Raw) -> Result<InfiniBand, ConfigError> {
        let raw = &raw.infiniband;
        let mut infiniband = raw.read(self, <_>::default())?;
        if let (Some(low), Some(value)) = (infiniband.srq_low, &raw.srq_low)
            && low >= infiniband.srq_depth
        {
            let what = format!("srq-low = {low} is out of range");
            let remedy = format!("write a number from 0 to {}", infiniband.srq_depth - 1);
            self.keep(Err(self.error(value.span(), what, remedy)), ())?;
        }
        infiniband.soft = soft::read(self, raw, infiniband.device.as_deref())?;
        // Devices with errors do not count here.
        let is_bare = infiniband.soft.is_empty() && raw.soft.is_none() && raw.soft_device.is_none();
        if let (Driver::Soft, true, Some(word)) = (infiniband.driver, is_bare, &raw.driver) {
            let error = self.error(
                word.span(),
                "the software ConnectX has no ports",
                "add [infiniband.soft] with ports = [{ link = \"shm:/run/ibfab.sock\" }]",
            );
            return self.keep(Err(error), infiniband);
        }
        Ok(infiniband)
    }

    fn buffers(&self, raw: &Raw) -> Result<Buffers, ConfigError> {
        let buffers = raw.buffers.read(self, <_>::default())?;
        let data_room = buffers.data_room;
        if let (false, Some(value)) = (data_room.is_multiple_of(64), &raw.buffers.data_room) {
            let what = format!("data-room = {data_room} is not a multiple of 64");
            let remedy = format!("write {}", data_room.next_multiple_of(64));
            return Err(self.error(value.span(), what, remedy));
        }
        Ok(buffers)
    }
}
