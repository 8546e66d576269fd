//! Holders of pages: what keeps a reference until it is told to let go. Needs root.
#![allow(dead_code, reason = "not every test program uses all of it")]

pub use causeway_pins::PAGE;
use rustix::pipe::PipeFlags;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};

/// What the holders that read write into the pages, once they let go.
pub const READ_BYTE: u8 = 0xee;

pub fn at(addr: usize) -> *mut libc::c_void {
    std::ptr::with_exposed_provenance_mut(addr)
}

/// Lets go, and returns when it has.
pub type LetGo = Box<dyn FnOnce()>;
/// A way to hold pages from an address on: its name, whether it writes to them in the end, itself.
pub type Way = (&'static str, bool, Box<dyn Fn(usize) -> LetGo>);

/// Every way to hold a page that there is here.
pub fn ways() -> Vec<Way> {
    let mut all: Vec<Way> = vec![
        ("vmsplice", false, Box::new(vmsplice)),
        ("process_vm_writev", true, Box::new(process_vm_writev)),
    ];
    if SlowFile::mount().is_none() {
        println!("no FUSE here: direct reads are not tried");
        return all;
    }
    for (name, by) in [
        ("pread", By::Pread),
        ("aio", By::Aio),
        ("io_uring", By::IoUring),
    ] {
        let read = move |addr| SlowFile::mount().expect("as before").read(by, addr, PAGE);
        all.push((name, true, Box::new(read)));
    }
    all
}

/// A pipe that holds one page (`vmsplice(2)`).
pub fn vmsplice(addr: usize) -> LetGo {
    let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
    let vector = libc::iovec {
        iov_base: at(addr),
        iov_len: PAGE,
    };
    // SAFETY: one vector, of memory that the test has mapped.
    let held = unsafe { libc::vmsplice(writer.as_raw_fd(), &raw const vector, 1, 0) };
    assert_eq!(held, PAGE as isize, "vmsplice");
    Box::new(move || drop((reader, writer)))
}

/// `process_vm_writev(2)` to one page, from a page of a userfaultfd that is filled in the end.
pub fn process_vm_writev(addr: usize) -> LetGo {
    use rustix::mm::{MapFlags, ProtFlags, UserfaultfdFlags};
    // SAFETY: it watches nothing yet.
    let uffd = unsafe { rustix::mm::userfaultfd(UserfaultfdFlags::CLOEXEC) }.expect("userfaultfd");
    let rw = ProtFlags::READ | ProtFlags::WRITE;
    let null = std::ptr::null_mut();
    // SAFETY: a new mapping where the kernel likes it.
    let source = unsafe { rustix::mm::mmap_anonymous(null, PAGE, rw, MapFlags::PRIVATE) };
    let source = source.expect("mmap").expose_provenance();
    let request = |number: libc::Ioctl, words: &mut [u64]| {
        // SAFETY: the structures are as long as the requests say.
        let done = unsafe { libc::ioctl(uffd.as_raw_fd(), number, words.as_mut_ptr()) };
        assert_eq!(done, 0, "{number:x}: {}", std::io::Error::last_os_error());
    };
    request(0xc018_aa3f, &mut [0xaa, 0, 0]);
    request(0xc020_aa00, &mut [source as u64, PAGE as u64, 1, 0]);
    let writer = std::thread::spawn(move || {
        let from = libc::iovec {
            iov_base: at(source),
            iov_len: PAGE,
        };
        let to = libc::iovec {
            iov_base: at(addr),
            iov_len: PAGE,
        };
        // SAFETY: both ranges are mapped until this is joined.
        let written = unsafe {
            libc::process_vm_writev(libc::getpid(), &raw const from, 1, &raw const to, 1, 0)
        };
        assert_eq!(written, PAGE as isize);
    });
    let mut message = [0u8; 32];
    let read = rustix::io::read(&uffd, &mut message).expect("a fault");
    assert_eq!(read, message.len(), "it waits, and has pinned the page");
    Box::new(move || {
        let bytes = Box::new([[READ_BYTE; PAGE]; 2]);
        let from = bytes.as_ptr().expose_provenance().next_multiple_of(PAGE);
        let mut words = [source as u64, from as u64, PAGE as u64, 0, 0];
        // SAFETY: as above; UFFDIO_COPY fills the missing page.
        let done = unsafe { libc::ioctl(uffd.as_raw_fd(), 0xc028_aa03, words.as_mut_ptr()) };
        assert_eq!(done, 0);
        writer.join().expect("it goes on");
        drop(uffd);
        // SAFETY: the mapping made above.
        unsafe { rustix::mm::munmap(at(source), PAGE) }.expect("munmap");
    })
}

/// A file of the test's own (FUSE), whose direct reads are answered when told. `None` where this
/// kernel has no FUSE, or this process may not mount it.
pub struct SlowFile {
    file: OwnedFd,
    asked: Receiver<()>,
    answer: Sender<()>,
}

/// How a read of the slow file is made.
#[derive(Debug, Clone, Copy)]
pub enum By {
    Pread,
    Aio,
    IoUring,
}

/// Mounts a file system of one file: the device by which it is served, and its root, that file.
fn mount_file() -> Option<(OwnedFd, OwnedFd)> {
    use rustix::fs::{Mode, OFlags};
    use rustix::mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount,
        fsopen,
    };
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let device = rustix::fs::open("/dev/fuse", flags, Mode::empty()).ok()?;
    let context = fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC).ok()?;
    let number = device.as_raw_fd().to_string();
    let options = [
        ("fd", &*number),
        ("rootmode", "100644"),
        ("user_id", "0"),
        ("group_id", "0"),
    ];
    for (key, value) in options {
        fsconfig_set_string(context.as_fd(), key, value).ok()?;
    }
    fsconfig_create(context.as_fd()).ok()?;
    let flags = (FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty());
    let root = fsmount(context.as_fd(), flags.0, flags.1).ok()?;
    Some((device, root))
}

