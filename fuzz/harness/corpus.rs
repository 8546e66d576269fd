//! Replays a corpus, and writes seeds into it.

use std::fs;
use std::path::PathBuf;

/// Damaged copies of each file that are tried as well, always the same ones.
const MUTANTS: u64 = 300;
/// Changes made to a copy, at most.
const CHANGES_MAX: u64 = 4;

fn folder(target: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus")).join(target)
}

/// Every file of a target's corpus, by name.
pub fn files(target: &str) -> Vec<(String, Vec<u8>)> {
    let mut paths: Vec<_> = fs::read_dir(folder(target))
        .unwrap_or_else(|e| panic!("{}: {e}", folder(target).display()))
        .map(|entry| entry.expect("a folder that can be read").path())
        .collect();
    paths.sort();
    assert!(!paths.is_empty(), "the corpus of {target} is empty");
    let read = |path: PathBuf| {
        let data = fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let name = path.file_name().expect("a file has a name");
        (name.to_string_lossy().into_owned(), data)
    };
    paths.into_iter().map(read).collect()
}

/// Feeds every file of a target's corpus to its harness, and damaged copies of it.
pub fn replay(target: &str, run: fn(&[u8])) {
    for (name, data) in files(target) {
        // Shown if the harness panics: the input that made it.
        println!("{target}/{name}");
        run(&data);
        for seed in 0..MUTANTS {
            let mutant = mutate(data.clone(), seed);
            println!("mutant {seed}: {mutant:02x?}");
            run(&mutant);
        }
    }
}

/// Writes a seed, under a name that says what it is.
pub fn write_seed(target: &str, name: &str, data: &[u8]) {
    fs::create_dir_all(folder(target)).expect("a corpus folder");
    fs::write(folder(target).join(format!("seed-{name}")), data).expect("a seed written");
}

/// Changes some bytes to random, extreme or neighbouring values, inserts, removes or repeats some.
fn mutate(mut data: Vec<u8>, seed: u64) -> Vec<u8> {
    let mut rng = Rng(seed);
    for _ in 0..=rng.below(CHANGES_MAX) {
        let at = rng.below(data.len() as u64 + 1) as usize;
        match rng.below(6) {
            0 => data.insert(at, rng.below(256) as u8),
            1 => data.truncate(at),
            2 => data.extend_from_within(at..),
            _ if at == data.len() => {}
            3 => data[at] = [0, 1, 0x7f, 0x80, 0xff][rng.below(5) as usize],
            4 => data[at] ^= 1 << rng.below(8),
            _ => data[at] = rng.below(256) as u8,
        }
    }
    data
}

/// splitmix64.
struct Rng(u64);

impl Rng {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}
