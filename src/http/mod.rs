//! What scrapers and probes ask: `/metrics`, `/healthz`, `/readyz`.
//!
//! What it is: a small HTTP/1.1 server on a port of its own.
//! Promises: *ready* means that `/readyz` answers 200, and otherwise its text says what is
//! missing; a connection that says nothing, or never ends, is closed.
//! Never: changes anything, or answers about single messages.

mod serve;

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use metrics_exporter_prometheus::PrometheusHandle;

pub use serve::{Options, serve};

/// What stands between this node and its being ready.
pub trait Readiness: Send + Sync {
    /// One sentence for each obstacle; none means ready.
    fn obstacles(&self) -> Vec<String>;
}

#[derive(Clone)]
struct Answers {
    metrics: PrometheusHandle,
    readiness: Arc<dyn Readiness>,
}

/// The paths, for [`serve()`].
pub fn router(metrics: PrometheusHandle, readiness: Arc<dyn Readiness>) -> Router {
    Router::new()
        .route("/metrics", get(metrics_text))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .with_state(Answers { metrics, readiness })
}

/// The text format of Prometheus, version 0.0.4.
async fn metrics_text(State(answers): State<Answers>) -> Response {
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    (kind, answers.metrics.render()).into_response()
}

/// The process runs and answers; nothing more.
async fn healthz() -> &'static str {
    "ok\n"
}

async fn readyz(State(answers): State<Answers>) -> Response {
    let obstacles = answers.readiness.obstacles();
    if obstacles.is_empty() {
        return "ready\n".into_response();
    }
    let mut text = obstacles.join("\n");
    text.push('\n');
    (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
}
