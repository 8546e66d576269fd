-- Wireshark dissector of Causeway's wire protocol (docs/WIRE.md, version 1): TRP with DDP and RDMAP,
-- datagrams of UD queue pairs, what is in the clear of secured connections, and the connection
-- manager. Packets may be cut behind their headers. For Wireshark and tshark 4.0 or newer.
--
-- Copy it into the folder that Help > About > Folders calls "Personal Lua Plugins", or:
--
--     tshark -X lua_script:causeway.lua -r FILE
--
-- as an ordinary user: as root, Wireshark 4.4 loads no scripts, and says nothing of it.
-- One file, since that is what Wireshark installs.
--
-- Filters begin with causeway: causeway.psn, causeway.qpn, causeway.stag, causeway.malformed,
-- causeway.crc.bad, causeway.retransmission, causeway.sealed.number, causeway.cm.private.

-- Lua 5.2 has bit32; builds of Wireshark with Lua 5.4 have a library `bit` instead.
local ops = bit32 or bit -- luacheck: ignore
local band, bxor, rshift = ops.band, ops.bxor, ops.rshift

-- Endpoints receive on 20480 + slot, and multicast groups one port above the last slot.
local FIRST_PORT, MULTICAST_PORT, SLOT_BASE = 20481, 24576, 20480
local MULTICAST_QPN, QPN_MASK, QPN_INDEX_MASK = 0xFFFFFF, 0xFFFFFF, 0xFFF
local VERSION, CM_VERSION = 1, 2
local HEADER_LEN, HELLO_LEN, NOTICE_LEN, CRC_AT = 40, 80, 40, 32
local UD_HEADER_LEN, UD_PAYLOAD_MAX = 24, 4096
local SEALED_HEADER_LEN, TAG_LEN, HANDSHAKE_HEADER_LEN, MESSAGE_MAX = 24, 16, 32, 400
local LOAD_COOKIE_LEN = 32
local CM_HEADER_LEN, CM_PRIVATE_MAX = 64, 196
local CM_SEALED_HEADER_LEN, CM_REFUSAL_LEN = 56, 24
local RANGES_MAX, BUNDLE_MAX = 32, 64
local LAST, RELAXED, CRC, RESPONSE, ASK, MARKS = 1, 2, 4, 8, 16, 0xE0
-- Numbers of segments that retransmissions are told by; more are forgotten with their connection.
local REMEMBERED_MAX = 1000000

local OPCODES = {
    [0] = "Data", "Connection request", "Connection accept", "Connection reject", "Shutdown",
    "SACK", "Receiver not ready", "NAK", "ACK", "Response data", "Bundle", "Response bundle",
    "Datagram", "Sealed datagram", "Handshake", "Sealed datagram to a group",
}
local SEALED, HANDSHAKE, GROUP = 13, 14, 15
local GROUP_HEADER_LEN, QPN_MULTICAST = 48, 0xFFFFFF
local STEPS = { "Begin", "Answer", "Refusal", "Come again", "Begin again" }
-- Of each step: bytes of the load cookie, the most of the message, whether it names receiver and
-- sender.
local FORMS = {
    { cookie = 0, most = MESSAGE_MAX, receiver = false, sender = true },
    { cookie = 0, most = MESSAGE_MAX, receiver = true, sender = true },
    { cookie = 0, most = 0, receiver = true, sender = false },
    { cookie = LOAD_COOKIE_LEN, most = 0, receiver = true, sender = false },
    { cookie = LOAD_COOKIE_LEN, most = MESSAGE_MAX, receiver = false, sender = true },
}
local REFUSAL = 3
-- Why a side makes no secured connection, as it sees it.
local WHY = {
    "another key", "other addresses, queue pairs or tenants", "no common version or cipher",
    "the sender is not secured", "the sender is secured", "the sender has forgotten the keys",
}
-- The flags that an opcode may have besides CRC and ASK.
local OWN_FLAGS = { [0] = LAST + RELAXED, [5] = RESPONSE, [9] = LAST + RELAXED }
local REASONS = { "closed", "unknown queue pair", "failed" }
local RDMAP = {
    [0] = "RDMA Write", "RDMA Read Request", "RDMA Read Response", "Send", "Send with Invalidate",
    "Send with Solicited Event", "Send with Solicited Event and Invalidate", "Terminate",
    "Immediate Data", "Immediate Data with Solicited Event", "Atomic Request", "Atomic Response",
    "Send with Immediate", "Send with Immediate and Solicited Event",
}
local TERMINATE = {
    [0x0000] = "local catastrophic error", [0x0100] = "invalid STag",
    [0x0101] = "base or bounds violation", [0x0102] = "access rights violation",
    [0x0103] = "STag not associated with the stream", [0x0104] = "TO wrap",
    [0x0205] = "invalid RDMAP version", [0x0206] = "unexpected opcode",
    [0x0207] = "catastrophic error, localized to the stream",
    [0x0209] = "STag cannot be invalidated", [0x02FF] = "unspecified",
    [0x1201] = "invalid QN", [0x1203] = "invalid MSN", [0x1204] = "invalid MO",
    [0x1205] = "message too long for the buffer", [0x1206] = "invalid DDP version",
}
local TERMINATE_WORDS = {}
for word, name in pairs(TERMINATE) do
    TERMINATE_WORDS[word * 65536] = name
end
local CM_OPCODES = {
    [1] = "Request", [2] = "Accept", [3] = "Reject", [4] = "Shutdown", [8] = "ACK", [12] = "Probe",
    [13] = "Retry", [14] = "Sealed message", [15] = "Refused request",
}
local CM_SEALED, CM_REFUSAL = 14, 15
-- The reason of a refusal that is none.
local CM_COME_AGAIN = 0
local CM_ACKED = { [1] = "Request", [2] = "Accept", [4] = "Shutdown", [12] = "Probe" }
local CM_SPACES = { [0] = "TCP", "UDP", "IB" }
local CM_REASONS = {
    [0] = "none", [4] = "given up", [8] = "nobody listens", [10] = "unknown connection",
    [28] = "refused by the program", [31] = "other version",
}

local causeway = Proto("causeway", "Causeway")
local f = causeway.fields
local E = {
    malformed = ProtoExpert.new("causeway.malformed", "Malformed datagram",
        expert.group.MALFORMED, expert.severity.ERROR),
    segment = ProtoExpert.new("causeway.segment.malformed", "Malformed DDP segment",
        expert.group.MALFORMED, expert.severity.ERROR),
    crc = ProtoExpert.new("causeway.crc.bad", "Wrong CRC", expert.group.CHECKSUM,
        expert.severity.ERROR),
    again = ProtoExpert.new("causeway.retransmission", "Segment was sent before",
        expert.group.SEQUENCE, expert.severity.NOTE),
    refused = ProtoExpert.new("causeway.refused", "Request refused", expert.group.RESPONSE_CODE,
        expert.severity.WARN),
    port = ProtoExpert.new("causeway.port.other", "The port is not that of the QPN's slot",
        expert.group.PROTOCOL, expert.severity.WARN),
}
causeway.experts = { E.malformed, E.segment, E.crc, E.again, E.refused, E.port }
causeway.prefs.crc = Pref.bool("Check the CRC32C", true, "Computes the CRC of each datagram")

