//! The routes: which path has which response.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};

use super::actions::{self, ActionRequest};
use super::backup::BackupFile;
use super::guard::Guard;
use super::history::SampleHistory;
use super::http::{Method, POLICY, RequestHead, Response, decoded};
use super::recent::RecentReply;
use super::search::{self, Search};
use super::session::{ANSWER_WITHIN, AdminSession};
use super::tree::{self, TreeEdit};
use crate::api::coordinator::Coordinator;
use crate::api::operate::MemberReport;
use crate::api::session::Session;
use crate::recipes::contended::{Contended, contended};
use crate::runtime::entropy;
use crate::types::availability::Availability;
use crate::types::error::{Error, Result};
use crate::types::path;
use crate::types::warnings::AUDIT;
use crate::types::znode::SessionId;

/// How long a search for locks may take, which reads all znodes.
const LOCKS_WITHIN: Duration = Duration::from_secs(10);

/// How often the recipes are looked at for the metrics; and the same as a multiple of the time that it took.
const LOOK_EVERY: Duration = Duration::from_secs(60);
const LOOK_SHARE: u32 = 20;

const INDEX: &str = include_str!("page/index.html");
const STYLE: &str = include_str!("page/style.css");
const SCRIPT: &str = concat!(
    include_str!("page/plots.js"),
    include_str!("page/request.js"),
    include_str!("page/table.js"),
    include_str!("page/tree.js"),
    include_str!("page/search.js"),
    include_str!("page/actions.js"),
    include_str!("page/holders.js"),
    include_str!("page/cluster.js"),
    include_str!("page/script.js"),
);

/// The purpose of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Route {
    Page,
    Health,
    Ready,
    Live,
    Status,
    Members,
    Sessions,
    Metrics,
    Events,
    Backup,
    /// The figures of the last hour, those after this time.
    History {
        after: u64,
    },
    /// The ephemerals of this session.
    Session(SessionId),
    Search(Search),
    Act(ActionRequest),
    /// The locks at and below this path.
    Locks(String),
    Znode {
        path: String,
        raw: bool,
    },
    Children {
        path: String,
        after: Option<String>,
        limit: u64,
    },
    /// A change of this znode.
    Change(String, TreeEdit),
}

/// The result of a request.
pub(super) enum RouteOutcome {
    Response(Response),
    Backup(Box<BackupFile>),
}

impl Route {
    /// # Errors
    /// The response to a request without a route.
    pub(super) fn of(head: &RequestHead) -> Result<Route, Response> {
        let route = match head.path.as_str() {
            "/" => Route::Page,
            "/health" => Route::Health,
            "/ready" => Route::Ready,
            "/live" => Route::Live,
            "/status" => Route::Status,
            "/members" => Route::Members,
            "/sessions" => Route::Sessions,
            "/metrics" => Route::Metrics,
            "/events" => Route::Events,
            "/backup" => Route::Backup,
            "/locks" => Route::Locks(head.parameter("path")?.unwrap_or_else(|| "/".to_owned())),
            "/history" => Route::History { after: head.number("after")?.unwrap_or(0) },
            "/search" => Route::Search(searched(head)?),
            "/leader" => return actions::leader(head),
            path if path.starts_with("/members/") => {
                return actions::member(head, &path["/members/".len()..]);
            }
            path if path.starts_with("/sessions/") => {
                return actions::session(head, &path["/sessions/".len()..]);
            }
            path if path.starts_with("/timers/") => {
                return tree::timer(head, znode(&path["/timers".len()..])?);
            }
            path => match path
                .strip_prefix("/tree")
                .filter(|rest| rest.is_empty() || rest.starts_with('/'))
            {
                Some(rest) => return tree::route(head, znode(rest)?),
                None => return Err(Response::error(404, "there is nothing at this path")),
            },
        };
        let streams = matches!(route, Route::Events | Route::Backup);
        match head.method {
            Method::Get => without_body(head, route),
            Method::Head if !streams => without_body(head, route),
            _ => Err(Response::not_allowed("this can only be read")),
        }
    }

