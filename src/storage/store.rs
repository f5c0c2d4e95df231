//! The store on disk: the log in segment files, checkpoints in files of chunks with a sled database each.
//!
//! An append is one write and one wait for the device, see `log`. The chunks of checkpoints are written to a
//! file, their places to sled, and they are valid once a record of the log names them. A full checkpoint is written to
//! a new generation, beside the current one, which stays valid until the new one is complete. This also bounds how
//! much longer its files are than their live content.
//!
//! `live` is the store once it was loaded: its log and its checkpoints. Here are the steps to that, the marks of the
//! directory, and what a failure leaves.
//!
//! Caveats: a panic inside sled poisons this store. But all databases of a process share sled's
//! thread pool, which may not work for other databases either after a panic. In a process that
//! aborts on panic, no panic can be caught.

mod live;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub(super) use self::live::Live;
use super::checkpoint::SharedCheckpoints;
use super::checkpoint::generation::Generation;
use super::checkpoint::part::read_chunks;
use super::directory::Directory;
use super::directory::incarnation::Incarnation;
use super::error::{guarded, refuse};
use super::file_system::FsPath;
use super::log::file::LogFile;
use super::log::replay::{LogReplay, read_log};
use super::log::segments;
use super::log::witness::Witness;
use super::opening;
use super::options::StoreOptions;
use super::rules::{has_voted, is_alone, is_voter};
use super::sealing::Sealing;
use crate::node::stored::{Boot, EntryKind, HardState, Identity, LogWrite, SnapshotMeta};
use crate::storage::contract::{Checkpointer, ChunkSink, LogAfter, LogStore, ReadDone, ScrubDone};
use crate::storage::error::{Result, StorageError};
use crate::storage::file_system::Space;
use crate::types::membership::Promise;

/// A node's store in a data directory.
#[derive(Debug)]
pub(crate) struct DiskStore {
    options: StoreOptions,
    failed: Option<String>,
    sealing: Sealing,
    state: State,
    /// Set from the load of a log in another directory until this start is noted.
    unnoted: Option<Unnoted>,
    /// The last field, so that the lock outlives the databases.
    directory: Directory,
}

/// A start that has promised nothing yet. Its log may be an old copy that was put there by mistake.
#[derive(Clone, Copy, Debug)]
struct Unnoted {
    /// Whether its member is the only one of its cluster.
    is_alone: bool,
}

#[derive(Debug)]
enum State {
    Blank,
    /// The log was read, but not the chunks.
    Opened(Box<Opened>),
    Live(Box<Live>),
}

/// A store whose log was read.
#[derive(Debug)]
struct Opened {
    generation: Generation,
    replay: LogReplay,
    witness: Witness,
}

impl DiskStore {
    /// Opens a data directory. If it is empty or does not exist, the store is blank.
    ///
    /// Gives up after a minute, and a second more for each MiB of the checkpoint. The directory may
    /// then stay in use for as long as the disk hangs: see [`opening`].
    pub(crate) fn open(dir: &FsPath, options: StoreOptions) -> Result<DiskStore> {
        DiskStore::open_within(opening::OPEN_TIMEOUT, dir, options)
    }

    /// As [`DiskStore::open`], with another time than a minute.
    pub(super) fn open_within(
        timeout: Duration,
        dir: &FsPath,
        options: StoreOptions,
    ) -> Result<DiskStore> {
        opening::within(timeout, dir, move |dir, size| {
            let directory = Directory::open(dir, options.log_dir.as_deref())?;
            DiskStore::open_directory(directory, options, size)
        })
    }

    pub(super) fn open_directory(
        directory: Directory,
        options: StoreOptions,
        size: &AtomicU64,
    ) -> Result<DiskStore> {
        let opened = match directory.current() {
            None => Ok((Sealing::default(), State::Blank)),
            Some(current) => {
                Sealing::open_keys(current.path(), options.keys.as_ref()).and_then(|sealing| {
                    let opened = DiskStore::open_log(current, &sealing, size)?;
                    Ok((sealing, opened))
                })
            }
        };
        let (sealing, state) = opened.map_err(|error| directory.quarantine_if_corrupt(error))?;
        Ok(DiskStore { options, failed: None, sealing, state, unnoted: None, directory })
    }

    fn open_log(current: &Incarnation, sealing: &Sealing, size: &AtomicU64) -> Result<State> {
        let log = current.log()?;
        let (witness, last) = Witness::open(&log.join(Witness::FILE))?;
        let needed = current.needed_record()?;
        // It is read twice.
        size.store(segments::bytes_in(&log).saturating_mul(2), Ordering::Relaxed);
        let mut replay = read_log(&log, current.log_id()?, &last, needed, sealing)?;
        if !replay.reaches {
            return Err(current.log_too_old());
        }
        // Before anything is done on the word of a record.
        replay.scan.make_durable(&log)?;
        let generations = current.generations();
        let open = || generations.open(replay.checkpoint.generation, size);
        let generation = open().or_else(|error| {
            // sled needs room to open a database, which spare files have.
            if !matches!(error, StorageError::NoSpace { .. }) {
                return Err(error);
            }
            generations.remove_spare();
            replay.scan.remove_others(&log)?;
            open()
        })?;
        Ok(State::Opened(Box::new(Opened { generation, replay, witness })))
    }

