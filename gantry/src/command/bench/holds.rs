//! `gantry bench holds`: how soon a message reaches a consumer that waits for it, among many that wait for others.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use hdrhistogram::Histogram;
use protocol::header::{GetMaxOffsetRequest, Perm, PullRequest, PullSysFlag, QueueOffsetResponse, SendRequest};
use protocol::{GroupName, RemotingCommand, RequestCode, ResponseCode, TopicName};
use remoting::{Channel, ChannelOptions, Ignore};
use serde::Serialize;
use tokio::sync::mpsc;

use super::{CALL_TIME_MAX, CostArgs, Cpu, LATENCY_MICROS_MAX, quantile_ms};
use crate::cluster::Cluster;
use crate::command::topic::{create_everywhere, leader_addr};
use crate::load::made_up_body;
use crate::output::{self, Format};

/// A broker holds 1,024 pulls of one connection at most.
const HOLDS_PER_CONNECTION: usize = 500;
/// How long a pull may wait; a measurement is shorter.
const HOLD_MAX: Duration = Duration::from_secs(300);
/// Until every pull that was sent is held.
const SETTLE: Duration = Duration::from_secs(2);
const BODY_BYTES: usize = 64;
/// Queues between one that gets a message and the next.
const STRIDE: usize = 7_919;

#[derive(Debug, Args)]
pub(crate) struct HoldsArgs {
    /// Pulls held, each of a queue of its own; several numbers, separated by commas, are measured in turn
    #[arg(long, value_delimiter = ',', default_value = "100,10000",
          value_parser = clap::value_parser!(u32).range(1..=20_000))]
    count: Vec<u32>,
    /// Messages sent for each number, one after the other; each wakes one pull
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    wakes: u32,
    /// The topic; it is created if it is not there
    #[arg(long, default_value = "gantry-bench-holds")]
    topic: String,
    #[command(flatten)]
    cost: CostArgs,
}

#[derive(Serialize)]
struct HoldLine {
    held: usize,
    wakes: u64,
    /// From the moment a message was sent until the pull that waits for it was answered.
    delivery_p50_ms: f64,
    delivery_p99_ms: f64,
    delivery_max_ms: f64,
    /// From the moment a message was sent until that was answered.
    send_p50_ms: f64,
    cluster_cpu_micros_per_wake: Option<f64>,
}

/// A queue, and the connections over which it is pulled from and sent to.
#[derive(Clone)]
struct Place {
    broker_name: String,
    queue_id: i32,
    puller: Channel,
    sender: Channel,
    next_offset: i64,
}

/// The answer of a pull of the queue with this number.
struct Answered {
    place: usize,
    at: Instant,
    answer: remoting::Result<RemotingCommand>,
}

pub(super) async fn run(cluster: &Cluster, args: HoldsArgs, format: Format) -> Result<()> {
    let topic = TopicName::parse(&args.topic).context("the name of the topic")?;
    let most = args.count.iter().max().copied().unwrap_or(1) as usize;
    if cluster.find_route(&topic).await?.is_none() {
        let brokers = cluster.info().await?.broker_addr_table.len().max(1);
        create_everywhere(cluster, &topic, i32::try_from(most.div_ceil(brokers)).context("that many queues")?).await?;
    }
    let places = places(cluster, &topic).await?;
    ensure!(
        places.len() >= most,
        "{topic} has {} queues, fewer than {most}: name a topic that is not there yet, and it gets enough",
        places.len()
    );
    let mut lines = Vec::new();
    for count in &args.count {
        lines.push(measure(&topic, places[..*count as usize].to_vec(), &args).await?);
    }
    if format == Format::Json {
        return output::json(&lines);
    }
    let rows = lines.into_iter().map(|line| {
        [
            line.held.to_string(),
            line.wakes.to_string(),
            format!("{:.2}", line.delivery_p50_ms),
            format!("{:.2}", line.delivery_p99_ms),
            format!("{:.2}", line.delivery_max_ms),
            format!("{:.2}", line.send_p50_ms),
            line.cluster_cpu_micros_per_wake.map_or_else(|| "-".to_owned(), |micros| format!("{micros:.0}")),
        ]
    });
    let head = ["held", "wakes", "delivery p50 ms", "p99 ms", "max ms", "send p50 ms", "cpu us a wake"];
    output::line(&output::table(&head, rows))
}

/// The topic's queues, over all brokers in turn.
async fn places(cluster: &Cluster, topic: &TopicName) -> Result<Vec<Place>> {
    let route = cluster.route(topic).await?;
    let mut places = Vec::new();
    for data in route.queue_datas.iter().filter(|data| Perm::is_writable(data.perm)) {
        let broker = route.broker_datas.iter().find(|broker| broker.broker_name == data.broker_name);
        let addr = leader_addr(broker.context("the route has queues of a broker it does not know")?)?;
        let channel = || Channel::new(addr, ChannelOptions::default(), Arc::new(Ignore));
        let (sender, mut puller) = (channel(), channel());
        for queue_id in 0..data.write_queue_nums.min(data.read_queue_nums) {
            if (queue_id as usize).is_multiple_of(HOLDS_PER_CONNECTION) {
                puller = channel();
            }
            places.push(Place {
                broker_name: data.broker_name.clone(),
                queue_id,
                puller: puller.clone(),
                sender: sender.clone(),
                next_offset: 0,
            });
        }
    }
    places.sort_by_key(|place| place.queue_id);
    Ok(places)
}