-- A boolean of one bit.
local function flag(name, title, mask)
    return ProtoField.bool("causeway." .. name, title, 8, nil, mask)
end

f.version = ProtoField.uint8("causeway.version", "Version", base.DEC, nil, 0xF0)
f.opcode = ProtoField.uint8("causeway.opcode", "Opcode", base.DEC, OPCODES, 0x0F)
f.flags = ProtoField.uint8("causeway.flags", "Flags", base.HEX)
f.flag_last = flag("flags.last", "Last segment of its message", LAST)
f.flag_relaxed = flag("flags.relaxed", "Relaxed ordering allowed", RELAXED)
f.flag_crc = flag("flags.crc", "CRC is valid", CRC)
f.flag_response = flag("flags.response", "Ranges are of the response space", RESPONSE)
f.flag_ask = flag("flags.ask", "Acknowledge at once", ASK)
f.flag_marks = ProtoField.uint8("causeway.flags.marks", "Headers that told of marks", base.DEC, nil,
    MARKS)
f.flag_ready = flag("flags.ready", "Sender is ready to send", LAST)
f.window = ProtoField.uint16("causeway.window", "Window")
f.epoch = ProtoField.uint8("causeway.epoch", "Epoch")
f.dst_qpn = ProtoField.uint32("causeway.dst_qpn", "Destination QPN", base.HEX)
f.src_qpn = ProtoField.uint32("causeway.src_qpn", "Source QPN", base.HEX)
f.qpn = ProtoField.uint32("causeway.qpn", "QPN", base.HEX)
f.cookie = ProtoField.uint64("causeway.cookie", "Receiver's cookie", base.HEX)
f.own_cookie = ProtoField.uint64("causeway.own_cookie", "Sender's cookie", base.HEX)
f.psn = ProtoField.uint32("causeway.psn", "PSN")
f.first_psn = ProtoField.uint32("causeway.first_psn", "PSN of the message's first segment")
f.ack_request = ProtoField.uint32("causeway.ack_request", "Request ACK PSN")
f.ack_response = ProtoField.uint32("causeway.ack_response", "Response ACK PSN")
f.crc = ProtoField.uint32("causeway.crc", "CRC32C", base.HEX)
f.crc_status = ProtoField.string("causeway.crc.status", "CRC status")
f.duplicates = ProtoField.uint8("causeway.duplicates", "Duplicates received")
f.aux = ProtoField.uint32("causeway.aux", "Aux", base.HEX)
f.reason = ProtoField.uint32("causeway.reason", "Reason", base.DEC, REASONS)
f.timer = ProtoField.uint32("causeway.timer", "RNR timer code")
f.terminate = ProtoField.uint32("causeway.terminate", "Terminate word", base.HEX, TERMINATE_WORDS)
f.range_start = ProtoField.uint32("causeway.sack.start", "First PSN received")
f.range_end = ProtoField.uint32("causeway.sack.end", "First PSN after it that was not")
f.expect = ProtoField.uint32("causeway.expected_psn", "Expected PSN")
f.sends_psn = ProtoField.uint32("causeway.sq_psn", "First PSN")
f.datagram = ProtoField.uint16("causeway.max_datagram", "Largest datagram")
f.features = ProtoField.uint32("causeway.features", "Features", base.HEX)
f.host = ProtoField.bytes("causeway.host", "Host")
f.nonce = ProtoField.bytes("causeway.nonce", "Nonce")
f.reserved = ProtoField.bytes("causeway.reserved", "Reserved")
f.speaks = ProtoField.uint8("causeway.notice.speaks", "Speaks version")
f.answers = ProtoField.uint8("causeway.notice.answers", "Answers version")
f.count = ProtoField.uint16("causeway.bundle.count", "Segments")
f.padding = ProtoField.bytes("causeway.bundle.padding", "Padding")
f.table = ProtoField.bytes("causeway.bundle.table", "Table of lengths")
f.ddp = ProtoField.uint8("causeway.ddp.control", "DDP control", base.HEX)
f.tagged = flag("ddp.tagged", "Tagged", 0x80)
f.ddp_last = flag("ddp.last", "Last segment of its message", 0x40)
f.ddp_version = ProtoField.uint8("causeway.ddp.version", "DDP version", base.DEC, nil, 0x03)
f.rdmap_version = ProtoField.uint8("causeway.rdmap.version", "RDMAP version", base.DEC, nil, 0xC0)
f.rdmap = ProtoField.uint8("causeway.rdmap.opcode", "Message", base.DEC, RDMAP, 0x0F)
f.stag = ProtoField.uint32("causeway.stag", "STag (rkey)", base.HEX)
f.to = ProtoField.uint64("causeway.to", "Tagged offset", base.HEX)
f.invalidate = ProtoField.uint32("causeway.invalidate", "STag to invalidate", base.HEX)
f.imm = ProtoField.bytes("causeway.imm", "Immediate data")
f.queue = ProtoField.uint32("causeway.ddp.queue", "Queue")
f.msn = ProtoField.uint32("causeway.msn", "Message sequence number")
f.mo = ProtoField.uint32("causeway.mo", "Message offset")
f.sink = ProtoField.uint32("causeway.read.sink", "Data sink STag", base.HEX)
f.sink_to = ProtoField.uint64("causeway.read.sink_to", "Data sink offset", base.HEX)
f.length = ProtoField.uint32("causeway.length", "Length")
f.written = ProtoField.uint32("causeway.written", "Bytes written before it")
f.atomic = ProtoField.uint32("causeway.atomic.opcode", "Atomic operation", base.DEC,
    { [0] = "FetchAdd", [2] = "CmpSwap" })
f.request_id = ProtoField.uint32("causeway.atomic.request", "Request identifier")
f.add_swap = ProtoField.uint64("causeway.atomic.data", "Add or swap data", base.HEX)
f.add_mask = ProtoField.uint64("causeway.atomic.data_mask", "Add or swap mask", base.HEX)
f.compare = ProtoField.uint64("causeway.atomic.compare", "Compare data", base.HEX)
f.compare_mask = ProtoField.uint64("causeway.atomic.compare_mask", "Compare mask", base.HEX)
f.original = ProtoField.uint64("causeway.atomic.original", "Original value", base.HEX)
f.payload = ProtoField.bytes("causeway.payload", "Payload")
f.src_index = ProtoField.uint16("causeway.sealed.src_index",
    "Source queue pair in its slot, if UD", base.HEX)
