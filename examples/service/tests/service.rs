//! The service in memory: three instances in one process, which quorate treats like three processes.

use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use job_service::App;
use quorate::testing::Cluster;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tower::ServiceExt;

struct Service {
    cluster: Cluster,
    routers: Vec<Router>,
    running: Vec<JoinHandle<quorate::Result<()>>>,
}

impl Service {
    fn start() -> Service {
        let cluster = Cluster::new(3);
        let apps: Vec<App> = (0..3)
            .map(|at| App {
                coordinator: cluster.node(at),
                name: format!("instance-{at}"),
                address: "127.0.0.1".to_owned(),
                port: 8000 + at as u16,
            })
            .collect();
        let running = apps.iter().map(|app| tokio::spawn(app.clone().run())).collect();
        Service { cluster, routers: apps.into_iter().map(App::router).collect(), running }
    }

    async fn ask(&self, at: usize, method: &str, path: &str, body: &str) -> (StatusCode, String) {
        let request = Request::builder().method(method).uri(path);
        let request = request.header("content-type", "application/json");
        let request = request.body(Body::from(body.to_owned())).unwrap();
        let answer = self.routers[at].clone().oneshot(request).await.unwrap();
        let status = answer.status();
        let body = to_bytes(answer.into_body(), 1 << 20).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    /// Repeats a request until the answer is the expected one.
    async fn until(
        &self,
        at: usize,
        path: &str,
        is_it: impl Fn(StatusCode, &str) -> bool,
    ) -> String {
        for _ in 0..3000 {
            let (status, body) = self.ask(at, "GET", path, "").await;
            if is_it(status, &body) {
                return body;
            }
            sleep(Duration::from_millis(10)).await;
        }
        panic!("{path} never came to be as it should");
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.running.iter().for_each(JoinHandle::abort);
    }
}

const ALL: &str = r#"["instance-0","instance-1","instance-2"]"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_done_once_and_its_result_is_everywhere() {
    let service = Service::start();
    service.until(0, "/ready", |status, _| status == StatusCode::OK).await;
    for number in 0..20 {
        // Twice, like a client that got no reply.
        for at in [number % 3, (number + 1) % 3] {
            let path = format!("/jobs/job-{number}");
            assert_eq!(service.ask(at, "POST", &path, "greet world").await.0, StatusCode::ACCEPTED);
        }
    }
    for number in 0..20 {
        let path = format!("/results/job-{number}");
        let first = service.until(0, &path, |status, _| status == StatusCode::OK).await;
        assert!(first.starts_with("GREET WORLD by instance-"), "{first}");
        assert_eq!(service.ask(2, "GET", &path, "").await, (StatusCode::OK, first));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_loses_its_sessions_comes_back_by_itself() {
    let service = Service::start();
    service.until(0, "/instances", |_, body| body == ALL).await;
    let owner = service.until(0, "/owners/a", |_, body| body != "none").await;
    let at: usize = owner.strip_prefix("instance-").unwrap().parse().unwrap();
    let other = (at + 1) % 3;
    // The owner is isolated for longer than its session's timeout.
    service.cluster.isolate(at);
    service.cluster.advance(Duration::from_secs(60));
    service.until(other, "/owners/a", |_, body| body != "none" && body != owner).await;
    service.until(other, "/instances", |_, body| body != ALL).await;
    // Its session is lost, and what a new one reads has to wait until that is open.
    let limits = service.ask(at, "GET", "/limits", "");
    let heals = async { service.cluster.heal() };
    let (limits, ()) = tokio::join!(limits, heals);
    assert_eq!(limits.0, StatusCode::OK, "{limits:?}");
    service.until(at, "/instances", |_, body| body == ALL).await;
    assert_eq!(service.ask(at, "POST", "/jobs/after", "a job").await.0, StatusCode::ACCEPTED);
    service.until(at, "/results/after", |status, _| status == StatusCode::OK).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_change_while_it_runs() {
    let service = Service::start();
    service.until(0, "/instances", |_, body| body == ALL).await;
    let small = r#"{"job_bytes":3}"#;
    assert_eq!(service.ask(0, "PUT", "/limits", small).await.0, StatusCode::NO_CONTENT);
    service.until(2, "/limits", |_, body| body == small).await;
    let (status, _) = service.ask(2, "POST", "/jobs/long", "four").await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    let metrics = service.ask(1, "GET", "/metrics", "").await.1;
    assert!(metrics.contains("quorate_znodes"), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn ticks_go_on_without_the_instance_that_counted() {
    let service = Service::start();
    let counted = |more_than: u64| {
        move |_, body: &str| body.parse().is_ok_and(|ticks: u64| ticks > more_than)
    };
    service.until(0, "/ticks", counted(1)).await;
    service.running[0].abort();
    let before = service.ask(1, "GET", "/ticks", "").await.1.parse().unwrap();
    service.until(1, "/ticks", counted(before)).await;
}
