//! Taking back what a broker has granted to somebody who can't get it.

use std::os::fd::{BorrowedFd, OwnedFd};

use crate::attachment;
use crate::control::LateReply;
use crate::error::Result;
use crate::pool;
use crate::remoting::{Call, Header, Kind, Method, ONE_WAY};
use crate::services;
use crate::sisci;

/// The last thing that would have been called, as a message that is not answered.
#[derive(Default)]
struct Said(Option<Vec<u8>>);

impl Call for Said {
    fn call(
        &mut self,
        service: u16,
        method: &Method,
        body: Vec<u8>,
        _: &[BorrowedFd<'_>],
    ) -> Result<(Vec<u8>, Vec<OwnedFd>)> {
        let header = Header {
            kind: Kind::Request,
            service,
            method: method.number,
            request: ONE_WAY,
            status: 0,
            fds: 0,
        };
        self.0 = Some(header.encode(&body));
        Ok((Vec::new(), Vec::new()))
    }
}

/// What is to be said to a broker that has answered so, and whose answer can't be passed on with
/// its descriptors: the caller will be told that the call has failed. `None` if nothing is kept for
/// it, or if it knows itself what to give up.
#[must_use]
pub fn take_back(header: &Header, body: &[u8]) -> Option<Vec<u8>> {
    let methods = match header.service {
        services::broker::SERVICE => services::broker::METHODS,
        services::sisci::SERVICE => services::sisci::METHODS,
        services::pool::SERVICE => services::pool::METHODS,
        _ => return None,
    };
    let granted = header.kind == Kind::Reply && header.status == 0;
    let method = methods.iter().find(|known| known.number == header.method)?;
    let late = LateReply {
        service: header.service,
        method: method.name,
        request: Vec::new(),
        body: body.to_vec(),
        fds: Vec::new(),
    };
    let mut said = Said::default();
    // A body that means nothing names nothing.
    let _ = match header.service {
        _ if !granted => return None,
        services::broker::SERVICE => attachment::give_back(&mut said, &late),
        services::sisci::SERVICE => sisci::give_back(&mut said, &late),
        _ => pool::give_back(&mut said, &late),
    };
    said.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remoting::{Field, decode_body, encode_body};
    use crate::services::broker::{SegmentReply, SegmentRequest};
    use crate::services::pool::{AllocateReply, BlockRequest};
    use crate::services::sisci::{
        DropCellRequest, LocalSegmentReply, RemoveRequest, TakeCellReply,
    };

    /// What is said after a reply of this method: the method's name and its body.
    fn said<T: Field>(
        (service, methods): (u16, &[Method]),
        name: &str,
        reply: &impl Field,
    ) -> Option<(&'static str, T)> {
        let method = methods.iter().find(|known| known.name == name).unwrap();
        let header = Header {
            kind: Kind::Reply,
            service,
            method: method.number,
            request: 7,
            status: 0,
            fds: 1,
        };
        let refused = Header {
            status: 1,
            ..header
        };
        let body = encode_body(reply);
        assert_eq!(take_back(&refused, &body), None);
        let message = take_back(&header, &body)?;
        let (header, body) = Header::decode(&message).unwrap();
        assert_eq!((header.service, header.request), (service, ONE_WAY));
        let mut known = methods.iter();
        let undo = known.find(|known| known.number == header.method)?;
        Some((undo.name, decode_body(body).unwrap()))
    }

    #[test]
    fn what_was_granted_with_descriptors_is_taken_back() {
        let broker = (services::broker::SERVICE, services::broker::METHODS);
        let sisci = (services::sisci::SERVICE, services::sisci::METHODS);
        let pool = (services::pool::SERVICE, services::pool::METHODS);
        let segment = 7;
        let made = said(broker, "create_segment", &SegmentReply { segment });
        assert_eq!(made, Some(("destroy_segment", SegmentRequest { segment })));
        let reply = LocalSegmentReply {
            segment: 7,
            ..LocalSegmentReply::default()
        };
        for method in ["create_segment", "attach_segment"] {
            let undone = said(sisci, method, &reply);
            let removed = RemoveRequest {
                handle: 7,
                force: true,
            };
            assert_eq!(undone, Some(("remove_segment", removed)));
        }
        let reply = TakeCellReply {
            cell: Some(9),
            ..TakeCellReply::default()
        };
        let dropped = said(sisci, "take_cell", &reply);
        assert_eq!(dropped, Some(("drop_cell", DropCellRequest { cell: 9 })));
        let none = said::<DropCellRequest>(sisci, "take_cell", &TakeCellReply::default());
        assert_eq!(none, None);
        let reply = AllocateReply {
            handle: 7,
            ..AllocateReply::default()
        };
        let freed = said(pool, "allocate", &reply);
        assert_eq!(freed, Some(("free", BlockRequest { handle: 7 })));
    }
}
