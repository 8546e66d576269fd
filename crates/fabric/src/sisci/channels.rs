//! What a session asks its broker of secured sessions with other hosts.

use std::net::IpAddr;

use super::Sisci;
use crate::error::Result;
use crate::secure;
use crate::services::BrokerStub;
use crate::services::channel::{
    ChannelAnswer, ChannelBegin, ChannelBegun, ChannelFinish, ChannelReply, ChannelStub,
};
use crate::services::secure::WireQuery;

impl Sisci {
    /// Whether the wire to a host must be secured, as the broker and the environment have it.
    ///
    /// # Errors
    /// As [`crate::session::Session::call`]; `ENOKEY` where it must be, and the broker has no key;
    /// `EOPNOTSUPP` where the environment wants it of a broker that can't.
    pub fn is_wire_secured(&self, host: IpAddr) -> Result<bool> {
        // What is unintelligible is refused where the device is opened.
        self.ask_for_wire(host, secure::wanted().unwrap_or(true))
    }

    /// The same as the broker alone has it.
    ///
    /// # Errors
    /// As there.
    pub fn is_wire_secured_by_broker(&self, host: IpAddr) -> Result<bool> {
        self.ask_for_wire(host, false)
    }

    fn ask_for_wire(&self, host: IpAddr, wanted: bool) -> Result<bool> {
        let query = WireQuery {
            remote_gid: Some(secure::gid_of(host)),
            any_peer: false,
            wanted,
        };
        self.session.call(|control, _| {
            let reply = BrokerStub(control).wire(&query, &[]);
            secure::judge(&query, reply)
        })
    }

    /// Has the broker begin a session.
    ///
    /// # Errors
    /// As [`crate::session::Session::call`] and [`crate::services::channel`].
    pub fn begin_channel(&self, request: &ChannelBegin) -> Result<ChannelBegun> {
        self.session.call(|control, _| {
            let (begun, _) = ChannelStub(control).begin(request, &[])?;
            Ok(begun)
        })
    }

    /// Has the broker answer one that a peer has begun. That a message is not believed is in the
    /// reply.
    ///
    /// # Errors
    /// As [`Sisci::begin_channel`].
    pub fn answer_channel(&self, request: &ChannelAnswer) -> Result<ChannelReply> {
        self.session.call(|control, _| {
            let (reply, _) = ChannelStub(control).answer(request, &[])?;
            Ok(reply)
        })
    }

    /// Has the broker complete the one that it has begun, as [`Sisci::answer_channel`].
    ///
    /// # Errors
    /// As there.
    pub fn finish_channel(&self, request: &ChannelFinish) -> Result<ChannelReply> {
        self.session.call(|control, _| {
            let (reply, _) = ChannelStub(control).finish(request, &[])?;
            Ok(reply)
        })
    }
}
