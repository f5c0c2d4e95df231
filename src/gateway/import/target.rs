//! The target cluster: reads of its znodes, and writes with several multis in flight.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::api::multi::Multi;
use crate::api::session::Session;
use crate::runtime::pending::Pending;
use crate::types::acl::Acl;
use crate::types::error::{Error, Result};
use crate::types::path;
use crate::types::znode::{CreateMode, OpResult, Stat};

/// The most operations, and bytes of data and paths, in one multi. A larger znode is written alone.
const MULTI_OPS: usize = 128;
const MULTI_BYTES: usize = 256 << 10;
/// The most multis in flight.
const MULTIS: usize = 8;
/// How many children one multi creates and deletes to raise a count.
const COUNTS_PER_MULTI: u64 = 500;
/// The name of the child that is created and deleted for that.
const COUNTED: &str = "quorate-import-counter";

/// A znode as it is in the target.
#[derive(Debug)]
pub(super) struct TargetZnode {
    /// `None` is null.
    pub(super) data: Option<Arc<[u8]>>,
    pub(super) stat: Stat,
    pub(super) acl: Vec<Acl>,
    /// Empty unless they were asked for.
    pub(super) children: Vec<String>,
}

/// A read of a [`TargetZnode`] in flight.
#[derive(Debug)]
pub(super) struct PendingRead {
    data: Pending<'static, (Option<Arc<[u8]>>, Stat)>,
    acl: Pending<'static, (Vec<Acl>, Stat)>,
    children: Option<Pending<'static, Vec<String>>>,
}

#[derive(Debug)]
pub(super) struct ImportTarget<'a> {
    session: &'a Session,
    gathered: Vec<(String, TargetWrite)>,
    gathered_bytes: usize,
    /// In order.
    pending: VecDeque<Pending<'static, Vec<OpResult>>>,
}

#[derive(Debug)]
pub(super) enum TargetWrite {
    Create { data: Option<Arc<[u8]>>, mode: CreateMode, acl: Vec<Acl> },
    Set { data: Option<Arc<[u8]>>, version: u64 },
    SetAcl { acl: Vec<Acl>, aversion: u64 },
    DeleteTree,
}

impl<'a> ImportTarget<'a> {
    pub(super) fn new(session: &'a Session) -> ImportTarget<'a> {
        let pending = VecDeque::new();
        ImportTarget { session, gathered: Vec::new(), gathered_bytes: 0, pending }
    }

    /// Begins to read a znode.
    pub(super) fn ask(&self, path: &str, with_children: bool) -> PendingRead {
        let session = self.session.in_turn();
        PendingRead {
            data: session.get_or_null(path),
            acl: session.acl(path),
            children: with_children.then(|| session.children(path)),
        }
    }

    /// Waits for a read; `None` if there is no znode.
    pub(super) fn answer(&self, asked: PendingRead) -> Result<Option<TargetZnode>> {
        let read = || {
            let (data, stat) = asked.data.wait()?;
            let (acl, _) = asked.acl.wait()?;
            let children = match asked.children {
                Some(children) => children.wait()?,
                None => Vec::new(),
            };
            Ok(TargetZnode { data, stat, acl, children })
        };
        match read() {
            Ok(present) => Ok(Some(present)),
            Err(Error::NoNode { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) fn stat(&self, path: &str) -> Result<Option<Stat>> {
        self.session.in_turn().exists(path).wait()
    }

    /// Creates the missing parents of a path.
    pub(super) fn create_parents(&self, path: &str) -> Result<()> {
        let Some(parent) = path::parent(path).filter(|parent| *parent != "/") else {
            return Ok(());
        };
        if self.stat(parent)?.is_some() {
            return Ok(());
        }
        match self.session.create_with_parents(parent, b"", CreateMode::Persistent).wait() {
            Ok(_) | Err(Error::NodeExists { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Adds a write after all earlier ones. The error may be that of an earlier write.
    pub(super) fn write(&mut self, path: String, write: TargetWrite) -> Result<()> {
        let bytes = path.len() + 32 + write.bytes();
        if self.gathered.len() >= MULTI_OPS || self.gathered_bytes + bytes > MULTI_BYTES {
            self.submit()?;
        }
        self.gathered_bytes += bytes;
        self.gathered.push((path, write));
        Ok(())
    }

    /// Submits the gathered writes.
    pub(super) fn submit(&mut self) -> Result<()> {
        self.gathered_bytes = 0;
        let gathered = std::mem::take(&mut self.gathered);
        if gathered.is_empty() {
            return Ok(());
        }
        let multi =
            gathered.into_iter().fold(self.session.multi(), |multi, (path, write)| match write {
                TargetWrite::Create { data: Some(data), mode, acl } => {
                    multi.create_with_acl(&path, data, mode, &acl)
                }
                TargetWrite::Create { data: None, mode, acl } => {
                    multi.create_with_acl(&path, b"", mode, &acl).null()
                }
                TargetWrite::Set { data: Some(data), version } => {
                    multi.set_if(&path, data, version)
                }
                TargetWrite::Set { data: None, version } => {
                    multi.set_if(&path, b"", version).null()
                }
                TargetWrite::SetAcl { acl, aversion } => multi.set_acl_if(&path, &acl, aversion),
                TargetWrite::DeleteTree => multi.delete_recursive(&path),
            });
        self.begin(multi)
    }

    fn begin(&mut self, multi: Multi<'_>) -> Result<()> {
        self.pending.push_back(multi.commit());
        self.wait_down_to(MULTIS)
    }

    /// Waits until everything is written.
    pub(super) fn finish(&mut self) -> Result<()> {
        self.submit()?;
        self.wait_down_to(0)
    }

    fn wait_down_to(&mut self, most: usize) -> Result<()> {
        while self.pending.len() > most
            && let Some(pending) = self.pending.pop_front()
        {
            pending.wait().map_err(|error| match error {
                Error::Multi { error, .. } => *error,
                error => error,
            })?;
        }
        Ok(())
    }

    /// Raises a znode's child counter by this number.
    pub(super) fn raise_count(&mut self, path: &str, by: u64) -> Result<()> {
        let child = path::join(path, COUNTED);
        let mut left = by;
        while left > 0 {
            let now = left.min(COUNTS_PER_MULTI);
            let multi = (0..now).fold(self.session.multi(), |multi, _| {
                multi.create(&child, b"", CreateMode::Persistent).delete(&child)
            });
            self.begin(multi)?;
            left -= now;
        }
        Ok(())
    }
}

impl TargetWrite {
    fn bytes(&self) -> usize {
        let of = |acl: &[Acl]| acl.iter().map(Acl::bytes).sum::<usize>();
        let length = |data: &Option<Arc<[u8]>>| data.as_ref().map_or(0, |data| data.len());
        match self {
            TargetWrite::Create { data, acl, .. } => length(data) + of(acl),
            TargetWrite::Set { data, .. } => length(data),
            TargetWrite::SetAcl { acl, .. } => of(acl),
            TargetWrite::DeleteTree => 0,
        }
    }
}