f.phase = ProtoField.uint8("causeway.sealed.phase", "Key phase")
f.number = ProtoField.uint64("causeway.sealed.number", "Packet number")
f.cipher = ProtoField.uint8("causeway.sealed.cipher", "Cipher", base.DEC,
    { "AES-128-GCM", "ChaCha20-Poly1305" })
f.time = ProtoField.absolute_time("causeway.sealed.time", "Time of the sender")
f.key = ProtoField.bytes("causeway.sealed.key", "Name of the key")
f.sealed = ProtoField.bytes("causeway.sealed.payload", "Sealed payload")
f.sealed_length = ProtoField.uint32("causeway.sealed.length", "Length of what is sealed")
f.tag = ProtoField.bytes("causeway.sealed.tag", "Tag")
f.salt = ProtoField.bytes("causeway.sealed.salt", "Random number")
f.step = ProtoField.uint8("causeway.handshake.step", "Step", base.DEC, STEPS)
f.why = ProtoField.uint8("causeway.handshake.reason", "Reason", base.DEC, WHY)
f.message_length = ProtoField.uint16("causeway.handshake.length", "Message length")
f.load_cookie = ProtoField.bytes("causeway.handshake.load_cookie", "Load cookie")
f.message = ProtoField.bytes("causeway.handshake.message", "Message")
f.solicited = flag("ud.solicited", "Solicited", 1)
f.has_imm = flag("ud.has_imm", "Immediate data are valid", 2)
f.traffic_class = ProtoField.uint8("causeway.ud.traffic_class", "Traffic class", base.HEX)
f.hop_limit = ProtoField.uint8("causeway.ud.hop_limit", "Hop limit")
f.qkey = ProtoField.uint32("causeway.qkey", "Q_Key", base.HEX)
f.flow_label = ProtoField.uint32("causeway.ud.flow_label", "Flow label", base.HEX)
f.cm_version = ProtoField.uint8("causeway.cm.version", "Version", base.DEC, nil, 0xF0)
f.cm_opcode = ProtoField.uint8("causeway.cm.opcode", "Message", base.DEC, CM_OPCODES, 0x0F)
f.cm_srq = flag("cm.srq", "Shared receive queue", 1)
f.cm_space = ProtoField.uint8("causeway.cm.space", "Port space", base.DEC, CM_SPACES)
f.cm_reason = ProtoField.uint16("causeway.cm.reason", "Reason", base.DEC, CM_REASONS)
f.cm_port = ProtoField.uint16("causeway.cm.port", "Sender's port")
f.cm_receiver = ProtoField.uint64("causeway.cm.receiver", "Receiver's name", base.HEX)
f.cm_sender = ProtoField.uint64("causeway.cm.sender", "Sender's name", base.HEX)
f.cm_token = ProtoField.uint64("causeway.cm.token", "Token", base.HEX)
f.cm_responder = ProtoField.uint8("causeway.cm.responder_resources", "Responder resources")
f.cm_initiator = ProtoField.uint8("causeway.cm.initiator_depth", "Initiator depth")
f.cm_retry = ProtoField.uint8("causeway.cm.retry_count", "Retry count")
f.cm_rnr = ProtoField.uint8("causeway.cm.rnr_retry_count", "RNR retry count")
f.cm_acked = ProtoField.uint8("causeway.cm.acked", "Acknowledges", base.DEC, CM_ACKED)
f.cm_gid = ProtoField.ipv6("causeway.cm.gid", "GID")
f.cm_length = ProtoField.uint8("causeway.cm.length", "Private data length")
f.cm_private = ProtoField.bytes("causeway.cm.private", "Private data")

-- CRC32C (Castagnoli), reflected.
local CRC_TABLE = {}
for byte = 0, 255 do
    local value = byte
    for _ = 1, 8 do
        local odd = band(value, 1) == 1
        value = rshift(value, 1)
        if odd then
            value = bxor(value, 0x82F63B78)
        end
    end
    CRC_TABLE[byte] = value
end

-- The length of the first datagram of `raw` that bears its own CRC; nil if no length does. A capture
-- on a host that sends may hold many datagrams in one packet: the network card, or the link between
-- two namespaces, cuts them apart later (UDP segmentation offload).
local function checked_length(raw)
    local b1, b2, b3, b4 = raw:byte(CRC_AT + 1, CRC_AT + 4)
    if not b4 then
        return nil
    end
    -- Both come from `ops`, since libraries differ in the sign of their results.
    local wanted = bxor(((b1 * 256 + b2) * 256 + b3) * 256 + b4, 0xFFFFFFFF)
    local state = bxor(0xFFFFFFFF, 0)
    for at = 1, #raw do
        local byte = raw:byte(at)
        if at > CRC_AT and at <= CRC_AT + 4 then
            byte = 0
        end
        state = bxor(CRC_TABLE[band(bxor(state, byte), 0xFF)], rshift(state, 8))
        if state == wanted and at >= HEADER_LEN then
            return at
        end
    end
    return nil
end

-- The distance at which the next datagram to the same queue pair begins, if there is one: it has the
-- same number and cookie.
local function named_length(raw)
    local name = raw:sub(6, 16)
    local at = name:find("[^%z]", 4) and raw:find(name, HEADER_LEN + 6, true)
    return at and rshift(raw:byte(at - 5), 4) == VERSION and at - 6 or nil
end

-- The same of UD's datagrams, whose headers differ in the immediate data alone.
local function ud_length(raw)
    local at = raw:find(raw:sub(1, 12), UD_HEADER_LEN + 1, true)
    return at and raw:sub(at + 16, at + 23) == raw:sub(17, 24) and at - 1 or nil
end

-- What has been found out of frames, which are dissected more than once.
local sent, sent_count, repeated = {}, 0, {}

function causeway.init()
    sent, sent_count, repeated = {}, 0, {}
end

-- Whether a segment was in an earlier frame, or earlier in this one.
local function sent_before(pinfo, space, psn, at)
    local here = pinfo.number .. ":" .. at
    if pinfo.visited then
        return repeated[here]
    end
    local key = space .. psn
    if sent[key] then
        repeated[here] = sent[key]
    elseif sent_count < REMEMBERED_MAX then
        sent[key] = pinfo.number
        sent_count = sent_count + 1
    end
    return repeated[here]
end

local function zeros(raw, from, to)
    return not raw:sub(from + 1, to):find("[^%z]")
end

-- Adds a 3-byte queue pair number by its own name, and hidden as causeway.qpn.
local function add_qpn(tree, field, range)
    tree:add(field, range)
    tree:add(f.qpn, range):set_hidden()
end

