//! The operations of a session's calls and of its transactions, and the checks before they are sent.

use crate::machine::DATA_BYTES_MAX;
use crate::machine::command::Op;
use crate::runtime::chroot::Root;
use crate::types::acl::Acl;
use crate::types::error::{Error, Result, invalid_ttl};
use crate::types::path;
use crate::types::znode::{CreateMode, SessionId};

pub(crate) fn check_create(path: &str, data: &[u8], mode: CreateMode) -> Result<()> {
    path::validate_new(path, mode)?;
    if let Some(ttl) = mode.ttl()
        && (ttl.as_millis() == 0 || ttl > CreateMode::TTL_MAX)
    {
        return Err(invalid_ttl("ttl", path, ttl));
    }
    check_data(path, data.len())
}

pub(crate) fn create_op(root: &Root, path: &str, data: &[u8], mode: CreateMode) -> Op {
    Op::Create { path: root.new_path(path, mode).into(), data: data.into(), mode }
}

pub(crate) fn check_data(path: &str, size: usize) -> Result<()> {
    if size <= DATA_BYTES_MAX {
        return Ok(());
    }
    Err(Error::TooLarge { path: path.to_owned(), size: size as u64, limit: DATA_BYTES_MAX as u64 })
}

pub(crate) fn create_with_acl_op(
    root: &Root,
    path: &str,
    data: &[u8],
    mode: CreateMode,
    acl: &[Acl],
) -> Op {
    let (path, data) = (root.new_path(path, mode).into(), data.into());
    Op::CreateWithAcl { path, data, mode, acl: acl.to_vec() }
}

pub(crate) fn create_or_set_op(root: &Root, path: &str, data: &[u8], mode: CreateMode) -> Op {
    Op::CreateOrSet { path: root.new_path(path, mode).into(), data: data.into(), mode }
}

pub(crate) fn take_over_op(root: &Root, path: &str, data: &[u8], from: SessionId) -> Op {
    Op::TakeOver { path: root.full(path).into(), data: data.into(), from }
}
