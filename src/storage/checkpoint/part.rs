//! A part of a checkpoint, which is the full image or a delta: a group of chunks in one generation.
//!
//! A checkpoint is damaged unless its generation has all chunks of its parts, in order.

use std::panic::resume_unwind;
use std::thread;

use crossbeam_channel::{Receiver, Sender};
use serde::{Deserialize, Serialize};

use super::chunk::{Chunk, ChunkId, Form, chunk_context, encode, first_chunk_chain};
use super::generation::Generation;
use crate::storage::contract::ChunkSink;
use crate::storage::error::{Result, corrupt, io_error, refuse};
use crate::storage::sealing::Sealing;

/// How many chunks may be read and not verified yet.
const CHUNKS_AHEAD: usize = 64;

/// The full image or a delta.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::storage) struct CheckpointPart {
    /// The group of its chunks.
    pub(in crate::storage) id: u64,
    /// How many chunks there are, how long they are together, and the chain after the last.
    pub(in crate::storage) chunks: u32,
    pub(in crate::storage) bytes: u64,
    pub(in crate::storage) chain: u64,
}

/// A part without chunks.
pub(super) fn empty_part(log_id: u64, generation: u64, id: u64) -> CheckpointPart {
    let chain = first_chunk_chain(log_id, generation, id);
    CheckpointPart { id, chunks: 0, bytes: 0, chain }
}

/// Writes the next chunk of a part; durable after the next sync.
pub(in crate::storage) fn put_chunk(
    log_id: u64,
    sealing: &Sealing,
    part: &mut CheckpointPart,
    generation: &mut Generation,
    chunk: &[u8],
) -> Result<()> {
    let id = ChunkId { group: part.id, number: part.chunks };
    let context = chunk_context(log_id, generation.number(), id, part.chain);
    let encoded = match sealing.sealed(&context, chunk) {
        Some(sealed) => encode(id, part.chain, Form::Sealed, &sealed),
        None => encode(id, part.chain, Form::Clear, chunk),
    };
    let (bytes, chain) = (encoded.bytes, encoded.chain);
    generation.write(encoded)?;
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
pub(in crate::storage) fn read_chunks(
    generation: &mut Generation,
    log: u64,
    parts: &[CheckpointPart],
    sealing: &Sealing,
    sink: &mut ChunkSink<'_>,
) -> Result<()> {
    let number = generation.number();
    if generation.has_one_thread() {
        let (sender, found) = crossbeam_channel::unbounded();
        if let Err(error) = read_all(generation, parts, &sender) {
            // The receiver exists.
            let _ = sender.send(Err(error));
        }
        drop(sender);
        return verify_chunks((log, number), parts, sealing, &found, sink);
    }
    thread::scope(|scope| {
        let (sender, found) = crossbeam_channel::bounded(CHUNKS_AHEAD);
        let reader = thread::Builder::new()
            .name("quorate-chunks".to_owned())
            .spawn_scoped(scope, move || {
                if let Err(error) = read_all(generation, parts, &sender) {
                    // If the receiver is gone, it has failed already.
                    let _ = sender.send(Err(error));
                }
            })
            .map_err(io_error("starting a thread"))?;
        let verified = verify_chunks((log, number), parts, sealing, &found, sink);
        // After an error, the closed channel ends the reader.
        drop(found);
        reader.join().map_or_else(|panic| resume_unwind(panic), |()| verified)
    })
}

/// A chunk, and the place of its part in the checkpoint.
type Read = Result<(usize, Chunk)>;

/// Reads the chunks of all parts of a checkpoint.
fn read_all(
    generation: &mut Generation,
    parts: &[CheckpointPart],
    found: &Sender<Read>,
) -> Result<()> {
    for (place, part) in parts.iter().enumerate() {
        let mut chunks = generation.chunks(part.id, None)?;
        while let Some(chunk) = chunks.next()? {
            if found.send(Ok((place, chunk))).is_err() {
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
    found: &Receiver<Read>,
    sink: &mut ChunkSink<'_>,
) -> Result<()> {
    let mut next = found.recv().ok().transpose()?;
    for (place, part) in parts.iter().enumerate() {
        let mut chain = first_chunk_chain(log, generation, part.id);
        let mut count = 0;
        while let Some((_, chunk)) = next.take_if(|(of, _)| *of == place) {
            if chunk.id.number != count || chunk.previous != chain || count == part.chunks {
                return corrupt(format!("{}: out of order", chunk.id));
            }
            chain = chunk.chain;
            count += 1;
            let context = chunk_context(log, generation, chunk.id, chunk.previous);
            let is_sealed = chunk.form == Form::Sealed;
            let body = sealing.opened(&context, is_sealed, &chunk.body, chunk.id)?;
            if let Err(reason) = sink(&body) {
                return corrupt(match is_sealed {
                    false => format!("{}: {reason}", chunk.id),
                    // The reason may name a path, and this text is written to the disk.
                    true => {
                        tracing::error!(chunk = %chunk.id, reason, "a chunk that was decrypted is not sound");
                        format!("{}: its content is not sound", chunk.id)
                    }
                });
            }
            next = found.recv().ok().transpose()?;
        }
        if count != part.chunks || chain != part.chain {
            return corrupt(format!("{count} of {} chunks of checkpoint {}", part.chunks, part.id));
        }
    }
    Ok(())
}