-- Atomic operations: what is wrong with one, if anything.
local function atomic_request(t, at, tree)
    tree:add(f.atomic, t(at, 4))
    tree:add(f.request_id, t(at + 4, 4))
    tree:add(f.stag, t(at + 8, 4))
    tree:add(f.to, t(at + 12, 8))
    tree:add(f.add_swap, t(at + 20, 8))
    tree:add(f.add_mask, t(at + 28, 8))
    tree:add(f.compare, t(at + 36, 8))
    tree:add(f.compare_mask, t(at + 44, 8))
    local op, mask = t(at, 4):uint(), t(at + 28, 8):uint64()
    local compare, compare_mask = t(at + 36, 8):uint64(), t(at + 44, 8):uint64()
    local none, all = UInt64(0, 0), UInt64(0xFFFFFFFF, 0xFFFFFFFF)
    local add = op == 0 and mask == none and compare == none and compare_mask == none
    if not add and not (op == 2 and mask == all and compare_mask == all) then
        return "no atomic operation of this version"
    end
    return nil, string.format("rkey 0x%x", t(at + 8, 4):uint())
end

-- What stands behind the DDP header: length, and a function that adds it.
local BODIES = {
    [1] = { 28, function(t, at, tree)
        tree:add(f.sink, t(at, 4))
        tree:add(f.sink_to, t(at + 4, 8))
        tree:add(f.length, t(at + 12, 4))
        tree:add(f.stag, t(at + 16, 4))
        tree:add(f.to, t(at + 20, 8))
        local length, key = t(at + 12, 4):uint(), t(at + 16, 4):uint()
        return nil, string.format("%d bytes, rkey 0x%x", length, key)
    end },
    [8] = { 8, function(t, at, tree)
        tree:add(f.imm, t(at, 4))
        tree:add(f.written, t(at + 4, 4))
        return nil, "0x" .. tostring(t(at, 4):bytes())
    end },
    [10] = { 52, atomic_request },
    [11] = { 12, function(t, at, tree)
        tree:add(f.request_id, t(at, 4))
        tree:add(f.original, t(at + 4, 8))
    end },
}
BODIES[9] = BODIES[8]
-- The queue that an untagged message travels on.
local QUEUES = { [1] = 1, [3] = 0, [4] = 0, [5] = 0, [6] = 0, [8] = 0, [9] = 0, [10] = 1, [11] = 3,
    [12] = 0, [13] = 0 }

-- `cut`: how many bytes more there were, which the file does not hold.
local function payload(t, at, tree, cut)
    local length = t:len() - at + cut
    tree:add(f.length, length):set_generated()
    if t:len() > at then
        tree:add(f.payload, t(at))
    end
    return string.format("%d bytes", length)
end

local function tagged(t, opcode, tree, cut)
    if t:len() < 14 then
        return "shorter than its header"
    elseif opcode ~= 0 and opcode ~= 2 then
        return "unexpected opcode"
    end
    tree:add(opcode == 2 and f.sink or f.stag, t(2, 4))
    tree:add(opcode == 2 and f.sink_to or f.to, t(6, 8))
    local key = opcode == 0 and string.format(", rkey 0x%x", t(2, 4):uint()) or ""
    return nil, payload(t, 14, tree, cut) .. key
end

local function untagged(t, opcode, last, tree, cut)
    if t:len() < 18 then
        return "shorter than its header"
    elseif not QUEUES[opcode] then
        return "unexpected opcode"
    end
    local has_key, has_imm = opcode == 4 or opcode == 6, opcode >= 12
    local word = has_key and f.invalidate or has_imm and f.imm or f.reserved
    tree:add(word, t(2, 4))
    tree:add(f.queue, t(6, 4))
    tree:add(f.msn, t(10, 4))
    tree:add(f.mo, t(14, 4))
    if t(6, 4):uint() ~= QUEUES[opcode] then
        return "wrong queue"
    elseif not has_key and not has_imm and t(2, 4):uint() ~= 0 then
        return "reserved word is not 0"
    end
    local body = BODIES[opcode]
    if not body then
        return nil, payload(t, 18, tree, cut)
    elseif not last or t(14, 4):uint() ~= 0 then
        return "message in several segments"
    elseif t:len() ~= 18 + body[1] then
        return "wrong length"
    end
    return body[2](t, 18, tree)
end

-- One DDP segment; what the info column says of it.
local function segment(t, tree, cut)
    if t:len() < 2 then
        tree:add_proto_expert_info(E.segment, "Malformed segment: shorter than its header")
        return "malformed"
    end
    local control, ulp = t(0, 1):uint(), t(1, 1):uint()
    local opcode = band(ulp, 0x0F)
    local name = RDMAP[opcode] or "unknown message"
    local sub = tree:add(causeway, t(), name)
    local ddp = sub:add(f.ddp, t(0, 1))
    ddp:add(f.tagged, t(0, 1))
    ddp:add(f.ddp_last, t(0, 1))
    ddp:add(f.ddp_version, t(0, 1))
    sub:add(f.rdmap_version, t(1, 1))
    sub:add(f.rdmap, t(1, 1))
    local problem, said
    if band(control, 0x3F) ~= 1 then
        problem = "DDP version or reserved bits"
    elseif band(ulp, 0xF0) ~= 0x40 then
        problem = "RDMAP version or reserved bits"
    elseif band(control, 0x80) ~= 0 then
        problem, said = tagged(t, opcode, sub, cut)
    else
        problem, said = untagged(t, opcode, band(control, 0x40) ~= 0, sub, cut)
    end
    if problem then
        sub:add_proto_expert_info(E.segment, "Malformed segment: " .. problem)
        return name .. " [malformed: " .. problem .. "]"
    end
    if said then
        sub:append_text(", " .. said)
    end
    return name .. (said and " (" .. said .. ")" or "")
end

-- Notes a segment that was sent before. Cookie and number tell a connection's direction.
local function note_repeat(d, psn, at)
    -- A file may have a packet twice, as it was sent and as it was received.
    local space = d.raw:sub(6, 16) .. (d.opcode % 2) .. d.direction
    local earlier = sent_before(d.pinfo, space, psn, d.at + at)
    if earlier then
        local text = "Segment was sent before, in frame " .. earlier
        d.tree:add_proto_expert_info(E.again, text)
    end
    return earlier and "[retransmission] " or ""
end

local function data(d)
    local t, psn = d.t, d.t(16, 4):uint()
    d.tree:add(f.psn, t(16, 4))
    d.tree:add(f.first_psn, t(20, 4))
    local said = note_repeat(d, psn, 0) .. "PSN " .. psn .. " "
    if t:len() + d.cut == HEADER_LEN then
        d.tree:add_proto_expert_info(E.segment, "Malformed segment: there is none")
        return nil, said .. "without a segment"
    end
    return nil, said .. segment(t(HEADER_LEN):tvb(), d.tree, d.cut)
end

