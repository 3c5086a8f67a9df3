//! Checks of EAL arguments whose errors EAL reports poorly, or only after its single start is used up.

use std::ffi::CStr;
use std::path::Path;

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;

use super::EalError;

/// Returns the values of an option, given as `-l 0-1`, `-l0-1`, `--vdev NAME` or `--vdev=NAME`. EAL's options
/// end at `--`.
fn values<'a>(arguments: &'a [String], option: &str) -> Vec<&'a str> {
    let mut found = Vec::new();
    let mut words = arguments.iter().skip(1).map(String::as_str).take_while(|&w| w != "--");
    while let Some(word) = words.next() {
        if word == option {
            found.extend(words.next());
        } else if let Some(rest) = word.strip_prefix(option) {
            if !option.starts_with("--") {
                found.push(rest);
            } else if let Some(value) = rest.strip_prefix('=') {
                found.push(value);
            }
        }
    }
    found
}

/// True if an option is present, with or without a value. Long options may be abbreviated, as in getopt_long.
fn has(arguments: &[String], option: &str) -> bool {
    arguments.iter().take_while(|a| *a != "--").any(|a| {
        let name = a.split_once('=').map_or(a.as_str(), |(name, _)| name);
        name == option || name.len() >= 6 && option.starts_with(name)
    })
}

/// Parses a list of numbers and ranges, such as `0-3,7`.
fn list(text: &str) -> Option<Vec<u32>> {
    let mut all = Vec::new();
    for part in text.trim().split(',').filter(|p| !p.is_empty()) {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (from, to) = (from.trim().parse::<u32>().ok()?, to.trim().parse::<u32>().ok()?);
        // EAL accepts ranges in both directions, and no larger numbers than this.
        let (from, to) = (from.min(to), from.max(to));
        if to > 4095 {
            all.push(to);
        } else {
            all.extend(from..=to);
        }
    }
    Some(all)
}

/// Parses a core mask, such as `0x3` or `3`.
fn mask(text: &str) -> Option<Vec<u32>> {
    let text = text.trim();
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")).unwrap_or(text);
    let mut all = Vec::new();
    for (nibble, digit) in (0u32..).zip(digits.chars().rev()) {
        let value = digit.to_digit(16)?;
        all.extend((0..4).filter(|bit| value >> bit & 1 == 1).map(|bit| nibble * 4 + bit));
    }
    Some(all)
}

/// Checks that the CPUs in `-l` and `-c` are online. Malformed values and `--lcores` are left to EAL.
pub(super) fn cpus(arguments: &[String], online: &str) -> Result<(), EalError> {
    let Some(there) = list(online) else { return Ok(()) };
    let named = (values(arguments, "-l").into_iter().filter(|v| !v.contains(['@', '('])).filter_map(list))
        .chain(values(arguments, "-c").into_iter().filter_map(mask));
    for cpu in named.flatten() {
        if !there.contains(&cpu) {
            return Err(EalError::Cpu { cpu, online: online.to_owned() });
        }
    }
    Ok(())
}

/// Checks that no secondary process is requested. The option may be abbreviated, as in getopt_long.
pub(super) fn process_type(arguments: &[String]) -> Result<(), EalError> {
    const OPTION: &str = "--proc-type";
    let mut words = arguments.iter().skip(1).map(String::as_str).take_while(|&word| word != "--");
    while let Some(word) = words.next() {
        let (name, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
        let is_option = name.len() > "--p".len() && OPTION.starts_with(name);
        if !is_option {
            continue;
        }
        // `auto` means a secondary process if a primary is running.
        if let Some(kind @ ("secondary" | "auto")) = value.or_else(|| words.next()) {
            return Err(EalError::Secondary(kind.to_owned()));
        }
    }
    Ok(())
}

/// Checks that a driver is installed for each Ethernet `--vdev`. `plugins` is the directory that EAL loads
/// drivers from.
pub(super) fn vdevs(arguments: &[String], plugins: &Path) -> Result<(), EalError> {
    let there: Vec<String> = std::fs::read_dir(plugins)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|file| {
            let name = file.file_name().into_string().ok()?;
            Some(name.strip_prefix("librte_")?.split_once(".so")?.0.to_owned())
        })
        .filter(|name| name.starts_with("net_"))
        .collect();
    // Drivers may be linked statically or given by `-d`; the check cannot see these.
    if there.is_empty() || !values(arguments, "-d").is_empty() {
        return Ok(());
    }
    for vdev in values(arguments, "--vdev") {
        let name = vdev.split_once(',').map_or(vdev, |(name, _)| name);
        // net_tun is a second driver in the library of net_tap.
        let known =
            name.starts_with("net_tun") || there.iter().any(|driver| name.starts_with(driver.as_str()));
        if name.starts_with("net_") && !known {
            let software = ["af_packet", "af_xdp", "memif", "null", "pcap", "ring", "tap", "vhost", "virtio"];
            let mut drivers: Vec<_> =
                there.into_iter().filter(|d| software.contains(&d.trim_start_matches("net_"))).collect();
            drivers.sort();
            // The directory has a file and symbolic links for each library.
            drivers.dedup();
            return Err(EalError::Vdev { name: name.to_owned(), drivers: drivers.join(", ") });
        }
    }
    Ok(())
}

