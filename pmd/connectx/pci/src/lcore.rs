//! CPU affinity of the server's thread.

use rustix::io::Errno;
use rustix::thread::CpuSet;

/// Cores that this process may use.
#[derive(Clone, Copy, Debug)]
pub struct Allowed {
    cores: CpuSet,
}

impl Allowed {
    /// Reads the current affinity mask.
    pub fn now() -> Result<Self, Errno> {
        Ok(Self { cores: rustix::thread::sched_getaffinity(None)? })
    }

    /// True if the core is permitted.
    #[must_use]
    pub fn has(&self, core: usize) -> bool {
        core < CpuSet::MAX_CPU && self.cores.is_set(core)
    }

    /// All permitted cores, in order.
    pub fn list(&self) -> impl Iterator<Item = usize> + '_ {
        (0..CpuSet::MAX_CPU).filter(|core| self.has(*core))
    }
}

impl std::fmt::Display for Allowed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut cores = self.list().peekable();
        let mut separator = "";
        while let Some(first) = cores.next() {
            let mut last = first;
            while let Some(next) = cores.next_if_eq(&(last + 1)) {
                last = next;
            }
            write!(f, "{separator}{first}")?;
            if last > first {
                write!(f, "-{last}")?;
            }
            separator = ",";
        }
        Ok(())
    }
}

/// Pins the calling thread, and threads that it creates, to one of the permitted cores.
pub fn keep_to(core: usize) -> Result<(), Errno> {
    if core >= CpuSet::MAX_CPU {
        return Err(Errno::INVAL);
    }
    let mut cores = CpuSet::new();
    cores.set(core);
    rustix::thread::sched_setaffinity(None, &cores)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_short() {
        let of = |list: &[usize]| {
            let mut cores = CpuSet::new();
            list.iter().for_each(|core| cores.set(*core));
            Allowed { cores }.to_string()
        };
        assert_eq!(of(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
        assert_eq!((of(&[3]), of(&[])), ("3".to_owned(), String::new()));
    }

    #[test]
    fn a_thread_keeps_to_its_core() {
        std::thread::spawn(|| {
            let core = Allowed::now().unwrap().list().last().unwrap();
            keep_to(core).unwrap();
            assert_eq!(Allowed::now().unwrap().list().collect::<Vec<_>>(), [core]);
            assert!(keep_to(usize::MAX).is_err() && !Allowed::now().unwrap().has(usize::MAX));
        })
        .join()
        .unwrap();
    }
}