-- The lengths of a bundle's segments, or what is wrong with its table.
local function bundle_lengths(d, count)
    local t, table_at, total, lengths = d.t, d.t:len() - 2 * (count + 1), 0, {}
    if count < 1 or count > BUNDLE_MAX then
        return "number of segments"
    elseif table_at < HEADER_LEN then
        return "table does not fit"
    end
    for i = 1, count do
        lengths[i] = band(t(table_at + 2 * (i - 1), 2):uint(), 0x7FFF)
        total = total + lengths[i]
        if lengths[i] == 0 then
            return "empty segment"
        end
    end
    local padding = HEADER_LEN + total
    if padding > table_at then
        return "segments do not fit"
    elseif not zeros(d.raw, padding, table_at) then
        return "padding is not 0"
    end
    return nil, lengths, padding, table_at
end

local function bundle(d)
    local t = d.t
    if d.cut > 0 then
        -- What is in it says a table at its end.
        d.tree:add(f.psn, t(16, 4))
        d.tree:add(f.first_psn, t(20, 4))
        return nil, "PSN " .. t(16, 4):uint() .. ", segments that were not recorded"
    elseif t:len() < HEADER_LEN + 2 then
        return "table does not fit"
    end
    local count = t(t:len() - 2, 2):uint()
    d.tree:add(f.count, t(t:len() - 2, 2))
    local problem, lengths, padding, table_at = bundle_lengths(d, count)
    if problem then
        return problem
    end
    local at, psn, said = HEADER_LEN, t(16, 4):uint(), {}
    d.tree:add(f.first_psn, t(20, 4))
    for i, length in ipairs(lengths) do
        local number = (psn + i - 1) % 4294967296
        d.tree:add(f.psn, t(16, 4), number)
        local again = note_repeat(d, number, i)
        said[i] = again .. segment(t(at, length):tvb(), d.tree, 0)
        at = at + length
    end
    if table_at > padding then
        d.tree:add(f.padding, t(padding, table_at - padding))
    end
    d.tree:add(f.table, t(table_at, 2 * count))
    return nil, string.format("PSN %d+%d %s", psn, count, table.concat(said, "; "))
end

local function sack(d)
    local t, count = d.t, (d.t:len() - HEADER_LEN) / 8
    if count ~= math.floor(count) or count < 1 or count > RANGES_MAX then
        return "length of the list of ranges"
    elseif not zeros(d.raw, 16, 24) then
        return "PSN or aux is not 0"
    end
    local said = {}
    for i = 1, count do
        local at = HEADER_LEN + 8 * (i - 1)
        local first, last = t(at, 4):uint(), t(at + 4, 4):uint()
        d.tree:add(f.range_start, t(at, 4))
        d.tree:add(f.range_end, t(at + 4, 4))
        local span = (last - first) % 4294967296
        if span == 0 or span >= 2147483648 then
            return "empty range"
        end
        said[i] = first .. "-" .. last
    end
    return nil, table.concat(said, " ")
end

-- Opcodes that end with the header: the field that aux is, whether PSN means something, and the
-- values that aux may have.
local FIXED = {
    [3] = { f.reason, false, function(aux) return REASONS[aux] end },
    [4] = { f.reason, false, function(aux) return REASONS[aux] end },
    [6] = { f.timer, true, function(aux) return aux < 32 and "timer code " .. aux or nil end },
    [7] = { f.terminate, true, function(aux) return TERMINATE_WORDS[aux] end },
    [8] = { f.aux, false, function(aux) return aux == 0 and "" or nil end },
}

local function fixed(d)
    local t, rule = d.t, FIXED[d.opcode]
    d.tree:add(f.psn, t(16, 4))
    d.tree:add(rule[1], t(20, 4))
    local psn, said = t(16, 4):uint(), rule[3](t(20, 4):uint())
    if t:len() ~= HEADER_LEN then
        return "longer than its header"
    elseif not said or (not rule[2] and psn ~= 0) then
        return "PSN or aux out of range"
    end
    if rule[2] then
        d.tree:add_proto_expert_info(E.refused, "Request " .. psn .. " refused: " .. said)
        said = "PSN " .. psn .. " " .. said
    end
    return nil, said
end

local READERS = { [0] = data, [3] = fixed, [4] = fixed, [5] = sack, [6] = fixed, [7] = fixed,
    [8] = fixed, [9] = data, [10] = bundle, [11] = bundle }

-- The flags' own line, and one for each.
local function add_flags(d, ...)
    local sub = d.tree:add(f.flags, d.t(1, 1))
    for _, field in ipairs({ ... }) do
        sub:add(field, d.t(1, 1))
    end
end

-- Compares the CRC, if the datagram has one.
local function add_crc(d)
    local item = d.tree:add(f.crc, d.t(CRC_AT, 4))
    local status = "absent"
    if not causeway.prefs.crc or d.cut > 0 then
        status = "not checked"
    elseif d.has_crc then
        d.checked = d.checked or checked_length(d.raw)
        status = d.checked == #d.raw and "good" or "bad"
    end
    d.tree:add(f.crc_status, d.t(CRC_AT, 4), status):set_generated()
    if status == "bad" then
        item:add_proto_expert_info(E.crc)
        d.note = " [wrong CRC]"
    end
end

-- Endpoints send and receive at the ports of their queue pairs' slots.
local function check_port(qpn, port, item)
    if port ~= SLOT_BASE + math.floor(qpn / 4096) and qpn ~= MULTICAST_QPN then
        item:add_proto_expert_info(E.port)
    end
end

local function hello(d)
    local t = d.t
    if t:len() ~= HELLO_LEN then
        return t:len() < HELLO_LEN and "shorter than a connection request" or "too long"
    end
    d.has_crc = true
    add_flags(d, f.flag_ready, f.flag_crc)
    d.tree:add(f.reserved, t(2, 2))
    add_qpn(d.tree, f.dst_qpn, t(4, 4))
    d.tree:add(f.cookie, t(8, 8))
    d.tree:add(f.own_cookie, t(16, 8))
    d.tree:add(f.sends_psn, t(24, 4))
    d.tree:add(f.expect, t(28, 4))
    add_crc(d)
    add_qpn(d.tree, f.src_qpn, t(36, 4))
    d.tree:add(f.datagram, t(40, 2))
    d.tree:add(f.window, t(42, 2))
    d.tree:add(f.features, t(44, 4))
    d.tree:add(f.host, t(48, 16))
    d.tree:add(f.nonce, t(64, 16))
    local flags, dst, src = t(1, 1):uint(), t(4, 4):uint(), t(36, 4):uint()
    if band(flags, 0xFF - LAST) ~= CRC then
        return "flags"
    elseif t(2, 2):uint() ~= 0 or dst > QPN_MASK or src > QPN_MASK then
        return "reserved bits"
    end
    return nil, string.format("PSN %d, expects %d", t(24, 4):uint(), t(28, 4):uint())