    /// The directory of the log, unless the store is blank.
    pub(crate) fn log(&self) -> Option<PathBuf> {
        let log = self.directory.current()?.log().ok()?;
        Some(log.path().to_owned())
    }

    /// Runs one call, unless an earlier call has failed. A failure poisons the store, except for
    /// [`StorageError::Again`].
    fn call<T>(&mut self, call: impl FnOnce(&mut DiskStore) -> Result<T>) -> Result<T> {
        if let Some(reason) = self.failed.clone() {
            return Err(StorageError::Poisoned { reason });
        }
        guarded(|| call(self)).map_err(|error| {
            if matches!(error, StorageError::Again { .. }) {
                return error;
            }
            self.failed = Some(error.to_string());
            self.directory.quarantine_if_corrupt(error)
        })
    }

    /// Lets spare segments of the log go if that is all the room there is.
    fn give_back_spare(&self, space: Option<&Space>) {
        if let (State::Live(live), Some(space)) = (&self.state, space) {
            live.log.give_back_spare(space.free);
        }
    }

    /// The same for what no checkpoint needs of the files of chunks.
    fn give_back_chunks(&self, space: Option<&Space>) {
        let generations = self.directory.current().map(|current| current.path());
        if let (State::Live(live), Some(generations), Some(space)) =
            (&self.state, generations, space)
        {
            live.give_back_chunks(generations, space.free);
        }
    }

    /// The room on the device of a log that has one of its own.
    fn log_space_now(&self) -> Option<Space> {
        self.directory.current()?.log_space()
    }

    fn live(&mut self) -> Result<&mut Live> {
        match &mut self.state {
            State::Live(live) => Ok(live),
            State::Opened(..) => refuse("the store is not loaded".to_owned()),
            State::Blank => refuse("the store is blank".to_owned()),
        }
    }

    /// Notes that this start goes on with its log: before its first vote, entry or checkpoint.
    fn note_start(&mut self) -> Result<()> {
        let Some(Unnoted { is_alone }) = self.unnoted else { return Ok(()) };
        let (random, sealing) = (self.options.random, self.sealing.clone());
        let live = self.live()?;
        let (last, generation) = (live.log.last(), live.checkpoints.lock().generation().number());
        let current = self.directory.owned()?;
        current.start_log(last, random, is_alone)?;
        current.remove_unused(generation, &sealing);
        self.unnoted = None;
        Ok(())
    }

    /// Marks the directory as that of a voter, if its node is a voter in this checkpoint.
    fn note_voter(&mut self, meta: &SnapshotMeta) {
        if self.directory.identity().is_some_and(|identity| is_voter(identity, meta)) {
            self.mark_voter();
        }
    }

    /// Best effort: without the mark, more former data is kept than necessary. The next checkpoint
    /// tries again.
    fn mark_voter(&mut self) {
        if let Err(error) = self.directory.owned().and_then(Incarnation::mark_voter) {
            tracing::warn!(%error, "cannot note that this member votes");
        }
    }
}

impl LogStore for DiskStore {
    fn space(&self) -> Option<Space> {
        let space = self.directory.path().space();
        self.give_back_chunks(space.as_ref());
        // A log on a device of its own has its spare segments there.
        if self.log_space_now().is_none() {
            self.give_back_spare(space.as_ref());
        }
        space
    }

    fn log_space(&self) -> Option<Space> {
        let space = self.log_space_now();
        self.give_back_spare(space.as_ref());
        space
    }

    fn identity(&self) -> Option<&Identity> {
        self.directory.identity()
    }

    fn promise(&self) -> &Promise {
        self.directory.promise()
    }

    fn set_identity(&mut self, identity: &Identity) -> Result<()> {
        self.call(|store| store.directory.owned()?.set_identity(identity))
    }

    fn set_promise(&mut self, promise: &Promise) -> Result<()> {
        self.call(|store| store.directory.owned()?.set_promise(promise))
    }

    fn mark_removed(&mut self) -> Result<()> {
        self.call(|store| store.directory.owned()?.mark_removed())
    }

