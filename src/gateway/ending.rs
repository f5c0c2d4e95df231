//! Why connections end: the type of the reasons, their log lines, and how often each has occurred.
//!
//! Every connection ends with one of these reasons, and every place that ends a connection names it. A reason
//! that an operator may have to act on is a warning; one that the client alone causes, by leaving, is logged at
//! `debug`. The lines of one reason are limited in rate, and the connections without a line are counted.

use std::borrow::Cow;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tracing::Level;

use super::wire::frame::{BadLength, TooLong};
use crate::types::error::Error;
use crate::types::warnings::Warnings;
use crate::types::znode::SessionId;

/// The lines of one reason in five seconds.
const LINES: u32 = 10;

/// Why a connection ends.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Ending {
    #[error("its four-letter word was answered")]
    Word,
    #[error("it closed its session")]
    SessionClosed,
    #[error("it closed the connection")]
    ClientLeft,
    #[error("the connection broke: {0}")]
    Broken(String),
    #[error("TLS failed: {0}")]
    Tls(String),
    #[error("there are {most} connections, the most that connections_max (--max-cnxns) allows")]
    TooMany { most: usize },
    #[error(
        "there are {most} connections from this address, the most that connections_per_address_max \
         (--max-client-cnxns) allows"
    )]
    TooManyOfAddress { most: usize },
    #[error(
        "the process has {open} files open, and may have only {most}, some of which are kept for disks and members: \
         raise that limit (ulimit -n, LimitNOFILE of systemd)"
    )]
    TooManyFiles { open: usize, most: usize },
    #[error("no first packet arrived within {} s", .0.as_secs())]
    NoFirstPacket(Duration),
    #[error(
        "it sent nothing that keeps its session alive for {} ms, the session's timeout",
        .0.as_millis()
    )]
    Silent(Duration),
    #[error(
        "its session's timeout of {} ms passed while it did not read what is sent to it",
        .0.as_millis()
    )]
    Unread(Duration),
    #[error(
        "its first bytes are not those of a ZooKeeper client: it may speak another protocol, or TLS at a \
         port without it"
    )]
    Foreign,
    #[error("it sent a packet that cannot be read")]
    Unreadable,
    #[error(
        "it sent a packet of {bytes} bytes, above the limit of {limit}: if that is no mistake, raise \
         packet_bytes_max (--jute-maxbuffer)"
    )]
    RequestTooLong { bytes: usize, limit: usize },
    #[error("it sent an operation that is not served: {op}")]
    Unimplemented { op: i32 },
    #[error("a reply to it would have about {bytes} bytes, above the limit of {limit}")]
    ReplyTooLong { bytes: usize, limit: usize },
    #[error("it left {bytes} bytes of events unread, above the limit of {limit}")]
    EventsUnread { bytes: usize, limit: usize },
    #[error(
        "it held {bytes} bytes that it did not read, the most of all clients, which hold more than {limit}: \
         buffer_bytes_max (--max-buffer-bytes)"
    )]
    Memory { bytes: usize, limit: usize },
    #[error("it has to set its watches again: it missed more changes than are kept")]
    MissedEvents,
    #[error("its session is over here: it expired, or the client continues at another connection")]
    SessionOver,
    #[error("it asked for a session that has expired, or with a wrong password")]
    SessionUnknown,
    #[error("it has seen a later state than this instance, and has to find another one")]
    Ahead,
    #[error("this instance has no quorum, and the client cannot be served without one")]
    NeedsQuorum,
    #[error(
        "this instance has lost its quorum or has one again, and its clients have to connect again"
    )]
    QuorumChanged,
    #[error("its credentials were refused: {0}")]
    AuthFailed(String),
    #[error("its request has no certain reply: {0}")]
    Unanswered(Error),
    #[error("the gateway was closed, or its instance has stopped")]
    Stopped,
    #[error("an unexpected failure, which should be reported: {0}")]
    Failure(Cow<'static, str>),
}

