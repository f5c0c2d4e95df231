//! One connection: what it has sent, what it is sent, and how long it may take for either.
//!
//! It answers one request after the other. While one is worked on or its answer is not taken, nothing more is
//! read, so a client that sends many at once waits for itself.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::time::Duration;

use mio::net::TcpStream;

use super::backup::Spool;
use super::http::{self, HEAD_BYTES_MAX, Head, Response};

/// How long a connection may be silent between two requests.
const IDLE: Duration = Duration::from_secs(60);
/// How long a request may take to arrive.
const REQUEST_WITHIN: Duration = Duration::from_secs(10);
/// How long a client may take nothing of what it is sent.
const STALLED: Duration = Duration::from_secs(20);
/// How many bytes a second it must take on average. A backup is one reader's at a time.
const RATE_MIN: u64 = 64 << 10;
/// How long what a client still sends is read away, so that it gets the answer.
const DRAIN: Duration = Duration::from_secs(2);
/// What may wait for one that listens. It is closed when it does not keep up.
const UNREAD_MAX: usize = 4 << 20;
/// It is read and written so often before it is another one's turn.
const ROUNDS_MAX: usize = 16;

enum State {
    /// A request is read.
    Reading,
    /// It is worked on.
    Answering,
    /// The answer is written.
    Writing,
    /// It listens until it ends.
    Listening,
    /// Nothing more is answered.
    Draining,
}

/// What became of a turn.
pub(super) enum Turn {
    /// There is nothing more to do before its socket is ready again.
    Waits,
    /// It was only interrupted.
    Goes,
    /// A whole request has come.
    Request(Head, Vec<u8>),
    /// The connection has ended.
    Over,
}

pub(super) struct Connection {
    stream: TcpStream,
    pub(super) from: SocketAddr,
    state: State,
    /// When its state began, or the client last took bytes.
    since: Duration,
    /// When its answer was begun, and how much of it the client has taken.
    begun: Duration,
    taken: u64,
    /// Its socket may have more to read.
    pub(super) readable: bool,
    input: Vec<u8>,
    /// The head of the request whose body is still to come, and was admitted.
    head: Option<Head>,
    output: Vec<u8>,
    written: usize,
    backup: Option<Box<Spool>>,
    keep: bool,
    head_only: bool,
}

