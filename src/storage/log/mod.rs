//! The log on disk: records in sequence, in segments that were created ahead, and a witness of how far they reach.
//!
//! | where | what it answers |
//! | --- | --- |
//! | `file` | how a record is appended, and when a segment ends |
//! | `file_thread` | what is done with files that no append waits for |
//! | `segments`, `record`, `body` | what is in a file, what surrounds a record, and what one holds |
//! | `index` | which records have which entries |
//! | `witness` | how far the log must reach |
//! | `scan`, `replay` | what a start reads, and whether it is sound |
//! | `place` | whose log it is, if it is not in the data directory |
//!
//! Invariants:
//! - An append is durable when it returns.
//! - It waits for other work with files only if segments fill faster than `file_thread` makes them.
//! - A record is removed only once a later one names a checkpoint that does not need it.
//!
//! How the end of the log is distinguished from damage:
//! - At most one record is being written, so a crash tears only the last one. If a sound record
//!   follows a damaged one, that is damage.
//! - The next segment is used only after a durable `E` record, so a log whose last segment is
//!   missing does not seem to end in the one before.
//! - The witness records how far the log reached. It is written after a pause in the writes and
//!   when the store is closed. Not covered: damage to the last records, if a crash came before the
//!   witness was written.
//!
//! Not here: which chunks a checkpoint has ([`checkpoint`](super::checkpoint)), when the witness is written
//! ([`store`](super::store)), and which writes are allowed ([`rules`](super::rules)).

pub(super) mod body;
pub(super) mod file;
pub(super) mod file_thread;
pub(super) mod index;
pub(super) mod place;
pub(super) mod record;
pub(super) mod replay;
pub(super) mod scan;
pub(super) mod segments;
pub(super) mod witness;