impl Ending {
    /// The reasons, as metrics and `mntr` name them, with the levels of their log lines.
    const REASONS: [(&'static str, Level); 28] = [
        ("word", Level::DEBUG),
        ("session_closed", Level::DEBUG),
        ("client_left", Level::DEBUG),
        ("broken", Level::DEBUG),
        ("tls", Level::WARN),
        ("too_many", Level::WARN),
        ("too_many_of_address", Level::WARN),
        ("too_many_files", Level::WARN),
        ("no_first_packet", Level::INFO),
        ("silent", Level::INFO),
        ("unread", Level::INFO),
        ("foreign", Level::WARN),
        ("unreadable", Level::WARN),
        ("request_too_long", Level::WARN),
        ("unimplemented", Level::WARN),
        ("reply_too_long", Level::WARN),
        ("events_unread", Level::WARN),
        ("memory", Level::WARN),
        ("missed_events", Level::INFO),
        ("session_over", Level::INFO),
        ("session_unknown", Level::INFO),
        ("ahead", Level::INFO),
        ("needs_quorum", Level::INFO),
        ("quorum_changed", Level::INFO),
        ("auth_failed", Level::WARN),
        ("unanswered", Level::INFO),
        ("stopped", Level::INFO),
        ("failure", Level::ERROR),
    ];

    /// Its place in the list of reasons.
    fn place(&self) -> usize {
        match self {
            Ending::Word => 0,
            Ending::SessionClosed => 1,
            Ending::ClientLeft => 2,
            Ending::Broken(_) => 3,
            Ending::Tls(_) => 4,
            Ending::TooMany { .. } => 5,
            Ending::TooManyOfAddress { .. } => 6,
            Ending::TooManyFiles { .. } => 7,
            Ending::NoFirstPacket(_) => 8,
            Ending::Silent(_) => 9,
            Ending::Unread(_) => 10,
            Ending::Foreign => 11,
            Ending::Unreadable => 12,
            Ending::RequestTooLong { .. } => 13,
            Ending::Unimplemented { .. } => 14,
            Ending::ReplyTooLong { .. } => 15,
            Ending::EventsUnread { .. } => 16,
            Ending::Memory { .. } => 17,
            Ending::MissedEvents => 18,
            Ending::SessionOver => 19,
            Ending::SessionUnknown => 20,
            Ending::Ahead => 21,
            Ending::NeedsQuorum => 22,
            Ending::QuorumChanged => 23,
            Ending::AuthFailed(_) => 24,
            Ending::Unanswered(_) => 25,
            Ending::Stopped => 26,
            Ending::Failure(_) => 27,
        }
    }

    /// Its name in metrics and in `mntr`.
    pub(super) fn reason(&self) -> &'static str {
        Ending::REASONS[self.place()].0
    }
}

impl From<BadLength> for Ending {
    fn from(BadLength { declared, limit }: BadLength) -> Ending {
        let bytes = usize::try_from(declared).ok();
        bytes.map_or(Ending::Unreadable, |bytes| Ending::RequestTooLong { bytes, limit })
    }
}

impl From<TooLong> for Ending {
    fn from(TooLong { bytes, limit }: TooLong) -> Ending {
        Ending::ReplyTooLong { bytes, limit }
    }
}

/// A log line at a level that is not a constant.
macro_rules! at_level {
    ($level:expr, $($line:tt)*) => {
        match $level {
            Level::ERROR => tracing::event!(Level::ERROR, $($line)*),
            Level::WARN => tracing::event!(Level::WARN, $($line)*),
            Level::INFO => tracing::event!(Level::INFO, $($line)*),
            _ => tracing::event!(Level::DEBUG, $($line)*),
        }
    };
}

/// An error of a socket. Only TLS calls data invalid.
impl From<io::Error> for Ending {
    fn from(error: io::Error) -> Ending {
        match error.kind() {
            io::ErrorKind::InvalidData => Ending::Tls(error.to_string()),
            _ => Ending::Broken(error.to_string()),
        }
    }
}

