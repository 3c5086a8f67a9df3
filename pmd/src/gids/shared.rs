//! A table that another process shares. The reader follows the file's name, so the maintainer may restart.

use std::path::{Path, PathBuf};
use std::time::Duration;

use gidcache::Reader;
use gidcache::layout::LayoutError;

use crate::shm::{ReadOnly, ShmError, monotonic_nanoseconds};

/// Maximum age of the heartbeat, which the maintainer updates every second. An older table may be stale.
pub const SILENCE: Duration = Duration::from_secs(5);

/// Trust in a table's contents.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// The maintainer confirmed it within the last [`SILENCE`].
    Current,
    /// This process took it over and has not confirmed the predecessor's contents yet, or is about to exit.
    Unsaid(u32),
    /// This process maintains it and has not confirmed it for this long.
    Silent(u32, Duration),
    /// Nobody maintains it any more; this process was the last one.
    Dead(u32),
}

/// Reason why a file cannot be read as a table.
#[derive(Debug, thiserror::Error)]
pub enum SharedError {
    /// The memory cannot be mapped.
    #[error(transparent)]
    Memory(#[from] ShmError),
    /// The file is not a table.
    #[error("{} is not a shared GID table", path.display())]
    NoTable {
        /// The file.
        path: PathBuf,
        /// The defect.
        #[source]
        source: LayoutError,
    },
}

/// A table that another process maintains.
#[derive(Debug)]
pub struct SharedGids {
    path: PathBuf,
    /// Required owner of the file.
    owner: Option<u32>,
    reader: Reader<ReadOnly>,
}

impl SharedGids {
    /// Opens a table's file.
    pub fn open(path: &Path) -> Result<Self, SharedError> {
        Self::open_as(path, None)
    }

    /// Opens a file like [`SharedGids::open`] but requires this owner, also when the file is opened again.
    pub fn open_of(path: &Path, owner: u32) -> Result<Self, SharedError> {
        Self::open_as(path, Some(owner))
    }

    fn open_as(path: &Path, owner: Option<u32>) -> Result<Self, SharedError> {
        let reader = attach(path, owner)?;
        Ok(Self { path: path.to_owned(), owner, reader })
    }

    /// Returns the path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the reader, which makes no system calls.
    #[must_use]
    pub const fn reader(&self) -> &Reader<ReadOnly> {
        &self.reader
    }

    /// Returns the state of the table. Data read after this call are at least as new as the state. Makes
    /// system calls.
    pub fn standing(&self) -> Result<Standing, ShmError> {
        let maintained = self.reader.memory().is_maintained()?;
        let maintainer = self.reader.maintainer();
        let process = maintainer.process;
        Ok(match maintainer.silence(monotonic_nanoseconds()) {
            _ if !maintained => Standing::Dead(process),
            None => Standing::Unsaid(process),
            Some(silence) if silence > SILENCE => Standing::Silent(process, silence),
            Some(_) => Standing::Current,
        })
    }

