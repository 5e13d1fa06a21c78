"""Runs what applications do with the Python client of RocketMQ, and checks what they see.

usage: scenarios.py NAMESRV [SCENARIO...]

The client is a C++ library behind ctypes, so each scenario runs in a process of its own: a crash in the library is one
failed scenario. The library starts a new group at the end of each queue, so consumers are started first and are known
to be ready when probe messages reach them through every queue.
"""

import os
import subprocess
import sys
import threading
import time

SCENARIO_LIMIT = 240
QUIET_TIME = 1.0
REBALANCE_LIMIT = 60
# Longest hold of a pull, as the library asks for it, and what RocketMQ's own clock of holds may add. A member that gets
# a queue back while a pull of it from before is held waits for that pull on the thread that would receive its answer.
HELD_TIME = 15 + 5 + 1


class Failure(Exception):
    """What a scenario saw was not what it must see."""


def check(holds, otherwise):
    if not holds:
        raise Failure(otherwise)


def equal(expected, found, what):
    check(expected == found, "%s: expected %s, found %s" % (what, brief(expected), brief(found)))


def brief(value):
    if isinstance(value, list) and len(value) > 20:
        return "%d elements %r..." % (len(value), value[:20])
    return repr(value)


def wait_for(what, seconds, condition):
    deadline = time.monotonic() + seconds
    while not condition():
        check(time.monotonic() < deadline, "waited %d s for %s" % (seconds, what() if callable(what) else what))
        time.sleep(0.02)


def numbered(start, end):
    return ["message %06d" % i for i in range(start, end)]


def given(expected, messages):
    """Checks that consumers were given all of the expected bodies, no other, and no place of a queue twice.

    A body may lie at two places: the library sends again when an attempt has no answer, and that attempt may have worked.
    """
    bodies = {m.body for m in messages}
    equal(sorted(expected), sorted(bodies), "what consumers were given")
    places = {}
    for m in messages:
        before = places.setdefault(m.place, m)
        check(before is m, "%s, in queue %d at offset %d, was given twice" % (m.body, m.queue, m.offset))


class Given:
    """A message as a listener got it, bodies, tags, keys and one property as text."""

    def __init__(self, message):
        text = lambda raw: raw.decode("utf-8") if raw is not None else ""
        self.body, self.tags, self.keys = text(message.body), text(message.tags), text(message.keys)
        self.name = text(message.get_property("name"))
        self.queue, self.offset = message.queue_id, message.queue_offset
        # The library does not say which broker it was, and logs of equal histories have equal places.
        self.place = (self.queue, self.offset, message.commit_log_offset, message.store_timestamp, message.id)


class Inbox:
    """What listeners were given, in that order."""

    def __init__(self):
        self.lock = threading.Lock()
        self.messages = []

    def callback(self, message):
        seen = Given(message)
        with self.lock:
            self.messages.append(seen)

    def all(self, prefix=""):
        with self.lock:
            return [m for m in self.messages if m.body.startswith(prefix)]

    def bodies(self, prefix="message"):
        return {m.body for m in self.all(prefix)}

    def await_exactly(self, expected, seconds):
        wanted = set(expected)
        absent = lambda: wanted - self.bodies("")
        wait_for(lambda: "%d messages, %d of them missing, such as %s" % (len(wanted), len(absent()), sorted(absent())[:5]), seconds, lambda: not absent())
        time.sleep(QUIET_TIME)  # for what must not come
        given(expected, self.all("message"))


class Env:
    """Names of a scenario's own, and clients that are shut down when it ends."""

    def __init__(self, namesrv, scenario):
        self.namesrv = namesrv
        self.scenario = scenario
        self.run = "%x" % int(time.time() * 1000)
        self.clients = []
        self.count = 0

    def name(self, kind):
        return "py_%s_%s_%s" % (self.scenario, kind, self.run)

    def producer(self):
        from rocketmq.client import Producer

        self.count += 1
        producer = Producer("%s_%d" % (self.name("pg"), self.count), timeout=5000)
        producer.set_namesrv_addr(self.namesrv)
        producer.start()
        self.clients.append(producer)
        return producer

    def consumer(self, group, topic, inbox, tags="*", **options):
        from rocketmq.client import PushConsumer

        self.count += 1
        consumer = PushConsumer(group, **options)
        consumer.set_namesrv_addr(self.namesrv)
        consumer.set_instance_name("compat%d_%d" % (os.getpid(), self.count))
        consumer.set_thread_count(2)
        consumer.subscribe(topic, inbox.callback, tags)
        consumer.start()
        self.clients.append(consumer)
        return consumer

    def topic(self, producer):
        """A topic made by its first messages, one for each queue of every broker group."""
        from rocketmq.exceptions import ProducerSendSyncFailed

        topic = self.name("t")
        for i in range(24):
            # The library's first sends fail when they meet its own first heartbeat at a lock that it does not wait for.
            for tries_left in (2, 1, 0):
                try:
                    sent(producer.send_sync(message(topic, "first %d" % i)))
                    break
                except ProducerSendSyncFailed:
                    if tries_left == 0:
                        raise
                    time.sleep(QUIET_TIME)
        return topic

    def await_ready(self, producer, topic, inboxes, everyone=False, tags=None):
        """Sends probes until a round of them all arrives: in one of the inboxes, or in each."""
        deadline = time.monotonic() + REBALANCE_LIMIT
        number = 0
        while True:
            number += 1
            probes = {"probe %d.%d" % (number, i) for i in range(24)}
            for probe in sorted(probes):
                sent(producer.send_sync(message(topic, probe, tags=tags)))
            time.sleep(QUIET_TIME)
            seen = [inbox.bodies("probe") for inbox in inboxes]
            if everyone and all(probes <= s for s in seen):
                return
            if not everyone and probes <= set().union(*seen) and all(probes & s for s in seen):
                return
            check(time.monotonic() < deadline, "waited %d s for consumers to get probes, got %s" % (REBALANCE_LIMIT, [len(s) for s in seen]))

    def close(self):
        for client in reversed(self.clients):
            client.shutdown()


