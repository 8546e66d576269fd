//! A program that calls SISCI's functions as a script says, misuse included: handles of objects
//! that are gone, of other kinds, of nothing, any flags, offsets and sizes.
//!
//! What a script does not do: pass a pointer that leads nowhere. It may be null.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use causeway_sisci::Error;

use crate::calls::*;
use crate::script::Script;

/// Steps of one input.
const STEPS_MAX: usize = 120;
/// Objects of a kind that a script may make.
const EACH_MAX: usize = 16;
/// Bytes of the program's own memory that calls name.
const BUFFER: usize = 1 << 16;
/// Largest segment.
const SIZE_MAX: usize = 1 << 18;
/// What the process may have after an input: what is leaked shows.
const DESCRIPTORS_MAX: usize = 150;
const MAPPINGS_MAX: usize = 600;
/// Inputs between two looks at that.
const LOOK_EVERY: usize = 32;
/// Rounds in which all that was made is removed: some objects stand on others.
const ROUNDS: usize = 8;
/// `SCI_LOCAL_HOST`
const LOCAL_HOST: c_uint = 0xffff_ffff;

static CALLED: AtomicU32 = AtomicU32::new(0);

/// The callback of all objects: the interface's own types differ in arguments that it leaves alone.
unsafe extern "C" fn called() -> c_int {
    CALLED.fetch_add(1, Ordering::Relaxed);
    0
}

