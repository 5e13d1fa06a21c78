package main

import (
	"fmt"
	"sort"
	"strconv"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// Push consumers: groups, broadcast, order, filters, restarts, latency.
var pushing = []scenario{
	{"push_cluster", pushCluster},
	{"push_broadcast", pushBroadcast},
	{"push_orderly", pushOrderly},
	{"push_tag_filter", pushTagFilter},
	{"push_sql_filter", pushSQLFilter},
	{"push_restart", pushRestart},
	{"push_latency", pushLatency},
}

// Members join and leave; the queues are shared out again each time, and no message is left out.
func pushCluster(e *env) {
	topic := e.topic("t", 4)
	group := e.name("g")
	p := e.producer()
	sendTexts(p, topic, numbered(0, 200))
	first, second := &inbox{}, &inbox{}
	firstMember := e.member(group, topic, "*", first)
	first.awaitExactly(numbered(0, 200), rebalanceLimit)

	// Messages sent while the queues change hands come at least once, all others exactly once.
	e.member(group, topic, "*", second)
	number := awaitShares(p, topic, 200, first, second)
	awaitCover(numbered(0, number), 40*time.Second, first, second)

	must(firstMember.Shutdown(), "shutting a member down")
	gone := len(first.all())
	last := awaitShares(p, topic, number, second)
	awaitCover(numbered(0, last), 40*time.Second, first, second)
	equal(gone, len(first.all()), "messages of the member that left")
	texts := textsOf(first, second)
	e.note("%d of %d came twice, all while queues moved", len(texts)-last, last)
}

// awaitShares sends rounds of messages, numbered from `number` on, until the queues are shared out evenly: each message
// of a round comes exactly once, each queue belongs to one member. It gives the next number.
func awaitShares(p rocketmq.Producer, topic string, number int, members ...*inbox) int {
	deadline := time.Now().Add(rebalanceLimit)
	for {
		round := numbered(number, number+48)
		sendTexts(p, topic, round)
		number += len(round)
		// While queues move, a message may wait for the next rebalance.
		for time.Now().Before(deadline) && len(missing(round, members...)) > 0 {
			time.Sleep(20 * time.Millisecond)
		}
		wanted := map[string]bool{}
		for _, text := range round {
			wanted[text] = true
		}
		owners := map[primitive.MessageQueue]int{}
		counts := make([]int, len(members))
		unclear := 0
		for i, member := range members {
			for _, m := range member.all() {
				if !wanted[string(m.Body)] {
					continue
				}
				queue := *m.Queue
				if owner, is := owners[queue]; is && owner != i {
					unclear++
				}
				if _, is := owners[queue]; !is {
					owners[queue] = i
					counts[i]++
				}
			}
		}
		sort.Ints(counts)
		if unclear == 0 && counts[0] > 0 && counts[len(counts)-1]-counts[0] <= 1 {
			var texts []string
			for _, text := range textsOf(members...) {
				if wanted[text] {
					texts = append(texts, text)
				}
			}
			if len(texts) == len(round) {
				return number
			}
		}
		check(time.Now().Before(deadline), "after %v the queues are still not shared out: owners %v, queues of each %v", rebalanceLimit, owners, counts)
		time.Sleep(200 * time.Millisecond)
	}
}

// Each member gets every message.
func pushBroadcast(e *env) {
	topic := e.topic("t", 4)
	group := e.name("g")
	inboxes := []*inbox{{}, {}}
	for _, in := range inboxes {
		e.member(group, topic, "*", in, consumer.WithConsumerModel(consumer.BroadCasting))
	}
	sendTexts(e.producer(), topic, numbered(0, 200))
	for _, in := range inboxes {
		in.awaitExactly(numbered(0, 200), rebalanceLimit)
	}
}

const orders = 8

// With queue locks, every queue is consumed in its order, also when it changes hands.
func pushOrderly(e *env) {
	topic := e.topic("t", 4)
	group := e.name("g")
	p := e.producer(producer.WithQueueSelector(producer.NewHashQueueSelector()))
	in := &inbox{}
	first := e.member(group, topic, "*", in, consumer.WithConsumerOrder(true))
	e.member(group, topic, "*", in, consumer.WithConsumerOrder(true))
	sendSteps(p, topic, 0, 40)
	awaitSteps(in, 40)
	must(first.Shutdown(), "shutting a member down")
	sendSteps(p, topic, 40, 80)
	awaitSteps(in, 80)
}

func sendSteps(p rocketmq.Producer, topic string, from, to int) {
	for step := from; step < to; step++ {
		for order := 0; order < orders; order++ {
			m := message(topic, fmt.Sprintf("%d:%d", order, step))
			m.WithShardingKey("order " + strconv.Itoa(order))
			send(p, m)
		}
	}
}

// awaitSteps waits for all steps; a step may come again when its queue changes hands, but never after a later one of
// which it was the first copy.
func awaitSteps(in *inbox, steps int) {
	// The locks of a member that left may last their whole lease of 60 s.
	await(fmt.Sprintf("%d steps of each order", steps), 120*time.Second, func() bool {
		seen := map[string]bool{}
		for _, text := range in.texts() {
			seen[text] = true
		}
		return len(seen) >= orders*steps
	})
	nextStep := map[int]int{}
	for _, m := range in.all() {
		var order, step int
		_, err := fmt.Sscanf(string(m.Body), "%d:%d", &order, &step)
		must(err, "reading a body")
		check(step <= nextStep[order], "order %d: step %d came before step %d", order, step, nextStep[order])
		if step == nextStep[order] {
			nextStep[order]++
		}
	}
}

func pushTagFilter(e *env) {
	topic := e.topic("t", 4)
	p := e.producer()
	var wanted []string
	for i := 0; i < 300; i++ {
		tag := []string{"TagA", "TagB", "TagC"}[i%3]
		m := message(topic, fmt.Sprintf("%s %d", tag, i))
		m.WithTag(tag)
		send(p, m)
		if i%3 != 1 {
			wanted = append(wanted, string(m.Body))
		}
	}
	in := &inbox{}
	e.member(e.name("g"), topic, "TagA || TagC", in)
	in.awaitExactly(wanted, rebalanceLimit)
}

// Messages are selected by an expression over their properties, which the broker alone looks at.
func pushSQLFilter(e *env) {
	topic := e.topic("t", 4)
	p := e.producer()
	var wanted []string
	for i := 0; i < 300; i++ {
		m := message(topic, fmt.Sprintf("message %d", i))
		if i%3 != 0 {
			m.WithProperty("number", strconv.Itoa(i))
		}
		send(p, m)
		if i%3 != 0 && i >= 100 && i <= 200 {
			wanted = append(wanted, string(m.Body))
		}
	}
	in := &inbox{}
	c := e.pushConsumer(e.name("g"))
	selector := consumer.MessageSelector{Type: consumer.SQL92, Expression: "number BETWEEN 100 AND 200"}
	must(c.Subscribe(topic, selector, in.receive), "subscribing to "+topic)
	must(c.Start(), "starting a push consumer")
	in.awaitExactly(wanted, rebalanceLimit)
}

// A group that comes back goes on where it stopped: nothing again, nothing left out.
func pushRestart(e *env) {
	topic := e.topic("t", 4)
	group := e.name("g")
	p := e.producer()
	sendTexts(p, topic, numbered(0, 300))
	before := &inbox{}
	c := e.member(group, topic, "*", before)
	before.awaitExactly(numbered(0, 300), rebalanceLimit)
	time.Sleep(time.Second) // the client notes its place some time after the listener has returned
	must(c.Shutdown(), "shutting a consumer down")
	sendTexts(p, topic, numbered(300, 500))
	after := &inbox{}
	e.member(group, topic, "*", after)
	after.awaitExactly(numbered(300, 500), rebalanceLimit)
}

// An idle consumer has its pull waiting at the broker, so a message reaches it at once.
func pushLatency(e *env) {
	topic := e.topic("t", 2)
	p := e.producer()
	in := &inbox{}
	e.member(e.name("g"), topic, "*", in)
	sendTexts(p, topic, numbered(0, 1))
	in.awaitExactly(numbered(0, 1), rebalanceLimit)
	var latencies []time.Duration
	for i := 1; i <= 10; i++ {
		time.Sleep(300 * time.Millisecond) // so that the next message finds an idle consumer
		sentAt := time.Now()
		sendTexts(p, topic, numbered(i, i+1))
		in.awaitExactly(numbered(0, i+1), 5*time.Second)
		latencies = append(latencies, time.Since(sentAt))
	}
	sort.Slice(latencies, func(a, b int) bool { return latencies[a] < latencies[b] })
	e.note("median %d ms, longest %d ms", latencies[5].Milliseconds(), latencies[9].Milliseconds())
}
