//! Sends journeys as spans to an OpenTelemetry collector, by OTLP over HTTP with JSON.
//!
//! ```text
//!  take() -- bounded queue --> task: journey -> spans -- the SDK's queue, its thread --> POST {endpoint}/v1/traces
//! ```
//!
//! Both queues drop what they have no room for, so a collector that is slow or gone costs spans and nothing else.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use async_trait::async_trait;
use futures::future::BoxFuture;
use opentelemetry::trace::{
    Span as _, SpanBuilder, SpanContext, SpanKind, Status, TraceContextExt as _, TraceFlags, TraceState,
    TracerProvider as _,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_http::hyper::HyperClient;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{BatchSpanProcessor, Sampler, SdkTracer, SdkTracerProvider};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::{Collector, Journey, Value};

/// Journeys that wait to become spans.
const JOURNEYS_MAX: usize = 1_024;
/// How long a collector may take to answer.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// A stopping node sends what is left for so long.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The way to a collector.
pub(super) struct Otlp {
    running: Arc<Mutex<Option<Running>>>,
}

struct Running {
    journeys: mpsc::Sender<Journey>,
    task: JoinHandle<()>,
    provider: SdkTracerProvider,
}

impl Otlp {
    /// Must be called within a tokio runtime.
    pub(super) fn start(endpoint: &str, service_name: &str, node: &str) -> Result<Self, String> {
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(OnRuntime {
                client: Arc::new(HyperClient::with_default_connector(EXPORT_TIMEOUT, None)),
                runtime: Handle::current(),
            })
            .with_protocol(Protocol::HttpJson)
            .with_endpoint(traces_url(endpoint))
            .with_timeout(EXPORT_TIMEOUT)
            .build()
            .map_err(|error| format!("messages cannot be traced to {endpoint}: {error}"))?;
        let resource = Resource::builder_empty()
            .with_service_name(service_name.to_owned())
            .with_attributes([
                KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
                KeyValue::new("service.instance.id", node.to_owned()),
            ])
            .build();
        let provider = SdkTracerProvider::builder()
            .with_span_processor(BatchSpanProcessor::builder(exporter).build())
            // Whom to follow has been decided.
            .with_sampler(Sampler::AlwaysOn)
            .with_resource(resource)
            .build();
        let (journeys, mut taken) = mpsc::channel::<Journey>(JOURNEYS_MAX);
        let tracer = provider.tracer("gantry");
        let task = tokio::spawn(async move {
            while let Some(journey) = taken.recv().await {
                export(&tracer, journey, Clocks::now());
            }
        });
        Ok(Self { running: Arc::new(Mutex::new(Some(Running { journeys, task, provider }))) })
    }
}

impl Collector for Otlp {
    fn take(&self, journey: Journey) {
        if let Some(running) = &*self.running.lock() {
            // Lost if there is no room.
            let _ = running.journeys.try_send(journey);
        }
    }

    fn close(&self) -> BoxFuture<'static, ()> {
        let running = self.running.lock().take();
        Box::pin(async move {
            let Some(Running { journeys, task, provider }) = running else { return };
            drop(journeys);
            // It ends with the last journey.
            let _ = task.await;
            let closed = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(CLOSE_TIMEOUT)).await;
            if let Ok(Err(error)) = closed {
                tracing::warn!(%error, "some spans were not sent");
            }
        })
    }
}

/// The address for traces of a collector, whose address may be given with or without a path.
fn traces_url(endpoint: &str) -> String {
    let base = endpoint.trim_end_matches('/');
    let has_path = base.split_once("://").is_some_and(|(_, rest)| rest.contains('/'));
    if has_path { base.to_owned() } else { format!("{base}/v1/traces") }
}

/// Makes requests on a tokio runtime for a thread that has none.
#[derive(Debug)]
struct OnRuntime {
    client: Arc<HyperClient>,
    runtime: Handle,
}

#[async_trait]
impl HttpClient for OnRuntime {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let client = Arc::clone(&self.client);
        self.runtime.spawn(async move { client.send_bytes(request).await }).await?
    }
}

/// The same moment on the clock that spans are told in and on the one that they were noted by.
#[derive(Clone, Copy)]
struct Clocks {
    wall: SystemTime,
    instant: Instant,
}

impl Clocks {
    fn now() -> Self {
        Self { wall: SystemTime::now(), instant: Instant::now() }
    }

    fn wall(&self, at: Instant) -> SystemTime {
        match self.instant.checked_duration_since(at) {
            Some(ago) => self.wall.checked_sub(ago).unwrap_or(self.wall),
            None => self.wall + at.duration_since(self.instant),
        }
    }
}

fn export(tracer: &SdkTracer, journey: Journey, clocks: Clocks) {
    let parent = match journey.parent {
        Some(parent) => Context::new().with_remote_span_context(SpanContext::new(
            parent.trace_id.into(),
            parent.span_id.into(),
            TraceFlags::SAMPLED,
            true,
            TraceState::NONE,
        )),
        None => Context::new(),
    };
    let mut attributes = vec![
        KeyValue::new("messaging.system", "rocketmq"),
        KeyValue::new("messaging.operation.name", journey.name),
        KeyValue::new("messaging.destination.name", journey.topic.clone()),
    ];
    attributes.extend(journey.attributes.into_iter().map(|(name, value)| match value {
        Value::Text(text) => KeyValue::new(name, text),
        Value::Number(number) => KeyValue::new(name, number),
    }));
    let mut span = SpanBuilder::from_name(format!("{} {}", journey.name, journey.topic))
        .with_kind(SpanKind::Server)
        .with_start_time(clocks.wall(journey.began))
        .with_attributes(attributes)
        .start_with_context(tracer, &parent);
    if let Some(reason) = journey.failed {
        span.set_status(Status::error(reason));
    }
    let own = Context::new().with_remote_span_context(span.span_context().clone());
    for stage in journey.stages {
        let mut part = SpanBuilder::from_name(stage.name)
            .with_kind(SpanKind::Internal)
            .with_start_time(clocks.wall(stage.began))
            .start_with_context(tracer, &own);
        part.end_with_timestamp(clocks.wall(stage.ended));
    }
    span.end_with_timestamp(clocks.wall(journey.ended));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_without_a_path_is_of_a_collector() {
        assert_eq!(traces_url("http://127.0.0.1:4318"), "http://127.0.0.1:4318/v1/traces");
        assert_eq!(traces_url("http://collector:4318/"), "http://collector:4318/v1/traces");
        assert_eq!(traces_url("http://proxy/otlp/v1/traces"), "http://proxy/otlp/v1/traces");
    }
}
