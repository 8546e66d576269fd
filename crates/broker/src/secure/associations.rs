//! Handshakes between UD queue pairs: a queue pair has many at a time.

use causeway_fabric::services::secure::{
    AGREED, AnswerRequest, AssociationRequest, FinishRequest, HandshakeReply,
};
use rustix::io::Errno;

use super::{At, Ends, Handshakes, Name, answer};
use crate::keys::WireKeys;

impl Handshakes {
    /// Carries out a step of one between UD queue pairs.
    ///
    /// # Errors
    /// `ENOENT` if nothing was begun that the message could answer; `ENOKEY` without a key;
    /// `ENOBUFS` if too many of the endpoint wait for answers.
    pub fn associate(
        &mut self,
        at: At,
        ends: Ends,
        request: &AssociationRequest,
        keys: &WireKeys,
    ) -> Result<HandshakeReply, Errno> {
        let name: Name = (at.0, at.1, request.cookie);
        if request.finishes {
            return self.finish_as(
                name,
                &FinishRequest {
                    local_qpn: request.local_qpn,
                    peer_cookie: request.peer_cookie,
                    message: request.message.clone(),
                },
            );
        }
        if keys.is_empty() {
            return Err(Errno::NOKEY);
        }
        if request.peer_cookie == 0 {
            let message = self.begin_as(name, ends, keys)?;
            return Ok(HandshakeReply {
                verdict: AGREED,
                message,
                ..HandshakeReply::default()
            });
        }
        let begun = AnswerRequest {
            local_qpn: request.local_qpn,
            own_gid: request.own_gid,
            cookie: request.cookie,
            peer_cookie: request.peer_cookie,
            message: request.message.clone(),
        };
        let answered = answer(&ends, &begun, keys);
        Ok(answered.unwrap_or_else(|why| self.refuse(at, &ends, why)))
    }
}