impl Connection {
    pub(super) fn new(stream: TcpStream, from: SocketAddr, now: Duration) -> Connection {
        Connection {
            stream,
            from,
            state: State::Reading,
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

    /// Since when it has been waiting for a request; `None` if it is not.
    pub(super) fn idle_since(&self) -> Option<Duration> {
        matches!(self.state, State::Reading | State::Draining).then_some(self.since)
    }

    pub(super) fn listens(&self) -> bool {
        matches!(self.state, State::Listening)
    }

    /// Whether it has taken too long.
    pub(super) fn is_late(&self, now: Duration) -> bool {
        let most = match self.state {
            State::Reading if self.input.is_empty() && self.head.is_none() => IDLE,
            State::Reading => REQUEST_WITHIN,
            State::Answering => return false,
            State::Listening if self.output.is_empty() => return false,
            State::Writing | State::Listening => STALLED,
            State::Draining => DRAIN,
        };
        let due = STALLED + Duration::from_secs(self.taken / RATE_MIN);
        let is_slow = matches!(self.state, State::Writing) && now.saturating_sub(self.begun) > due;
        is_slow || now.saturating_sub(self.since) > most
    }

    /// Reads and writes what it can. `admit` decides on each head before its body is read.
    pub(super) fn turn(
        &mut self,
        now: Duration,
        scratch: &mut [u8],
        mut admit: impl FnMut(&Head) -> Result<(), Response>,
    ) -> Turn {
        for _ in 0..ROUNDS_MAX {
            match self.step(now, scratch, &mut admit) {
                Ok(Turn::Goes) => {}
                Ok(turn) => return turn,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Turn::Waits,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Turn::Over,
            }
        }
        Turn::Goes
    }

    fn step(
        &mut self,
        now: Duration,
        scratch: &mut [u8],
        admit: &mut impl FnMut(&Head) -> Result<(), Response>,
    ) -> io::Result<Turn> {
        if self.written < self.output.len() {
            let count = match self.stream.write(&self.output[self.written..])? {
                0 => return Ok(Turn::Over),
                count => count,
            };
            self.written += count;
            self.taken += count as u64;
            self.since = now;
            if self.written == self.output.len() {
                self.output.clear();
                self.written = 0;
            }
            return Ok(Turn::Goes);
        }
        match self.state {
            State::Reading => {
                if let Some(turn) = self.take_request(now, admit) {
                    return Ok(turn);
                }
                let count = self.read(scratch)?;
                if count == 0 {
                    return Ok(Turn::Over);
                }
                if self.input.is_empty() {
                    self.since = now;
                }
                self.input.extend_from_slice(&scratch[..count]);
                Ok(Turn::Goes)
            }
            State::Answering => Ok(Turn::Waits),
            State::Writing => {
                if let Some(backup) = &mut self.backup {
                    if backup.next(&mut self.output)? > 0 {
                        return Ok(Turn::Goes);
                    }
                    self.backup = None;
                }
                self.since = now;
                self.state = if self.keep { State::Reading } else { State::Draining };
                if !self.keep {
                    self.stream.shutdown(Shutdown::Write)?;
                }
                Ok(Turn::Goes)
            }
            // What it still sends is of no use; only its end matters.
            State::Listening | State::Draining => match self.read(scratch)? {
                0 => Ok(Turn::Over),
                _ => Ok(Turn::Goes),
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

    /// The next request, if all of it has come.
    fn take_request(
        &mut self,
        now: Duration,
        admit: &mut impl FnMut(&Head) -> Result<(), Response>,
    ) -> Option<Turn> {
        if self.head.is_none() {
            let parsed = match http::parse(&self.input) {
                Ok(parsed) => parsed,
                // It is no request: no other one is answered.
                Err(response) => {
                    self.input = Vec::new();
                    (self.keep, self.head_only) = (false, false);
                    self.answer(&response, now);
                    return Some(Turn::Goes);
                }
            };
            let (head, length) = parsed?;
            self.input.drain(..length);
            if let Err(response) = admit(&head) {
                // What follows is its body or the next request.
                self.head_only = head.method == http::Method::Head;
                self.keep = head.keep && head.body == 0;
                self.answer(&response, now);
                return Some(Turn::Goes);
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
        self.state = State::Answering;
        self.since = now;
        Some(Turn::Request(head, body))
    }

    pub(super) fn answer(&mut self, response: &Response, now: Duration) {
        self.output = response.encode(self.head_only, self.keep);
        self.written = 0;
        self.begin_writing(now);
    }

    fn begin_writing(&mut self, now: Duration) {
        self.state = State::Writing;
        (self.since, self.begun, self.taken) = (now, now, 0);
    }

    /// Sends a backup, and then ends.
    pub(super) fn answer_with(&mut self, backup: Box<Spool>, now: Duration) {
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
        // A browser waits for so long before it connects again.
        let response = Response::new("text/event-stream", []);
        self.output = response.head(None, false);
        self.output.extend_from_slice(b"retry: 1000\n\n");
        self.state = State::Listening;
        self.since = now;
    }

    /// Sends an event to one that listens. Returns whether it keeps up.
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

    /// After how many seconds a reader is late that takes so many bytes each second.
    fn late_after(rate: usize) -> Option<u64> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut reader = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, from) = listener.accept().unwrap();
        stream.set_nonblocking(true).unwrap();
        let at = Duration::from_secs;
        let mut connection = Connection::new(TcpStream::from_std(stream), from, at(0));
        connection.answer(&Response::new("text/plain", vec![0; 24 << 20]), at(0));
        let (mut scratch, mut bytes) = (vec![0; 1 << 10], vec![0; rate]);
        for second in 0..200 {
            connection.readable = true;
            let _ = connection.turn(at(second), &mut scratch, |_| Ok(()));
            if connection.is_late(at(second)) {
                return Some(second);
            }
            if !matches!(connection.state, State::Writing) {
                return None;
            }
            reader.read_exact(&mut bytes).unwrap();
        }
        panic!("it is neither late nor done");
    }

    /// It took a byte now and then, and kept the only backup to itself.
    #[test]
    fn a_reader_that_takes_little_is_late_though_it_never_stalls() {
        assert!(late_after(1 << 10).is_some());
        assert_eq!(late_after(1 << 20), None);
    }
}
