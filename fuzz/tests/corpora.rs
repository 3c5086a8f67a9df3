//! Runs every target on its corpus, and on reproducible variations of it. To search further without
//! libFuzzer, try more variations of each input: `FUZZ_TARGET=segment FUZZ_VARIATIONS=10000 cargo test -p
//! fuzz --test corpora -- --nocapture`.

use std::fs;
use std::path::Path;

/// Default number of variations of each input.
const VARIATIONS: u64 = 64;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }
}

/// Changes, truncates, duplicates or removes a few bytes.
fn vary(input: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len());
        match random.below(6) {
            0 => bytes.truncate(at),
            1 => bytes.extend_from_within(at..),
            2 if !bytes.is_empty() => drop(bytes.remove(at)),
            3 => bytes.insert(at, random.next() as u8),
            _ => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << random.below(8);
                }
            }
        }
        bytes.truncate(1 << 16);
    }
    bytes
}

fn corpus(name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
    let mut files: Vec<_> = fs::read_dir(folder)
        .map(|entries| entries.map(|entry| entry.unwrap().path()).collect())
        .unwrap_or_default();
    files.sort();
    files.iter().map(|file| fs::read(file).unwrap()).collect()
}

/// Runs a target on an input; prints a failing input byte by byte, so that it can be added to the corpus.
fn take(name: &str, target: fuzz::Target, input: &[u8]) {
    if let Err(panic) = std::panic::catch_unwind(|| target(input)) {
        let bytes: String = input.iter().map(|byte| format!("{byte:02x}")).collect();
        println!("{name} does not stand {bytes}");
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn every_target_stands_its_corpus_and_variations_of_it() {
    let chosen = std::env::var("FUZZ_TARGET").ok();
    let variations = std::env::var("FUZZ_VARIATIONS").ok();
    let variations = variations.map_or(VARIATIONS, |count| count.parse().unwrap());
    let is_chosen =
        |name: &str| chosen.as_ref().is_none_or(|chosen| chosen.split(',').any(|one| one == name));
    for (name, target) in fuzz::TARGETS.iter().filter(|(name, _)| is_chosen(name)) {
        let mut random = Random(1);
        let inputs = corpus(name);
        assert!(!inputs.is_empty(), "{name} has no corpus");
        println!("{name}: {} inputs", inputs.len());
        for input in &inputs {
            take(name, *target, input);
            for _ in 0..variations {
                take(name, *target, &vary(input, &mut random));
            }
        }
    }
}

#[test]
fn every_corpus_has_a_target() {
    let folders = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")).unwrap();
    for folder in folders {
        let name = folder.unwrap().file_name().into_string().unwrap();
        assert!(fuzz::TARGETS.iter().any(|(target, _)| *target == name), "{name}");
    }
}

#[test]
fn every_target_has_a_program_and_no_other_has() {
    let programs = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz_targets")).unwrap();
    let mut programs: Vec<_> = programs.map(|file| file.unwrap().path()).collect();
    programs.sort();
    let programs: Vec<_> = programs.iter().filter_map(|file| file.file_stem()?.to_str()).collect();
    // The program with all targets.
    let mut wanted: Vec<_> = fuzz::TARGETS.iter().map(|(name, _)| *name).chain(["every"]).collect();
    wanted.sort_unstable();
    assert_eq!(programs, wanted);
}
