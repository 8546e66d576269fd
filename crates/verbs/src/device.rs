//! The device list and contexts: `ibv_get_device_list(3)`, `ibv_open_device(3)` and their kin.

use crate::abi::{
    ABI_IS_EXTENDED, IbvContext, IbvContextOps, IbvDevice, NODE_CA, TRANSPORT_IB, VerbsContext,
};
use crate::objects::{self, ContextObject};
use crate::strings::fixed;
use crate::{cq, cq_ex, device_attr, errno, mw, pd, poll, port, qp, qp_ex, srq, wr};
use causeway_device as dev;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr;
use core::sync::atomic::AtomicU32;
use std::io::Write;

/// `st_rdev` of `/dev/null`: `Documentation/admin-guide/devices.txt`.
const NULL_DEVICE: libc::dev_t = libc::makedev(1, 3);

/// The device's name, as `ibv_devices(1)` prints it.
const NAME: &CStr = c"cway0";
/// The name of its character device.
const DEV_NAME: &CStr = c"uverbs0";
/// Its directory in the class of character devices.
const DEV_PATH: &CStr = c"/sys/class/infiniband_verbs/uverbs0";
/// Its directory in the class of RDMA devices.
const IBDEV_PATH: &CStr = c"/sys/class/infiniband/cway0";
/// Zeroed words after the device: providers' `*_is_supported` calls read rdma-core's private fields
/// there (`struct verbs_device`) and must find that the device is not theirs.
const PRIVATE_WORDS: usize = 32;

/// A device and the private fields that some readers expect behind it.
#[repr(C)]
struct DeviceObject {
    device: IbvDevice,
    private: [usize; PRIVATE_WORDS],
}

/// The one device. Callers read it, the list functions hand out its address, nobody writes it.
static DEVICE: DeviceObject = DeviceObject {
    device: IbvDevice {
        ops: [0; 2],
        node_type: NODE_CA,
        transport_type: TRANSPORT_IB,
        name: fixed(NAME),
        dev_name: fixed(DEV_NAME),
        dev_path: fixed(DEV_PATH),
        ibdev_path: fixed(IBDEV_PATH),
    },
    private: [0; PRIVATE_WORDS],
};

/// The address of the device as C callers know it.
fn device_pointer() -> *mut IbvDevice {
    (&raw const DEVICE.device).cast_mut()
}

/// `ibv_get_device_list(3)`: always the one device; asks nobody.
pub(crate) unsafe extern "C" fn get_device_list(count: *mut c_int) -> *mut *mut IbvDevice {
    // SAFETY: allocates a null-terminated array of one pointer.
    let list = unsafe { libc::calloc(2, size_of::<*mut IbvDevice>()) }.cast::<*mut IbvDevice>();
    let found = if list.is_null() {
        errno::set(libc::ENOMEM);
        0
    } else {
        // SAFETY: the array has two elements.
        unsafe { list.write(device_pointer()) };
        1
    };
    if !count.is_null() {
        // SAFETY: the caller passes null or a valid pointer to int.
        unsafe { count.write(found) };
    }
    list
}

/// `ibv_free_device_list(3)`
pub(crate) unsafe extern "C" fn free_device_list(list: *mut *mut IbvDevice) {
    // SAFETY: the list came from calloc in get_device_list.
    unsafe { libc::free(list.cast::<c_void>()) };
}

/// `ibv_get_device_name(3)`
pub(crate) extern "C" fn get_device_name(_device: *mut IbvDevice) -> *const c_char {
    NAME.as_ptr()
}

/// `ibv_get_device_guid(3)`, network byte order
pub(crate) extern "C" fn get_device_guid(_device: *mut IbvDevice) -> u64 {
    dev::node_guid()
}

/// `ibv_get_device_index(3)`: -1, since the kernel has no index for it.
pub(crate) extern "C" fn get_device_index(_device: *mut IbvDevice) -> c_int {
    -1
}

