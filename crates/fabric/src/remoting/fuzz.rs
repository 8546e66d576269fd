//! The body of the fuzz target for everything that arrives at a control socket.

use super::{Field, Header, decode_body, encode_body};
use crate::services::channel;
use crate::services::directory;
use crate::services::handshake;
use crate::services::node;
use crate::services::pool;
use crate::services::relay;
use crate::services::{
    AccessRequest, AttachReply, AttachRequest, ConnectBody, ConnectReply, CreateSegmentRequest,
    DisconnectRequest, GuestTableReply, GuestTableRequest, Leave, MapReply, MapRequest, PeerEvent,
    ReserveRequest, RestoreRequest, RestoreSegmentRequest, SegmentReply, SegmentRequest,
    SlotRequest, StaleReply, StatusCursor, StatusPage, SysfsReply, SysfsRequest, TallyCursor,
    TallyPage, TraceReply, TraceRequest, TraceRingReply, record, secure, session, sisci,
};

/// Decodes `bytes` as a message, and as a body of every type.
///
/// # Panics
/// If a value does not encode to the bytes that it was decoded from: every value has exactly one
/// encoding, so what is accepted can be nothing else than what such an encoder made.
pub fn fuzz_message(bytes: &[u8]) {
    if let Ok((header, body)) = Header::decode(bytes) {
        assert_eq!(header.encode(body), bytes);
        every_body(body);
    }
    every_body(bytes);
}

fn every_body(bytes: &[u8]) {
    one_body::<AttachRequest>(bytes);
    one_body::<AttachReply>(bytes);
    one_body::<SlotRequest>(bytes);
    one_body::<ConnectBody>(bytes);
    one_body::<ConnectReply>(bytes);
    one_body::<DisconnectRequest>(bytes);
    one_body::<Leave>(bytes);
    one_body::<RestoreRequest>(bytes);
    one_body::<ReserveRequest>(bytes);
    one_body::<StatusCursor>(bytes);
    one_body::<StatusPage>(bytes);
    one_body::<TallyCursor>(bytes);
    one_body::<TallyPage>(bytes);
    one_body::<SysfsRequest>(bytes);
    one_body::<SysfsReply>(bytes);
    one_body::<AccessRequest>(bytes);
    one_body::<StaleReply>(bytes);
    one_body::<CreateSegmentRequest>(bytes);
    one_body::<SegmentReply>(bytes);
    one_body::<SegmentRequest>(bytes);
    one_body::<RestoreSegmentRequest>(bytes);
    one_body::<MapRequest>(bytes);
    one_body::<MapReply>(bytes);
    one_body::<GuestTableRequest>(bytes);
    one_body::<GuestTableReply>(bytes);
    one_body::<TraceRequest>(bytes);
    one_body::<TraceReply>(bytes);
    one_body::<TraceRingReply>(bytes);
    one_body::<Vec<PeerEvent>>(bytes);
    one_body::<Vec<u64>>(bytes);
    secure_bodies(bytes);
    session_bodies(bytes);
    sisci_bodies(bytes);
    every_pool_body(bytes);
    relay_bodies(bytes);
}

fn relay_bodies(bytes: &[u8]) {
    one_body::<relay::ConnectRequest>(bytes);
    one_body::<relay::ConnectReply>(bytes);
    one_body::<relay::JoinRequest>(bytes);
    one_body::<relay::JoinReply>(bytes);
    if let Some(request) = relay::Request::decode(bytes, relay::SEGMENT_BYTES_MAX) {
        assert_eq!(request.encode(), bytes);
    }
    if let Some(completion) = relay::Completion::decode(bytes) {
        assert_eq!(completion.encode(), bytes);
    }
}

fn every_pool_body(bytes: &[u8]) {
    one_body::<pool::AdoptReply>(bytes);
    one_body::<pool::AllocateReply>(bytes);
    one_body::<pool::AllocateRequest>(bytes);
    one_body::<pool::BlockInfo>(bytes);
    one_body::<pool::BlockPage>(bytes);
    one_body::<pool::BlockRequest>(bytes);
    one_body::<record::BlockRecord>(bytes);
    one_body::<pool::BringRequest>(bytes);
    one_body::<pool::CreatePoolRequest>(bytes);
    one_body::<pool::FindRequest>(bytes);
    one_body::<pool::GrantRequest>(bytes);
    one_body::<pool::ListRequest>(bytes);
    one_body::<pool::MemberPage>(bytes);
    one_body::<pool::NameRequest>(bytes);
    one_body::<pool::NoteRequest>(bytes);
    one_body::<pool::OpenReply>(bytes);
    one_body::<pool::OpenRequest>(bytes);
    one_body::<pool::PoolCursor>(bytes);
    one_body::<pool::PoolNameRequest>(bytes);
    one_body::<pool::PoolPage>(bytes);
    one_body::<pool::PoolReply>(bytes);
    one_body::<pool::PoolRequest>(bytes);
    one_body::<pool::RefreshRequest>(bytes);
    one_body::<pool::RestoreBlockRequest>(bytes);
    one_body::<pool::RestorePoolRequest>(bytes);
    one_body::<pool::TicketRequest>(bytes);
    one_body::<pool::WaitRequest>(bytes);
    one_body::<pool::ResumeRequest>(bytes);
}

