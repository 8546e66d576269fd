//! What the process has locked and pinned: `/proc/self/status`, `smaps`, `fdinfo`.

use crate::error::Unmovable;
use crate::span::{PAGE, Span};
use crate::sys::at;
use causeway_owned::Owned;
use std::fs;
use std::io::Read;

/// More than the file has: it is made anew for each read.
const STATUS_BYTES: usize = 8192;

/// Locked memory, and memory that an io_uring has registered. Most processes have neither, which
/// one small file tells.
#[derive(Debug, Default)]
pub(crate) struct Status {
    /// Mappings locked by mlock.
    pub locked: Vec<Span>,
    /// Pages of io_uring's fixed buffers.
    pub fixed: Vec<Span>,
}

impl Status {
    pub fn read() -> Status {
        let mut text = String::with_capacity(STATUS_BYTES);
        if let Ok(file) = fs::File::open("/proc/self/status") {
            let file = Owned::new(file, "what tells of locked memory");
            if file.check().is_ok() {
                let _ = (&*file).read_to_string(&mut text);
            }
        }
        let some = |key| {
            let line = text.lines().find_map(|line| line.strip_prefix(key));
            line.is_some_and(|rest| rest.trim() != "0 kB")
        };
        Status {
            locked: if some("VmLck:") { locked() } else { Vec::new() },
            fixed: if some("VmPin:") { fixed() } else { Vec::new() },
        }
    }

    /// Whether none of these is locked or registered.
    pub fn allows(&self, spans: &[Span]) -> Result<(), Unmovable> {
        let meets = |those: &[Span]| {
            those
                .iter()
                .any(|that| spans.iter().any(|s| s.meets(*that)))
        };
        if meets(&self.locked) {
            return Err(Unmovable::Locked);
        }
        if meets(&self.fixed) {
            return Err(Unmovable::Pinned);
        }
        Ok(())
    }

    /// Locks what has been replaced, as far as the mappings before were locked.
    pub fn lock_again(&self, span: Span) {
        for part in self.locked.iter().map(|locked| locked.and(span)) {
            if !part.is_empty() {
                // Fails for what is unmapped already.
                // SAFETY: locking changes no contents.
                let _ = unsafe { rustix::mm::mlock(at(part.start), part.len()) };
            }
        }
    }
}

/// The mappings with the flag `lo` (`proc_pid_smaps(5)`).
fn locked() -> Vec<Span> {
    let text = fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    let mut spans = Vec::new();
    let mut current = None;
    for line in text.lines() {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            let locked = flags.split_whitespace().any(|flag| flag == "lo");
            spans.extend(current.filter(|_| locked));
        } else if let Some(span) = range(line) {
            current = Some(span);
        }
    }
    spans
}

/// The range that a line of `smaps` begins with.
fn range(line: &str) -> Option<Span> {
    let (start, end) = line.split(' ').next()?.split_once('-')?;
    let number = |text| usize::from_str_radix(text, 16).ok();
    Some(Span::new(number(start)?, number(end)?))
}

/// What `fdinfo` of every io_uring lists as `UserBufs`: `index: address/length` in each line.
fn fixed() -> Vec<Span> {
    let mut spans = Vec::new();
    for entry in fs::read_dir("/proc/self/fd")
        .into_iter()
        .flatten()
        .flatten()
    {
        let ring =
            fs::read_link(entry.path()).is_ok_and(|to| to.ends_with("anon_inode:[io_uring]"));
        let Some(name) = entry
            .file_name()
            .to_str()
            .filter(|_| ring)
            .map(str::to_owned)
        else {
            continue;
        };
        let text = fs::read_to_string(format!("/proc/self/fdinfo/{name}")).unwrap_or_default();
        let lines = text
            .lines()
            .skip_while(|line| !line.starts_with("UserBufs:"))
            .skip(1);
        spans.extend(lines.map_while(buffer));
    }
    spans
}

/// The pages of one fixed buffer.
fn buffer(line: &str) -> Option<Span> {
    let (_, rest) = line.split_once(':')?;
    let (addr, len) = rest.trim().split_once('/')?;
    let addr = usize::from_str_radix(addr.trim_start_matches("0x"), 16).ok()?;
    let end = addr.checked_add(len.parse().ok()?)?;
    Some(Span::new(
        addr & !(PAGE - 1),
        end.checked_next_multiple_of(PAGE)?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_understood() {
        assert_eq!(
            buffer("    0: 0x7f0000001010/8192"),
            Some(Span::new(0x7f00_0000_1000, 0x7f00_0000_4000))
        );
        assert_eq!(buffer("PollList:"), None);
        assert_eq!(
            range("7f00-8f00 rw-p 0 00:00 0 [heap]"),
            Some(Span::new(0x7f00, 0x8f00))
        );
        assert_eq!(range("Size:                 16 kB"), None);
    }
}