    /// Whether it needs no token, because its response reveals nothing about the cluster except
    /// that it works.
    pub(super) fn is_open(&self) -> bool {
        matches!(self, Route::Page | Route::Health | Route::Ready | Route::Live)
    }
}

pub(super) fn without_body(head: &RequestHead, route: Route) -> Result<Route, Response> {
    match head.body {
        0 => Ok(route),
        _ => Err(Response::error(400, "this request has no body")),
    }
}

/// The path of a znode, from the part after `/tree`. An encoded slash in a name is refused: it
/// would make another path.
fn znode(rest: &str) -> Result<String, Response> {
    if rest.to_ascii_lowercase().contains("%2f") {
        return Err(Response::error(400, "the name of a znode has no /"));
    }
    match decoded(rest)? {
        path if path.is_empty() => Ok("/".to_owned()),
        path => Ok(path),
    }
}

/// The parameters of a search.
fn searched(head: &RequestHead) -> Result<Search, Response> {
    let bad = |reason: String| Response::error(400, reason);
    let text = head.parameter("text")?.unwrap_or_default();
    if text.is_empty() || text.len() > search::TEXT_BYTES_MAX {
        let most = search::TEXT_BYTES_MAX;
        return Err(bad(format!("the parameter text has 1 to {most} bytes")));
    }
    let below = head.parameter("path")?.unwrap_or_else(|| "/".to_owned());
    path::validate(&below).map_err(|error| bad(error.to_string()))?;
    let limit = head.number("limit")?.unwrap_or(search::FOUND).clamp(1, search::FOUND_MAX);
    Ok(Search { text, below, limit })
}

/// The sources of the responses.
pub(super) struct Routes {
    coordinator: Coordinator,
    session: Arc<AdminSession>,
    backup_under_way: Arc<AtomicBool>,
    /// All locks, in the order of their paths.
    locks: RecentReply<Arc<Vec<Contended>>>,
    sessions: RecentReply<Value>,
    history: Arc<SampleHistory>,
}

impl Routes {
    pub(super) fn new(coordinator: Coordinator, session: Arc<AdminSession>) -> Routes {
        let (locks, sessions) = (RecentReply::new(), RecentReply::new());
        let history = Arc::new(SampleHistory::new(coordinator.clone()));
        Routes { coordinator, session, backup_under_way: Arc::default(), locks, sessions, history }
    }

    pub(super) fn history(&self) -> &Arc<SampleHistory> {
        &self.history
    }

    /// The response to a request that does not block; `None` for other requests.
    pub(super) fn at_once(&self, route: &Route, guard: &Guard) -> Option<Response> {
        let probe = |name: &str, well: bool| {
            Response::json(if well { 200 } else { 503 }, &json!({ name: well }))
        };
        let availability = || self.coordinator.availability();
        Some(match route {
            Route::Page => page(guard),
            Route::Health => {
                let works = matches!(
                    availability(),
                    Availability::Healthy { .. } | Availability::AtRisk { .. }
                );
                probe("healthy", works)
            }
            Route::Ready => probe("ready", self.coordinator.is_ready()),
            Route::Live => probe("live", self.coordinator.shared().end.reason().is_none()),
            Route::Status => Response::json(200, &status(&self.coordinator)),
            _ => return None,
        })
    }

    /// Processes a request that may block.
    pub(super) fn work(&self, route: &Route, body: &[u8], from: SocketAddr) -> RouteOutcome {
        let made = match route {
            Route::Backup => {
                let made = self.backup();
                note(from, "Backup", "", &made);
                made
            }
            route => self.respond(route, body, from).map(RouteOutcome::Response),
        };
        made.unwrap_or_else(|error| {
            RouteOutcome::Response(match (route, error) {
                // The session of the request, and not the endpoint's own one.
                (
                    Route::Session(id) | Route::Act(ActionRequest::ExpireSession(id)),
                    Error::SessionExpired { session },
                ) if *id == session => Response::error(404, "there is no such session"),
                (_, error) => refusal(&error),
            })
        })
    }

