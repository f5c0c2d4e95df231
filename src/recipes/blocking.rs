//! The two forms of each call that waits: one blocks the thread, and one is awaited.

use std::future::Future;
use std::time::Duration;

use crate::api::session::Session;
use crate::recipes::Lost;
use crate::runtime::pending::block_on;
use crate::types::error::{Error, Result};

/// Makes the forms of calls, each of which is a future that is written once:
///
/// ```ignore
/// both_forms! {
///     /// Acquires the lock.
///     pub fn acquire / acquire_timeout / acquire_async(&self) -> Result<LockGuard> = forever(self.acquiring());
///     /// Asks the holder to release the lock.
///     pub fn revoke / revoke_async(&self) -> Result<usize> = request(self.revoking());
/// }
/// ```
///
/// The first name is the blocking form, and has the docs. It waits `forever`, or for the `request` timeout if
/// the call does not wait for other participants. The last name is the awaited form. One in the middle blocks for a
/// time that the caller gives. The type has `session()` and `path()`.
macro_rules! both_forms {
    ($(
        $(#[$doc:meta])*
        pub fn $name:ident $(/ $form:ident)+ ($($own:tt)*) -> Result<$T:ty> = $limit:ident($work:expr);
    )+) => {
        $(both_forms! { @receiver ($($own)*) [$(#[$doc])*] $name [$($form)+] [$T] $limit [$work] })+
    };

    (@receiver (&mut $self:ident $($rest:tt)*) $($call:tt)*) => {
        both_forms! { @call $self [&mut $self $($rest)*] $($call)* }
    };
    (@receiver (&$self:ident $($rest:tt)*) $($call:tt)*) => {
        both_forms! { @call $self [&$self $($rest)*] $($call)* }
    };
    (@receiver ($self:ident $($rest:tt)*) $($call:tt)*) => {
        both_forms! { @call $self [$self $($rest)*] $($call)* }
    };

    (@call $self:ident [$($own:tt)*] $docs:tt $name:ident [$timed:ident $awaited:ident] [$T:ty] $limit:ident [$work:expr]) => {
        both_forms! { @call $self [$($own)*] $docs $name [$awaited] [$T] $limit [$work] }

        #[doc = concat!("[`", stringify!($name), "`](Self::", stringify!($name), "), at most for `timeout`:")]
        /// `None` if it is not done by then, which has the effect of dropping the awaited form's future.
        ///
        /// # Errors
        #[doc = concat!("As [`", stringify!($name), "`](Self::", stringify!($name), ").")]
        pub fn $timed($($own)*, timeout: ::std::time::Duration) -> $crate::Result<Option<$T>> {
            let session = $self.session().clone();
            $crate::recipes::blocking::within(&session, timeout, $work)
        }
    };
    (@call $self:ident [$($own:tt)*] [$($doc:tt)*] $name:ident [$awaited:ident] [$T:ty] $limit:ident [$work:expr]) => {
        $($doc)*
        pub fn $name($($own)*) -> $crate::Result<$T> {
            both_forms!(@wait $limit $self $name $work)
        }

        #[doc = concat!("[`", stringify!($name), "`](Self::", stringify!($name), "), awaited: see")]
        /// [`recipes`](crate::recipes#blocking-and-awaiting).
        ///
        /// # Errors
        #[doc = concat!("As [`", stringify!($name), "`](Self::", stringify!($name), "), except")]
        /// [`Error::Timeout`](crate::Error::Timeout).
        pub async fn $awaited($($own)*) -> $crate::Result<$T> {
            $work.await
        }
    };

    (@wait forever $self:ident $name:ident $work:expr) => {{
        let session = $self.session().clone();
        $crate::recipes::blocking::forever(&session, $work)
    }};
    (@wait request $self:ident $name:ident $work:expr) => {{
        // The future may have the value.
        let (session, path) = ($self.session().clone(), $self.path().to_owned());
        $crate::recipes::blocking::request(&session, stringify!($name), &path, $work)
    }};
}

pub(super) use both_forms;

/// Waits without a time limit.
pub(super) fn forever<T>(session: &Session, future: impl Future<Output = Result<T>>) -> Result<T> {
    // Without a deadline there is always a result.
    block_on(future, &session.shared().clock, None)?
        .unwrap_or_else(|| Err(Error::Stopped { reason: "no answer".to_owned() }))
}

/// Waits for a loss, without a time limit.
pub(super) fn until_lost(session: &Session, lost: impl Future<Output = Lost>) -> Lost {
    // Without a deadline there is always a result, except inside a waker, where nothing may block.
    // There the session counts as lost.
    block_on(lost, &session.shared().clock, None).ok().flatten().unwrap_or(Lost::SessionOver)
}

/// Waits at most for `timeout`; `None` if there is no result by then. The future is dropped.
pub(super) fn within<T>(
    session: &Session,
    timeout: Duration,
    future: impl Future<Output = Result<T>>,
) -> Result<Option<T>> {
    let clock = &session.shared().clock;
    let deadline = clock.now().saturating_add(timeout);
    block_on(future, clock, Some(deadline))?.transpose()
}

/// Waits at most for the request timeout, for calls that do not wait for other participants.
pub(super) fn request<T>(
    session: &Session,
    operation: &str,
    path: &str,
    future: impl Future<Output = Result<T>>,
) -> Result<T> {
    let waited = session.shared().limits.request_timeout;
    within(session, waited, future)?.ok_or_else(|| Error::Timeout {
        operation: format!("{operation} {path}"),
        waited,
        reason: session.shared().waiting_for(),
    })
}
