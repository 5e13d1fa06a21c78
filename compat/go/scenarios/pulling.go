package main

import (
	"context"
	"fmt"
	"sort"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// Consumers that ask.
var pulling = []scenario{
	{"pull", pull},
	{"pull_poll", pullPoll},
}

// Every status that a pull can answer with, and the group's own place.
func pull(e *env) {
	topic := e.topic("t", 2)
	group := e.name("g")
	c := e.puller(group, topic)
	queues, err := c.GetTopicRouteInfo(topic)
	must(err, "asking for the queues")
	queue := queues[0]
	p := e.producer(producer.WithQueueSelector(producer.NewManualQueueSelector()))
	for _, text := range numbered(0, 100) {
		m := message(topic, text)
		m.Queue = queue
		send(p, m)
	}
	await("the queue to end at 100", 10*time.Second, func() bool {
		end, err := c.OffsetForTimestamp(queue, time.Now().Add(time.Hour).UnixMilli())
		return err == nil && end == 100
	})
	var texts []string
	offset := int64(0)
	for len(texts) < 100 {
		result := pullAt(c, queue, offset)
		equal(primitive.PullFound, result.Status, "status at %d", offset)
		check(len(result.GetMessageExts()) <= 7, "asked for 7 messages, got %d", len(result.GetMessageExts()))
		equal(int64(100), result.MaxOffset, "max offset in a pull result")
		for _, m := range result.GetMessageExts() {
			texts = append(texts, string(m.Body))
		}
		offset = result.NextBeginOffset
	}
	equal(numbered(0, 100), texts, "pulled bodies")

	beyond := pullAt(c, queue, 5000)
	equal(primitive.PullOffsetIllegal, beyond.Status, "status far beyond the end")
	equal(int64(100), beyond.NextBeginOffset, "next offset from far beyond the end")

	// A pull at the end waits there, and the next message ends its wait.
	woken := make(chan *primitive.PullResult, 1)
	go func() {
		result, _ := c.PullFrom(context.Background(), queue, 100, 7)
		woken <- result
	}()
	select {
	case result := <-woken:
		check(false, "a pull at the end did not wait: %v", result)
	case <-time.After(time.Second):
	}
	late := message(topic, "late")
	late.Queue = queue
	send(p, late)
	select {
	case result := <-woken:
		check(result != nil && result.Status == primitive.PullFound, "the waiting pull ended with %v", result)
		equal("late", string(result.GetMessageExts()[0].Body), "body that ended the wait")
	case <-time.After(5 * time.Second):
		check(false, "a message did not wake the waiting pull within 5 s")
	}
}

func pullAt(c rocketmq.PullConsumer, queue *primitive.MessageQueue, offset int64) *primitive.PullResult {
	result, err := c.PullFrom(context.Background(), queue, offset, 7)
	must(err, fmt.Sprintf("pulling at %d", offset))
	return result
}

// The consumer is given queues, polls, acknowledges, and a successor goes on where it stopped.
func pullPoll(e *env) {
	topic := e.topic("t", 4)
	group := e.name("g")
	p := e.producer()
	sendTexts(p, topic, numbered(0, 300))
	first := e.poller(group, topic)
	equal(numbered(0, 300), poll(first, 300), "polled bodies")
	must(first.PersistOffset(context.Background(), topic), "persisting offsets")
	must(first.Shutdown(), "shutting a pull consumer down")
	sendTexts(p, topic, numbered(300, 400))
	equal(numbered(300, 400), poll(e.poller(group, topic), 100), "bodies polled after a restart")
}

func (e *env) poller(group, topic string) rocketmq.PullConsumer {
	c, err := rocketmq.NewPullConsumer(
		consumer.WithNameServer(primitive.NamesrvAddr(e.namesrvs)),
		consumer.WithGroupName(group),
		consumer.WithInstance(instance()),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	)
	must(err, "making a pull consumer")
	must(c.Subscribe(topic, consumer.MessageSelector{}), "subscribing")
	must(c.Start(), "starting a pull consumer")
	e.later(func() { _ = c.Shutdown() })
	return c
}

// poll polls until `count` messages came, then once more for what must not come.
func poll(c rocketmq.PullConsumer, count int) []string {
	var texts []string
	deadline := time.Now().Add(rebalanceLimit)
	for last := false; !last && time.Now().Before(deadline); {
		last = len(texts) >= count
		request, err := c.Poll(context.Background(), time.Second)
		if consumer.IsNoNewMsgError(err) {
			continue
		}
		must(err, "polling")
		for _, m := range request.GetMsgList() {
			texts = append(texts, string(m.Body))
		}
		c.ACK(context.Background(), request, consumer.ConsumeSuccess)
	}
	sort.Strings(texts)
	return texts
}