    fn respond(&self, route: &Route, body: &[u8], from: SocketAddr) -> Result<Response> {
        let value = match route {
            Route::Members => members(&self.coordinator.reports().wait()?),
            Route::Sessions => self.sessions.get(
                || self.coordinator.shared().clock.now(),
                || Ok(json!({ "sessions": json(self.coordinator.sessions().wait()?) })),
            )?,
            Route::Metrics => {
                let text = self.coordinator.metrics().wait()?.to_string();
                return Ok(Response::new("text/plain; version=0.0.4; charset=utf-8", text));
            }
            Route::Locks(path) => self.locks(path)?,
            Route::Znode { path, raw: true } => return tree::download(&self.session, path),
            Route::Znode { path, .. } => tree::znode(&self.session, path)?,
            Route::Children { path, after, limit } => {
                tree::children(&self.session, path, after.as_deref(), *limit)?
            }
            Route::History { after } => self.history.shown(*after),
            Route::Search(search) => search.run(&self.session, &self.coordinator)?,
            Route::Session(id) => search::ephemerals(&self.session, &self.coordinator, *id)?,
            Route::Act(action) => {
                let done = action.run(&self.coordinator, from);
                note(from, &format!("{action:?}"), "", &done);
                done?
            }
            Route::Change(path, change) => {
                let changed = change.apply(&self.session, path, body);
                note(from, &format!("{change:?}"), path, &changed);
                let status = if matches!(change, TreeEdit::Create { .. }) { 201 } else { 200 };
                return Ok(Response::json(status, &changed?));
            }
            // The other routes are answered elsewhere.
            _ => status(&self.coordinator),
        };
        Ok(Response::json(200, &value))
    }

