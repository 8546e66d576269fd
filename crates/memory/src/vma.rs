//! What is mapped where: `/proc/self/maps`, by its ioctl (Linux 6.11) or by its text. Nothing here
//! allocates, since it also runs where a thread that holds the allocator's locks is waited for.

use crate::span::Span;
use causeway_owned::Owned;
use rustix::fs::{Mode, OFlags, makedev};
use rustix::io::Errno;
use rustix::mm::ProtFlags;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, Ordering};

const MAPS: &str = "/proc/self/maps";
/// Longer than any name that is looked for.
const NAME_BYTES: usize = 128;
/// A line of the text: the numbers and as much of the name as counts.
const TEXT_BYTES: usize = 8192;

/// A mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Vma {
    pub span: Span,
    pub prot: ProtFlags,
    pub shared: bool,
    /// Offset in the file that `span.start` is at.
    pub offset: usize,
    pub device: u64,
    /// 0 if it is no file's.
    pub inode: u64,
}

/// An open `/proc/self/maps`. Thread-safe.
#[derive(Debug)]
pub(crate) struct Maps {
    fd: Owned,
    text: AtomicBool,
}

/// `struct procmap_query` of linux/fs.h.
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    flags: u64,
    addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    name_size: u32,
    build_id_size: u32,
    name_addr: u64,
    build_id_addr: u64,
}
const _: () = assert!(size_of::<Query>() == 104);
/// `_IOWR('f', 17, struct procmap_query)`.
const PROCMAP_QUERY: libc::Ioctl = 0xc068_6611;
const COVERING_OR_NEXT: u64 = 0x10;
const VMA_SHARED: u64 = 8;

fn open() -> Result<Owned, Errno> {
    let fd = rustix::fs::open(MAPS, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    Ok(Owned::new(fd, "what tells of mappings"))
}

impl Maps {
    pub fn open() -> Result<Maps, Errno> {
        Ok(Maps {
            fd: open()?,
            text: AtomicBool::new(false),
        })
    }

    /// The mapping at `addr`, or the next above it.
    pub fn find(&self, addr: usize) -> Result<Option<Vma>, Errno> {
        Ok(self.look(addr, &mut [])?.map(|(vma, _)| vma))
    }

    /// As [`Maps::find`], and whether its name is that of ordinary anonymous memory.
    pub fn find_named(&self, addr: usize) -> Result<Option<(Vma, bool)>, Errno> {
        let mut name = [0; NAME_BYTES];
        let plain =
            |name: &[u8]| name.is_empty() || name == b"[heap]" || name.starts_with(b"[anon:");
        let Some((vma, len)) = self.look(addr, &mut name)? else {
            return Ok(None);
        };
        Ok(Some((vma, vma.inode == 0 && plain(&name[..len]))))
    }

    fn look(&self, addr: usize, name: &mut [u8]) -> Result<Option<(Vma, usize)>, Errno> {
        if !self.text.load(Ordering::Relaxed) {
            match self.query(addr, name) {
                Err(Errno::NOTTY) => self.text.store(true, Ordering::Relaxed),
                Err(Errno::NOENT) => return Ok(None),
                // Only files have names this long.
                Err(Errno::NAMETOOLONG) => return self.look(addr, &mut []),
                result => return result.map(Some),
            }
        }
        read_text(addr, name)
    }

    /// As [`Maps::look`], by the ioctl alone.
    pub fn query(&self, addr: usize, name: &mut [u8]) -> Result<(Vma, usize), Errno> {
        let mut query = Query {
            size: size_of::<Query>() as u64,
            flags: COVERING_OR_NEXT,
            addr: addr as u64,
            name_size: name.len() as u32,
            name_addr: if name.is_empty() {
                0
            } else {
                name.as_mut_ptr() as u64
            },
            ..Query::default()
        };
        // SAFETY: the structure has the size its first word says, and the name's buffer the size
        // that it names.
        if unsafe { libc::ioctl(self.fd.as_fd().as_raw_fd(), PROCMAP_QUERY, &raw mut query) } < 0 {
            let os = std::io::Error::last_os_error().raw_os_error();
            return Err(Errno::from_raw_os_error(os.unwrap_or(libc::EIO)));
        }
        let vma = Vma {
            span: Span::new(query.vma_start as usize, query.vma_end as usize),
            prot: ProtFlags::from_bits_retain(query.vma_flags as u32 & 7),
            shared: query.vma_flags & VMA_SHARED != 0,
            offset: query.offset as usize,
            device: makedev(query.dev_major, query.dev_minor),
            inode: query.inode,
        };
        Ok((vma, (query.name_size as usize).saturating_sub(1)))
    }
}

/// Reads the text up to the mapping wanted.
fn read_text(addr: usize, name: &mut [u8]) -> Result<Option<(Vma, usize)>, Errno> {
    let fd = open()?;
    let mut buffer = [0u8; TEXT_BYTES];
    let mut held = 0;
    loop {
        let got = rustix::io::retry_on_intr(|| rustix::io::read(fd.check()?, &mut buffer[held..]))?;
        if got == 0 {
            return Ok(None);
        }
        held += got;
        let mut begin = 0;
        while let Some(len) = buffer[begin..held].iter().position(|b| *b == b'\n') {
            let line = &buffer[begin..begin + len];
            begin += len + 1;
            let (vma, found) = parse(line).ok_or(Errno::IO)?;
            if vma.span.end > addr {
                let len = found.len().min(name.len());
                name[..len].copy_from_slice(&found[..len]);
                return Ok(Some((vma, len)));
            }
        }
        buffer.copy_within(begin..held, 0);
        held -= begin;
    }
}

/// Reads `start-end perms offset major:minor inode name`.
fn parse(line: &[u8]) -> Option<(Vma, &[u8])> {
    let mut rest = line;
    let mut field = |end: u8| {
        let at = rest.iter().position(|b| *b == end).unwrap_or(rest.len());
        let (word, tail) = rest.split_at(at);
        rest = tail.get(1..).unwrap_or_default();
        std::str::from_utf8(word).ok()
    };
    let hex = |word: &str| u64::from_str_radix(word, 16).ok();
    let start = hex(field(b'-')?)?;
    let end = hex(field(b' ')?)?;
    let perms = field(b' ')?.as_bytes();
    let offset = hex(field(b' ')?)?;
    let major = hex(field(b':')?)?;
    let minor = hex(field(b' ')?)?;
    let inode = field(b' ')?.parse().ok()?;
    let mut prot = ProtFlags::empty();
    for (letter, flag) in [(b'r', 1), (b'w', 2), (b'x', 4)] {
        if perms.contains(&letter) {
            prot |= ProtFlags::from_bits_retain(flag);
        }
    }
    let vma = Vma {
        span: Span::new(start as usize, end as usize),
        prot,
        shared: perms.get(3) == Some(&b's'),
        offset: offset as usize,
        device: makedev(major as u32, minor as u32),
        inode,
    };
    Some((vma, rest.trim_ascii_start()))
}
