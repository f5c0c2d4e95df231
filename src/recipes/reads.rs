//! Reads of one znode: at once where the session reads its replica without waiting, and otherwise through the node.

use std::sync::Arc;

use crate::api::session::Session;
use crate::types::error::Result;
use crate::types::znode::Stat;

pub(super) async fn get(session: &Session, path: &str) -> Result<(Arc<[u8]>, Stat)> {
    match session.reads_at_once() {
        true => session.get(path),
        false => session.nonblocking().get(path).await,
    }
}

pub(super) async fn exists(session: &Session, path: &str) -> Result<Option<Stat>> {
    match session.reads_at_once() {
        true => session.exists(path),
        false => session.nonblocking().exists(path).await,
    }
}

pub(super) async fn children(session: &Session, path: &str) -> Result<Vec<String>> {
    match session.reads_at_once() {
        true => session.children(path),
        false => session.nonblocking().children(path).await,
    }
}
