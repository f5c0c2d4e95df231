//! Converts the node's answers to the types that callers expect.

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

/// Never happens: the type of the node's answer always fits the request.
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
    let Answer::Admin(replies) = answer else { return unexpected(&answer) };
    Ok(replies)
}

pub(crate) fn created(answer: Answer) -> Result<Created> {
    let Answer::Reply(Reply::Created(created)) = answer else { return unexpected(&answer) };
    Ok(created)
}

pub(crate) fn set(answer: Answer) -> Result<Stat> {
    let Answer::Reply(Reply::Set(stat)) = answer else { return unexpected(&answer) };
    Ok(stat)
}

pub(crate) fn multi(answer: Answer) -> Result<Vec<OpResult>> {
    let Answer::Reply(Reply::Multi(results)) = answer else { return unexpected(&answer) };
    Ok(results)
}

pub(crate) fn data(answer: Answer) -> Result<(Arc<[u8]>, Stat)> {
    let Answer::Data { data, stat, .. } = answer else { return unexpected(&answer) };
    Ok((data, stat))
}

#[cfg(feature = "gateway")]
pub(crate) fn data_or_null(answer: Answer) -> Result<(Option<Arc<[u8]>>, Stat)> {
    let Answer::Data { data, stat, is_null } = answer else { return unexpected(&answer) };
    Ok(((!is_null).then_some(data), stat))
}

pub(crate) fn exists(answer: Answer) -> Result<Option<Stat>> {
    let Answer::Exists(stat) = answer else { return unexpected(&answer) };
    Ok(stat)
}

pub(crate) fn children(answer: Answer) -> Result<Vec<String>> {
    let Answer::Children(children, _) = answer else { return unexpected(&answer) };
    Ok(children)
}

pub(crate) fn acl(answer: Answer) -> Result<(Vec<Acl>, Stat)> {
    let Answer::Acl(acl, stat) = answer else { return unexpected(&answer) };
    Ok((acl, stat))
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
    let Answer::Synced(zxid) = answer else { return unexpected(&answer) };
    Ok(zxid)
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
