//! `cp`: a znode and what is below it, to another place.

use clap::Args;
use quorate::{CreateMode, Error, Result, Session, Stat};
use serde_json::json;

use super::znodes::walk;
use super::{READS_MAX, Shown, join};
use crate::text::line;

/// The most znodes, and about the most bytes of data, that are created in one write.
const WRITE_ZNODES_MAX: usize = 1000;
const WRITE_BYTES_MAX: usize = 512 << 10;

/// What to copy.
#[derive(Debug, Args)]
pub(crate) struct CopyArgs {
    /// The znode.
    from: String,
    /// Where its copy is to be. It must not exist; its parent must.
    to: String,
    /// Copies all that is below it, too.
    #[arg(short, long)]
    recursive: bool,
}

/// The mode of the copy; `None` for an ephemeral, which is its session's.
fn mode(stat: &Stat) -> Option<CreateMode> {
    match (stat.ephemeral_owner, stat.is_container, stat.ttl) {
        (Some(_), ..) => None,
        (_, true, _) => Some(CreateMode::Container),
        (.., Some(ttl)) => Some(CreateMode::PersistentWithTtl(ttl)),
        _ => Some(CreateMode::Persistent),
    }
}

impl CopyArgs {
    pub(super) fn run(&self, session: &Session) -> Result<Shown> {
        let is_within = |path: &str| path == self.from || path.starts_with(&join(&self.from, ""));
        if self.recursive && is_within(&self.to) {
            return Err(Error::InvalidSetting {
                setting: "the place of the copy",
                reason: format!("{} is within {}", self.to, self.from),
            });
        }
        let paths: Vec<String> = match self.recursive {
            true => {
                let found = walk(session, &self.from)?.into_keys();
                found.map(|names| format!("/{}", names.join("/"))).collect()
            }
            false => vec![self.from.clone()],
        };
        let (mut multi, mut znodes, mut bytes) = (session.multi(), 0, 0);
        let (mut copied, mut writes, mut left_out) = (0, 0, Vec::new());
        let calls = &session.in_turn();
        for part in paths.chunks(READS_MAX) {
            let reads: Vec<_> = part.iter().map(|path| calls.get(path)).collect();
            for (path, read) in part.iter().zip(reads) {
                let (data, stat) = match read.wait() {
                    // It was deleted meanwhile.
                    Err(Error::NoNode { .. }) if *path != self.from => continue,
                    read => read?,
                };
                let Some(mode) = mode(&stat) else {
                    left_out.push(path.clone());
                    continue;
                };
                if znodes >= WRITE_ZNODES_MAX || bytes + data.len() > WRITE_BYTES_MAX && znodes > 0
                {
                    std::mem::replace(&mut multi, session.multi()).commit().wait()?;
                    (znodes, bytes, writes) = (0, 0, writes + 1);
                }
                let below = path.strip_prefix(&self.from).unwrap_or(path).trim_start_matches('/');
                let to = if below.is_empty() { self.to.clone() } else { join(&self.to, below) };
                multi = multi.create(&to, &data[..], mode);
                (znodes, bytes, copied) = (znodes + 1, bytes + data.len(), copied + 1);
            }
        }
        if znodes > 0 {
            multi.commit().wait()?;
            writes += 1;
        }
        let mut text = format!("{copied} znodes in {writes} writes\n");
        for path in &left_out {
            text.push_str(&format!("{} is ephemeral, and was left out\n", line(path)));
        }
        let json = json!({ "copied": copied, "writes": writes, "left_out": left_out });
        Ok(Shown::new(text, json))
    }
}
