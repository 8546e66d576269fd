//! The registers of a thread that was interrupted by a fault, which it has again when the handler
//! returns: `ucontext_t`, and the XSAVE area behind it (Intel SDM, volume 1, chapter 13; the
//! kernel's `asm/sigcontext.h`).

use std::arch::x86_64::__cpuid_count;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{c_int, ucontext_t};

use crate::decode::{Source, Target};
use crate::limits::WIDEST;

/// Indices of general registers in the context, by their numbers in instructions.
const GENERAL: [c_int; 16] = [
    libc::REG_RAX,
    libc::REG_RCX,
    libc::REG_RDX,
    libc::REG_RBX,
    libc::REG_RSP,
    libc::REG_RBP,
    libc::REG_RSI,
    libc::REG_RDI,
    libc::REG_R8,
    libc::REG_R9,
    libc::REG_R10,
    libc::REG_R11,
    libc::REG_R12,
    libc::REG_R13,
    libc::REG_R14,
    libc::REG_R15,
];

/// Numbers of registers that have a part of their own: in string instructions, or as the stack's.
pub(crate) const RAX: u8 = 0;
pub(crate) const RCX: u8 = 1;
pub(crate) const RSP: u8 = 4;
pub(crate) const RSI: u8 = 6;
pub(crate) const RDI: u8 = 7;

/// Bits of a page fault's error code (Intel SDM, volume 3, 4.7).
const ERROR_WRITE: u64 = 1 << 1;
const ERROR_FETCH: u64 = 1 << 4;
/// Flags of RFLAGS: each instruction traps, which is how debuggers go step by step; direction.
const TRAP: u64 = 1 << 8;
const DIRECTION: u64 = 1 << 10;

/// `FP_XSTATE_MAGIC1`: the area holds more than FXSAVE writes.
const MAGIC: u32 = 0x4650_5853;
/// Where the kernel says so, and which components there are (`struct _fpx_sw_bytes`).
const MAGIC_AT: usize = 464;
const COMPONENTS_AT: usize = 472;
/// XSTATE_BV: which components are not in their initial state.
const IN_USE_AT: usize = 512;
/// `xmm0` in the area of FXSAVE.
const XMM_AT: usize = 160;

/// A state component that holds parts of vector registers.
struct Component {
    /// Its number: bit of XSTATE_BV, leaf of CPUID.
    number: u32,
    /// The registers it has parts of, how many bytes of each, and from which on.
    first: u8,
    registers: u8,
    part: usize,
    from: usize,
    /// Where it lies in the area; 0 where the processor does not have it.
    at: AtomicUsize,
}

impl Component {
    const fn new(number: u32, first: u8, registers: u8, part: usize, from: usize) -> Component {
        Component {
            number,
            first,
            registers,
            part,
            from,
            at: AtomicUsize::new(0),
        }
    }
}

/// SSE's is elsewhere. AVX, the upper halves of ZMM0 to 15, and ZMM16 to 31.
static COMPONENTS: [Component; 3] = [
    Component::new(2, 0, 16, 16, 16),
    Component::new(6, 0, 16, 32, 32),
    Component::new(7, 16, 16, 64, 0),
];

/// Learns where the processor puts what. To be called before the first fault: in a virtual machine
/// CPUID costs microseconds.
pub(crate) fn prepare() {
    for component in &COMPONENTS {
        // Leaf 13: size in EAX, offset in EBX; zeros if there is no such component.
        let found = __cpuid_count(13, component.number);
        component.at.store(found.ebx as usize, Ordering::Relaxed);
    }
}

/// The registers of the interrupted thread.
pub(crate) struct Registers {
    context: *mut ucontext_t,
}

impl Registers {
    /// # Safety
    /// The kernel has passed the context to a handler that runs meanwhile.
    pub(crate) unsafe fn new(context: *mut ucontext_t) -> Registers {
        Registers { context }
    }

    fn word(&self, index: c_int) -> u64 {
        // SAFETY: the promise of `new`.
        unsafe { (*self.context).uc_mcontext.gregs[index as usize] as u64 }
    }

    fn set_word(&mut self, index: c_int, value: u64) {
        // SAFETY: the promise of `new`.
        unsafe { (*self.context).uc_mcontext.gregs[index as usize] = value as i64 };
    }

    /// Whether the access was a store.
    pub(crate) fn is_store(&self) -> bool {
        self.word(libc::REG_ERR) & ERROR_WRITE != 0
    }

    /// Whether it was the fetch of an instruction.
    pub(crate) fn is_fetch(&self) -> bool {
        self.word(libc::REG_ERR) & ERROR_FETCH != 0
    }

    /// Where the instruction lies.
    pub(crate) fn instruction(&self) -> usize {
        self.word(libc::REG_RIP) as usize
    }

    /// Goes on with the instruction behind one of `length` bytes.
    pub(crate) fn skip(&mut self, length: usize) {
        let next = self.word(libc::REG_RIP).wrapping_add(length as u64);
        self.set_word(libc::REG_RIP, next);
    }

    /// Goes on with the instruction at this address.
    pub(crate) fn set_instruction(&mut self, at: usize) {
        self.set_word(libc::REG_RIP, at as u64);
    }

    /// RFLAGS.
    pub(crate) fn flags(&self) -> u64 {
        self.word(libc::REG_EFL)
    }

    pub(crate) fn set_flags(&mut self, flags: u64) {
        self.set_word(libc::REG_EFL, flags);
    }

    /// Whether a debugger goes step by step.
    pub(crate) fn is_stepped(&self) -> bool {
        self.flags() & TRAP != 0
    }

