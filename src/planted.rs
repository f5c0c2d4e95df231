//! Hooks for bugs that the simulator and some tests plant, to see that their checks find them.
//!
//! The table of the bugs is `simulation/planted.rs`, which is not in the published package. In every
//! build without the simulator the hooks are always false, and the compiler removes them. With it, at
//! most one bug at a time is planted, for the current thread.
//!
//! A bug in product code is one expression at one place, without any state there. Bugs of a node's
//! environment (its disk, its network and the delivery of events) are planted in the simulator
//! instead (`simulation/surroundings.rs`).

#[cfg(any(test, feature = "simulator"))]
#[path = "../simulation/planted.rs"]
mod bugs;

#[cfg(any(test, feature = "simulator"))]
pub use bugs::Bug;
#[cfg(test)]
pub(crate) use bugs::claims;
#[cfg(any(test, feature = "simulator"))]
pub(crate) use bugs::{is_planted, plant, strikes};

/// Whether this bug is planted, in a build without the simulator.
#[cfg(not(any(test, feature = "simulator")))]
#[inline(always)]
pub(crate) fn never(_bug: &str) -> bool {
    false
}

/// Whether this bug is planted.
macro_rules! planted {
    ($bug:ident) => {{
        #[cfg(any(test, feature = "simulator"))]
        let is_planted = $crate::planted::is_planted($crate::planted::Bug::$bug);
        #[cfg(not(any(test, feature = "simulator")))]
        let is_planted = $crate::planted::never(stringify!($bug));
        is_planted
    }};
}

/// Whether this bug is planted and strikes now, which is at every `$every`th call.
macro_rules! strikes {
    ($bug:ident, $every:expr) => {{
        #[cfg(any(test, feature = "simulator"))]
        let strikes = $crate::planted::strikes($crate::planted::Bug::$bug, $every);
        #[cfg(not(any(test, feature = "simulator")))]
        let strikes = $crate::planted::never(stringify!($bug));
        strikes
    }};
}

/// `$right`, or `$wrong` if this bug is planted.
macro_rules! unless {
    ($bug:ident, $right:expr, $wrong:expr $(,)?) => {
        if planted!($bug) { $wrong } else { $right }
    };
}
