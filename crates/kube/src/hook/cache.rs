//! The dynamic linker's cache, `/etc/ld.so.cache`, as glibc writes it since 2.32: read, given
//! entries, and written anew.
//!
//! A header, entries in descending order of their names, strings, and an extension with the names
//! of processor levels. Strings are named by their distance from the file's start, and end with a
//! zero byte. The source is glibc's `sysdeps/generic/dl-cache.h` and `elf/cache.c`.

use std::cmp::Ordering;
use std::collections::BTreeMap;

/// What the file begins with.
const MAGIC: &[u8; 20] = b"glibc-ld.so.cache1.1";
/// Magic, two counts, flags and padding, the extension's place, three unused words.
const HEADER: usize = 48;
const ENTRY: usize = 24;
/// What an extension begins with; each of its sections has four words.
const EXTENSION_MAGIC: u32 = 0xeaa4_2174;
const EXTENSION_HEADER: usize = 8;
const SECTION: usize = 16;
/// Sections: text that says who wrote the file; names of processor levels, as strings' places.
const TAG_GENERATOR: u32 = 0;
const TAG_HWCAPS: u32 = 1;
/// Processor levels that a cache may name: glibc knows fewer than ten.
const HWCAPS_MAX: usize = 1024;
/// Sections that an extension may have: glibc knows two.
const SECTIONS_MAX: usize = 16;
/// Longest string, which is a path.
const STRING_MAX: usize = 4096;
/// Bytes of all names and paths, which may overlap in the file.
const STRINGS_MAX: usize = 32 << 20;

/// Entry flags of a library of this processor for glibc.
#[cfg(target_arch = "x86_64")]
const FLAGS: u32 = 0x0303;
#[cfg(target_arch = "aarch64")]
const FLAGS: u32 = 0x0a03;

/// One library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    flags: u32,
    name: Vec<u8>,
    path: Vec<u8>,
    os_version: u32,
    /// Processor level that it needs.
    hwcap: u64,
}

impl Entry {
    /// A library of this processor, which any level of it can run.
    #[must_use]
    pub fn of(name: String, path: String) -> Entry {
        Entry {
            flags: FLAGS,
            name: name.into_bytes(),
            path: path.into_bytes(),
            os_version: 0,
            hwcap: 0,
        }
    }
}

/// The cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    entries: Vec<Entry>,
    /// Byte order and the like, as they were.
    flags: u32,
    generator: Option<Vec<u8>>,
    hwcaps: Option<Vec<Vec<u8>>>,
}

/// A file of which nothing is believed.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn word(&self, at: usize) -> Result<u32, String> {
        let bytes = at.checked_add(4).and_then(|end| self.0.get(at..end));
        let word = bytes.and_then(|bytes| bytes.try_into().ok());
        word.map(u32::from_ne_bytes).ok_or("cut short".to_owned())
    }

    /// The string at the place that a word names.
    fn string(&self, at: usize) -> Result<Vec<u8>, String> {
        let from = self.0.get(self.word(at)? as usize..).unwrap_or_default();
        let length = from.iter().take(STRING_MAX + 1).position(|&byte| byte == 0);
        let length = length.ok_or("a string does not end")?;
        Ok(from[..length].to_vec())
    }
}

