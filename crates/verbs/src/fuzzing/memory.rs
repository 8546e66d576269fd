//! The memory that requests name, some of which goes away meanwhile.

use core::ffi::c_void;
use core::ptr;

use causeway_identity::PAGE;

use super::script::Script;

/// Pages of ordinary memory, and behind them those of a file.
const ORDINARY: usize = 24;
const OF_FILE: usize = 4;
/// Bytes that always are there: what is sent inline is read by the program's own thread.
const SOLID: usize = 2048;

pub(super) struct Memory {
    area: *mut u8,
    file: libc::c_int,
    solid: Box<[u8; SOLID]>,
}

impl Memory {
    pub(super) fn map() -> Memory {
        // SAFETY: new mappings, at addresses that the kernel chooses, then inside the first.
        unsafe {
            let file = libc::memfd_create(c"fuzz".as_ptr(), libc::MFD_CLOEXEC);
            assert_eq!(libc::ftruncate(file, (OF_FILE * PAGE) as i64), 0);
            let area = libc::mmap(
                ptr::null_mut(),
                (ORDINARY + OF_FILE) * PAGE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            assert_ne!(area, libc::MAP_FAILED);
            let memory = Memory {
                area: area.cast(),
                file,
                solid: Box::new([7; SOLID]),
            };
            memory.map_file();
            memory
        }
    }

    unsafe fn map_file(&self) {
        // SAFETY: inside the area, which nothing else uses.
        let at = unsafe {
            libc::mmap(
                self.area.add(ORDINARY * PAGE).cast(),
                OF_FILE * PAGE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_FIXED,
                self.file,
                0,
            )
        };
        assert_ne!(at, libc::MAP_FAILED);
    }

    /// An address in the area or, seldom, elsewhere.
    pub(super) fn address(&self, script: &mut Script<'_>) -> *mut c_void {
        let choice = script.u16();
        if choice >= 0xff00 {
            let odd = [0, 8, PAGE, usize::MAX - 7, 1 << 47, usize::MAX << 47];
            return ptr::without_provenance_mut(odd[usize::from(choice) % odd.len()]);
        }
        let offset = usize::from(choice) * 8 % ((ORDINARY + OF_FILE) * PAGE);
        self.area.wrapping_add(offset).cast()
    }

    /// How long something is, mostly little.
    pub(super) fn length(&self, script: &mut Script<'_>) -> usize {
        let choice = usize::from(script.byte().unwrap_or(8));
        match choice {
            0..128 => choice,
            128..200 => (choice - 127) * 64,
            200..250 => (choice - 199) * PAGE / 2,
            250 => 1 << 31,
            251 => u32::MAX as usize,
            252 => 1 << 47,
            253 => usize::MAX,
            _ => 8,
        }
    }

    /// Where `length` bytes are that stay there, or fewer.
    pub(super) fn solid(&self, length: usize) -> (*mut u8, usize) {
        (self.solid.as_ptr().cast_mut(), length.min(SOLID))
    }

    /// Takes some of the memory away, or gives it back.
    pub(super) fn change(&mut self, script: &mut Script<'_>) {
        let (what, page) = (script.byte().unwrap_or(0), script.byte().unwrap_or(0));
        let pages = usize::from(page >> 6) + 1;
        let at = self.area.wrapping_add(usize::from(page) % ORDINARY * PAGE);
        let left = ORDINARY - usize::from(page) % ORDINARY;
        let length = pages.min(left) * PAGE;
        // SAFETY: pages of the area, which only requests of the script's name.
        unsafe {
            match what % 8 {
                0 => _ = libc::munmap(at.cast(), length),
                1 => _ = libc::mprotect(at.cast(), length, libc::PROT_NONE),
                2 => _ = libc::mprotect(at.cast(), length, libc::PROT_READ),
                3 => _ = libc::madvise(at.cast(), length, libc::MADV_DONTNEED),
                4 => assert_eq!(libc::ftruncate(self.file, PAGE as i64), 0),
                5 => assert_eq!(libc::ftruncate(self.file, (OF_FILE * PAGE) as i64), 0),
                _ => {
                    let again = libc::mmap(
                        at.cast(),
                        length,
                        libc::PROT_READ | libc::PROT_WRITE,
                        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
                        -1,
                        0,
                    );
                    assert_ne!(again, libc::MAP_FAILED);
                }
            }
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the area and the file are this object's own; regions in it have ended.
        unsafe {
            libc::munmap(self.area.cast(), (ORDINARY + OF_FILE) * PAGE);
            libc::close(self.file);
        }
    }
}
