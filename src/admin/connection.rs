//! One connection: its requests, its responses, and the time limits for both.
//!
//! It answers one request after the other. While a request is processed or its response is not read by the
//! client, nothing more is read. So a client that sends many requests at once delays only itself.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::time::Duration;

use mio::net::TcpStream;

use super::backup::BackupFile;
use super::http::{self, HEAD_BYTES_MAX, RequestHead, Response};

/// How long a connection may be silent between two requests.
const IDLE: Duration = Duration::from_secs(60);
/// How long a request may take to arrive.
const REQUEST_WITHIN: Duration = Duration::from_secs(10);
/// How long a client may read nothing of a response.
const STALLED: Duration = Duration::from_secs(20);
/// How many bytes per second a client must read on average. The limit matters for backups, of which
/// there is only one at a time.
const RATE_MIN: u64 = 64 << 10;
/// How long bytes that a client still sends are read and dropped, so that it receives the response.
const DRAIN: Duration = Duration::from_secs(2);
/// How many bytes may wait for a listener. A listener that does not keep up is disconnected.
const UNREAD_MAX: usize = 4 << 20;
/// How many times one connection is read and written before the next one's turn.
const ROUNDS_MAX: usize = 16;

enum HttpState {
    /// Reading a request.
    Reading,
    /// The request is being processed.
    Answering,
    /// The response is being written.
    Writing,
    /// A listener to events, until the connection ends.
    Listening,
    /// No more requests are answered.
    Draining,
}

/// The result of a turn.
pub(super) enum TurnOutcome {
    /// There is nothing to do before the socket is ready again.
    Waits,
    /// There is more to do.
    Goes,
    /// A complete request has arrived.
    Request(RequestHead, Vec<u8>),
    /// The connection has ended.
    Over,
}

pub(super) struct AdminConnection {
    stream: TcpStream,
    pub(super) from: SocketAddr,
    state: HttpState,
    /// When the state began, or the client last read bytes.
    since: Duration,
    /// When the response was begun, and how many bytes of it the client has read.
    begun: Duration,
    taken: u64,
    /// The socket may have more to read.
    pub(super) readable: bool,
    input: Vec<u8>,
    /// The head of an admitted request whose body has not arrived yet.
    head: Option<RequestHead>,
    output: Vec<u8>,
    written: usize,
    backup: Option<Box<BackupFile>>,
    keep: bool,
    head_only: bool,
}

impl AdminConnection {
    pub(super) fn new(stream: TcpStream, from: SocketAddr, now: Duration) -> AdminConnection {
        AdminConnection {
            stream,
            from,
            state: HttpState::Reading,
            since: now,
            begun: now,
            taken: 0,
            readable: true,
            input: Vec::new(),
            head: None,
            output: Vec::new(),
            written: 0,
            backup: None,
            keep: true,
            head_only: false,
        }
    }

    /// Since when the connection has been waiting for a request; `None` if it is not.
    pub(super) fn idle_since(&self) -> Option<Duration> {
        matches!(self.state, HttpState::Reading | HttpState::Draining).then_some(self.since)
    }

    /// Since when the client has read nothing of what is being written; `None` if nothing is.
    pub(super) fn unread_since(&self) -> Option<Duration> {
        (self.written < self.output.len()).then_some(self.since)
    }

    pub(super) fn listens(&self) -> bool {
        matches!(self.state, HttpState::Listening)
    }

    /// Whether a time limit is exceeded.
    pub(super) fn is_late(&self, now: Duration) -> bool {
        let most = match self.state {
            HttpState::Reading if self.input.is_empty() && self.head.is_none() => IDLE,
            HttpState::Reading => REQUEST_WITHIN,
            HttpState::Answering => return false,
            HttpState::Listening if self.output.is_empty() => return false,
            HttpState::Writing | HttpState::Listening => STALLED,
            HttpState::Draining => DRAIN,
        };
        let due = STALLED + Duration::from_secs(self.taken / RATE_MIN);
        let is_slow =
            matches!(self.state, HttpState::Writing) && now.saturating_sub(self.begun) > due;
        is_slow || now.saturating_sub(self.since) > most
    }

    /// Reads and writes as much as possible without blocking. `admit` decides about each head
    /// before its body is read.
    pub(super) fn turn(
        &mut self,
        now: Duration,
        scratch: &mut [u8],
        mut admit: impl FnMut(&RequestHead) -> Result<(), Response>,
    ) -> TurnOutcome {
        for _ in 0..ROUNDS_MAX {
            match self.step(now, scratch, &mut admit) {
                Ok(TurnOutcome::Goes) => {}
                Ok(turn) => return turn,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return TurnOutcome::Waits,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return TurnOutcome::Over,
            }
        }
        TurnOutcome::Goes
    }