    /// The locks at and below a path. Whatever the path, one search for all of them is shared.
    fn locks(&self, path: &str) -> Result<Value> {
        let exists = |session: &Session| {
            let stat = session.exists(path).timeout(ANSWER_WITHIN).wait()?;
            stat.map(drop).ok_or_else(|| Error::NoNode { path: path.to_owned() })
        };
        self.session.with(exists)?;
        let all = self.contended()?;
        let is_below = |of: &&Contended| {
            let rest = of.path.strip_prefix(path.trim_end_matches('/'));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        Ok(json(all.iter().filter(is_below).collect::<Vec<_>>()))
    }

    fn contended(&self) -> Result<Arc<Vec<Contended>>> {
        let clock = &self.coordinator.shared().clock;
        let search =
            |session: &Session| contended(session, "/").timeout(LOCKS_WITHIN).wait().map(Arc::new);
        self.locks.get(|| clock.now(), || self.session.with(search))
    }

    /// Looks at all recipes if it is time for that and this instance leads: what is found is in its metrics.
    pub(super) fn look(&self, next: &mut Option<Duration>) {
        let clock = &self.coordinator.shared().clock;
        let begun = clock.now();
        if begun >= *next.get_or_insert(begun + LOOK_EVERY) && self.coordinator.status().is_leader {
            // The metrics of the last one stay for a while.
            let _ = self.contended();
            *next = Some(begun + LOOK_EVERY.max(clock.now().saturating_sub(begun) * LOOK_SHARE));
        }
    }

    /// Makes a backup: with everything that was written until now if there is a quorum, and
    /// otherwise of the replica as it is.
    fn backup(&self) -> Result<RouteOutcome> {
        let synced = self.session.with(|session| session.sync().timeout(ANSWER_WITHIN).wait());
        if let Err(error) = synced {
            tracing::warn!(%error, "a backup is taken of the replica as it is");
        }
        Ok(match BackupFile::write(&self.coordinator, &self.backup_under_way)? {
            Some(file) => RouteOutcome::Backup(Box::new(file)),
            None => {
                let reason = "another backup is under way: ask again when it is complete";
                RouteOutcome::Response(Response::error(503, reason))
            }
        })
    }
}

/// Writes a line of the audit log, which alone has the requester's address.
fn note<T>(from: SocketAddr, action: &str, path: &str, done: &Result<T>) {
    let result = match done {
        Ok(_) => "success".to_owned(),
        Err(error) => format!("failure: {error}"),
    };
    tracing::info!(target: AUDIT, %from, action, path, result, "through the admin endpoint");
}

/// Converts a value to JSON; that succeeds for all types of the library.
pub(super) fn json(value: impl Serialize) -> Value {
    serde_json::to_value(value).unwrap_or_default()
}

/// The state of the instance, with the results of the probes.
pub(super) fn status(coordinator: &Coordinator) -> Value {
    let mut status = json(coordinator.status());
    status["availability"] = json(coordinator.availability());
    status["ready"] = json(coordinator.is_ready());
    status
}

/// All members, and the leader, if a majority of the voters reports.
pub(super) fn members(reports: &[MemberReport]) -> Value {
    let leader = MemberReport::leader(reports).map(|leader| &leader.address);
    json!({ "members": json(reports), "leader": leader })
}

/// The response to a failed request.
fn refusal(error: &Error) -> Response {
    let status = match error {
        Error::InvalidPath { .. } | Error::InvalidSetting { .. } | Error::InvalidAcl { .. } => 400,
        Error::NoAuth { .. } | Error::AuthFailed { .. } | Error::Reserved { .. } => 403,
        Error::NoNode { .. } => 404,
        Error::NodeExists { .. }
        | Error::NotEmpty { .. }
        | Error::BadVersion { .. }
        | Error::NoChildrenForEphemerals { .. }
        | Error::Refused { .. } => 409,
        Error::TooLarge { .. } => 413,
        Error::NeedsReplica { .. } | Error::Unsupported { .. } => 501,
        Error::Busy { .. } | Error::Stopped { .. } => 503,
        Error::Timeout { .. } | Error::NotInTime { .. } | Error::OutcomeUnknown { .. } => 504,
        Error::QuotaExceeded { .. } | Error::DiskLow { .. } => 507,
        error if error.is_session_lost() => 503,
        _ => 500,
    };
    Response::error(status, error.to_string())
}

/// The page, in one piece. A browser accepts only its own script and style.
fn page(guard: &Guard) -> Response {
    let Ok(nonce) = entropy::bytes::<16>() else {
        return Response::error(503, "the system provides no random numbers");
    };
    let nonce: String = nonce.iter().map(|byte| format!("{byte:02x}")).collect();
    let text = INDEX
        .replace("{{token}}", if guard.token.is_some() { "yes" } else { "no" })
        .replace("{{writable}}", if guard.writable { "yes" } else { "no" })
        .replace("{{nonce}}", &nonce)
        .replace("{{style}}", STYLE)
        .replace("{{script}}", SCRIPT);
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; img-src \
         data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
         trusted-types 'none'"
    );
    Response::new("text/html; charset=utf-8", text).with(POLICY, policy)
}

/// Reads arbitrary bytes as the requests of a connection, finds their routes, and checks who sends them.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(mut bytes: &[u8]) {
    use super::http;

    let from = SocketAddr::from(([127, 0, 0, 1], 1));
    let token = Some("a-token-of-some-length".to_owned());
    let mut guards = [(None, false), (token, true)].map(|(token, writable)| Guard {
        token,
        writable,
        wrong_tokens: Default::default(),
    });
    while let Ok(Some((head, length))) = http::parse(bytes) {
        assert_eq!(http::parse(&bytes[..length]), Ok(Some((head.clone(), length))));
        assert!(matches!(http::parse(&bytes[..length - 1]), Ok(None)), "it is complete earlier");
        if let Ok(route) = Route::of(&head) {
            for guard in &mut guards {
                let _ = guard.check(&head, &route, from, Duration::ZERO);
            }
        }
        let encoded: String = head.path.bytes().map(|byte| format!("%{byte:02x}")).collect();
        assert_eq!(decoded(&encoded), Ok(head.path));
        bytes = bytes.get(length + head.body..).unwrap_or_default();
    }
}
