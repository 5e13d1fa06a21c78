package main

import (
	"context"
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// What must hold while leaders are killed: each scenario is at work for the whole time, all of them at once.
//
// A call that failed is made again, since nobody knows what became of it. So a message may be stored twice, and messages
// are told apart by their texts.
var underKills = []scenario{
	{"kills_send", killsSend},
	{"kills_send_ordered", killsSendOrdered},
	{"kills_push", killsPush},
	{"kills_push_orderly", killsPushOrderly},
	{"kills_retry", killsRetry},
	{"kills_delay_levels", killsDelayLevels},
	{"kills_timers", killsTimers},
	{"kills_transaction", killsTransaction},
	{"kills_request_reply", killsRequestReply},
	{"kills_pull", killsPull},
}

const (
	// Until everything has arrived afterwards; an orderly consumer may wait for a lease of 60 s.
	killsSettle = 120 * time.Second
	// Between two messages of a scenario.
	killsPace = 30 * time.Millisecond
)

var (
	killsTime    = killTime()
	killsStarted = time.Now()
)

// killTime is for how long leaders are killed; 0: they are not.
func killTime() time.Duration {
	seconds, _ := strconv.Atoi(os.Getenv("COMPAT_KILLS"))
	return time.Duration(seconds) * time.Second
}

func killsOver() bool {
	return time.Since(killsStarted) > killsTime
}

// again gives the result of a call that is made until it works.
func again[T any](doing string, call func() (T, error)) T {
	deadline := time.Now().Add(60 * time.Second)
	for {
		result, err := call()
		if err == nil {
			return result
		}
		check(time.Now().Before(deadline), "%s for 60 s: %v", doing, err)
		time.Sleep(100 * time.Millisecond)
	}
}

// tried runs what ends a scenario when it fails, as a call whose error can be looked at.
func tried[T any](run func() T) func() (T, error) {
	return func() (result T, err error) {
		defer func() {
			if fault, is := recover().(failure); is {
				err = fmt.Errorf("%s", string(fault))
			}
		}()
		return run(), nil
	}
}

// record is what was acknowledged, and the place that the answer named.
type record struct {
	mutex  sync.Mutex
	places map[place]string
	texts  map[string]bool
}

func newRecord() *record {
	return &record{places: map[place]string{}, texts: map[string]bool{}}
}

func (r *record) note(result *primitive.SendResult, text string) {
	check(result.Status == primitive.SendOK, "a send answered %v", result)
	at := place{result.MessageQueue.BrokerName, result.MessageQueue.QueueId, result.QueueOffset}
	r.mutex.Lock()
	defer r.mutex.Unlock()
	check(r.places[at] == "", "%v was given to %s and to %s", at, r.places[at], text)
	r.places[at] = text
	r.texts[text] = true
}

func (r *record) sorted() []string {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	var all []string
	for text := range r.texts {
		all = append(all, text)
	}
	sort.Strings(all)
	return all
}

// checkStored sees that everything acknowledged lies where its answer said; offsets are dense, which reading checks.
func (r *record) checkStored(e *env, topic string) map[primitive.MessageQueue][]*primitive.MessageExt {
	stored := again("reading "+topic, tried(func() map[primitive.MessageQueue][]*primitive.MessageExt { return e.readAll(topic) }))
	found := map[place]string{}
	for queue, messages := range stored {
		for _, m := range messages {
			found[place{queue.BrokerName, queue.QueueId, m.QueueOffset}] = string(m.Body)
		}
	}
	for at, text := range r.places {
		equal(text, found[at], "what lies at %v", at)
	}
	return stored
}

// killsTopic makes a topic though leaders are killed.
func (e *env) killsTopic(kind string, queues int) string {
	return again("creating a topic", tried(func() string { return e.topic(kind, queues) }))
}

// sendUntilOver sends one numbered message after the other until the time is over.
func sendUntilOver(p rocketmq.Producer, topic, kind string) *record {
	r := newRecord()
	for i := 0; !killsOver(); i++ {
		m := message(topic, fmt.Sprintf("%s %d", kind, i))
		r.note(again("sending", func() (*primitive.SendResult, error) { return p.SendSync(context.Background(), m) }), string(m.Body))
		time.Sleep(killsPace)
	}
	return r
}

// awaitAll waits until everything acknowledged has come, once or more; nothing else may.
func awaitAll(expected []string, in *inbox) {
	awaitCover(expected, killsSettle, in)
	wanted := map[string]bool{}
	for _, text := range expected {
		wanted[text] = true
	}
	for _, text := range in.texts() {
		check(wanted[text], "nobody sent %s", text)
	}
}

func killsSend(e *env) {
	topic := e.killsTopic("t", 4)
	r := sendUntilOver(e.producer(), topic, "message")
	count := 0
	for _, messages := range r.checkStored(e, topic) {
		count += len(messages)
	}
	e.note("%d acknowledged, %d stored", len(r.texts), count)
}

// The next message of an order is sent when the one before is acknowledged; a copy may lie behind it, never a later one
// before it.
func killsSendOrdered(e *env) {
	topic := e.killsTopic("t", 2)
	r := newRecord()
	steps := killsSteps(e, topic, r)
	var all []*primitive.MessageExt
	for _, messages := range r.checkStored(e, topic) {
		all = append(all, messages...)
	}
	checkSteps(all, steps)
	e.note("%d orders of %d steps", orders, steps)
}

func killsSteps(e *env, topic string, r *record) int {
	p := e.producer(producer.WithQueueSelector(producer.NewHashQueueSelector()))
	step := 0
	for ; !killsOver(); step++ {
		for order := 0; order < orders; order++ {
			m := message(topic, fmt.Sprintf("%d:%d", order, step))
			m.WithShardingKey("order " + strconv.Itoa(order))
			r.note(again("sending", func() (*primitive.SendResult, error) { return p.SendSync(context.Background(), m) }), string(m.Body))
		}
		time.Sleep(killsPace)
	}
	return step
}

// checkSteps sees that the first copies of an order's messages come in their order.
func checkSteps(messages []*primitive.MessageExt, steps int) {
	next := map[int]int{}
	for _, m := range messages {
		var order, step int
		_, err := fmt.Sscanf(string(m.Body), "%d:%d", &order, &step)
		must(err, "reading a body")
		check(step <= next[order], "order %d: step %d comes before step %d", order, step, next[order])
		next[order] = max(next[order], step+1)
	}
	for order := 0; order < orders; order++ {
		equal(steps, next[order], "steps of order %d", order)
	}
}

// Two members share what comes; one leaves in the middle, and another joins.
func killsPush(e *env) {
	topic := e.killsTopic("t", 4)
	group := e.name("g")
	in := &inbox{}
	first := e.member(group, topic, "*", in)
	e.member(group, topic, "*", in)
	time.AfterFunc(killsTime/2, func() {
		_ = first.Shutdown()
		e.member(group, topic, "*", in)
	})
	r := sendUntilOver(e.producer(), topic, "message")
	awaitAll(r.sorted(), in)
	r.checkStored(e, topic)
	e.note("%d acknowledged, %d delivered", len(r.texts), len(in.all()))
}

// Members lock queues, leave and join; the messages of a queue come in order.
func killsPushOrderly(e *env) {
	topic := e.killsTopic("t", 2)
	group := e.name("g")
	in := &inbox{}
	first := e.member(group, topic, "*", in, consumer.WithConsumerOrder(true))
	e.member(group, topic, "*", in, consumer.WithConsumerOrder(true))
	time.AfterFunc(killsTime/2, func() {
		_ = first.Shutdown()
		e.member(group, topic, "*", in, consumer.WithConsumerOrder(true))
	})
	r := newRecord()
	steps := killsSteps(e, topic, r)
	awaitAll(r.sorted(), in)
	checkSteps(in.all(), steps)
	e.note("%d orders of %d steps, %d delivered", orders, steps, len(in.all()))
}

// Messages fail twice, and come again until they succeed.
func killsRetry(e *env) {
	topic := e.killsTopic("t", 2)
	done := &inbox{}
	c := e.pushConsumer(e.name("g"))
	must(c.Subscribe(topic, consumer.MessageSelector{}, func(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		if concurrently, is := primitive.GetConcurrentlyCtx(ctx); is {
			// The broker's own choice for the first pause would be 10 s.
			concurrently.DelayLevelWhenNextConsume = 1
		}
		if messages[0].ReconsumeTimes < 2 {
			return consumer.ConsumeRetryLater, nil
		}
		return done.receive(ctx, messages...)
	}), "subscribing to "+topic)
	must(c.Start(), "starting a push consumer")
	r := sendUntilOver(e.producer(), topic, "hard")
	awaitAll(r.sorted(), done)
	e.note("%d acknowledged, %d succeeded in the end", len(r.texts), len(done.all()))
}

// copies counts how often each text of a topic that begins with `prefix` is stored.
func copies(e *env, topic, prefix string) map[string]int {
	counts := map[string]int{}
	for _, text := range again("reading "+topic, tried(func() []string { return e.storedTexts(topic) })) {
		if strings.HasPrefix(text, prefix) {
			counts[text]++
		}
	}
	return counts
}

// awaitCopies waits until a topic holds as many copies of each message as wanted; it never holds more.
func awaitCopies(e *env, topic, prefix string, wanted map[string]int) {
	await("each message to be in "+topic+" as often as it waited", killsSettle, func() bool {
		found := copies(e, topic, prefix)
		whole := len(found) == len(wanted)
		for text, count := range found {
			check(count <= wanted[text], "%s waited %d times and was moved %d times", text, wanted[text], count)
			whole = whole && count == wanted[text]
		}
		return whole
	})
}

func killsDelayLevels(e *env) {
	const level, delay = 2, 5 * time.Second
	killsWaiting(e, "SCHEDULE_TOPIC_XXXX", func(m *primitive.Message) time.Time {
		m.WithDelayTimeLevel(level)
		return time.Now().Add(delay)
	})
}

func killsTimers(e *env) {
	// Longer than the three tries of a call.
	const delay = 15 * time.Second
	killsWaiting(e, "rmq_sys_wheel_timer", func(m *primitive.Message) time.Time {
		at := time.Now().Add(delay)
		m.WithDelayTimestamp(at)
		return at
	})
}

// No message comes before its time, and each that waits is moved to its topic once. `wait` makes a message wait, and says
// when it may come.
func killsWaiting(e *env, waitingTopic string, wait func(m *primitive.Message) time.Time) {
	topic := e.killsTopic("t", 2)
	in := &inbox{}
	e.member(e.name("g"), topic, "*", in)
	p := e.producer()
	prefix := e.name("later")
	due := map[string]int64{}
	r := newRecord()
	for i := 0; !killsOver(); i++ {
		m := message(topic, fmt.Sprintf("%s %d", prefix, i))
		send := func() (*primitive.SendResult, error) {
			// Each call has a time of its own. One that is over when the call arrives would not make the message wait.
			at := wait(m).UnixMilli()
			if first, known := due[string(m.Body)]; !known || at < first {
				due[string(m.Body)] = at
			}
			return p.SendSync(context.Background(), m)
		}
		check(again("sending", send).Status == primitive.SendOK, "a send was answered with another status")
		r.texts[string(m.Body)] = true
		time.Sleep(killsPace)
	}
	awaitAll(r.sorted(), in)
	for _, m := range in.all() {
		early := due[string(m.Body)] - m.StoreTimestamp
		check(early <= 0, "%s was stored in its topic %d ms before its time", m.Body, early)
	}
	waited := copies(e, waitingTopic, prefix)
	awaitCopies(e, topic, prefix, waited)
	e.note("%d acknowledged, all that waited were moved once", len(r.texts))
}

// byEnd ends transactions by the end of their message: commit or rollback, and "later commit" only when asked.
type byEnd struct{}

func (byEnd) ExecuteLocalTransaction(m *primitive.Message) primitive.LocalTransactionState {
	switch text := string(m.Body); {
	case strings.HasSuffix(text, "later commit"):
		return primitive.UnkonwnState
	case strings.HasSuffix(text, "commit"):
		return primitive.CommitMessageState
	}
	return primitive.RollbackMessageState
}

func (byEnd) CheckLocalTransaction(m *primitive.MessageExt) primitive.LocalTransactionState {
	if strings.HasSuffix(string(m.Body), "commit") {
		return primitive.CommitMessageState
	}
	return primitive.RollbackMessageState
}

// What is committed comes, as often as it was prepared; what is rolled back never does.
func killsTransaction(e *env) {
	topic := e.killsTopic("t", 2)
	in := &inbox{}
	e.member(e.name("g"), topic, "*", in)
	p := e.transactionProducer(byEnd{})
	prefix := e.name("tx")
	kinds := []string{"commit", "rollback", "commit", "later commit"}
	var expected []string
	for i := 0; !killsOver(); i++ {
		m := message(topic, fmt.Sprintf("%s %d %s", prefix, i, kinds[i%len(kinds)]))
		send := func() (*primitive.TransactionSendResult, error) {
			return p.SendMessageInTransaction(context.Background(), m)
		}
		check(again("sending", send).Status == primitive.SendOK, "a send was answered with another status")
		if strings.HasSuffix(string(m.Body), "commit") {
			expected = append(expected, string(m.Body))
		}
		time.Sleep(killsPace)
	}
	awaitAll(expected, in)
	prepared := copies(e, "RMQ_SYS_TRANS_HALF_TOPIC", prefix)
	for text := range prepared {
		if !strings.HasSuffix(text, "commit") {
			delete(prepared, text)
		}
	}
	awaitCopies(e, topic, prefix, prepared)
	e.note("%d committed, all that were prepared were resolved once", len(expected))
}

// Each request gets its own reply, though it may have to be made again.
func killsRequestReply(e *env) {
	topic := e.killsTopic("t", 2)
	replier := e.producer()
	c := e.pushConsumer(e.name("g"))
	receive := func(_ context.Context, batch ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, request := range batch {
			body := []byte("re: " + string(request.Body))
			if reply, err := consumer.CreateReplyMessage(request, body); err == nil {
				// The client forgets the body.
				reply.Body = body
				// If it fails, the requester asks again.
				_, _ = replier.SendSync(context.Background(), reply)
			}
		}
		return consumer.ConsumeSuccess, nil
	}
	must(c.Subscribe(topic, consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}, receive), "subscribing to "+topic)
	must(c.Start(), "starting a push consumer")
	requester := e.producer()
	count, repeated := 0, 0
	for ; !killsOver(); count++ {
		text := fmt.Sprintf("request %d", count)
		tries := 0
		reply := again("asking", func() (*primitive.Message, error) {
			tries++
			return requester.Request(context.Background(), 5*time.Second, message(topic, text))
		})
		repeated += tries - 1
		equal("re: "+text, string(reply.Body), "the reply to %s", text)
		time.Sleep(killsPace)
	}
	e.note("%d requests, %d made again", count, repeated)
}

