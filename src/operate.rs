//! What operators, health checks and tools look at: the state of this instance and of the others, figures, and reasons.
//!
//! The calls are those of [`Coordinator`](crate::Coordinator): [`status`](crate::Coordinator::status),
//! [`metrics`](crate::Coordinator::metrics), [`reports`](crate::Coordinator::reports),
//! [`sessions`](crate::Coordinator::sessions) and others. The [admin endpoint](crate::guide::admin) and the
//! [program](crate::guide::cli) show the same. [`contended`] and [`partitions_status`] show what recipes hold and share.

pub use crate::api::operate::{
    CertificateExpiry, LastReport, Latency, MemberReport, MemberState, Role, SessionInfo,
    Unreachable,
};
pub use crate::api::status::{MemberStatus, Status};
pub use crate::recipes::contended::{Contended, Contending, contended};
pub use crate::recipes::partitions::{
    PartitionMemberStatus, PartitionStatus, PartitionsStatus, partitions_status,
};
pub use crate::recipes::table::{ColumnKind, RecipeCell, RecipeColumn, RecipeTable};
pub use crate::types::metrics::Metrics;
pub use crate::types::metrics::histogram::Histogram;
pub use crate::types::metrics::recipes::RecipeFigures;
pub use crate::types::reason::{Reason, ReasonKind};
pub use crate::types::watch::WatchInfo;
