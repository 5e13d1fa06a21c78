//! The broker about itself: codes 26, 28, 315.

use std::collections::BTreeMap;
use std::time::Duration;

use protocol::body::{BrokerStatsData, BrokerStatsItem, KvTable, encode_config_text};
use protocol::header::{BrokerConfigResponse, ViewBrokerStatsRequest};
use protocol::{PROTOCOL_VERSION, RemotingCommand};

use super::answer::{Failure, Outcome, success};
use super::stats::{Meter, Rate};
use super::{Group, now};
use crate::forward::Place;

/// The version that tools print.
const VERSION_NAME: &str = "V5_3_3";

impl Group {
    pub(super) fn runtime_info(&self, request: &RemotingCommand) -> Outcome {
        let mut table = BTreeMap::new();
        let mut put = |key: &str, value: String| {
            table.insert(key.to_owned(), value);
        };
        let stats = &self.0.stats;
        let now = now();
        let uptime = now.instant.saturating_duration_since(stats.started());
        put("brokerActive", matches!(self.place(), Place::Here { .. }).to_string());
        put("brokerVersion", PROTOCOL_VERSION.to_string());
        put("brokerVersionDesc", VERSION_NAME.to_owned());
        put("bootTimestamp", self.0.boot_ms.to_string());
        put("startAcceptSendRequestTimeStamp", "0".to_owned());
        put("runtime", uptime_text(uptime));

        put("putTps", rates(&stats.put));
        put("getTransferredTps", rates(&stats.got));
        // The same under the name that tools of the 4.9 line look for.
        put("getTransferedTps", rates(&stats.got));
        put("getFoundTps", rates(&stats.found));
        put("getMissTps", rates(&stats.missed));
        let (found, missed) = (stats.found.recent(), stats.missed.recent());
        put("getTotalTps", join([found[0] + missed[0], found[1] + missed[1], found[2] + missed[2]]));
        let (messages, bytes) = (stats.put.total(), stats.put_bytes.total());
        put("putMessageTimesTotal", messages.to_string());
        put("putMessageFailedTimes", stats.put_failed.total().to_string());
        put("putMessageSizeTotal", bytes.to_string());
        put("putMessageAverageSize", format!("{:.1}", bytes as f64 / (messages.max(1)) as f64));
        let mornings = stats.mornings();
        for (kind, now, morning) in [
            ("Put", messages, mornings.map(|morning| morning.put)),
            ("Get", stats.got.total(), mornings.map(|morning| morning.got)),
        ] {
            put(&format!("msg{kind}TotalYesterdayMorning"), morning[0].to_string());
            put(&format!("msg{kind}TotalTodayMorning"), morning[1].to_string());
            put(&format!("msg{kind}TotalTodayNow"), now.to_string());
        }

        for (level, next, end) in self.delay_progress().filter(|(_, _, end)| *end > 0) {
            put(&format!("scheduleMessageOffset_{level}"), format!("{next},{end}"));
        }
        let start =
            self.0.store.physical_start().map_err(|error| Failure::error(format!("reading the log: {error}")))?;
        put("commitLogMinOffset", start.to_string());
        put("commitLogMaxOffset", self.0.store.physical_end().to_string());
        put("dispatchBehindBytes", "0".to_owned());
        put("remainHowManyDataToFlush", "0 B".to_owned());
        let earliest = self.0.store.earliest_message_time();
        let earliest = earliest.map_err(|error| Failure::error(format!("reading the log: {error}")))?;
        // Without a message, what tools make of it is an age of nothing.
        put("earliestMessageTimeStamp", earliest.unwrap_or(now.wall_ms).to_string());
        if let Some(space) = self.0.disk.borrow().space {
            let ratio = format!("{:.2}", space.used_ratio());
            let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
            put("commitLogDiskRatio", ratio.clone());
            put("consumeQueueDiskRatio", ratio);
            put(
                "commitLogDirCapacity",
                format!("Total : {:.1} GiB, Free : {:.1} GiB.", gib(space.total_bytes), gib(space.free_bytes)),
            );
        }

        // There are no thread pools and no lock on a page cache; tools want the numbers all the same.
        for pool in ["send", "pull", "litePull", "query", "ack"] {
            put(&format!("{pool}ThreadPoolQueueSize"), "0".to_owned());
            put(&format!("{pool}ThreadPoolQueueCapacity"), "0".to_owned());
            put(&format!("{pool}ThreadPoolQueueHeadWaitTimeMills"), "0".to_owned());
        }
        put("EndTransactionQueueSize", "0".to_owned());
        put("EndTransactionThreadPoolQueueCapacity", "0".to_owned());
        for key in [
            "pageCacheLockTimeMills",
            "putMessageEntireTimeMax",
            "getMessageEntireTimeMax",
            "remainTransientStoreBufferNumbs",
            "timerOffsetBehind",
        ] {
            put(key, "0".to_owned());
        }
        let delayed = self.delayed_messages();
        put("timerCongestNum", delayed.timers.to_string());
        put("timerReadBehind", (delayed.timer_overdue_ms / 1_000).to_string());
        for key in ["timerEnqueueTps", "timerDequeueTps"] {
            put(key, "0.0".to_owned());
        }
        Ok(success(request).with_body(KvTable { table }.encode()))
    }