end

local function trp(d)
    local t = d.t
    if t:len() < HEADER_LEN then
        return "shorter than its header"
    end
    local flags = t(1, 1):uint()
    d.has_crc = band(flags, CRC) ~= 0
    add_flags(d, f.flag_last, f.flag_relaxed, f.flag_crc, f.flag_response, f.flag_ask,
        f.flag_marks)
    d.tree:add(f.window, t(2, 2))
    d.tree:add(f.epoch, t(4, 1))
    add_qpn(d.tree, f.dst_qpn, t(5, 3))
    d.tree:add(f.cookie, t(8, 8))
    d.tree:add(f.ack_request, t(24, 4))
    d.tree:add(f.ack_response, t(28, 4))
    add_crc(d)
    d.tree:add(f.duplicates, t(36, 1))
    local item = d.tree:add(f.src_qpn, t(37, 3))
    d.tree:add(f.qpn, t(37, 3)):set_hidden()
    check_port(t(37, 3):uint(), d.pinfo.src_port, item)
    if band(flags, 0xFF - MARKS - ASK - CRC - (OWN_FLAGS[d.opcode] or 0)) ~= 0 then
        return "flags"
    end
    return READERS[d.opcode](d)
end

local function ud(d)
    local t = d.t
    if t:len() < UD_HEADER_LEN then
        return "shorter than its header"
    end
    add_flags(d, f.solicited, f.has_imm)
    d.tree:add(f.traffic_class, t(2, 1))
    d.tree:add(f.hop_limit, t(3, 1))
    add_qpn(d.tree, f.dst_qpn, t(5, 3))
    d.tree:add(f.qkey, t(8, 4))
    d.tree:add(f.imm, t(12, 4))
    local item = d.tree:add(f.src_qpn, t(17, 3))
    d.tree:add(f.qpn, t(17, 3)):set_hidden()
    d.tree:add(f.flow_label, t(20, 4))
    check_port(t(17, 3):uint(), d.pinfo.src_port, item)
    local flags = t(1, 1):uint()
    local has_imm = band(flags, 2) ~= 0
    if t:len() > UD_HEADER_LEN + UD_PAYLOAD_MAX then
        return "too long"
    elseif flags > 3 or t(4, 1):uint() ~= 0 or t(16, 1):uint() ~= 0 then
        return "flags or reserved bytes"
    elseif (not has_imm and t(12, 4):uint() ~= 0) or t(20, 4):uint() > 0xFFFFF then
        return "field out of range"
    end
    return nil, payload(t, UD_HEADER_LEN, d.tree, d.cut)
end

-- Whose key it is, and what is not sealed.
local function sealed(d)
    local t, whole = d.t, d.t:len() + d.cut
    if whole < SEALED_HEADER_LEN + TAG_LEN then
        return "shorter than its header and tag"
    end
    d.tree:add(f.phase, t(1, 1))
    d.tree:add(f.src_index, t(2, 2))
    add_qpn(d.tree, f.dst_qpn, t(4, 4))
    d.tree:add(f.cookie, t(8, 8))
    d.tree:add(f.number, t(16, 8))
    local length = whole - SEALED_HEADER_LEN - TAG_LEN
    d.tree:add(f.sealed_length, length):set_generated()
    if d.cut == 0 then
        if length > 0 then
            d.tree:add(f.sealed, t(SEALED_HEADER_LEN, length))
        end
        d.tree:add(f.tag, t(SEALED_HEADER_LEN + length, TAG_LEN))
    end
    if t(2, 2):uint() > QPN_INDEX_MASK or t(4, 4):uint() > QPN_MASK then
        return "reserved bits"
    end
    return nil, string.format("> 0x%06x, key phase %d, number %s, sealed payload of %d bytes",
        t(4, 4):uint(), t(1, 1):uint(), tostring(t(16, 8):uint64()), length)
end

-- The same of a datagram to a multicast group.
local function group(d)
    local t, whole = d.t, d.t:len() + d.cut
    if whole < GROUP_HEADER_LEN + TAG_LEN then
        return "shorter than its header and tag"
    end
    d.tree:add(f.cipher, t(2, 1))
    add_qpn(d.tree, f.dst_qpn, t(4, 4))
    add_qpn(d.tree, f.src_qpn, t(8, 4))
    d.tree:add(f.time, t(12, 4))
    d.tree:add(f.number, t(16, 8))
    d.tree:add(f.key, t(24, 8))
    d.tree:add(f.salt, t(32, 16))
    local length = whole - GROUP_HEADER_LEN - TAG_LEN
    d.tree:add(f.sealed_length, length):set_generated()
    if d.cut == 0 then
        if length > 0 then
            d.tree:add(f.sealed, t(GROUP_HEADER_LEN, length))
        end
        d.tree:add(f.tag, t(GROUP_HEADER_LEN + length, TAG_LEN))
    end
    local src = t(8, 4):uint()
    if t(1, 1):uint() ~= 0 or t(3, 1):uint() ~= 0 or t(4, 4):uint() ~= QPN_MULTICAST or
        src > QPN_MASK then
        return "reserved bits"
    end
    return nil, string.format("0x%06x > group, number %s, sealed payload of %d bytes",
        src, tostring(t(16, 8):uint64()), length)
end

local function zero_cookie(t, at)
    return t(at, 8):uint64() == UInt64(0, 0)
end

local function handshake(d)
    local t = d.t
    if t:len() < HANDSHAKE_HEADER_LEN then
        return "shorter than its header"
    end
    d.tree:add(f.step, t(1, 1))
    d.tree:add(f.why, t(2, 1))
    add_qpn(d.tree, f.dst_qpn, t(4, 4))
    d.tree:add(f.cookie, t(8, 8))
    d.tree:add(f.own_cookie, t(16, 8))
    add_qpn(d.tree, f.src_qpn, t(24, 4))
    d.tree:add(f.message_length, t(28, 2))
    local length, step, why = t(28, 2):uint(), t(1, 1):uint(), t(2, 1):uint()
    local dst, src = t(4, 4):uint(), t(24, 4):uint()
    local form = FORMS[step]
    if t:len() + d.cut ~= HANDSHAKE_HEADER_LEN + length then
        return "wrong length"
    elseif t(3, 1):uint() ~= 0 or t(30, 2):uint() ~= 0 or dst > QPN_MASK or src > QPN_MASK then
        return "reserved bits"
    elseif not form or (step == REFUSAL) ~= (why ~= 0) or length < form.cookie or
        (length > form.cookie) ~= (form.most > 0) or length > form.cookie + form.most then
        return "step, reason or length"
    elseif (step == REFUSAL and not WHY[why]) or form.receiver == zero_cookie(t, 8) or
        form.sender == zero_cookie(t, 16) then
        return "reason or cookies"
    end
    local at = HANDSHAKE_HEADER_LEN + form.cookie
    if form.cookie > 0 and t:len() >= at then
        d.tree:add(f.load_cookie, t(HANDSHAKE_HEADER_LEN, form.cookie))
    end
    if t:len() > at then
        d.tree:add(f.message, t(at))
    end
    local said = string.format("0x%06x > 0x%06x %s", src, dst, STEPS[step])
    if step == REFUSAL then
        d.tree:add_proto_expert_info(E.refused, "Secured connection refused: " .. WHY[why])
        return nil, said .. ": " .. WHY[why]
    elseif form.most == 0 then
        return nil, said
    end
    return nil, said .. ", message of " .. length - form.cookie .. " bytes"
