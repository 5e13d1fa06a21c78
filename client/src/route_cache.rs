//! What the name servers said about topics and brokers.

use std::collections::BTreeMap;
use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::RwLock;
use protocol::TopicName;
use protocol::body::TopicRouteData;
use protocol::header::Perm;
use remoting::Channel;

use crate::Queue;

/// Addresses of one broker name by broker id; 0 leads.
pub(crate) type Addresses = BTreeMap<i64, String>;

/// Where a topic lives.
#[derive(Debug)]
pub struct Route {
    publish: Vec<PublishQueue>,
    subscribe: Vec<Queue>,
    brokers: BTreeMap<Arc<str>, Addresses>,
    borrowed: bool,
}

/// A queue to send to, and the way to its leader.
#[derive(Debug, Clone)]
pub(crate) struct PublishQueue {
    pub(crate) queue: Queue,
    pub(crate) leader: Channel,
}

impl Route {
    /// Builds queue lists as every client does: to publish, only where there is a leader; to subscribe, regardless.
    pub(crate) fn new(topic: &TopicName, data: &TopicRouteData, channel: impl Fn(&str) -> Channel) -> Self {
        let brokers: BTreeMap<Arc<str>, Addresses> = data
            .broker_datas
            .iter()
            .map(|broker| (Arc::from(broker.broker_name.as_str()), broker.broker_addrs.clone()))
            .collect();
        let name = |name: &str| brokers.get_key_value(name).map(|(name, _)| Arc::clone(name));
        let queues = |broker_name: &Arc<str>, count: i32| {
            let (topic, broker_name) = (topic.clone(), Arc::clone(broker_name));
            (0..count).map(move |queue_id| Queue {
                topic: topic.clone(),
                broker_name: Arc::clone(&broker_name),
                queue_id,
            })
        };
        let mut writable = Vec::new();
        match data.order_topic_conf.as_deref().filter(|conf| !conf.is_empty()) {
            Some(conf) => {
                for part in conf.split(';') {
                    let Some((broker, count)) = part.split_once(':') else { continue };
                    if let (Some(broker), Ok(count)) = (name(broker), count.trim().parse()) {
                        writable.extend(queues(&broker, count));
                    }
                }
            }
            None => {
                for data in data.queue_datas.iter().filter(|data| Perm::is_writable(data.perm)) {
                    if let Some(broker) = name(&data.broker_name) {
                        writable.extend(queues(&broker, data.write_queue_nums));
                    }
                }
            }
        }
        let mut subscribe: Vec<Queue> = data
            .queue_datas
            .iter()
            .filter(|data| Perm::is_readable(data.perm))
            .filter_map(|data| Some(queues(&name(&data.broker_name)?, data.read_queue_nums)))
            .flatten()
            .collect();
        writable.sort_unstable();
        subscribe.sort_unstable();
        let leaders: BTreeMap<&Arc<str>, Channel> =
            brokers.iter().filter_map(|(name, addresses)| Some((name, channel(addresses.get(&0)?)))).collect();
        let publish = writable
            .into_iter()
            .filter_map(|queue| {
                let leader = leaders.get(&queue.broker_name)?.clone();
                Some(PublishQueue { queue, leader })
            })
            .collect();
        drop(leaders);
        Self { publish, subscribe, brokers, borrowed: false }
    }

    /// Marks a route that was made from the template for topics that do not exist yet.
    pub(crate) fn borrowed(mut self) -> Self {
        self.borrowed = true;
        self
    }

    pub(crate) fn is_borrowed(&self) -> bool {
        self.borrowed
    }

    pub(crate) fn publish(&self) -> &[PublishQueue] {
        &self.publish
    }

    /// Queues to send to.
    pub fn publish_queues(&self) -> impl Iterator<Item = &Queue> {
        self.publish.iter().map(|publish| &publish.queue)
    }

    /// Queues to consume.
    #[must_use]
    pub fn subscribe_queues(&self) -> &[Queue] {
        &self.subscribe
    }

    /// The brokers of the topic, and the addresses of each by id.
    pub fn brokers(&self) -> impl Iterator<Item = (&Arc<str>, &BTreeMap<i64, String>)> {
        self.brokers.iter()
    }
}

/// Routes by topic, and addresses by broker name.
#[derive(Debug, Default)]
pub(crate) struct RouteCache {
    routes: RwLock<HashMap<TopicName, Arc<Route>>>,
    brokers: RwLock<HashMap<Arc<str>, Addresses>>,
}

