//! A part of a checkpoint, which is the full image or a delta: a group of chunks in one generation.
//!
//! A checkpoint is damaged unless its generation has all chunks of its parts, in order.

use std::panic::resume_unwind;
use std::thread;

use crossbeam_channel::{Receiver, Sender};
use serde::{Deserialize, Serialize};

use super::contract::ChunkSink;
use super::error::{Result, corrupt, io_error, refuse};
use super::generation::Generation;
use super::record::{ChunkId, Form, Record, chunk_context, encode, first_chunk_chain};
use super::sealing::Sealing;

/// How many chunks may be read and not verified yet.
const CHUNKS_AHEAD: usize = 64;

/// The full image or a delta.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CheckpointPart {
    /// The group of its chunks.
    pub(super) id: u64,
    /// How many chunks there are, how long they are together, and the chain after the last.
    pub(super) chunks: u32,
    pub(super) bytes: u64,
    pub(super) chain: u64,
}

/// A part without chunks.
pub(super) fn empty_part(log_id: u64, generation: u64, id: u64) -> CheckpointPart {
    let chain = first_chunk_chain(log_id, generation, id);
    CheckpointPart { id, chunks: 0, bytes: 0, chain }
}

/// Writes the next chunk of a part; durable after the next sync.
pub(super) fn put_chunk(
    log_id: u64,
    sealing: &Sealing,
    part: &mut CheckpointPart,
    generation: &mut Generation,
    chunk: &[u8],
) -> Result<()> {
    let id = ChunkId { group: part.id, number: part.chunks };
    let context = chunk_context(log_id, generation.number(), id, part.chain);
    let record = match sealing.sealed(&context, chunk) {
        Some(sealed) => encode(id, part.chain, Form::Sealed, &sealed),
        None => encode(id, part.chain, Form::Clear, chunk),
    };
    let (bytes, chain) = (record.bytes, record.chain);
    generation.write(record)?;
    let Some(chunks) = part.chunks.checked_add(1) else {
        return refuse("more chunks than can be counted".to_owned());
    };
    part.chunks = chunks;
    part.bytes += bytes;
    part.chain = chain;
    Ok(())
}

/// Verifies the chunks of a checkpoint with these parts and passes them to `sink`. Another thread reads them, so the
/// next ones come from the disk while `sink` works.
pub(super) fn read_chunks(
    generation: &mut Generation,
    log: u64,
    parts: &[CheckpointPart],
    sealing: &Sealing,
    sink: &mut ChunkSink<'_>,
) -> Result<()> {
    let number = generation.number();
    if generation.has_one_thread() {
        let (sender, records) = crossbeam_channel::unbounded();
        if let Err(error) = read_records(generation, parts, &sender) {
            // The receiver exists.
            let _ = sender.send(Err(error));
        }
        drop(sender);
        return verify_chunks((log, number), parts, sealing, &records, sink);
    }
    thread::scope(|scope| {
        let (sender, records) = crossbeam_channel::bounded(CHUNKS_AHEAD);
        let reader = thread::Builder::new()
            .name("quorate-chunks".to_owned())
            .spawn_scoped(scope, move || {
                if let Err(error) = read_records(generation, parts, &sender) {
                    // If the receiver is gone, it has failed already.
                    let _ = sender.send(Err(error));
                }
            })
            .map_err(io_error("starting a thread"))?;
        let verified = verify_chunks((log, number), parts, sealing, &records, sink);
        // After an error, the closed channel ends the reader.
        drop(records);
        reader.join().map_or_else(|panic| resume_unwind(panic), |()| verified)
    })
}

/// A chunk, and the place of its part in the checkpoint.
type Read = Result<(usize, Record)>;

/// Reads the chunks of all parts of a checkpoint.
fn read_records(
    generation: &mut Generation,
    parts: &[CheckpointPart],
    records: &Sender<Read>,
) -> Result<()> {
    for (place, part) in parts.iter().enumerate() {
        let mut chunks = generation.chunks(part.id, None)?;
        while let Some(record) = chunks.next()? {
            if records.send(Ok((place, record))).is_err() {
                return Ok(());
            }
        }
    }
    Ok(())
}

fn verify_chunks(
    (log, generation): (u64, u64),
    parts: &[CheckpointPart],
    sealing: &Sealing,
    records: &Receiver<Read>,
    sink: &mut ChunkSink<'_>,
) -> Result<()> {
    let mut next = records.recv().ok().transpose()?;
    for (place, part) in parts.iter().enumerate() {
        let mut chain = first_chunk_chain(log, generation, part.id);
        let mut count = 0;
        while let Some((_, record)) = next.take_if(|(of, _)| *of == place) {
            if record.id.number != count || record.previous != chain || count == part.chunks {
                return corrupt(format!("{}: out of order", record.id));
            }
            chain = record.chain;
            count += 1;
            let context = chunk_context(log, generation, record.id, record.previous);
            let is_sealed = record.form == Form::Sealed;
            let body = sealing.opened(&context, is_sealed, &record.body, record.id)?;
            if let Err(reason) = sink(&body) {
                return corrupt(match is_sealed {
                    false => format!("{}: {reason}", record.id),
                    // The reason may name a path, and this text is written to the disk.
                    true => {
                        tracing::error!(chunk = %record.id, reason, "a chunk that was decrypted is not sound");
                        format!("{}: its content is not sound", record.id)
                    }
                });
            }
            next = records.recv().ok().transpose()?;
        }
        if count != part.chunks || chain != part.chain {
            return corrupt(format!("{count} of {} chunks of checkpoint {}", part.chunks, part.id));
        }
    }
    Ok(())
}