end

local function notice(d)
    local t = d.t
    if t:len() ~= NOTICE_LEN then
        return "wrong length"
    end
    d.has_crc = true
    d.tree:add(f.speaks, t(1, 1))
    d.tree:add(f.answers, t(2, 1))
    add_qpn(d.tree, f.dst_qpn, t(4, 4))
    d.tree:add(f.cookie, t(8, 8))
    add_crc(d)
    add_qpn(d.tree, f.src_qpn, t(36, 4))
    local speaks, answers = t(1, 1):uint(), t(2, 1):uint()
    if speaks == answers or speaks * answers == 0 or speaks > 15 or answers > 15 then
        return "versions"
    elseif not zeros(d.raw, 3, 5) or not zeros(d.raw, 16, 32) or t(36, 1):uint() ~= 0 then
        return "reserved bytes"
    end
    return nil, string.format("speaks %d, not %d", speaks, answers)
end

-- Opcodes whose layouts are their own.
local OTHER = {
    [1] = hello, [2] = hello, [12] = ud, [SEALED] = sealed, [HANDSHAKE] = handshake,
    [GROUP] = group,
}
-- Whether a file says that a packet was sent or received; nothing does in ordinary captures.
local direction = Field.new("frame.packet_flags_direction")

-- One datagram of an endpoint's port; what the info column says of it. `checked` is the length that
-- its CRC fits, if that has been looked at; `cut`, how many bytes more there were.
local function datagram(t, at, pinfo, tree, checked, cut)
    local first = t(0, 1):uint()
    local d = { t = t, raw = t:raw(), at = at, pinfo = pinfo, opcode = band(first, 0x0F),
        checked = checked, note = "", cut = cut, direction = tostring(direction() or "") }
    local version, name = rshift(first, 4), OPCODES[d.opcode] or "Unknown opcode"
    name = first == 0 and "Version notice" or name
    d.tree = tree:add(causeway, t(), "Causeway " .. name)
    d.tree:add(f.version, t(0, 1))
    d.tree:add(f.opcode, t(0, 1))
    local problem, said
    if first == 0 then
        problem, said = notice(d)
    elseif version ~= VERSION then
        problem = "version " .. version
    elseif not OPCODES[d.opcode] then
        problem = "unknown opcode"
    else
        problem, said = (OTHER[d.opcode] or trp)(d)
    end
    if problem then
        d.tree:add_proto_expert_info(E.malformed, "Malformed datagram: " .. problem)
        said = "[malformed: " .. problem .. "]"
    elseif d.opcode < 12 then
        local dst, src = t(5, 3):uint(), t(37, 3):uint()
        said = string.format("0x%06x > 0x%06x %s", src, dst, said)
    end
    return name .. " " .. said .. d.note
end

-- How long the first of the datagrams in `raw` is, and the length that its CRC fits.
local function first_length(raw)
    local first, flags = raw:byte(1, 2)
    local opcode, checked = band(first, 0x0F), nil
    if rshift(first, 4) ~= VERSION or #raw <= HEADER_LEN then
        return #raw
    elseif opcode == 12 then
        return ud_length(raw) or #raw
    elseif opcode == SEALED then
        return named_length(raw) or #raw
    elseif opcode == HANDSHAKE then
        return #raw
    end
    -- Connection requests and accepts bear a CRC in any case.
    if causeway.prefs.crc and (band(flags, CRC) ~= 0 or opcode == 1 or opcode == 2) then
        checked = checked_length(raw)
    end
    return checked or (READERS[opcode] and named_length(raw)) or #raw, checked
end

function causeway.dissector(tvb, pinfo, tree)
    if tvb:len() == 0 then
        return 0
    end
    pinfo.cols.protocol = "Causeway"
    local cut = tvb:reported_len() - tvb:len()
    if cut > 0 then
        pinfo.cols.info = datagram(tvb, 0, pinfo, tree, nil, cut)
        return tvb:len()
    end
    -- All datagrams of one packet have one length; only the last may be shorter.
    local length, checked = first_length(tvb:raw())
    local said, at = {}, 0
    while at < tvb:len() do
        local rest = math.min(length, tvb:len() - at)
        said[#said + 1] = datagram(tvb(at, rest):tvb(), at, pinfo, tree,
            at == 0 and checked or nil, 0)
        at = at + rest
    end
    pinfo.cols.info = table.concat(said, " | ")
    return tvb:len()
end

DissectorTable.get("udp.port"):add(FIRST_PORT .. "-" .. MULTICAST_PORT, causeway)

local CM_FIELDS = {
    { f.cm_space, 2, 1 }, { f.cm_length, 3, 1 }, { f.cm_reason, 4, 2 }, { f.cm_port, 6, 2 },
    { f.cm_receiver, 8, 8 }, { f.cm_sender, 16, 8 }, { f.qpn, 24, 4 }, { f.psn, 28, 4 },
    { f.qkey, 36, 4 }, { f.cm_responder, 40, 1 }, { f.cm_initiator, 41, 1 }, { f.cm_retry, 42, 1 },
    { f.cm_rnr, 43, 1 }, { f.cm_acked, 44, 1 }, { f.cm_gid, 48, 16 },
}

-- What is wrong with a message of the connection manager, if anything.
local function cm_problem(d)
    local t, flags, acked, private = d.t, d.t(1, 1):uint(), d.t(44, 1):uint(), d.t(3, 1):uint()
    local length = CM_HEADER_LEN + (d.opcode == 1 and CM_PRIVATE_MAX or private)
    if private > CM_PRIVATE_MAX or t:len() + d.cut ~= length then
        return "wrong length"
    elseif band(flags, 0xFE) ~= CRC then
        return "flags"
    elseif not CM_OPCODES[d.opcode] or not CM_SPACES[t(2, 1):uint()] then
        return "opcode or port space"
    elseif (d.opcode == 8 and not CM_ACKED[acked]) or (d.opcode ~= 8 and acked ~= 0) then
        return "what it acknowledges"
    elseif not zeros(d.raw, 45, 48) or not zeros(d.raw, CM_HEADER_LEN + private, t:len()) then
        return "reserved bytes"
    elseif t(24, 4):uint() > QPN_MASK or t(16, 8):uint64() == UInt64(0, 0) then
        return "QPN or sender"
    end
