//! A server of HTTP/1.1 that has one page and one connection at a time.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

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

/// What is answered.
struct Answer {
    status: &'static str,
    body: String,
}

/// Answers one request after the other, each on a connection of its own.
pub fn serve(listener: &TcpListener, page: &dyn Fn() -> Result<String, String>) {
    loop {
        match listener.accept() {
            Ok((stream, peer)) => {
                if let Err(error) = exchange(stream, page) {
                    tracing::debug!(%peer, %error, "metrics were not asked for, or not taken");
                }
            }
            Err(error) => {
                tracing::warn!(%error, "metrics wait");
                std::thread::sleep(SCARCITY);
            }
        }
    }
}

fn exchange(mut stream: TcpStream, page: &dyn Fn() -> Result<String, String>) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let request = read_request(&mut stream, Instant::now() + PATIENCE)?;
    let Answer { status, body } = answer(&request, page);
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {FORMAT}\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    if !request.starts_with(b"HEAD ") {
        stream.write_all(body.as_bytes())?;
    }
    Ok(())
}

/// The head of a request: as much as comes until its empty line.
fn read_request(stream: &mut TcpStream, until: Instant) -> io::Result<Vec<u8>> {
    let mut request = Vec::new();
    let mut part = [0; 1024];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") && request.len() < REQUEST_MAX {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut part)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => request.extend_from_slice(&part[..read]),
        }
    }
    Ok(request)
}

fn answer(request: &[u8], page: &dyn Fn() -> Result<String, String>) -> Answer {
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
    fn a_broker_that_does_not_answer_is_no_page() {
        let request = b"GET /metrics HTTP/1.1\r\n\r\n";
        let answer = answer(request, &|| Err("no broker".to_owned()));
        assert_eq!(answer.status, "503 Service Unavailable");
    }
}