/// Returns the directories in which EAL creates its files: that of `--huge-dir`, else each mounted hugetlbfs.
fn directories<'a>(arguments: &'a [String], mounts: &'a str) -> Vec<&'a Path> {
    if let Some(directory) = values(arguments, "--huge-dir").last() {
        return vec![Path::new(*directory)];
    }
    let mounts = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (path, kind) = (fields.next()?, fields.next()?);
        (kind == "hugetlbfs").then_some(Path::new(path))
    });
    mounts.collect()
}

/// True if a directory has files of EAL. The next EAL removes the files of a killed process and gets their pages.
fn has_files(directories: &[&Path]) -> bool {
    let mut files = directories.iter().filter_map(|path| std::fs::read_dir(path).ok()).flatten().flatten();
    files.any(|file| file.file_name().to_string_lossy().contains("map_"))
}

/// Checks for hugepages. EAL's own message for missing ones is "permission denied".
pub(super) fn hugepages(arguments: &[String]) -> Result<(), EalError> {
    if has(arguments, "--no-huge") {
        return Ok(());
    }
    let sizes = std::fs::read_dir("/sys/kernel/mm/hugepages").into_iter().flatten().flatten();
    let free = sizes.filter_map(|size| {
        let text = std::fs::read_to_string(size.path().join("free_hugepages")).ok()?;
        text.trim().parse::<u64>().ok()
    });
    let mounts = mounts();
    if free.sum::<u64>() == 0
        && (has(arguments, "--in-memory") || !has_files(&directories(arguments, &mounts)))
    {
        return Err(EalError::NoHugepages);
    }
    let mounted = has(arguments, "--in-memory")
        || has(arguments, "--huge-dir")
        || mounts.lines().any(|line| line.split(' ').nth(2) == Some("hugetlbfs"));
    if mounted { Ok(()) } else { Err(EalError::NoHugetlbfs) }
}

/// Returns the directories for hugepages that another process has locked. EAL locks them too, and waits for as
/// long as that takes.
pub(super) fn locked_directories<'a>(arguments: &'a [String], mounts: &'a str) -> Vec<&'a Path> {
    if ["--no-huge", "--in-memory"].iter().any(|option| has(arguments, option)) {
        return Vec::new();
    }
    let mut all = directories(arguments, mounts);
    // The lock is released at once, when the directory is closed.
    all.retain(|path| {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let locked = rustix::fs::open(*path, flags, Mode::empty())
            .and_then(|directory| flock(&directory, FlockOperation::NonBlockingLockExclusive));
        locked == Err(Errno::WOULDBLOCK)
    });
    all
}

/// Returns the mounted file systems in the format of fstab(5).
pub(super) fn mounts() -> String {
    std::fs::read_to_string("/proc/mounts").unwrap_or_default()
}

/// Returns the online CPUs in the kernel's list format.
pub(super) fn online_cpus() -> String {
    std::fs::read_to_string("/sys/devices/system/cpu/online")
        .map_or_else(|_| "unknown".to_owned(), |t| t.trim().to_owned())
}

/// Returns the CPUs that this process may use in the kernel's list format.
pub(super) fn allowed_cpus() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let list = status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:"));
    list.map_or_else(|| "0".to_owned(), |t| t.trim().to_owned())
}

