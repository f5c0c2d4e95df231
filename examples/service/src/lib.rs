//! A service that takes jobs at any instance and does each once, at one of them.
//!
//! The shared state is a queue of jobs, their results, the limits that all instances follow, the list of
//! instances, and the leader. All of it is in quorate, so the service needs no other servers.

use std::ops::ControlFlow;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use quorate::recipes::{Config, Discovery, Instance, LeaderSelector, NewItem, Queue, Registry};
use quorate::{Coordinator, CreateMode, Error, Result, Session};
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

/// Stored as JSON, so that `quorate set /service/limits` can change them, too.
type Limited = Config<Limits, quorate::recipes::Json>;

const RESULTS: &str = "/service/results";
const TICKS: &str = "/service/ticks";

/// The limits, which `PUT /limits` can change while the service runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// How long the leader waits between two ticks.
    pub tick_ms: u64,
    /// The maximal length of a job.
    pub job_bytes: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { tick_ms: 1000, job_bytes: 10_000 }
    }
}

/// One instance of the service.
#[derive(Clone)]
pub struct App {
    pub coordinator: Coordinator,
    pub name: String,
    /// The address at which its users find it.
    pub address: String,
    pub port: u16,
}

impl App {
    /// Runs the service. For each session, the instance registers, works, and campaigns for leadership. When
    /// the session is lost, all of that ends, and starts again with the next session.
    pub async fn run(self) -> Result<()> {
        self.prepare().await?;
        let coordinator = self.coordinator.clone();
        coordinator
            .supervise_async(|session| {
                let app = self.clone();
                async move { app.work_in(session).await.map(ControlFlow::Continue) }
            })
            .await
    }

    async fn work_in(&self, session: Session) -> Result<()> {
        let instance = Instance::new(&self.name, &self.address, self.port);
        let registry = Registry::new(&session, "/service/instances")?;
        let _registered = registry.register_async("jobs", &instance).await?;
        tokio::try_join!(self.do_jobs(&session), self.lead(&session))?;
        Ok(())
    }

    /// Does one job after the other. If an instance dies, another one gets its job.
    async fn do_jobs(&self, session: &Session) -> Result<()> {
        let jobs = Queue::new(session, "/service/jobs")?;
        loop {
            let item = jobs.take_async().await?;
            let id = item.id().unwrap_or_default().to_owned();
            let text = String::from_utf8_lossy(item.data()).into_owned();
            // Jobs for the same resource (the first word) are done one at a time, across all instances.
            let resource = text.split_whitespace().next().unwrap_or("none").replace('/', "_");
            let lock = session.lock(&format!("/service/locks/{resource}"))?;
            let guard = lock.acquire_async().await?;
            let result = format!("{} by {}", text.to_uppercase(), self.name);
            // It has no effect if the lock was lost in the meantime, however long this process slept.
            let write =
                guard.fenced().create(&format!("{RESULTS}/{id}"), result, CreateMode::Persistent);
            match write.submit().await {
                Ok(_) => {}
                // Another instance has done the job and died before it removed it from the queue.
                Err(Error::Multi { error, .. }) if matches!(*error, Error::NodeExists { .. }) => {}
                Err(error) => return Err(error),
            }
            item.done_async().await?;
            guard.release_async().await?;
        }
    }

    /// While this instance leads, it counts ticks with a fenced write: two instances never both count.
    async fn lead(&self, session: &Session) -> Result<()> {
        let selector = LeaderSelector::new(session, "/service/leader", &self.name)?;
        let limits = Limited::with_codec(session, "/service/limits")?;
        selector
            .run_async(|leadership| {
                let limits = &limits;
                async move {
                    tracing::info!(name = self.name, "leads");
                    loop {
                        let tick = leadership.fencing_token().to_string();
                        let counted = leadership.fenced().set(TICKS, tick).submit().await;
                        let limits = limits.get_async().await.ok().flatten();
                        if let Err(error) = counted {
                            tracing::warn!(%error, "a tick was not counted");
                            return ControlFlow::<()>::Continue(());
                        }
                        let tick_ms = limits.map_or(1000, |limits| limits.value.tick_ms);
                        sleep(Duration::from_millis(tick_ms)).await;
                    }
                }
            })
            .await
            .map(drop)
    }

