package main

import (
	"context"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// Messages that come later: delay levels and further tries.
var coming = []scenario{
	{"delay_levels", delayLevels},
	{"retry", retry},
}

// Each message comes once and not before its time.
func delayLevels(e *env) {
	const level, delay, late = 2, 5 * time.Second, 2 * time.Second
	topic := e.topic("t", 2)
	in := &inbox{}
	e.member(e.name("g"), topic, "*", in)
	p := e.producer()
	send(p, message(topic, "at once"))
	in.awaitExactly([]string{"at once"}, rebalanceLimit)
	sentAt := map[string]int64{}
	texts := numbered(0, 100)
	for _, text := range texts {
		m := message(topic, text)
		m.WithDelayTimeLevel(level)
		sentAt[text] = time.Now().UnixMilli()
		send(p, m)
	}
	in.awaitExactly(append([]string{"at once"}, texts...), 30*time.Second)
	latest := int64(0)
	for _, m := range in.all() {
		sent, is := sentAt[string(m.Body)]
		if !is {
			continue
		}
		took := m.StoreTimestamp - sent
		check(took >= delay.Milliseconds(), "%s came after %d ms, before its time", m.Body, took)
		latest = max(latest, took-delay.Milliseconds())
	}
	check(latest < late.Milliseconds(), "a message came %d ms late", latest)
	e.note("at most %d ms late", latest)
}

// A message that fails comes again after a pause, with its count, until it succeeds.
func retry(e *env) {
	topic := e.topic("t", 2)
	var mutex sync.Mutex
	var counts []int32
	var times []time.Time
	c := e.pushConsumer(e.name("g"))
	must(c.Subscribe(topic, consumer.MessageSelector{}, func(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		mutex.Lock()
		defer mutex.Unlock()
		counts, times = append(counts, messages[0].ReconsumeTimes), append(times, time.Now())
		if concurrently, is := primitive.GetConcurrentlyCtx(ctx); is {
			// The broker's own choice for the first pause would be 10 s.
			concurrently.DelayLevelWhenNextConsume = 1
		}
		if messages[0].ReconsumeTimes < 2 {
			return consumer.ConsumeRetryLater, nil
		}
		return consumer.ConsumeSuccess, nil
	}), "subscribing to "+topic)
	must(c.Start(), "starting a push consumer")
	send(e.producer(), message(topic, "hard"))
	await("three tries", 90*time.Second, func() bool {
		mutex.Lock()
		defer mutex.Unlock()
		return len(counts) >= 3
	})
	time.Sleep(2500 * time.Millisecond)
	mutex.Lock()
	defer mutex.Unlock()
	equal([]int32{0, 1, 2}, counts, "the counts of the tries")
	for i := 1; i < len(times); i++ {
		check(times[i].Sub(times[i-1]) >= time.Second, "try %d came after %v", i, times[i].Sub(times[i-1]))
	}
}