/// Returns the directory in which EAL looks for drivers.
pub(super) fn plugins() -> &'static Path {
    // SAFETY: a string literal of the shim.
    let path = unsafe { CStr::from_ptr(dpdk_sys::shim_pmd_dir()) };
    Path::new(path.to_str().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn a_secondary_process_is_refused_by_name() {
        for good in ["x", "x --proc-type primary", "x --proc-type=primary", "x -- --proc-type=secondary"] {
            assert!(process_type(&words(good)).is_ok(), "{good}");
        }
        for (bad, kind) in [
            ("x --proc-type secondary", "secondary"),
            ("x --proc-type=secondary", "secondary"),
            ("x --proc=auto", "auto"),
            ("x --pr auto", "auto"),
        ] {
            let text = process_type(&words(bad)).unwrap_err().to_string();
            assert!(text.contains(kind) && text.contains("Leave --proc-type out"), "{bad}: {text}");
        }
    }

    #[test]
    fn a_cpu_that_is_not_online_is_named() {
        for good in [
            "x -l 0-1",
            "x -l1,0",
            "x -c 0x3",
            "x -c3",
            "x --lcores 9@0",
            "x -l (0-1)@9",
            "x -l 0 -- -l 9",
            "x",
        ] {
            assert!(cpus(&words(good), "0-1").is_ok(), "{good}");
        }
        for (bad, named) in [("x -l 0-2", 2), ("x -l5", 5), ("x -c 0x11", 4), ("x -l 0-99999999", 99_999_999)]
        {
            match cpus(&words(bad), "0-1") {
                Err(e @ EalError::Cpu { cpu, .. }) => {
                    assert_eq!(cpu, named, "{bad}");
                    assert!(e.to_string().contains("0-1"), "{e}");
                }
                other => panic!("{bad}: {other:?}"),
            }
        }
        // Malformed lists are left to EAL.
        assert!(cpus(&words("x -l abc"), "0-1").is_ok() && cpus(&words("x -l 9"), "unknown").is_ok());
    }

    #[test]
    fn a_vdev_without_driver_is_named() {
        for good in [
            "--vdev net_null0",
            "--vdev=net_af_packet1,iface=a",
            "--vdev net_tun0",
            "--vdev crypto_null",
            "-- --vdev net_x",
            "-d /opt/librte_net_x.so --vdev net_x0",
            "-d/opt/librte_net_x.so --vdev net_x0",
        ] {
            assert!(vdevs(&words(&format!("x {good}")), plugins()).is_ok(), "{good}");
        }
        let error = vdevs(&words("x --vdev net_nul0,size=64"), plugins()).unwrap_err();
        assert!(matches!(&error, EalError::Vdev { name, .. } if name == "net_nul0"), "{error:?}");
        assert!(error.to_string().contains("net_af_packet"), "{error}");
    }

    #[test]
    fn a_driver_with_several_files_is_named_once() {
        let plugins = std::env::temp_dir().join(format!("plugins-{}", std::process::id()));
        std::fs::create_dir_all(&plugins).unwrap();
        for file in
            ["librte_net_tap.so", "librte_net_tap.so.23", "librte_net_tap.so.23.0", "librte_net_null.so"]
        {
            std::fs::write(plugins.join(file), "").unwrap();
        }
        let refused = vdevs(&words("x --vdev net_nul0"), &plugins);
        std::fs::remove_dir_all(&plugins).unwrap();
        assert!(
            matches!(&refused, Err(EalError::Vdev { drivers, .. }) if drivers == "net_null, net_tap"),
            "{refused:?}"
        );
    }

    #[test]
    fn files_of_a_killed_process_are_found_in_hugetlbfs_alone() {
        let directory = std::env::temp_dir().join(format!("hugetlbfs-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let mounts =
            |kind: &str| format!("sysfs /sys sysfs rw 0 0\nnodev {} {kind} rw 0 0\n", directory.display());
        let found = |line: &str, mounts: &str| has_files(&directories(&words(line), mounts));
        let before = found("x", &mounts("hugetlbfs"));
        std::fs::write(directory.join("rtemap_0"), "").unwrap();
        let after = (found("x", &mounts("hugetlbfs")), found("x", &mounts("tmpfs")), found("x", ""));
        let named = found(&format!("x --huge-dir={}", directory.display()), "");
        let other = found("x --huge-dir /none", &mounts("hugetlbfs"));
        std::fs::remove_dir_all(&directory).unwrap();
        assert_eq!((before, after), (false, (true, false, false)));
        assert_eq!((named, other), (true, false), "the directory of --huge-dir alone");
    }

    #[test]
    fn a_locked_directory_for_hugepages_is_found_and_not_waited_for() {
        let directory = std::env::temp_dir().join(format!("hugetlbfs-locked-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let mounts = format!("nodev {} hugetlbfs rw 0 0\n", directory.display());
        let named = words(&format!("x --huge-dir {}", directory.display()));
        let found = |arguments: &[String], mounts: &str| locked_directories(arguments, mounts).len();
        let free = (found(&words("x"), &mounts), found(&named, ""));
        // Any user who may read the directory can do this.
        let of_others = std::fs::File::open(&directory).unwrap();
        flock(&of_others, FlockOperation::NonBlockingLockShared).unwrap();
        let locked = (found(&words("x"), &mounts), found(&named, ""));
        let unused = (found(&words("x --in-memory"), &mounts), found(&words("x --no-huge"), &mounts));
        drop(of_others);
        let after = found(&words("x"), &mounts);
        std::fs::remove_dir_all(&directory).unwrap();
        assert_eq!((free, locked, unused, after), ((0, 0), (1, 1), (0, 0), 0));
        assert_eq!(found(&named, ""), 0, "a directory that is missing is not locked");
    }

    #[test]
    fn hugepages_are_not_always_required() {
        assert!(hugepages(&words("x --no-huge")).is_ok());
        assert!(hugepages(&words("x --no-hug")).is_ok());
        let after = hugepages(&words("x -- --no-huge"));
        assert_eq!(after.is_ok(), hugepages(&words("x")).is_ok(), "what follows -- is not EAL's");
    }
}
