//! Checks on a request before anything is done for it.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use subtle::ConstantTimeEq;

use super::http::{RequestHead, Response};
use super::routes::Route;
use crate::types::warnings::AUDIT;

/// How often wrong tokens are logged at most.
const LOGGED_EVERY: Duration = Duration::from_secs(10);

/// The rules of one endpoint.
pub(super) struct Guard {
    pub(super) token: Option<String>,
    pub(super) writable: bool,
    pub(super) wrong_tokens: WrongTokens,
}

/// The wrong tokens that were sent.
#[derive(Default)]
pub(super) struct WrongTokens {
    logged_at: Option<Duration>,
    /// Those since the last line of the log, and who sent the last one.
    since: Option<(u64, SocketAddr)>,
}

impl WrongTokens {
    fn note(&mut self, from: SocketAddr, now: Duration) {
        let count = self.since.map_or(0, |(count, _)| count);
        self.since = Some((count + 1, from));
        self.log(now);
    }

    /// Logs them, unless the last line is too recent. Somebody may be guessing, or have a former token.
    pub(super) fn log(&mut self, now: Duration) {
        let is_due = |at: Duration| now.saturating_sub(at) >= LOGGED_EVERY;
        if self.logged_at.is_none_or(is_due)
            && let Some((count, from)) = self.since.take()
        {
            self.logged_at = Some(now);
            tracing::warn!(%from, count, "the admin endpoint has refused wrong tokens, the last one from this address");
            let result = "refused: a wrong token";
            tracing::info!(target: AUDIT, %from, result, count, "through the admin endpoint");
        }
    }
}

impl Guard {
    /// # Errors
    /// The response to a request that is refused.
    pub(super) fn check(
        &mut self,
        head: &RequestHead,
        route: &Route,
        from: SocketAddr,
        now: Duration,
    ) -> Result<(), Response> {
        let forbidden = |reason: &str| Err(Response::error(403, reason));
        // DNS rebinding: another site can let its own name resolve to this address, so that a browser takes
        // both for the same site. With a token that is harmless, and the endpoint may have any name.
        if self.token.is_none() && !is_loopback(&head.host) {
            return forbidden(
                "the header Host names another host: use 127.0.0.1, or give the endpoint a token",
            );
        }
        // The page itself contains no data, and other sites may link to it.
        if !matches!(route, Route::Page) {
            if head.site.as_deref().is_some_and(|site| !["same-origin", "none"].contains(&site)) {
                return forbidden("this is a request of another site");
            }
            if head.origin.as_deref().is_some_and(|origin| !is_own(origin, &head.host)) {
                return forbidden("this is a request of another origin");
            }
        }
        if let Some(token) = &self.token
            && !route.is_open()
            && !is_token(head.authorization.as_deref(), token)
        {
            // The page asks without one, before it shows its form.
            if head.authorization.is_some() {
                self.wrong_tokens.note(from, now);
            }
            let reason = "the endpoint's token is needed: send Authorization: Bearer TOKEN";
            return Err(Response::error(401, reason).with("WWW-Authenticate", "Bearer"));
        }
        if matches!(route, Route::Change(..) | Route::Act(_)) && !self.writable {
            return Err(Response::not_allowed(
                "this endpoint is read-only: AdminBuilder::writable allows changes",
            ));
        }
        if matches!(route, Route::Backup) && self.token.is_none() {
            return forbidden(
                "a backup has all data and the passwords of sessions, whatever access lists say: only an \
                 endpoint with a token gives one",
            );
        }
        Ok(())
    }
}

/// Whether a header `Host` names this host's loopback.
fn is_loopback(host: &str) -> bool {
    let (name, port) = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((name, port)) => (name, port),
        None => host.find(':').map_or((host, ""), |at| host.split_at(at)),
    };
    let is_port = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_digit());
    let is_local = |ip: IpAddr| ip.is_loopback();
    (port.is_empty() || port.strip_prefix(':').is_some_and(is_port))
        && (name.eq_ignore_ascii_case("localhost") || name.parse().is_ok_and(is_local))
}

/// Whether an origin is that of the page itself. A proxy in front of it may use TLS.
fn is_own(origin: &str, host: &str) -> bool {
    let schemes = ["http://", "https://"];
    let mut named = schemes.iter().filter_map(|scheme| origin.strip_prefix(scheme));
    named.any(|named| named.eq_ignore_ascii_case(host))
}

/// Compares a token in a time that depends only on the length of the received one, and not on its
/// content.
fn is_token(authorization: Option<&str>, token: &str) -> bool {
    let sent = authorization.and_then(|text| text.split_once(' '));
    let sent = sent.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    sent.is_some_and(|(_, sent)| bool::from(sent.trim().as_bytes().ct_eq(token.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a browser would take for a user's name and a password was taken for the host.
    #[test]
    fn a_host_is_a_name_and_perhaps_a_port() {
        for host in
            ["localhost", "LOCALHOST:80", "127.0.0.1", "127.9.9.9:7401", "[::1]", "[::1]:80"]
        {
            assert!(is_loopback(host), "{host}");
        }
        for host in [
            "127.0.0.1:80@evil.example",
            "127.0.0.1@evil.example",
            "[::1]@evil.example",
            "[::1]:80@evil.example",
            "localhost:evil.example",
            "localhost.evil.example",
            "10.0.0.1",
            "",
        ] {
            assert!(!is_loopback(host), "{host}");
        }
    }
}
