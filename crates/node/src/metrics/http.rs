//! A server of HTTP/1.1 that has one page.
//!
//! It waits for all of its clients at once: one that has connected and asks for nothing, as
//! browsers do in advance, or that does not read, keeps no other from its answer.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use causeway_fabric::launch::timespec;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::limits::SCARCITY;

/// Where the page is.
const PATH: &str = "/metrics";
/// Of Prometheus' text format.
const FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";
/// Most bytes of a request.
const REQUEST_MAX: usize = 8192;
/// Most header lines of a request.
const HEADERS_MAX: usize = 64;
/// How long a client may take for its request, and for the answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Most clients at once. One more takes the place of the one that came first.
const CLIENTS_MAX: usize = 32;

/// What a page is made by.
type Page<'a> = &'a dyn Fn() -> Result<String, String>;

/// What is answered.
struct Answer {
    status: &'static str,
    body: String,
}

/// Answers one request of each connection.
pub fn serve(listener: &TcpListener, page: Page<'_>) {
    serve_patiently(listener, page, PATIENCE);
}

fn serve_patiently(listener: &TcpListener, page: Page<'_>, patience: Duration) {
    // The clients that were accepted first are the first ones.
    let mut clients = VecDeque::new();
    if let Err(error) = listener.set_nonblocking(true) {
        tracing::error!(%error, "no metrics");
        return;
    }
    loop {
        let outcome = wait(listener, &clients).and_then(|()| accept(listener, patience));
        match outcome {
            Ok(Some(client)) => {
                if clients.len() == CLIENTS_MAX {
                    clients.pop_front();
                }
                clients.push_back(client);
            }
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(%error, "metrics wait");
                std::thread::sleep(SCARCITY);
            }
        }
        clients.retain_mut(|client| match client.go_on(page, patience) {
            Ok(Progress::Waits) => Instant::now() < client.until,
            Ok(Progress::Done) => false,
            Err(error) => {
                let peer = client.peer;
                tracing::debug!(%peer, %error, "metrics were not asked for, or not taken");
                false
            }
        });
    }
}

