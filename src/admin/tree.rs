//! The routes that read and change znodes.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

use super::http::{Method, RequestHead, Response};
use super::routes::{Route, json, without_body};
use super::session::{ANSWER_WITHIN, AdminSession};
use crate::api::session::Session;
use crate::recipes::Schedule;
use crate::types::error::{Error, Result};
use crate::types::path;
use crate::types::znode::{CreateMode, Stat};

/// How many children are shown with a znode, and by default on a page of children.
const CHILDREN: u64 = 100;
/// The longest page of children.
const CHILDREN_MAX: u64 = 1000;

/// On how many paths, from a znode upwards, quotas are looked for.
const QUOTAS_MAX: usize = 64;

/// A change of a znode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TreeEdit {
    Create { mode: CreateMode },
    Set { version: Option<u64> },
    Delete { version: Option<u64> },
    Timer(TimerAction),
}

/// What may be done to a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TimerAction {
    Pause,
    Resume,
    Fire,
}

/// The route of a request for a znode.
pub(super) fn route(head: &RequestHead, path: String) -> Result<Route, Response> {
    let version = || head.number("version");
    match head.method {
        Method::Get | Method::Head if head.parameter("children")?.is_some() => {
            let limit = head.number("limit")?.unwrap_or(CHILDREN).clamp(1, CHILDREN_MAX);
            let after = head.parameter("after")?;
            without_body(head, Route::Children { path, after, limit })
        }
        Method::Get | Method::Head => {
            let raw = head.parameter("raw")?.is_some();
            without_body(head, Route::Znode { path, raw })
        }
        Method::Post => {
            let wrong = || {
                let known = "persistent, persistent_sequential and container";
                Response::error(400, format!("the parameter mode is one of {known}"))
            };
            let mode = head.parameter("mode")?.unwrap_or_else(|| "persistent".to_owned());
            let mode = match mode.as_str() {
                "persistent" => CreateMode::Persistent,
                "persistent_sequential" => CreateMode::PersistentSequential,
                "container" => CreateMode::Container,
                _ => return Err(wrong()),
            };
            Ok(Route::Change(path, TreeEdit::Create { mode }))
        }
        Method::Put => Ok(Route::Change(path, TreeEdit::Set { version: version()? })),
        Method::Delete => {
            without_body(head, Route::Change(path, TreeEdit::Delete { version: version()? }))
        }
    }
}

/// The route of a request for a timer, by the path of its znode: to pause, resume or fire it.
pub(super) fn timer(head: &RequestHead, path: String) -> Result<Route, Response> {
    let action = match head.parameter("do")?.as_deref() {
        _ if head.method != Method::Post => {
            return Err(Response::not_allowed("POST changes a timer; /locks shows all"));
        }
        Some("pause") => TimerAction::Pause,
        Some("resume") => TimerAction::Resume,
        Some("fire") => TimerAction::Fire,
        _ => return Err(Response::error(400, "the parameter do is pause, resume or fire")),
    };
    without_body(head, Route::Change(path, TreeEdit::Timer(action)))
}

/// Data as text if it is UTF-8, and otherwise in base64.
fn shown(data: &[u8]) -> Value {
    match std::str::from_utf8(data) {
        Ok(text) => json!({ "text": text }),
        Err(_) => json!({ "base64": BASE64.encode(data) }),
    }
}

/// The data alone, as a file, so that no browser shows it as a page of this endpoint.
pub(super) fn download(admin: &AdminSession, path: &str) -> Result<Response> {
    let (data, _) = admin.with(|session| get(session, path))?;
    let response = Response::new("application/octet-stream", &*data);
    Ok(response.with("Content-Disposition", "attachment"))
}

fn get(session: &Session, path: &str) -> Result<(Arc<[u8]>, Stat)> {
    session.get(path).timeout(ANSWER_WITHIN).wait()
}

/// Returns some names after a given one, and whether there are more.
fn names(
    session: &Session,
    path: &str,
    after: Option<&str>,
    limit: u64,
) -> Result<(Vec<String>, bool)> {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let mut names = match session.reads_at_once() {
        true => session.children_page(path, after, limit.saturating_add(1)).wait()?,
        false => {
            let mut names = session.children(path).timeout(ANSWER_WITHIN).wait()?;
            names.retain(|name| after.is_none_or(|after| name.as_str() > after));
            names
        }
    };
    let more = names.len() > limit;
    names.truncate(limit);
    Ok((names, more))
}

