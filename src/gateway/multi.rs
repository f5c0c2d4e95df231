//! A client's requests of several operations.

use std::collections::VecDeque;

use super::connection::ClientConnection;
use super::convert::{container_mode, expected, mode, ttl_mode};
use super::replies::PartReader;
use super::requests::{read_path, written};
use super::waiting::RequestKind::{self, Other};
use super::wire::codes::{CreateFlags, ErrorCode, OpCode};
use super::wire::request::{CreateTtl, MultiOp};
use super::wire::response::{ChildrenReply, MultiResult};
use crate::api::support::{Ask, Op};
use crate::types::znode::{Condition, CreateMode};

impl ClientConnection {
    pub(super) fn multi(&mut self, xid: i32, ops: Vec<MultiOp>) -> Result<(), ErrorCode> {
        let kinds: Vec<OpCode> = ops.iter().map(MultiOp::result).collect();
        let mut all = Vec::with_capacity(ops.len());
        let mut refused = None;
        for (place, op) in ops.into_iter().enumerate() {
            match self.multi_op(op) {
                Err(ErrorCode::MarshallingError) => return Err(ErrorCode::MarshallingError),
                _ if refused.is_some() => {}
                Ok(op) => all.push(op),
                Err(code) => {
                    // An operation before the refused one may fail, too; then that error counts. So the
                    // refused one is replaced by a check that always fails.
                    let condition = Condition::Version(u64::MAX);
                    all.push(Op::Check { path: "/".into(), condition });
                    refused = Some((place, code));
                }
            }
        }
        self.ask_or(xid, Other, Ask::multi(all), move |own, xid, answer| {
            own.multi_done(xid, kinds, refused, answer);
        });
        Ok(())
    }

    fn multi_op(&self, op: MultiOp) -> Result<Op, ErrorCode> {
        // In a multi, the flags of a create count, and not its op.
        let by_flags = |flags| match flags == i32::from(CreateFlags::Container) {
            true => Ok(CreateMode::Container),
            false => mode(flags),
        };
        Ok(match op {
            MultiOp::Create(body) | MultiOp::Create2(body) => self.create_op(body, by_flags)?,
            MultiOp::CreateContainer(body) => self.create_op(body, container_mode)?,
            MultiOp::CreateTtl(CreateTtl { create, ttl }) => {
                match CreateFlags::try_from(create.flags).is_ok_and(CreateFlags::has_ttl) {
                    true => self.create_op(create, |flags| ttl_mode(flags, ttl))?,
                    false => self.create_op(create, by_flags)?,
                }
            }
            MultiOp::Delete(body) => Self::delete_op(body)?,
            MultiOp::SetData(body) if body.path.is_none() => {
                return Err(ErrorCode::MarshallingError);
            }
            MultiOp::SetData(body) => Self::set_op(body)?,
            MultiOp::Check(body) => {
                let path = body.path.ok_or(ErrorCode::MarshallingError)?;
                let condition = match expected(body.version) {
                    Some(version) => Condition::Version(version),
                    None => Condition::Exists,
                };
                Op::Check { path: written(path)?.into(), condition }
            }
            MultiOp::GetChildren(_) | MultiOp::GetData(_) => {
                return Err(ErrorCode::MarshallingError);
            }
        })
    }

    pub(super) fn read_several(&mut self, xid: i32, ops: Vec<MultiOp>) -> Result<(), ErrorCode> {
        let (mut left, mut readers) = (VecDeque::new(), Vec::new());
        for op in ops {
            let (path, children) = match op {
                MultiOp::GetChildren(body) => (body.path, true),
                MultiOp::GetData(body) => (body.path, false),
                _ => return Err(ErrorCode::MarshallingError),
            };
            let (body, reader): (_, PartReader) = match read_path(path) {
                Ok(path) if children => {
                    let (body, read) = Ask::children(path).split();
                    let children =
                        |(children, _)| MultiResult::GetChildren(ChildrenReply { children });
                    (Some(body), Box::new(move |_, answer| read(answer).map(children)))
                }
                Ok(path) => {
                    let (body, read) = Ask::get_or_null(path).split();
                    let data = |own: &ClientConnection, read| MultiResult::GetData(own.data(read));
                    (Some(body), Box::new(move |own, answer| Ok(data(own, read(answer)?))))
                }
                // Its answer is an error.
                Err(ErrorCode::NoNode) => (None, Box::new(|_, _| Ok(MultiResult::Check))),
                Err(code) => return Err(code),
            };
            left.push_back(body);
            readers.push(reader);
        }
        self.expect_all(xid, RequestKind::MultiRead, left, move |own, xid, parts| {
            own.multi_read(xid, readers, parts);
        });
        Ok(())
    }
}