def message(topic, body, tags=None, keys=None, properties=None):
    from rocketmq.client import Message

    made = Message(topic)
    made.set_body(body)
    if tags is not None:
        made.set_tags(tags)
    if keys is not None:
        made.set_keys(keys)
    for key, value in (properties or {}).items():
        made.set_property(key, value)
    return made


def sent(result):
    from rocketmq.client import SendStatus

    check(result.status == SendStatus.OK, "a send answered %s" % (result,))
    return result


def ready_pair(env):
    """A producer, a topic, and a consumer of all its queues."""
    producer = env.producer()
    topic = env.topic(producer)
    inbox = Inbox()
    env.consumer(env.name("g"), topic, inbox)
    env.await_ready(producer, topic, [inbox])
    return producer, topic, inbox


def send_sync(env):
    producer, topic, inbox = ready_pair(env)
    ids = [sent(producer.send_sync(message(topic, body))).msg_id for body in numbered(0, 200)]
    equal(200, len(set(ids)), "different message ids")
    inbox.await_exactly(numbered(0, 200), 30)


def send_async(env):
    producer, topic, inbox = ready_pair(env)
    answers, faults = [], []
    for body in numbered(0, 200):
        producer.send_async(message(topic, body), answers.append, faults.append)
    wait_for(lambda: "200 answers, got %d and %d faults" % (len(answers), len(faults)), 30, lambda: len(answers) + len(faults) == 200)
    check(not faults, "%d sends failed: %s" % (len(faults), faults[:1]))
    inbox.await_exactly(numbered(0, 200), 30)


def send_oneway(env):
    producer, topic, inbox = ready_pair(env)
    for body in numbered(0, 200):
        producer.send_oneway(message(topic, body))
    inbox.await_exactly(numbered(0, 200), 30)


def send_batch(env):
    """All come, or one message that holds them all: RocketMQ 5 reads this client's batch flag as false."""
    producer, topic, inbox = ready_pair(env)
    before = len(inbox.all())
    sent(producer.send_batch([message(topic, body) for body in numbered(0, 50)]))
    wait_for("the batch", 30, lambda: len(inbox.all()) > before)
    time.sleep(QUIET_TIME)
    given([] if len(inbox.all()) == before + 1 else numbered(0, 50), inbox.all("message"))


def send_ordered(env):
    """All messages of one order go to one queue, and an orderly consumer gets them in order."""
    producer = env.producer()
    topic = env.topic(producer)
    inbox = Inbox()
    env.consumer(env.name("g"), topic, inbox, orderly=True)
    env.await_ready(producer, topic, [inbox])
    bodies = ["message %d:%d" % (order, step) for step in range(30) for order in range(4)]
    for body in bodies:
        sent(producer.send_orderly(message(topic, body), int(body.split()[1].split(":")[0])))
    inbox.await_exactly(bodies, 60)
    for order in range(4):
        mine = inbox.all("message %d:" % order)
        steps = list(dict.fromkeys(int(m.body.split(":")[1]) for m in mine))
        equal(list(range(30)), steps, "steps of order %d" % order)
        equal(1, len({m.queue for m in mine}), "queues of order %d" % order)


def tags_keys_properties(env):
    """A tag selects; UTF-8 keys and properties arrive as sent."""
    producer = env.producer()
    topic = env.topic(producer)
    inbox = Inbox()
    env.consumer(env.name("g"), topic, inbox, tags="TagA || TagC")
    env.await_ready(producer, topic, [inbox], tags="TagA")
    name = "\u540d\u5b57 \u0438\u043c\u044f"
    wanted = []
    for i, body in enumerate(numbered(0, 90)):
        tag = ["TagA", "TagB", "TagC"][i % 3]
        sent(producer.send_sync(message(topic, body, tags=tag, keys="\u952e%d" % i, properties={"name": name})))
        if tag != "TagB":
            wanted.append(body)
    inbox.await_exactly(wanted, 30)
    for m in inbox.all("message"):
        i = int(m.body.split()[1])
        equal(["TagA", "TagB", "TagC"][i % 3], m.tags, "tag of %s" % m.body)
        equal("\u952e%d" % i, m.keys, "keys of %s" % m.body)
        equal(name, m.name, "property of %s" % m.body)