    fn found(
        &mut self,
        identity: &Identity,
        hard_state: HardState,
        meta: &SnapshotMeta,
        chunks: &mut dyn Iterator<Item = Vec<u8>>,
    ) -> Result<()> {
        self.call(|store| {
            if !matches!(store.state, State::Blank) {
                return refuse("the store is founded already".to_owned());
            }
            let mut new = store.directory.begin(identity)?;
            let options = store.options.clone();
            let sealing = Sealing::create_keys(new.path(), options.keys.as_ref())?;
            store.sealing = sealing.clone();
            let live = Live::found(&mut new, identity, hard_state, meta, chunks, options, sealing)?;
            // Before this the directory opens as blank, afterwards as founded.
            store.directory.switch_to(new)?;
            store.state = State::Live(Box::new(live));
            store.note_voter(meta);
            Ok(())
        })
    }

    fn load(&mut self, sink: &mut ChunkSink<'_>) -> Result<Boot> {
        self.call(|store| {
            if let State::Live(live) = &store.state {
                return live.read_back(&store.sealing, sink);
            }
            let State::Opened(opened) = std::mem::replace(&mut store.state, State::Blank) else {
                return refuse("the store is blank".to_owned());
            };
            let Opened { mut generation, mut replay, witness } = *opened;
            let current = store.directory.owned()?;
            let log_id = current.log_id()?;
            read_chunks(&mut generation, log_id, &replay.checkpoint.parts, &store.sealing, sink)?;
            let boot = replay.log.boot(&replay.checkpoint);
            let LogReplay { scan, checkpoint, log: read, bounds, .. } = replay;
            let (paths, options) = (current.generations(), store.options.clone());
            let sealing = store.sealing.clone();
            if current.has_log_elsewhere() {
                store.unnoted = Some(Unnoted { is_alone: is_alone(current.identity(), &boot) });
            } else {
                // Only after everything has passed the checks.
                current.remove_unused(generation.number(), &sealing);
            }
            let (dir, bytes) = (current.log()?, options.segment_bytes);
            let log = LogFile::resume(&dir, log_id, bytes, scan, sealing.clone())?;
            let _ = store.directory.remove_leftovers();
            let found = (generation, checkpoint.parts);
            let checkpoints = SharedCheckpoints::new(paths, options, log_id, sealing, found)?;
            let live = Live::resume(checkpoints, log, witness, read, bounds)?;
            store.state = State::Live(Box::new(live));
            if let Some(reason) = store.directory.quarantined()? {
                tracing::warn!(
                    reason,
                    "the data directory was found damaged before, and what is used of it now passes all checks"
                );
                store.directory.clear_quarantined()?;
            }
            store.note_voter(&boot.checkpoint);
            Ok(boot)
        })
    }

    fn append(&mut self, write: &LogWrite) -> Result<()> {
        self.call(|store| {
            let live = store.live()?;
            let bounds = live.bounds_after(write)?;
            if write.entries.is_empty() && write.hard_state.is_none() {
                return Ok(());
            }
            if live.is_promise(write) {
                store.note_start()?;
            }
            if write.entries.iter().any(|entry| entry.kind == EntryKind::Membership) {
                store.directory.owned()?.forget_log_before()?;
            }
            store.live()?.append(write, bounds)?;
            if has_voted(write.hard_state.as_ref()) {
                store.mark_voter();
            }
            Ok(())
        })
    }

    fn read(&mut self, from: u64, bytes: u64, done: ReadDone) -> Result<()> {
        self.call(|store| {
            store.live()?.read(from, bytes, done);
            Ok(())
        })
    }

    fn idle(&mut self) -> Result<()> {
        self.call(|store| store.live()?.write_witness())
    }

    fn scrub(&mut self, done: ScrubDone) -> Result<u64> {
        self.call(|store| match &mut store.state {
            State::Live(live) => Ok(live.scrub(done)),
            State::Opened(_) | State::Blank => Ok(0),
        })
    }

    fn work_beside(&mut self) -> bool {
        match &self.state {
            State::Live(live) => live.log.work_beside(),
            State::Opened(_) | State::Blank => false,
        }
    }

    fn checkpointer(&mut self) -> Result<Box<dyn Checkpointer>> {
        self.call(|store| -> Result<Box<dyn Checkpointer>> {
            store.note_start()?;
            // A checkpoint may remove what an earlier log needs.
            store.directory.owned()?.forget_log_before()?;
            Ok(Box::new(store.live()?.checkpoints.clone()))
        })
    }

    fn commit_checkpoint(&mut self, meta: &SnapshotMeta, log: LogAfter) -> Result<u64> {
        self.call(|store| {
            let bytes = store.live()?.commit(meta, log)?;
            store.note_voter(meta);
            Ok(bytes)
        })
    }
}

impl Drop for DiskStore {
    fn drop(&mut self) {
        if let (State::Live(live), None) = (&mut self.state, &self.failed) {
            // Best effort, as after a crash.
            let _ = live.write_witness();
            let last = live.log.last();
            if self.unnoted.is_some() {
                return self.state = State::Blank;
            }
            let _ = self.directory.owned().and_then(|current| current.close_log(last));
        }
        // The databases close before the lock is given up.
        self.state = State::Blank;
    }
}
