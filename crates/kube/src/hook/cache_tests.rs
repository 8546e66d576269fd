//! Tests of the dynamic linker's cache, on one of our own making and on this machine's.

use proptest::prelude::*;

use super::*;

fn entry(name: &str, path: &str) -> Entry {
    Entry::of(name.to_owned(), path.to_owned())
}

/// As ldconfig(8) would have written it, with an extension.
fn cache() -> Cache {
    let mut level = entry("libz.so.1", "/lib/glibc-hwcaps/x86-64-v3/libz.so.1");
    level.hwcap = 1 << 62;
    let libraries = [
        level,
        entry("libz.so.1", "/lib/libz.so.1"),
        entry("libibverbs.so.1", "/lib/libibverbs.so.1"),
        entry("libc.so.6", "/lib/libc.so.6"),
    ];
    Cache {
        entries: libraries.to_vec(),
        flags: 2,
        generator: Some(b"ldconfig (GNU libc) stable release version 2.36".to_vec()),
        hwcaps: Some(vec![b"x86-64-v3".to_vec()]),
    }
}

#[test]
fn what_is_written_is_read() {
    let cache = cache();
    assert_eq!(Cache::parse(&cache.to_bytes()).unwrap(), cache);
    let plain = Cache {
        generator: None,
        hwcaps: None,
        ..cache
    };
    assert_eq!(Cache::parse(&plain.to_bytes()).unwrap(), plain);
}

#[test]
fn this_machines_own_is_read_and_written() {
    let Ok(bytes) = std::fs::read("/etc/ld.so.cache") else {
        return;
    };
    let cache = Cache::parse(&bytes).unwrap();
    assert!(cache.entries.len() > 10);
    let sorted = cache.entries.windows(2);
    assert!(
        sorted
            .into_iter()
            .all(|two| compare(&two[0].name, &two[1].name).is_ge())
    );
    assert_eq!(Cache::parse(&cache.to_bytes()).unwrap(), cache);
}

#[test]
fn ours_comes_first_and_once() {
    let mut cache = cache();
    let ours = entry("libibverbs.so.1", "/opt/causeway/lib/libibverbs.so.1");
    cache.put(ours.clone());
    cache.put(ours.clone());
    assert_eq!(cache.entries.len(), 5);
    assert_eq!(cache.entries[2], ours);
    // Before all, behind all, and between.
    for name in ["libzzz.so.1", "liba.so.1", "libmlx5.so.1"] {
        cache.put(entry(name, "/new"));
    }
    let names: Vec<_> = cache.entries.iter().map(|entry| &entry.name[3..]).collect();
    let expected = [
        "zzz.so.1",
        "z.so.1",
        "z.so.1",
        "mlx5.so.1",
        "ibverbs.so.1",
        "ibverbs.so.1",
        "c.so.6",
        "a.so.1",
    ];
    assert_eq!(names, expected.map(str::as_bytes));
}

#[test]
fn numbers_are_compared_by_value() {
    let order = |a: &str, b: &str| compare(a.as_bytes(), b.as_bytes());
    assert_eq!(order("lib.so.9", "lib.so.10"), Ordering::Less);
    assert_eq!(order("lib.so.1", "lib.so.x"), Ordering::Greater);
    assert_eq!(order("lib.so", "lib.so.1"), Ordering::Less);
    assert_eq!(order("lib.so.1", "lib.so.1"), Ordering::Equal);
}

#[test]
fn older_caches_are_refused() {
    assert!(Cache::parse(b"ld.so-1.7.0").is_err());
    assert!(Cache::parse(b"").is_err());
    assert!(Cache::parse(MAGIC).is_err());
}

proptest! {
    /// Whatever the file says, reading it ends with an answer.
    #[test]
    fn bytes_of_no_meaning_do_no_harm(
        at in 20usize..400,
        word in any::<u32>(),
        cut in 0usize..400,
    ) {
        let mut bytes = cache().to_bytes();
        if let Some(place) = bytes.get_mut(at..at + 4) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        bytes.truncate(bytes.len().saturating_sub(cut));
        if let Ok(cache) = Cache::parse(&bytes) {
            prop_assert_eq!(&Cache::parse(&cache.to_bytes()).unwrap(), &cache);
        }
    }
}
