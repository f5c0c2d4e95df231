//! The operations on the cluster: moving the lead, removing a dead member, expiring a session.

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::http::{Method, RequestHead, Response, decoded};
use super::routes::{Route, without_body};
use crate::api::coordinator::Coordinator;
use crate::types::error::Result;
use crate::types::znode::SessionId;

/// An operation on the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ActionRequest {
    /// The voter at this address shall lead.
    MoveLeader(String),
    /// The dead member at this address shall be a member no more.
    RemoveMember(String),
    /// This session shall end.
    ExpireSession(SessionId),
}

impl ActionRequest {
    /// The route of a request to do this.
    pub(super) fn route(self, head: &RequestHead) -> Result<Route, Response> {
        without_body(head, Route::Act(self))
    }

    /// Does it.
    pub(super) fn run(&self, coordinator: &Coordinator, from: SocketAddr) -> Result<Value> {
        let by = format!("admin endpoint, {from}");
        match self {
            ActionRequest::MoveLeader(to) => coordinator.move_leader(to, &by).wait()?,
            ActionRequest::RemoveMember(member) => coordinator.remove_member(member, &by).wait()?,
            ActionRequest::ExpireSession(session) => {
                coordinator.expire_session(*session, &by).wait()?
            }
        }
        Ok(match self {
            ActionRequest::MoveLeader(to) => json!({ "leader": to }),
            ActionRequest::RemoveMember(member) => json!({ "removed": member }),
            ActionRequest::ExpireSession(session) => json!({ "expired": session }),
        })
    }
}

/// The route of a request for the leader: only to move the lead.
pub(super) fn leader(head: &RequestHead) -> Result<Route, Response> {
    match (head.method, head.parameter("to")?) {
        (Method::Post, Some(to)) if !to.is_empty() => ActionRequest::MoveLeader(to).route(head),
        (Method::Post, _) => {
            Err(Response::error(400, "the parameter to names the next leader's address"))
        }
        _ => Err(Response::not_allowed("POST moves the lead; /members has the leader")),
    }
}

/// The route of a request for a member, by the part after `/members/`: only to remove it.
pub(super) fn member(head: &RequestHead, rest: &str) -> Result<Route, Response> {
    match head.method {
        Method::Delete => ActionRequest::RemoveMember(decoded(rest)?).route(head),
        _ => Err(Response::not_allowed("DELETE removes a member; /members reads all of them")),
    }
}

/// The route of a request for a session, by the part after `/sessions/`: to read it, or to end it.
pub(super) fn session(head: &RequestHead, rest: &str) -> Result<Route, Response> {
    let number = rest.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok());
    let id = number.map(SessionId).filter(|id| id.to_string() == rest);
    let wrong = "a session is 0x and 16 lower-case hexadecimal digits";
    let id = id.ok_or_else(|| Response::error(400, wrong))?;
    match head.method {
        Method::Get | Method::Head => without_body(head, Route::Session(id)),
        Method::Delete => ActionRequest::ExpireSession(id).route(head),
        _ => Err(Response::not_allowed("a session is read or deleted")),
    }
}