impl Cache {
    /// Reads a cache.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(bytes: &[u8]) -> Result<Cache, String> {
        if !bytes.starts_with(MAGIC) {
            return Err("not a cache of glibc 2.32 or newer".to_owned());
        }
        let bytes = Bytes(bytes);
        let count = bytes.word(20)? as usize;
        if count > bytes.0.len() / ENTRY {
            return Err("more entries than fit".to_owned());
        }
        let mut length = 0;
        let mut entry = |index: usize| {
            let at = HEADER + index * ENTRY;
            let (name, path) = (bytes.string(at + 4)?, bytes.string(at + 8)?);
            length += name.len() + path.len();
            if length > STRINGS_MAX {
                return Err("too many strings".to_owned());
            }
            Ok(Entry {
                flags: bytes.word(at)?,
                name,
                path,
                os_version: bytes.word(at + 12)?,
                hwcap: u64::from(bytes.word(at + 16)?) | u64::from(bytes.word(at + 20)?) << 32,
            })
        };
        let mut cache = Cache {
            entries: (0..count).map(&mut entry).collect::<Result<_, String>>()?,
            flags: bytes.word(28)?,
            generator: None,
            hwcaps: None,
        };
        match bytes.word(32)? as usize {
            0 => {}
            at => cache.parse_extension(&bytes, at)?,
        }
        Ok(cache)
    }

    fn parse_extension(&mut self, bytes: &Bytes, at: usize) -> Result<(), String> {
        if bytes.word(at)? != EXTENSION_MAGIC {
            return Err("an unknown extension".to_owned());
        }
        let count = bytes.word(at + 4)? as usize;
        if count > SECTIONS_MAX {
            return Err("too many sections".to_owned());
        }
        for index in 0..count {
            let section = at + EXTENSION_HEADER + index * SECTION;
            let (start, size) = (
                bytes.word(section + 8)? as usize,
                bytes.word(section + 12)? as usize,
            );
            let content = start
                .checked_add(size)
                .and_then(|end| bytes.0.get(start..end));
            let content = content.ok_or("a section is cut short")?;
            match bytes.word(section)? {
                TAG_GENERATOR => self.generator = Some(content.to_vec()),
                TAG_HWCAPS if size / 4 <= HWCAPS_MAX => {
                    let names = (0..size / 4).map(|index| bytes.string(start + index * 4));
                    self.hwcaps = Some(names.collect::<Result<_, _>>()?);
                }
                tag => return Err(format!("section {tag} of the extension is unknown")),
            }
        }
        Ok(())
    }

    /// Puts an entry in front of all others of its name, once.
    pub fn put(&mut self, entry: Entry) {
        self.entries.retain(|other| *other != entry);
        let before = |other: &Entry| compare(&other.name, &entry.name) == Ordering::Greater;
        let at = self.entries.iter().position(|other| !before(other));
        self.entries.insert(at.unwrap_or(self.entries.len()), entry);
    }

    /// The cache as a file.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut strings = Strings::after(HEADER + self.entries.len() * ENTRY);
        let mut rows = Vec::new();
        for entry in &self.entries {
            let words = [
                entry.flags,
                strings.place(&entry.name),
                strings.place(&entry.path),
            ];
            words_into(&mut rows, &words);
            words_into(&mut rows, &[entry.os_version]);
            rows.extend(entry.hwcap.to_ne_bytes());
        }
        let hwcaps = self.hwcaps.as_ref();
        let hwcaps = hwcaps.map(|names| names.iter().map(|name| strings.place(name)).collect());
        let extension_at = strings.end().next_multiple_of(4);
        let extension = self.extension(extension_at, hwcaps);
        let mut file = MAGIC.to_vec();
        let extension_word = if extension.is_empty() {
            0
        } else {
            extension_at
        };
        let words = [self.entries.len(), strings.bytes.len()].map(word);
        words_into(&mut file, &words);
        words_into(&mut file, &[self.flags, word(extension_word), 0, 0, 0]);
        file.extend(rows);
        file.extend(strings.bytes);
        if !extension.is_empty() {
            file.resize(extension_at, 0);
            file.extend(extension);
        }
        file
    }

    /// The extension, which begins at a place in the file; empty, if there is none.
    fn extension(&self, at: usize, hwcaps: Option<Vec<u32>>) -> Vec<u8> {
        let hwcaps = hwcaps.map(|places| places.iter().flat_map(|w| w.to_ne_bytes()).collect());
        // Those first whose content is words, so that it is aligned.
        let sections: Vec<(u32, Vec<u8>)> = [
            (TAG_HWCAPS, hwcaps),
            (TAG_GENERATOR, self.generator.clone()),
        ]
        .into_iter()
        .filter_map(|(tag, content)| Some((tag, content?)))
        .collect();
        let mut bytes = Vec::new();
        if sections.is_empty() {
            return bytes;
        }
        words_into(&mut bytes, &[EXTENSION_MAGIC, word(sections.len())]);
        let mut start = at + EXTENSION_HEADER + sections.len() * SECTION;
        for (tag, content) in &sections {
            words_into(&mut bytes, &[*tag, 0, word(start), word(content.len())]);
            start += content.len();
        }
        bytes.extend(sections.into_iter().flat_map(|(_, content)| content));
        bytes
    }
}

/// Strings of a file that is being written, each once.
struct Strings {
    start: usize,
    bytes: Vec<u8>,
    places: BTreeMap<Vec<u8>, u32>,
}

impl Strings {
    fn after(start: usize) -> Strings {
        Strings {
            start,
            bytes: Vec::new(),
            places: BTreeMap::new(),
        }
    }

    fn end(&self) -> usize {
        self.start + self.bytes.len()
    }

    fn place(&mut self, string: &[u8]) -> u32 {
        let end = word(self.end());
        let place = *self.places.entry(string.to_vec()).or_insert(end);
        if place == end {
            self.bytes.extend_from_slice(string);
            self.bytes.push(0);
        }
        place
    }
}

/// A place or count in a file that is bounded: what was read, and a few entries.
fn word(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn words_into(bytes: &mut Vec<u8>, words: &[u32]) {
    bytes.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
}

/// The order of the linker's search, `_dl_cache_libcmp`: numbers by their value, and after all
/// other characters.
fn compare(a: &[u8], b: &[u8]) -> Ordering {
    let (mut a, mut b) = (a, b);
    loop {
        match (a.first(), b.first()) {
            (None, None) => return Ordering::Equal,
            (None, Some(_)) => return Ordering::Less,
            (Some(x), Some(y)) if x.is_ascii_digit() && y.is_ascii_digit() => {
                let numbers = number(&mut a).cmp(&number(&mut b));
                if numbers != Ordering::Equal {
                    return numbers;
                }
            }
            (Some(x), _) if x.is_ascii_digit() => return Ordering::Greater,
            (Some(_), Some(y)) if y.is_ascii_digit() => return Ordering::Less,
            (Some(_), None) => return Ordering::Greater,
            (Some(x), Some(y)) if x != y => return x.cmp(y),
            _ => (a, b) = (&a[1..], &b[1..]),
        }
    }
}

/// Takes a number off the front.
fn number<'a>(text: &mut &'a [u8]) -> u64 {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let whole: &'a [u8] = text;
    let (number, rest) = whole.split_at(digits);
    *text = rest;
    let add = |sum: u64, digit: &u8| {
        sum.saturating_mul(10)
            .saturating_add(u64::from(digit - b'0'))
    };
    number.iter().fold(0, add)
}

#[cfg(test)]
#[path = "cache_tests.rs"]
mod tests;
