package gantry.compat;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.client.producer.DefaultMQProducer;

/** What tools call: the client's own interface to brokers, and the leader of each group that a topic is in. */
record Leaders(MQClientAPIImpl api, Map<String, String> byBroker) {
    static final long TIMEOUT_MS = 5_000;

    /** Asks the name servers anew. */
    static Leaders of(DefaultMQProducer client, String topic) throws Exception {
        // The getter is spelled otherwise in 4.x.
        MQClientInstance instance = (MQClientInstance) method(client.getDefaultMQProducerImpl(), "getmQClientFactory").invoke(client.getDefaultMQProducerImpl());
        // The addresses of brokers come with a route.
        instance.updateTopicRouteInfoFromNameServer(topic);
        Map<String, String> byBroker = new TreeMap<>();
        for (String broker : Env.brokerNames(client.fetchPublishMessageQueues(topic))) {
            String address = instance.findBrokerAddressInPublish(broker);
            if (address == null) {
                throw new IllegalStateException(broker + " has no leader");
            }
            byBroker.put(broker, address);
        }
        return new Leaders(instance.getMQClientAPIImpl(), byBroker);
    }

    Collection<String> addresses() {
        return byBroker.values();
    }

    static Object call(Method method, Object target, Object... arguments) throws Exception {
        try {
            return method.invoke(target, arguments);
        } catch (InvocationTargetException e) {
            throw e.getCause() instanceof Exception cause ? cause : e;
        }
    }

    static Method method(Object target, String name) {
        return List.of(target.getClass().getMethods()).stream().filter(m -> m.getName().equalsIgnoreCase(name)).findFirst().orElseThrow();
    }
}
