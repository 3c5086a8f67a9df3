//! Every target on its corpus, and on variations of it that are the same in each run.

use std::fs;
use std::path::Path;

/// Variations of each input.
const VARIATIONS: u64 = 64;
/// Inputs of a target that has no corpus.
const MADE_UP: usize = 256;

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

/// A few bytes changed, cut off, put in twice, or left out.
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

#[test]
fn every_target_stands_its_corpus_and_variations_of_it() {
    for (name, target) in fuzz::TARGETS {
        let mut random = Random(1);
        let mut inputs = corpus(name);
        if inputs.is_empty() {
            inputs = (0..MADE_UP).map(|n| (0..n).map(|_| random.next() as u8).collect()).collect();
        }
        println!("{name}: {} inputs", inputs.len());
        for input in &inputs {
            target(input);
            for _ in 0..VARIATIONS {
                target(&vary(input, &mut random));
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