def push_cluster(env):
    """Two members share the queues; when one leaves, the other has them all."""
    producer = env.producer()
    topic = env.topic(producer)
    group = env.name("g")
    first, second = Inbox(), Inbox()
    env.consumer(group, topic, first)
    env.await_ready(producer, topic, [first])
    leaving = env.consumer(group, topic, second)
    env.await_ready(producer, topic, [first, second])
    for body in numbered(0, 200):
        sent(producer.send_sync(message(topic, body)))
    absent = lambda: set(numbered(0, 200)) - first.bodies() - second.bodies()
    wait_for(lambda: "200 messages at both members, %d are missing, such as %s" % (len(absent()), sorted(absent())[:5]), 30, lambda: not absent())
    time.sleep(QUIET_TIME)  # for what must not come
    given(numbered(0, 200), first.all("message") + second.all("message"))
    time.sleep(HELD_TIME)
    leaving.shutdown()
    env.clients.remove(leaving)
    env.await_ready(producer, topic, [first])
    for body in numbered(200, 300):
        sent(producer.send_sync(message(topic, body)))
    wait_for("100 messages at the remaining member", 30, lambda: set(numbered(200, 300)) <= first.bodies())


def push_broadcast(env):
    from rocketmq.client import MessageModel

    producer = env.producer()
    topic = env.topic(producer)
    group = env.name("g")
    inboxes = [Inbox(), Inbox()]
    for inbox in inboxes:
        env.consumer(group, topic, inbox, message_model=MessageModel.BROADCASTING)
    env.await_ready(producer, topic, inboxes, everyone=True)
    for body in numbered(0, 100):
        sent(producer.send_sync(message(topic, body)))
    for inbox in inboxes:
        inbox.await_exactly(numbered(0, 100), 30)


def push_restart(env):
    """A group that comes back goes on where it stopped."""
    producer = env.producer()
    topic = env.topic(producer)
    group = env.name("g")
    before, after = Inbox(), Inbox()
    first = env.consumer(group, topic, before)
    env.await_ready(producer, topic, [before])
    for body in numbered(0, 100):
        sent(producer.send_sync(message(topic, body)))
    before.await_exactly(numbered(0, 100), 30)
    first.shutdown()
    env.clients.remove(first)
    for body in numbered(100, 200):
        sent(producer.send_sync(message(topic, body)))
    env.consumer(group, topic, after)
    after.await_exactly(numbered(100, 200), REBALANCE_LIMIT)


SCENARIOS = [send_sync, send_async, send_oneway, send_batch, send_ordered, tags_keys_properties, push_cluster, push_broadcast, push_restart]


def run_here(namesrv, scenario):
    env = Env(namesrv, scenario.__name__)
    try:
        scenario(env)
    except Exception as fault:  # whatever it is, it is this scenario's result
        print("FAIL", type(fault).__name__ if not isinstance(fault, Failure) else "", " ".join(str(fault).split())[:400], flush=True)
        os._exit(1)
    env.close()
    print("PASS", flush=True)
    os._exit(0)  # the library's own exit handlers are not under test


def run_apart(namesrv, scenario):
    started = time.monotonic()
    command = [sys.executable, os.path.abspath(__file__), namesrv, "--here", scenario.__name__]
    try:
        child = subprocess.run(command, stdout=subprocess.PIPE, timeout=SCENARIO_LIMIT, universal_newlines=True)
        lines = [line for line in child.stdout.splitlines() if line.startswith(("PASS", "FAIL"))]
        result = lines[-1] if lines else "FAIL the process ended with %d and said nothing" % child.returncode
    except subprocess.TimeoutExpired:
        result = "FAIL still running after %d s" % SCENARIO_LIMIT
    verdict, _, why = result.partition(" ")
    print(verdict, scenario.__name__, why.strip() + (" " if why.strip() else "") + "(%.1f s)" % (time.monotonic() - started), flush=True)
    return verdict == "PASS"


def main(args):
    if not args:
        print(__doc__, file=sys.stderr)
        return 2
    namesrv, names = args[0], args[1:]
    by_name = {scenario.__name__: scenario for scenario in SCENARIOS}
    here = names[:1] == ["--here"]
    names = names[1:] if here else names
    unknown = [name for name in names if name not in by_name]
    if unknown:
        print("no such scenario: %s; there are %s" % (", ".join(unknown), ", ".join(by_name)), file=sys.stderr)
        return 2
    if here:
        run_here(namesrv, by_name[names[0]])
    chosen = [by_name[name] for name in names] or SCENARIOS
    passed = [run_apart(namesrv, scenario) for scenario in chosen]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