    /// The HTTP interface for its users.
    pub fn router(self) -> Router {
        Router::new()
            .route("/jobs/{id}", post(add_job))
            .route("/results/{id}", get(result))
            .route("/limits", get(limits).put(set_limits))
            .route("/instances", get(instances))
            .route("/leader", get(leader))
            .route("/ready", get(ready))
            .route(
                "/metrics",
                get(|State(app): State<App>| async move { app.coordinator.metrics().to_string() }),
            )
            .with_state(self)
    }

    /// Creates the znodes that all instances use, once there is a quorum.
    async fn prepare(&self) -> Result<()> {
        let session = self.coordinator.session();
        let session = session.nonblocking();
        for path in [RESULTS, TICKS] {
            match session.create_with_parents(path, b"", CreateMode::Persistent).await {
                Ok(_) | Err(Error::NodeExists { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

type Answer<T> = std::result::Result<T, (StatusCode, String)>;

/// The HTTP reply for an error.
fn failed(error: Error) -> (StatusCode, String) {
    let status = match &error {
        Error::NoNode { .. } => StatusCode::NOT_FOUND,
        Error::InvalidPath { .. } => StatusCode::BAD_REQUEST,
        error if error.is_retryable() => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    (status, error.to_string())
}

/// A job that is sent twice with the same id is done once.
async fn add_job(State(app): State<App>, Path(id): Path<String>, job: Bytes) -> Answer<StatusCode> {
    let session = app.coordinator.session();
    let limits = Limited::with_codec(&session, "/service/limits").map_err(failed)?;
    let limits = limits.get_async().await.map_err(failed)?.map(|limits| limits.value);
    if job.len() > limits.unwrap_or_default().job_bytes {
        return Err((StatusCode::PAYLOAD_TOO_LARGE, "the job is too long".to_owned()));
    }
    let jobs = Queue::new(&session, "/service/jobs").map_err(failed)?;
    jobs.put_async(NewItem::new(job).id(id)).await.map_err(failed)?;
    Ok(StatusCode::ACCEPTED)
}

async fn result(State(app): State<App>, Path(id): Path<String>) -> Answer<Vec<u8>> {
    let session = app.coordinator.session();
    let session = session.nonblocking();
    // After the sync, a result that one user has seen is there for every user.
    session.sync().await.map_err(failed)?;
    let (data, _) = session.get(&format!("{RESULTS}/{id}")).await.map_err(failed)?;
    Ok(data.to_vec())
}

async fn limits(State(app): State<App>) -> Answer<Json<Limits>> {
    let limits =
        Limited::with_codec(&app.coordinator.session(), "/service/limits").map_err(failed)?;
    Ok(Json(limits.get_async().await.map_err(failed)?.map(|of| of.value).unwrap_or_default()))
}

async fn set_limits(State(app): State<App>, Json(new): Json<Limits>) -> Answer<StatusCode> {
    let limits =
        Limited::with_codec(&app.coordinator.session(), "/service/limits").map_err(failed)?;
    limits.set_async(&new).await.map_err(failed)?;
    Ok(StatusCode::NO_CONTENT)
}

async fn instances(State(app): State<App>) -> Answer<Json<Vec<String>>> {
    let discovery =
        Discovery::new(&app.coordinator.session(), "/service/instances").map_err(failed)?;
    let there = discovery.instances_async("jobs").await.map_err(failed)?;
    Ok(Json(there.into_iter().map(|instance| instance.id).collect()))
}

async fn leader(State(app): State<App>) -> Answer<String> {
    let latch = quorate::recipes::LeaderLatch::new(
        &app.coordinator.session(),
        "/service/leader",
        &app.name,
    );
    let leader = latch.map_err(failed)?.leader_async().await.map_err(failed)?;
    Ok(leader.map_or_else(|| "none".to_owned(), |leader| leader.name().into_owned()))
}

/// For a load balancer: whether this instance can work.
async fn ready(State(app): State<App>) -> StatusCode {
    if app.coordinator.is_ready() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}