/// Memory can be registered by pages only.
#[derive(Clone, Copy)]
#[repr(align(4096))]
struct Page(#[allow(dead_code, reason = "only its address counts")] [u8; 4096]);

struct Bench {
    /// All that were ever made.
    handles: Vec<(Kind, u64)>,
    buffer: Vec<Page>,
    numbers: Vec<c_uint>,
}

/// `data` is a script: each step is a byte that says what happens, and its operands.
pub fn run(data: &[u8]) {
    let mut script = Script { rest: data };
    let mut error = 0;
    // SAFETY: a place for the error.
    unsafe { SCIInitialize(0, &raw mut error) };
    assert_eq!(error, 0);
    let mut bench = Bench {
        handles: Vec::new(),
        buffer: vec![Page([7; 4096]); BUFFER / 4096],
        numbers: Vec::new(),
    };
    bench.open(0);
    for _ in 0..STEPS_MAX {
        let Some(step) = script.byte() else { break };
        bench.step(step, &mut script);
    }
    bench.end();
    look_at_what_is_left();
}

fn look_at_what_is_left() {
    static INPUTS: AtomicUsize = AtomicUsize::new(0);
    let number = INPUTS.fetch_add(1, Ordering::Relaxed);
    if number.is_multiple_of(LOOK_EVERY) {
        let open = std::fs::read_dir("/proc/self/fd").expect("procfs").count();
        assert!(open < DESCRIPTORS_MAX, "{open} descriptors are open");
        let maps = std::fs::read_to_string("/proc/self/maps").expect("procfs");
        let mapped = maps.lines().count();
        assert!(mapped < MAPPINGS_MAX, "{mapped} mappings are there");
    }
}

/// A number that is mostly small.
fn number(script: &mut Script<'_>) -> usize {
    match script.byte().unwrap_or(0) {
        small @ 0..64 => usize::from(small),
        pages @ 64..128 => usize::from(pages - 64) * 1024,
        128 => usize::MAX,
        129 => usize::MAX - 63,
        130 => 1 << 40,
        131 => u32::MAX as usize,
        132 => 1 << 31,
        words => usize::from(words) * 8,
    }
}

/// Flags: mostly none, or one or two.
fn flags(script: &mut Script<'_>) -> c_uint {
    match script.byte().unwrap_or(0) {
        bit @ 0..32 => 1 << bit,
        few @ 32..96 => c_uint::from(few - 32),
        96..100 => script.word() as c_uint,
        _ => 0,
    }
}

impl Bench {
    /// A handle: mostly of this kind, and mostly one that is alive.
    fn pick(&self, kind: Kind, script: &mut Script<'_>) -> u64 {
        let choice = script.byte().unwrap_or(0);
        let any = |choice: u8| self.handles[usize::from(choice) % self.handles.len()].1;
        match choice {
            0xff => 0,
            0xfe => script.word(),
            0xfd => any(choice) ^ 1 << (script.byte().unwrap_or(0) % 64),
            0xe0..0xfd => any(script.byte().unwrap_or(0)),
            _ => {
                let mut of_kind = self
                    .handles
                    .iter()
                    .rev()
                    .filter(|(other, _)| *other == kind);
                let count = of_kind.clone().count();
                let chosen = of_kind.nth(usize::from(choice) % count.max(1));
                chosen.map_or(0, |(_, handle)| *handle)
            }
        }
    }

    /// What a call said: one of the interface's errors.
    fn said(&self, error: u32) -> bool {
        assert!(Error(error).name().is_some(), "error {error:#x}");
        error == 0
    }

    /// A call that makes an object.
    fn make(&mut self, kind: Kind, call: impl FnOnce(&mut Self, *mut u64, *mut u32)) {
        if self
            .handles
            .iter()
            .filter(|(other, _)| *other == kind)
            .count()
            >= EACH_MAX
        {
            return;
        }
        let (mut handle, mut error) = (0, u32::MAX);
        call(self, &raw mut handle, &raw mut error);
        if self.said(error) {
            assert_ne!(handle, 0, "{kind:?} without a handle");
            self.handles.push((kind, handle));
        } else {
            assert_eq!(handle, 0, "{kind:?} that was not made has a handle");
        }
    }

    /// Any other call.
    fn call(&mut self, call: impl FnOnce(&mut Self, *mut u32)) -> bool {
        let mut error = u32::MAX;
        call(self, &raw mut error);
        self.said(error)
    }

    fn open(&mut self, given: c_uint) {
        // SAFETY: places for handle and error.
        self.make(Kind::Descriptor, |_, out, error| unsafe {
            SCIOpen(out, given, error);
        });
    }

    fn callback(script: &mut Script<'_>) -> Callback {
        let there = script.byte().unwrap_or(0) & 1 != 0;
        there.then_some(called as unsafe extern "C" fn() -> c_int)
    }

    fn node(script: &mut Script<'_>) -> c_uint {
        match script.byte().unwrap_or(0) {
            node @ 1..8 => c_uint::from(node) * 4,
            _ => LOCAL_HOST,
        }
    }

    /// An adapter: mostly the one that there is.
    fn adapter(script: &mut Script<'_>) -> c_uint {
        c_uint::from(script.byte().unwrap_or(0).saturating_sub(239))
    }

    fn step(&mut self, step: u8, script: &mut Script<'_>) {
        match step % 48 {
            0 => self.open(flags(script)),
            1..5 => self.create_segment(script),
            5..9 => self.change_segment(script),
            9..12 => self.connect_segment(script),
            12..16 => self.map(script),
            16..18 => self.create_interrupt(script),
            18..20 => self.connect_interrupt(script),
            20..23 => self.signal(script),
            23 => self.interrupt_flag(script),
            24..26 => self.sequence(script),
            26..30 => self.copy(script),
            30 => self.create_queue(script),
            31..36 => self.transfer(script),
            36 => self.wait(script),
            37 => self.query(script),
            38 => self.ready_segment(script),
            _ => {
                let kind = KINDS[usize::from(script.byte().unwrap_or(0)) % KINDS.len()];
                let (handle, given) = (self.pick(kind, script), flags(script));
                self.remove(kind, handle, given);
            }
        }
    }

    fn create_segment(&mut self, script: &mut Script<'_>) {
        let sd = self.pick(Kind::Descriptor, script);
        let id = c_uint::from(script.byte().unwrap_or(0) % 8);
        let size = number(script).min(SIZE_MAX);
        let size = if script.byte() == Some(1) {
            usize::MAX
        } else {
            size
        };
        let (function, given) = (Self::callback(script), flags(script));
        // SAFETY: places for handle and error; the callback takes what it is given.
        self.make(Kind::Local, |_, out, error| unsafe {
            SCICreateSegment(sd, out, id, size, function, ptr::null_mut(), given, error);
        });
    }

    /// A segment that others can connect to, connected and mapped.
    fn ready_segment(&mut self, script: &mut Script<'_>) {
        let id = c_uint::from(script.byte().unwrap_or(0) % 8);
        let sd = self.handles[0].1;
        // SAFETY: places for handles and errors.
        unsafe {
            self.make(Kind::Local, |_, out, error| {
                SCICreateSegment(sd, out, id, 8192, None, ptr::null_mut(), 0, error);
            });
            let segment = self.pick(Kind::Local, &mut Script { rest: &[0] });
            self.call(|_, error| SCIPrepareSegment(segment, 0, 0, error));
            self.call(|_, error| SCISetSegmentAvailable(segment, 0, 0, error));
            let none = ptr::null_mut();
            self.make(Kind::Remote, |_, out, error| {
                SCIConnectSegment(sd, out, LOCAL_HOST, id, 0, None, none, 1, 0, error);
            });
            let remote = self.pick(Kind::Remote, &mut Script { rest: &[0] });
            self.make(Kind::Map, |_, out, error| {
                SCIMapRemoteSegment(remote, out, 0, 4096, none, 0, error);
            });
        }
    }

    fn change_segment(&mut self, script: &mut Script<'_>) {
        let what = script.byte().unwrap_or(0);
        let segment = self.pick(Kind::Local, script);
        let (adapter, given) = (Self::adapter(script), flags(script));
        let sd = self.pick(Kind::Descriptor, script);
        // SAFETY: places for what is written; memory that stays there as long as the segment.
        self.call(|bench, error| unsafe {
            match what % 8 {
                0 | 1 => SCIPrepareSegment(segment, adapter, given, error),
                2 | 3 => SCISetSegmentAvailable(segment, adapter, given, error),
                4 => SCISetSegmentUnavailable(segment, adapter, given, error),
                5 => SCIShareSegment(segment, given, error),
                6 => {
                    let buffer = bench.buffer.as_mut_ptr().cast();
                    let size = number(script).min(BUFFER);
                    SCIRegisterSegmentMemory(buffer, size, segment, given, error);
                }
                _ => {
                    let (mut out, mut size) = (0, 0);
                    let (none, id) = (ptr::null_mut(), c_uint::from(what >> 5));
                    let (out_at, size_at) = (&raw mut out, &raw mut size);
                    SCIAttachLocalSegment(sd, out_at, id, size_at, None, none, given, error);
                    if out != 0 {
                        bench.handles.push((Kind::Local, out));
                    }
                }
            }
        });
    }

    fn connect_segment(&mut self, script: &mut Script<'_>) {
        let sd = self.pick(Kind::Descriptor, script);
        let (node, adapter) = (Self::node(script), Self::adapter(script));
        let id = c_uint::from(script.byte().unwrap_or(0) % 8);
        let (function, given) = (Self::callback(script), flags(script));
        // SAFETY: places for handle and error; the callback takes what it is given.
        self.make(Kind::Remote, |_, out, error| unsafe {
            let none = ptr::null_mut();
            SCIConnectSegment(sd, out, node, id, adapter, function, none, 1, given, error);
        });
    }

    fn map(&mut self, script: &mut Script<'_>) {
        let is_local = script.byte().unwrap_or(0) & 1 != 0;
        let kind = if is_local { Kind::Local } else { Kind::Remote };
        let segment = self.pick(kind, script);
        let (offset, size, given) = (number(script), number(script), flags(script));
        // SAFETY: places for handle and error; no address is given.
        self.make(Kind::Map, |_, out, error| unsafe {
            let none = ptr::null_mut();
            let at = match is_local {
                true => SCIMapLocalSegment(segment, out, offset, size, none, given, error),
                false => SCIMapRemoteSegment(segment, out, offset, size, none, given, error),
            };
            assert_eq!(at.is_null(), *error != 0, "a map, and an error");
            assert!(at.is_null() || SCIGetMapPointer(*out) == at);
        });
    }

    fn create_interrupt(&mut self, script: &mut Script<'_>) {
        let has_data = script.byte().unwrap_or(0) & 1 != 0;
        let sd = self.pick(Kind::Descriptor, script);
        let (adapter, function) = (Self::adapter(script), Self::callback(script));
        let mut chosen = c_uint::from(script.byte().unwrap_or(0) % 8);
        let (given, none) = (flags(script), ptr::null_mut());
        let at = &raw mut chosen;
        let kind = if has_data {
            Kind::Data
        } else {
            Kind::Interrupt
        };
        // SAFETY: places for handle, number and error; the callback takes what it is given.
        self.make(kind, |_, out, error| unsafe {
            match has_data {
                true => SCICreateDataInterrupt(sd, out, adapter, at, function, none, given, error),
                false => SCICreateInterrupt(sd, out, adapter, at, function, none, given, error),
            }
        });
        self.numbers.push(chosen);
    }

    fn connect_interrupt(&mut self, script: &mut Script<'_>) {
        let has_data = script.byte().unwrap_or(0) & 1 != 0;
        let sd = self.pick(Kind::Descriptor, script);
        let (node, adapter) = (Self::node(script), Self::adapter(script));
        let choice = usize::from(script.byte().unwrap_or(0));
        let to = self
            .numbers
            .get(choice % self.numbers.len().max(1))
            .copied();
        let (to, given) = (to.unwrap_or(3), flags(script));
        let kind = if has_data {
            Kind::RemoteData
        } else {
            Kind::RemoteInterrupt
        };
        // SAFETY: places for handle and error.
        self.make(kind, |_, out, error| unsafe {
            match has_data {
                true => SCIConnectDataInterrupt(sd, out, node, adapter, to, 1, given, error),
                false => SCIConnectInterrupt(sd, out, node, adapter, to, 1, given, error),
            }
        });
    }

    fn signal(&mut self, script: &mut Script<'_>) {
        let what = script.byte().unwrap_or(0);
        let plain = self.pick(Kind::RemoteInterrupt, script);
        let data = self.pick(Kind::RemoteData, script);
        let own = self.pick(Kind::Interrupt, script);
        let (length, given) = (number(script).min(BUFFER), flags(script));
        // SAFETY: places for what is written; the buffer has as many bytes.
        self.call(|bench, error| unsafe {
            let buffer: *mut c_void = bench.buffer.as_mut_ptr().cast();
            let buffer = if what & 16 == 0 {
                buffer
            } else {
                ptr::null_mut()
            };
            match what % 8 {
                0..3 => SCITriggerInterrupt(plain, given, error),
                3..6 => SCITriggerDataInterrupt(data, buffer, length as c_uint, given, error),
                6 => SCIEnableConditionalInterrupt(own, given, error),
                _ => SCIDisableConditionalInterrupt(own, given, error),
            }
        });
    }

    fn interrupt_flag(&mut self, script: &mut Script<'_>) {
        let segment = self.pick(Kind::Local, script);
        let (adapter, offset) = (Self::adapter(script), number(script) as c_uint);
        let (function, given) = (Self::callback(script), flags(script));
        // SAFETY: places for handle and error; the callback takes what it is given.
        self.make(Kind::Interrupt, |_, out, error| unsafe {
            let none = ptr::null_mut();
            SCIRegisterInterruptFlag(adapter, out, segment, offset, function, none, given, error);
        });
    }

    fn sequence(&mut self, script: &mut Script<'_>) {
        let what = script.byte().unwrap_or(0);
        let map = self.pick(Kind::Map, script);
        let sequence = self.pick(Kind::Sequence, script);
        let given = flags(script);
        // SAFETY: places for handle and error.
        unsafe {
            if what & 3 == 0 {
                self.make(Kind::Sequence, |_, out, error| {
                    SCICreateMapSequence(map, out, given, error);
                });
                return;
            }
            self.call(|_, error| {
                let status = match what & 1 {
                    0 => SCIStartSequence(sequence, given, error),
                    _ => SCICheckSequence(sequence, given, error),
                };
                assert!((0..=3).contains(&status), "status {status}");
            });
        }
    }

    fn copy(&mut self, script: &mut Script<'_>) {
        let what = script.byte().unwrap_or(0);
        let maps = [(); 2].map(|()| self.pick(Kind::Map, script));
        let sequence = if what & 64 == 0 {
            0
        } else {
            self.pick(Kind::Sequence, script)
        };
        let (from, to) = (number(script), number(script));
        // The program has so many bytes; what a segment has, the library knows.
        let (size, given) = (number(script), flags(script));
        let fits = size.min(BUFFER);
        // SAFETY: places for the error; the buffer has as many bytes; an address is a map's.
        self.call(|bench, error| unsafe {
            let buffer = bench.buffer.as_mut_ptr().cast();
            match what % 3 {
                0 => SCIMemCpy(sequence, buffer, maps[0], to, fits, given, error),
                1 => {
                    let remote = SCIGetMapPointer(maps[0]).wrapping_byte_add(to);
                    SCIMemWrite(buffer, remote, fits, given, error);
                }
                _ => SCITransferBlock(maps[0], from, maps[1], to, size, given, error),
            }
        });
    }

    fn create_queue(&mut self, script: &mut Script<'_>) {
        let sd = self.pick(Kind::Descriptor, script);
        let (adapter, entries) = (Self::adapter(script), number(script) as c_uint);
        let given = flags(script);
        // SAFETY: places for handle and error.
        self.make(Kind::Queue, |_, out, error| unsafe {
            SCICreateDMAQueue(sd, out, adapter, entries, given, error);
        });
    }

    fn transfer(&mut self, script: &mut Script<'_>) {
        let what = script.byte().unwrap_or(0);
        let queue = self.pick(Kind::Queue, script);
        let (local, remote) = (
            self.pick(Kind::Local, script),
            self.pick(Kind::Remote, script),
        );
        let (from, to, size) = (number(script), number(script), number(script));
        let (function, given) = (Self::callback(script), flags(script));
        let none = ptr::null_mut();
        // SAFETY: places for the error; the buffer has as many bytes, and lives until the queue is
        // removed, which waits for what is under way.
        self.call(|bench, error| unsafe {
            let buffer = bench.buffer.as_mut_ptr().cast();
            match what % 8 {
                0..3 => SCIStartDmaTransfer(
                    queue, local, remote, from, size, to, function, none, given, error,
                ),
                3 => SCIStartDmaTransferMem(
                    queue,
                    buffer,
                    remote,
                    size.min(BUFFER),
                    to,
                    function,
                    none,
                    given,
                    error,
                ),
                4 => {
                    let [from, to, size] = [from, to, size].map(|n| n as c_uint);
                    SCIEnqueueDMATransfer(queue, local, remote, from, to, size, given, error);
                }
                5 => SCIPostDMAQueue(queue, function, none, given, error),
                6 => SCIResetDMAQueue(queue, given, error),
                _ => SCIAbortDMAQueue(queue, given, error),
            }
        });
    }

    /// Waits for what has happened already, or not at all.
    fn wait(&mut self, script: &mut Script<'_>) {
        let what = script.byte().unwrap_or(0);
        let kinds = [
            Kind::Local,
            Kind::Remote,
            Kind::Interrupt,
            Kind::Data,
            Kind::Queue,
        ];
        let kind = kinds[usize::from(what) % kinds.len()];
        let (handle, given) = (self.pick(kind, script), flags(script));
        let (mut one, mut two, mut status) = (0, 0, 0);
        let mut length = number(script).min(BUFFER) as c_uint;
        // SAFETY: places for what is written; the buffer has as many bytes.
        self.call(|bench, error| unsafe {
            let (one, two) = (&raw mut one, &raw mut two);
            let buffer = bench.buffer.as_mut_ptr().cast();
            match kind {
                Kind::Local => _ = SCIWaitForLocalSegmentEvent(handle, one, two, 0, given, error),
                Kind::Remote => {
                    SCIWaitForRemoteSegmentEvent(handle, &raw mut status, 0, given, error);
                }
                Kind::Interrupt => SCIWaitForInterrupt(handle, 0, given, error),
                Kind::Data => {
                    SCIWaitForDataInterrupt(handle, buffer, &raw mut length, 0, given, error);
                }
                _ => _ = SCIWaitForDMAQueue(handle, 0, given, error),
            }
        });
    }

    fn query(&mut self, script: &mut Script<'_>) {
        // SAFETY: these take any handle.
        unsafe {
            SCIGetLocalSegmentSize(self.pick(Kind::Local, script));
            SCIGetRemoteSegmentSize(self.pick(Kind::Remote, script));
            SCIGetMapPointer(self.pick(Kind::Map, script));
            SCIDMAQueueState(self.pick(Kind::Queue, script));
        }
    }

    /// Removes an object, or fails to. A handle may be of any kind.
    fn remove(&mut self, kind: Kind, handle: u64, given: c_uint) -> bool {
        // SAFETY: a place for the error.
        self.call(|_, error| unsafe {
            match kind {
                Kind::Descriptor => SCIClose(handle, given, error),
                Kind::Local => SCIRemoveSegment(handle, given, error),
                Kind::Remote => SCIDisconnectSegment(handle, given, error),
                Kind::Map => SCIUnmapSegment(handle, given, error),
                Kind::Interrupt => SCIRemoveInterrupt(handle, given, error),
                Kind::RemoteInterrupt => SCIDisconnectInterrupt(handle, given, error),
                Kind::Data => SCIRemoveDataInterrupt(handle, given, error),
                Kind::RemoteData => SCIDisconnectDataInterrupt(handle, given, error),
                Kind::Sequence => SCIRemoveSequence(handle, given, error),
                Kind::Queue => SCIRemoveDMAQueue(handle, given, error),
            }
        })
    }

    /// Removes all there is: each descriptor can be closed in the end, and nothing twice.
    fn end(&mut self) {
        for _ in 0..ROUNDS {
            for kind in KINDS {
                let all = self.handles.iter().filter(|(other, _)| *other == kind);
                let all: Vec<u64> = all.map(|(_, handle)| *handle).collect();
                for handle in all {
                    self.remove(kind, handle, 0);
                }
            }
        }
        for (kind, handle) in self.handles.clone() {
            let mut error = 0;
            if kind != Kind::Descriptor {
                continue;
            }
            // SAFETY: a place for the error.
            unsafe { SCIClose(handle, 0, &raw mut error) };
            assert_eq!(
                Error(error),
                Error::ILLEGAL_PARAMETER,
                "a descriptor is left"
            );
        }
        self.handles.clear();
        self.open(0);
        let (kind, last) = *self.handles.last().expect("one was opened");
        assert!(self.remove(kind, last, 0));
    }
}
