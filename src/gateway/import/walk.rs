//! The walk through the tree: parents before children, the source and the target at the same time.
//!
//! While the target's state of one set of znodes is read, the next set is read from the source. The writes
//! of a set follow those of the sets before it, so a parent always exists before its children. The paths
//! still to be read are a stack, which holds the siblings of the present path's znodes, and not a whole
//! level of the tree.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::kinds::{self, Kinds};
use super::source::{ImportSource, ServerReply};
use super::target::{ImportTarget, PendingRead, TargetWrite, TargetZnode};
use super::{Counts, Difference, Event, Import, ImportError};
use crate::api::session::Session;
use crate::gateway::convert;
use crate::gateway::wire::codes::ErrorCode;
use crate::gateway::wire::jute::Jute;
use crate::gateway::wire::request::{PathOnly, Read, Request};
use crate::gateway::wire::response::{self, AclReply, ChildrenReply, ClientInfo, DataReply};
use crate::types::acl::{Acl, Id};
use crate::types::error::Error;
use crate::types::path;
use crate::types::znode::{CreateMode, Stat};

/// How many znodes are in a set.
const SET: usize = 128;
/// The znode that every tree has and that is never copied.
const RESERVED: &str = "zookeeper";
/// How many digits end the name of a sequential child.
const DIGITS: usize = 10;
/// The most by which a child counter is raised: each step takes a create and a delete.
const RAISED_MAX: u64 = 1_000_000;

/// A znode as it is in the source.
#[derive(Debug)]
struct SourceZnode {
    /// The path in the target.
    path: String,
    data: Option<Arc<[u8]>>,
    acl: Vec<Acl>,
    /// The mode; not sequential, since the name already has its number.
    mode: CreateMode,
    /// The names of the children in the source, including ephemerals.
    children: Vec<String>,
    /// How many children the znode has ever had.
    count: u64,
}

pub(super) struct ImportWalk<'a> {
    import: &'a Import,
    writes: bool,
    watch: &'a mut dyn FnMut(Event<'_>),
    source: ImportSource,
    target: ImportTarget<'a>,
    kinds: Kinds,
    counts: Counts,
    /// Source paths that are still to be read.
    stack: Vec<String>,
    /// Parents of sequential children, with the child counter that each needs.
    counters: Vec<(String, u64)>,
}

