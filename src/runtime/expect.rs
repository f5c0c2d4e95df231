//! Converts the node's answers to what the callers expect.

use std::sync::Arc;
use std::time::Duration;

use crate::machine::Tree;
use crate::machine::command::Reply;
use crate::node::admin::message::AdminReply;
use crate::node::query::{Answer, ZnodeRead};
use crate::types::acl::{Acl, Id};
use crate::types::error::{Error, Result};
use crate::types::membership::NodeId;
use crate::types::znode::{Created, OpResult, Stat};

/// The node answers each request in kind, so this never happens.
fn unexpected<T>(answer: &Answer) -> Result<T> {
    Err(Error::Stopped { reason: format!("an answer of the wrong kind: {answer:?}") })
}

pub(crate) fn done(answer: Answer) -> Result<()> {
    match answer {
        Answer::Reply(Reply::Done) | Answer::Watching => Ok(()),
        other => unexpected(&other),
    }
}

pub(crate) fn admin(answer: Answer) -> Result<Vec<(NodeId, AdminReply)>> {
    match answer {
        Answer::Admin(replies) => Ok(replies),
        other => unexpected(&other),
    }
}

pub(crate) fn created(answer: Answer) -> Result<Created> {
    match answer {
        Answer::Reply(Reply::Created(created)) => Ok(created),
        other => unexpected(&other),
    }
}

pub(crate) fn set(answer: Answer) -> Result<Stat> {
    match answer {
        Answer::Reply(Reply::Set(stat)) => Ok(stat),
        other => unexpected(&other),
    }
}

pub(crate) fn multi(answer: Answer) -> Result<Vec<OpResult>> {
    match answer {
        Answer::Reply(Reply::Multi(results)) => Ok(results),
        other => unexpected(&other),
    }
}

pub(crate) fn data(answer: Answer) -> Result<(Arc<[u8]>, Stat)> {
    match answer {
        Answer::Data { data, stat, .. } => Ok((data, stat)),
        other => unexpected(&other),
    }
}

#[cfg(feature = "gateway")]
pub(crate) fn data_or_null(answer: Answer) -> Result<(Option<Arc<[u8]>>, Stat)> {
    match answer {
        Answer::Data { data, stat, is_null } => Ok(((!is_null).then_some(data), stat)),
        other => unexpected(&other),
    }
}

pub(crate) fn exists(answer: Answer) -> Result<Option<Stat>> {
    match answer {
        Answer::Exists(stat) => Ok(stat),
        other => unexpected(&other),
    }
}

pub(crate) fn children(answer: Answer) -> Result<Vec<String>> {
    match answer {
        Answer::Children(children, _) => Ok(children),
        other => unexpected(&other),
    }
}

pub(crate) fn acl(answer: Answer) -> Result<(Vec<Acl>, Stat)> {
    match answer {
        Answer::Acl(acl, stat) => Ok((acl, stat)),
        other => unexpected(&other),
    }
}

pub(crate) fn ids(answer: Answer) -> Result<Vec<Id>> {
    match answer {
        Answer::Ids(ids) | Answer::Reply(Reply::Ids(ids)) => Ok(ids),
        other => unexpected(&other),
    }
}

pub(crate) fn tree(answer: Answer) -> Result<Arc<Tree>> {
    match answer {
        Answer::Tree(tree) => Ok(Arc::new(tree)),
        Answer::Below(zxid, znodes) => {
            let znodes = znodes.into_iter().map(|ZnodeRead { path, content }| {
                (path, content.map(|content| (content.data, content.stat)))
            });
            Ok(Arc::new(Tree::excerpt(zxid, znodes)))
        }
        other => unexpected(&other),
    }
}

pub(crate) fn synced(answer: Answer) -> Result<u64> {
    match answer {
        Answer::Synced(zxid) => Ok(zxid),
        other => unexpected(&other),
    }
}

#[cfg(test)]
pub(crate) fn opened(answer: Answer) -> Result<()> {
    timeout(answer).map(drop)
}

/// The timeout of a session that was opened or resumed.
pub(crate) fn timeout(answer: Answer) -> Result<Duration> {
    match answer {
        Answer::Reply(Reply::Session { timeout_ms }) => {
            Ok(Duration::from_millis(u64::from(timeout_ms)))
        }
        other => unexpected(&other),
    }
}