fn open_file(root: &OwnedFd, flags: rustix::fs::OFlags) -> OwnedFd {
    use rustix::fs::{Mode, OFlags};
    let path = format!("/proc/self/fd/{}", root.as_raw_fd());
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()).expect("the file")
}

/// A file (FUSE) whose server never answers that a descriptor of it is closed: a thread that closes
/// one waits, and nothing interrupts that. The server is a process of its own, which ends with
/// this.
pub struct StuckFile {
    server: libc::pid_t,
    file: std::mem::ManuallyDrop<OwnedFd>,
}

impl StuckFile {
    /// Seconds after which the server ends even if the test has died.
    const SERVED: libc::c_uint = 120;

    /// `None` where this kernel has no FUSE, or this process may not mount it.
    pub fn mount() -> Option<StuckFile> {
        let (device, root) = mount_file()?;
        let number = device.as_raw_fd() as libc::c_uint;
        // SAFETY: the child keeps nothing but the device, and calls what the C library lets a child
        // of several threads call.
        let server = unsafe { libc::fork() };
        assert!(server >= 0);
        if server == 0 {
            // SAFETY: plain system calls; what is closed is used no more here.
            unsafe {
                libc::alarm(Self::SERVED);
                libc::syscall(libc::SYS_close_range, 3, number - 1, 0);
                libc::syscall(libc::SYS_close_range, number + 1, libc::c_uint::MAX, 0);
            }
            serve(&device, false, &mut || true);
            // SAFETY: ends this process at once.
            unsafe { libc::_exit(0) };
        }
        drop(device);
        let file = open_file(&root, rustix::fs::OFlags::RDONLY);
        Some(StuckFile {
            server,
            file: std::mem::ManuallyDrop::new(file),
        })
    }

    pub fn file(&self) -> std::os::fd::BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for StuckFile {
    fn drop(&mut self) {
        // SAFETY: our own child. Without a server the kernel answers, with an error.
        unsafe {
            libc::kill(self.server, libc::SIGKILL);
            libc::waitpid(self.server, std::ptr::null_mut(), 0);
            std::mem::ManuallyDrop::drop(&mut self.file);
        }
    }
}

impl SlowFile {
    pub fn mount() -> Option<SlowFile> {
        let (device, root) = mount_file()?;
        let (tell, asked) = channel();
        let (answer, go) = channel::<()>();
        std::thread::spawn(move || {
            serve(&device, true, &mut || {
                tell.send(()).is_ok() && go.recv().is_ok()
            });
        });
        let file = open_file(&root, rustix::fs::OFlags::DIRECT);
        // Asynchronous direct reads stop at the size that is known.
        rustix::fs::fstat(&file).expect("its size");
        Some(SlowFile {
            file,
            asked,
            answer,
        })
    }

