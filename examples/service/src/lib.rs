//! A service that takes jobs at any instance and does each once, at one of them.
//!
//! The shared state is queues of jobs, who does which of them, their results, the limits that all instances follow,
//! and the list of instances. All of it is in quorate, so the service needs no other servers.

use std::ops::ControlFlow;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use quorate::recipes::{
    Config, Counter, Instance, NewItem, Partition, Partitions, Queue, RateLimiter, Registry,
    Schedule, Timer,
};
use quorate::{Coordinator, CreateMode, Error, Result, Session};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

/// Stored as JSON, so that `quorate set /service/limits` can change them, too.
type Limited = Config<Limits, quorate::recipes::Json>;

const RESULTS: &str = "/service/results";
const TICKS: &str = "/service/ticks";
/// So many instances at most have jobs to do.
const PARTITIONS: usize = 24;
const SECOND: Duration = Duration::from_secs(1);

/// The limits, which `PUT /limits` can change while the service runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// The maximal length of a job.
    pub job_bytes: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { job_bytes: 10_000 }
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
    /// Runs the service. For each session, the instance registers, and does its share of the work. When
    /// the session is lost, all of that ends, and starts again with the next session.
    pub async fn run(self) -> Result<()> {
        self.prepare().await?;
        let coordinator = self.coordinator.clone();
        coordinator
            .supervise_task(move |session| {
                let app = self.clone();
                async move { app.work_in(session).await.map(ControlFlow::Continue) }
            })
            .await
    }

    async fn work_in(&self, session: Session) -> Result<()> {
        let instance = Instance::new(&self.name, &self.address, self.port);
        let registry = Registry::new(&session, "/service/instances")?;
        let _registered = registry.register("jobs", &instance).await?;
        tokio::try_join!(self.share_jobs(&session), self.count_ticks(&session))?;
        Ok(())
    }

    /// Does the jobs of the partitions that are this instance's share, as long as each is.
    async fn share_jobs(&self, session: &Session) -> Result<()> {
        let mut share = partitions(session)?.join(self.name.as_str()).await?;
        // All instances together do so many jobs a second.
        let limit = RateLimiter::new(session, "/service/rate", 1000, SECOND)?;
        let mut workers = JoinSet::new();
        loop {
            tokio::select! {
                partition = share.take() => {
                    let (app, session, limit) = (self.clone(), session.clone(), limit.clone());
                    workers.spawn(app.do_jobs(session, partition?, limit));
                }
                Some(worked) = workers.join_next() => worked.expect("a worker does not panic")?,
            }
        }
    }

    /// Does the jobs of one partition, one after the other. If an instance dies, others go on with its partitions.
    async fn do_jobs(
        self,
        session: Session,
        partition: Partition,
        limit: RateLimiter,
    ) -> Result<()> {
        let jobs = jobs(&session, partition.number())?;
        loop {
            let item = tokio::select! {
                item = jobs.take() => item?,
                _ = partition.wait_asked() => return partition.release().await,
            };
            limit.acquire(1).await?;
            let text = String::from_utf8_lossy(item.data());
            let result = format!("{} by {}", text.to_uppercase(), self.name);
            let path = format!("{RESULTS}/{}", item.id().unwrap_or_default());
            // The result is stored and the job is done, or neither: not if the partition was lost in the meantime,
            // however long this process slept.
            let write = partition.fenced().create(&path, result, CreateMode::Persistent);
            match write.with(&item.done_part()).commit().await {
                Ok(_) => {}
                // It was sent again after it had been done.
                Err(Error::Multi { error, .. }) if matches!(*error, Error::NodeExists { .. }) => {
                    item.done().await?;
                }
                Err(_) if !partition.is_held() => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Counts one tick each second: the instance that claims it counts it in the same write.
    async fn count_ticks(&self, session: &Session) -> Result<()> {
        let ticks = Counter::new(session, TICKS)?;
        let schedule = Schedule::new(session, "/service/schedule")?;
        schedule.set("tick", &Timer::every(SECOND)?).await?;
        loop {
            let tick = schedule.fire(|_, multi| multi.with(&ticks.add_part(1))).await?;
            tracing::info!(name = self.name, number = tick.number(), "counted a tick");
        }
    }

    /// The HTTP interface for its users.
    pub fn router(self) -> Router {
        Router::new()
            .route("/jobs/{id}", post(add_job))
            .route("/results/{id}", get(result))
            .route("/limits", get(limits).put(set_limits))
            .route("/instances", get(instances))
            .route("/owners/{resource}", get(owner))
            .route("/ticks", get(ticks))
            .route("/ready", get(ready))
            .route("/metrics", get(metrics))
            .with_state(self)
    }

    /// Creates the znodes that all instances use, once there is a quorum.
    async fn prepare(&self) -> Result<()> {
        let session = self.coordinator.session();
        Counter::new(&session, TICKS)?.add(0).await?;
        match session.create_with_parents(RESULTS, b"", CreateMode::Persistent).await {
            Ok(_) | Err(Error::NodeExists { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

fn partitions(session: &Session) -> Result<Partitions> {
    Partitions::new(session, "/service/partitions", PARTITIONS)
}

/// The jobs of a partition.
fn jobs(session: &Session, partition: usize) -> Result<Queue> {
    Queue::new(session, &format!("/service/jobs/{partition}"))
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
    if id.contains('/') || [".", ".."].contains(&&*id) {
        return Err((StatusCode::BAD_REQUEST, "the id cannot be the name of a znode".to_owned()));
    }
    let session = app.coordinator.session();
    let limits = Limited::with_codec(&session, "/service/limits").map_err(failed)?;
    let limits = limits.get().await.map_err(failed)?.map(|limits| limits.value);
    if job.len() > limits.unwrap_or_default().job_bytes {
        return Err((StatusCode::PAYLOAD_TOO_LARGE, "the job is too long".to_owned()));
    }
    // Jobs for the same resource (the first word) are done one at a time, across all instances.
    let resource = job.split(u8::is_ascii_whitespace).next().unwrap_or_default();
    let partition = partitions(&session).map_err(failed)?.number_of(resource).unwrap_or_default();
    let jobs = jobs(&session, partition).map_err(failed)?;
    jobs.put(NewItem::new(job).id(id)).await.map_err(failed)?;
    Ok(StatusCode::ACCEPTED)
}

async fn result(State(app): State<App>, Path(id): Path<String>) -> Answer<Vec<u8>> {
    let session = app.coordinator.session();
    // After the sync, a result that one user has seen is there for every user.
    session.sync().await.map_err(failed)?;
    let (data, _) = session.get(&format!("{RESULTS}/{id}")).await.map_err(failed)?;
    Ok(data.to_vec())
}

async fn limits(State(app): State<App>) -> Answer<Json<Limits>> {
    let limits =
        Limited::with_codec(&app.coordinator.session(), "/service/limits").map_err(failed)?;
    Ok(Json(limits.get().await.map_err(failed)?.map(|of| of.value).unwrap_or_default()))
}

async fn set_limits(State(app): State<App>, Json(new): Json<Limits>) -> Answer<StatusCode> {
    let limits =
        Limited::with_codec(&app.coordinator.session(), "/service/limits").map_err(failed)?;
    limits.set(&new).await.map_err(failed)?;
    Ok(StatusCode::NO_CONTENT)
}

async fn instances(State(app): State<App>) -> Answer<Json<Vec<String>>> {
    let discovery =
        Registry::new(&app.coordinator.session(), "/service/instances").map_err(failed)?;
    let there = discovery.instances("jobs").await.map_err(failed)?;
    Ok(Json(there.into_iter().map(|instance| instance.id).collect()))
}

/// Which instance does the jobs for a resource.
async fn owner(State(app): State<App>, Path(resource): Path<String>) -> Answer<String> {
    let partitions = partitions(&app.coordinator.session()).map_err(failed)?;
    let owner = partitions.owner_of(resource).await.map_err(failed)?;
    Ok(owner.unwrap_or_else(|| "none".to_owned()))
}

async fn ticks(State(app): State<App>) -> Answer<String> {
    let ticks = Counter::new(&app.coordinator.session(), TICKS).map_err(failed)?;
    Ok(ticks.get().await.map_err(failed)?.to_string())
}

async fn metrics(State(app): State<App>) -> Answer<String> {
    Ok(app.coordinator.metrics().await.map_err(failed)?.to_string())
}

/// For a load balancer: whether this instance can work.
async fn ready(State(app): State<App>) -> StatusCode {
    if app.coordinator.is_ready() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}