/// A znode with its data, its stat and the first of its children.
pub(super) fn znode(admin: &AdminSession, path: &str) -> Result<Value> {
    admin.with(|session| {
        let (data, stat) = get(session, path)?;
        let (children, _) = names(session, path, None, CHILDREN)?;
        let acl = match session.acl(path).timeout(ANSWER_WITHIN).wait() {
            Ok((acl, _)) => json(acl),
            Err(Error::NoAuth { .. }) => Value::Null,
            Err(error) => return Err(error),
        };
        let quotas = quotas(session, path);
        Ok(json!({
            "path": path, "data": shown(&data), "stat": json(stat), "children": children, "acl": acl,
            "quotas": quotas,
        }))
    })
}

/// The quotas of a path and of the paths above it, the nearest one first. All of them apply. `None` on a client,
/// which would have to ask for each.
fn quotas(session: &Session, path: &str) -> Option<Vec<Value>> {
    if !session.reads_at_once() {
        return None;
    }
    let above = std::iter::successors(Some(path), |path| path::parent(path));
    let quota = |path: &str| match session.quota(path).wait() {
        Ok(Some((limits, usage))) => {
            Some(json!({ "path": path, "limits": json(limits), "usage": json(usage) }))
        }
        // It has none, or none that may be read.
        _ => None,
    };
    Some(above.take(QUOTAS_MAX).filter_map(quota).collect())
}

/// A page of a znode's children, each with its stat if it may be read.
pub(super) fn children(
    admin: &AdminSession,
    path: &str,
    after: Option<&str>,
    limit: u64,
) -> Result<Value> {
    admin.with(|session| {
        let (names, more) = names(session, path, after, limit)?;
        let next = names.last().filter(|_| more).cloned();
        // All requests are sent before the first reply is awaited.
        let ask = |name: &String| session.exists(&path::join(path, name));
        let asked: Vec<_> = names.iter().map(ask).collect();
        let mut children = Vec::new();
        for (name, asked) in names.into_iter().zip(asked) {
            match asked.timeout(ANSWER_WITHIN).wait() {
                Ok(Some(stat)) => children.push(json!({ "name": name, "stat": json(stat) })),
                // The child was deleted in the meantime.
                Ok(None) => {}
                Err(Error::NoAuth { .. }) => children.push(json!({ "name": name, "stat": null })),
                Err(error) => return Err(error),
            }
        }
        Ok(json!({ "path": path, "children": children, "next": next }))
    })
}

impl TreeEdit {
    /// Makes the change, and returns its result.
    pub(super) fn apply(&self, admin: &AdminSession, path: &str, data: &[u8]) -> Result<Value> {
        admin.with(|session| {
            Ok(match *self {
                TreeEdit::Create { mode } => {
                    json(session.create(path, data, mode).timeout(ANSWER_WITHIN).wait()?)
                }
                TreeEdit::Set { version: None } => {
                    json(session.set(path, data).timeout(ANSWER_WITHIN).wait()?)
                }
                TreeEdit::Set { version: Some(version) } => {
                    json(session.set_if(path, data, version).timeout(ANSWER_WITHIN).wait()?)
                }
                TreeEdit::Delete { version } => {
                    let deleted = match version {
                        Some(version) => session.delete_if(path, version),
                        None => session.delete(path),
                    };
                    deleted.timeout(ANSWER_WITHIN).wait()?;
                    json!({ "deleted": path })
                }
                TreeEdit::Timer(action) => {
                    let (parent, timer) = (path::parent(path).unwrap_or("/"), path::name(path));
                    let schedule = Schedule::new(session, parent)?;
                    let changing = match action {
                        TimerAction::Pause => schedule.pause(timer),
                        TimerAction::Resume => schedule.resume(timer),
                        TimerAction::Fire => schedule.fire_now(timer),
                    };
                    changing.timeout(ANSWER_WITHIN).wait()?;
                    json!({ "timer": path })
                }
            })
        })
    }
}
