//! What is logged, changed while the process runs.
//!
//! The log belongs to the process, not to a node or a group, so the way to it is one of the process too: the program
//! that starts the log says how it is changed, by [`install_log_control`].

use std::sync::OnceLock;

use axum::Router;
use axum::extract::Query;
use axum::response::Json;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Nothing;
use super::change::{Change, Changed};
use super::error::AdminError;

/// Longest filter that is read.
const FILTER_BYTES_MAX: usize = 4_096;

static CONTROL: OnceLock<Box<dyn LogControl>> = OnceLock::new();

/// Changes what is logged.
pub trait LogControl: Send + Sync + 'static {
    /// What is logged now.
    fn filter(&self) -> String;

    /// Whether a text is a filter.
    ///
    /// # Errors
    /// A sentence, if it is none.
    fn check(&self, filter: &str) -> Result<(), String>;

    /// Logs `filter` from now on.
    ///
    /// # Errors
    /// As [`Self::check`]; nothing has changed then.
    fn set(&self, filter: &str) -> Result<(), String>;
}

/// Says how the log of this process is changed. The first one counts.
pub fn install_log_control(control: impl LogControl) {
    let _ = CONTROL.set(Box::new(control));
}

/// What is logged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LogFilter {
    /// A level, or `target=level` pairs separated by commas.
    pub filter: String,
    /// What it was before this call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub was: Option<String>,
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct FilterQuery {
    /// A level (error, warn, info, debug, trace, off), or `target=level` pairs separated by commas, such as
    /// `info,broker::raft=debug`.
    #[param(max_length = 4096)]
    filter: String,
}

/// The routes of the log with their description.
pub(super) fn described<S: Clone + Send + Sync + 'static>() -> OpenApiRouter<S> {
    OpenApiRouter::new().routes(routes!(log_shown, log_changed))
}

/// The routes of the log, for a process that serves nothing else of this interface.
pub fn log_routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    described().split_for_parts().0
}

fn control() -> Result<&'static dyn LogControl, AdminError> {
    let none = || AdminError::Unavailable("this process has not said how its log is changed".to_owned());
    CONTROL.get().map(AsRef::as_ref).ok_or_else(none)
}

/// What a node logs.
#[utoipa::path(get, path = "/v1/log", tag = "nodes", responses((status = 200, body = LogFilter)))]
async fn log_shown(Query(_): Query<Nothing>) -> Result<Json<LogFilter>, AdminError> {
    Ok(Json(LogFilter { filter: control()?.filter(), was: None }))
}

/// Changes what a node logs, until it ends.
#[utoipa::path(post, path = "/v1/log", tag = "nodes", params(Change::<FilterQuery>),
    responses((status = 200, body = Changed<LogFilter>)))]
async fn log_changed(
    Change { dry_run, query: FilterQuery { filter } }: Change<FilterQuery>,
) -> Result<Json<Changed<LogFilter>>, AdminError> {
    if filter.len() > FILTER_BYTES_MAX {
        let bytes = filter.len();
        return Err(AdminError::Invalid(format!("the filter has {bytes} bytes, allowed are {FILTER_BYTES_MAX}")));
    }
    let control = control()?;
    let was = control.filter();
    if dry_run {
        control.check(&filter).map_err(AdminError::Invalid)?;
        return Ok(Changed::planned(format!("`{filter}` would be logged in place of `{was}`")));
    }
    control.set(&filter).map_err(AdminError::Invalid)?;
    // Whatever is logged from now on, this is, unless nothing is.
    tracing::error!(target: "gantry", %was, now = %control.filter(), "what is logged was changed over HTTP");
    Ok(Changed::done(LogFilter { filter: control.filter(), was: Some(was) }))
}