/// Waits until a client comes, goes on, or has had its time.
fn wait(listener: &TcpListener, clients: &VecDeque<Client>) -> io::Result<()> {
    let mut fds = vec![PollFd::new(listener, PollFlags::IN)];
    fds.extend(clients.iter().map(|client| {
        let wanted = match client.answer {
            None => PollFlags::IN,
            Some(_) => PollFlags::OUT,
        };
        PollFd::new(&client.stream, wanted)
    }));
    let until = clients.iter().map(|client| client.until).min();
    let left = until.map(|until| timespec(until.saturating_duration_since(Instant::now())));
    match poll(&mut fds, left.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// The next client, if one has come.
fn accept(listener: &TcpListener, patience: Duration) -> io::Result<Option<Client>> {
    match listener.accept() {
        Ok((stream, peer)) => {
            stream.set_nonblocking(true)?;
            Ok(Some(Client {
                stream,
                peer,
                until: Instant::now() + patience,
                request: Vec::new(),
                answer: None,
            }))
        }
        Err(error) => match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::ConnectionAborted => {
                Ok(None)
            }
            _ => Err(error),
        },
    }
}

/// Whoever has connected.
struct Client {
    stream: TcpStream,
    peer: SocketAddr,
    /// How long it has time.
    until: Instant,
    /// As much of the request as has come.
    request: Vec<u8>,
    /// What is left of the answer, once there is one.
    answer: Option<VecDeque<u8>>,
}

enum Progress {
    /// The client has to do something first.
    Waits,
    /// It has its answer.
    Done,
}

impl Client {
    /// Reads and writes as much as can be.
    fn go_on(&mut self, page: Page<'_>, patience: Duration) -> io::Result<Progress> {
        let outcome = loop {
            let outcome = match &mut self.answer {
                Some(answer) if answer.is_empty() => return Ok(Progress::Done),
                Some(answer) => write_some(&mut self.stream, answer),
                None if is_whole(&self.request) => {
                    self.answer = Some(bytes_of(&self.request, page));
                    self.until = Instant::now() + patience;
                    Ok(())
                }
                None => read_some(&mut self.stream, &mut self.request),
            };
            match outcome {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => break error,
            }
        };
        match outcome.kind() {
            ErrorKind::WouldBlock => Ok(Progress::Waits),
            _ => Err(outcome),
        }
    }
}

fn read_some(stream: &mut TcpStream, request: &mut Vec<u8>) -> io::Result<()> {
    let mut part = [0; 1024];
    match stream.read(&mut part)? {
        0 => Err(ErrorKind::UnexpectedEof.into()),
        read => {
            request.extend_from_slice(&part[..read]);
            Ok(())
        }
    }
}

fn write_some(stream: &mut TcpStream, answer: &mut VecDeque<u8>) -> io::Result<()> {
    match stream.write(answer.as_slices().0)? {
        0 => Err(ErrorKind::WriteZero.into()),
        written => {
            answer.drain(..written);
            Ok(())
        }
    }
}

/// Whether the head of a request is there, up to its empty line, or more than there may be.
fn is_whole(request: &[u8]) -> bool {
    request.len() >= REQUEST_MAX || request.windows(4).any(|end| end == b"\r\n\r\n")
}

/// The answer to a request as it is sent.
fn bytes_of(request: &[u8], page: Page<'_>) -> VecDeque<u8> {
    let Answer { status, body } = answer(request, page);
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {FORMAT}\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    let body = if request.starts_with(b"HEAD ") {
        String::new()
    } else {
        body
    };
    (head + &body).into_bytes().into()
}

fn answer(request: &[u8], page: Page<'_>) -> Answer {
    let plain = |status, body: &str| Answer {
        status,
        body: format!("{body}\n"),
    };
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut parsed = httparse::Request::new(&mut headers);
    if !matches!(parsed.parse(request), Ok(httparse::Status::Complete(_))) {
        return plain("400 Bad Request", "not a request, or a too long one");
    }
    let path = parsed.path.unwrap_or_default();
    let path = path.split('?').next().unwrap_or_default();
    match (parsed.method, path) {
        (Some("GET" | "HEAD"), PATH) => match page() {
            Ok(body) => Answer {
                status: "200 OK",
                body,
            },
            Err(why) => plain("503 Service Unavailable", &why),
        },
        (Some("GET" | "HEAD"), _) => plain("404 Not Found", "the metrics are at /metrics"),
        _ => plain("405 Method Not Allowed", "GET or HEAD"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(request: &[u8]) -> &'static str {
        answer(request, &|| Ok("x 1\n".to_owned())).status
    }

    #[test]
    fn only_the_page_is_given() {
        assert_eq!(
            status(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"),
            "200 OK"
        );
        assert_eq!(status(b"HEAD /metrics?a=b HTTP/1.0\r\n\r\n"), "200 OK");
        assert_eq!(status(b"GET / HTTP/1.1\r\n\r\n"), "404 Not Found");
        let post = status(b"POST /metrics HTTP/1.1\r\n\r\n");
        assert_eq!(post, "405 Method Not Allowed");
        for bad in [&b""[..], b"\0\0\r\n\r\n", b"GET /metrics", &[b'x'; 9000]] {
            assert_eq!(status(bad), "400 Bad Request");
        }
        let lines = b"GET /metrics HTTP/1.1\r\n".to_vec();
        let many = [lines, b"a: b\r\n".repeat(HEADERS_MAX + 1), b"\r\n".to_vec()].concat();
        assert_eq!(status(&many), "400 Bad Request");
    }

    #[test]
    fn clients_that_ask_for_nothing_or_do_not_read_are_waited_for_beside_others() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        // More than a socket holds.
        let page = || Ok("x".repeat(16 << 20));
        // It ends with this process.
        std::thread::spawn(move || serve_patiently(&listener, &page, Duration::from_secs(3600)));
        let connect = || TcpStream::connect(at).unwrap();
        let ask = |client: &mut TcpStream, request: &str| {
            client.write_all(request.as_bytes()).unwrap();
            let mut answer = Vec::new();
            client.read_to_end(&mut answer).unwrap();
            String::from_utf8(answer).unwrap()
        };
        let mut silent = connect();
        let mut slow = connect();
        slow.write_all(b"GET /metr").unwrap();
        let mut deaf = connect();
        deaf.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        for (client, request) in [
            (&mut connect(), "HEAD /metrics HTTP/1.1\r\n\r\n"),
            (&mut slow, "ics HTTP/1.1\r\n\r\n"),
            (&mut silent, "GET /metrics HTTP/1.1\r\n\r\n"),
            (&mut deaf, ""),
        ] {
            let answer = ask(client, request);
            assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer:.99}");
            let whole = request.starts_with("HEAD") || answer.ends_with("xxx");
            assert!(whole, "{} bytes", answer.len());
        }
    }

    #[test]
    fn a_client_too_many_takes_the_place_of_the_first() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let page = || Ok("x 1\n".to_owned());
        std::thread::spawn(move || serve_patiently(&listener, &page, Duration::from_secs(3600)));
        let silent: Vec<_> = (0..=CLIENTS_MAX)
            .map(|_| TcpStream::connect(at).unwrap())
            .collect();
        let mut first = &silent[0];
        assert_eq!(first.read(&mut [0]).unwrap(), 0, "it is closed");
        let mut last = &silent[CLIENTS_MAX];
        last.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        let mut answer = String::new();
        last.read_to_string(&mut answer).unwrap();
        assert!(answer.ends_with("\r\n\r\nx 1\n"), "{answer}");
    }

    #[test]
    fn a_broker_that_does_not_answer_is_no_page() {
        let request = b"GET /metrics HTTP/1.1\r\n\r\n";
        let answer = answer(request, &|| Err("no broker".to_owned()));
        assert_eq!(answer.status, "503 Service Unavailable");
    }
}
