//! Replays the fuzzing corpus of the virtual machines' device (fuzz/README.md).

#[path = "../../../fuzz/harness/corpus.rs"]
mod corpus;
#[path = "../../../fuzz/harness/vm.rs"]
mod vm;

/// Steps of the harness, as its inputs have them.
const KICK: u8 = 4;
const SOURCES: u8 = 5;
const ASK: u8 = 6;
const TELL: u8 = 9;
const HANG_UP: u8 = 10;
const STOP: u8 = 11;
const GO: u8 = 12;
const MISPLACE: u8 = 13;
const BUFFER: u8 = 14;
const KILL: u8 = 15;
/// The other queue.
const EVENTS: u8 = 0x80;

/// A request: operation, session, handle; size in half pages; handles of a message.
fn ask(operation: u8, session: u8, handle: u8, size: u8, handles: &[u8]) -> Vec<u8> {
    let mut out = vec![
        ASK,
        operation,
        session,
        handle,
        size,
        0,
        handles.len() as u8,
    ];
    out.extend(handles);
    out.resize(11, 0);
    out
}

fn message(session: u8, handles: &[u8]) -> Vec<u8> {
    [ask(3, session, 0, 0, handles), vec![2, b'h', b'i']].concat()
}

/// What a driver does: a session, a segment, a doorbell, a message; and what it is given.
fn honest() -> Vec<u8> {
    let steps = [
        ask(8, 0, 0, 0, &[]),
        ask(1, 1, 0, 0, &[]),
        ask(4, 0, 0, 4, &[]),
        ask(9, 0, 1, 0, &[]),
        ask(5, 0, 0, 0, &[]),
        message(1, &[1, 2]),
        vec![BUFFER, EVENTS | BUFFER],
        // A segment and a doorbell come with it.
        vec![TELL, 0, 0b0110, 2, b'y', b'o', SOURCES],
        ask(7, 0, 4, 0, &[]),
        ask(9, 0, 3, 0, &[]),
        // Wakes a word of it, listens to the doorbell.
        ask(12, 1, 3, 0, &[]),
        ask(11, 0, 4, 0, &[]),
        ask(10, 0, 1, 0, &[]),
        ask(6, 0, 3, 0, &[]),
        ask(6, 0, 1, 0, &[]),
    ];
    steps.concat()
}

/// Sleeps on a word of a segment, gives that up, sleeps again; empties a page; says that it
/// has left, which nobody asked it to.
fn sleeper() -> Vec<u8> {
    let steps = [
        ask(8, 0, 0, 0, &[]),
        ask(4, 0, 0, 4, &[]),
        ask(5, 0, 0, 0, &[]),
        [ask(13, 0, 2, 0, &[1]), vec![2, 0, 0]].concat(),
        ask(14, 0, 2, 0, &[]),
        [ask(13, 0, 2, 0, &[1, 1]), vec![2, 0, 0, 3, 0, 1]].concat(),
        vec![BUFFER, EVENTS | BUFFER, SOURCES],
        [ask(15, 0, 1, 2, &[]), vec![2, 0]].concat(),
        ask(16, 0, 0, 0, &[]),
    ];
    steps.concat()
}

#[test]
fn replay_vm() {
    corpus::replay("vm", vm::run);
}

#[test]
#[ignore = "writes files"]
fn write_vm_seeds() {
    let seed = |name: &str, steps: &[Vec<u8>]| corpus::write_seed("vm", name, &steps.concat());
    seed("honest", &[honest(), ask(2, 1, 0, 0, &[])]);
    seed("sleeper", &[sleeper()]);
    seed("hung-up", &[honest(), vec![HANG_UP, SOURCES, KICK]]);
    seed("killed", &[honest(), vec![KILL], honest()]);
    let stopped = vec![STOP, EVENTS | STOP, GO, EVENTS | GO];
    seed("stopped", &[honest(), stopped, honest()]);
    // Told while there is no buffer; the next one is offered later.
    let told = vec![TELL, 0, 0b0001, 1, b'x', SOURCES, BUFFER, SOURCES];
    seed("no-buffer", &[ask(1, 1, 0, 0, &[]), told]);
    // The used ring lies in the one of what is offered: each answer is another request.
    let place = |at: u16| [at.to_le_bytes(), [0; 2]].concat();
    let within = [vec![MISPLACE], place(0x1000), place(0x2000), place(0x2000)].concat();
    let rest = vec![64, 0, 0, 0, 3, 1, 0, KICK];
    seed("rings-in-each-other", &[honest(), within, rest]);
    // A chain that leads to itself, of lengths that wrap.
    let chain = vec![
        1, 0, 0, 0x80, 0, 0, 255, 255, 255, 255, 1, 0, 0, 2, 0, 0, KICK,
    ];
    seed("circle", std::slice::from_ref(&chain));
    // The table of an indirect descriptor lies beyond memory.
    let indirect = vec![1, 0, 0, 0, 255, 255, 64, 0, 0, 0, 4, 0, 0, 2, 0, 0, KICK];
    seed("indirect", &[chain, indirect]);
}