    /// Switches to the file that has the name now, if nobody maintains the open one.
    ///
    /// Returns true if it switched. Returns false if there is no file or still the same one; a restarted
    /// maintainer takes that over if it can. Makes system calls.
    pub fn follow(&mut self) -> Result<bool, SharedError> {
        if self.reader.memory().is_maintained()?
            || self.reader.memory().is_at(&self.path)
            || !self.path.exists()
        {
            return Ok(false);
        }
        self.reader = attach(&self.path, self.owner)?;
        Ok(true)
    }
}

fn attach(path: &Path, owner: Option<u32>) -> Result<Reader<ReadOnly>, SharedError> {
    let memory = ReadOnly::open(path)?;
    if let Some(owner) = owner
        && memory.owner()? != owner
    {
        return Err(ShmError::Foreign(path.to_owned()).into());
    }
    Reader::attach(memory).map_err(|source| SharedError::NoTable { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use gidcache::table::words_needed;
    use gidcache::{DeviceTable, NoProvider, PortKind, PortSetup};
    use ib_wire::{Gid, Guid, PortNumber};

    use super::*;
    use crate::shm::Maintained;

    const PORT: PortNumber = PortNumber(1);

    fn maintain(path: &Path, len: u16) -> DeviceTable<Maintained> {
        let setup = [PortSetup { number: PORT, len, kind: PortKind::InfiniBand }];
        let memory = Maintained::open(path, words_needed(&setup).unwrap()).unwrap();
        DeviceTable::publish_in(memory, &setup, NoProvider, 5, 42).unwrap()
    }

    fn gids(shared: &SharedGids) -> Vec<u64> {
        let mut entries = Vec::new();
        shared.reader().entries(&mut entries).unwrap();
        entries.iter().map(|entry| entry.gid().id().0).collect()
    }

    fn set(table: &DeviceTable<Maintained>, id: u64) {
        table.set_infiniband(PORT, &[Gid::new(7, Guid(id))]).unwrap();
    }

    #[test]
    fn a_table_outlives_its_maintainers_and_is_never_taken_for_newer_than_it_is() {
        let path = std::env::temp_dir().join(format!("gid-shared-{}", std::process::id()));
        let first = maintain(&path, 8);
        let mut shared = SharedGids::open(&path).unwrap();
        assert_eq!(shared.standing().unwrap(), Standing::Unsaid(42));
        set(&first, 1);
        first.heartbeat(monotonic_nanoseconds());
        assert_eq!((shared.standing().unwrap(), gids(&shared)), (Standing::Current, vec![1]));
        let long_ago = monotonic_nanoseconds().saturating_sub(SILENCE.as_nanos() as u64 + 1);
        first.heartbeat(long_ago);
        assert!(matches!(shared.standing().unwrap(), Standing::Silent(42, for_) if for_ > SILENCE));
        first.heartbeat(monotonic_nanoseconds());
        // It dies right after a heartbeat.
        drop(first);
        assert_eq!((shared.standing().unwrap(), gids(&shared)), (Standing::Dead(42), vec![1]));
        assert!(!shared.follow().unwrap());
        // The next one continues with the same memory and does not confirm contents that it has not checked.
        let second = maintain(&path, 8);
        assert_eq!((shared.standing().unwrap(), gids(&shared)), (Standing::Unsaid(42), vec![1]));
        set(&second, 2);
        second.heartbeat(monotonic_nanoseconds());
        assert_eq!((shared.standing().unwrap(), gids(&shared)), (Standing::Current, vec![2]));
        assert!(!shared.follow().unwrap());
        drop(second);
        // One with a longer table creates a new file.
        let third = maintain(&path, 16);
        set(&third, 3);
        third.heartbeat(monotonic_nanoseconds());
        assert_eq!((shared.standing().unwrap(), gids(&shared)), (Standing::Dead(42), vec![2]));
        assert!(shared.follow().unwrap());
        assert_eq!((shared.standing().unwrap(), gids(&shared)), (Standing::Current, vec![3]));
        // A table that is removed permanently.
        let memory = third.reader().unwrap().memory().clone();
        memory.remove(&path).unwrap();
        drop((third, memory));
        assert!(!path.exists() && !path.with_added_extension("lock").exists());
        assert!(!shared.follow().unwrap() && matches!(shared.standing().unwrap(), Standing::Dead(_)));
    }

    #[test]
    fn a_planted_file_is_not_read() {
        let path = std::env::temp_dir().join(format!("gid-planted-{}", std::process::id()));
        drop(maintain(&path, 8));
        let ours = rustix::process::geteuid().as_raw();
        let shared = SharedGids::open_of(&path, ours).unwrap();
        assert!(matches!(
            SharedGids::open_of(&path, ours + 1),
            Err(SharedError::Memory(ShmError::Foreign(_)))
        ));
        // A truncated file is not a table. A complete mapping stays valid.
        let whole = std::fs::read(&path).unwrap();
        let cut = path.with_added_extension("cut");
        for len in [0, 8, 384, whole.len() - 8] {
            std::fs::write(&cut, whole.get(..len).unwrap()).unwrap();
            assert!(SharedGids::open(&cut).is_err(), "{len}");
        }
        std::fs::remove_file(&cut).unwrap();
        assert_eq!(gids(&shared), [] as [u64; 0]);
        std::fs::remove_file(path.with_added_extension("lock")).unwrap();
        std::fs::remove_file(&path).unwrap();
    }
}