    /// Whether string instructions go downwards.
    pub(crate) fn is_downward(&self) -> bool {
        self.flags() & DIRECTION != 0
    }

    /// The value of a general register.
    pub(crate) fn general(&self, register: u8) -> u64 {
        self.word(GENERAL[usize::from(register & 15)])
    }

    pub(crate) fn set_general(&mut self, register: u8, value: u64) {
        self.set_word(GENERAL[usize::from(register & 15)], value);
    }

    /// Puts a value into `width` bytes of a register from a bit on. What is 4 bytes wide clears the
    /// upper half (Intel SDM, volume 1, 3.4.1.1).
    pub(crate) fn set_part(&mut self, register: u8, bit: u8, width: u8, value: u64) {
        let mask = match width {
            1 => 0xff << bit,
            2 => 0xffff,
            _ => u64::MAX,
        };
        let value = if width == 4 {
            value & u64::from(u32::MAX)
        } else {
            value << bit
        };
        let kept = self.general(register) & !mask;
        self.set_general(register, kept | value & mask);
    }

    /// The area of the vector registers; null if the kernel has saved none.
    fn area(&self) -> *mut u8 {
        // SAFETY: the promise of `new`.
        unsafe { (*self.context).uc_mcontext.fpregs.cast() }
    }

    /// Where the part of a register lies in a component, if the area has the component.
    fn part(&self, component: &Component, register: u8) -> Option<usize> {
        let index = register.checked_sub(component.first)?;
        let at = component.at.load(Ordering::Relaxed);
        if index >= component.registers || at == 0 {
            return None;
        }
        let area = self.area();
        // SAFETY: FXSAVE's area is 512 bytes long, and the kernel fills its last 48.
        let (magic, components) = unsafe {
            let magic = area.add(MAGIC_AT).cast::<u32>().read_unaligned();
            let components = area.add(COMPONENTS_AT).cast::<u64>().read_unaligned();
            (magic, components)
        };
        let has = magic == MAGIC && components >> component.number & 1 != 0;
        has.then(|| at + usize::from(index) * component.part)
    }

    fn in_use(&self) -> *mut u64 {
        self.area().wrapping_add(IN_USE_AT).cast()
    }

    /// The bytes of a vector register, zeros where the processor has no such bytes.
    pub(crate) fn vector(&self, register: u8) -> [u8; WIDEST] {
        let mut bytes = [0; WIDEST];
        let area = self.area();
        if area.is_null() {
            return bytes;
        }
        if register < 16 {
            let at = XMM_AT + usize::from(register) * 16;
            // SAFETY: within FXSAVE's area.
            unsafe { ptr::copy_nonoverlapping(area.add(at), bytes.as_mut_ptr(), 16) };
        }
        for component in &COMPONENTS {
            let Some(at) = self.part(component, register) else {
                continue;
            };
            let into = &mut bytes[component.from..component.from + component.part];
            // SAFETY: the area has the component and so the word that says whether it is in use.
            unsafe {
                if self.in_use().read_unaligned() >> component.number & 1 != 0 {
                    let into = into.as_mut_ptr();
                    ptr::copy_nonoverlapping(area.add(at), into, component.part);
                }
            }
        }
        bytes
    }

    /// Sets the bytes of a vector register, as far as the processor has them.
    pub(crate) fn set_vector(&mut self, register: u8, bytes: &[u8; WIDEST]) {
        let area = self.area();
        if area.is_null() {
            return;
        }
        if register < 16 {
            let at = XMM_AT + usize::from(register) * 16;
            // SAFETY: within FXSAVE's area.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), area.add(at), 16) };
        }
        for component in &COMPONENTS {
            let Some(at) = self.part(component, register) else {
                continue;
            };
            let from = &bytes[component.from..component.from + component.part];
            let bit = 1 << component.number;
            // SAFETY: as in `vector`; the component is as long as its registers' parts together.
            unsafe {
                let in_use = self.in_use().read_unaligned();
                if in_use & bit == 0 {
                    if from.iter().all(|byte| *byte == 0) {
                        // As it is in its initial state.
                        continue;
                    }
                    let len = usize::from(component.registers) * component.part;
                    let start = area.add(component.at.load(Ordering::Relaxed));
                    start.write_bytes(0, len);
                    self.in_use().write_unaligned(in_use | bit);
                }
                ptr::copy_nonoverlapping(from.as_ptr(), area.add(at), component.part);
            }
        }
    }

    /// The bytes that are stored.
    pub(crate) fn value(&self, from: Source) -> [u8; WIDEST] {
        let mut bytes = [0; WIDEST];
        let word = match from {
            Source::Constant(value) => value,
            Source::General { register, bit } => self.general(register) >> bit,
            Source::Vector { register, byte } => {
                let vector = self.vector(register);
                let part = &vector[usize::from(byte)..];
                bytes[..part.len()].copy_from_slice(part);
                return bytes;
            }
        };
        bytes[..8].copy_from_slice(&word.to_le_bytes());
        bytes
    }

    /// Puts the first `len` bytes where they go.
    pub(crate) fn set(&mut self, into: Target, len: usize, bytes: &[u8; WIDEST]) {
        match into {
            Target::General {
                register,
                bit,
                width,
                ..
            } => self.set_part(register, bit, width, into.extend(len, bytes)),
            Target::Vector { register, .. } => {
                let mut vector = self.vector(register);
                into.change(&mut vector, len, bytes);
                self.set_vector(register, &vector);
            }
        }
    }
}