impl RouteCache {
    pub(crate) fn get(&self, topic: &TopicName) -> Option<Arc<Route>> {
        self.routes.read().get(topic).cloned()
    }

    pub(crate) fn put(&self, topic: &TopicName, route: Route) -> Arc<Route> {
        {
            let mut brokers = self.brokers.write();
            for (name, addresses) in &route.brokers {
                brokers.insert(Arc::clone(name), addresses.clone());
            }
        }
        let route = Arc::new(route);
        self.routes.write().insert(topic.clone(), Arc::clone(&route));
        route
    }

    pub(crate) fn remove(&self, topic: &TopicName) {
        self.routes.write().remove(topic);
    }

    pub(crate) fn topics(&self) -> Vec<TopicName> {
        self.routes.read().keys().cloned().collect()
    }

    /// The address of a replica: `id`, else the leader, else any.
    pub(crate) fn address(&self, broker_name: &str, id: i64) -> Option<String> {
        let brokers = self.brokers.read();
        let addresses = brokers.get(broker_name)?;
        addresses.get(&id).or_else(|| addresses.get(&0)).or_else(|| addresses.values().next()).cloned()
    }

    pub(crate) fn brokers(&self) -> Vec<(Arc<str>, Addresses)> {
        self.brokers.read().iter().map(|(name, addresses)| (Arc::clone(name), addresses.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use protocol::body::BrokerData;
    use protocol::body::QueueData;
    use remoting::ChannelOptions;
    use remoting::Ignore;

    use super::*;

    fn data(order: Option<&str>) -> TopicRouteData {
        let broker = |name: &str, addresses: &[(i64, &str)]| BrokerData {
            broker_addrs: addresses.iter().map(|(id, address)| (*id, (*address).to_owned())).collect(),
            broker_name: name.into(),
            cluster: "c".into(),
            enable_acting_master: false,
        };
        let queues = |name: &str, perm, count| QueueData {
            broker_name: name.into(),
            perm,
            read_queue_nums: count,
            topic_sys_flag: 0,
            write_queue_nums: count,
        };
        TopicRouteData {
            broker_datas: vec![
                broker("b", &[(0, "h:1"), (2, "h:2")]),
                broker("a", &[(1, "h:3")]),
                broker("r", &[(0, "h:4")]),
            ],
            queue_datas: vec![queues("b", 6, 2), queues("a", 6, 1), queues("r", 4, 1)],
            order_topic_conf: order.map(str::to_owned),
            ..TopicRouteData::default()
        }
    }

    fn check(order: Option<&str>, publish: &[&str], subscribe: &[&str]) {
        let topic = TopicName::parse("T").unwrap();
        let channel = |address: &str| Channel::new(address, ChannelOptions::default(), Arc::new(Ignore));
        let route = Route::new(&topic, &data(order), channel);
        let show = |queue: &Queue| format!("{}{}", queue.broker_name, queue.queue_id);
        assert_eq!(route.publish_queues().map(show).collect::<Vec<_>>(), publish);
        assert_eq!(route.subscribe_queues().iter().map(show).collect::<Vec<_>>(), subscribe);
        assert!(route.publish().iter().all(|queue| queue.leader.address() == "h:1"));
    }

    #[test]
    fn only_led_writable_queues_are_published_to_and_all_readable_ones_are_consumed() {
        check(None, &["b0", "b1"], &["a0", "b0", "b1", "r0"]);
    }

    #[test]
    fn order_conf_decides_what_is_published_to() {
        check(Some("b:3;a:2;x:1;junk"), &["b0", "b1", "b2"], &["a0", "b0", "b1", "r0"]);
    }

    #[test]
    fn address_falls_back_to_the_leader_and_then_to_anybody() {
        let cache = RouteCache::default();
        let topic = TopicName::parse("T").unwrap();
        let channel = |address: &str| Channel::new(address, ChannelOptions::default(), Arc::new(Ignore));
        cache.put(&topic, Route::new(&topic, &data(None), channel));
        assert_eq!(cache.address("b", 2).unwrap(), "h:2");
        assert_eq!(cache.address("b", 7).unwrap(), "h:1");
        assert_eq!(cache.address("a", 0).unwrap(), "h:3");
        assert_eq!(cache.address("x", 0), None);
    }
}