    /// A direct read of pages under way. What lets it go returns when the data has arrived.
    pub fn read(self, by: By, addr: usize, len: usize) -> LetGo {
        let SlowFile {
            file,
            asked,
            answer,
        } = self;
        let done: LetGo = match by {
            By::Pread => {
                let reader = std::thread::spawn(move || {
                    // SAFETY: mapped until this is joined.
                    let got = unsafe { libc::pread(file.as_raw_fd(), at(addr), len, 0) };
                    assert_eq!(got, len as isize);
                });
                Box::new(move || reader.join().expect("it has read"))
            }
            By::Aio => aio(file, addr, len),
            By::IoUring => io_uring(file, addr, len),
        };
        asked.recv().expect("a read");
        Box::new(move || {
            answer.send(()).expect("the server");
            done();
        })
    }
}

/// `struct iocb` of linux/aio_abi.h.
#[repr(C)]
#[derive(Default)]
struct Iocb {
    data: u64,
    key: u32,
    rw_flags: u32,
    opcode: u16,
    priority: i16,
    fd: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    result_fd: u32,
}

fn aio(file: OwnedFd, addr: usize, len: usize) -> LetGo {
    let mut context = 0usize;
    let block = Iocb {
        fd: file.as_raw_fd() as u32,
        buffer: addr as u64,
        bytes: len as u64,
        ..Iocb::default()
    };
    let blocks = [&raw const block];
    // SAFETY: the structures are what the system calls take; the memory is mapped until it is done.
    unsafe {
        assert_eq!(libc::syscall(libc::SYS_io_setup, 4, &raw mut context), 0);
        let one = libc::syscall(libc::SYS_io_submit, context, 1, blocks.as_ptr());
        assert_eq!(one, 1);
    }
    Box::new(move || {
        let mut event = [0u64; 4];
        let null = std::ptr::null::<u8>();
        let to = event.as_mut_ptr();
        // SAFETY: as above; an event has four words, of which the third is the result.
        unsafe {
            let got = libc::syscall(libc::SYS_io_getevents, context, 1, 1, to, null);
            assert_eq!((got, event[2]), (1, len as u64));
            libc::syscall(libc::SYS_io_destroy, context);
        }
        drop(file);
    })
}

/// One read, without fixed buffers, by bare system calls.
fn io_uring(file: OwnedFd, addr: usize, len: usize) -> LetGo {
    const ENTRY_WORDS: usize = 8;
    const READ: u64 = 22;
    const GET_EVENTS: u32 = 1;
    const SQ_RING: libc::off_t = 0;
    const SQES: libc::off_t = 0x1000_0000;
    let mut parameters = [0u32; 30];
    // SAFETY: `struct io_uring_params` has 120 bytes, of which none needs to be set.
    let raw = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, parameters.as_mut_ptr()) };
    assert!(raw >= 0, "no io_uring here");
    // SAFETY: the kernel has just returned it.
    let ring = unsafe { OwnedFd::from_raw_fd(raw as i32) };
    // Offsets of head, tail, ring_mask, ring_entries, flags, dropped, array.
    let (tail, array) = (parameters[11] as usize, parameters[16] as usize);
    let map = |offset: libc::off_t| {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping where the kernel likes it.
        let at = unsafe {
            let null = std::ptr::null_mut();
            libc::mmap(null, PAGE, prot, libc::MAP_SHARED, ring.as_raw_fd(), offset)
        };
        assert_ne!(at, libc::MAP_FAILED);
        at
    };
    let (submissions, entries) = (map(SQ_RING), map(SQES));
    let fd = file.as_raw_fd() as u32 as u64;
    let mut entry = [0u64; ENTRY_WORDS];
    entry[0] = READ | fd << 32;
    (entry[2], entry[3]) = (addr as u64, len as u64);
    // SAFETY: the first entry and the indexes lie in these mappings; the kernel looks at them in
    // the system call only.
    unsafe {
        entries.cast::<[u64; ENTRY_WORDS]>().write(entry);
        submissions.byte_add(array).cast::<u32>().write_volatile(0);
        submissions.byte_add(tail).cast::<u32>().write_volatile(1);
        let null = std::ptr::null::<u8>();
        let one = libc::syscall(libc::SYS_io_uring_enter, raw, 1, 0, 0, null, 0usize);
        assert_eq!(one, 1);
    }
    Box::new(move || {
        let null = std::ptr::null::<u8>();
        // SAFETY: a plain system call; the mappings are ours.
        unsafe {
            let fd = ring.as_raw_fd();
            libc::syscall(libc::SYS_io_uring_enter, fd, 0, 1, GET_EVENTS, null, 0usize);
            libc::munmap(submissions, PAGE);
            libc::munmap(entries, PAGE);
        }
        drop((file, ring));
    })
}

