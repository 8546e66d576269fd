//! The functions of SISCI that the harness calls, by the names that programs link, and the kinds of
//! objects that they make.

use std::ffi::{c_int, c_void};

/// Where a handle, a number or an error goes; memory.
pub type Out = *mut u64;
pub type Out32 = *mut u32;
pub type Memory = *mut c_void;
pub type Callback = Option<unsafe extern "C" fn() -> c_int>;

macro_rules! interface {
    ($(fn $name:ident($($arg:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        unsafe extern "C" {
            $(pub fn $name($($arg: $type),*) $(-> $result)?;)*
        }
    };
}

interface! {
    fn SCIInitialize(flags: u32, error: Out32);
    fn SCIOpen(sd: Out, flags: u32, error: Out32);
    fn SCIClose(sd: u64, flags: u32, error: Out32);
    fn SCICreateSegment(
        sd: u64, out: Out, id: u32, size: usize, f: Callback, arg: Memory, flags: u32,
        error: Out32
    );
    fn SCIPrepareSegment(segment: u64, adapter: u32, flags: u32, error: Out32);
    fn SCISetSegmentAvailable(segment: u64, adapter: u32, flags: u32, error: Out32);
    fn SCISetSegmentUnavailable(segment: u64, adapter: u32, flags: u32, error: Out32);
    fn SCIRemoveSegment(segment: u64, flags: u32, error: Out32);
    fn SCIShareSegment(segment: u64, flags: u32, error: Out32);
    fn SCIAttachLocalSegment(
        sd: u64, out: Out, id: u32, size: *mut usize, f: Callback, arg: Memory, flags: u32,
        error: Out32
    );
    fn SCIRegisterSegmentMemory(
        address: Memory, size: usize, segment: u64, flags: u32, error: Out32
    );
    fn SCIMapLocalSegment(
        segment: u64, out: Out, offset: usize, size: usize, address: Memory, flags: u32,
        error: Out32
    ) -> Memory;
    fn SCIWaitForLocalSegmentEvent(
        segment: u64, node: Out32, adapter: Out32, timeout: u32, flags: u32, error: Out32
    ) -> c_int;
    fn SCIConnectSegment(
        sd: u64, out: Out, node: u32, id: u32, adapter: u32, f: Callback, arg: Memory,
        timeout: u32, flags: u32, error: Out32
    );
    fn SCIDisconnectSegment(segment: u64, flags: u32, error: Out32);
    fn SCIMapRemoteSegment(
        segment: u64, out: Out, offset: usize, size: usize, address: Memory, flags: u32,
        error: Out32
    ) -> Memory;
    fn SCIUnmapSegment(map: u64, flags: u32, error: Out32);
    fn SCIWaitForRemoteSegmentEvent(
        segment: u64, status: Out32, timeout: u32, flags: u32, error: Out32
    ) -> c_int;
    fn SCIGetLocalSegmentSize(segment: u64) -> usize;
    fn SCIGetRemoteSegmentSize(segment: u64) -> usize;
    fn SCIGetMapPointer(map: u64) -> Memory;
    fn SCICreateInterrupt(
        sd: u64, out: Out, adapter: u32, number: Out32, f: Callback, arg: Memory, flags: u32,
        error: Out32
    );
    fn SCIRemoveInterrupt(interrupt: u64, flags: u32, error: Out32);
    fn SCIWaitForInterrupt(interrupt: u64, timeout: u32, flags: u32, error: Out32);
    fn SCIConnectInterrupt(
        sd: u64, out: Out, node: u32, adapter: u32, number: u32, timeout: u32, flags: u32,
        error: Out32
    );
    fn SCIDisconnectInterrupt(interrupt: u64, flags: u32, error: Out32);
    fn SCITriggerInterrupt(interrupt: u64, flags: u32, error: Out32);
    fn SCICreateDataInterrupt(
        sd: u64, out: Out, adapter: u32, number: Out32, f: Callback, arg: Memory, flags: u32,
        error: Out32
    );
    fn SCIRemoveDataInterrupt(interrupt: u64, flags: u32, error: Out32);
    fn SCIWaitForDataInterrupt(
        interrupt: u64, data: Memory, length: Out32, timeout: u32, flags: u32, error: Out32
    );
    fn SCIConnectDataInterrupt(
        sd: u64, out: Out, node: u32, adapter: u32, number: u32, timeout: u32, flags: u32,
        error: Out32
    );
    fn SCIDisconnectDataInterrupt(interrupt: u64, flags: u32, error: Out32);
    fn SCITriggerDataInterrupt(
        interrupt: u64, data: *const c_void, length: u32, flags: u32, error: Out32
    );
    fn SCIRegisterInterruptFlag(
        adapter: u32, out: Out, segment: u64, offset: u32, f: Callback, arg: Memory, flags: u32,
        error: Out32
    );
    fn SCIEnableConditionalInterrupt(interrupt: u64, flags: u32, error: Out32);
    fn SCIDisableConditionalInterrupt(interrupt: u64, flags: u32, error: Out32);
    fn SCICreateMapSequence(map: u64, out: Out, flags: u32, error: Out32);
    fn SCIRemoveSequence(sequence: u64, flags: u32, error: Out32);
    fn SCIStartSequence(sequence: u64, flags: u32, error: Out32) -> c_int;
    fn SCICheckSequence(sequence: u64, flags: u32, error: Out32) -> c_int;
    fn SCIMemCpy(
        sequence: u64, memory: Memory, map: u64, offset: usize, size: usize, flags: u32,
        error: Out32
    );
    fn SCIMemWrite(memory: Memory, remote: Memory, size: usize, flags: u32, error: Out32);
    fn SCITransferBlock(
        from: u64, offset: usize, to: u64, to_offset: usize, size: usize, flags: u32,
        error: Out32
    );
    fn SCICreateDMAQueue(sd: u64, out: Out, adapter: u32, entries: u32, flags: u32, error: Out32);
    fn SCIRemoveDMAQueue(queue: u64, flags: u32, error: Out32);
    fn SCIAbortDMAQueue(queue: u64, flags: u32, error: Out32);
    fn SCIDMAQueueState(queue: u64) -> c_int;
    fn SCIWaitForDMAQueue(queue: u64, timeout: u32, flags: u32, error: Out32) -> c_int;
    fn SCIStartDmaTransfer(
        queue: u64, local: u64, remote: u64, offset: usize, size: usize, remote_offset: usize,
        f: Callback, arg: Memory, flags: u32, error: Out32
    );
    fn SCIStartDmaTransferMem(
        queue: u64, local: Memory, remote: u64, size: usize, remote_offset: usize, f: Callback,
        arg: Memory, flags: u32, error: Out32
    );
    fn SCIEnqueueDMATransfer(
        queue: u64, local: u64, remote: u64, offset: u32, remote_offset: u32, size: u32,
        flags: u32, error: Out32
    ) -> c_int;
    fn SCIPostDMAQueue(queue: u64, f: Callback, arg: Memory, flags: u32, error: Out32);
    fn SCIResetDMAQueue(queue: u64, flags: u32, error: Out32);
}

/// Kinds of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Descriptor,
    Local,
    Remote,
    Map,
    Interrupt,
    RemoteInterrupt,
    Data,
    RemoteData,
    Sequence,
    Queue,
}

/// Those that stand on others first.
pub const KINDS: [Kind; 10] = [
    Kind::Sequence,
    Kind::Queue,
    Kind::Map,
    Kind::RemoteInterrupt,
    Kind::RemoteData,
    Kind::Interrupt,
    Kind::Data,
    Kind::Remote,
    Kind::Local,
    Kind::Descriptor,
];
