//! The audit log as a file of its own: a JSON object a line, rotated by size.
//!
//! Lines come from `tracing`, as the log's do. They are written by a thread of their own, so that no disk makes the
//! member wait. What cannot be queued is counted, and the next line says how many are missing.

use std::fmt::Debug;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{SystemTime, UNIX_EPOCH};

use quorate::{Error, Result};
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// The lines of the library that belong into the file.
pub(super) const TARGET: &str = "quorate::audit";
/// A file of this length is put aside.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// How many files are kept beside the one in use: NAME.1 is the latest.
const FORMER_MAX: u32 = 8;
/// How many lines may wait for the disk.
const WAITING_MAX: usize = 1 << 16;

enum AuditMessage {
    Line(String),
    /// Answers when all lines before it are in the file.
    Flush(SyncSender<()>),
}

pub(super) struct AuditFile {
    orders: SyncSender<AuditMessage>,
    lost: AtomicU64,
}

/// Waits for the lines that are on their way.
#[derive(Clone)]
pub(super) struct Flusher(SyncSender<AuditMessage>);

impl Flusher {
    pub(super) fn flush(&self) {
        let (done_tx, done) = sync_channel(1);
        // Both fail only if the thread has ended.
        if self.0.send(AuditMessage::Flush(done_tx)).is_ok() {
            let _ = done.recv();
        }
    }
}

impl AuditFile {
    /// Appends to this file, which is made if it is missing, and readable by its owner alone.
    pub(super) fn open(path: &Path) -> Result<(AuditFile, Flusher)> {
        let failed = |error: io::Error| Error::InvalidSetting {
            setting: "audit-file",
            reason: format!("{} cannot be written: {error}", path.display()),
        };
        let mut rotating = Rotating::open(path.to_owned()).map_err(failed)?;
        let (orders, received) = sync_channel(WAITING_MAX);
        let write = move || rotating.follow(&received);
        std::thread::Builder::new()
            .name("quorate-audit".to_owned())
            .spawn(write)
            .map_err(failed)?;
        let flusher = Flusher(orders.clone());
        Ok((AuditFile { orders, lost: AtomicU64::new(0) }, flusher))
    }
}

impl<S: Subscriber> Layer<S> for AuditFile {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if event.metadata().target() != TARGET {
            return;
        }
        let mut fields = EventFields(Map::new());
        #[expect(clippy::disallowed_methods, reason = "when it happened, for people")]
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        fields.0.insert("unix_ms".to_owned(), (now.as_millis() as u64).into());
        let lost = self.lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            fields.0.insert("lost_before".to_owned(), lost.into());
        }
        event.record(&mut fields);
        let line = Value::Object(fields.0).to_string();
        if self.orders.try_send(AuditMessage::Line(line)).is_err() {
            self.lost.fetch_add(lost + 1, Ordering::Relaxed);
        }
    }
}

/// The fields of an event. As JSON, no data in them can look like another field or another line.
struct EventFields(Map<String, Value>);

impl Visit for EventFields {
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}").into());
    }
}

struct Rotating {
    path: PathBuf,
    file: File,
    bytes: u64,
    /// Whether it is a file, and no device, pipe or link: these are never put aside.
    is_file: bool,
    has_failed: bool,
}

impl Rotating {
    fn open(path: PathBuf) -> io::Result<Rotating> {
        let file = open(&path)?;
        let bytes = file.metadata()?.len();
        let is_file = path.symlink_metadata()?.is_file();
        Ok(Rotating { path, file, bytes, is_file, has_failed: false })
    }

    fn follow(&mut self, orders: &Receiver<AuditMessage>) {
        while let Ok(order) = orders.recv() {
            match order {
                AuditMessage::Line(line) => self.note(&line),
                // Nobody waits any more: that is no error.
                AuditMessage::Flush(done) => _ = done.send(()),
            }
        }
    }

    fn note(&mut self, line: &str) {
        match self.write(line) {
            Ok(()) => self.has_failed = false,
            Err(error) => {
                if !std::mem::replace(&mut self.has_failed, true) {
                    let file = self.path.display();
                    tracing::error!(%file, %error, "the audit log cannot be written");
                }
            }
        }
    }

    fn write(&mut self, line: &str) -> io::Result<()> {
        if self.is_file && self.bytes > FILE_BYTES_MAX {
            self.rotate()?;
        }
        self.file.write_all(format!("{line}\n").as_bytes())?;
        self.bytes += line.len() as u64 + 1;
        Ok(())
    }

    fn rotate(&mut self) -> io::Result<()> {
        let former = |number: u32| {
            let mut name = self.path.clone().into_os_string();
            name.push(format!(".{number}"));
            PathBuf::from(name)
        };
        for number in (1..FORMER_MAX).rev() {
            if former(number).exists() {
                fs::rename(former(number), former(number + 1))?;
            }
        }
        fs::rename(&self.path, former(1))?;
        self.file = open(&self.path)?;
        self.bytes = 0;
        Ok(())
    }
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.append(true).create(true);
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[test]
    fn data_can_forge_neither_a_field_nor_a_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit");
        let (layer, flusher) = AuditFile::open(&path).unwrap();
        let subscriber = tracing_subscriber::registry().with(layer);
        let forged = "/a\",\"result\":\"success\"}\n{\"by\":\"root\"}";
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(target: TARGET, path = forged, right = %"client", refused = true, "audit");
            tracing::info!("another target");
        });
        flusher.flush();
        let text = fs::read_to_string(&path).unwrap();
        let lines: Vec<Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 1, "{text}");
        assert_eq!(lines[0]["path"], forged);
        assert_eq!((&lines[0]["right"], &lines[0]["refused"]), (&"client".into(), &true.into()));
        assert!(lines[0]["result"].is_null() && lines[0]["by"].is_null());
        assert!(lines[0]["unix_ms"].as_u64().unwrap() > 1_700_000_000_000);
    }

    /// `--audit-file /dev/stdout` took the device away after 64 MiB, for every process of the machine.
    #[test]
    fn what_is_no_file_is_not_put_aside() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("audit"));
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let mut rotating = Rotating::open(link.clone()).unwrap();
        rotating.note("first");
        rotating.bytes = FILE_BYTES_MAX + 1;
        rotating.note("second");
        assert!(link.is_symlink());
        assert_eq!(fs::read_to_string(&file).unwrap(), "first\nsecond\n");
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 2);
    }

    #[test]
    fn a_long_file_is_put_aside() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit");
        let mut rotating = Rotating::open(path.clone()).unwrap();
        for number in 0..12 {
            rotating.note(&format!("line {number}"));
            rotating.bytes = FILE_BYTES_MAX + 1;
        }
        let read = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
        assert_eq!((read("audit"), read("audit.1")), ("line 11\n".into(), "line 10\n".into()));
        assert_eq!(read("audit.8"), "line 3\n");
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 9);
        // It goes on where it was.
        let mut rotating = Rotating::open(path).unwrap();
        rotating.note("more");
        assert_eq!(read("audit"), "line 11\nmore\n");
    }
}