/// Speaks the protocol of linux/fuse.h for a file system of one file. `closes`: answers that it is
/// closed. `may_read` is asked before each read is answered, and ends it all.
fn serve(device: &OwnedFd, closes: bool, may_read: &mut dyn FnMut() -> bool) {
    const GETATTR: u32 = 3;
    const OPEN: u32 = 14;
    const READ: u32 = 15;
    const RELEASE: u32 = 18;
    const FLUSH: u32 = 25;
    const INIT: u32 = 26;
    /// FORGET, INTERRUPT, BATCH_FORGET.
    const NO_ANSWER: [u32; 3] = [2, 36, 42];
    const ENOSYS: i32 = -38;
    const DIRECT_IO: u32 = 1;
    const NO_FLUSH: u32 = 1 << 5;
    let mut buffer = vec![0u8; 1 << 18];
    loop {
        let Ok(_) = rustix::io::retry_on_intr(|| rustix::io::read(device, &mut buffer[..])) else {
            return;
        };
        let word = |at: usize| {
            let bytes: [u8; 4] = buffer[at..at + 4].try_into().expect("four bytes");
            u32::from_ne_bytes(bytes)
        };
        // `struct fuse_in_header` has 40 bytes; `unique` is at 8.
        let unique = [word(8), word(12)];
        let mut body: Vec<u32> = Vec::new();
        let mut error = 0;
        match word(4) {
            INIT => {
                // Version 7.31: FUSE_ASYNC_READ, FUSE_ASYNC_DIO; pages of max_write.
                body = vec![0; 16];
                (body[0], body[1], body[2]) = (7, 31, word(48));
                (body[3], body[5]) = (word(52) & (1 | 1 << 15), 1 << 17);
            }
            GETATTR => {
                // `struct fuse_attr_out`: ino, size at word 6, mode and nlink at 19 and 20.
                body = vec![0; 26];
                (body[4], body[6], body[19], body[20]) = (1, 1 << 30, 0o100_644, 1);
            }
            OPEN if closes => body = vec![0, 0, DIRECT_IO | NO_FLUSH, 0],
            OPEN => body = vec![0, 0, DIRECT_IO, 0],
            READ => {
                let size = word(40 + 16) as usize;
                if !may_read() {
                    return;
                }
                let bytes = [READ_BYTE; 4];
                body = vec![u32::from_ne_bytes(bytes); size / 4];
            }
            other if NO_ANSWER.contains(&other) => continue,
            RELEASE | FLUSH if closes => {}
            RELEASE | FLUSH => continue,
            _ => error = ENOSYS,
        }
        let mut answer = vec![0u32; 4];
        answer[0] = 16 + 4 * body.len() as u32;
        answer[1] = error as u32;
        (answer[2], answer[3]) = (unique[0], unique[1]);
        answer.extend(body);
        let bytes: Vec<u8> = answer.iter().flat_map(|word| word.to_ne_bytes()).collect();
        // Fails for what was interrupted meanwhile.
        let _ = rustix::io::write(device, &bytes);
    }
}
