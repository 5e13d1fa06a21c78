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
	{"timers", timers},
	{"retry", retry},
}

// Delivered this much after its time, a message is late.
const lateness = 2 * time.Second

// Each message comes once and not before its time.
func delayLevels(e *env) {
	const level, delay = 2, 5 * time.Second
	comeLater(e, func(_ int, m *primitive.Message) time.Time {
		m.WithDelayTimeLevel(level)
		return time.Now().Add(delay)
	})
}

// Each message comes once and not before the time that it names.
func timers(e *env) {
	comeLater(e, func(i int, m *primitive.Message) time.Time {
		// From 6 s down to 2 s: the last ones sent come first.
		at := time.Now().Add(6*time.Second - time.Duration(i)*40*time.Millisecond)
		m.WithDelayTimestamp(at)
		return at
	})
}

// comeLater sends messages that wait: `wait` makes one do so, and says when it may come.
func comeLater(e *env, wait func(i int, m *primitive.Message) time.Time) {
	topic := e.topic("t", 2)
	in := &inbox{}
	e.member(e.name("g"), topic, "*", in)
	p := e.producer()
	send(p, message(topic, "at once"))
	in.awaitExactly([]string{"at once"}, rebalanceLimit)
	due := map[string]int64{}
	texts := numbered(0, 100)
	for i, text := range texts {
		m := message(topic, text)
		due[text] = wait(i, m).UnixMilli()
		send(p, m)
	}
	in.awaitExactly(append([]string{"at once"}, texts...), 30*time.Second)
	latest := int64(0)
	for _, m := range in.all() {
		at, waited := due[string(m.Body)]
		if !waited {
			continue
		}
		check(m.StoreTimestamp >= at, "%s came %d ms before its time", m.Body, at-m.StoreTimestamp)
		latest = max(latest, m.StoreTimestamp-at)
	}
	check(latest < lateness.Milliseconds(), "a message came %d ms late", latest)
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