impl<'a> ImportWalk<'a> {
    pub(super) fn new(
        import: &'a Import,
        session: &'a Session,
        writes: bool,
        watch: &'a mut dyn FnMut(Event<'_>),
    ) -> Result<ImportWalk<'a>, ImportError> {
        if path::is_below(import.target_root(), "/zookeeper") {
            let (path, reason) = (import.target_root().to_owned(), "it is the system's".into());
            return Err(Error::InvalidPath { path, reason }.into());
        }
        let kinds = match &import.kinds {
            None => Kinds::new(),
            Some(file) => kinds::read(file, &import.root).map_err(|error| {
                ImportError::Snapshot { file: file.clone(), reason: error.to_string() }
            })?,
        };
        let source = ImportSource::new(&import.servers, &import.auth);
        let target = ImportTarget::new(session);
        let stack = vec![import.root.clone()];
        let (counts, counters) = (Counts::default(), Vec::new());
        Ok(ImportWalk { import, writes, watch, source, target, kinds, counts, stack, counters })
    }

    pub(super) fn run(mut self) -> Result<Counts, ImportError> {
        let mut under_way: Vec<(SourceZnode, PendingRead)> = Vec::new();
        let mut is_first = true;
        self.counts.total = self.total();
        while !self.stack.is_empty() || !under_way.is_empty() {
            let rest = self.stack.len().saturating_sub(SET);
            let paths = self.stack.split_off(rest);
            let found = self.read(&paths)?;
            if std::mem::take(&mut is_first) {
                if found.is_empty() && self.counts.ephemerals == 0 {
                    return Err(ImportError::NoRoot { path: self.import.root.clone() });
                }
                if self.writes {
                    self.target.create_parents(self.import.target_root())?;
                }
            }
            let with_children = !self.writes || self.import.delete;
            let ask = |wanted: SourceZnode| {
                let asked = self.target.ask(&wanted.path, with_children);
                (wanted, asked)
            };
            let asked = found.into_iter().map(ask).collect();
            for (wanted, asked) in std::mem::replace(&mut under_way, asked) {
                let present = self.target.answer(asked)?;
                self.settle(wanted, present)?;
            }
            self.target.submit()?;
            (self.watch)(Event::Progress(&self.counts));
        }
        self.target.finish()?;
        self.settle_counters()?;
        (self.watch)(Event::Progress(&self.counts));
        Ok(self.counts)
    }

    /// The number of znodes of the source, read on a connection of its own, since servers before
    /// 3.6 close it.
    fn total(&self) -> Option<u64> {
        let mut source = ImportSource::new(&self.import.servers, &self.import.auth);
        let root = Some(self.import.root.clone());
        let count = Request::GetAllChildrenNumber(PathOnly { path: root });
        let [reply] = source.ask_once([count])?;
        let count = body::<i32>(&self.import.root, reply).ok()??;
        Some(u64::try_from(count).ok()? + 1)
    }

    /// Reads these paths from the source, and puts their children on the stack.
    fn read(&mut self, paths: &[String]) -> Result<Vec<SourceZnode>, ImportError> {
        let requests: Vec<Request> = paths
            .iter()
            .flat_map(|path| {
                let path = || Some(path.clone());
                let read = || Read { path: path(), watch: false };
                [
                    Request::GetData(read()),
                    Request::GetAcl(PathOnly { path: path() }),
                    Request::GetChildren(read()),
                ]
            })
            .collect();
        if requests.is_empty() {
            return Ok(Vec::new());
        }
        let (_, connections) = self.source.server();
        let replies = self.source.ask(&requests)?;
        let (server, now) = self.source.server();
        if now > connections {
            self.counts.reconnects = now - 1;
            (self.watch)(Event::Connected { server });
        }
        let mut found = Vec::with_capacity(paths.len());
        let mut replies = replies.into_iter();
        for path in paths {
            let (Some(data), Some(acl), Some(children)) =
                (replies.next(), replies.next(), replies.next())
            else {
                return Err(refused(path, "fewer answers than requests"));
            };
            if let Some(wanted) = self.found(path, data, acl, children)? {
                self.push_children(path, &wanted)?;
                found.push(wanted);
            }
        }
        Ok(found)
    }

    /// Makes the wanted znode from the replies; `None` if it is left out.
    fn found(
        &mut self,
        path: &str,
        data: ServerReply,
        acl: ServerReply,
        children: ServerReply,
    ) -> Result<Option<SourceZnode>, ImportError> {
        let (Some(data), Some(acl), Some(children)) = (
            body::<DataReply>(path, data)?,
            body::<AclReply>(path, acl)?,
            body::<ChildrenReply>(path, children)?,
        ) else {
            self.counts.gone += 1;
            return Ok(None);
        };
        let stat = data.stat;
        if stat.ephemeral_owner != 0 {
            self.counts.ephemerals += 1;
            return Ok(None);
        }
        self.counts.read += 1;
        let acl = self.access_list(path, acl)?;
        let kind = self.kinds.get(path).filter(|(czxid, _)| *czxid == stat.czxid);
        Ok(Some(SourceZnode {
            path: self.import.target_of(path),
            data: data.data.as_deref().map(Arc::from),
            acl,
            mode: kind.map_or(CreateMode::Persistent, |(_, mode)| *mode),
            children: children.children,
            count: children_ever(&stat),
        }))
    }

    /// The access list of a znode. It must show everything: the copy would exclude those whose hash is hidden.
    fn access_list(&mut self, path: &str, reply: AclReply) -> Result<Vec<Acl>, ImportError> {
        let acl = access_list(path, reply)?;
        // `x` stands for a hidden hash. A real hash has 28 characters, but any text may be stored.
        let seems_hidden =
            |entry: &&Acl| entry.id.scheme == "digest" && entry.id.id.ends_with(":x");
        let Some(entry) = acl.iter().find(seems_hidden) else { return Ok(acl) };
        match self.shown_in_full(path)? {
            Some(acl) => Ok(acl),
            None => {
                let id = entry.id.to_string();
                Err(ImportError::HiddenId { path: path.to_owned(), id })
            }
        }
    }

    /// The access list of a znode, if the source hides nothing from this client, as from its super user; `None`
    /// if it may hide something, or is a server before 3.7, which cannot tell.
    fn shown_in_full(&mut self, path: &str) -> Result<Option<Vec<Acl>>, ImportError> {
        let list = Request::GetAcl(PathOnly { path: Some(path.to_owned()) });
        let Some([ids, acl]) = self.source.ask_once([Request::WhoAmI, list]) else {
            return Ok(None);
        };
        let ids = body::<Vec<ClientInfo>>(path, ids).ok().flatten().unwrap_or_default();
        let is_super = ids.iter().any(|id| id.scheme == Id::superuser().scheme);
        match body::<AclReply>(path, acl)? {
            Some(acl) if is_super => access_list(path, acl).map(Some),
            _ => Ok(None),
        }
    }

    fn push_children(&mut self, path: &str, wanted: &SourceZnode) -> Result<(), ImportError> {
        if wanted.children.iter().any(|name| name.is_empty() || name.contains('/')) {
            return Err(refused(path, "it lists a child whose name is none"));
        }
        // In reverse, so that they are popped in order.
        for name in wanted.children.iter().rev() {
            let is_reserved = name == RESERVED && (path == "/" || wanted.path == "/");
            if !is_reserved {
                self.stack.push(path::join(path, name));
            }
        }
        Ok(())
    }

    /// Writes the difference of a znode, or reports it.
    fn settle(
        &mut self,
        wanted: SourceZnode,
        present: Option<TargetZnode>,
    ) -> Result<(), ImportError> {
        if wanted.children.iter().any(|name| is_sequential(name)) {
            self.counters.push((wanted.path.clone(), wanted.count));
        }
        let Some(present) = present else {
            if !self.writes {
                self.differ(&wanted.path, Difference::Missing);
                return Ok(());
            }
            self.counts.created += 1;
            let SourceZnode { path, data, mode, acl, .. } = wanted;
            return Ok(self.target.write(path, TargetWrite::Create { data, mode, acl })?);
        };
        self.settle_extra(&wanted, &present)?;
        if !self.is_of_kind(&wanted, &present.stat) {
            self.differ(&wanted.path, Difference::Kind);
            return Ok(());
        }
        let Stat { version, aversion, .. } = present.stat;
        let (data, acl) = (present.data != wanted.data, present.acl != wanted.acl);
        if !data && !acl {
            self.counts.same += 1;
        } else if self.writes && self.import.overwrite {
            self.counts.overwritten += 1;
            let SourceZnode { path, .. } = wanted;
            if data {
                let set = TargetWrite::Set { data: wanted.data, version };
                self.target.write(path.clone(), set)?;
            }
            if acl {
                self.target.write(path, TargetWrite::SetAcl { acl: wanted.acl, aversion })?;
            }
        } else {
            if data {
                self.differ(&wanted.path, Difference::Data);
            }
            if acl {
                self.differ(&wanted.path, Difference::Acl);
            }
        }
        Ok(())
    }

    /// Deletes children that only the target has, or reports them.
    fn settle_extra(
        &mut self,
        wanted: &SourceZnode,
        present: &TargetZnode,
    ) -> Result<(), ImportError> {
        let theirs: BTreeSet<&str> = wanted.children.iter().map(String::as_str).collect();
        for name in &present.children {
            let is_reserved = wanted.path == "/" && name == RESERVED;
            if is_reserved || theirs.contains(name.as_str()) {
                continue;
            }
            let path = path::join(&wanted.path, name);
            // Ephemeral znodes are left to their sessions.
            if self.target.stat(&path)?.is_none_or(|stat| stat.ephemeral_owner.is_some()) {
                continue;
            }
            if self.writes {
                self.counts.deleted += 1;
                self.target.write(path, TargetWrite::DeleteTree)?;
            } else {
                self.differ(&path, Difference::Extra);
            }
        }
        Ok(())
    }

    /// Whether a znode of the target has the right kind. Without a file of kinds, every kind except
    /// ephemeral is right.
    fn is_of_kind(&self, wanted: &SourceZnode, stat: &Stat) -> bool {
        let is_container = wanted.mode == CreateMode::Container;
        stat.ephemeral_owner.is_none()
            && (self.import.kinds.is_none()
                || (stat.is_container == is_container && stat.ttl == wanted.mode.ttl()))
    }

    /// Raises the child counters, or reports those that are too low.
    fn settle_counters(&mut self) -> Result<(), ImportError> {
        for (path, wanted) in std::mem::take(&mut self.counters) {
            let Some(stat) = self.target.stat(&path)? else { continue };
            let count = u64::midpoint(stat.cversion, stat.num_children.into());
            // A container without children would be deleted once it has had one.
            if count >= wanted || (stat.is_container && stat.num_children == 0) {
                continue;
            }
            if self.writes && wanted - count <= RAISED_MAX {
                self.counts.counters += 1;
                self.target.raise_count(&path, wanted - count)?;
            } else {
                self.differ(&path, Difference::Counter);
            }
        }
        Ok(self.target.finish()?)
    }

    fn differ(&mut self, path: &str, difference: Difference) {
        self.counts.differing += 1;
        (self.watch)(Event::Difference { path, difference });
    }
}