/// The connections of a gateway that have ended, by reason.
#[derive(Debug)]
pub(super) struct Endings {
    counts: [u64; Ending::REASONS.len()],
    warnings: [Warnings<Duration>; Ending::REASONS.len()],
}

impl Default for Endings {
    fn default() -> Endings {
        Endings {
            counts: [0; Ending::REASONS.len()],
            warnings: std::array::from_fn(|_| Warnings::new(LINES)),
        }
    }
}

impl Endings {
    /// Counts and logs the end of a connection.
    pub(super) fn note(
        &mut self,
        from: SocketAddr,
        session: Option<SessionId>,
        ending: &Ending,
        now: Duration,
    ) {
        let place = ending.place();
        let (reason, level) = Ending::REASONS[place];
        self.counts[place] += 1;
        let Some(suppressed) = self.warnings[place].permit(now) else { return };
        let suppressed = (suppressed > 0).then_some(suppressed);
        let session = session.map(|session| tracing::field::display(format!("{:#x}", session.0)));
        at_level!(
            level, %from, session, reason, suppressed,
            "a client of the gateway is disconnected: {ending}"
        );
    }

    /// Logs how many connections had no line of their own. Called regularly.
    pub(super) fn note_rest(&mut self, now: Duration) {
        for (warnings, (reason, level)) in self.warnings.iter_mut().zip(Ending::REASONS) {
            if let Some(more) = warnings.rest(now) {
                at_level!(level, reason, "{more} more clients of the gateway were disconnected");
            }
        }
    }

    /// How many connections have ended, for each reason.
    pub(super) fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Ending::REASONS.into_iter().map(|(reason, _)| reason).zip(self.counts)
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::{Debug, Write};
    use std::sync::{Arc, Mutex};

    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    use super::*;

    /// Collects lines, as their level and their fields.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<String>>>);

    struct Fields(String);

    impl Visit for Fields {
        fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
            write!(self.0, " {}={value:?}", field.name()).unwrap();
        }
    }

    impl Subscriber for Lines {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}

        fn event(&self, event: &Event<'_>) {
            let mut fields = Fields(event.metadata().level().to_string());
            event.record(&mut fields);
            self.0.lock().unwrap().push(fields.0);
        }
    }

    /// Connections were closed without a line at a level that is on, and without a reason.
    #[test]
    fn each_reason_has_a_few_lines_of_its_own_and_one_for_the_rest() {
        let lines = Lines::default();
        let from: SocketAddr = "192.0.2.7:40000".parse().unwrap();
        let mut endings = Endings::default();
        tracing::subscriber::with_default(lines.clone(), || {
            for _ in 0..LINES + 2 {
                endings.note(from, None, &Ending::TooMany { most: 60 }, Duration::ZERO);
            }
            let session = Some(SessionId(0xab));
            endings.note(from, session, &Ending::MissedEvents, Duration::ZERO);
            endings.note_rest(Duration::from_secs(1));
            endings.note_rest(Duration::from_secs(5));
            endings.note_rest(Duration::from_secs(6));
        });
        let lines = std::mem::take(&mut *lines.0.lock().unwrap());
        assert_eq!(lines.len(), LINES as usize + 2, "{lines:#?}");
        let [first, .., other, rest] = &lines[..] else { panic!() };
        for part in ["WARN", "192.0.2.7:40000", "reason=\"too_many\"", "there are 60 connections"] {
            assert!(first.contains(part), "{part}: {first}");
        }
        assert!(other.starts_with("INFO") && other.contains("session=0xab"), "{other}");
        assert!(rest.starts_with("WARN") && rest.contains("2 more clients"), "{rest}");
        let counts: Vec<_> = endings.counts().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counts, [("too_many", u64::from(LINES) + 2), ("missed_events", 1)]);
    }
}