end

local function cm_body(d)
    if d.t:len() < CM_HEADER_LEN then
        return "shorter than its header"
    elseif d.version ~= CM_VERSION then
        return "version " .. d.version
    end
    local private = d.t(3, 1):uint()
    d.has_crc = true
    add_flags(d, f.cm_srq, f.flag_crc)
    for _, row in ipairs(CM_FIELDS) do
        d.tree:add(row[1], d.t(row[2], row[3]))
    end
    add_crc(d)
    local kept = math.min(private, d.t:len() - CM_HEADER_LEN)
    if kept > 0 then
        d.tree:add(f.cm_private, d.t(CM_HEADER_LEN, kept))
    end
    return cm_problem(d)
end

-- A message that the broker has sealed, or what nothing seals, a refusal or that a request is to
-- come again with a token: what is in the clear.
local function cm_secured(tvb, pinfo, tree)
    pinfo.cols.protocol = "Causeway CM"
    local length, why = tvb:reported_len() - CM_SEALED_HEADER_LEN - TAG_LEN, tvb(1, 1):uint()
    tree:add(f.cm_version, tvb(0, 1))
    tree:add(f.cm_opcode, tvb(0, 1))
    tree:add(f.cm_receiver, tvb(8, 8))
    if band(tvb(0, 1):uint(), 0x0F) == CM_REFUSAL and why == CM_COME_AGAIN then
        tree:add(f.cm_token, tvb(16, 8))
        pinfo.cols.info = "Come again with a token"
        return
    elseif band(tvb(0, 1):uint(), 0x0F) == CM_REFUSAL then
        tree:add(f.why, tvb(1, 1))
        tree:add_proto_expert_info(E.refused, "Secured connection refused: " .. WHY[why])
        pinfo.cols.info = "Refused request: " .. WHY[why]
        return
    end
    tree:add(f.cm_sender, tvb(16, 8))
    tree:add(f.salt, tvb(24, CM_SEALED_HEADER_LEN - 24))
    tree:add(f.sealed_length, length):set_generated()
    local kept = math.min(length, tvb:len() - CM_SEALED_HEADER_LEN)
    if kept > 0 then
        tree:add(f.sealed, tvb(CM_SEALED_HEADER_LEN, kept))
    end
    if tvb:len() == tvb:reported_len() then
        tree:add(f.tag, tvb(CM_SEALED_HEADER_LEN + length, TAG_LEN))
    end
    pinfo.cols.info = "Sealed message, sealed payload of " .. length .. " bytes"
end

local manager = Proto("causeway_cm", "Causeway Connection Manager")

function manager.dissector(tvb, pinfo, tree)
    if tvb:len() == 0 then
        return 0
    end
    local first = tvb(0, 1):uint()
    local d = { t = tvb, raw = tvb:raw(), opcode = band(first, 0x0F), version = rshift(first, 4),
        note = "", cut = tvb:reported_len() - tvb:len() }
    local name = CM_OPCODES[d.opcode] or "unknown message"
    pinfo.cols.protocol = "Causeway CM"
    d.tree = tree:add(manager, tvb(), "Causeway connection manager, " .. name)
    if d.opcode == CM_SEALED or d.opcode == CM_REFUSAL then
        cm_secured(tvb, pinfo, d.tree)
        return tvb:len()
    end
    d.tree:add(f.cm_version, tvb(0, 1))
    d.tree:add(f.cm_opcode, tvb(0, 1))
    local problem = cm_body(d)
    if problem then
        d.tree:add_proto_expert_info(E.malformed, "Malformed datagram: " .. problem)
        name = name .. " [malformed: " .. problem .. "]"
    else
        local acked, qpn = CM_ACKED[tvb(44, 1):uint()], tvb(24, 4):uint()
        name = name .. (acked and " of " .. acked or "")
        name = name .. (qpn > 0 and string.format(" QPN 0x%06x", qpn) or "")
        name = name .. (d.opcode == 3 and ", " .. (CM_REASONS[tvb(4, 2):uint()] or "") or "")
    end
    pinfo.cols.info = name .. d.note
    return tvb:len()
end

-- Whether it is a message that the broker has sealed, or the refusal of one: of those nothing but
-- the first bytes can be looked at.
local function is_cm_secured(tvb)
    local length, first = tvb:reported_len(), tvb(0, 1):uint()
    if first == CM_VERSION * 16 + CM_SEALED then
        local payload_length = length - CM_SEALED_HEADER_LEN - TAG_LEN
        return tvb:len() >= CM_SEALED_HEADER_LEN and payload_length >= 0 and
            payload_length <= CM_HEADER_LEN + CM_PRIVATE_MAX and zeros(tvb:raw(), 1, 8)
    end
    if first ~= CM_VERSION * 16 + CM_REFUSAL or length ~= CM_REFUSAL_LEN or
        tvb:len() ~= length or not zeros(tvb:raw(), 2, 8) or zero_cookie(tvb, 8) then
        return false
    end
    local why, token = tvb(1, 1):uint(), not zero_cookie(tvb, 16)
    return (why == CM_COME_AGAIN and token) or (WHY[why] ~= nil and not token)
end

-- Whether it is a message of the connection manager that was cut behind its header, as `causeway
-- trace` does: of those there is no CRC to look at, so all else must fit.
local function is_cut_cm(tvb)
    local first = tvb(0, 1):uint()
    local opcode = band(first, 0x0F)
    return rshift(first, 4) == CM_VERSION and opcode < CM_SEALED and
        not cm_problem({ t = tvb, raw = tvb:raw(), opcode = opcode,
            cut = tvb:reported_len() - tvb:len() })
end

-- The connection manager has no ports of its own. Its messages are told by their CRC.
local function is_cm(tvb, pinfo, tree)
    local length = tvb:len()
    if length > 0 and is_cm_secured(tvb) then
        manager.dissector(tvb, pinfo, tree)
        return true
    elseif length < CM_HEADER_LEN or length > CM_HEADER_LEN + CM_PRIVATE_MAX then
        return false
    end
    local first, flags = tvb(0, 1):uint(), tvb(1, 1):uint()
    if first < 0x10 or band(flags, CRC) == 0 or not CM_OPCODES[band(first, 0x0F)] or
        band(first, 0x0F) >= CM_SEALED then
        return false
    end
    local cut = tvb:reported_len() > length
    if (cut and not is_cut_cm(tvb)) or (not cut and checked_length(tvb:raw()) ~= length) then
        return false
    end
    pinfo.conversation = manager
    manager.dissector(tvb, pinfo, tree)
    return true
end

manager:register_heuristic("udp", is_cm)