fn secure_bodies(bytes: &[u8]) {
    one_body::<secure::WireQuery>(bytes);
    one_body::<secure::WireReply>(bytes);
    one_body::<secure::BeginRequest>(bytes);
    one_body::<secure::BeginReply>(bytes);
    one_body::<secure::AnswerRequest>(bytes);
    one_body::<secure::FinishRequest>(bytes);
    one_body::<secure::HandshakeReply>(bytes);
    one_body::<secure::SecuredRequest>(bytes);
    one_body::<secure::SecuredReply>(bytes);
    one_body::<secure::AssociationRequest>(bytes);
    one_body::<secure::GroupRequest>(bytes);
    one_body::<secure::GroupReply>(bytes);
    one_body::<secure::Sealed>(bytes);
    one_body::<secure::Offer>(bytes);
    one_body::<secure::Acceptance>(bytes);
    one_body::<channel::ChannelBegin>(bytes);
    one_body::<channel::ChannelBegun>(bytes);
    one_body::<channel::ChannelAnswer>(bytes);
    one_body::<channel::ChannelFinish>(bytes);
    one_body::<channel::ChannelReply>(bytes);
    one_body::<channel::ChannelOffer>(bytes);
    one_body::<channel::ChannelAcceptance>(bytes);
}

fn session_bodies(bytes: &[u8]) {
    one_body::<session::OpenRequest>(bytes);
    one_body::<session::OpenReply>(bytes);
    one_body::<session::LifeBody>(bytes);
    one_body::<bool>(bytes);
}

fn sisci_bodies(bytes: &[u8]) {
    one_body::<sisci::NodeInfo>(bytes);
    one_body::<directory::DirectoryRequest>(bytes);
    one_body::<sisci::JoinRequest>(bytes);
    one_body::<sisci::JoinReply>(bytes);
    one_body::<sisci::NodeRequest>(bytes);
    one_body::<sisci::CreateSegmentRequest>(bytes);
    one_body::<sisci::LocalSegmentReply>(bytes);
    one_body::<sisci::SegmentHandle>(bytes);
    one_body::<sisci::RegisterRequest>(bytes);
    one_body::<sisci::MappedRequest>(bytes);
    one_body::<sisci::UnavailableRequest>(bytes);
    one_body::<sisci::RemoveRequest>(bytes);
    one_body::<sisci::AttachSegmentRequest>(bytes);
    one_body::<sisci::ConnectSegmentRequest>(bytes);
    one_body::<sisci::ConnectSegmentReply>(bytes);
    one_body::<sisci::ConnectionHandle>(bytes);
    one_body::<sisci::GrantReply>(bytes);
    one_body::<sisci::CreateInterruptRequest>(bytes);
    one_body::<sisci::InterruptReply>(bytes);
    one_body::<sisci::ConnectInterruptRequest>(bytes);
    one_body::<sisci::TakeCellRequest>(bytes);
    one_body::<sisci::TakeCellReply>(bytes);
    one_body::<sisci::RestoreSegmentRequest>(bytes);
    one_body::<sisci::RestoreConnectionRequest>(bytes);
    one_body::<sisci::RestoreInterruptRequest>(bytes);
    one_body::<sisci::RestoreInterruptConnectionRequest>(bytes);
    one_body::<sisci::RestoredReply>(bytes);
    one_body::<sisci::ItemCursor>(bytes);
    one_body::<sisci::ItemPage>(bytes);
    one_body::<sisci::LocalEvent>(bytes);
    one_body::<sisci::RemoteEvent>(bytes);
    one_body::<sisci::CellEvent>(bytes);
    one_body::<sisci::AwaitReturnRequest>(bytes);
    one_body::<sisci::ReturnEvent>(bytes);
    one_body::<sisci::DropCellRequest>(bytes);
    one_body::<Vec<sisci::NodeInfo>>(bytes);
    one_body::<node::OpenRequest>(bytes);
    one_body::<node::OpenReply>(bytes);
    one_body::<node::WindowReply>(bytes);
    one_body::<node::IdentifyRequest>(bytes);
    one_body::<node::DataRequest>(bytes);
    handshake_bodies(bytes);
}

fn handshake_bodies(bytes: &[u8]) {
    one_body::<handshake::ClusterReply>(bytes);
    one_body::<handshake::Hello>(bytes);
    one_body::<handshake::HelloReply>(bytes);
    one_body::<handshake::Transcript>(bytes);
    one_body::<handshake::Proof>(bytes);
    one_body::<handshake::ProofCheck>(bytes);
}

fn one_body<T: Field>(bytes: &[u8]) {
    if let Ok(value) = decode_body::<T>(bytes) {
        assert_eq!(encode_body(&value), bytes);
    }
}
