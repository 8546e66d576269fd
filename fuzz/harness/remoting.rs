//! Messages between an endpoint and the broker.

use causeway_fabric::remoting::{Field, Header, decode_body, encode_body};
use causeway_fabric::services::directory;
use causeway_fabric::services::pool;
use causeway_fabric::services::{
    AccessRequest, AttachReply, AttachRequest, ConnectBody, ConnectReply, CreateSegmentRequest,
    DisconnectRequest, Leave, MapReply, MapRequest, PeerEvent, ReserveRequest, RestoreRequest,
    RestoreSegmentRequest, SegmentReply, SegmentRequest, SlotRequest, StaleReply, StatusCursor,
    StatusPage, SysfsReply, SysfsRequest, TallyCursor, TallyPage, record, session, sisci,
};

/// Decodes `data` as a message and its body as every type there is.
pub fn run(data: &[u8]) {
    if let Ok((header, body)) = Header::decode(data) {
        assert_eq!(header.encode(body), data);
        bodies(body);
    }
    bodies(data);
}

fn bodies(body: &[u8]) {
    one::<AttachRequest>(body);
    one::<AttachReply>(body);
    one::<SlotRequest>(body);
    one::<ConnectBody>(body);
    one::<ConnectReply>(body);
    one::<DisconnectRequest>(body);
    one::<Leave>(body);
    one::<RestoreRequest>(body);
    one::<ReserveRequest>(body);
    one::<StatusCursor>(body);
    one::<StatusPage>(body);
    one::<TallyCursor>(body);
    one::<TallyPage>(body);
    one::<SysfsRequest>(body);
    one::<SysfsReply>(body);
    one::<AccessRequest>(body);
    one::<StaleReply>(body);
    one::<CreateSegmentRequest>(body);
    one::<SegmentReply>(body);
    one::<SegmentRequest>(body);
    one::<RestoreSegmentRequest>(body);
    one::<MapRequest>(body);
    one::<MapReply>(body);
    one::<Vec<PeerEvent>>(body);
    one::<Vec<u64>>(body);
    session_bodies(body);
    sisci_bodies(body);
    pool_bodies(body);
}

fn pool_bodies(body: &[u8]) {
    one::<pool::AdoptReply>(body);
    one::<pool::AllocateReply>(body);
    one::<pool::AllocateRequest>(body);
    one::<pool::BlockInfo>(body);
    one::<pool::BlockPage>(body);
    one::<pool::BlockRequest>(body);
    one::<record::BlockRecord>(body);
    one::<pool::BringRequest>(body);
    one::<pool::CreatePoolRequest>(body);
    one::<pool::FindRequest>(body);
    one::<pool::GrantRequest>(body);
    one::<pool::ListRequest>(body);
    one::<pool::MemberPage>(body);
    one::<pool::NameRequest>(body);
    one::<pool::NoteRequest>(body);
    one::<pool::OpenReply>(body);
    one::<pool::OpenRequest>(body);
    one::<pool::PoolCursor>(body);
    one::<pool::PoolNameRequest>(body);
    one::<pool::PoolPage>(body);
    one::<pool::PoolReply>(body);
    one::<pool::PoolRequest>(body);
    one::<pool::RefreshRequest>(body);
    one::<pool::RestoreBlockRequest>(body);
    one::<pool::RestorePoolRequest>(body);
    one::<pool::TicketRequest>(body);
    one::<pool::WaitRequest>(body);
    one::<pool::ResumeRequest>(body);
}

fn session_bodies(body: &[u8]) {
    one::<session::OpenRequest>(body);
    one::<session::OpenReply>(body);
    one::<session::LifeBody>(body);
    one::<bool>(body);
}

fn sisci_bodies(body: &[u8]) {
    one::<sisci::NodeInfo>(body);
    one::<directory::DirectoryRequest>(body);
    one::<sisci::JoinRequest>(body);
    one::<sisci::JoinReply>(body);
    one::<sisci::NodeRequest>(body);
    one::<sisci::CreateSegmentRequest>(body);
    one::<sisci::LocalSegmentReply>(body);
    one::<sisci::SegmentHandle>(body);
    one::<sisci::RegisterRequest>(body);
    one::<sisci::UnavailableRequest>(body);
    one::<sisci::RemoveRequest>(body);
    one::<sisci::AttachSegmentRequest>(body);
    one::<sisci::ConnectSegmentRequest>(body);
    one::<sisci::ConnectSegmentReply>(body);
    one::<sisci::ConnectionHandle>(body);
    one::<sisci::GrantReply>(body);
    one::<sisci::CreateInterruptRequest>(body);
    one::<sisci::InterruptReply>(body);
    one::<sisci::ConnectInterruptRequest>(body);
    one::<sisci::TakeCellRequest>(body);
    one::<sisci::TakeCellReply>(body);
    one::<sisci::RestoreSegmentRequest>(body);
    one::<sisci::RestoreConnectionRequest>(body);
    one::<sisci::RestoreInterruptRequest>(body);
    one::<sisci::RestoreInterruptConnectionRequest>(body);
    one::<sisci::RestoredReply>(body);
    one::<sisci::ItemCursor>(body);
    one::<sisci::ItemPage>(body);
    one::<sisci::LocalEvent>(body);
    one::<sisci::RemoteEvent>(body);
    one::<sisci::CellEvent>(body);
    one::<Vec<sisci::NodeInfo>>(body);
}

fn one<T: Field>(body: &[u8]) {
    if let Ok(value) = decode_body::<T>(body) {
        assert_eq!(encode_body(&value), body, "{}", std::any::type_name::<T>());
    }
}