/// Holds a pull of every place, and wakes one after the other.
async fn measure(topic: &TopicName, mut places: Vec<Place>, args: &HoldsArgs) -> Result<HoldLine> {
    let (answered, mut answers) = mpsc::channel(places.len() + 1);
    for (number, place) in places.iter_mut().enumerate() {
        place.puller.connect(CALL_TIME_MAX).await.context("connecting to a broker")?;
        place.sender.connect(CALL_TIME_MAX).await.context("connecting to a broker")?;
        let mut request = RemotingCommand::request(RequestCode::GET_MAX_OFFSET);
        GetMaxOffsetRequest { topic: topic.clone(), queue_id: place.queue_id, committed: true }
            .encode_into(&mut request.ext);
        let answer = place.puller.call(request, CALL_TIME_MAX).await.context("asking for the end of a queue")?;
        place.next_offset = QueueOffsetResponse::decode(&answer).context("reading the end of a queue")?.queue_offset;
        pull(topic, number, place, &answered)?;
    }
    tokio::time::sleep(SETTLE).await;
    let histogram = || Histogram::<u64>::new_with_max(LATENCY_MICROS_MAX, 3).context("making a histogram");
    let (mut delivery, mut send) = (histogram()?, histogram()?);
    let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let cpu = Cpu::start(&args.cost)?;
    for wake in 0..args.wakes as usize {
        let number = wake * STRIDE % places.len();
        let sent = Instant::now();
        let answer = places[number].sender.call(message(topic, &places[number]), CALL_TIME_MAX).await;
        ensure!(answer.context("sending")?.is_success(), "a send failed");
        send.saturating_record(micros(sent.elapsed()));
        let woken = tokio::time::timeout(CALL_TIME_MAX, answers.recv()).await.context("no pull was woken")?;
        let woken = woken.context("no pull is held any more")?;
        let answer = woken.answer.context("a held pull failed")?;
        ensure!(
            woken.place == number && answer.response_code() == ResponseCode::SUCCESS,
            "the pull of queue {} was answered with code {} when a message went to queue {}",
            places[woken.place].queue_id,
            answer.code,
            places[number].queue_id
        );
        delivery.saturating_record(micros(woken.at.saturating_duration_since(sent)));
        places[number].next_offset += 1;
        pull(topic, number, &places[number], &answered)?;
    }
    let (cluster_cpu, _) = cpu.used()?;
    // What is still held ends with its connections.
    for place in &places {
        place.puller.close(Duration::ZERO).await;
    }
    Ok(HoldLine {
        held: places.len(),
        wakes: delivery.len(),
        delivery_p50_ms: quantile_ms(&delivery, 0.5),
        delivery_p99_ms: quantile_ms(&delivery, 0.99),
        delivery_max_ms: delivery.max() as f64 / 1e3,
        send_p50_ms: quantile_ms(&send, 0.5),
        cluster_cpu_micros_per_wake: cluster_cpu.map(|time| time.as_secs_f64() * 1e6 / f64::from(args.wakes)),
    })
}

/// Asks for the next message of a queue, with leave to wait for it.
fn pull(topic: &TopicName, number: usize, place: &Place, answered: &mpsc::Sender<Answered>) -> Result<()> {
    let mut request = RemotingCommand::request(RequestCode::PULL_MESSAGE);
    PullRequest {
        group: GroupName::parse("TOOLS_CONSUMER").context("the name of the group")?,
        topic: topic.clone(),
        queue_id: place.queue_id,
        queue_offset: place.next_offset,
        max_msg_nums: 32,
        sys_flag: PullSysFlag::SUSPEND | PullSysFlag::SUBSCRIPTION,
        commit_offset: 0,
        suspend_timeout_millis: i64::try_from(HOLD_MAX.as_millis()).unwrap_or(i64::MAX),
        subscription: Some("*".to_owned()),
        sub_version: 0,
        expression_type: None,
        max_msg_bytes: None,
        broker_name: Some(place.broker_name.clone()),
    }
    .encode_into(&mut request.ext);
    let answered = answered.clone();
    place.puller.call_with(request, HOLD_MAX + CALL_TIME_MAX, move |answer| {
        // Nobody looks at the answers of pulls that end with their connections.
        let _ = answered.try_send(Answered { place: number, at: Instant::now(), answer });
    });
    Ok(())
}

fn message(topic: &TopicName, place: &Place) -> RemotingCommand {
    let send = SendRequest {
        producer_group: "gantry_bench",
        topic: topic.clone(),
        default_topic: TopicName::AUTO_CREATE,
        default_topic_queue_nums: 4,
        queue_id: place.queue_id,
        sys_flag: 0,
        born_timestamp: crate::command::now_ms(),
        flag: 0,
        properties: "",
        reconsume_times: 0,
        unit_mode: false,
        batch: false,
        max_reconsume_times: None,
        broker_name: Some(&place.broker_name),
    };
    let mut request = RemotingCommand::request(RequestCode::SEND_MESSAGE_V2).with_body(made_up_body(BODY_BYTES));
    send.encode_into(RequestCode::SEND_MESSAGE_V2, &mut request.ext);
    request
}