/// `ibv_open_device(3)`
pub(crate) unsafe extern "C" fn open_device(device: *mut IbvDevice) -> *mut IbvContext {
    if device != device_pointer() {
        return errno::null(libc::ENODEV);
    }
    crate::fork::init_from_environment();
    let context = match dev::Context::open() {
        Ok(context) => context,
        Err(error) => {
            // Programs report that they got no context, never why. A standard error that can't be
            // written to is nobody's to read.
            let _ = writeln!(
                std::io::stderr(),
                "causeway: cannot open cway0: {error} (see `causeway doctor`)"
            );
            return errno::null(error.errno.0);
        }
    };
    let verbs = operations(plain_context(context.async_fd()));
    let object = ContextObject {
        verbs,
        dev: context,
        pid: std::process::id(),
        next_handle: AtomicU32::new(1),
        epoch: cq_ex::epoch(),
    };
    let object = objects::publish(objects::allocate(), object);
    // SAFETY: just published.
    unsafe { objects::context_pointer(object) }
}

/// The structure every program sees, with the operations that inline functions call through it.
fn plain_context(async_fd: c_int) -> IbvContext {
    // SAFETY: opens a file. Programs set flags on cmd_fd, which is a uverbs node with hardware; the
    // null device takes flags and refuses every ioctl.
    let cmd_fd = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
    IbvContext {
        device: device_pointer(),
        ops: IbvContextOps {
            compat_query_device: Some(device_attr::query_device),
            compat_query_port: Some(port::query_port),
            alloc_mw: Some(mw::alloc_mw),
            bind_mw: Some(mw::bind_mw),
            dealloc_mw: Some(mw::dealloc_mw),
            poll_cq: Some(poll::poll_cq),
            req_notify_cq: Some(cq::req_notify_cq),
            post_srq_recv: Some(wr::post_srq_recv),
            post_send: Some(wr::post_send),
            post_recv: Some(wr::post_recv),
            ..IbvContextOps::default()
        },
        cmd_fd,
        async_fd,
        num_comp_vectors: completion_vectors(),
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        abi_compat: ABI_IS_EXTENDED,
    }
}

/// The extended operations, before the context.
fn operations(context: IbvContext) -> VerbsContext {
    VerbsContext {
        memory_ops: [0; 6],
        query_port: Some(port::query_port_ex),
        memory_and_flow: [0; 12],
        modify_qp_rate_limit: Some(qp::modify_qp_rate_limit),
        alloc_parent_domain: Some(pd::alloc_parent_domain),
        dealloc_td: Some(pd::dealloc_td),
        alloc_td: Some(pd::alloc_td),
        queues: [0; 7],
        query_rt_values: Some(device_attr::query_rt_values),
        create_cq_ex: Some(cq_ex::create_cq_ex),
        private: 0,
        query_device_ex: Some(device_attr::query_device_ex),
        flow_and_open: [0; 5],
        create_qp_ex: Some(qp_ex::create_qp_ex),
        get_srq_num: Some(srq::get_srq_num),
        create_srq_ex: Some(srq::create_srq_ex),
        xrcd: [0; 3],
        sz: size_of::<VerbsContext>(),
        context,
    }
}

/// Completion vectors are a hint of where to run; one per processor, as hardware offers.
fn completion_vectors() -> c_int {
    std::thread::available_parallelism()
        .ok()
        .and_then(|n| c_int::try_from(n.get()).ok())
        .unwrap_or(1)
}

/// Closes a descriptor of the null device; a program that has closed it itself may have another
/// file under its number by now.
fn close_null_device(fd: c_int) {
    // SAFETY: all zero bytes are a structure that the call fills, and a number that is no
    // descriptor makes it fail.
    let mut found: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let known = unsafe { libc::fstat(fd, &raw mut found) } == 0;
    let is_device = found.st_mode & libc::S_IFMT == libc::S_IFCHR;
    if known && is_device && found.st_rdev == NULL_DEVICE {
        // SAFETY: nothing of ours uses it afterwards.
        unsafe { libc::close(fd) };
    }
}

/// `ibv_close_device(3)`: 0, or -1 with `errno`
pub(crate) unsafe extern "C" fn close_device(context: *mut IbvContext) -> c_int {
    if !objects::is_open(context) {
        return errno::minus_one(libc::EINVAL);
    }
    // SAFETY: the caller passes a context it opened.
    let object = unsafe { objects::context(context) };
    // SAFETY: as above.
    close_null_device(unsafe { (*context).cmd_fd });
    if object.is_inherited() {
        return 0;
    }
    let object = ptr::from_ref(object).cast_mut();
    // SAFETY: published by open_device; the caller gives it up.
    unsafe { objects::retire(object) };
    0
}