    fn step(
        &mut self,
        now: Duration,
        scratch: &mut [u8],
        admit: &mut impl FnMut(&RequestHead) -> Result<(), Response>,
    ) -> io::Result<TurnOutcome> {
        if self.written < self.output.len() {
            let count = match self.stream.write(&self.output[self.written..])? {
                0 => return Ok(TurnOutcome::Over),
                count => count,
            };
            self.written += count;
            self.taken += count as u64;
            self.since = now;
            if self.written == self.output.len() {
                self.output.clear();
                self.written = 0;
            }
            return Ok(TurnOutcome::Goes);
        }
        match self.state {
            HttpState::Reading => {
                if let Some(turn) = self.take_request(now, admit) {
                    return Ok(turn);
                }
                let count = self.read(scratch)?;
                if count == 0 {
                    return Ok(TurnOutcome::Over);
                }
                if self.input.is_empty() {
                    self.since = now;
                }
                self.input.extend_from_slice(&scratch[..count]);
                Ok(TurnOutcome::Goes)
            }
            HttpState::Answering => Ok(TurnOutcome::Waits),
            HttpState::Writing => {
                if let Some(backup) = &mut self.backup {
                    if backup.next(&mut self.output)? > 0 {
                        return Ok(TurnOutcome::Goes);
                    }
                    self.backup = None;
                }
                self.since = now;
                self.state = if self.keep { HttpState::Reading } else { HttpState::Draining };
                if !self.keep {
                    self.stream.shutdown(Shutdown::Write)?;
                }
                Ok(TurnOutcome::Goes)
            }
            // Received bytes are dropped; only the end of the connection matters.
            HttpState::Listening | HttpState::Draining => match self.read(scratch)? {
                0 => Ok(TurnOutcome::Over),
                _ => Ok(TurnOutcome::Goes),
            },
        }
    }

    fn read(&mut self, scratch: &mut [u8]) -> io::Result<usize> {
        if !self.readable {
            return Err(ErrorKind::WouldBlock.into());
        }
        let read = self.stream.read(scratch);
        if read.as_ref().is_err_and(|error| error.kind() == ErrorKind::WouldBlock) {
            self.readable = false;
        }
        read
    }

    /// Returns the next request, if all of it has arrived.
    fn take_request(
        &mut self,
        now: Duration,
        admit: &mut impl FnMut(&RequestHead) -> Result<(), Response>,
    ) -> Option<TurnOutcome> {
        if self.head.is_none() {
            let parsed = match http::parse(&self.input) {
                Ok(parsed) => parsed,
                // The bytes are not a request, so no later request can be answered.
                Err(response) => {
                    self.input = Vec::new();
                    (self.keep, self.head_only) = (false, false);
                    self.answer(&response, now);
                    return Some(TurnOutcome::Goes);
                }
            };
            let (head, length) = parsed?;
            self.input.drain(..length);
            if let Err(response) = admit(&head) {
                // The bytes after the head are its body or the next request.
                self.head_only = head.method == http::Method::Head;
                self.keep = head.keep && head.body == 0;
                self.answer(&response, now);
                return Some(TurnOutcome::Goes);
            }
            self.head = Some(head);
        }
        if self.head.as_ref().is_some_and(|head| self.input.len() < head.body) {
            return None;
        }
        let head = self.head.take()?;
        let body = self.input.drain(..head.body).collect();
        if self.input.len() < HEAD_BYTES_MAX {
            self.input.shrink_to(HEAD_BYTES_MAX);
        }
        self.keep = head.keep;
        self.head_only = head.method == http::Method::Head;
        self.state = HttpState::Answering;
        self.since = now;
        Some(TurnOutcome::Request(head, body))
    }

    pub(super) fn answer(&mut self, response: &Response, now: Duration) {
        self.output = response.encode(self.head_only, self.keep);
        self.written = 0;
        self.begin_writing(now);
    }

    fn begin_writing(&mut self, now: Duration) {
        self.state = HttpState::Writing;
        (self.since, self.begun, self.taken) = (now, now, 0);
    }

    /// Sends a backup, and then ends the connection.
    pub(super) fn answer_with(&mut self, backup: Box<BackupFile>, now: Duration) {
        let made = backup.backup();
        let name = format!("attachment; filename=\"quorate-{}.backup\"", made.zxid);
        let response = Response::new("application/octet-stream", [])
            .with("Content-Disposition", name)
            .with("Quorate-Zxid", made.zxid.to_string());
        self.output = response.head(Some(made.bytes), false);
        self.keep = false;
        self.backup = Some(backup);
        self.begin_writing(now);
    }

    /// Begins a stream of events.
    pub(super) fn listen(&mut self, now: Duration) {
        // The `retry` is how long a browser waits before it reconnects.
        let response = Response::new("text/event-stream", []);
        self.output = response.head(None, false);
        self.output.extend_from_slice(b"retry: 1000\n\n");
        self.state = HttpState::Listening;
        self.since = now;
    }

    /// Sends an event to a listener. Returns whether the listener keeps up.
    pub(super) fn send(&mut self, event: &[u8], now: Duration) -> bool {
        if self.output.is_empty() {
            self.since = now;
        }
        self.output.extend_from_slice(event);
        self.output.len() - self.written <= UNREAD_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After how many seconds a reader of this rate, in bytes per second, is late.
    fn late_after(rate: usize) -> Option<u64> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut reader = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, from) = listener.accept().unwrap();
        stream.set_nonblocking(true).unwrap();
        let at = Duration::from_secs;
        let mut connection = AdminConnection::new(TcpStream::from_std(stream), from, at(0));
        connection.answer(&Response::new("text/plain", vec![0; 24 << 20]), at(0));
        let (mut scratch, mut bytes) = (vec![0; 1 << 10], vec![0; rate]);
        for second in 0..200 {
            connection.readable = true;
            let _ = connection.turn(at(second), &mut scratch, |_| Ok(()));
            if connection.is_late(at(second)) {
                return Some(second);
            }
            if !matches!(connection.state, HttpState::Writing) {
                return None;
            }
            reader.read_exact(&mut bytes).unwrap();
        }
        panic!("it is neither late nor done");
    }

    /// A slow reader read a byte from time to time, and occupied the only backup.
    #[test]
    fn a_reader_that_takes_little_is_late_though_it_never_stalls() {
        assert!(late_after(1 << 10).is_some());
        assert_eq!(late_after(1 << 20), None);
    }
}