// One reader goes through each queue: each pull goes on where the one before ended, none is told of another place.
func killsPull(e *env) {
	topic := e.killsTopic("t", 1)
	c := e.puller(e.name("g"), topic)
	queues := again("asking for the queues", func() ([]*primitive.MessageQueue, error) { return c.GetTopicRouteInfo(topic) })
	read := newRecord()
	faults := make(chan error, len(queues))
	var over atomic.Bool
	for _, queue := range queues {
		go func(queue *primitive.MessageQueue) {
			_, err := tried(func() bool { return readOn(c, queue, read, &over) })()
			faults <- err
		}(queue)
	}
	r := sendUntilOver(e.producer(), topic, "message")
	await("everything acknowledged to be pulled", killsSettle, func() bool {
		select {
		case err := <-faults:
			check(false, "a reader ended: %v", err)
		default:
		}
		return read.covers(r)
	})
	over.Store(true)
	e.note("%d acknowledged, all pulled", len(r.texts))
}

// readOn reads a queue from its first message on until it is over.
func readOn(c rocketmq.PullConsumer, queue *primitive.MessageQueue, read *record, over *atomic.Bool) bool {
	for offset := int64(0); !over.Load(); {
		result := again("pulling", func() (*primitive.PullResult, error) {
			return c.PullFrom(context.Background(), queue, offset, 32)
		})
		switch result.Status {
		case primitive.PullFound:
			for _, m := range result.GetMessageExts() {
				equal(offset, m.QueueOffset, "the next offset of %v", queue)
				read.mutex.Lock()
				read.places[place{queue.BrokerName, queue.QueueId, offset}] = string(m.Body)
				read.mutex.Unlock()
				offset++
			}
		case primitive.PullNoNewMsg:
		default:
			check(false, "a pull at %d of %v, which is the next place, answered %v", offset, queue, result)
		}
		equal(offset, result.NextBeginOffset, "the next place in %v", queue)
	}
	return true
}

// covers says whether all that another record knows was read, and sees that it was read at the same places.
func (r *record) covers(other *record) bool {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	whole := true
	for at, text := range other.places {
		found, is := r.places[at]
		whole = whole && is
		check(!is || found == text, "%s was acknowledged at %v, and %s is there", text, at, found)
	}
	return whole
}
