//! Completion channels and asynchronous events: `ibv_create_comp_channel(3)`,
//! `ibv_get_cq_event(3)`, `ibv_get_async_event(3)`.

use crate::abi::{IbvAsyncEvent, IbvCompChannel, IbvContext, IbvCq, IbvQp, IbvSrq};
use crate::objects::{self, ChannelObject};
use crate::port::PORT;
use crate::{cq, errno, live};
use causeway_cancel::{Allowed, CANCELLED};
use causeway_device::{AsyncEvent, Errno, EventSource, EventType};
use core::ffi::{c_int, c_uint, c_void};
use core::ptr;
use core::sync::atomic::{AtomicI32, Ordering};
use std::sync::Arc;

/// `ibv_create_comp_channel(3)`
pub(crate) unsafe extern "C" fn create_comp_channel(
    context: *mut IbvContext,
) -> *mut IbvCompChannel {
    // SAFETY: the caller passes an open context.
    let created = unsafe { objects::context(context) }
        .dev
        .create_comp_channel();
    let object = created.map(|dev| ChannelObject {
        channel: IbvCompChannel {
            context,
            fd: dev.fd(),
            refcnt: AtomicI32::new(0),
        },
        dev,
    });
    errno::pointer(object.map(|object| objects::publish(objects::allocate(), object).cast()))
}

/// `ibv_destroy_comp_channel(3)`: `EBUSY` while a CQ uses it
pub(crate) unsafe extern "C" fn destroy_comp_channel(channel: *mut IbvCompChannel) -> c_int {
    if !live::is(channel.cast::<ChannelObject>()) {
        return errno::fail(libc::EINVAL);
    }
    // SAFETY: the caller passes a live channel of an open context.
    let (object, owner) = unsafe {
        (
            objects::channel(channel),
            objects::context((*channel).context),
        )
    };
    if owner.is_inherited() {
        return 0;
    }
    if object.channel.refcnt.load(Ordering::Acquire) > 0 {
        return errno::fail(libc::EBUSY);
    }
    let result = object.dev.destroy();
    if result.is_ok() {
        // SAFETY: published by create_comp_channel; the caller gives it up.
        unsafe { objects::reclaim(channel.cast::<ChannelObject>()) };
    }
    errno::code(result)
}

/// `ibv_get_cq_event(3)`: 0, or -1 with `errno` (`EAGAIN` if the descriptor is non-blocking). A
/// cancellation point, as the read(2) of rdma-core is.
pub(crate) unsafe extern "C" fn get_cq_event(
    channel: *mut IbvCompChannel,
    cq: *mut *mut IbvCq,
    cq_context: *mut *mut c_void,
    allowed: Allowed,
) -> c_int {
    // SAFETY: the caller passes a live channel.
    match unsafe { objects::channel(channel) }.dev.get_event(allowed) {
        Ok(cookie) => {
            let source = cq::from_cookie(cookie);
            // SAFETY: a CQ is not destroyed while an event of it is unacknowledged; the caller
            // passes memory for both pointers.
            unsafe {
                cq.write(source);
                cq_context.write((*source).cq_context);
            }
            0
        }
        Err(error) => ended(error),
    }
}

/// A wait without an event.
fn ended(error: Errno) -> c_int {
    match error {
        Errno::CANCELLED => CANCELLED,
        Errno(code) => errno::minus_one(code),
    }
}

/// `ibv_ack_cq_events(3)`
pub(crate) unsafe extern "C" fn ack_cq_events(cq: *mut IbvCq, count: c_uint) {
    // SAFETY: the caller passes a live CQ.
    let object = unsafe { objects::cq(cq) };
    object
        .cq
        .base
        .comp_events_completed
        .fetch_add(count, Ordering::Relaxed);
    // A destroy that waits for this may free the object before the call returns.
    let dev = Arc::clone(&object.dev);
    dev.ack_events(count);
}

/// `ibv_get_async_event(3)`: 0, or -1 with `errno`; a cancellation point
pub(crate) unsafe extern "C" fn get_async_event(
    context: *mut IbvContext,
    event: *mut IbvAsyncEvent,
    allowed: Allowed,
) -> c_int {
    // SAFETY: the caller passes an open context.
    match unsafe { objects::context(context) }
        .dev
        .get_async_event(allowed)
    {
        Ok(AsyncEvent { event_type, source }) => {
            let element = match source {
                EventSource::Qp(object) | EventSource::Cq(object) | EventSource::Srq(object) => {
                    object
                }
                EventSource::Port => usize::from(PORT),
            };
            // SAFETY: the caller passes memory for the structure.
            unsafe {
                event.write(IbvAsyncEvent {
                    element,
                    event_type: event_type as u32,
                })
            };
            0
        }
        Err(error) => ended(error),
    }
}

/// The device's form of an event of an object; `None` for others, which need no acknowledgment.
fn device_event(event: &IbvAsyncEvent) -> Option<AsyncEvent> {
    let element = event.element;
    let (event_type, source) = match event.event_type {
        0 => (EventType::CqErr, EventSource::Cq(element)),
        1 => (EventType::QpFatal, EventSource::Qp(element)),
        2 => (EventType::QpReqErr, EventSource::Qp(element)),
        3 => (EventType::QpAccessErr, EventSource::Qp(element)),
        4 => (EventType::CommEst, EventSource::Qp(element)),
        5 => (EventType::SqDrained, EventSource::Qp(element)),
        14 => (EventType::SrqErr, EventSource::Srq(element)),
        15 => (EventType::SrqLimitReached, EventSource::Srq(element)),
        16 => (EventType::QpLastWqeReached, EventSource::Qp(element)),
        _ => return None,
    };
    Some(AsyncEvent { event_type, source })
}

/// `ibv_ack_async_event(3)`
pub(crate) unsafe extern "C" fn ack_async_event(event: *mut IbvAsyncEvent) {
    // SAFETY: the caller passes an event that it got.
    let Some(event) = device_event(unsafe { &*event }) else {
        return;
    };
    // SAFETY: the objects of unacknowledged events are not destroyed.
    let (context, completed) = unsafe {
        match event.source {
            EventSource::Port => return,
            EventSource::Cq(cookie) => {
                let cq: *mut IbvCq = ptr::with_exposed_provenance_mut(cookie);
                ((*cq).context, &(*cq).async_events_completed)
            }
            EventSource::Qp(cookie) => {
                let qp: *mut IbvQp = ptr::with_exposed_provenance_mut(cookie);
                ((*qp).context, &(*qp).events_completed)
            }
            EventSource::Srq(cookie) => {
                let srq: *mut IbvSrq = ptr::with_exposed_provenance_mut(cookie);
                ((*srq).context, &(*srq).events_completed)
            }
        }
    };
    completed.fetch_add(1, Ordering::Relaxed);
    // Last: a destroy that waits for this may free the object at once.
    // SAFETY: contexts outlive their objects.
    unsafe { objects::context(context) }
        .dev
        .ack_async_event(&event);
}