fn refused(path: &str, reason: impl Into<String>) -> ImportError {
    ImportError::Refused { path: path.to_owned(), reason: reason.into() }
}

/// The body of a reply; `None` if the znode does not exist any more.
fn body<T: Jute>(path: &str, mut reply: ServerReply) -> Result<Option<T>, ImportError> {
    match ErrorCode::try_from(reply.error) {
        Ok(ErrorCode::Ok) => {
            T::read(&mut reply.body).map(Some).map_err(|error| refused(path, error.to_string()))
        }
        Ok(ErrorCode::NoNode) => Ok(None),
        Ok(code) => Err(refused(path, format!("{code:?}"))),
        Err(code) => Err(refused(path, format!("error {code}"))),
    }
}

/// The access list in the form in which the target stores it.
fn access_list(path: &str, reply: AclReply) -> Result<Vec<Acl>, ImportError> {
    if reply.acl.is_empty() {
        return Ok(Acl::open());
    }
    let entries = convert::acl_asked(Some(reply.acl));
    let entries = entries.map_err(|code| refused(path, format!("{code:?} of its access list")))?;
    let mut kept: Vec<Acl> = Vec::with_capacity(entries.len());
    for entry in entries {
        if !kept.contains(&entry) {
            kept.push(entry);
        }
    }
    Ok(kept)
}

/// How many children a znode has ever had. Its cversion counts creates and deletes, in 32 bits that may have
/// wrapped; the creates alone need 31.
fn children_ever(stat: &response::Stat) -> u64 {
    u64::from(stat.cversion.wrapping_add(stat.num_children).cast_unsigned() / 2)
}

fn is_sequential(name: &str) -> bool {
    let digits = name.bytes().rev().take_while(u8::is_ascii_digit).count();
    digits >= DIGITS
}