    pub(super) fn broker_config(&self, request: &RemotingCommand) -> Outcome {
        let settings = &self.0.settings;
        let is_leader = matches!(self.place(), Place::Here { .. });
        let flush = *self.0.state.flush().borrow();
        let is_sync = flush.is_none_or(|setting| setting.is_sync);
        let live = self.live();
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let fixed = [
            ("brokerClusterName", settings.cluster_name.clone()),
            ("brokerIP1", settings.client_addr.ip().to_string()),
            ("brokerId", if is_leader { "0".to_owned() } else { settings.node_id.to_string() }),
            ("brokerName", settings.broker_name.clone()),
            ("brokerRole", if is_leader { "SYNC_MASTER" } else { "SLAVE" }.to_owned()),
            ("clientCallbackExecutorThreads", cores.to_string()),
            ("enablePropertyFilter", "true".to_owned()),
            ("fileReservedTime", (settings.retention_time.as_secs() / 3_600).to_string()),
            ("filterServerNums", "0".to_owned()),
            ("flushDiskType", if is_sync { "SYNC_FLUSH" } else { "ASYNC_FLUSH" }.to_owned()),
            ("listenPort", settings.client_addr.port().to_string()),
            ("longPollingEnable", "true".to_owned()),
            ("messageDelayLevel", settings.delay_levels.to_string()),
            ("msgTraceTopicName", "RMQ_SYS_TRACE_TOPIC".to_owned()),
            ("recallMessageEnable", "true".to_owned()),
            ("storeReplyMessageEnable", "true".to_owned()),
            ("timerMaxDelaySec", settings.timer_delay_max.as_secs().to_string()),
            ("timerPrecisionMs", "1".to_owned()),
            ("timerWheelEnable", "true".to_owned()),
            ("traceOn", "true".to_owned()),
            ("traceTopicEnable", "true".to_owned()),
            ("useTLS", "false".to_owned()),
        ];
        let mut entries: Vec<(&str, String)> = fixed.into_iter().chain(live.entries()).collect();
        entries.sort();
        let text = encode_config_text(entries.iter().map(|(key, value)| (*key, value.as_str())));
        let mut answer = success(request).with_body(text);
        let version = r#"{"counter":0,"stateVersion":0,"timestamp":0}"#.to_owned();
        BrokerConfigResponse { version }.encode_into(&mut answer.ext);
        Ok(answer)
    }

    pub(super) fn view_stats(&self, request: &RemotingCommand) -> Outcome {
        let header = ViewBrokerStatsRequest::decode(request)?;
        let stats = &self.0.stats;
        let key = header.stats_key.as_str();
        let meter = match header.stats_name.as_str() {
            "TOPIC_PUT_NUMS" => stats.topic(key),
            "GROUP_GET_NUMS" => key.split_once('@').and_then(|(topic, group)| stats.reader(topic, group)),
            _ => None,
        };
        let Some(meter) = meter else {
            let name = &header.stats_name;
            return Err(Failure::error(format!("The stats <{name}> <{key}> not exist")));
        };
        let body = BrokerStatsData {
            stats_day: item(meter.day()),
            stats_hour: item(meter.hour()),
            stats_minute: item(meter.minute()),
        };
        Ok(success(request).with_body(body.encode()))
    }
}

fn item(rate: Rate) -> BrokerStatsItem {
    BrokerStatsItem { avgpt: rate.per_time, sum: i64::try_from(rate.sum).unwrap_or(i64::MAX), tps: rate.per_second }
}

fn rates(meter: &Meter) -> String {
    join(meter.recent())
}

fn join(rates: [f64; 3]) -> String {
    format!("{:.2} {:.2} {:.2}", rates[0], rates[1], rates[2])
}

fn uptime_text(uptime: Duration) -> String {
    let seconds = uptime.as_secs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    format!("[ {days} days, {hours} hours, {minutes} minutes, {} seconds ]", seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uptimes_read_well() {
        assert_eq!(uptime_text(Duration::from_secs(90_061)), "[ 1 days, 1 hours, 1 minutes, 1 seconds ]");
        assert_eq!(join([1.0, 0.5, 0.0]), "1.00 0.50 0.00");
    }
}
